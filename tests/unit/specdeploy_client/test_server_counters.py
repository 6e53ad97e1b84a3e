"""Counters of a run: read when they have settled, added up over cells, kept on disk."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from specdeploy.errors import ConfigError
from specdeploy_client import server_counters
from specdeploy_client.reconcile import CounterIncrease
from specdeploy_client.server_counters import add_increases, load_counters, read_settled_facts, write_counters
from specdeploy_client.server_facts import SegmentCounters, ServerFacts
from specdeploy_client.transport import ServerUnreachableError

FULL = CounterIncrease(10, 40, 15, (10, 5))


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_counters, "_SETTLE_INTERVAL_S", 0.0)


def _settled(*drafts: int) -> tuple[ServerFacts | None, int]:
    """What is read of a page that shows `drafts` one after the other, and how often it is read; below 0: no page."""
    reads = 0

    async def read() -> ServerFacts:
        nonlocal reads
        value = drafts[min(reads, len(drafts) - 1)]
        reads += 1
        if value < 0:
            raise ServerUnreachableError("no metrics")
        return ServerFacts(whole_server={"num_drafts": value})

    return asyncio.run(read_settled_facts(read)), reads


def test_counters_are_read_until_they_agree() -> None:
    facts, reads = _settled(1, 2, 3, 3, 9)
    assert facts == ServerFacts(whole_server={"num_drafts": 3})
    assert reads == 4


def test_counters_that_never_settle_are_those_of_the_last_look() -> None:
    facts, reads = _settled(*range(99))
    assert facts is not None
    assert facts.whole_server["num_drafts"] == reads - 1 < 20


@pytest.mark.parametrize("drafts", [(-1,), (5, -1)])
def test_no_page_is_no_facts(drafts: tuple[int, ...]) -> None:
    assert _settled(*drafts)[0] is None


def test_cells_add_up() -> None:
    longer = CounterIncrease(1, 4, 3, (1, 1, 1))
    assert add_increases([FULL, longer]) == SegmentCounters(11, 44, 18, (11, 6, 1))


@pytest.mark.parametrize("missing", ["num_drafts", "num_draft_tokens", "num_accepted_tokens"])
def test_a_counter_that_a_cell_lacks_is_unavailable_not_zero(missing: str) -> None:
    assert add_increases([FULL, replace(FULL, **{missing: None})]) is None
    assert add_increases([CounterIncrease(num_drafts=50)]) is None


def test_positions_that_a_cell_lacks_are_left_out_not_added_as_zero() -> None:
    assert add_increases([FULL, replace(FULL, accepted_per_pos=None)]) == SegmentCounters(20, 80, 30, ())


@pytest.mark.parametrize("counters", [None, {"chat": SegmentCounters(1, 2, 3, (4, 5)), "code": SegmentCounters()}])
def test_the_disk_gives_back_what_was_written(tmp_path: Path, counters: dict[str, SegmentCounters] | None) -> None:
    write_counters(tmp_path / "c.json", counters)
    assert load_counters(tmp_path / "c.json") == counters


def test_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.json: not a file of server counters"):
        load_counters(tmp_path / "absent.json")
