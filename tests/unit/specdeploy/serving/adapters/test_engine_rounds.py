"""Rounds on engines that count upwards: what is sent to them, and what their answers may not do."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from helpers.engine_standins.build import engine_record
from helpers.engine_standins.caller import Call, StandInCaller
from helpers.engine_standins.scripted import Answers, ScriptedCaller, response
from helpers.serving_requests import RecordingSink, make_request
from specdeploy.contract import EngineModel
from specdeploy.serving.adapters.draft_rounds import Emission
from specdeploy.serving.adapters.engine_rounds import EngineRounds
from specdeploy.serving.adapters.request_pool import Job
from specdeploy.serving.bls import ModelCallError
from specdeploy.serving.request import ServingRequest

K, VOCAB = 3, 60
PROMPT = (5, 6, 7)
Override = Callable[[Call], Answers | None]
EMPTY_LENGTH = response([]) | {"sequence_length": np.zeros((1, 0), dtype=np.int32)}


def counting(call: Call) -> Answers:
    """Every token is the one before plus one; a draft is accepted as far as it says so."""
    last, asked = int(call.tensors["input_ids"][0, -1]), int(str(call.value("request_output_len")))
    truth = [last + 1 + i for i in range(asked)]
    draft = call.tensors["draft_input_ids"][0].tolist() if "draft_input_ids" in call.tensors else None
    if draft is None:
        return [response(truth, total_draft_tokens=0, total_accepted_draft_tokens=0)]
    num_accepted = next((i for i, token in enumerate(draft) if token != truth[i]), len(draft))
    counts = {"total_draft_tokens": len(draft), "total_accepted_draft_tokens": num_accepted}
    return [response(truth[: num_accepted + 1], **counts)]


class Rounds:
    def __init__(self, override: Override, draft_vocab_size: int | None = VOCAB) -> None:
        self.calls: list[Call] = []
        self._override = override
        self._rounds = EngineRounds(
            ScriptedCaller(StandInCaller({}), self._answer),
            target=engine_record(EngineModel.TARGET, max_draft_len=K),
            draft=engine_record(EngineModel.DRAFT),
            vocab_size=VOCAB,
            draft_vocab_size=draft_vocab_size,
            deliver=lambda job, update: job.sink.deliver(update),
        )

    def _answer(self, call: Call) -> Answers:
        self.calls.append(call)
        overridden = self._override(call)
        return counting(call) if overridden is None else overridden

    def run(self, request: ServingRequest, planned: int = K) -> RecordingSink:
        sink = RecordingSink()
        emission = Emission("r", request, request.max_tokens, sink.accept)
        self._rounds.run(Job("r", request, sink), emission, lambda: planned, None)
        return sink

    def drafts(self) -> list[list[int]]:
        """What the target was asked to verify, call by call."""
        calls = [call for call in self.calls if call.model == "target" and not call.is_probe]
        nothing = np.zeros((1, 0), dtype=np.int32)
        return [call.tensors.get("draft_input_ids", nothing)[0].tolist() for call in calls]


def instead_of_drafts(*answers: dict[str, Any]) -> Override:
    return lambda call: list(answers) if call.model == "draft" and not call.is_probe else None


def instead_of_answers(*answers: dict[str, Any]) -> Override:
    return lambda call: list(answers) if call.model == "target" and not call.is_probe else None


def test_engines_that_agree_need_one_round_for_four_tokens() -> None:
    rounds = Rounds(lambda call: None)
    sink = rounds.run(make_request(PROMPT, 8))
    assert sink.token_ids == list(range(8, 16))
    assert rounds.drafts() == [[8, 9, 10], [12, 13, 14]]
    assert (sink.last.stats.num_accepted_tokens, sink.last.stats.source) == (6, "measured")


@pytest.mark.parametrize(
    ("proposed", "sent"),
    [([8, 9, VOCAB], [8, 9]), ([8, -1, 9], [8]), ([100_000, 8, 9], []), ([-1, -1, -1], []), ([8, 9, VOCAB - 1], None)],
)
def test_a_proposal_ends_before_an_id_the_target_does_not_have(proposed: list[int], sent: list[int] | None) -> None:
    rounds = Rounds(instead_of_drafts(response(proposed)))
    sink = rounds.run(make_request(PROMPT, 6))
    assert sink.token_ids == list(range(8, 14))
    assert rounds.drafts()[0] == (proposed if sent is None else sent)
    assert all(0 <= token < VOCAB for draft in rounds.drafts() for token in draft)
    assert sink.last.stats.off_reason is None


@pytest.mark.parametrize(("prompt", "max_tokens"), [((5, 12), 4), ((7, 8), 20)])
def test_a_text_the_draft_has_no_ids_for_is_not_drafted(prompt: tuple[int, ...], max_tokens: int) -> None:
    rounds = Rounds(lambda call: None, draft_vocab_size=12)
    sink = rounds.run(make_request(prompt, max_tokens))
    assert sink.token_ids == list(range(prompt[-1] + 1, prompt[-1] + 1 + max_tokens))
    seen = [token for call in rounds.calls if call.model == "draft" for token in call.tensors["input_ids"].ravel()]
    assert all(token < 12 for token in seen)
    stats = sink.last.stats
    assert (stats.off_reason, stats.was_allowed_to_draft) == ("draft vocabulary", prompt == (7, 8))


@pytest.mark.parametrize("answers", [(), ({},), (EMPTY_LENGTH,)])
def test_a_draft_without_a_proper_answer_costs_drafting_only(answers: tuple[dict[str, Any], ...]) -> None:
    rounds = Rounds(instead_of_drafts(*answers))
    sink = rounds.run(make_request(PROMPT, 6))
    assert sink.token_ids == list(range(8, 14))
    assert sink.last.stats.off_reason == "draft failed"


@pytest.mark.parametrize("stop_ids", [frozenset(), frozenset({2})])
@pytest.mark.parametrize("answers", [(), ({},), (EMPTY_LENGTH,), ({"total_draft_tokens": np.array([[0]])},)])
def test_a_target_without_a_proper_answer_is_an_error(
    answers: tuple[dict[str, Any], ...], stop_ids: frozenset[int]
) -> None:
    """Without tensors nothing says that an end id was chosen."""
    rounds = Rounds(instead_of_answers(*answers))
    with pytest.raises(ModelCallError, match=r"'target' failed: (it answered without|sequence_length is)"):
        rounds.run(make_request(PROMPT, 6, stop_ids=stop_ids))


@pytest.mark.parametrize("ids", [[], [8, 9], [5, 6, 8, 9]])
@pytest.mark.parametrize("model", ["target", "draft"])
def test_a_probe_is_believed_only_when_it_can_be_true(model: str, ids: list[int]) -> None:
    answers: list[Answers | None] = [[response(ids)], None]

    def once(call: Call) -> Answers | None:
        return answers.pop(0) if call.is_probe and call.model == model and len(answers) > 1 else None

    rounds = Rounds(once)
    if model == "target":
        with pytest.raises(ModelCallError, match=f"asked for one token after 2 it answered with {len(ids)}"):
            rounds.run(make_request(PROMPT, 6))
    else:
        assert rounds.run(make_request(PROMPT, 6)).last.stats.off_reason == "draft failed"
    sink = rounds.run(make_request(PROMPT, 6))  # asked again, nothing was remembered
    assert sink.token_ids == list(range(8, 14))
    assert sink.last.stats.num_accepted_tokens > 0
    assert sum(call.is_probe and call.model == model for call in rounds.calls) == 2


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_probe_that_says_nothing_is_no_answer(is_silent: bool) -> None:
    rounds = Rounds(lambda call: ([] if is_silent else [{}]) if call.is_probe else None)
    with pytest.raises(ModelCallError, match="it answered without output_ids and sequence_length"):
        rounds.run(make_request(PROMPT, 6))


def test_a_draft_that_hangs_in_its_probe_stops_no_other_request() -> None:
    is_asked, goes_on = threading.Event(), threading.Event()

    def hang(call: Call) -> None:
        if call.model == "draft" and call.is_probe:
            is_asked.set()
            assert goes_on.wait(20)

    rounds = Rounds(hang)
    first: list[RecordingSink] = []
    thread = threading.Thread(target=lambda: first.append(rounds.run(make_request(PROMPT, 6))))
    thread.start()
    try:
        assert is_asked.wait(5)
        others = [rounds.run(make_request(PROMPT, 6), planned) for planned in (0, K)]
        assert not goes_on.is_set()
        assert [sink.token_ids for sink in others] == [list(range(8, 14))] * 2
        assert [sink.last.stats.num_draft_tokens for sink in others] == [0, 0]
    finally:
        goes_on.set()
        thread.join(10)
    assert first[0].token_ids == list(range(8, 14))
    assert first[0].last.stats.num_accepted_tokens > 0
    assert rounds.run(make_request(PROMPT, 6)).last.stats.num_accepted_tokens > 0
