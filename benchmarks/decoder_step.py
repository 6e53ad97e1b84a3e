"""Time of one decode or verify step: our decoder against transformers' own, same weights, same run, arms interleaved.

    python benchmarks/decoder_step.py CHECKPOINT_FOLDER --threads 1 --repeats 15

Prints a Markdown table: median ms of each, the ratio ours / transformers with a 95 % bootstrap interval, and v, the
verify step over our plain step at the same batch.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy import stats
from transformers import AutoModelForCausalLM, DynamicCache

from specdeploy.runtime.attention import Span
from specdeploy.runtime.model import TORCH_DTYPES, DecoderModel

CONTEXT = 256
SIZES = [(1, 1), (1, 3), (1, 5), (4, 1), (4, 5), (8, 1), (8, 5)]  # rows, tokens per row


def measure_pair(first: Callable[[], object], second: Callable[[], object], repeats: int) -> np.ndarray:
    """Seconds [2, repeats], the two called in turn after one warm-up each."""
    first()
    second()
    times = np.empty((2, repeats))
    for index in range(repeats):
        for arm, function in enumerate((first, second)):
            start = time.perf_counter()
            function()
            times[arm, index] = time.perf_counter() - start
    return times


def transformers_step(model: AutoModelForCausalLM, rows: int, tokens: int) -> Callable[[], object]:
    """A forward pass of `tokens` per row on a cache of CONTEXT tokens, which is cut back afterwards."""
    cache = DynamicCache()
    with torch.inference_mode():
        model(torch.full((rows, CONTEXT), 7), past_key_values=cache)

    def step() -> None:
        with torch.inference_mode():
            model(torch.full((rows, tokens), 7), past_key_values=cache)
        cache.crop(-tokens)

    return step


def our_step(model: DecoderModel, rows: int, tokens: int) -> Callable[[], object]:
    """The same work for our decoder: the cache of a row is overwritten by every call."""
    cache = model.new_cache(rows)
    for row in range(rows):
        model.forward([7] * CONTEXT, [Span(0, CONTEXT, row, 0)], [], cache)
    spans = [Span(row * tokens, (row + 1) * tokens, row, CONTEXT) for row in range(rows)]
    return lambda: model.forward([7] * rows * tokens, spans, range(rows * tokens), cache)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print("| dtype | rows | tokens/row | ours ms | transformers ms | ratio (95 % interval) | v |")
    print("|---|---|---|---|---|---|---|")
    for name in ("float32", "bfloat16"):
        dtype = TORCH_DTYPES[name]
        ours = DecoderModel(arguments.checkpoint, dtype=dtype, device=torch.device("cpu"), max_seq_len=CONTEXT + 16)
        theirs = AutoModelForCausalLM.from_pretrained(arguments.checkpoint, dtype=dtype)
        plain: dict[int, float] = {}
        for rows, tokens in SIZES:
            times = measure_pair(
                our_step(ours, rows, tokens), transformers_step(theirs, rows, tokens), arguments.repeats
            )
            our_ms, their_ms = np.median(times, axis=1) * 1e3
            interval = stats.bootstrap(
                (times[0], times[1]), lambda a, b: np.median(a) / np.median(b), vectorized=False, paired=True, rng=0
            ).confidence_interval
            plain.setdefault(rows, our_ms)
            verify_cost = "-" if tokens == 1 else f"{our_ms / plain[rows]:.2f}"
            ratio = f"{our_ms / their_ms:.2f} ({interval.low:.2f}-{interval.high:.2f})"
            print(
                f"| {name} | {rows} | {tokens} | {our_ms:.1f} | {their_ms:.1f} | {ratio} | {verify_cost} |", flush=True
            )


if __name__ == "__main__":
    main()
