"""How fast the planner's simulator is: `python benchmarks/planner/simulator_speed.py`, one core, no GPU.

First the Azure conversation trace (19,366 requests), plain and with five constant K, as a plan is weighed. Then growing
numbers of requests with its lengths, each in a process of its own, whose peak memory is read at the end. Seconds are of
the processor, so that other programs do not count. Cost and acceptance are those of Llama-3.1-8B with an EAGLE-3 head
on one H100.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from shapes import LLAMA_3_8B, eagle3

from specdeploy.contract import DraftLenRange, Method, SegmentPlan
from specdeploy.planner.acceptance import AcceptanceModel
from specdeploy.planner.cost import KernelStepTimes
from specdeploy.planner.hardware_records import load_hardware, load_kernel_tables
from specdeploy.planner.simulated_traffic import SimulatedTraffic
from specdeploy.planner.simulator.result import SimulationResult
from specdeploy.planner.simulator.settings import SimulationSettings
from specdeploy.planner.simulator.simulation import simulate
from specdeploy.planner.traces import load_trace
from specdeploy.planner_contract import AcceptanceOrigin, AcceptanceProfile, Calibration, DraftForm
from specdeploy.run_contract import MetricName, Percentile

CONFIGS = Path(__file__).parents[2] / "configs"
TRACE = CONFIGS / "traffic" / "azure_2023_conv.csv.gz"
SETTINGS = SimulationSettings(max_rows=256, prefill_chunk=2048, kv_tokens=400_000, seed=1)
DRAFT_LENS = (0, 1, 2, 3, 5, 7)
SIZES = (10_000, 100_000, 1_000_000)
SCHEDULE = ((1, 5), (8, 3), (32, 1), (64, 0))  # first load, K
RATE = 5.53  # requests per second of the trace


def step_times() -> KernelStepTimes:
    """Llama-3.1-8B and an EAGLE-3 head of 32,000 output rows in vLLM on one H100."""
    hardware = load_hardware("h100-sxm", CONFIGS)
    tables = load_kernel_tables(hardware, CONFIGS / "hardware")
    text = (CONFIGS / "calibrations" / "vllm-h100-eagle3.calibration.json").read_text()
    calibration = Calibration.model_validate_json(text)
    return KernelStepTimes(LLAMA_3_8B, eagle3(LLAMA_3_8B), hardware, tables, 1, calibration)


def acceptance() -> AcceptanceModel:
    """Stated: three of four tokens survive, requests differ."""
    return AcceptanceModel.from_profile(
        AcceptanceProfile(
            method=Method.EAGLE3,
            form=DraftForm.CHAIN,
            survivals=tuple(0.75**depth for depth in range(1, 8)),
            request_sd=0.4,
            origin=AcceptanceOrigin.STATED,
            source="this benchmark",
        )
    )


def plan_of(loads: Sequence[tuple[int, int]]) -> SegmentPlan:
    """K from each load on."""
    ends = [*(low - 1 for low, _ in loads[1:]), None]
    ranges = (
        DraftLenRange(min_in_flight=low, max_in_flight=end, draft_len=draft_len)
        for (low, draft_len), end in zip(loads, ends, strict=True)
    )
    return SegmentPlan(segment="chat", ranges=tuple(ranges))


def timed(traffic: SimulatedTraffic, plan: SegmentPlan) -> tuple[SimulationResult, float]:
    """The run and the processor seconds it took, the cost model's and the drawing of steps included."""
    times, model = step_times(), acceptance()
    start = time.process_time()
    result = simulate(traffic, times, [model], [plan], SETTINGS)
    return result, time.process_time() - start


def crowd(num_requests: int) -> SimulatedTraffic:
    """Lengths of the trace, drawn with replacement, arriving at random at its rate."""
    trace = load_trace(TRACE)
    rng = np.random.default_rng(0)
    places = rng.integers(trace.num_requests, size=num_requests)
    arrivals = np.cumsum(rng.exponential(1 / RATE, num_requests))
    segment = np.zeros(num_requests, np.int64)
    return SimulatedTraffic(arrivals, trace.input_tokens[places], trace.output_tokens[places], segment, ("chat",))


def peak_mib() -> float:
    """Most memory this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def print_trace() -> None:
    trace = load_trace(TRACE)
    print(f"Azure conversation trace, {trace.num_requests} requests, {SETTINGS.max_rows} rows")
    print("| K | seconds | requests/s | engine steps | steps/s | in flight | tpot p50 ms | tokens/s |")
    print("|---|---|---|---|---|---|---|---|")
    total = 0.0
    arms = [(str(draft_len), plan_of([(1, draft_len)])) for draft_len in DRAFT_LENS]
    for name, plan in (*arms, ("5, 3, 1, 0 by load", plan_of(SCHEDULE))):
        result, seconds = timed(trace, plan)
        total += seconds if name.isdigit() else 0.0
        tpot_ms = result.percentile(MetricName.TPOT, Percentile.P50) * 1000
        print(
            f"| {name} | {seconds:.2f} | {trace.num_requests / seconds:,.0f} | {result.num_engine_steps:,} "
            f"| {result.num_engine_steps / seconds:,.0f} | {result.mean_in_flight:.1f} | {tpot_ms:.2f} "
            f"| {result.output_throughput:,.0f} |"
        )
    print(f"constant K in all: {total:.1f} s; peak memory {peak_mib():.0f} MiB\n")


def print_size(num_requests: int) -> None:
    traffic = crowd(num_requests)
    before = peak_mib()
    result, seconds = timed(traffic, plan_of([(1, 3)]))
    print(
        f"| {num_requests:,} | {seconds:.1f} | {seconds / num_requests * 1e6:.1f} | {result.num_engine_steps:,} "
        f"| {before:.0f} | {peak_mib():.0f} |",
        flush=True,
    )


def main() -> None:
    if len(sys.argv) > 1:
        print_size(int(sys.argv[1]))
        return
    print_trace()
    print("| requests, K 3 | seconds | us/request | engine steps | MiB before | peak MiB |")
    print("|---|---|---|---|---|---|", flush=True)
    for size in SIZES:
        subprocess.run([sys.executable, __file__, str(size)], check=True)


if __name__ == "__main__":
    main()
