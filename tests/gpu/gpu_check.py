"""What this GPU does with the torch runtime: step times, the ratios c and v, and losslessness, in under five minutes.

    make gpu-check                                             on a machine with an NVIDIA GPU
    PYTHONPATH=tests python -m gpu.gpu_check --dry-run-cpu --output DIR    the same path with tiny models, no GPU

Writes configs/hardware/<gpu>.measured.json (specdeploy.planner.measured_steps). Exit code: 0 everything passed, 1 a
check failed, 2 no GPU. Weights are random: the shapes decide the time, not the numbers.
"""

# ruff: noqa: T201 - its output is its result

import argparse
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import torch

from gpu.lossless_checks import run_checks
from gpu.model_shapes import LLAMA_3_1_8B, LLAMA_3_2_1B, ModelShape, kv_bytes_per_token, step_weight_bytes, tiny
from gpu.step_times import FAILED, Budget, Grid, copy_bytes_per_s, measure
from specdeploy.contract import Dtype
from specdeploy.manifest import write_json_atomically
from specdeploy.planner.measured_steps import (
    MeasuredGpu,
    MeasuredModel,
    MeasuredSteps,
    StepCell,
    WeightFloor,
    measured_path,
    step_ratios,
)

HARDWARE_FOLDER = Path(__file__).parents[2] / "configs" / "hardware"
CELLS_END_S = 270.0
MAX_FLOOR_RATIO = 1.3
NO_GPU = "gpu-check: PyTorch sees no CUDA GPU here, so nothing was measured"


class Plan(NamedTuple):
    device: torch.device
    dtype: torch.dtype
    target: ModelShape
    draft: ModelShape
    grid: Grid
    copy_bytes: int


def gpu_plan() -> Plan:
    """The sizes that speculation is decided at, on the current GPU."""
    grid = Grid((1, 2, 4, 8, 16, 32, 64), (1024, 8192), (1, 2, 4, 8), num_replays=20)
    device = torch.device("cuda", torch.cuda.current_device())
    return Plan(device, torch.bfloat16, LLAMA_3_1_8B, LLAMA_3_2_1B, grid, 4 << 30)


def dry_run_plan() -> Plan:
    """The same steps with sizes for a CPU. Its times say nothing."""
    grid = Grid((1, 2), (64,), (1, 4), num_replays=2)
    target, draft = tiny("tiny target"), tiny("tiny draft", num_layers=1, tied=True)
    return Plan(torch.device("cpu"), torch.float32, target, draft, grid, 1 << 20)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write, print; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run-cpu", action="store_true", help="tiny models on the CPU; needs --output")
    parser.add_argument("--output", type=Path, help=f"folder of the result (default {HARDWARE_FOLDER})")
    options = parser.parse_args(arguments)
    if options.dry_run_cpu and (options.output is None or options.output.resolve() == HARDWARE_FOLDER):
        parser.error("--dry-run-cpu needs --output with a folder of its own: its times are no measurement")
    if not options.dry_run_cpu and not torch.cuda.is_available():
        print(NO_GPU, file=sys.stderr)
        return 2
    started = time.monotonic()
    result = check(dry_run_plan() if options.dry_run_cpu else gpu_plan(), is_dry_run=options.dry_run_cpu)
    folder = options.output or HARDWARE_FOLDER
    path = measured_path(folder, result.gpu.name)
    folder.mkdir(parents=True, exist_ok=True)
    write_json_atomically(path, result)
    print_result(result)
    print(f"written: {path}  [took {time.monotonic() - started:.0f} s]")
    failed = [check.name for check in result.checks if not check.has_passed]
    failed += sorted({cell.skipped for cell in result.cells if cell.skipped and cell.skipped.startswith(FAILED)})
    if result.floor is not None and result.floor.has_passed is False:
        failed.append("plain step against the weights' floor")
    print("FAILED: " + "; ".join(failed) if failed else "passed")
    return 1 if failed else 0


def check(plan: Plan, *, is_dry_run: bool) -> MeasuredSteps:
    """Losslessness first, then bandwidth, then cells until the time is over."""
    budget = Budget(CELLS_END_S)
    gpu = describe_gpu(plan.device)
    print(f"{gpu.name}, torch {gpu.torch}, CUDA {gpu.cuda}, driver {gpu.driver}", flush=True)
    checks = run_checks(plan.device)
    for each in checks:
        print(f"{'pass' if each.has_passed else 'FAIL'}  {each.name}: {each.detail}", flush=True)
    bandwidth = copy_bytes_per_s(plan.device, plan.copy_bytes, plan.grid.num_replays)
    print(f"copy bandwidth {bandwidth / 1e9:.0f} GB/s read and written  [{budget.left_s:.0f} s left]", flush=True)
    longest = max(plan.grid.contexts)
    target, draft = (
        shape.build(dtype=plan.dtype, device=plan.device, max_seq_len=longest, seed=seed)
        for seed, shape in enumerate((plan.target, plan.draft))
    )
    cells = measure(target, draft, plan.grid, budget)
    described = [_describe_model(shape, plan.dtype) for shape in (plan.target, plan.draft)]
    return MeasuredSteps(
        measured_at=datetime.now(UTC),
        command="gpu_check --dry-run-cpu" if is_dry_run else "make gpu-check",
        is_dry_run=is_dry_run,
        gpu=gpu,
        target=described[0],
        draft=described[1],
        copy_bytes_per_s=bandwidth,
        floor=weight_floor(cells, described[0].step_weight_bytes / bandwidth, is_judged=not is_dry_run),
        cells=cells,
        ratios=step_ratios(cells),
        checks=checks,
    )


def weight_floor(cells: Sequence[StepCell], floor_s: float, *, is_judged: bool) -> WeightFloor | None:
    """The plain step of one row at the shortest context against its weights; None when that was not measured."""
    plain = [
        cell for cell in cells if (cell.role, cell.num_rows, cell.num_tokens) == ("target", 1, 1) and cell.median_s
    ]
    if not plain:
        return None
    step_s = min(plain, key=lambda cell: cell.context).median_s
    assert step_s is not None
    ratio = step_s / floor_s
    return WeightFloor(
        step_s=step_s,
        floor_s=floor_s,
        ratio=ratio,
        max_ratio=MAX_FLOOR_RATIO,
        has_passed=ratio <= MAX_FLOOR_RATIO if is_judged else None,
    )


def describe_gpu(device: torch.device) -> MeasuredGpu:
    """The device and its software; a CPU is described as one."""
    if device.type != "cuda":
        return MeasuredGpu(
            name=f"CPU {platform.machine()}",
            memory_bytes=1,
            driver=None,
            cuda=None,
            torch=torch.__version__,
            sm_clock_mhz=None,
            max_sm_clock_mhz=None,
            memory_clock_mhz=None,
            power_limit_w=None,
        )
    properties = torch.cuda.get_device_properties(device)
    facts = _ask_nvidia_smi(str(properties.uuid))
    clocks = [facts.get(name) for name in ("clocks.sm", "clocks.max.sm", "clocks.mem")]
    sm, max_sm, memory = (int(float(clock)) if clock else None for clock in clocks)
    return MeasuredGpu(
        name=properties.name,
        memory_bytes=properties.total_memory,
        driver=facts.get("driver_version"),
        cuda=torch.version.cuda,
        torch=torch.__version__,
        sm_clock_mhz=sm,
        max_sm_clock_mhz=max_sm,
        memory_clock_mhz=memory,
        power_limit_w=float(facts["power.limit"]) if "power.limit" in facts else None,
    )


def _ask_nvidia_smi(uuid: str) -> dict[str, str]:
    """What nvidia-smi says of the GPU; empty where it is not installed or does not answer."""
    names = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit")
    if shutil.which("nvidia-smi") is None:
        return {}
    command = ["nvidia-smi", "-i", f"GPU-{uuid}", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [value.strip() for value in answer.strip().split(",")]
    return {name: value for name, value in zip(names, values, strict=False) if value and not value.startswith("[")}


def _describe_model(shape: ModelShape, dtype: torch.dtype) -> MeasuredModel:
    return MeasuredModel(
        name=shape.name,
        dtype=Dtype(str(dtype).removeprefix("torch.")),
        step_weight_bytes=step_weight_bytes(shape.config, dtype),
        kv_bytes_per_token=kv_bytes_per_token(shape.config, dtype),
    )


def print_result(result: MeasuredSteps) -> None:
    """A Markdown table of times and ratios, and what is missing."""
    times = {(c.role, c.num_rows, c.context, c.num_tokens): c.median_s for c in result.cells if c.median_s is not None}
    draft_lens = sorted({cell.num_tokens - 1 for cell in result.cells if cell.num_tokens > 1})
    print("\n| context | batch | plain ms | draft ms | c | " + " | ".join(f"v (K={k})" for k in draft_lens) + " |")
    print("|---" * (5 + len(draft_lens)) + "|")
    for row in result.ratios:
        place = (row.num_rows, row.context)
        draft_s = times.get(("draft", *place, 1))
        values = [
            f"{times['target', *place, 1] * 1e3:.3f}",
            "-" if draft_s is None else f"{draft_s * 1e3:.3f}",
            "-" if row.draft_cost_ratio is None else f"{row.draft_cost_ratio:.3f}",
            *(f"{row.verify_cost_ratio[k]:.2f}" if k in row.verify_cost_ratio else "-" for k in draft_lens),
        ]
        print(f"| {row.context} | {row.num_rows} | " + " | ".join(values) + " |")
    for cell in result.cells:
        if cell.median_s is None:
            print(
                f"missing: {cell.role} batch {cell.num_rows} context {cell.context}"
                f" tokens/row {cell.num_tokens}: {cell.skipped}"
            )
    if result.floor is not None:
        floor = result.floor
        verdict = {True: "pass", False: "FAIL", None: "not judged"}[floor.has_passed]
        print(
            f"plain step {floor.step_s * 1e3:.3f} ms / weights at copy bandwidth {floor.floor_s * 1e3:.3f} ms = "
            f"{floor.ratio:.2f}, at most {floor.max_ratio}: {verdict}"
        )


if __name__ == "__main__":
    sys.exit(main())
