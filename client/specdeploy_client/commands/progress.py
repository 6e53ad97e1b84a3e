"""What is shown while a run is measured: one bar, a bar per cell, or nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

from specdeploy.run_contract import RequestRecord
from specdeploy_client.bench_plan import BenchPlan
from specdeploy_client.commands.options import UiKind
from specdeploy_client.load.cell import Cell
from specdeploy_client.metrics import is_answered, is_cancelled
from specdeploy_client.reporting.console import progress_columns

Advance = Callable[[RequestRecord], None]


@contextmanager
def show_progress(plan: BenchPlan, ui: UiKind, console: Console) -> Iterator[Advance]:
    """A display on `console` that every record moves on."""
    with Progress(*progress_columns(), console=console, disable=ui is UiKind.NONE) as progress:
        yield _bar_per_cell(plan, progress) if ui is UiKind.DASHBOARD else _one_bar(plan, progress)


def _one_bar(plan: BenchPlan, progress: Progress) -> Advance:
    task = progress.add_task("measuring", total=plan.num_requests)
    num_failed = 0

    def advance(record: RequestRecord) -> None:
        nonlocal num_failed
        num_failed += _has_failed(record)
        progress.update(task, advance=1, description=f"{_description(record)}{_failures(num_failed)}")

    return advance


def _bar_per_cell(plan: BenchPlan, progress: Progress) -> Advance:
    """Cells that ask the same of the same segment (a level and its floor) share a bar."""
    totals: dict[str, int] = {}
    for cell in plan.cells:
        totals[_name(cell)] = totals.get(_name(cell), 0) + len(cell.requests) * len(cell.draft_lens)
    tasks = {name: progress.add_task(name, total=total, start=False) for name, total in totals.items()}
    failed = dict.fromkeys(totals, 0)

    def advance(record: RequestRecord) -> None:
        name = f"{record.segment}, {record.load}"
        progress.start_task(tasks[name])
        failed[name] += _has_failed(record)
        progress.update(tasks[name], advance=1, description=f"{_description(record)}{_failures(failed[name])}")

    return advance


def _name(cell: Cell) -> str:
    return f"{cell.segment}, {cell.load}"


def _description(record: RequestRecord) -> str:
    return f"{record.segment}, {record.load}, {record.arm}"


def _has_failed(record: RequestRecord) -> bool:
    """A request that this client ended itself has not."""
    return not is_answered(record) and not is_cancelled(record)


def _failures(number: int) -> str:
    return f" ({number} failed)" if number else ""
