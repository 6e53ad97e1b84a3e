"""Where the time of one plain step goes, what verifying costs, and how far the step is from reading the weights once.

    python benchmarks/engine/step_cost.py TARGET_FOLDER --dtype bfloat16 --threads 2

Prints one JSON object; `bench_engine.py` makes the tables. The parts of a step are timed inside real steps by wrapping
the runtime's own objects, so they add up to the step; wrapping costs about a microsecond per call.
"""

import argparse
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from machine import machine_facts, read_bandwidth

from specdeploy.runtime.attention import Span, StepAttention
from specdeploy.runtime.decoder_layer import DecoderLayer
from specdeploy.runtime.engine import Engine
from specdeploy.runtime.linear import Linear
from specdeploy.runtime.model import TORCH_DTYPES, DecoderModel
from specdeploy.runtime.request import GenerationRequest

CONTEXT = 256
VERIFIED_TOKENS = 8


class StepProfile:
    """Seconds by name, each without what was timed inside it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inner: list[float] = []

    def timed(self, function: Callable[..., Any], name: Callable[..., str]) -> Callable[..., Any]:
        """`function`, with its own time added under `name(result)`."""

        def call(*arguments: Any, **options: Any) -> Any:
            self._inner.append(0.0)
            start = time.perf_counter()
            result = function(*arguments, **options)
            total = time.perf_counter() - start
            self.seconds[name(result)] += total - self._inner.pop()
            if self._inner:
                self._inner[-1] += total
            return result

        return call

    @contextmanager
    def watching(self, model: DecoderModel) -> Iterator[None]:
        """Time the runtime's parts inside the block."""

        def of_linear(result: torch.Tensor) -> str:
            return "lm head" if result.shape[-1] == model.num_logits else "linears"

        with (
            mock.patch.object(Linear, "__call__", self.timed(Linear.__call__, of_linear)),
            mock.patch.object(StepAttention, "__call__", self.timed(StepAttention.__call__, lambda _: "attention")),
            mock.patch.object(
                DecoderLayer, "__call__", self.timed(DecoderLayer.__call__, lambda _: "norms, rotary, activations")
            ),
            mock.patch.object(
                DecoderModel, "forward", self.timed(DecoderModel.forward, lambda _: "embedding, planning")
            ),
            mock.patch.object(Engine, "step", self.timed(Engine.step, lambda _: "engine")),
        ):
            yield


def decoding_engine(model: DecoderModel, num_steps: int) -> Engine:
    """An engine with one row that has read CONTEXT tokens and will emit more than `num_steps`."""
    engine = Engine(model, None, max_rows=1, max_queue=1, prefill_chunk=CONTEXT)
    prompt = tuple(100 + 7 * index % 5000 for index in range(CONTEXT))
    engine.submit(GenerationRequest("0", prompt, num_steps + 16))
    for _ in range(4):
        engine.step()
    return engine


def median_step(engine: Engine, num_steps: int) -> float:
    """Seconds of one step of the engine, everything included."""
    seconds = []
    for _ in range(num_steps):
        start = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def median_parts(engine: Engine, model: DecoderModel, num_steps: int) -> dict[str, float]:
    """Seconds of each part of a step."""
    samples: dict[str, list[float]] = defaultdict(list)
    profile = StepProfile()
    with profile.watching(model):
        for _ in range(num_steps):
            engine.step()
            for name, seconds in profile.seconds.items():
                samples[name].append(seconds)
            profile.seconds.clear()
    return {name: statistics.median(seconds) for name, seconds in samples.items()}


def forward_seconds(model: DecoderModel, repeats: int) -> tuple[list[float], list[float]]:
    """Seconds of forward passes over 1 and over VERIFIED_TOKENS tokens of a row, in turn."""
    cache = model.new_cache(1)
    model.forward([7] * CONTEXT, [Span(0, CONTEXT, 0, 0)], [], cache)
    seconds: tuple[list[float], list[float]] = ([], [])
    for repeat in range(repeats + 2):
        for arm, num_tokens in enumerate((1, VERIFIED_TOKENS)):
            start = time.perf_counter()
            output = model.forward([7] * num_tokens, [Span(0, num_tokens, 0, CONTEXT)], range(num_tokens), cache)
            torch.argmax(output.logits, dim=-1).tolist()
            if repeat >= 2:
                seconds[arm].append(time.perf_counter() - start)
    return seconds


def weight_bytes(folder: Path, dtype: torch.dtype) -> int:
    """Bytes of the weights a step reads: all of them, but only one row of embeddings that are not the head too."""
    from safetensors import safe_open

    is_tied = json.loads((folder / "config.json").read_text()).get("tie_word_embeddings", False)
    numbers = 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                shape = file.get_slice(name).get_shape()
                if is_tied and name == "lm_head.weight":
                    continue  # a stored copy of the embeddings
                if is_tied or not name.endswith("embed_tokens.weight"):
                    numbers += torch.Size(shape).numel()
    return numbers * dtype.itemsize


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    dtype = TORCH_DTYPES[arguments.dtype]
    model = DecoderModel(arguments.target, dtype=dtype, device=torch.device("cpu"), max_seq_len=CONTEXT + 256)
    with torch.inference_mode():
        before = read_bandwidth()
        engine = decoding_engine(model, 2 * arguments.repeats)
        step = median_step(engine, arguments.repeats)
        parts = median_parts(engine, model, arguments.repeats)
        plain, verify = forward_seconds(model, arguments.repeats)
        bandwidth = max(before, read_bandwidth())
    num_bytes = weight_bytes(arguments.target, dtype)
    result = {
        "dtype": arguments.dtype,
        "machine": machine_facts(arguments.threads),
        "step_s": step,
        "parts_s": parts,
        "plain_forward_s": plain,
        "verify_forward_s": verify,
        "verified_tokens": VERIFIED_TOKENS,
        "weight_bytes": num_bytes,
        "bandwidth_bytes_per_s": bandwidth,
        "read_once_s": num_bytes / bandwidth,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
