"""A draft_model request on the Triton models `target` and `draft`: rounds of calls until its output ends.

The draft may fail: the request goes on without it. The target may not: the request then ends with one error.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from specdeploy.contract import EngineModel, EngineRecord
from specdeploy.runtime.request import RowUpdate
from specdeploy.serving.adapters import engine_tensors as tensors
from specdeploy.serving.adapters.draft_rounds import (
    DRAFT_FAILED,
    DRAFT_VOCABULARY,
    PLAIN_CHUNK,
    Emission,
    Round,
    needs_one_call,
    plan_round,
)
from specdeploy.serving.adapters.request_pool import Job
from specdeploy.serving.bls import ModelCaller, ModelCallError
from specdeploy.serving.request import ServingRequest

LOG_PERIOD_S = 60.0

_log = logging.getLogger(__name__)


class EngineRounds:
    """Runs requests, several threads at once. `deliver` sends what a round brought."""

    def __init__(
        self,
        caller: ModelCaller,
        *,
        target: EngineRecord,
        draft: EngineRecord,
        vocab_size: int,
        draft_vocab_size: int | None,
        deliver: Callable[[Job, RowUpdate], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`vocab_size` is the target's; `draft_vocab_size` None where it is not known. What a model does with ids that
        are no rows of its vocabulary is not known either, so it gets none."""
        self._caller = caller
        self._target, self._draft = target, draft
        self._vocab_size = vocab_size
        self._draft_vocab_size = draft_vocab_size
        self._draft_bias_size = draft_vocab_size if draft_vocab_size == vocab_size else None
        self._deliver = deliver
        self._echo = _PromptEcho(caller)
        self._draft_log = _RareLog(clock)

    def run(self, job: Job, emission: Emission, draft_len: Callable[[], int], off_reason: str | None) -> None:
        """Until the output ends. `draft_len` gives K at the load of the moment; `off_reason` forbids drafting.

        Raises ModelCallError when the target fails.
        """
        stats = emission.stats
        stats.off_reason = off_reason
        while emission.finish_reason is None:
            if job.is_cancelled():
                self._deliver(job, RowUpdate(job.request_id, (), None, "cancelled", stats))
                return
            planned = 0 if stats.off_reason else draft_len()
            draft = self._propose(emission, self._plan(emission, planned).draft_len)
            stats.was_allowed_to_draft |= planned > 0 and stats.off_reason is None
            self._verify(job, emission, draft)

    def _plan(self, emission: Emission, planned: int) -> Round:
        """K is also bound by the draft's own context: it reads the whole text."""
        num_text = len(emission.request.prompt_ids) + len(emission.token_ids)
        most = min(self._target.max_draft_len, self._draft.max_seq_len - num_text)
        chunk = None if needs_one_call(emission.request) else PLAIN_CHUNK
        return plan_round(planned, emission.limit, max_draft_len=most, plain_chunk=chunk)

    def _propose(self, emission: Emission, draft_len: int) -> tuple[int, ...]:
        if draft_len == 0:
            return ()
        if self._draft_vocab_size is not None and max(emission.text_ids) >= self._draft_vocab_size:
            emission.stats.off_reason = DRAFT_VOCABULARY  # and the text only grows
            return ()
        call = tensors.EngineCall(emission.text_ids, len(emission.token_ids), draft_len)
        inputs = tensors.draft_tensors(emission.request, call, vocab_size=self._draft_bias_size)
        try:
            # Somebody else finds out if the draft repeats its prompt: this round does without, should that never end.
            if self._echo.repeats_prompt(EngineModel.DRAFT, emission.request.prompt_ids, waits=False) is None:
                return ()
            output = self._call(EngineModel.DRAFT, inputs, tensors.DRAFT_OUTPUTS, call, emission.request)
        except ModelCallError as error:
            self._draft_log.warn("requests go on without drafting: %s", error)
            emission.stats.off_reason = DRAFT_FAILED
            return ()
        proposed = output.token_ids[:draft_len]
        num_known = next((i for i, token in enumerate(proposed) if not 0 <= token < self._vocab_size), len(proposed))
        return proposed[:num_known]

    def _verify(self, job: Job, emission: Emission, draft: Sequence[int]) -> None:
        """One call of the target, with the draft or plain. Delivers nothing when the client went during a long one."""
        request = emission.request
        asked = len(draft) + 1 if draft else self._plan(emission, 0).max_new_tokens
        call = tensors.EngineCall(emission.text_ids, len(emission.token_ids), asked, draft_ids=draft)
        inputs = tensors.target_tensors(request, call, vocab_size=self._vocab_size)
        outputs = tensors.target_outputs(request)
        is_long = not draft and asked > PLAIN_CHUNK
        if is_long:
            job.interrupt = lambda: send_stop(self._caller, EngineModel.TARGET, job.request_id, decoupled=False)
        try:
            output = self._call(EngineModel.TARGET, inputs, outputs, call, request, job.request_id)
        except ModelCallError:
            if is_long and job.is_cancelled():
                return
            raise
        finally:
            job.interrupt = None
        if is_long and job.is_cancelled():
            return
        try:
            update = emission.add_round(output, draft, asked)
        except ValueError as error:
            raise ModelCallError(EngineModel.TARGET, str(error)) from None
        self._deliver(job, update)

    def _call(
        self,
        model: EngineModel,
        inputs: dict[str, tensors.Array],
        outputs: Sequence[str],
        call: tensors.EngineCall,
        request: ServingRequest,
        request_id: str = "",
    ) -> tensors.EngineOutput:
        num_prompt = len(call.token_ids) if self._echo.repeats_prompt(model, request.prompt_ids) else 0
        return _call_once(self._caller, model, inputs, outputs, request_id=request_id, num_prompt=num_prompt)


def send_stop(caller: ModelCaller, model: EngineModel, request_id: str, *, decoupled: bool) -> None:
    """Cancel the running call with this request id; one that is over is not an error. Raises ModelCallError."""
    for _ in caller.call(model, tensors.stop_tensors(), (), request_id=request_id, decoupled=decoupled):
        pass


def _call_once(
    caller: ModelCaller,
    model: EngineModel,
    inputs: dict[str, tensors.Array],
    outputs: Sequence[str],
    *,
    request_id: str = "",
    num_prompt: int = 0,
) -> tensors.EngineOutput:
    """The one answer of a model that is not decoupled. Raises ModelCallError, also for an answer without tokens."""
    response = next(iter(caller.call(model, inputs, outputs, request_id=request_id)), {})
    try:
        return tensors.read_output(response, num_prompt=num_prompt)
    except ValueError as error:
        raise ModelCallError(model, str(error)) from None


class _PromptEcho:
    """Which models repeat the prompt although they are told not to: the stock samples disagree with the code that reads
    their output, so it is found out. One token is asked for after two; three can only hold the prompt. Once per model,
    and again while that fails."""

    def __init__(self, caller: ModelCaller) -> None:
        self._caller = caller
        self._locks = {model: threading.Lock() for model in (EngineModel.TARGET, EngineModel.DRAFT)}
        self._repeats: dict[EngineModel, bool] = {}

    def repeats_prompt(self, model: EngineModel, prompt_ids: Sequence[int], *, waits: bool = True) -> bool | None:
        """Asks the model the first time. None = another request is asking just now, and this one does not wait for it.

        Raises ModelCallError when the model does not answer as it must.
        """
        if model in self._repeats:
            return self._repeats[model]
        if not self._locks[model].acquire(blocking=waits):
            return None
        try:
            if model not in self._repeats:
                self._repeats[model] = self._ask(model, [*prompt_ids, *prompt_ids][:2])
            return self._repeats[model]
        finally:
            self._locks[model].release()

    def _ask(self, model: EngineModel, prompt_ids: Sequence[int]) -> bool:
        inputs = tensors.probe_tensors(prompt_ids)
        num_tokens = len(_call_once(self._caller, model, inputs, tensors.DRAFT_OUTPUTS).token_ids)
        if num_tokens not in (1, 1 + len(prompt_ids)):
            raise ModelCallError(model, f"asked for one token after {len(prompt_ids)} it answered with {num_tokens}")
        if num_tokens > 1:
            _log.warning("model %s repeats the prompt in its output; it is cut off", model)
        return num_tokens > 1


class _RareLog:
    """Warns once per LOG_PERIOD_S: a draft that is down fails with every request."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._next = clock()

    def warn(self, message: str, *details: object) -> None:
        with self._lock:
            now = self._clock()
            if now < self._next:
                return
            self._next = now + LOG_PERIOD_S
        _log.warning(message, *details)
