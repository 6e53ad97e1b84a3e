"""vLLM's CPU build as an arm, in an environment of its own (`bench_peers.py` makes it). Needs nothing of this project.

vLLM keeps its own defaults, except that it may use every core, keeps no prompts from one request to the next (the
same prompt comes again) and ignores the end token, as the other arms do.
"""

import argparse
import time
from typing import Any

import torch
import vllm
from vllm import LLM, SamplingParams


class VllmArm:
    """One `LLM`."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Load and warm up; the first time on a machine this compiles for minutes."""
        options: dict[str, Any] = {}
        if arguments.prompt_lookup:
            options["speculative_config"] = {
                "method": "ngram",
                "num_speculative_tokens": arguments.prompt_lookup,
                "prompt_lookup_min": 2,
                "prompt_lookup_max": 4,
            }
        self._llm = LLM(
            model=str(arguments.target),
            dtype=arguments.dtype,
            max_model_len=arguments.max_seq_len,
            max_num_seqs=arguments.max_rows,
            enable_prefix_caching=False,
            seed=0,
            **options,
        )
        for num_prompts in (1, arguments.max_rows):
            self.generate([list(range(100, 164))] * num_prompts, [12] * num_prompts, frozenset())

    def facts(self) -> dict[str, Any]:
        """Versions."""
        return {"vllm": vllm.__version__, "torch": torch.__version__}

    def generate(self, prompts: list[list[int]], max_tokens: list[int], stop_ids: frozenset[int]) -> dict[str, Any]:
        """All prompts in one call."""
        if stop_ids:
            raise ValueError("this arm always generates the asked length")
        sampling = [SamplingParams(temperature=0.0, max_tokens=limit, ignore_eos=True) for limit in max_tokens]
        questions = [{"prompt_token_ids": prompt} for prompt in prompts]
        start = time.perf_counter()
        outputs = self._llm.generate(questions, sampling, use_tqdm=False)
        seconds = time.perf_counter() - start
        return {
            "seconds": seconds,
            "first_token_seconds": None,
            "token_ids": [list(output.outputs[0].token_ids) for output in outputs],
            "num_steps": None,
            "num_draft_tokens": None,
            "num_accepted_tokens": None,
        }
