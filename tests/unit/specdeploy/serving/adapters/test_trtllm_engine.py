"""The engine lane's adapter over stand-in engines: the torch engine's tokens, whatever is drafted or fails."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.engine_standins.build import engine_config, engine_record, write_engine_build
from helpers.engine_standins.caller import Call, StandInCaller
from helpers.engine_standins.engine import Settings, StandInEngine, words_of
from helpers.engine_standins.scripted import Answers, ScriptedCaller
from helpers.serving_requests import RecordingSink, make_request
from helpers.tiny_checkpoint import make_checkpoint
from specdeploy.contract import EngineModel, Method
from specdeploy.errors import SpecDeployError
from specdeploy.packager.engine_models import BUILD_MODES
from specdeploy.runtime.engine import Engine
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.request import GenerationRequest
from specdeploy.serving.adapters.draft_rounds import PLAIN_CHUNK
from specdeploy.serving.adapters.engine_tensors import EngineCall, target_outputs, target_tensors
from specdeploy.serving.adapters.trtllm_engine import TrtllmEngineAdapter
from specdeploy.serving.bls import ModelCaller
from specdeploy.serving.request import Guide, ServingRequest

K = 3
MAX_SEQ_LEN = 128
PROMPTS = [(5, 6, 7, 5, 6, 7), (9,), (40, 41, 42, 43), tuple(range(30, 60)), (3, 3, 3)]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    return {
        "target": make_checkpoint(root / "target"),
        "draft": make_checkpoint(root / "draft", seed=1, num_layers=1),
    }


class Lane:
    """An adapter, its caller, and how to run requests on them."""

    def __init__(self, adapter: TrtllmEngineAdapter, caller: StandInCaller) -> None:
        self.adapter = adapter
        self.caller = caller

    @property
    def vocab_size(self) -> int:
        return self.caller.engines["target"].vocab_size

    def start(self, request: ServingRequest, sink: RecordingSink | None = None) -> RecordingSink:
        sink = sink or RecordingSink()
        self.adapter.submit(request, sink)
        return sink

    def answer(self, request: ServingRequest, sink: RecordingSink | None = None) -> RecordingSink:
        sink = self.start(request, sink)
        assert sink.done.wait(30)
        return sink

    def assert_idle(self) -> None:
        deadline = time.monotonic() + 10
        while self.adapter.num_in_flight or self.adapter.num_slots_in_use:
            assert time.monotonic() < deadline
            time.sleep(0.01)


LaneFactory = Callable[..., Lane]


@pytest.fixture
def make_lane(tmp_path: Path, checkpoints: dict[str, Path]) -> Iterator[LaneFactory]:
    made: list[Lane] = []

    def make(
        *,
        method: Method = Method.DRAFT_MODEL,
        draft: str = "draft",
        plain: bool = True,
        target: dict[str, Any] | None = None,
        draft_settings: dict[str, Any] | None = None,
        on_call: Callable[[Call], None] | None = None,
        wrap: Callable[[StandInCaller], ModelCaller] = lambda caller: caller,
        clock: Callable[[], float] = time.monotonic,
        **overrides: Any,
    ) -> Lane:
        is_pair = method is Method.DRAFT_MODEL
        if not is_pair:
            overrides.setdefault("speculation", SPECULATION[method])
        config = engine_config(**overrides)
        nodes = 83 if method is Method.LOOKAHEAD else K if is_pair else 7
        mode = BUILD_MODES[method]
        records = [engine_record(EngineModel.TARGET, max_draft_len=nodes, max_seq_len=MAX_SEQ_LEN, decoding=mode)]
        built = {"decoding": mode, "max_draft_len": nodes, "max_seq_len": MAX_SEQ_LEN, "decoupled": not is_pair}
        settings = {**built, **(target or {})}
        engines = {"target": StandInEngine(checkpoints["target"], Settings(**settings))}
        if is_pair:
            records.append(engine_record(EngineModel.DRAFT, max_seq_len=MAX_SEQ_LEN))
            engines["draft"] = StandInEngine(
                checkpoints[draft], Settings(**{"max_seq_len": MAX_SEQ_LEN, **(draft_settings or {})})
            )
        elif plain and method is not Method.LOOKAHEAD:
            records.append(engine_record(EngineModel.TARGET_PLAIN, max_seq_len=MAX_SEQ_LEN))
            engines["target_plain"] = StandInEngine(
                checkpoints["target"], Settings(max_seq_len=MAX_SEQ_LEN, decoupled=True)
            )
        root = tmp_path / f"engines{len(made)}"
        build = write_engine_build(
            root,
            config,
            target=checkpoints["target"],
            draft=checkpoints[draft] if is_pair else None,
            engines=tuple(records),
        )
        caller = StandInCaller(engines, on_call)
        made.append(Lane(TrtllmEngineAdapter(build, root, wrap(caller), clock=clock), caller))
        return made[-1]

    yield make
    for lane in made:
        lane.adapter.close()


GUIDED = {"version": "1.2.1", "gpu": "h100", "guided_decoding_backend": "xgrammar"}
DRAFT = {"checkpoint": "unused"}
SPECULATION: dict[Method, dict[str, Any]] = {
    Method.MEDUSA: {"method": "medusa", "max_draft_len": 2, "draft": DRAFT, "medusa": {"num_heads": 2}},
    Method.EAGLE: {"method": "eagle", "max_draft_len": 4, "draft": DRAFT},
    Method.REDRAFTER: {"method": "redrafter", "max_draft_len": 5, "draft": DRAFT},
    Method.LOOKAHEAD: {"method": "lookahead", "max_draft_len": 83},
}


@pytest.fixture(scope="module")
def reference(checkpoints: dict[str, Path]) -> Callable[[ServingRequest], list[int]]:
    """What the torch lane's engine answers, without drafting."""
    model = DecoderModel(
        checkpoints["target"], dtype=torch.float32, device=torch.device("cpu"), max_seq_len=MAX_SEQ_LEN
    )

    def answer(request: ServingRequest) -> list[int]:
        engine = Engine(model, None, max_rows=1, max_queue=1, prefill_chunk=64)
        engine.submit(
            GenerationRequest("r", request.prompt_ids, request.max_tokens, request.stop_ids, request.sampling)
        )
        ids: list[int] = []
        with torch.inference_mode():
            while engine.num_in_flight:
                ids += [token for update in engine.step() for token in update.token_ids]
        return ids

    return answer


Reference = Callable[[ServingRequest], list[int]]


def test_drafting_changes_no_token(make_lane: LaneFactory, reference: Reference) -> None:
    lane = make_lane()
    for prompt in PROMPTS:
        expected = reference(make_request(prompt, 24))
        for k in (0, 1, None):
            sink = lane.answer(make_request(prompt, 24, num_draft_tokens=k))
            assert sink.token_ids == expected, (prompt, k)
            assert sink.last.finish_reason == "length"
            assert sink.last.stats.was_allowed_to_draft == (k != 0)
    lane.assert_idle()


def test_many_at_once_change_no_token(make_lane: LaneFactory, reference: Reference) -> None:
    lane = make_lane(serving={"max_rows": 4, "max_queue": 40, "max_seq_len": MAX_SEQ_LEN})
    requests = [make_request(p, 20, num_draft_tokens=k) for p in PROMPTS for k in (0, 3)]
    sinks = [lane.start(request) for request in requests]
    for request, sink in zip(requests, sinks, strict=True):
        assert sink.done.wait(60)
        assert sink.token_ids == reference(request)
    lane.assert_idle()


def test_a_target_drafting_for_itself_is_accepted_always(make_lane: LaneFactory) -> None:
    lane = make_lane(draft="target")
    sink = lane.answer(make_request(PROMPTS[0], 22))
    stats = sink.last.stats
    rounds = [
        (call.tensors.get("draft_input_ids"), call.value("request_output_len")) for call in lane.caller.of("target")
    ]
    drafted = sum(0 if draft is None else draft.size for draft, _ in rounds)
    assert (stats.num_draft_tokens, stats.num_accepted_tokens, stats.source) == (drafted, drafted, "measured")
    assert stats.num_accepted_tokens_per_pos == [6, 5, 5]
    assert [asked for _, asked in rounds] == [4, 4, 4, 4, 4, 2]  # the last round drafts one token: two are left
    assert stats.num_steps == len(rounds) == 6
    assert all(len(update.token_ids) <= K + 1 for update in sink.updates)


def test_counts_of_the_backend_are_used_only_where_they_are_there(make_lane: LaneFactory) -> None:
    lane = make_lane(target={"reports_counts": False}, draft="target")
    stats = lane.answer(make_request(PROMPTS[0], 20)).last.stats
    assert stats.source == "derived:common prefix of draft and output"
    assert stats.num_draft_tokens == stats.num_accepted_tokens == 15


def test_a_backend_that_repeats_the_prompt_is_seen_through(make_lane: LaneFactory, reference: Reference) -> None:
    lane = make_lane(target={"repeats_prompt": True}, draft_settings={"repeats_prompt": True})
    for prompt in PROMPTS:
        request = make_request(prompt, 30)
        sink = lane.answer(request)
        assert sink.token_ids == reference(request)
        assert sink.last.stats.num_draft_tokens > 0


def end_ids(ids: list[int], index: int) -> frozenset[int]:
    return frozenset({ids[index]})


@pytest.mark.parametrize("k", [0, 3])
def test_the_output_ends_at_the_end_id_and_shows_it(make_lane: LaneFactory, reference: Reference, k: int) -> None:
    for draft in ("draft", "target"):
        lane = make_lane(draft=draft)
        for prompt in PROMPTS[:3]:
            free = reference(make_request(prompt, 20))
            for index in (0, 2, 9):
                request = make_request(prompt, 20, stop_ids=end_ids(free, index), num_draft_tokens=k)
                sink = lane.answer(request)
                assert sink.token_ids == reference(request)
                assert sink.last.finish_reason == "stop"
                assert sink.token_ids[-1] in request.stop_ids


@pytest.mark.parametrize("k", [0, 3])
def test_several_stop_ids_and_min_tokens(make_lane: LaneFactory, reference: Reference, k: int) -> None:
    lane = make_lane()
    for prompt in PROMPTS[:2]:
        free = reference(make_request(prompt, 24))
        for stop_ids in (frozenset(free[3:6]), frozenset(free[4:5])):
            for min_tokens in (0, 7, 18):
                request = make_request(prompt, 24, stop_ids=stop_ids, min_tokens=min_tokens, num_draft_tokens=k)
                sink = lane.answer(request)
                assert sink.token_ids == reference(request), (prompt, stop_ids, min_tokens)
                assert len(sink.token_ids) >= min_tokens


def test_a_stop_string_ends_a_round(make_lane: LaneFactory, reference: Reference) -> None:
    lane = make_lane(draft="target")
    free = reference(make_request(PROMPTS[0], 30))
    sink = lane.answer(make_request(PROMPTS[0], 30), RecordingSink(stop_text=tuple(free[4:6])))
    first = next(i for i in range(1, 30) if tuple(free[i - 1 : i + 1]) == tuple(free[4:6]))
    assert sink.token_ids == free[: first + 1]
    assert sink.last.finish_reason == "stop"
    assert sink.accepted == sink.token_ids


def test_penalties_bans_and_bias_change_no_token_by_drafting(make_lane: LaneFactory, reference: Reference) -> None:
    lane = make_lane()
    free = reference(make_request(PROMPTS[0], 30))
    changes: list[dict[str, Any]] = [
        {"repetition_penalty": 1.5},
        {"bad_words": ((free[0],), tuple(free[3:5]))},
        {"logit_bias": {free[1]: -100.0}},
    ]
    for change in changes:
        for k in (0, 3):
            request = make_request(PROMPTS[0], 30, num_draft_tokens=k, **change)
            sink = lane.answer(request)
            assert sink.token_ids == reference(request) != free
            assert sink.last.stats.was_allowed_to_draft == (k == 3)


@pytest.mark.parametrize(
    "changes",
    [{"presence_penalty": 1.5}, {"frequency_penalty": 0.7}, {"presence_penalty": -0.4, "repetition_penalty": 1.3}],
)
def test_penalties_count_the_same_in_chunks_as_in_one_call(
    make_lane: LaneFactory, reference: Reference, changes: dict[str, Any]
) -> None:
    """The engine counts prompt and output, so what a call before this one brought is counted as well."""
    lane = make_lane()
    request = make_request(PROMPTS[0], 40, **changes)
    sink = lane.answer(request)
    whole = target_tensors(request, EngineCall(request.prompt_ids, 0, 40), vocab_size=lane.vocab_size)
    (response,) = lane.caller.engines["target"].respond(whole, target_outputs(request))
    assert sink.token_ids == response["output_ids"].ravel().tolist()
    assert sink.token_ids != reference(make_request(PROMPTS[0], 40))
    assert [len(update.token_ids) for update in sink.updates] == [PLAIN_CHUNK, PLAIN_CHUNK, 8]
    assert lane.caller.of("draft") == []
    assert sink.last.stats.off_reason == "penalties"
    assert not sink.last.stats.was_allowed_to_draft


def test_presence_counts_the_prompt_where_lane_torch_does_not(make_lane: LaneFactory, reference: Reference) -> None:
    free = reference(make_request(PROMPTS[0], 8))
    request = make_request((*PROMPTS[0], *free), 8, presence_penalty=100.0)
    answered = make_lane().answer(request).token_ids
    assert not set(answered) & set(request.prompt_ids)
    assert answered != reference(request)


def test_log_probs_come_from_the_plain_engine_one_per_token(make_lane: LaneFactory, reference: Reference) -> None:
    lane = make_lane(method=Method.EAGLE)
    free = reference(make_request(PROMPTS[0], 40))
    request = make_request(PROMPTS[0], 40, wants_log_probs=True, stop_ids=end_ids(free, 25))
    sink = lane.answer(request)
    assert sink.token_ids == reference(request)
    assert [len(update.log_probs or ()) for update in sink.updates] == [len(u.token_ids) for u in sink.updates]
    assert all(value < 0 for update in sink.updates for value in update.log_probs or ())
    assert lane.caller.of("target") == []
    assert sink.last.stats.off_reason == "log_probs"


@pytest.mark.parametrize("method", [Method.DRAFT_MODEL, Method.LOOKAHEAD])
@pytest.mark.parametrize("k", [0, None])
def test_log_probs_nobody_computes_are_refused(make_lane: LaneFactory, method: Method, k: int | None) -> None:
    lane = make_lane(method=method, target={"lookahead": (7, 7, 7)})
    sink = lane.answer(make_request(PROMPTS[0], 1, wants_log_probs=True, num_draft_tokens=k))
    assert sink.error == (
        f"return_log_probs: TensorRT-LLM computes no log probabilities on engines of method {method}. "
        "Send false or leave it out"
    )
    assert lane.caller.calls == []


def test_random_requests_are_not_drafted_and_repeat_with_their_seed(make_lane: LaneFactory) -> None:
    lane = make_lane()
    answers = [lane.answer(make_request(PROMPTS[0], 40, temperature=1.5, seed=seed)) for seed in (7, 7, 8)]
    assert answers[0].token_ids == answers[1].token_ids != answers[2].token_ids
    assert lane.caller.of("draft") == []
    assert answers[0].last.stats.off_reason == "sampling"
    seeds = [call.value("seed") for call in lane.caller.of("target")[:3]]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3  # every chunk has random numbers of its own


def test_requests_without_drafts_come_in_chunks(make_lane: LaneFactory) -> None:
    lane = make_lane()
    sink = lane.answer(make_request(PROMPTS[0], 40, num_draft_tokens=0))
    assert [len(update.token_ids) for update in sink.updates] == [PLAIN_CHUNK, PLAIN_CHUNK, 8]
    stats = sink.last.stats
    assert (stats.num_steps, stats.num_drafts, stats.source) == (40, 0, "measured")


def test_k_follows_the_load_during_a_request(make_lane: LaneFactory) -> None:
    ranges = [{"min_in_flight": 1, "max_in_flight": 1, "draft_len": 2}]
    speculation = {
        "method": "draft_model", "max_draft_len": K, "draft": DRAFT, "draft_len_by_in_flight": ranges,
    }  # fmt: skip
    lane = make_lane(speculation=speculation, target={"step_s": 0.01})
    first = lane.start(make_request(PROMPTS[0], 100))
    while len(lane.caller.of("target")) < 3:
        time.sleep(0.005)
    second = lane.answer(make_request(PROMPTS[1], 4, num_draft_tokens=0))
    assert first.done.wait(30)
    sizes = [call.tensors.get("draft_input_ids") for call in lane.caller.of("target")]
    drafted = [0 if size is None else size.size for size in sizes]
    assert drafted[:3] == [2, 2, 2]
    assert 0 in drafted
    assert 2 in drafted[drafted.index(0) :]  # alone again, it drafts again
    assert len(second.token_ids) == 4


def test_the_plan_decides_for_its_segments(make_lane: LaneFactory) -> None:
    lane = make_lane()
    quiet = lane.answer(make_request(PROMPTS[0], 10, segment="quiet")).last.stats
    assert not quiet.was_allowed_to_draft
    assert quiet.off_reason is None  # the plan's own reason stands
    assert lane.caller.of("draft") == []


def test_a_draft_that_fails_does_not_end_the_request(
    make_lane: LaneFactory, reference: Reference, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    switch = tmp_path / "draft-fails"

    def fail_at_the_third_draft(call: Call) -> None:
        if call.model == "draft" and sum(1 for c in lane.caller.of("draft")) >= 3:
            switch.touch()

    lane = make_lane(
        draft="target", draft_settings={"fail_when": switch}, on_call=fail_at_the_third_draft, clock=lambda: now[0]
    )
    request = make_request(PROMPTS[0], 40)
    sink = lane.answer(request)
    assert sink.token_ids == reference(request)
    stats = sink.last.stats
    assert stats.off_reason == "draft failed"
    assert stats.was_allowed_to_draft
    assert (stats.num_draft_tokens, stats.num_accepted_tokens) == (6, 6)
    later = lane.answer(request)  # the draft is still down
    assert later.token_ids == sink.token_ids
    assert (later.last.stats.was_allowed_to_draft, later.last.stats.off_reason) == (False, "draft failed")
    assert caplog.text.count("requests go on without drafting") == 1
    now[0] += 61
    lane.answer(request)
    assert caplog.text.count("requests go on without drafting") == 2
    assert "out of memory" in caplog.text


def test_a_target_that_fails_ends_its_request_alone(make_lane: LaneFactory, tmp_path: Path) -> None:
    switch = tmp_path / "target-fails"
    lane = make_lane(target={"fail_when": switch})
    assert lane.answer(make_request(PROMPTS[0], 10)).error is None
    switch.touch()
    sink = lane.answer(make_request(PROMPTS[0], 10))
    assert sink.error is not None
    assert sink.error.startswith("the Triton model 'target' failed: Executor failed process requestId")
    lane.assert_idle()
    switch.unlink()
    assert lane.answer(make_request(PROMPTS[0], 10)).error is None


def test_a_client_that_goes_ends_the_rounds(make_lane: LaneFactory) -> None:
    lane = make_lane(target={"step_s": 0.01})
    sink = lane.start(make_request(PROMPTS[0], 100))
    while not sink.updates:
        time.sleep(0.005)
    sink.is_gone = True
    assert sink.done.wait(10)
    assert sink.last.finish_reason == "cancelled"
    assert len(sink.token_ids) < 100
    lane.assert_idle()


def test_a_client_that_goes_ends_one_long_call(make_lane: LaneFactory) -> None:
    lane = make_lane(target={"step_s": 0.05}, tensorrt_llm=GUIDED)
    sink = lane.start(make_request(PROMPTS[0], 100, guide=Guide("json", "")))
    while not lane.caller.of("target"):
        time.sleep(0.005)
    sink.is_gone = True
    assert sink.done.wait(10)
    assert sink.last.finish_reason == "cancelled"
    stop = lane.caller.stops[0]
    assert stop.request_id == lane.caller.of("target")[0].request_id != ""
    lane.assert_idle()


def test_more_requests_than_rows_and_queue_are_refused(make_lane: LaneFactory) -> None:
    lane = make_lane(target={"step_s": 0.01})
    sinks = [lane.start(make_request(PROMPTS[0], 30)) for _ in range(9)]  # 4 rows, 3 may wait
    refused = [sink.error for sink in sinks if sink.done.is_set() and sink.error]
    assert refused == ["request: all rows are busy and 3 requests wait already. Retry later"] * 2
    assert lane.adapter.num_in_flight == 7
    for sink in sinks:
        assert sink.done.wait(30)
    assert len({tuple(sink.token_ids) for sink in sinks if sink.error is None}) == 1
    lane.assert_idle()


def test_waiting_clients_that_go_leave_the_queue(make_lane: LaneFactory) -> None:
    lane = make_lane(serving={"max_rows": 1, "max_queue": 3, "max_seq_len": MAX_SEQ_LEN}, target={"step_s": 0.02})
    running, waiting = lane.start(make_request(PROMPTS[0], 100)), lane.start(make_request(PROMPTS[1], 100))
    waiting.is_gone = True
    assert waiting.done.wait(5)
    assert waiting.last.finish_reason == "cancelled"
    assert not running.done.is_set()
    assert lane.adapter.num_in_flight == 1


def test_closing_fails_what_is_in_flight(make_lane: LaneFactory) -> None:
    lane = make_lane(serving={"max_rows": 1, "max_queue": 3, "max_seq_len": MAX_SEQ_LEN}, target={"step_s": 0.02})
    sinks = [lane.start(make_request(PROMPTS[0], 100)) for _ in range(3)]
    while not sinks[0].updates:
        time.sleep(0.005)
    lane.adapter.close()
    assert [sink.error for sink in sinks] == ["the server is shutting down"] * 3
    assert (lane.adapter.num_in_flight, lane.adapter.num_slots_in_use) == (0, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"prompt_ids": tuple([5] * (MAX_SEQ_LEN - K))},
            "text_input: 125 tokens leave no room for output in a context of",
        ),
        ({"prompt_ids": (100_000,)}, "text_input: token id 100000 has no row"),
        ({"min_p": 0.1, "temperature": 1.0}, "min_p: "),
        ({"guide": Guide("json", "")}, "guided_decoding_guide_type: engines enforce a guide with xgrammar only"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    make_lane: LaneFactory, changes: dict[str, Any], message: str
) -> None:
    lane = make_lane()
    sink = lane.answer(make_request(**changes))
    assert sink.error is not None
    assert sink.error.startswith(message)
    assert lane.caller.calls == []


def test_the_output_ends_where_the_engine_keeps_room_for_drafts(make_lane: LaneFactory, reference: Reference) -> None:
    lane = make_lane()
    for k in (0, 3):
        sink = lane.answer(make_request(tuple([5, 6] * 50), 100, num_draft_tokens=k))
        assert len(sink.token_ids) == MAX_SEQ_LEN - K - 100
        assert sink.last.finish_reason == "length"


def test_a_guided_request_is_one_plain_call(make_lane: LaneFactory) -> None:
    lane = make_lane(tensorrt_llm=GUIDED)
    sink = lane.answer(make_request(PROMPTS[0], 50, guide=Guide("regex", "a+")))
    (call,) = lane.caller.of("target")
    assert (call.value("guided_decoding_guide_type"), call.value("guided_decoding_guide")) == (b"regex", b"a+")
    assert call.value("request_output_len") == 50
    assert sink.last.stats.off_reason == "constrained"


def test_a_build_without_its_engines_does_not_load(tmp_path: Path, checkpoints: dict[str, Path]) -> None:
    build = write_engine_build(
        tmp_path,
        engine_config(),
        target=checkpoints["target"],
        draft=checkpoints["draft"],
        engines=(engine_record(EngineModel.TARGET, max_draft_len=K),),
    )
    with pytest.raises(SpecDeployError, match=r"manifest.json: engines: draft is missing. Run `make engines"):
        TrtllmEngineAdapter(build, tmp_path, StandInCaller({}))


# --- methods that draft inside the engine ---------------------------------------------------------------------------


@pytest.mark.parametrize("method", [Method.MEDUSA, Method.EAGLE, Method.REDRAFTER])
def test_on_goes_to_target_and_off_to_target_plain(
    make_lane: LaneFactory, reference: Reference, method: Method
) -> None:
    lane = make_lane(method=method)
    request = make_request(PROMPTS[0], 30)
    on = lane.answer(request)
    assert (len(lane.caller.of("target")), len(lane.caller.of("target_plain"))) == (1, 0)
    assert on.last.stats.was_allowed_to_draft
    off = lane.answer(make_request(PROMPTS[0], 30, num_draft_tokens=0))
    quiet = lane.answer(make_request(PROMPTS[0], 30, segment="quiet"))
    assert (len(lane.caller.of("target")), len(lane.caller.of("target_plain"))) == (1, 2)
    assert on.token_ids == off.token_ids == quiet.token_ids == reference(request)
    assert not off.last.stats.was_allowed_to_draft
    assert all(call.value("streaming") is True for call in lane.caller.calls)
    assert len(on.updates) == 30  # message by message


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"repetition_penalty": 1.2}, "penalties"),
        ({"presence_penalty": 1.2}, "penalties"),
        ({"temperature": 1.0}, "sampling"),
        ({"min_tokens": 3, "stop_ids": frozenset({1})}, "min_tokens"),
        ({"wants_log_probs": True}, "log_probs"),
    ],
)
@pytest.mark.parametrize("method", [Method.MEDUSA, Method.EAGLE, Method.REDRAFTER])
def test_what_a_tree_must_not_draft_goes_to_target_plain(
    make_lane: LaneFactory, changes: dict[str, Any], reason: str, method: Method
) -> None:
    lane = make_lane(method=method)
    sink = lane.answer(make_request(PROMPTS[0], 10, **changes))
    assert [call.model for call in lane.caller.calls] == ["target_plain"]
    assert sink.last.stats.off_reason == reason
    assert len(sink.token_ids) == 10
    swapped = make_lane(method=method, plain=False)
    refused = swapped.answer(make_request(PROMPTS[0], 10, **changes))
    assert refused.error is not None
    assert "plain_instance: swap" in refused.error
    assert not refused.error.startswith(reason) or reason == "min_tokens"  # it names the input


@pytest.mark.parametrize("method", [Method.EAGLE, Method.REDRAFTER])
def test_engines_that_choose_tokens_themselves_get_no_bias(
    make_lane: LaneFactory, reference: Reference, method: Method
) -> None:
    free = reference(make_request(PROMPTS[0], 10))
    request = make_request(PROMPTS[0], 10, logit_bias={free[0]: -100.0})
    lane = make_lane(method=method)
    sink = lane.answer(request)
    assert sink.token_ids == reference(request) != free
    assert ([call.model for call in lane.caller.calls], sink.last.stats.off_reason) == (["target_plain"], "logit_bias")
    refused = make_lane(method=method, plain=False).answer(request)
    assert refused.error is not None
    assert refused.error.startswith("embedding_bias_words, embedding_bias_weights: needs an engine without drafting")


def test_a_random_choice_is_one_on_the_plain_engine(make_lane: LaneFactory) -> None:
    lane = make_lane(method=Method.EAGLE)
    answers = [lane.answer(make_request(PROMPTS[0], 30, temperature=1.5, seed=seed)).token_ids for seed in (7, 7, 8)]
    assert answers[0] == answers[1] != answers[2]


@pytest.mark.parametrize("method", [Method.MEDUSA, Method.EAGLE, Method.REDRAFTER])
def test_a_guide_without_a_plain_engine_is_refused_by_its_name(make_lane: LaneFactory, method: Method) -> None:
    lane = make_lane(method=method, plain=False, tensorrt_llm=GUIDED)
    sink = lane.answer(make_request(PROMPTS[0], 10, guide=Guide("json", "")))
    assert sink.error is not None
    assert sink.error.startswith("guided_decoding_guide_type: needs an engine without drafting")


def test_without_a_plain_engine_only_the_plan_may_say_off(make_lane: LaneFactory) -> None:
    lane = make_lane(method=Method.EAGLE, plain=False)
    assert lane.answer(make_request(PROMPTS[0], 10, segment="quiet")).last.stats.was_allowed_to_draft
    refused = lane.answer(make_request(PROMPTS[0], 10, num_draft_tokens=0))
    assert refused.error is not None
    assert refused.error.startswith("num_draft_tokens: needs an engine without drafting")


def test_a_depth_that_is_built_in_cannot_be_asked_for_in_part(make_lane: LaneFactory) -> None:
    lane = make_lane(method=Method.EAGLE)
    assert lane.answer(make_request(PROMPTS[0], 10, num_draft_tokens=4)).error is None
    refused = lane.answer(make_request(PROMPTS[0], 10, num_draft_tokens=2))
    assert refused.error == "num_draft_tokens: 2: method eagle drafts 4 tokens or none. Send 0, 4, or leave it out"


def test_lookahead_is_switched_by_its_sizes(make_lane: LaneFactory, reference: Reference) -> None:
    lane = make_lane(method=Method.LOOKAHEAD, target={"lookahead": (7, 7, 7)})
    request = make_request(PROMPTS[0], 10)
    answers = [lane.answer(request), lane.answer(make_request(PROMPTS[0], 10, num_draft_tokens=0))]
    assert [sink.token_ids for sink in answers] == [reference(request)] * 2
    names = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
    sizes = [tuple(call.value(name) for name in names) for call in lane.caller.of("target")]
    assert sizes == [(7, 7, 7), (1, 1, 0)]
    for changes in ({"temperature": 1.0}, {"temperature": 1.0, "num_draft_tokens": 0}, {"presence_penalty": 1.0}):
        assert lane.answer(make_request(PROMPTS[0], 10, **changes)).error is not None
    assert len(lane.caller.of("target")) == 2
    assert [sink.last.stats.was_allowed_to_draft for sink in answers] == [True, False]


def test_streamed_counts_are_the_backends_or_unavailable(make_lane: LaneFactory) -> None:
    measured = make_lane(method=Method.EAGLE).answer(make_request(PROMPTS[0], 10)).last.stats
    assert (measured.source, measured.num_draft_tokens, measured.num_steps) == ("measured", 0, 10)
    silent = make_lane(method=Method.EAGLE, target={"reports_counts": False})
    stats = silent.answer(make_request(PROMPTS[0], 10)).last.stats
    assert not stats.is_available
    off = silent.answer(make_request(PROMPTS[0], 10, num_draft_tokens=0)).last.stats
    assert (off.source, off.num_draft_tokens) == ("measured", 0)


@pytest.mark.parametrize("method", [Method.MEDUSA, Method.EAGLE, Method.REDRAFTER])
def test_acceptance_is_counted_over_the_whole_request(
    make_lane: LaneFactory, reference: Reference, method: Method
) -> None:
    lane = make_lane(method=method, target={"accepts": (2, 0, 1)})
    request = make_request(PROMPTS[0], 25)
    sink = lane.answer(request)
    assert sink.token_ids == reference(request)
    # One token at the prompt, then 3 + 1 + 2 by turns from trees of 7.
    assert [len(update.token_ids) for update in sink.updates] == [1, *[3, 1, 2] * 4]
    stats = sink.last.stats
    assert (stats.num_steps, stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (13, 12, 84, 12)
    assert stats.source == "measured"


@pytest.mark.parametrize("method", [Method.MEDUSA, Method.EAGLE, Method.REDRAFTER])
def test_acceptance_ends_with_the_output(make_lane: LaneFactory, reference: Reference, method: Method) -> None:
    """At every end, by id or by text, steps and accepted tokens make up the output."""
    lane = make_lane(method=method, target={"accepts": (2, 0, 1)})
    free = reference(make_request(PROMPTS[0], 14))
    for index in range(14):
        by_id = lane.answer(make_request(PROMPTS[0], 14, stop_ids=end_ids(free, index)))
        by_text = lane.answer(make_request(PROMPTS[0], 14), RecordingSink(stop_text=tuple(free[: index + 1])))
        assert by_text.token_ids == free[: index + 1]
        for sink in (by_id, by_text):
            stats = sink.last.stats
            assert stats.num_steps is not None
            assert stats.num_accepted_tokens <= len(sink.token_ids) - stats.num_steps
            assert stats.num_draft_tokens == 7 * stats.num_drafts
        assert by_id.token_ids == reference(make_request(PROMPTS[0], 14, stop_ids=end_ids(free, index)))
        assert by_id.last.finish_reason == "stop"


def test_a_stop_the_engine_was_too_early_for_is_sent_again(make_lane: LaneFactory) -> None:
    """The client goes between the call and the moment the engine knows the request."""
    is_called, is_known = threading.Event(), threading.Event()

    def script(call: Call) -> Answers | None:
        if "stop" in call.tensors:
            stops.append(call)
            return None if is_known.is_set() else [{}]
        is_called.set()
        assert is_known.wait(10)
        return None

    stops: list[Call] = []
    lane = make_lane(method=Method.EAGLE, target={"step_s": 0.05}, wrap=lambda caller: ScriptedCaller(caller, script))
    sink = lane.start(make_request(PROMPTS[0], 100))
    assert is_called.wait(10)
    sink.is_gone = True
    deadline = time.monotonic() + 10
    while not stops:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    is_known.set()
    assert sink.done.wait(3)  # 100 steps would take 5 s
    assert sink.last.finish_reason == "cancelled"
    assert len(stops) >= 2
    lane.assert_idle()


@pytest.mark.parametrize("method", [Method.DRAFT_MODEL, Method.EAGLE])
def test_a_request_after_closing_is_told_so(make_lane: LaneFactory, method: Method) -> None:
    lane = make_lane(method=method)
    lane.adapter.close()
    sink = lane.answer(make_request(PROMPTS[0], 3))
    assert sink.error == "the server is shutting down"
    assert (lane.adapter.num_in_flight, lane.adapter.num_slots_in_use) == (0, 0)


@pytest.mark.parametrize("text", ['{"vocab_size": null}', "{}", "[]", "{"])
@pytest.mark.parametrize("folder", ["target", "draft"])
def test_a_config_without_a_vocabulary_does_not_load(
    tmp_path: Path, checkpoints: dict[str, Path], text: str, folder: str
) -> None:
    engines = (engine_record(EngineModel.TARGET, max_draft_len=K), engine_record(EngineModel.DRAFT))
    build = write_engine_build(
        tmp_path, engine_config(), target=checkpoints["target"], draft=checkpoints["draft"], engines=engines
    )
    file = tmp_path / build.build_id / folder / "config.json"
    file.write_text(text)
    with pytest.raises(SpecDeployError, match=f"^{file}: vocab_size cannot be read"):
        TrtllmEngineAdapter(build, tmp_path, StandInCaller({}))


@pytest.mark.parametrize("k", [0, None])
def test_a_stop_string_and_a_client_that_goes_end_a_stream(make_lane: LaneFactory, k: int | None) -> None:
    lane = make_lane(method=Method.EAGLE, target={"step_s": 0.01})
    free = lane.answer(make_request(PROMPTS[0], 60, num_draft_tokens=k)).token_ids
    sink = lane.answer(make_request(PROMPTS[0], 60, num_draft_tokens=k), RecordingSink(stop_text=tuple(free[3:5])))
    assert tuple(sink.token_ids[-2:]) == tuple(free[3:5])
    assert sink.last.finish_reason == "stop"
    gone = lane.start(make_request(PROMPTS[0], 60, num_draft_tokens=k))
    while not gone.updates and not gone.done.is_set():
        time.sleep(0.001)
    gone.is_gone = True
    assert gone.done.wait(10)
    assert gone.last.finish_reason in (("cancelled",) if k is None else ("cancelled", "length"))
    lane.assert_idle()
    last_request = lane.caller.of("target" if k is None else "target_plain")[-1]
    if gone.last.finish_reason == "cancelled":
        assert lane.caller.stops[-1].request_id == last_request.request_id != ""


def test_streams_end_at_end_ids_and_hold_back_several(make_lane: LaneFactory, reference: Reference) -> None:
    lane = make_lane(method=Method.EAGLE)
    free = reference(make_request(PROMPTS[0], 30))
    for changes in (
        {"stop_ids": end_ids(free, 6)},
        {"stop_ids": frozenset(free[4:7])},
        {"stop_ids": frozenset(free[4:7]), "min_tokens": 9},
        {"stop_ids": end_ids(free, 6), "min_tokens": 9},
    ):
        request = make_request(PROMPTS[0], 30, **changes)
        sink = lane.answer(request)
        assert sink.token_ids == reference(request), changes
        if sink.token_ids[-1] in request.stop_ids:
            assert sink.last.finish_reason == "stop"
    listed = words_of(lane.caller.of("target")[1].tensors["stop_words_list"])
    assert len(listed) == len(set(free[4:7])) - 1


def test_a_stream_that_fails_ends_its_request_alone(make_lane: LaneFactory, tmp_path: Path) -> None:
    switch = tmp_path / "fails"
    lane = make_lane(method=Method.EAGLE, target={"fail_when": switch})
    switch.touch()
    sink = lane.answer(make_request(PROMPTS[0], 10))
    assert sink.error is not None
    assert "the Triton model 'target' failed" in sink.error
    switch.unlink()
    assert lane.answer(make_request(PROMPTS[0], 10)).error is None
    lane.assert_idle()


class DeafSink(RecordingSink):
    """Its first message cannot be sent."""

    def deliver(self, update: Any) -> None:
        raise RuntimeError("the stream is gone")


@pytest.mark.parametrize("method", [Method.DRAFT_MODEL, Method.EAGLE])
def test_an_answer_that_cannot_be_sent_ends_its_request_alone(make_lane: LaneFactory, method: Method) -> None:
    lane = make_lane(method=method)
    sink = lane.answer(make_request(PROMPTS[0], 30), DeafSink())
    assert sink.error == "the request failed: RuntimeError('the stream is gone')"
    if method is Method.EAGLE:  # the engine is told, it must not go on for nobody
        assert [call.model for call in lane.caller.stops] == ["target"]
    lane.assert_idle()
    assert lane.answer(make_request(PROMPTS[0], 5)).error is None
