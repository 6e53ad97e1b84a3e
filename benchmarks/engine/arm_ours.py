"""The embedded engine as an arm: one target, one drafting method, all prompts of a question at once."""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from arm_protocol import DTYPES, Skip
from traffic import num_token_ids

from specdeploy.contract import Method
from specdeploy.runtime import assemble
from specdeploy.runtime.engine import Engine
from specdeploy.runtime.request import GenerationRequest, RequestStats

_PREFILL_CHUNK = 512
_MAX_QUEUE = 64


class OurArm:
    """One engine."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Load and warm up. Raises Skip when the method's checkpoint is not there."""
        self.engine = load_engine(arguments)
        self._draft_len = arguments.draft_len
        self._num_asked = 0
        self.generate([list(range(100, 132)) * 2], [24], frozenset())

    def facts(self) -> dict[str, Any]:
        """Versions."""
        return {"torch": torch.__version__, "threads": torch.get_num_threads()}

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], max_tokens: list[int], stop_ids: frozenset[int]) -> dict[str, Any]:
        """Submit all, step until all are done."""
        start = time.perf_counter()
        self._num_asked += 1
        names = [f"{self._num_asked}-{index}" for index in range(len(prompts))]
        for name, prompt, limit in zip(names, prompts, max_tokens, strict=True):
            self.engine.submit(
                GenerationRequest(
                    name,
                    tuple(prompt),
                    limit,
                    stop_ids=stop_ids,
                    draft_len=lambda in_flight: self._draft_len,  # noqa: ARG005
                )
            )
        tokens: dict[str, list[int]] = {name: [] for name in names}
        stats: dict[str, RequestStats] = {}
        first_token = None
        while self.engine.num_in_flight:
            for update in self.engine.step():
                tokens[update.request_id] += update.token_ids
                stats[update.request_id] = update.stats
                if first_token is None:
                    first_token = time.perf_counter()
        end = time.perf_counter()
        return {
            "seconds": end - start,
            "first_token_seconds": None if first_token is None else first_token - start,
            "token_ids": [tokens[name] for name in names],
            "num_steps": sum(stats[name].num_steps or 0 for name in names),
            "num_draft_tokens": sum(stats[name].num_draft_tokens for name in names),
            "num_accepted_tokens": sum(stats[name].num_accepted_tokens for name in names),
        }


def load_engine(arguments: argparse.Namespace) -> Engine:
    """The engine of one method. Raises Skip when its checkpoint is not there."""
    method = None if arguments.method == "plain" else Method(arguments.method)
    return assemble.load_engine(
        arguments.target,
        _draft_folder(method, arguments),
        assemble.EngineSettings(
            method=method,
            dtype=DTYPES[arguments.dtype],
            device=torch.device("cpu"),
            max_draft_len=arguments.draft_len,
            max_rows=arguments.max_rows,
            max_queue=_MAX_QUEUE,
            max_seq_len=arguments.max_seq_len,
            prefill_chunk=_PREFILL_CHUNK,
            num_token_ids=num_token_ids(arguments.target),
            is_draft_len_dynamic=arguments.policy == "dynamic",
            min_ngram_size=2,
            max_ngram_size=4,
        ),
    )


def _draft_folder(method: Method | None, arguments: argparse.Namespace) -> Path | None:
    """The folder of the method's draft; auto takes the head where there is one, else the draft model."""
    if method is Method.DRAFT_MODEL:
        return _existing(arguments.draft_model, "draft model")
    if method is Method.EAGLE3:
        return _existing(arguments.eagle3, "EAGLE-3 head")
    if method is Method.AUTO:
        try:
            return _existing(arguments.eagle3, "EAGLE-3 head")
        except Skip:
            return _existing(arguments.draft_model, "draft model")
    return None


def _existing(folder: Path | None, what: str) -> Path:
    if folder is None or not any(folder.glob("*.safetensors")):
        raise Skip(f"there is no {what} in {folder}")
    return folder
