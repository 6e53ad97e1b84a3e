"""What is shown while measuring."""

import io

import pytest
from rich.console import Console

from specdeploy.run_contract import Arm, FailureKind, Load
from specdeploy_client.bench_plan import BenchPlan
from specdeploy_client.commands.options import UiKind
from specdeploy_client.commands.progress import show_progress
from specdeploy_client.load.cell import Cell, CellRequest
from unit.specdeploy_client.fabricate import make_record

BOTH = {Arm.OFF: 0, Arm.ON: 4}
REQUESTS = (CellRequest(0, "p0", "x", 4), CellRequest(1, "p1", "x", 4))
PLAN = BenchPlan((Cell("chat", Load(1), BOTH, REQUESTS), Cell("chat", Load(4), BOTH, REQUESTS)), "closed loop", {})


def _shown(ui: UiKind) -> str:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=100)
    with show_progress(PLAN, ui, console) as advance:
        for concurrency in (1, 4):
            advance(make_record(concurrency=concurrency))
            advance(make_record(concurrency=concurrency, error="refused"))
    return text.getvalue()


def test_one_bar_counts_everything() -> None:
    shown = _shown(UiKind.SIMPLE)
    assert "4/8" in shown
    assert "chat, concurrency 4, off (2 failed)" in shown


@pytest.mark.parametrize("ui", [UiKind.SIMPLE, UiKind.DASHBOARD])
def test_what_this_client_ended_itself_did_not_fail(ui: UiKind) -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=100)
    with show_progress(PLAN, ui, console) as advance:
        advance(make_record(error="stopped", failure=FailureKind.CANCELLED))
    assert "failed" not in text.getvalue()


def test_a_dashboard_has_a_bar_per_cell() -> None:
    shown = _shown(UiKind.DASHBOARD)
    assert shown.count("2/4") >= 2
    assert "chat, concurrency 1, off (1 failed)" in shown


@pytest.mark.parametrize("ui", [UiKind.NONE])
def test_nothing_is_shown_where_nothing_is_wanted(ui: UiKind) -> None:
    assert "chat" not in _shown(ui)
