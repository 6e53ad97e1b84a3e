"""A run of a million requests: how long until its summary and its report are there, and how much memory that takes.

    .venv/bin/python benchmarks/client/many_records.py [--records 1000000] [--messages 16]

The records are made up (three segments, four loads, both arms of equal answers; two tokens a message in the on arm) and
written as the bench writes them. Each stage then runs in a process of its own, so that its peak memory (resident set,
as the kernel counts it) is its own: `summary` reads all records and compares the arms, `report` is the command that
users call. Files go to a temporary folder of about 1.3 GB per million records.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import orjson

from specdeploy.run_contract import Arm, PlannedDraftLen
from specdeploy_client.artifacts import RECORDS_FILE, RUN_SUMMARY_FILE, write_model
from specdeploy_client.records.table import RecordTable
from specdeploy_client.server_facts import ServerFacts
from specdeploy_client.summary import RunFacts, TargetFacts, summarise_run

MAX_REPORT_S = 30.0
MAX_REPORT_MB = 1000.0
SEGMENTS = ("chat", "code_edit", "summarisation")
LEVELS = (1, 4, 16, 64)
NUM_BLOCKS = 10
STEP_NS = 20_000_000
TEXT = "a run of many requests tells how long each of them took and how often a draft was right"


@dataclass(frozen=True)
class Stage:
    """One process: what it did, seconds until it ended and of processor time, its peak memory in MB (10^6 bytes)."""

    name: str
    seconds: float
    cpu_s: float
    peak_mb: float


def main() -> None:
    """Write, summarise, report; print a table and whether the goals hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--messages", type=int, default=16)
    parser.add_argument("--stage", choices=("all", "write", "summary"), default="all", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help="keep the files here")
    options = parser.parse_args()
    if options.stage == "write":
        write_records(options.folder / RECORDS_FILE, options.records, options.messages)
    elif options.stage == "summary":
        write_summary(options.folder)
    elif options.folder is not None:
        run_stages(options.folder, options.records, options.messages)
    else:
        with tempfile.TemporaryDirectory() as folder:
            run_stages(Path(folder), options.records, options.messages)


def run_stages(folder: Path, num_records: int, num_messages: int) -> None:
    """Every stage in a process of its own; exits 1 when a goal is missed."""
    ourselves = [sys.executable, __file__, "--folder", str(folder)]
    client = str(Path(sys.executable).with_name("specdeploy-client"))
    sizes = ["--records", str(num_records), "--messages", str(num_messages)]
    stages = [
        run_stage("write", [*ourselves, *sizes, "--stage", "write"]),
        run_stage("summary", [*ourselves, "--stage", "summary"]),
        run_stage("report", [client, "report", "--artifact-dir", str(folder)]),
    ]
    size_mb = (folder / RECORDS_FILE).stat().st_size / 1e6
    print(f"\n{num_records:,} records of {num_messages} messages, {size_mb:,.0f} MB of JSON lines\n")
    print("| stage | seconds | CPU seconds | peak memory, MB |\n|---|---|---|---|")
    for stage in stages:
        print(f"| {stage.name} | {stage.seconds:.1f} | {stage.cpu_s:.1f} | {stage.peak_mb:,.0f} |")
    report = stages[-1]
    is_met = report.seconds < MAX_REPORT_S and report.peak_mb < MAX_REPORT_MB
    print(f"\ngoal: report under {MAX_REPORT_S:.0f} s and {MAX_REPORT_MB:,.0f} MB: {'met' if is_met else 'MISSED'}")
    sys.exit(0 if is_met else 1)


def run_stage(name: str, command: list[str]) -> Stage:
    """Run `command` to its end. Exits with its status where it fails."""
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{name} ended with status {process.returncode}: {' '.join(command)}")
    seconds, cpu_s = time.monotonic() - started, usage.ru_utime + usage.ru_stime
    return Stage(name, seconds, cpu_s, usage.ru_maxrss * 1024 / 1e6)


def write_records(path: Path, num_records: int, num_messages: int) -> None:
    """Both arms of every cell, block by block, as a bench would have left them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    num_cells = len(SEGMENTS) * len(LEVELS)
    bounds = [cell * (num_records // 2) // num_cells for cell in range(num_cells + 1)]
    with path.open("wb") as file:
        now_ns = 10**12
        for number, (segment, concurrency) in enumerate(product(SEGMENTS, LEVELS)):
            per_arm = bounds[number + 1] - bounds[number]
            # Speculation makes two tokens a step: it wins alone and loses among many.
            step_cost = 1.2 + 0.25 * np.log2(concurrency)
            for block in range(NUM_BLOCKS):
                indices = range(block * per_arm // NUM_BLOCKS, (block + 1) * per_arm // NUM_BLOCKS)
                for arm in (Arm.OFF, Arm.ON):
                    step_ns = STEP_NS if arm is Arm.OFF else STEP_NS * step_cost
                    cell = {"segment": segment, "concurrency": concurrency, "request_rate": None, "arm": arm.value}
                    file.writelines(_lines(rng, cell, block, indices, num_messages, step_ns, now_ns))
                    now_ns += len(indices) * 400_000_000 // concurrency


def _lines(
    rng: np.random.Generator,
    cell: dict[str, object],
    block: int,
    indices: range,
    num_messages: int,
    step_ns: float,
    start_ns: int,
) -> Iterator[bytes]:
    """One block of one arm as JSON lines; a prompt takes 3 steps, and every step 10 % more or less."""
    is_on = cell["arm"] == "on"
    words = TEXT.split()
    concurrency = int(str(cell["concurrency"]))
    # As many tokens in both arms, and `num_messages` messages a request on average.
    num_pairs = -(-2 * num_messages // 3)
    sizes = [2] * num_pairs if is_on else [1] * 2 * num_pairs
    steps_ns = rng.normal(step_ns, 0.1 * step_ns, (len(indices), len(sizes))).clip(min=step_ns / 4)
    steps_ns[:, 0] += 2 * step_ns
    arrivals_ns = steps_ns.cumsum(axis=1).astype(np.int64)
    token_ids = rng.integers(1000, 50_000, (len(indices), sum(sizes)))
    for row, index in enumerate(indices):
        due_ns = start_ns + row * 400_000_000 // concurrency
        message_ns = (arrivals_ns[row] + due_ns).tolist()
        record = {
            "request_id": f"{cell['segment']}-c{concurrency}-{cell['arm']}-{index}",
            **cell,
            "block": block,
            "index": index,
            "prompt_id": f"{cell['segment']}-{concurrency}-{index}",
            "scheduled_ns": due_ns,
            "send_ns": due_ns + 20_000,
            "end_ns": message_ns[-1],
            "message_ns": message_ns,
            "message_tokens": sizes,
            "output_ids": token_ids[row].tolist(),
            "text": " ".join(words[i % len(words)] for i in range(index, index + sum(sizes))),
            "max_tokens": sum(sizes),
            "ignore_eos": None,
            "expected_input_tokens": None,
            "connect_ns": 0,
            "error": None,
            "failure": None,
            "finish_reason": "length",
            "input_token_count": 200,
            "output_token_count": sum(sizes),
            "cached_token_count": 0,
            "num_steps": len(sizes),
            "num_draft_tokens": 3 * len(sizes) if is_on else 0,
            "num_accepted_tokens": sum(sizes) - len(sizes),
            "speculation": "on" if is_on else "off:request",
        }
        yield orjson.dumps(record) + b"\n"


def write_summary(folder: Path) -> None:
    """What the bench does when the last request is answered."""
    started = time.monotonic()
    table = RecordTable.load(folder / RECORDS_FILE)
    loaded_s = time.monotonic() - started
    plan = tuple(PlannedDraftLen(segment=segment, draft_len=4) for segment in SEGMENTS)
    target = TargetFacts("many-records", expected_concurrency=4, planned=plan, max_draft_len=4)
    run = RunFacts("full", 0, "2026-01-01T12:00:00+00:00", 3600.0, {"command": "many_records.py"})
    write_model(folder / RUN_SUMMARY_FILE, summarise_run(table, target, ServerFacts(lane="torch", method="ngram"), run))
    total_s = time.monotonic() - started
    print(
        f"{table.num_records:,} records read in {loaded_s:.1f} s, summarised in {total_s - loaded_s:.1f} s",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
