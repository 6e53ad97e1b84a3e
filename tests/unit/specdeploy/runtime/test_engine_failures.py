"""What goes wrong for one request ends that request; what goes wrong for a step ends with `reset`, cleanly."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from helpers.scripted_drafter import ScriptedDrafter
from specdeploy.runtime.draft_length import FixedDraftLength
from specdeploy.runtime.drafters.base import Draft, DraftRow, Observation
from specdeploy.runtime.engine import Engine
from specdeploy.runtime.model import DecoderModel, StepOutput
from specdeploy.runtime.request import GenerationRequest, SamplingParams

PROMPTS = [(5, 17, 200, 31, 8), (99,), (250, 3, 250, 3)]
NUM_TOKENS = 12
EXTREMES = [
    {"repetition_penalty": 1e-40},
    {"repetition_penalty": 1e300},
    {"presence_penalty": -3e38},
    {"frequency_penalty": -3e38},
    {"frequency_penalty": 3e38, "presence_penalty": -3e38},
    {"logit_bias": {5: 6e38, 6: -6e38}},
    {"logit_bias": {5: 3e38}, "presence_penalty": -3e38},
    {"temperature": 1e-50},
]


def request(prompt: Sequence[int], *, draft_len: int = 0, **fields: Any) -> GenerationRequest:
    return GenerationRequest(
        request_id=str(tuple(prompt)),
        prompt_ids=tuple(prompt),
        max_tokens=NUM_TOKENS,
        draft_len=lambda in_flight: draft_len,
        **fields,
    )


def make_engine(model: Any, drafter: Any = None, **settings: Any) -> Engine:
    return Engine(model, drafter, **{"max_rows": 4, "max_queue": 8, "prefill_chunk": 64} | settings)


def run(subject: Engine, requests: Sequence[GenerationRequest]) -> dict[str, tuple[list[int], str]]:
    """By request: its tokens and why it ended."""
    tokens: dict[str, list[int]] = {}
    finish: dict[str, str] = {}
    for item in requests:
        subject.submit(item)
    for _ in range(100):
        for update in subject.step():
            tokens.setdefault(update.request_id, []).extend(update.token_ids)
            if update.finish_reason is not None:
                finish[update.request_id] = update.finish_reason
    assert (subject.num_in_flight, subject.num_slots_in_use) == (0, 0)
    return {name: (tokens[name], finish[name]) for name in finish}


@pytest.fixture(scope="module")
def plain(target: DecoderModel) -> dict[str, tuple[list[int], str]]:
    """Each prompt alone, without drafts."""
    return {str(prompt): run(make_engine(target), [request(prompt)])[str(prompt)] for prompt in PROMPTS}


class ModelProxy:
    """The target with a `forward` of the test's own."""

    def __init__(self, model: DecoderModel, change: Callable[[Sequence[Any], StepOutput], StepOutput]) -> None:
        self._model, self._change = model, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, token_ids: Any, spans: Any, *rest: Any, **named: Any) -> StepOutput:
        return self._change(spans, self._model.forward(token_ids, spans, *rest, **named))


@pytest.mark.parametrize("extreme", EXTREMES, ids=str)
@pytest.mark.parametrize("truncation", [{}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}], ids=str)
def test_extreme_parameters_are_served_and_leave_the_neighbours_alone(
    target: DecoderModel,
    plain: dict[str, tuple[list[int], str]],
    extreme: dict[str, Any],
    truncation: dict[str, Any],
) -> None:
    sampling = SamplingParams(**{"temperature": 1.0, "seed": 3} | truncation | extreme)
    extreme_request = request(PROMPTS[0], sampling=sampling)
    results = run(make_engine(target), [extreme_request, request(PROMPTS[1])])
    assert results[str(PROMPTS[0])][1] == "length"
    assert results[str(PROMPTS[1])] == plain[str(PROMPTS[1])]


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(),
        SamplingParams(repetition_penalty=1.1),
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=1.0, top_k=5),
        SamplingParams(temperature=1.0, top_p=0.9),
        SamplingParams(temperature=1.0, min_p=0.1),
        SamplingParams(temperature=1.0, has_own_seed=False, logit_bias={3: 1.0}),
    ],
    ids=str,
)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_row_without_finite_logits_ends_with_an_error_alone(
    target: DecoderModel, plain: dict[str, tuple[list[int], str]], sampling: SamplingParams, value: float
) -> None:
    def spoil(spans: Sequence[Any], output: StepOutput) -> StepOutput:
        if spans[0].slot == 0 and spans[0].cached_len == len(PROMPTS[0]) + 3:
            logits = output.logits.clone()
            logits[0] = value
            return StepOutput(logits)
        return output

    subject = make_engine(ModelProxy(target, spoil))
    results = run(subject, [request(PROMPTS[0], sampling=sampling), request(PROMPTS[1])])
    tokens, reason = results[str(PROMPTS[0])]
    assert (len(tokens), reason) == (4, "error")
    assert results[str(PROMPTS[1])] == plain[str(PROMPTS[1])]


def test_what_is_not_finite_does_not_outlive_its_row(
    target: DecoderModel, plain: dict[str, tuple[list[int], str]]
) -> None:
    """The room is read by the next rows' padded attention, where 0 * NaN is NaN."""
    cache = target.new_cache(4)
    is_spoiling = True

    def spoil(spans: Sequence[Any], output: StepOutput) -> StepOutput:
        if is_spoiling:
            for values in cache.values:
                values[: cache.length_of(0)] = float("nan")
            return StepOutput(torch.full_like(output.logits, float("nan")))
        return output

    subject = make_engine(ModelProxy(target, spoil), cache=cache)
    assert run(subject, [request(PROMPTS[0])]) == {str(PROMPTS[0]): ([], "error")}
    is_spoiling = False
    assert run(subject, [request(prompt) for prompt in PROMPTS]) == plain


def test_stop_ids_without_a_row_in_the_vocabulary_are_left_out(target: DecoderModel) -> None:
    stop_ids = frozenset({target.vocab_size, target.vocab_size + 7})
    results = run(make_engine(target), [request(PROMPTS[0], sampling=SamplingParams(min_tokens=2), stop_ids=stop_ids)])
    assert results[str(PROMPTS[0])][1] == "length"


class BrokenGuide:
    """A grammar that fails in the call `fails_in`, the third time."""

    is_finished = is_stuck = False

    def __init__(self, fails_in: str) -> None:
        self._fails_in, self._num_calls = fails_in, 0

    def _called(self, name: str) -> None:
        self._num_calls += name == self._fails_in
        if name == self._fails_in and self._num_calls == 3:
            raise RuntimeError("a bug in the grammar")

    def mask_logits(self, logits: torch.Tensor) -> None:
        self._called("mask_logits")

    def accept(self, token_id: int) -> None:
        self._called("accept")

    def legal_draft(self, token_ids: Sequence[int], parents: Sequence[int] | None) -> list[int]:
        self._called("legal_draft")
        return list(range(len(token_ids)))


@pytest.mark.parametrize("fails_in", ["mask_logits", "accept", "matcher", "legal_draft"])
def test_a_request_that_raises_ends_with_an_error_alone(
    target: DecoderModel,
    plain: dict[str, tuple[list[int], str]],
    fails_in: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    guide = BrokenGuide(fails_in)

    def matcher(token: int) -> bool:
        guide._called("matcher")
        return False

    drafter = ScriptedDrafter({prompt: plain[str(prompt)][0] for prompt in PROMPTS}, lambda prompt, step: 1)
    requests = [request(prompt, draft_len=2) for prompt in PROMPTS[1:]]
    if fails_in == "matcher":
        broken = request(PROMPTS[0], draft_len=2, ends_with_stop_string=matcher)
    else:
        broken = request(PROMPTS[0], draft_len=2, guided=guide)
    results = run(make_engine(target, drafter), [broken, *requests])
    _, reason = results.pop(str(PROMPTS[0]))
    assert reason == ("length" if fails_in == "legal_draft" else "error")
    assert results == {str(prompt): plain[str(prompt)] for prompt in PROMPTS[1:]}
    assert [record.exc_info is not None for record in caplog.records] == [True]


class FailingDrafter(ScriptedDrafter):
    """Raises in the call `fails_in`, once, from the second step on that makes it."""

    def __init__(self, texts: dict[tuple[int, ...], Sequence[int]], fails_in: str) -> None:
        super().__init__(texts, lambda prompt, step: 1)
        self._fails_in, self._num_calls = fails_in, 0

    def _called(self, name: str) -> None:
        self._num_calls += name == self._fails_in
        if name == self._fails_in and self._num_calls == 2:
            raise RuntimeError("a bug in the drafter")

    def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
        self._called("propose")
        return super().propose(rows)

    def observe(self, observations: Sequence[Observation]) -> None:
        self._called("observe")

    def release(self, slot: int) -> None:
        super().release(slot)
        if self._fails_in == "release":
            raise RuntimeError("a bug in the drafter")


class ReleasedSlots(FixedDraftLength):
    def __init__(self) -> None:
        self.slots: list[int] = []

    def release(self, slot: int) -> None:
        self.slots.append(slot)


@pytest.mark.parametrize("fails_in", ["propose", "observe", "forward", "release"])
def test_after_a_step_that_raised_reset_leaves_nothing_behind(
    target: DecoderModel, plain: dict[str, tuple[list[int], str]], fails_in: str
) -> None:
    num_forwards = 0

    def fail(spans: Sequence[Any], output: StepOutput) -> StepOutput:
        nonlocal num_forwards
        num_forwards += 1
        if num_forwards == 3 and fails_in in ("forward", "release"):
            raise RuntimeError("out of memory")
        return output

    drafter = FailingDrafter({prompt: plain[str(prompt)][0] for prompt in PROMPTS}, fails_in)
    policy = ReleasedSlots()
    subject = make_engine(ModelProxy(target, fail), drafter, max_rows=3, policy=policy)
    requests = [request(prompt, draft_len=2) for prompt in PROMPTS]
    for item in [*requests, request((1, 2))]:
        subject.submit(item)
    for _ in range(1 if fails_in == "observe" else 2):  # prompts are observed, too
        subject.step()
    with pytest.raises(RuntimeError):
        subject.step()
    subject.reset()
    assert (subject.num_in_flight, subject.num_slots_in_use) == (0, 0)
    assert sorted(policy.slots) == sorted(drafter.released) == [0, 1, 2]
    assert subject.step() == []
    assert run(subject, requests) == plain
