"""The torch lane: the engine of `specdeploy.runtime` on one thread of this process."""

import logging
import os
import queue
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from specdeploy.contract import DeploymentPlan, Method
from specdeploy.errors import RequestError, SpecDeployError
from specdeploy.manifest import CurrentBuild
from specdeploy.runtime.drafters import Drafter, DraftModelDrafter, NgramDrafter
from specdeploy.runtime.engine import Engine
from specdeploy.runtime.model import TORCH_DTYPES, DecoderModel
from specdeploy.runtime.request import GenerationRequest, RowUpdate
from specdeploy.serving.adapters.base import Sink
from specdeploy.serving.request import ServingRequest
from specdeploy.serving.router import route
from specdeploy.serving.tokenizer import count_token_ids, load_tokenizer

_WAITING_ASKED_PER_STEP = 8

_log = logging.getLogger(__name__)


def resolve_num_threads(configured: int) -> int:
    """`runtime.threads`, or cores - 1 (at least 1) for 0, within what this process may use."""
    num_cores = len(os.sched_getaffinity(0))
    return min(configured, num_cores) if configured else max(1, num_cores - 1)


class TorchAdapter:
    """Owns the engine and the only thread that touches it. Requests reach it through a queue."""

    def __init__(self, build: CurrentBuild, engines_root: Path) -> None:
        """Load the checkpoints of `build` and start the thread. Raises SpecDeployError when they cannot be served."""
        self._build = build
        self.num_threads = resolve_num_threads(build.config.runtime.threads)
        self._engine_of: Callable[[], Engine] = lambda: _load_engine(build, engines_root)
        self._inbox: queue.SimpleQueue[tuple[ServingRequest, Sink] | None] = queue.SimpleQueue()
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
        """Hand a request to the engine thread."""
        self._num_submitted += 1
        self._inbox.put((request, sink))

    def close(self) -> None:
        """Fail what is in flight and stop the thread."""
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
                engine.reset()  # first: what the sinks report of the load is then true
                self._fail_all(f"the engine failed: {traceback.format_exc(limit=0).strip()}")
        engine.reset()
        self._fail_all("the server is shutting down")

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
        request, sink = item
        request_id = str(self._num_received)
        self._num_received += 1
        try:
            engine.submit(self._generation_request(request_id, request, sink))
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

    def _generation_request(self, request_id: str, request: ServingRequest, sink: Sink) -> GenerationRequest:
        routed = route(self.plan, segment=request.segment, num_draft_tokens=request.num_draft_tokens)
        return GenerationRequest(
            request_id=request_id,
            prompt_ids=request.prompt_ids,
            max_tokens=request.max_tokens,
            stop_ids=request.stop_ids,
            sampling=request.sampling,
            draft_len=routed.draft_len,
            ends_with_stop_string=sink.accept,
            wants_log_probs=request.wants_log_probs,
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


def _load_engine(build: CurrentBuild, engines_root: Path) -> Engine:
    config = build.config
    dtype = TORCH_DTYPES[config.dtype.value]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    serving = config.serving
    target = engines_root / build.target_folder
    model = DecoderModel(target, dtype=dtype, device=device, max_seq_len=serving.max_seq_len)
    num_token_ids = count_token_ids(load_tokenizer(target))
    return Engine(
        model,
        _load_drafter(build, engines_root, dtype, device, num_token_ids),
        max_rows=serving.max_rows,
        max_queue=serving.max_queue,
        prefill_chunk=serving.prefill_chunk,
        num_token_ids=num_token_ids,
    )


def _load_drafter(
    build: CurrentBuild, engines_root: Path, dtype: torch.dtype, device: torch.device, num_token_ids: int
) -> Drafter:
    config = build.config
    if config.speculation.method is Method.NGRAM:
        return NgramDrafter(**config.speculation.ngram.model_dump())
    if config.speculation.method is Method.DRAFT_MODEL and build.draft_folder is not None:
        folder = engines_root / build.draft_folder
        draft = DecoderModel(folder, dtype=dtype, device=device, max_seq_len=config.serving.max_seq_len)
        return DraftModelDrafter(
            draft,
            num_slots=config.serving.max_rows,
            prefill_chunk=config.serving.prefill_chunk,
            num_token_ids=num_token_ids,
        )
    raise SpecDeployError(f"speculation.method: {config.speculation.method} is not served by the torch lane")
