"""The LLM API lane over a stand-in for TensorRT-LLM: streams, placement, ends, failures, and the same text as torch."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml

from helpers import fake_llm, serving_requests
from helpers.fake_llm import Behaviour
from helpers.tiny_checkpoint import EOS_ID, make_checkpoint
from specdeploy.builders import trtllm_probe, trtllm_warmup
from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import EngineModel
from specdeploy.errors import SpecDeployError
from specdeploy.manifest import CurrentBuild
from specdeploy.planner.schedule import plan_from_config
from specdeploy.runtime.request import RowUpdate, SamplingParams
from specdeploy.serving.adapters import Adapter, llmapi_instances
from specdeploy.serving.adapters.torch import TorchAdapter
from specdeploy.serving.adapters.trtllm_llmapi import TrtllmLlmapiAdapter
from specdeploy.serving.request import Guide, ServingRequest
from specdeploy.trtllm.class_arguments import class_arguments

WAIT_S = 20
K = 2
CONFIG: dict[str, Any] = {
    "schema_version": 1,
    "name": "tiny",
    "lane": "trtllm_llmapi",
    "dtype": "float32",
    "target": {"checkpoint": "unused"},
    "speculation": {
        "method": "ngram",
        "max_draft_len": K,
        "draft_len_by_in_flight": [{"min_in_flight": 1, "max_in_flight": 3, "draft_len": K}],
    },
    "serving": {"max_rows": 2, "max_queue": 3, "max_seq_len": 96},
    "tensorrt_llm": {"version": "1.2.1", "gpu": "h100", "plain_instance": "beside"},
    "traffic": {"expected_concurrency": 2, "segments": [{"name": "edit", "prompts": "edit.jsonl"}]},
}
SPECULATION = {"decoding_type": "NGram", "max_draft_len": K, "max_matching_ngram_size": 3}
ARGUMENTS: dict[str, Any] = {
    "model": "target",
    "max_batch_size": 2,
    "max_seq_len": 96,
    "guided_decoding_backend": "xgrammar",
}


def collected(updates: list[RowUpdate]) -> list[int]:
    return [token for update in updates for token in update.token_ids]


class RecordingSink:
    """Keeps what it is told. `stops_at` are tokens that end a stop string."""

    def __init__(self, stops_at: frozenset[int] = frozenset(), deliver_error: Exception | None = None) -> None:
        self.updates: list[RowUpdate] = []
        self.errors: list[str] = []
        self.accepted: list[int] = []
        self.done = threading.Event()
        self.has_tokens = threading.Event()
        self.cancelled = False
        self.on_end: Callable[[], object] = lambda: None
        self.seen_at_end: object = None
        self._stops_at, self._deliver_error = stops_at, deliver_error

    def is_cancelled(self) -> bool:
        return self.cancelled

    def accept(self, token_id: int) -> bool:
        self.accepted.append(token_id)
        return token_id in self._stops_at

    def deliver(self, update: RowUpdate) -> None:
        assert not self.done.is_set(), "an update after the last one"
        if self._deliver_error is not None:
            raise self._deliver_error
        self.updates.append(update)
        self.has_tokens.set()
        if update.finish_reason is not None:
            self._end()

    def fail(self, message: str) -> None:
        assert not self.done.is_set(), "a failure after the last update"
        self.errors.append(message)
        self._end()

    def _end(self) -> None:
        self.seen_at_end = self.on_end()
        self.done.set()

    @property
    def last(self) -> RowUpdate:
        assert not self.errors, self.errors
        return self.updates[-1]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint") / "target")


@pytest.fixture
def engines_root(tmp_path: Path, checkpoint: Path) -> Path:
    folder = tmp_path / "engines" / "b1"
    folder.mkdir(parents=True)
    (folder / "target").symlink_to(checkpoint)
    write_arguments(folder.parent)
    return folder.parent


def write_arguments(engines_root: Path, changes: dict[str, Any] | None = None, plain: Any = ARGUMENTS) -> None:
    speculative = ARGUMENTS | {"speculative_config": SPECULATION} | (changes or {})
    (engines_root / "b1" / "llm_args.yaml").write_text(yaml.safe_dump(speculative))
    if plain is not None:
        (engines_root / "b1" / "llm_args_plain.yaml").write_text(yaml.safe_dump(plain))


def make_build(lane: str = "trtllm_llmapi", plain_instance: str = "beside", **serving: int) -> CurrentBuild:
    raw = CONFIG | {"lane": lane, "serving": CONFIG["serving"] | serving}
    if lane == "torch":
        del raw["tensorrt_llm"]
        raw["speculation"] = CONFIG["speculation"] | {"dynamic_draft_len": False}  # as the stand-in drafts
    else:
        raw["tensorrt_llm"] = CONFIG["tensorrt_llm"] | {"plain_instance": plain_instance}
    config = DeploymentConfig.model_validate(raw)
    return CurrentBuild(
        deployment="tiny",
        build_id="b1",
        target_folder="b1/target",
        draft_folder=None,
        config_digest="0",
        config=config,
        plan=plan_from_config(config),
    )


Start = Callable[..., TrtllmLlmapiAdapter]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, engines_root: Path) -> Iterator[Start]:
    """Makes adapters over a stand-in and closes them."""
    adapters: list[TrtllmLlmapiAdapter] = []

    def begin(behaviour: Behaviour, **build: Any) -> TrtllmLlmapiAdapter:
        for name, module in fake_llm.make_modules(behaviour).items():
            monkeypatch.setitem(sys.modules, name, module)
        adapters.append(TrtllmLlmapiAdapter(make_build(**build), engines_root))
        return adapters[-1]

    yield begin
    for adapter in adapters:
        adapter.close()


def make_request(*prompt_ids: int, **changes: Any) -> ServingRequest:
    """A streaming request, greedy unless `sampling` says otherwise."""
    return replace(serving_requests.make_request(prompt_ids or (10,)), **({"stream": True} | changes))


def answer(adapter: Adapter, request: ServingRequest, sink: RecordingSink | None = None) -> RecordingSink:
    sink = sink or RecordingSink()
    adapter.submit(request, sink)
    assert sink.done.wait(WAIT_S)
    return sink


def drop_paths(arguments: dict[str, Any]) -> dict[str, Any]:
    """Without the folder of the model, which the server makes absolute."""
    return {key: value for key, value in arguments.items() if key != "model"}


def then_hang(prompt: list[int], params: Any, is_speculative: bool) -> Iterable[fake_llm.Chunk]:
    yield (1, 2)
    yield fake_llm.HANG


def test_streamed_deltas_are_the_whole(start: Start) -> None:
    behaviour = Behaviour()
    adapter = start(behaviour)
    sink = answer(adapter, make_request())
    assert collected(sink.updates) == list(range(11, 23)) == sink.accepted
    assert [len(update.token_ids) for update in sink.updates] == [1, 3, 3, 3, 2]
    assert [update.finish_reason for update in sink.updates] == [None] * 4 + ["length"]
    (request,) = behaviour.llms[0].requests
    assert request.prompt_token_ids == [10]
    assert not request.aborted
    stats = sink.last.stats
    assert (stats.num_steps, stats.num_draft_tokens, stats.num_accepted_tokens) == (5, 4 * K, 8)
    assert (stats.source, stats.was_allowed_to_draft, stats.off_reason) == ("measured", True, None)
    assert adapter.num_in_flight == adapter.num_slots_in_use == 0


def test_two_instances_from_two_files(start: Start, engines_root: Path) -> None:
    behaviour = Behaviour()
    adapter = start(behaviour)
    speculative, plain = behaviour.llms
    target = str((engines_root / "b1" / "target").resolve())
    assert speculative.arguments["speculative_config"].values == SPECULATION
    assert speculative.arguments["model"] == plain.arguments["model"] == target
    assert "speculative_config" not in plain.arguments
    drafted = answer(adapter, make_request())
    plainly = answer(adapter, make_request(num_draft_tokens=0))
    assert (len(speculative.requests), len(plain.requests)) == (1, 1)
    assert collected(drafted.updates) == collected(plainly.updates)
    stats = plainly.last.stats
    assert (stats.was_allowed_to_draft, stats.off_reason, stats.source) == (False, "requested", "measured")
    assert stats.num_steps == 12
    assert stats.num_draft_tokens == 0


def test_without_a_plain_instance_only_load_switches_off(start: Start, engines_root: Path) -> None:
    write_arguments(engines_root, {"speculative_config": SPECULATION | {"max_concurrency": 3}})
    behaviour = Behaviour(script=then_hang)
    adapter = start(behaviour, plain_instance="swap")
    assert len(behaviour.llms) == 1
    refused = answer(adapter, make_request(num_draft_tokens=0))
    assert refused.errors[0].startswith("num_draft_tokens: drafting cannot be off for one request")
    sinks = [RecordingSink() for _ in range(4)]  # the plan drafts up to 3 in flight
    for sink in sinks:
        adapter.submit(make_request(), sink)
        assert sink.has_tokens.wait(WAIT_S)
    for sink in sinks:
        sink.cancelled = True
    assert all(sink.done.wait(WAIT_S) for sink in sinks)
    assert [sink.last.stats.off_reason for sink in sinks] == [None, None, None, "load"]
    assert len(behaviour.llms[0].requests) == 4


def test_load_is_looked_at_once_per_request(start: Start) -> None:
    behaviour = Behaviour(script=then_hang)
    adapter = start(behaviour)
    sinks = [RecordingSink() for _ in range(5)]
    for sink in sinks:
        adapter.submit(make_request(), sink)
        assert sink.has_tokens.wait(WAIT_S)
    assert [len(llm.requests) for llm in behaviour.llms] == [3, 2]
    assert adapter.num_in_flight == 5
    assert adapter.num_slots_in_use == 4  # two rows each
    for sink in sinks:
        sink.cancelled = True
    assert all(sink.done.wait(WAIT_S) for sink in sinks)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_draft_tokens": 1}, "num_draft_tokens: 1 is shorter than the 2 this lane always drafts"),
        ({"sampling": SamplingParams(bad_words=((3, 4),)), "num_draft_tokens": 0}, "bad_words: "),
        ({"sampling": SamplingParams(presence_penalty=0.5)}, "presence_penalty: TensorRT-LLM 1.2.1 ignores penalties"),
        ({"guide": Guide("json_schema", "{")}, "guided_decoding_guide: is not JSON"),
        ({"prompt_ids": (1,) * 96}, "text_input: 96 tokens leave no room for output in a context of 96"),
        ({"prompt_ids": (1, 99999)}, "text_input: token id 99999 has no row"),
    ],
)
def test_refusals_name_the_field_and_never_reach_tensorrt_llm(
    start: Start, changes: dict[str, Any], message: str
) -> None:
    behaviour = Behaviour()
    adapter = start(behaviour)
    sink = answer(adapter, make_request(**changes))
    assert sink.errors[0].startswith(message)
    assert not any(llm.requests for llm in behaviour.llms)
    assert adapter.num_in_flight == 0
    assert not answer(adapter, make_request()).errors


def test_guided_requests_run_on_the_plain_instance(start: Start) -> None:
    behaviour = Behaviour()
    sink = answer(start(behaviour), make_request(guide=Guide("ebnf_grammar", 'root ::= "a"')))
    (request,) = behaviour.llms[1].requests
    assert request.sampling_params.guided_decoding == fake_llm.GuidedDecodingParams(grammar='root ::= "a"')
    assert sink.last.stats.off_reason == "constrained"


def test_sampling_parameters_arrive(start: Start) -> None:
    behaviour = Behaviour()
    sampling = SamplingParams(temperature=0.5, top_k=7, seed=2**64 - 1, logit_bias={4: 1.5})
    sink = answer(start(behaviour), make_request(sampling=sampling, stop_ids=frozenset({60, 61})))
    assert sink.last.stats.off_reason == "sampling"
    params = behaviour.llms[1].requests[0].sampling_params
    assert (params.temperature, params.top_k, params.seed, params.max_tokens) == (0.5, 7, 2**64 - 1, 12)
    assert (params.end_id, params.stop_token_ids) == (60, [61])
    assert params.embedding_bias is not None
    assert params.embedding_bias.dtype.is_floating_point
    assert np.flatnonzero(params.embedding_bias.numpy()).tolist() == [4]


def test_output_fits_the_context(start: Start) -> None:
    sink = answer(start(Behaviour()), make_request(*range(90), max_tokens=50))
    assert len(collected(sink.updates)) == 6
    assert sink.last.finish_reason == "length"


@pytest.mark.parametrize("stop_ids", [frozenset({15}), frozenset({15, 200}), frozenset({1, 15})])
def test_a_stop_token_ends_the_output_and_is_in_it(start: Start, stop_ids: frozenset[int]) -> None:
    sink = answer(start(Behaviour()), make_request(stop_ids=stop_ids))
    assert collected(sink.updates) == [11, 12, 13, 14, 15]
    assert sink.last.finish_reason == "stop"


def test_a_stop_string_ends_the_output_inside_a_message_and_aborts(start: Start) -> None:
    behaviour = Behaviour()
    sink = answer(start(behaviour), make_request(stop_strings=("x",)), RecordingSink(frozenset({13})))
    assert collected(sink.updates) == [11, 12, 13]
    assert sink.accepted == [11, 12, 13]  # nothing behind the end reaches the text
    assert sink.last.finish_reason == "stop"
    request = behaviour.llms[0].requests[0]
    assert request.aborted
    assert not request.was_iterated_after_abort
    assert sink.last.stats.num_accepted_tokens == 1  # of two, one was behind the end


def test_a_stop_string_waits_for_min_tokens(start: Start) -> None:
    request = make_request(sampling=SamplingParams(min_tokens=6), stop_strings=("x",))
    sink = answer(start(Behaviour()), request, RecordingSink(frozenset({13, 17})))
    assert collected(sink.updates)[-1] == 17
    assert sink.last.finish_reason == "stop"


def test_a_gone_client_aborts_also_when_nothing_comes(start: Start) -> None:
    behaviour = Behaviour(script=then_hang)
    adapter = start(behaviour)
    sink = RecordingSink()
    sink.on_end = lambda: (adapter.num_in_flight, adapter.num_slots_in_use)
    adapter.submit(make_request(), sink)
    assert sink.has_tokens.wait(WAIT_S)
    sink.cancelled = True
    began = time.monotonic()
    assert sink.done.wait(WAIT_S)
    assert time.monotonic() - began < 2
    assert sink.last.finish_reason == "cancelled"
    assert sink.last.token_ids == ()
    assert behaviour.llms[0].requests[0].aborted
    assert sink.seen_at_end == (0, 0)  # the load is true when the last message goes out


def test_a_gone_client_is_noticed_at_the_next_message(start: Start) -> None:
    behaviour = Behaviour(message_s=0.02)
    adapter = start(behaviour)
    sink = RecordingSink()
    adapter.submit(make_request(max_tokens=80), sink)
    assert sink.has_tokens.wait(WAIT_S)
    sink.cancelled = True
    assert sink.done.wait(WAIT_S)
    assert sink.last.finish_reason == "cancelled"
    assert len(collected(sink.updates)) < 20


def test_a_client_that_was_gone_before_it_began(start: Start) -> None:
    behaviour = Behaviour()
    adapter = start(behaviour)
    sink = RecordingSink()
    sink.cancelled = True
    assert answer(adapter, make_request(), sink).last.finish_reason == "cancelled"
    assert adapter.num_in_flight == 0


def test_too_many_are_refused_in_the_words_of_the_torch_lane(start: Start, engines_root: Path) -> None:
    adapter = start(Behaviour(script=then_hang))
    sinks = [RecordingSink() for _ in range(7)]
    for sink in sinks:
        adapter.submit(make_request(), sink)
    refused = sinks[5:]  # two rows and three that wait
    assert all(sink.done.wait(WAIT_S) for sink in refused)
    torch_adapter = TorchAdapter(make_build("torch", max_queue=0, max_rows=1), engines_root)
    crowd = [RecordingSink() for _ in range(8)]
    for sink in crowd:
        torch_adapter.submit(make_request(max_tokens=60), sink)
    assert all(sink.done.wait(WAIT_S) for sink in crowd)
    torch_adapter.close()
    words = next(sink.errors[0] for sink in crowd if sink.errors)
    assert [sink.errors[0] for sink in refused] == [words.replace("and 0 requests", "and 3 requests")] * 2
    for sink in sinks[:5]:
        sink.cancelled = True
    assert all(sink.done.wait(WAIT_S) for sink in sinks[:5])
    assert adapter.num_in_flight == 0


@pytest.mark.parametrize(
    ("counters", "source"),
    [
        ("true", "measured"),
        ("zero", "unavailable:counters are 0 but 2.40 tokens came per iteration"),
        ("none", "unavailable:TensorRT-LLM reported no counters of this request"),
    ],
)
@pytest.mark.parametrize("has_decoding_iter", [True, False])
def test_counters_are_reported_where_they_are_true(
    start: Start, counters: str, source: str, has_decoding_iter: bool
) -> None:
    sink = answer(start(Behaviour(counters=counters, has_decoding_iter=has_decoding_iter)), make_request())
    stats = sink.last.stats
    assert stats.source == source
    assert stats.was_allowed_to_draft
    assert stats.num_steps == (fake_llm.expected_steps(12, K + 1) if has_decoding_iter else None)


def test_log_probs_are_one_per_token(start: Start) -> None:
    sink = answer(start(Behaviour()), make_request(wants_log_probs=True), RecordingSink(frozenset({14})))
    assert sink.last.stats.off_reason == "log_probs"
    assert [value for update in sink.updates for value in update.log_probs or ()] == [
        -token / 8 for token in collected(sink.updates)
    ]


def test_missing_log_probs_fail_the_request(start: Start) -> None:
    behaviour = Behaviour(has_log_probs=False)
    sink = answer(start(behaviour), make_request(wants_log_probs=True))
    assert sink.errors == ["TensorRT-LLM gave no log probability of output token 1"]
    assert behaviour.llms[1].requests[0].aborted


def test_an_llm_that_dies_fails_its_requests_and_the_model_stays_up(start: Start) -> None:
    def dies(prompt: list[int], params: Any, is_speculative: bool) -> Iterable[fake_llm.Chunk]:
        yield (1,)
        if is_speculative:
            yield RuntimeError("CUDA error:\n  an illegal memory access was encountered")
        yield from ((2,),) * 20

    behaviour = Behaviour(script=dies)
    adapter = start(behaviour)
    sinks = [answer(adapter, make_request()) for _ in range(2)]
    expected = (
        "TensorRT-LLM failed the request (RuntimeError: CUDA error: an illegal memory access was encountered)."
        " See the log of the server"
    )
    assert [sink.errors for sink in sinks] == [[expected]] * 2
    assert adapter.num_in_flight == adapter.num_slots_in_use == 0
    assert answer(adapter, make_request(num_draft_tokens=0)).last.finish_reason == "length"
    behaviour.generate_error = ValueError("the executor is gone")
    assert "the executor is gone" in answer(adapter, make_request()).errors[0]
    behaviour.generate_error = None
    assert answer(adapter, make_request(num_draft_tokens=0)).last.finish_reason == "length"


@pytest.mark.parametrize("reason", ["timeout", "cancelled"])
def test_an_end_without_an_answer_is_a_failure(start: Start, reason: str) -> None:
    sink = answer(start(Behaviour(script=lambda *_: [(1,)], end_reason=reason)), make_request())
    assert sink.errors == [f"TensorRT-LLM ended the request without finishing it ({reason})"]


def test_a_request_that_tensorrt_llm_cancels_is_answered(start: Start) -> None:
    adapter = start(Behaviour(script=lambda *_: [(1,), asyncio.CancelledError()]))
    assert answer(adapter, make_request()).errors == ["TensorRT-LLM cancelled the request"]
    assert adapter.num_in_flight == 0


@pytest.mark.parametrize("stream_long", [False, True])
def test_a_client_that_cannot_be_answered_leaves_the_others_alone(start: Start, stream_long: bool) -> None:
    behaviour = Behaviour()
    adapter = start(behaviour)
    broken = RecordingSink(deliver_error=OSError("stream closed"))
    answer(adapter, make_request(max_tokens=50 if stream_long else 1), broken)
    assert "stream closed" in broken.errors[0]
    assert behaviour.llms[0].requests[0].aborted is stream_long
    assert answer(adapter, make_request()).last.finish_reason == "length"


def test_closing_fails_what_is_in_flight_and_shuts_down(start: Start) -> None:
    behaviour = Behaviour(script=then_hang)
    adapter = start(behaviour)
    sink, at_once, late = RecordingSink(), RecordingSink(), RecordingSink()
    adapter.submit(make_request(), sink)
    assert sink.has_tokens.wait(WAIT_S)
    adapter.submit(make_request(), at_once)
    adapter.close()
    adapter.submit(make_request(), late)
    for closed in (sink, at_once, late):
        assert closed.errors == ["the server is shutting down"]
    assert all(llm.was_shut_down for llm in behaviour.llms)
    assert behaviour.llms[0].requests[0].aborted
    assert adapter.num_in_flight == 0


class TestLoading:
    def test_tensorrt_llm_is_not_there(self, monkeypatch: pytest.MonkeyPatch, engines_root: Path) -> None:
        monkeypatch.setitem(sys.modules, "tensorrt_llm", None)
        with pytest.raises(
            SpecDeployError, match=r"^tensorrt_llm cannot be imported .* container of TensorRT-LLM 1\.2\.1"
        ):
            TrtllmLlmapiAdapter(make_build(), engines_root)

    def test_a_package_without_the_llm_api(self, monkeypatch: pytest.MonkeyPatch, engines_root: Path) -> None:
        package = ModuleType("tensorrt_llm")
        package.__dict__["__version__"] = "1.2.1"
        monkeypatch.setitem(sys.modules, "tensorrt_llm", package)
        with pytest.raises(SpecDeployError, match="tensorrt_llm cannot be imported"):
            TrtllmLlmapiAdapter(make_build(), engines_root)

    def test_another_version(self, start: Start) -> None:
        behaviour = Behaviour(version="1.2.0")
        with pytest.raises(SpecDeployError, match=r"built for 1\.2\.1, installed is 1\.2\.0"):
            start(behaviour)
        assert not behaviour.llms

    def test_a_local_build_of_the_same_version(self, start: Start) -> None:
        assert not answer(start(Behaviour(version="1.2.1+cu131")), make_request()).errors

    def test_the_cause_of_a_failed_load(self, start: Start) -> None:
        with pytest.raises(SpecDeployError, match=r"llm_args\.yaml: the speculative instance did not load") as caught:
            start(Behaviour(load_error=RuntimeError("CUDA out of memory")))
        assert "RuntimeError: CUDA out of memory" in str(caught.value)
        assert "tensorrt_llm.kv_cache_fraction" in str(caught.value)

    def test_a_load_that_wants_to_exit(self, start: Start) -> None:
        with pytest.raises(SpecDeployError, match=r"did not load \(SystemExit: 1\)"):
            start(Behaviour(load_error=SystemExit(1)))

    def test_the_first_instance_is_shut_down_when_the_second_fails(self, start: Start) -> None:
        behaviour = Behaviour(load_error_of_plain=MemoryError())
        with pytest.raises(
            SpecDeployError, match=r"llm_args_plain\.yaml: the plain instance did not load \(MemoryError\)"
        ):
            start(behaviour)
        assert [llm.was_shut_down for llm in behaviour.llms] == [True]

    def test_both_are_made_as_the_build_made_them(self, start: Start, engines_root: Path) -> None:
        """What the classes accepted and the warm-up loaded at the build is what is served."""
        behaviour = Behaviour()
        start(behaviour)
        module = fake_llm.make_modules(behaviour)["tensorrt_llm.llmapi.llm_args"]
        made = [
            class_arguments(trtllm_warmup.load_arguments(engines_root / "b1", instance), module)
            for instance in (EngineModel.TARGET, EngineModel.TARGET_PLAIN)
        ]
        assert [drop_paths(llm.arguments) for llm in behaviour.llms] == [drop_paths(one) for one in made]
        ways = {module.__dict__["class_arguments"] for module in (llmapi_instances, trtllm_warmup, trtllm_probe)}
        assert ways == {class_arguments}

    def test_a_spelling_the_version_does_not_know(self, start: Start, engines_root: Path) -> None:
        write_arguments(engines_root, {"speculative_config": SPECULATION | {"decoding_type": "NGRAM"}})
        with pytest.raises(SpecDeployError, match="Invalid decoding type: NGRAM"):
            start(Behaviour())

    @pytest.mark.parametrize(
        ("changes", "plain", "message"),
        [
            ({"model": None}, ARGUMENTS, r"llm_args\.yaml: model: is missing"),
            ({"speculative_config": None}, ARGUMENTS, r"llm_args\.yaml: speculative_config: is missing"),
            (
                {},
                ARGUMENTS | {"speculative_config": SPECULATION},
                r"llm_args_plain\.yaml: speculative_config: the plain instance must not have it",
            ),
            ({}, [1], r"llm_args_plain\.yaml: model: is missing"),
            (
                {"speculative_config": SPECULATION | {"decoding_type": "unresolved:DraftTarget|Draft_Target"}},
                ARGUMENTS,
                r"speculative_config\.decoding_type: not settled for the installed TensorRT-LLM",
            ),
        ],
    )
    def test_argument_files_that_cannot_be_right(
        self, start: Start, engines_root: Path, changes: dict[str, Any], plain: Any, message: str
    ) -> None:
        write_arguments(engines_root, changes, plain)
        with pytest.raises(SpecDeployError, match=message):
            start(Behaviour())

    def test_missing_and_broken_files(self, start: Start, engines_root: Path) -> None:
        (engines_root / "b1" / "llm_args_plain.yaml").unlink()
        with pytest.raises(
            SpecDeployError, match=r"llm_args_plain\.yaml: cannot be read .*make engines DEPLOYMENT=tiny"
        ):
            start(Behaviour())
        (engines_root / "b1" / "llm_args.yaml").write_text("model: [")
        with pytest.raises(SpecDeployError, match=r"llm_args\.yaml: is no YAML"):
            start(Behaviour(), plain_instance="swap")

    def test_paths_of_the_build_become_absolute_and_hub_ids_stay(self, start: Start, engines_root: Path) -> None:
        (engines_root / "b1" / "draft").mkdir()
        inside = SPECULATION | {"speculative_model_dir": "draft"}
        hub = ARGUMENTS | {"tokenizer": "owner/name"}
        write_arguments(engines_root, {"speculative_config": inside}, hub)
        behaviour = Behaviour()
        start(behaviour)
        draft = behaviour.llms[0].arguments["speculative_config"].values["speculative_model_dir"]
        assert draft == str((engines_root / "b1" / "draft").resolve())
        assert behaviour.llms[1].arguments["tokenizer"] == "owner/name"


PROMPTS = [(7, 8, 9, 7, 8, 9, 7, 8), (20, 30, 40), tuple(range(5, 60))]  # as many as the plan drafts for at once


@pytest.mark.parametrize("number", [None, 0])
def test_greedy_output_is_that_of_the_torch_lane(start: Start, engines_root: Path, number: int | None) -> None:
    requests = [
        make_request(*prompt, max_tokens=24, num_draft_tokens=number, stop_ids=frozenset({EOS_ID, 11}))
        for prompt in PROMPTS
    ]
    reference = TorchAdapter(make_build("torch"), engines_root)
    expected = [answer(reference, request) for request in requests]
    reference.close()
    behaviour = Behaviour(runs_torch=True)
    adapter = start(behaviour)
    sinks = [RecordingSink() for _ in requests]
    for request, sink in zip(requests, sinks, strict=True):
        adapter.submit(request, sink)
    assert all(sink.done.wait(WAIT_S) for sink in sinks)
    for sink, wanted in zip(sinks, expected, strict=True):
        assert collected(sink.updates) == collected(wanted.updates)
        assert sink.last.finish_reason == wanted.last.finish_reason
    used = [len(llm.requests) for llm in behaviour.llms]
    assert used == ([3, 0] if number is None else [0, 3])
    if number is None:
        assert any(sink.last.stats.num_accepted_tokens for sink in sinks)
        assert sinks[0].last.stats.num_draft_tokens == expected[0].last.stats.num_draft_tokens
        assert sinks[0].last.stats.num_steps == expected[0].last.stats.num_steps
