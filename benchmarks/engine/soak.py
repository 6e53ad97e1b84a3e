"""Requests of mixed lengths with random cancellations through one engine: is anything lost, and does memory stay flat?

    python benchmarks/engine/soak.py --requests 1000            # `make soak`
    python benchmarks/engine/soak.py --dtype bfloat16 --method auto

Some requests sample with seeds of their own, some are cancelled while they wait or in the middle of their answer. At
the end no slot may be in use, every answer must have its length, and a sample of the answers must equal those of the
same requests alone. Exit 1 when any of this fails. Text is compared exactly in float32 only: bfloat16 rounds
differently in other company, there the share is printed.
"""

import argparse
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from arm_ours import load_engine
from arm_protocol import DTYPES
from arms import OUR_METHODS
from comparison import markdown_table
from folders import built_draft, built_target
from traffic import SEGMENTS, read_traffic

from specdeploy.runtime.engine import Engine
from specdeploy.runtime.request import GenerationRequest, SamplingParams

_CHECK_EVERY = 100
_MAX_IN_FLIGHT = 20  # more than rows, so that some wait
_CANCELLED_SHARE = 0.15
_SAMPLED_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class Planned:
    """One request, and after how many of its steps in flight it is cancelled (None: never)."""

    request: GenerationRequest
    cancel_after: int | None


@dataclass(slots=True)
class Outcome:
    """What came of the run."""

    texts: dict[str, list[int]]
    num_cancelled: int
    memory: list[tuple[int, float]]  # requests ended, resident MiB
    most_in_use: int


def plan_requests(
    prompts: list[tuple[int, ...]], count: int, *, max_tokens: int, draft_len: int, seed: int
) -> list[Planned]:
    """Requests of prompts cut at random, lengths 1..max_tokens. The first 16 are the longest, so that every page of
    key/value memory that will ever be used is used at the start."""
    rng = random.Random(seed)  # noqa: S311 - a workload, not a secret
    longest = max(prompts, key=len)
    planned = []
    for index in range(count):
        prompt, length = rng.choice(prompts), rng.randint(1, max_tokens)
        prompt = prompt[: rng.randint(4, len(prompt))]
        if index < 16:
            prompt, length = longest, max_tokens
        is_sampled = rng.random() < _SAMPLED_SHARE
        sampling = SamplingParams(temperature=0.8, top_p=0.95, seed=index) if is_sampled else SamplingParams()
        request = GenerationRequest(
            str(index), prompt, length, sampling=sampling, draft_len=_always(rng.choice((0, draft_len, draft_len)))
        )
        is_cancelled = index >= 16 and rng.random() < _CANCELLED_SHARE
        planned.append(Planned(request, rng.randint(0, length) if is_cancelled else None))
    return planned


def _always(draft_len: int) -> Callable[[int], int]:
    return lambda in_flight: draft_len  # noqa: ARG005 - the signature is the contract


@torch.inference_mode()
def run(engine: Engine, planned: list[Planned], seed: int) -> Outcome:
    """Keep a changing number of requests in flight until all have ended."""
    rng = random.Random(seed)  # noqa: S311
    waiting = planned[::-1]
    age: dict[str, int] = {}
    cancel_after = {item.request.request_id: item.cancel_after for item in planned}
    outcome = Outcome({}, 0, [], 0)
    texts: dict[str, list[int]] = {}
    num_ended = 0
    while waiting or age:
        for _ in range(rng.randint(0, _MAX_IN_FLIGHT - len(age)) if waiting else 0):
            if waiting:
                request = waiting.pop().request
                engine.submit(request)
                age[request.request_id], texts[request.request_id] = 0, []
        ended = []
        for name in list(age):
            limit = cancel_after[name]
            if limit is not None and age[name] >= limit and engine.cancel(name) is not None:
                outcome.num_cancelled += 1
                ended.append(name)
        for name in ended:
            del age[name], texts[name]
        for update in engine.step():
            texts[update.request_id] += update.token_ids
            if update.finish_reason is not None:
                outcome.texts[update.request_id] = texts.pop(update.request_id)
                del age[update.request_id]
                ended.append(update.request_id)
        outcome.most_in_use = max(outcome.most_in_use, engine.num_slots_in_use)
        for name in age:
            age[name] += 1
        for _ in ended:
            num_ended += 1
            if num_ended % _CHECK_EVERY == 0:
                outcome.memory.append((num_ended, resident_mib()))
    return outcome


def resident_mib() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def memory_slope(memory: list[tuple[int, float]]) -> float | None:
    """MiB per 1,000 requests by least squares over the second half of the run; None below three measurements there.

    In the first half new shapes still come, and the library of matrix products keeps a kernel for each.
    """
    late = memory[len(memory) // 2 :]
    if len(late) < 3:
        return None
    counts, sizes = np.array(late).T
    return float(np.polyfit(counts, sizes, 1)[0] * 1000)


def alone(engine: Engine, request: GenerationRequest) -> list[int]:
    """The request's tokens with nothing beside it and nothing drafted."""
    engine.submit(replace(request, draft_len=lambda in_flight: 0))  # noqa: ARG005
    tokens: list[int] = []
    while engine.num_in_flight:
        for update in engine.step():
            tokens += update.token_ids
    return tokens


def main() -> None:
    """Run, print, judge."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    arguments.target = arguments.target or built_target(arguments.deployment)
    engine = load_engine(arguments)
    prompts = [prompt.token_ids for prompt in read_traffic(arguments.target, SEGMENTS)]
    planned = plan_requests(
        prompts, arguments.requests, max_tokens=arguments.max_tokens, draft_len=arguments.draft_len, seed=arguments.seed
    )
    start = time.perf_counter()
    outcome = run(engine, planned, arguments.seed)
    seconds = time.perf_counter() - start
    by_name = {item.request.request_id: item.request for item in planned}
    wrong_length = [name for name, tokens in outcome.texts.items() if len(tokens) != by_name[name].max_tokens]
    num_in_use = engine.num_slots_in_use
    sample = random.Random(arguments.seed).sample(sorted(outcome.texts), min(arguments.sample, len(outcome.texts)))  # noqa: S311
    with torch.inference_mode():
        differing = [name for name in sample if alone(engine, by_name[name]) != outcome.texts[name]]
    slope = memory_slope(outcome.memory)
    is_flat = slope is None or slope <= arguments.max_growth * outcome.memory[-1][1]
    print(markdown_table(["requests ended", "resident MiB"], [[str(n), f"{mib:.1f}"] for n, mib in outcome.memory]))
    print(
        markdown_table(
            ["what", "value"],
            [
                ["requests, cancelled, seconds", f"{len(planned)}, {outcome.num_cancelled}, {seconds:.0f}"],
                ["memory in the second half, MiB per 1,000 requests", "-" if slope is None else f"{slope:.2f}"],
                ["slots in use: most, at the end", f"{outcome.most_in_use}, {num_in_use}"],
                ["answers of a wrong length", str(len(wrong_length))],
                ["answers unlike those alone", f"{len(differing)} of {len(sample)}"],
            ],
        )
    )
    is_exact = arguments.dtype == "float32"
    if num_in_use or wrong_length or not is_flat or (differing and is_exact):
        raise SystemExit(1)


def parse_arguments() -> argparse.Namespace:
    """The command line; what arm_ours.load_engine reads is among it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--sample", type=int, default=20, help="answers compared with those alone")
    parser.add_argument("--max-growth", type=float, default=0.02, help="part of memory that 1,000 requests may add")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--method", choices=tuple(OUR_METHODS.values()), default="ngram")
    parser.add_argument("--draft-len", type=int, default=4)
    parser.add_argument("--policy", choices=("dynamic", "fixed"), default="dynamic", help="K by step, or always K")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="float32")
    parser.add_argument("--deployment", default="demo", help="whose built target is used")
    parser.add_argument("--target", type=Path, help="a checkpoint folder instead")
    parser.add_argument("--draft-model", type=Path, default=built_draft("demo-draft-model"))
    parser.add_argument("--eagle3", type=Path, default=built_draft("demo-eagle3"))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--max-rows", type=int, default=8)
    parser.add_argument("--max-seq-len", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
