"""Files -> PlanInputs: everything the decision needs, each part read by the module named for it."""

import math
import platform
from dataclasses import dataclass
from pathlib import Path

from specdeploy.commands.plan_acceptance import ReadAcceptance, read_acceptance
from specdeploy.commands.plan_checkpoints import PairFacts, read_pair
from specdeploy.commands.plan_times import DeploymentTimes, read_times
from specdeploy.commands.plan_traffic import ReadTraffic, SegmentLengths, read_traffic
from specdeploy.config.load import LoadedDeployment
from specdeploy.contract import Lane
from specdeploy.planner.draft_tree import tree_nodes_of
from specdeploy.planner.hardware import HARDWARE, Hardware
from specdeploy.planner.memory_plan import plan_memory_of
from specdeploy.planner.plan_inputs import DEFAULT_MAX_DRAFT_COST_RATIO, PlanInputs, SegmentInputs
from specdeploy.planner.request_tokens import RequestTokens
from specdeploy.planner.torch_memory import TorchDevice
from specdeploy.planner_contract import Calibration, HardwareRecord, PlanMemory


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What the user asked for; None = the default of the deployment or of this machine."""

    hardware: str | None = None
    calibration: Path | None = None
    acceptance: tuple[Path, ...] = ()
    traffic: str | None = None
    concurrency: int | None = None
    max_draft_cost_ratio: float = DEFAULT_MAX_DRAFT_COST_RATIO
    random_seed: int = 0


@dataclass(frozen=True, slots=True)
class PlanFolders:
    """Where files are looked for."""

    configs: Path
    engines: Path
    artifacts: Path


def read_plan_inputs(loaded: LoadedDeployment, request: PlanRequest, folders: PlanFolders) -> PlanInputs:
    """Raises `ConfigError` or `CheckpointError` naming what is missing and the command that makes it."""
    pair = read_pair(loaded, folders.configs, folders.engines)
    traffic = read_traffic(loaded, pair.tokenizer, request.traffic, folders.configs, request.random_seed)
    acceptance = read_acceptance(
        loaded,
        request.acceptance,
        {name: lengths.temperature for name, lengths in traffic.segments.items()},
        configs_root=folders.configs,
        engines_root=folders.engines,
        artifacts_root=folders.artifacts,
    )
    expected = request.concurrency or loaded.config.traffic.expected_concurrency
    times = read_times(
        loaded,
        pair,
        hardware=request.hardware,
        calibration=request.calibration,
        concurrency=expected,
        configs_root=folders.configs,
        engines_root=folders.engines,
    )
    memory, notes = _memory(loaded, pair, times, traffic)
    error, source = model_error_of(times.calibration)
    assumptions = (*times.assumptions, *pair.assumptions, *notes, *acceptance.assumptions)
    # What is taken for traffic that the user named comes first; of prompts it is the least.
    is_named = traffic.offered is not None
    assumptions = (*traffic.assumptions, *assumptions) if is_named else (*assumptions, *traffic.assumptions)
    return PlanInputs(
        config=loaded.config,
        target=pair.target,
        draft=pair.draft,
        times=times.times,
        segments=_segments(loaded, traffic, acceptance),
        expected_concurrency=expected,
        hardware=times.hardware,
        engine=times.engine,
        calibration=times.calibration.name,
        model_error=error,
        model_error_source=source,
        borrowed=times.borrowed,
        memory=memory,
        offered=traffic.offered,
        fp8_times=times.fp8,
        lookup_times=times.lookup,
        draft_cost_ratio=pair.draft_cost_ratio,
        max_draft_cost_ratio=request.max_draft_cost_ratio,
        tree_nodes=tree_nodes_of(loaded.config),
        random_seed=request.random_seed,
        assumptions=assumptions,
    )


def _segments(loaded: LoadedDeployment, traffic: ReadTraffic, acceptance: ReadAcceptance) -> tuple[SegmentInputs, ...]:
    return tuple(
        SegmentInputs(
            segment=segment.name,
            input_tokens=traffic.segments[segment.name].input_tokens,
            output_tokens=traffic.segments[segment.name].output_tokens,
            acceptance=acceptance.profiles[segment.name],
            share=traffic.segments[segment.name].share,
            lengths_source=traffic.segments[segment.name].source,
            off_by_config=None if segment.speculate else segment.off_reason,
        )
        for segment in loaded.config.traffic.segments
    )


def model_error_of(calibration: Calibration) -> tuple[float, str]:
    """Relative error that nine of ten predictions stay within, and what it was seen on."""
    held_out = sum(one.is_held_out for one in calibration.residuals)
    seen = f"{held_out} held-out" if held_out else f"{len(calibration.residuals)} fitted"
    return calibration.p90_relative_error, f"nine of ten of {seen} measurements, calibration {calibration.name}"


# --- memory ---------------------------------------------------------------------------------------------------------


def _memory(
    loaded: LoadedDeployment, pair: PairFacts, times: DeploymentTimes, traffic: ReadTraffic
) -> tuple[PlanMemory | None, list[str]]:
    """Counted at the mean length of the longest segment; None where no device's memory is known."""
    longest = max(traffic.segments.values(), key=lambda one: float(one.input_tokens.mean() + one.output_tokens.mean()))
    request = _request_of(longest)
    if loaded.config.lane is Lane.TORCH:
        device, note = _torch_device(times.record)
        return plan_memory_of(loaded.config, pair.target, pair.draft, device, request), [note] if note else []
    return plan_memory_of(loaded.config, pair.target, pair.draft, _gpu(loaded, times.record), request), []


def _request_of(lengths: SegmentLengths) -> RequestTokens:
    return RequestTokens(
        input_tokens=math.ceil(float(lengths.input_tokens.mean())),
        output_tokens=math.ceil(float(lengths.output_tokens.mean())),
    )


def _gpu(loaded: LoadedDeployment, record: HardwareRecord | None) -> Hardware:
    """The deployment's own GPU as builds count it; another device by its record."""
    section = loaded.config.tensorrt_llm
    own = HARDWARE[section.gpu] if section is not None else None
    if own is not None and (record is None or record.name.startswith(str(section.gpu) if section else "")):
        return own
    if record is None:
        raise ValueError("a TensorRT-LLM lane needs a device")
    return Hardware(record.device, record.name, record.memory_bytes, record.source)


def _torch_device(record: HardwareRecord | None) -> tuple[TorchDevice, str | None]:
    if record is not None and record.kind != "cpu":
        return TorchDevice(record.device, record.memory_bytes, is_gpu=True), None
    size = record.memory_bytes if record is not None else _memory_of_machine()
    name = record.device if record is not None else f"this machine ({platform.machine()})"
    return TorchDevice(name, size), None


def _memory_of_machine() -> int:
    """Bytes this process may use: physical memory, or the limit of its control group where that is lower."""
    import os

    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total
