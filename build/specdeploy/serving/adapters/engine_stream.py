"""A request on one decoupled Triton model that drafts inside the engine, or does not draft: one streaming call."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from specdeploy.contract import EngineModel
from specdeploy.runtime.request import RowUpdate
from specdeploy.serving.adapters import engine_tensors as tensors
from specdeploy.serving.adapters.draft_rounds import Emission
from specdeploy.serving.adapters.engine_rounds import send_stop
from specdeploy.serving.adapters.request_pool import Job
from specdeploy.serving.bls import ModelCaller, ModelCallError

UNCOUNTED = "unavailable:the backend reported no counts of draft tokens"
CUT = "derived:counts of the backend, cut where the output ends"


@dataclass(frozen=True, slots=True)
class StreamRoute:
    """Where a request goes. `off_reason` is the adapter's own, None where the plan's stands."""

    model: EngineModel
    is_on: bool
    off_reason: str | None
    lookahead: tuple[int, int, int] | None = None


@dataclass(slots=True)
class _Call:
    """A streaming call under way: tokens it brought, what to deliver at its end, counts of its last response.

    The counts of a response are those of the call so far. After `is_stopped` the engine may still work for nobody:
    nothing is counted then.
    """

    asked: int
    num_tokens: int = 0
    has_answered: bool = False
    is_stopped: bool = False
    held: RowUpdate | None = None
    num_draft_tokens: int | None = None
    num_accepted_tokens: int | None = None


class EngineStream:
    """Runs requests, several threads at once. `deliver` sends what a message of the engine brought.

    The engine always streams, so that stop strings and clients that go end the call early; whether the client sees the
    messages is the sink's business. The last one waits for the end of the call: it carries the counts.
    """

    def __init__(self, caller: ModelCaller, *, vocab_size: int, deliver: Callable[[Job, RowUpdate], None]) -> None:
        self._caller = caller
        self._vocab_size = vocab_size
        self._deliver = deliver

    def run(self, job: Job, emission: Emission, route: StreamRoute) -> None:
        """Until the output ends; several calls only where `Emission.limit` says so. Raises ModelCallError."""
        stats = emission.stats
        stats.was_allowed_to_draft, stats.off_reason = route.is_on, route.off_reason
        while emission.finish_reason is None:
            call = _Call(emission.limit)
            if not job.is_cancelled():
                self._stream(job, emission, route, call)
            if emission.finish_reason is None and job.is_cancelled():
                if route.is_on:
                    _count(emission, call)
                self._deliver(job, RowUpdate(job.request_id, (), None, "cancelled", stats))
                return
            last = call.held or _end(route, emission, call)
            if route.is_on:
                _count(emission, call)
            if last is not None:
                self._deliver(job, last)

    def _stream(self, job: Job, emission: Emission, route: StreamRoute, call: _Call) -> None:
        engine_call = tensors.EngineCall(
            emission.text_ids, len(emission.token_ids), call.asked, is_streaming=True, lookahead=route.lookahead
        )
        inputs = tensors.target_tensors(emission.request, engine_call, vocab_size=self._vocab_size)
        outputs = tensors.target_outputs(emission.request)
        job.interrupt = lambda: send_stop(self._caller, route.model, job.request_id, decoupled=True)
        try:
            for response in self._caller.call(route.model, inputs, outputs, request_id=job.request_id, decoupled=True):
                if call.is_stopped or tensors.is_blank(response):
                    continue
                output = _read(route.model, response, wants_log_probs=emission.request.wants_log_probs)
                call.has_answered = True
                _note_counts(call, output)
                self._take(job, emission, call, output)
        except ModelCallError:
            if not (call.is_stopped or job.is_cancelled()):
                raise  # a call that was ended may end with an error
        except BaseException:
            with contextlib.suppress(ModelCallError):
                job.interrupt_call()  # the engine must not go on for nobody
            raise
        finally:
            job.interrupt = None

    def _take(self, job: Job, emission: Emission, call: _Call, output: tensors.EngineOutput) -> None:
        if call.held is not None:
            return  # the output is complete; what follows carries counts, or nothing at all
        update = emission.add_streamed(output)
        call.num_tokens += len(output.token_ids)
        if update.finish_reason is not None:
            call.held = update
        elif update.token_ids:
            self._deliver(job, update)
        if update.finish_reason == "stop" or job.is_cancelled():
            call.is_stopped = True
            job.interrupt_call()


def _read(model: EngineModel, response: Mapping[str, tensors.Array], *, wants_log_probs: bool) -> tensors.EngineOutput:
    try:
        return tensors.read_output(response, wants_log_probs=wants_log_probs)
    except ValueError as error:
        raise ModelCallError(model, str(error)) from None


def _note_counts(call: _Call, output: tensors.EngineOutput) -> None:
    if output.num_draft_tokens is not None and output.num_accepted_tokens is not None:
        call.num_draft_tokens, call.num_accepted_tokens = output.num_draft_tokens, output.num_accepted_tokens


def _end(route: StreamRoute, emission: Emission, call: _Call) -> RowUpdate | None:
    """What a call that ended by itself leaves to deliver. An answer that never came is no end of the output."""
    if not call.has_answered:
        raise ModelCallError(route.model, "it ended without an answer")
    try:
        return emission.end_stream(call.num_tokens, call.asked, is_drafting=route.is_on)
    except ValueError as error:
        raise ModelCallError(route.model, str(error)) from None


def _count(emission: Emission, call: _Call) -> None:
    """The backend's own counts of a call. Every step but the one that reads the prompt verifies a draft.

    A step emits one token more than it accepts: what exceeds that was accepted behind the end of the output.
    """
    stats = emission.stats
    if call.num_draft_tokens is None or call.num_accepted_tokens is None:
        stats.source = UNCOUNTED
        return
    num_steps = stats.num_steps or 0
    most = max(0, len(emission.token_ids) - num_steps)
    stats.num_draft_tokens += call.num_draft_tokens
    stats.num_accepted_tokens += call.num_accepted_tokens
    if stats.num_accepted_tokens > most:
        stats.num_accepted_tokens, stats.source = most, CUT
    stats.num_drafts = max(0, num_steps - 1)
