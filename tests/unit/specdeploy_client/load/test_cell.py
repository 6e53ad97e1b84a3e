"""Cells refuse what cannot be sent, and know which requests belong together."""

from dataclasses import replace

import pytest

from specdeploy.run_contract import Arm, Load
from specdeploy_client.load.cell import Cell, CellRequest, chains_of, inseparable_positions

ARMS = {Arm.OFF: 0, Arm.ON: 4}


def _request(
    index: int, follows: int | None = None, turns: tuple[str, ...] = ("hi",), due: int | None = None
) -> CellRequest:
    return CellRequest(index, f"p{index}", "hi", 4, turns=turns, follows=follows, due_ns=due)


def test_requests_that_follow_one_another_are_one_chain() -> None:
    requests = (_request(0), _request(1), _request(2, 0), _request(3), _request(4, 2), _request(5, 3))
    chains = [[request.index for request in chain] for chain in chains_of(requests)]
    assert chains == [[0, 2, 4], [1], [3, 5]]
    assert [[request.index for request in chain] for chain in chains_of(requests[2:])] == [[2, 4], [3, 5]]


def test_no_block_may_begin_inside_a_session() -> None:
    requests = (_request(0), _request(1), _request(2, 0), _request(3), _request(4, 3), _request(5))
    assert inseparable_positions(requests) == {1, 2, 4}
    assert inseparable_positions(tuple(map(_request, range(4)))) == frozenset()
    assert inseparable_positions(()) == frozenset()


@pytest.mark.parametrize(
    ("requests", "load", "message"),
    [
        ((_request(0), _request(0)), Load(1), "two requests have index 0"),
        ((_request(1, 0), _request(0)), Load(1), "request 1 must follow an earlier one"),
        ((_request(0), _request(1, 0), _request(2, 0)), Load(1), "request 2 must follow an earlier one"),
        ((_request(0, turns=()), _request(1, 0)), Load(1), "request 1 needs render_turns, and turns"),
        ((_request(0, due=1), _request(1), _request(2, 1)), Load(None, 3.0), r"requests \[1\] have none"),
    ],
)
def test_what_does_not_fit_together_is_refused(requests: tuple[CellRequest, ...], load: Load, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cell("chat", load, ARMS, requests, render_turns=" ".join)


def test_an_answer_can_only_be_continued_where_turns_can_be_rendered() -> None:
    with pytest.raises(ValueError, match="needs render_turns"):
        Cell("chat", Load(1), ARMS, (_request(0), _request(1, 0)))
    recorded = (_request(0), _request(1, 0, turns=("hi", "hello", "and now?")))
    assert Cell("chat", Load(1), ARMS, recorded).requests == recorded
    whole = replace(_request(1, 0), is_whole=True)
    assert (_request(1, 0).continues_own_answer, whole.continues_own_answer) == (True, False)
    assert Cell("chat", Load(1), ARMS, (_request(0), whole)).requests[1] is whole
