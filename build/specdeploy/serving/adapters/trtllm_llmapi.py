"""The lane `trtllm_llmapi`: one or two LLM objects of TensorRT-LLM's LLM API (PyTorch flow) in this process.

Written from published sources of TensorRT-LLM and tested with a stand-in for it. It was never run on a GPU, nor with a
real TensorRT-LLM; what was read where is said in the modules this one uses. Two LLM objects in one process are
documented neither as working nor as failing.

One asyncio loop on one thread owns everything. A request is placed once, when it comes (`llmapi_placement`), and has
one task until it ends. Every request streams from TensorRT-LLM, whatever its client asked for: stop strings are found
here, and then, as when its client is gone, the request is aborted there.
"""

import asyncio
import functools
import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdeploy.config.schema import PlainInstance
from specdeploy.contract import DeploymentPlan, Method
from specdeploy.errors import RequestError, SpecDeployError
from specdeploy.manifest import CurrentBuild
from specdeploy.runtime.request import FinishReason, RequestStats, RowUpdate
from specdeploy.serving.adapters.base import Sink
from specdeploy.serving.adapters.llmapi_instances import (
    ARGUMENT_FILES,
    LoadedInstance,
    describe,
    load_instance,
    load_library,
    read_arguments,
    read_vocab_size,
)
from specdeploy.serving.adapters.llmapi_output import EndRule, OutputReader, finish_reason_of, read_stats
from specdeploy.serving.adapters.llmapi_placement import Instance, Placement, place_request
from specdeploy.serving.adapters.llmapi_request import output_limit, sampling_arguments
from specdeploy.serving.request import ServingRequest

CANCEL_POLL_S = 0.08
SHUTTING_DOWN = "the server is shutting down"

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Active:
    """A request from its acceptance to its last message."""

    request_id: str
    request: ServingRequest
    sink: Sink
    reader: OutputReader
    task: asyncio.Task[None] | None = None
    instance: LoadedInstance | None = None
    placement: Placement | None = None
    result: Any = None  # the LLM's RequestOutput, once it was submitted
    message: Any = None  # the same, once it brought something
    num_delivered: int = 0
    is_over: bool = False


class TrtllmLlmapiAdapter:
    """Owns the LLM objects and the only thread that touches them."""

    def __init__(self, build: CurrentBuild, engines_root: Path) -> None:
        """Load the instances of `build` and start the thread. Raises SpecDeployError when they cannot be served."""
        self._build = build
        section = build.config.tensorrt_llm
        if section is None:
            raise SpecDeployError(f"{build.deployment}: tensorrt_llm: the lane trtllm_llmapi needs this section")
        names = [Instance.SPECULATIVE]
        if section.plain_instance is PlainInstance.BESIDE:
            names.append(Instance.PLAIN)
        folder = engines_root / build.build_id
        self._sources = {name: folder / ARGUMENT_FILES[name] for name in names}
        self._arguments = {name: read_arguments(folder, name, build.deployment) for name in names}
        # On this thread, as TensorRT-LLM's own Triton model does it: an import may set signal handlers.
        self._library = load_library(section.version)
        self._vocab_size = read_vocab_size(engines_root / build.target_folder)
        self._instances: dict[Instance, LoadedInstance] = {}
        self._active: set[_Active] = set()
        self._num_submitted = 0  # each of the two is written by one thread only
        self._num_ended = 0
        self._is_ready = threading.Event()
        self._load_error: BaseException | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="specdeploy-llmapi", daemon=True)
        self._thread.start()
        self._is_ready.wait()
        if self._load_error is not None:
            self._thread.join()
            raise self._load_error

    @property
    def plan(self) -> DeploymentPlan:
        """K by segment and load."""
        return self._build.plan

    @property
    def num_in_flight(self) -> int:
        """Requests accepted and not finished, those not yet looked at included."""
        return self._num_submitted - self._num_ended

    @property
    def num_slots_in_use(self) -> int:
        """Rows of key/value memory owned by requests: of each instance at most `serving.max_rows`, the others wait."""
        max_rows = self._build.config.serving.max_rows
        return sum(min(instance.num_active, max_rows) for instance in self._instances.values())

    def submit(self, request: ServingRequest, sink: Sink) -> None:
        """Hand a request to the loop. Called from one thread at a time."""
        self._num_submitted += 1
        request_id = str(self._num_submitted)
        active = _Active(request_id, request, sink, OutputReader(wants_log_probs=request.wants_log_probs))
        try:
            self._loop.call_soon_threadsafe(self._start, active)
        except RuntimeError:  # the loop is closed
            self._fail(active, SHUTTING_DOWN)

    def close(self) -> None:
        """Fail what is in flight, shut the LLM objects down and stop the thread."""
        try:
            self._loop.call_soon_threadsafe(self._stopping.set)
        except RuntimeError:
            _log.debug("closed already")
        self._thread.join()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        try:
            await self._load()
        except BaseException as error:
            self._load_error = error
            await self._shut_down()
            return
        finally:
            self._is_ready.set()
        poller = asyncio.create_task(self._cancel_gone())
        await self._stopping.wait()
        poller.cancel()
        await self._end_all()
        await self._shut_down()

    async def _load(self) -> None:
        """One after the other: the second sees the memory that the first left. Off the loop, as TensorRT-LLM's own
        Triton model does it (model.py@044a90d2)."""
        for name, arguments in self._arguments.items():
            load = functools.partial(load_instance, self._library, name, arguments, self._sources[name])
            self._instances[name] = await asyncio.to_thread(load)

    async def _shut_down(self) -> None:
        for name, instance in self._instances.items():
            try:
                await asyncio.to_thread(instance.llm.shutdown)
            except Exception:
                _log.exception("shutting the %s instance down failed", name)

    async def _end_all(self) -> None:
        tasks = [active.task for active in self._active if active.task is not None]
        for active in list(self._active):
            self._abort(active)
            self._fail(active, SHUTTING_DOWN)
            if active.task is not None:
                active.task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, active: _Active) -> None:
        serving = self._build.config.serving
        if self._stopping.is_set():
            self._fail(active, SHUTTING_DOWN)
        elif len(self._active) >= serving.max_rows + serving.max_queue:
            # The torch lane says the same, and the same number of requests brings it about.
            error = RequestError(
                "request", f"all rows are busy and {serving.max_queue} requests wait already", "Retry later"
            )
            self._fail(active, str(error))
        else:
            self._active.add(active)
            active.task = asyncio.create_task(self._serve(active))

    async def _serve(self, active: _Active) -> None:
        try:
            await self._generate(active)
        except asyncio.CancelledError:
            # Whoever cancels here has answered before: a task that has not begun yet could not.
            self._fail(active, "TensorRT-LLM cancelled the request")
        except SpecDeployError as error:
            self._abort(active)
            self._fail(active, str(error))
        except Exception as error:
            _log.exception("request %s failed", active.request_id)
            self._abort(active)
            self._fail(active, f"TensorRT-LLM failed the request ({describe(error)}). See the log of the server")

    async def _generate(self, active: _Active) -> None:
        """Submit, deliver what every message brings, end. Raises whatever TensorRT-LLM raises."""
        request = active.request
        serving = self._build.config.serving
        limit = output_limit(request, max_seq_len=serving.max_seq_len, vocab_size=self._vocab_size)
        active.placement = self._place(request)
        arguments = sampling_arguments(request, max_output=limit, vocab_size=self._vocab_size)
        params = self._library.sampling_params(arguments)
        instance = self._instances[active.placement.instance]
        active.result = instance.llm.generate_async(list(request.prompt_ids), sampling_params=params, streaming=True)
        active.instance = instance
        instance.num_active += 1
        rule = EndRule(request.stop_ids, request.sampling.min_tokens, limit)
        async for message in active.result:
            active.message = message
            if active.sink.is_cancelled():
                self._abort(active)
                self._finish(active, "cancelled")
                return
            if self._take(active, rule):
                return
        raise SpecDeployError("TensorRT-LLM ended the request without saying why")

    def _place(self, request: ServingRequest) -> Placement:
        plain = self._instances.get(Instance.PLAIN)
        return place_request(
            request,
            self.plan,
            self.num_in_flight,
            speculative=self._instances[Instance.SPECULATIVE].setup,
            plain=None if plain is None else plain.setup,
        )

    def _take(self, active: _Active, rule: EndRule) -> bool:
        """Deliver what the last message brought; True when the request is over."""
        message = active.message
        token_ids, log_probs = active.reader.take(message.outputs[0])
        num_kept, reason = rule.apply(token_ids, active.num_delivered, active.sink.accept)
        reason_there = finish_reason_of(message) if reason is None else None
        if reason is not None and not message.finished:
            self._abort(active)
        active.num_delivered += num_kept
        kept_log_probs = None if log_probs is None else log_probs[:num_kept]
        ended = reason or reason_there
        if ended is not None:
            self._finish(active, ended, token_ids[:num_kept], kept_log_probs)
        elif num_kept:
            active.sink.deliver(RowUpdate(active.request_id, token_ids, kept_log_probs, None, RequestStats()))
        return ended is not None

    def _finish(
        self,
        active: _Active,
        reason: FinishReason,
        token_ids: tuple[int, ...] = (),
        log_probs: tuple[float, ...] | None = None,
    ) -> None:
        """Send the last message. One client that cannot be answered must not take the others with it."""
        if active.is_over:
            return
        stats = self._stats(active)
        self._leave(active)
        try:
            active.sink.deliver(RowUpdate(active.request_id, token_ids, log_probs, reason, stats))
        except Exception as error:
            _log.exception("answering request %s failed", active.request_id)
            _tell_failure(active.sink, f"the answer could not be sent: {error!r}")

    def _stats(self, active: _Active) -> RequestStats:
        placement, speculation = active.placement, self._build.config.speculation
        if placement is None or active.result is None:
            return RequestStats()
        return read_stats(
            active.message,
            active.reader,
            is_drafting=placement.off_reason is None,
            is_plain=placement.instance is Instance.PLAIN,
            max_draft_len=speculation.max_draft_len,
            may_skip_drafting=speculation.method is Method.NGRAM,
            num_cut=active.reader.num_tokens - active.num_delivered,
            off_reason=placement.off_reason,
        )

    def _fail(self, active: _Active, message: str) -> None:
        if not active.is_over:
            self._leave(active)
            _tell_failure(active.sink, message)

    def _leave(self, active: _Active) -> None:
        """First: what the sink then reports of the load is true."""
        active.is_over = True
        self._active.discard(active)
        self._num_ended += 1
        if active.instance is not None:
            active.instance.num_active -= 1

    def _abort(self, active: _Active) -> None:
        """Tell TensorRT-LLM that nobody waits for this request."""
        if active.result is None or active.result.finished:
            return
        try:
            active.result.abort()
        except Exception:  # it is dead: the request ends on our side all the same
            _log.exception("aborting request %s failed", active.request_id)

    async def _cancel_gone(self) -> None:
        """End requests whose clients went away, also those to which nothing comes."""
        while True:
            await asyncio.sleep(CANCEL_POLL_S)
            for active in list(self._active):
                try:
                    is_gone = active.sink.is_cancelled()
                except Exception:
                    _log.exception("asking for the client of request %s failed", active.request_id)
                    continue
                if is_gone and active.task is not None:
                    self._abort(active)
                    self._finish(active, "cancelled")
                    active.task.cancel()


def _tell_failure(sink: Sink, message: str) -> None:
    """This thread lives on even when that cannot be sent."""
    try:
        sink.fail(message)
    except Exception:
        _log.exception("reporting a failed request failed")
