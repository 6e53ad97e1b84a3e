"""Median times of replayed steps over batch, context and tokens per row, as far as memory and time reach."""

# ruff: noqa: T201 - progress of a script

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

import torch

from specdeploy.planner.measured_steps import StepCell
from specdeploy.runtime.attention import Span
from specdeploy.runtime.cuda_graph import GraphPool
from specdeploy.runtime.kv_cache import KvCache
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.static_step import StaticSteps
from specdeploy.units import format_bytes

# Graph memory, workspaces and logits beside weights and cache.
_RESERVE_BYTES = 6 << 30
# How the reason of a cell begins that raised an error instead of running out of memory or time.
FAILED = "failed: "


@dataclass
class Budget:
    """Seconds that cells may still use. What comes after is named as missing."""

    total_s: float
    _start: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        return self.total_s - (time.monotonic() - self._start)


@dataclass(frozen=True)
class Grid:
    """What is measured. Plain steps of the target come first, then the draft, then K from small to large."""

    batches: Sequence[int]
    contexts: Sequence[int]
    draft_lens: Sequence[int]
    num_replays: int


def replay_seconds(call: Callable[[], object], device: torch.device, num_replays: int) -> float:
    """Median seconds of a call after three that do not count: by CUDA events, on a CPU by the clock."""
    for _ in range(3):
        call()
    if device.type != "cuda":
        times = []
        for _ in range(num_replays):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return median(times)
    events = [(_event(), _event()) for _ in range(num_replays)]
    for start_event, end_event in events:
        start_event.record()
        call()
        end_event.record()
    torch.cuda.synchronize(device)
    times_ms: list[float] = [start_event.elapsed_time(end_event) for start_event, end_event in events]
    return median(times_ms) / 1e3


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def copy_bytes_per_s(device: torch.device, num_bytes: int, num_replays: int) -> float:
    """Bandwidth of copying a block within the device's memory: bytes read and written per second."""
    source = torch.ones(num_bytes // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / replay_seconds(lambda: target.copy_(source), device, num_replays)


@torch.inference_mode()
def measure(target: DecoderModel, draft: DecoderModel, grid: Grid, budget: Budget) -> tuple[StepCell, ...]:
    """Every cell of the grid, measured or with the reason why not. Prints each as it comes."""
    cells: list[StepCell] = []
    for context in grid.contexts:
        cells += _measure_model("target", target, context, (1, *(k + 1 for k in grid.draft_lens)), grid, budget)
        cells += _measure_model("draft", draft, context, (1,), grid, budget)
    return tuple(cells)


def _measure_model(
    role: Literal["target", "draft"],
    model: DecoderModel,
    context: int,
    token_counts: Sequence[int],
    grid: Grid,
    budget: Budget,
) -> list[StepCell]:
    gc.collect()  # steps and their recorded calls hold each other, and the cache of the last model with them
    made = _steps(model, context, max(grid.batches))
    cells = []
    for num_tokens in token_counts:
        for num_rows in grid.batches:
            cell = StepCell(role=role, num_rows=num_rows, context=context, num_tokens=num_tokens)
            if made is None:
                update: dict[str, object] = {"skipped": "memory holds key/value cache of no such row"}
            else:
                update = _measure_cell(*made, cell, model, grid.num_replays, budget)
            cells.append(cell.model_copy(update=update))
            _print_cell(cells[-1], budget)
    return cells


def _steps(model: DecoderModel, context: int, max_rows: int) -> tuple[StaticSteps, int] | None:
    """Steps over a cache of as many rows of this context as fit, up to `max_rows`; and how many. None: not one fits."""
    num_slots = max_rows
    if model.device.type == "cuda":
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(model.device)
        per_row = 2 * model.num_layers * model.num_kv_heads * model.head_dim * model.dtype.itemsize * context
        num_slots = min(max_rows, (free - _RESERVE_BYTES) // per_row)
    if num_slots < 1:
        return None
    cache = KvCache(
        num_slots=num_slots,
        max_seq_len=context,
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        dtype=model.dtype,
        device=model.device,
    )
    for layer in (*cache.keys, *cache.values):
        layer.normal_()  # zeros would let the GPU draw less power, and run faster, than real text does
    return StaticSteps(model, cache, pool=GraphPool(model.device)), num_slots


def _measure_cell(
    steps: StaticSteps, num_slots: int, cell: StepCell, model: DecoderModel, num_replays: int, budget: Budget
) -> dict[str, object]:
    if budget.left_s <= 0:
        return {"skipped": "out of time"}
    if cell.num_rows > num_slots:
        return {"skipped": f"memory holds key/value cache of {num_slots} such rows"}
    per_row, cached = cell.num_tokens, cell.context - cell.num_tokens
    spans = [Span(row * per_row, (row + 1) * per_row, row, cached) for row in range(cell.num_rows)]
    try:
        steps.run([7] * (per_row * cell.num_rows), spans, [0])
        seconds = replay_seconds(steps.recorded(spans), model.device, num_replays)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return {"skipped": f"out of memory with {format_bytes(torch.cuda.mem_get_info(model.device)[0])} free"}
    except RuntimeError as error:  # the other cells still count; the run fails
        return {"skipped": f"{FAILED}{(str(error) or type(error).__name__).splitlines()[0]}"}
    way = "paged" if steps.is_paged(spans) else "gathered"
    return {"median_s": seconds, "num_replays": num_replays, "attention": way}


def _print_cell(cell: StepCell, budget: Budget) -> None:
    result = f"{cell.median_s * 1e3:9.3f} ms" if cell.median_s is not None else f"skipped: {cell.skipped}"
    print(
        f"{cell.role:6} batch {cell.num_rows:3} context {cell.context:5} tokens/row {cell.num_tokens:2}  {result}"
        f"  [{max(0, budget.left_s):.0f} s left]",
        flush=True,
    )
