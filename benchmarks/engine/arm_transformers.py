"""transformers' `generate` as an arm: plain, with prompt lookup, or with an assistant model.

Nothing ends the text before the asked length: the model's end token is taken out of its generation config, which
costs transformers nothing (a minimum length would add a logits processor to every step).
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from arm_protocol import DTYPES, Skip
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer


class _Clock(BaseStreamer):
    """When the first token came, and in how many pieces the text came: one a target step."""

    def __init__(self) -> None:
        self.first_token: float | None = None
        self.num_puts = 0

    def put(self, value: torch.Tensor) -> None:  # noqa: ARG002 - the signature is the streamer's
        self.num_puts += 1
        if self.num_puts == 2:  # the first is the prompt
            self.first_token = time.perf_counter()

    def end(self) -> None:
        pass


class TransformersArm:
    """One loaded model, called prompt by prompt."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Load and warm up."""
        self._model: Any = _load(arguments.target, DTYPES[arguments.dtype])
        self._options: dict[str, Any] = {}
        if arguments.prompt_lookup:
            self._options["prompt_lookup_num_tokens"] = arguments.prompt_lookup
        if arguments.assistant is not None:
            if not arguments.assistant.is_dir():
                raise Skip(f"no draft model in {arguments.assistant}")
            assistant = _load(arguments.assistant, DTYPES[arguments.dtype])
            if arguments.draft_len:
                assistant.generation_config.num_assistant_tokens = arguments.draft_len
                assistant.generation_config.num_assistant_tokens_schedule = "constant"
            self._options["assistant_model"] = assistant
        self.generate([list(range(100, 132))], [12], frozenset())

    def facts(self) -> dict[str, Any]:
        """Versions."""
        return {
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
        }

    def generate(self, prompts: list[list[int]], max_tokens: list[int], stop_ids: frozenset[int]) -> dict[str, Any]:
        """One after another; `generate` with drafts takes one prompt at a time."""
        if stop_ids:
            raise ValueError("this arm always generates the asked length")
        clocks, outputs = [], []
        start = time.perf_counter()
        for prompt, limit in zip(prompts, max_tokens, strict=True):
            clocks.append(_Clock())
            outputs.append(self._generate_one(prompt, limit, clocks[-1]))
        seconds = time.perf_counter() - start
        first = clocks[0].first_token
        return {
            "seconds": seconds,
            "first_token_seconds": None if first is None else first - start,
            "token_ids": outputs,
            "num_steps": sum(clock.num_puts - 1 for clock in clocks),
            "num_draft_tokens": None,
            "num_accepted_tokens": None,
        }

    def _generate_one(self, prompt: list[int], max_tokens: int, clock: _Clock) -> list[int]:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            output = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=max_tokens,
                streamer=clock,
                **self._options,
            )
        tokens: list[int] = output[0, len(prompt) :].tolist()
        return tokens


def _load(folder: Path, dtype: torch.dtype) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)  # it comes in eval mode
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model
