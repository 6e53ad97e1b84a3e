"""Files of configs/hardware: one YAML record per device, and the tables of its measured kernels (CSV) beside it."""

import csv
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from specdeploy.config.load import load_yaml_model
from specdeploy.config.schema import Gpu
from specdeploy.errors import ConfigError, Violation
from specdeploy.planner.attention_table import AttentionPoint, AttentionTable, fit_attention
from specdeploy.planner.kernel_tables import AllReduceTable, KernelTables
from specdeploy.planner.linear_table import LinearTable, linear_table
from specdeploy.planner.monotone import rising
from specdeploy.planner_contract import HardwareRecord, Precision

# What a deployment's `tensorrt_llm.gpu` names.
ALIASES: Mapping[str, str] = MappingProxyType({Gpu.H100: "h100-sxm", Gpu.H200: "h200-sxm"})
DEFAULT_ALL_REDUCE = "vllm"
_MICROSECOND = 1e-6
# In fp8 and fp4, sizes one above a multiple of 16 take up to twice as long as the next multiple: such steps are padded
# by the engines, so these columns are left out. In bfloat16 they are ordinary tile edges.
_ALIGNED_PRECISIONS = (Precision.FP8, Precision.FP4)
_ALIGNED_FROM = 16


def load_hardware(name_or_path: str, configs_root: Path) -> HardwareRecord:
    """`configs/hardware/<name>.yaml`, or the record at a path. Raises `ConfigError` that lists the devices known."""
    if "/" in name_or_path or name_or_path.endswith((".yaml", ".yml")):
        return load_yaml_model(Path(name_or_path), HardwareRecord)
    name = ALIASES.get(name_or_path, name_or_path)
    known = list_hardware(configs_root)
    if name not in known:
        devices = ", ".join(known) or "none"
        reason, remedy = f"no device '{name_or_path}'", f"Devices known: {devices}. Or give the path of a record."
        raise ConfigError([Violation(str(configs_root / "hardware"), "", reason, remedy)])
    return load_yaml_model(configs_root / "hardware" / f"{name}.yaml", HardwareRecord)


def list_hardware(configs_root: Path) -> list[str]:
    """Names of the devices that have a record, sorted."""
    return sorted(path.stem for path in (configs_root / "hardware").glob("*.yaml"))


def load_kernel_tables(record: HardwareRecord, folder: Path, engine: str = DEFAULT_ALL_REDUCE) -> KernelTables:
    """The tables that `record` names, relative to `folder` (where the record lies).

    `engine` chooses the all-reduce, which every engine brings its own of. Raises `ConfigError` naming the file.
    """
    return KernelTables(
        linear={precision: _load_linear(folder / name, precision) for precision, name in record.linear_tables.items()},
        attention={
            precision: _load_attention(folder / name, precision) for precision, name in record.attention_tables.items()
        },
        all_reduce=_load_all_reduce(folder / record.all_reduce_table, engine) if record.all_reduce_table else None,
    )


def _load_linear(path: Path, precision: Precision) -> LinearTable:
    tokens, rows = _read_table(path, 2)
    kept = [
        index
        for index, size in enumerate(tokens)
        if precision not in _ALIGNED_PRECISIONS or size <= _ALIGNED_FROM or size % _ALIGNED_FROM == 0
    ]
    features_out = sorted({float(n) for (n, _), _ in rows})
    features_in = sorted({float(k) for (_, k), _ in rows})
    seconds = np.full((len(features_out), len(features_in), len(kept)), np.nan)
    for (n, k), values in rows:
        cells = [values[index] * _MICROSECOND for index in kept]
        seconds[features_out.index(float(n)), features_in.index(float(k))] = cells
    return linear_table(features_out, features_in, [float(tokens[index]) for index in kept], seconds)


def _load_attention(path: Path, precision: Precision) -> AttentionTable:
    lengths, rows = _read_table(path, 3)
    points = [
        AttentionPoint(int(heads), int(kv_heads), int(num_rows), length, value * _MICROSECOND)
        for (heads, kv_heads, num_rows), values in rows
        for length, value in zip(lengths, values, strict=True)
        if not math.isnan(value)
    ]
    return fit_attention(points, 1 if precision is Precision.FP8 else 2)


def _load_all_reduce(path: Path, engine: str) -> AllReduceTable:
    elements, rows = _read_table(path, 2)
    measured = {name for (name, _), _ in rows}
    implementation = engine if engine in measured else DEFAULT_ALL_REDUCE
    lines: dict[int, tuple[tuple[float, ...], tuple[float, ...]]] = {}
    for (name, num_gpus), values in rows:
        if name != implementation:
            continue
        known = [(float(size), value) for size, value in zip(elements, values, strict=True) if not math.isnan(value)]
        seconds = rising(np.array([value * _MICROSECOND for _, value in known]), 0)
        lines[int(num_gpus)] = (tuple(size for size, _ in known), tuple(seconds.tolist()))
    return AllReduceTable(lines, implementation)


def _read_table(path: Path, num_keys: int) -> tuple[list[int], list[tuple[tuple[str, ...], list[float]]]]:
    """Sizes in the head line, and per line its `num_keys` key columns and microseconds; nan where a cell is empty."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    except (OSError, UnicodeDecodeError) as error:
        remedy = "Restore the file, or take its name out of the record."
        raise ConfigError([Violation(str(path), "", f"cannot be read: {error}", remedy)]) from None
    try:
        sizes = [int(size) for size in lines[0].split(",")[num_keys:]]
        rows = [(tuple(cells[:num_keys]), _numbers(cells[num_keys:], len(sizes))) for cells in csv.reader(lines[1:])]
    except (ValueError, IndexError) as error:
        remedy = "One head line with sizes, then lines with as many microseconds; empty where nothing was measured."
        raise ConfigError([Violation(str(path), "", f"is no table of kernels: {error}", remedy)]) from None
    return sizes, rows


def _numbers(cells: Iterable[str], count: int) -> list[float]:
    numbers = [float(cell) if cell else math.nan for cell in cells]
    if len(numbers) != count:
        raise ValueError(f"{len(numbers)} cells where the head line has {count} sizes")
    if any(number <= 0 for number in numbers):
        raise ValueError("a time that is not above 0")
    return numbers
