"""The cost model of a deployment: measured as a whole on this machine, or kernels of a device and an engine's part."""

from dataclasses import dataclass
from pathlib import Path

from specdeploy.commands.plan_checkpoints import PairFacts
from specdeploy.config.load import LoadedDeployment
from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import Lane
from specdeploy.errors import CheckpointError, ConfigError, Violation
from specdeploy.planner.borrowed import (
    ENGINE_NAMES,
    Wanted,
    borrowed_error,
    describe_source,
    host_work_notes,
    lent,
    nearest,
)
from specdeploy.planner.calibration_files import find_calibration, load_calibration
from specdeploy.planner.cost import KernelStepTimes
from specdeploy.planner.draft_shape import DraftShape, draft_shape_of
from specdeploy.planner.draft_tree import TreeStepTimes, tree_nodes_of
from specdeploy.planner.hardware_records import ALIASES, load_hardware, load_kernel_tables
from specdeploy.planner.kernel_tables import KernelTables
from specdeploy.planner.measured_times import MeasuredStepTimes
from specdeploy.planner.model_shape import ModelShape, shape_of
from specdeploy.planner.plan_inputs import BorrowedTimes
from specdeploy.planner.step_times import StepLoad, StepTime, StepTimes
from specdeploy.planner_contract import (
    ArithmeticLine,
    CalibratedRange,
    Calibration,
    HardwareRecord,
    Overheads,
    Precision,
)

CALIBRATIONS = "calibrations"  # below configs (shipped) and below engines (of this machine)
THIS_MACHINE = "cpu"
_NO_CALIBRATION = "none"
_ENGINES = {Lane.TRTLLM_ENGINE: "tensorrt_llm", Lane.TRTLLM_LLMAPI: "tensorrt_llm", Lane.TORCH: "torch"}


@dataclass(frozen=True, slots=True)
class UncalibratedTimes:
    """Step times with another engine's, device's or drafter's overheads: good enough for prompts and memory, and for
    no promise."""

    times: StepTimes
    problem: str

    def time(self, load: StepLoad) -> StepTime:
        return self.times.time(load)

    def range_problem(self, num_rows: int, draft_len: int) -> str | None:
        del num_rows, draft_len
        return self.problem

    def explain(self, num_rows: int, draft_len: int, kv_tokens: float) -> tuple[ArithmeticLine, ...]:
        return self.times.explain(num_rows, draft_len, kv_tokens)

    @property
    def ridge_tokens(self) -> float:
        return self.times.ridge_tokens


@dataclass(frozen=True, slots=True)
class DeploymentTimes:
    """`times` of the pair; `borrowed`, `fp8` and `lookup` as in `PlanInputs`. `record` is None for this
    machine measured as a whole. `hardware` and `engine` in words."""

    times: StepTimes
    borrowed: BorrowedTimes | None
    fp8: StepTimes | None
    lookup: StepTimes | None
    record: HardwareRecord | None
    calibration: Calibration
    hardware: str
    engine: str
    assumptions: tuple[str, ...]


def read_times(
    loaded: LoadedDeployment,
    pair: PairFacts,
    *,
    hardware: str | None,
    calibration: Path | None,
    concurrency: int,
    configs_root: Path,
    engines_root: Path,
) -> DeploymentTimes:
    """Step times, borrowed ones for `concurrency` requests at once. Raises `ConfigError` for an unknown device, and for
    lane torch without a calibration of this machine."""
    config = loaded.config
    wants_machine = hardware == THIS_MACHINE or (hardware is None and config.lane is Lane.TORCH)
    if wants_machine and calibration is None:
        calibration = engines_root / CALIBRATIONS / f"{config.name}.calibration.json"
        if not calibration.is_file():
            reason = "lane torch is planned from step times of this machine, and none were measured"
            remedy = f"Run: specdeploy calibrate {config.name}. Or name a device: --hardware h100-sxm"
            raise ConfigError([Violation(str(calibration), "", reason, remedy)])
    if calibration is not None:
        known = load_calibration(calibration)
        if known.target is not None:
            return _measured(config, known)
        return _kernels(loaded, pair, known, hardware, configs_root, concurrency, None)
    record = load_hardware(_device_name(config, hardware), configs_root)
    known, problem = _choose(config, record, configs_root, concurrency)
    return _kernels(loaded, pair, known, hardware, configs_root, concurrency, problem)


def _measured(config: DeploymentConfig, calibration: Calibration) -> DeploymentTimes:
    times: StepTimes = MeasuredStepTimes(calibration)
    return DeploymentTimes(
        times=_as_tree(config, times, calibration),
        borrowed=None,
        fp8=None,
        lookup=None,
        record=None,
        calibration=calibration,
        hardware=calibration.hardware,
        engine=_engine_in_words(calibration.engine, calibration.engine_version),
        assumptions=(),
    )


def _kernels(
    loaded: LoadedDeployment,
    pair: PairFacts,
    calibration: Calibration,
    hardware: str | None,
    configs_root: Path,
    concurrency: int,
    problem: str | None,
) -> DeploymentTimes:
    config, section = loaded.config, loaded.config.tensorrt_llm
    name = hardware or (_device_name(config, None) if section is not None else calibration.hardware)
    record = load_hardware(name, configs_root)
    folder = Path(name).parent if "/" in name or name.endswith((".yaml", ".yml")) else configs_root / "hardware"
    tables = load_kernel_tables(record, folder, calibration.engine)
    gpus = section.tensor_parallel if section is not None else 1
    notes: list[str] = []
    if section is not None and section.pipeline_parallel > 1:
        notes.append(f"{section.pipeline_parallel} pipeline stages are costed as if they were tensor parallel")
        gpus *= section.pipeline_parallel
    quantization = section.quantization if section is not None else None
    kv_dtype = section.kv_cache_dtype if section is not None else "auto"
    try:
        target = shape_of(pair.target, dtype=config.dtype, quantization=quantization, kv_cache_dtype=kv_dtype)
        draft = draft_shape_of(
            config.speculation.method,
            pair.draft,
            target,
            dtype=config.dtype,
            exit_layer=config.speculation.layer_skip.num_layers,
        )
        fp8 = shape_of(pair.target, dtype=config.dtype, quantization="fp8", kv_cache_dtype=kv_dtype)
    except CheckpointError as error:
        raise CheckpointError(f"{loaded.path}: {error}") from error
    draft_gpus = section.draft_tensor_parallel if section is not None else None
    kernels = _Kernels(target, draft, record, tables, gpus, draft_gpus)
    times: StepTimes = kernels.with_overheads(calibration)
    if problem is not None:
        times = UncalibratedTimes(times, problem)
    can_fp8 = pair.target.quantization is None and quantization in (None, "none") and Precision.FP8 in tables.linear
    version = None if section is None else section.version
    borrowed = _borrow(config, kernels, calibration, configs_root, concurrency, is_own=problem is None)
    notes += borrowed.notes if borrowed is not None else ()
    return DeploymentTimes(
        times=_as_tree(config, times, calibration),
        borrowed=borrowed,
        fp8=KernelStepTimes(fp8, None, record, tables, gpus, calibration) if can_fp8 else None,
        lookup=KernelStepTimes(target, None, record, tables, gpus, calibration),
        record=record,
        calibration=calibration,
        hardware=record.device + (f" x {gpus}" if gpus > 1 else ""),
        engine=_engine_in_words(_ENGINES[config.lane], version),
        assumptions=tuple(notes),
    )


@dataclass(frozen=True, slots=True)
class _Kernels:
    """Target and draft on one device, whatever the engine."""

    target: ModelShape
    draft: DraftShape | None
    record: HardwareRecord
    tables: KernelTables
    gpus: int
    draft_gpus: int | None

    def with_overheads(self, calibration: Calibration) -> KernelStepTimes:
        return KernelStepTimes(
            self.target,
            self.draft,
            self.record,
            self.tables,
            self.gpus,
            calibration,
            draft_tensor_parallel=self.draft_gpus,
        )


def _borrow(
    config: DeploymentConfig,
    kernels: _Kernels,
    known: Calibration,
    configs_root: Path,
    concurrency: int,
    *,
    is_own: bool,
) -> BorrowedTimes | None:
    """`known` where it is another engine's or device's already, else the shipped one that is nearest to this load."""
    found: Calibration | None = known
    if is_own and known.hardware == kernels.record.name:
        others = [one for one in _shipped(configs_root) if one.name != known.name]
        found = nearest(others, _wanted(config, kernels.record, concurrency))
    if found is None or found.name == _NO_CALIBRATION:
        return None
    draft_len, draft = config.speculation.max_draft_len, kernels.draft
    is_chained = draft is not None and draft.num_passes(draft_len) > 1
    as_own = lent(found, kernels.record.name, draft_len=draft_len, is_chained=is_chained)
    times = _as_tree(config, kernels.with_overheads(as_own), as_own)
    return BorrowedTimes(
        times, describe_source(found), borrowed_error(found), host_work_notes(found, config.speculation.method)
    )


def _wanted(config: DeploymentConfig, record: HardwareRecord, concurrency: int) -> Wanted:
    rows = min(concurrency, config.serving.max_rows)
    speculation = config.speculation
    return Wanted(_ENGINES[config.lane], record.name, speculation.method, rows, speculation.max_draft_len)


def _shipped(configs_root: Path) -> list[Calibration]:
    return [load_calibration(path) for path in sorted((configs_root / CALIBRATIONS).glob("*.json"))]


def _as_tree(config: DeploymentConfig, times: StepTimes, calibration: Calibration) -> StepTimes:
    nodes = tree_nodes_of(config)
    if nodes is None:
        return times
    return TreeStepTimes(times, config.speculation.max_draft_len, nodes, calibration.range.max_step_tokens)


def _device_name(config: DeploymentConfig, hardware: str | None) -> str:
    if hardware is not None:
        return hardware
    gpu = "h100" if config.tensorrt_llm is None else str(config.tensorrt_llm.gpu)
    return ALIASES.get(gpu, gpu)


def _choose(
    config: DeploymentConfig, record: HardwareRecord, configs_root: Path, concurrency: int
) -> tuple[Calibration, str | None]:
    """The shipped calibration of this engine, device, method and target, or the nearest and what is wrong with it."""
    folder, engine, method = configs_root / CALIBRATIONS, _ENGINES[config.lane], config.speculation.method
    path = find_calibration(folder, record.name, engine, method, config.target.checkpoint)
    if path is not None:
        return load_calibration(path), None
    problem = f"nobody calibrated {_engine_in_words(engine, None)} with {method} on {record.name}"
    found = nearest(_shipped(configs_root), _wanted(config, record, concurrency))
    return found or _without_overheads(record), problem


def _without_overheads(record: HardwareRecord) -> Calibration:
    """Its empty range makes every prediction one to measure first."""
    return Calibration(
        name=_NO_CALIBRATION,
        hardware="no device",
        engine="none",
        overheads=Overheads(),
        range=CalibratedRange(max_rows=1, max_draft_len=0, max_step_tokens=1),
        median_relative_error=1.0,
        p90_relative_error=1.0,
        source=f"kernel tables of {record.name} alone",
    )


def _engine_in_words(engine: str, version: str | None) -> str:
    name = ENGINE_NAMES.get(engine, engine)
    return name if version is None else f"{name} {version}"
