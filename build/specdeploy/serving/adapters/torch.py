"""The torch lane: the engine of `specdeploy.runtime` on one thread of this process."""

import logging
import os
import queue
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from specdeploy.config.method_rules import tree_of
from specdeploy.config.schema import DeploymentConfig, SpeculationConfig
from specdeploy.contract import DeploymentPlan, Method
from specdeploy.errors import RequestError, SpecDeployError
from specdeploy.manifest import CurrentBuild
from specdeploy.runtime.assemble import EngineSettings, load_engine
from specdeploy.runtime.engine import Engine
from specdeploy.runtime.grammar import GrammarCompiler
from specdeploy.runtime.model import TORCH_DTYPES
from specdeploy.runtime.request import GenerationRequest, GuidedOutput, RowUpdate
from specdeploy.serving.adapters.base import Sink
from specdeploy.serving.guides import GuideThread
from specdeploy.serving.request import ServingRequest
from specdeploy.serving.router import route
from specdeploy.serving.tokenizer import count_emittable_ids, count_token_ids, load_tokenizer

_WAITING_ASKED_PER_STEP = 8

_Guided = GuidedOutput | SpecDeployError | None  # what became of a guide, None where there was none

_log = logging.getLogger(__name__)


def resolve_num_threads(configured: int) -> int:
    """`runtime.threads`, or cores - 1 (at least 1) for 0, within what this process may use."""
    num_cores = len(os.sched_getaffinity(0))
    return min(configured, num_cores) if configured else max(1, num_cores - 1)


class TorchAdapter:
    """Owns the engine and the only thread that touches it. Requests reach it through a queue."""

    def __init__(self, build: CurrentBuild, engines_root: Path, *, is_canary: bool = False) -> None:
        """Load the checkpoints of `build` and start the thread. Raises SpecDeployError when they cannot be served.

        `is_canary`: clients may ask for drafts of constrained requests where the plan says canary.
        """
        self._build = build
        self._is_canary = is_canary
        self.num_threads = resolve_num_threads(build.config.runtime.threads)
        self._engine_of: Callable[[], Engine] = lambda: load_build_engine(build, engines_root)
        self._inbox: queue.SimpleQueue[tuple[ServingRequest, Sink, _Guided] | None] = queue.SimpleQueue()
        self._sinks: dict[str, Sink] = {}
        self._num_submitted = 0
        self._num_received = 0
        self._num_asked = 0
        self._is_ready = threading.Event()
        self._load_error: BaseException | None = None
        self._engine: Engine | None = None
        self._thread = threading.Thread(target=self._run, name="specdeploy-engine", daemon=True)
        self._thread.start()
        self._is_ready.wait()
        if self._load_error is not None:
            raise self._load_error
        compiler = _guide_compiler(build, engines_root)
        self._guides = GuideThread(
            lambda request: _guided_output(compiler, request),
            lambda request, sink, guided: self._inbox.put((request, sink, guided)),
            max_waiting=build.config.serving.max_rows + build.config.serving.max_queue,
        )

    @property
    def plan(self) -> DeploymentPlan:
        """K by segment and load."""
        return self._build.plan

    @property
    def num_in_flight(self) -> int:
        """Requests accepted and not finished, those still in the inbox included."""
        return len(self._sinks) + (self._num_submitted - self._num_received)

    @property
    def num_slots_in_use(self) -> int:
        """Rows of key/value memory owned by requests."""
        return 0 if self._engine is None else self._engine.num_slots_in_use

    def submit(self, request: ServingRequest, sink: Sink) -> None:
        """Hand a request to the engine thread, once its guide is compiled."""
        self._num_submitted += 1
        if request.guide is None:
            self._inbox.put((request, sink, None))
        else:
            self._guides.submit(request, sink)

    def close(self) -> None:
        """Fail what is in flight and stop the threads."""
        self._guides.close()
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            # Pinned here, on the thread that starts the OpenMP pool: the pool inherits the cores, and the thread
            # that parses requests keeps the others.
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, cores[: self.num_threads])
            torch.set_num_threads(self.num_threads)
            self._engine = self._engine_of()
        except BaseException as error:
            self._load_error = error
            return
        finally:
            self._is_ready.set()
        with torch.inference_mode():
            self._serve(self._engine)

    def _serve(self, engine: Engine) -> None:
        while self._receive(engine):
            try:
                self._cancel_gone(engine)
                for update in engine.step():
                    self._deliver(engine, update)
            except Exception:
                # A bug, or memory ran out. Every request in flight gets an answer, and the server lives on.
                _log.exception("engine step failed")
                self._drop_all(engine, f"the engine failed: {traceback.format_exc(limit=0).strip()}")
        self._drop_all(engine, "the server is shutting down")

    def _drop_all(self, engine: Engine, message: str) -> None:
        try:
            engine.reset()  # first: what the sinks report of the load is then true
        except Exception:  # also then every client gets its answer
            _log.exception("resetting the engine failed")
        self._fail_all(message)

    def _receive(self, engine: Engine) -> bool:
        """Move requests from the inbox to the engine; blocks while there is nothing to do. False = stop."""
        while not self._inbox.empty() or engine.num_in_flight == 0:
            if not self._receive_one(engine):
                return False
        return True

    def _receive_one(self, engine: Engine) -> bool:
        # A frame of its own: a finished request must not live on in a local variable of a thread that waits here,
        # because Triton does not unload a model while one of its requests is alive.
        item = self._inbox.get()
        if item is None:
            return False
        request, sink, guided = item
        request_id = str(self._num_received)
        self._num_received += 1
        if isinstance(guided, SpecDeployError):  # not raised: its traceback would keep the sink alive
            _fail(sink, str(guided))
            return True
        try:
            engine.submit(self._generation_request(request_id, request, sink, guided))
            self._sinks[request_id] = sink
        except RequestError as error:
            _fail(sink, str(error))
        return True

    def _deliver(self, engine: Engine, update: RowUpdate) -> None:
        """One client that cannot be answered must not take the others with it."""
        sink = self._sinks[update.request_id]
        if update.finish_reason is not None:
            del self._sinks[update.request_id]
        try:
            sink.deliver(update)
        except Exception as error:
            _log.exception("answering request %s failed", update.request_id)
            self._sinks.pop(update.request_id, None)
            engine.cancel(update.request_id)
            _fail(sink, f"the answer could not be sent: {error!r}")

    def _generation_request(
        self, request_id: str, request: ServingRequest, sink: Sink, guided: GuidedOutput | None
    ) -> GenerationRequest:
        routed = route(
            self.plan,
            segment=request.segment,
            num_draft_tokens=request.num_draft_tokens,
            is_constrained=guided is not None,
            is_canary=self._is_canary,
        )
        return GenerationRequest(
            request_id=request_id,
            prompt_ids=request.prompt_ids,
            max_tokens=request.max_tokens,
            stop_ids=request.stop_ids,
            sampling=request.sampling,
            draft_len=routed.draft_len,
            ends_with_stop_string=sink.accept,
            wants_log_probs=request.wants_log_probs,
            guided=guided,
        )

    def _cancel_gone(self, engine: Engine) -> None:
        for request_id in [name for name in self._to_ask(engine) if self._sinks[name].is_cancelled()]:
            update = engine.cancel(request_id)
            if update is not None:
                self._deliver(engine, update)

    def _to_ask(self, engine: Engine) -> list[str]:
        """Whom to ask whether they are gone: every row, and some of the waiting in turn. Asking Triton costs about
        50 microseconds each, which a long queue would add to every step."""
        waiting = engine.waiting_request_ids
        start = self._num_asked % len(waiting) if waiting else 0
        self._num_asked += _WAITING_ASKED_PER_STEP
        return [*engine.row_request_ids, *(waiting[start:] + waiting[:start])[:_WAITING_ASKED_PER_STEP]]

    def _fail_all(self, message: str) -> None:
        sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            _fail(sink, message)


def _fail(sink: Sink, message: str) -> None:
    """Tell a client that its request failed. This thread lives on even when that cannot be sent."""
    try:
        sink.fail(message)
    except Exception:
        _log.exception("reporting a failed request failed")


def _guide_compiler(build: CurrentBuild, engines_root: Path) -> GrammarCompiler:
    folder = engines_root / build.target_folder
    tokenizer = load_tokenizer(folder)
    return GrammarCompiler(
        tokenizer,
        num_token_ids=count_emittable_ids(tokenizer, folder),
        thinking_end=build.config.serving.thinking_end,
    )


def _guided_output(compiler: GrammarCompiler, request: ServingRequest) -> GuidedOutput:
    if request.guide is None:
        raise ValueError("the request has no guide")
    return compiler.guided_output(request.guide.kind, request.guide.text, request.stop_ids)


def load_build_engine(build: CurrentBuild, engines_root: Path) -> Engine:
    """The engine of a build. Raises SpecDeployError for what cannot be served."""
    return load_engine(*engine_sources(build, engines_root))


def engine_sources(build: CurrentBuild, engines_root: Path) -> tuple[Path, Path | None, EngineSettings]:
    """What the engine of a build is loaded from: target, draft where there is one, and how to run them."""
    target = engines_root / build.target_folder
    draft = None if build.draft_folder is None else engines_root / build.draft_folder
    return target, draft, _engine_settings(build.config, count_token_ids(load_tokenizer(target)))


def _engine_settings(config: DeploymentConfig, num_token_ids: int) -> EngineSettings:
    """What the YAML says, as the runtime takes it."""
    speculation, serving = config.speculation, config.serving
    trees = {method: tree_of(speculation, method) for method in (Method.EAGLE, Method.EAGLE3, Method.MEDUSA)}
    return EngineSettings(
        method=speculation.method,
        dtype=TORCH_DTYPES[config.dtype.value],
        device=torch.device("cuda" if torch.cuda.is_available() else "cpu"),
        max_draft_len=speculation.max_draft_len,
        max_rows=serving.max_rows,
        max_queue=serving.max_queue,
        max_seq_len=serving.max_seq_len,
        prefill_chunk=serving.prefill_chunk,
        num_token_ids=num_token_ids,
        kv_cache_tokens=serving.kv_cache_tokens,
        is_draft_len_dynamic=speculation.dynamic_draft_len is not False,  # null = true
        min_ngram_size=_min_ngram_size(speculation),
        max_ngram_size=speculation.ngram.max_matching_ngram_size,
        min_suffix_size=speculation.suffix.min_matching_size,
        num_skip_layers=speculation.layer_skip.num_layers,
        trees={method: tree.choices for method, tree in trees.items() if tree is not None and tree.choices is not None},
    )


def _min_ngram_size(speculation: SpeculationConfig) -> int:
    """As written; where `auto` leaves it open, full-length matches only: short ones are mostly wrong, and there is a
    model to ask instead."""
    ngram = speculation.ngram
    if speculation.method is Method.AUTO and "min_matching_ngram_size" not in ngram.model_fields_set:
        return ngram.max_matching_ngram_size
    return ngram.min_matching_ngram_size
