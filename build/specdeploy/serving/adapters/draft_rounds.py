"""One request on engines that are called, not stepped: how far the next call goes, and what an answer adds.

Pure: no Triton, no threads, no clock. A *round* is one call of the target, with the draft's tokens or without.

    plan_round     K and the length of the next call
    off_reason_of  requests that are never drafted, and why
    check_decoder  requests that no engine of a method can serve as asked
    Emission       output tokens so far: where they end, and the counts over the whole request

Upstream files below are NVIDIA/TensorRT-LLM's at the commit named.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specdeploy.contract import Method
from specdeploy.errors import RequestError
from specdeploy.runtime.request import FinishReason, RequestStats, RowUpdate
from specdeploy.serving.adapters.engine_tensors import EngineOutput, stop_rule
from specdeploy.serving.request import ServingRequest

# Tokens of a call without drafts, on a target that cannot stream. A call is the smallest thing that load changes,
# cancellation and streaming can act on: 16 tokens are well under a second on the GPUs these engines are for. Every call
# reads the text again; with KV block reuse that is what the last, incomplete block holds (under 32 tokens, one context
# step), so 16 tokens take about 17 steps. Shorter calls would cost more of them, longer ones answer later.
PLAIN_CHUNK = 16

CONSTRAINED = "constrained"
LOG_PROBS = "log_probs"
LOGIT_BIAS = "logit_bias"
PENALTIES = "penalties"
SAMPLING = "sampling"
DRAFT_FAILED = "draft failed"
DRAFT_VOCABULARY = "draft vocabulary"
DERIVED = "derived:common prefix of draft and output"

_LEAVE_OUT = "Leave it out"
_BLIND_TO_BIAS = (Method.EAGLE, Method.REDRAFTER)


def off_reason_of(request: ServingRequest, method: Method) -> str | None:
    """Why a request must not be drafted whatever the plan says; None when it may.

    Guides: a grammar starts anew with every call. Log probabilities: accepted tokens have none.
    Presence and frequency penalties: every call counts prompt and output anew, which is exact from call to call; that
    it is inside a drafted round has not been seen upstream.
    Random choice, draft_model: the C++ decoder accepts a draft token that equals the target's draw, and otherwise
    draws *again* from the same distribution (acceptDraftTokensKernel in
    cpp/tensorrt_llm/kernels/speculativeDecoding/externalDraftTokensKernels.cu@2931b93f, multinomialSampling in
    cpp/tensorrt_llm/layers/externalDraftTokensLayer.cpp@1d263f15), so a drafted token of probability p comes out with
    p(2 - p): not lossless. Random choice, other methods: their decoders are greedy. Medusa is documented for greedy
    acceptance only; EAGLE is served with greedySampling true
    (triton_backend/inflight_batcher_llm/src/model_instance_state.cc@0c8de69a); ReDrafter engines take the likeliest
    token unless they are built with --redrafter_no_greedy_search (redrafter_greedy_search in
    tensorrt_llm/models/redrafter/model.py@06255cb7), which these are not; lookahead: see `check_decoder`.
    Repetition penalty, bias, bad words and min_tokens are exact in a draft_model round, where the decoder goes token by
    token (cpp/tensorrt_llm/runtime/gptDecoderBatched.cpp@0349d5e1); in a tree they are not. EAGLE and ReDrafter engines
    choose tokens themselves, no layer that adds a bias comes before
    (class DecodingMode in cpp/include/tensorrt_llm/executor/types.h@a98a9061).
    """
    sampling = request.sampling
    if request.guide is not None:
        return CONSTRAINED
    if request.wants_log_probs:
        return LOG_PROBS
    if sampling.presence_penalty or sampling.frequency_penalty:
        return PENALTIES
    if not sampling.is_greedy:
        return SAMPLING
    if method is Method.DRAFT_MODEL:
        return None
    if sampling.repetition_penalty != 1.0:
        return PENALTIES
    if sampling.logit_bias and method in _BLIND_TO_BIAS:
        return LOGIT_BIAS
    return "bad_words" if sampling.bad_words else "min_tokens" if sampling.min_tokens else None


def check_decoder(request: ServingRequest, method: Method) -> None:
    """Raises RequestError for what the decoder of a method passes over in silence, where all engines have that decoder.

    draft_model: engines for external drafts decode with one layer, drafted or not (getDecodingMode in
    cpp/tensorrt_llm/batch_manager/trtGptModelInflightBatching.cpp@00825c4e), and it asks its kernels for no log
    probabilities (cpp/tensorrt_llm/layers/externalDraftTokensLayer.cpp@1d263f15): zeros come out.
    lookahead: sizes (1, 1, 0) change nothing about the decoder. It takes the likeliest token (maxTopK 1) and computes
    no log probabilities (cpp/tensorrt_llm/layers/lookaheadDecodingLayer.cpp@05cc2c11); of what comes before it, only
    bias and minimum length are there, no penalties and no banned words
    (class DecodingMode in cpp/include/tensorrt_llm/executor/types.h@a98a9061).
    The other methods have a plain engine for such requests.
    """
    if method in (Method.DRAFT_MODEL, Method.LOOKAHEAD) and request.wants_log_probs:
        reason = f"TensorRT-LLM computes no log probabilities on engines of method {method}"
        raise RequestError("return_log_probs", reason, "Send false or leave it out")
    if method is not Method.LOOKAHEAD:
        return
    sampling = request.sampling
    if request.guide is not None:
        reason = "guided decoding on a lookahead engine is not known to hold"
        raise RequestError("guided_decoding_guide_type", reason, _LEAVE_OUT)
    if not sampling.is_greedy:
        reason = "a lookahead engine takes the likeliest token, whatever is asked for"
        raise RequestError("temperature, top_k, top_p", reason, "Send temperature 0 or top_k 1, or leave them out")
    neutral = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    for name, value in neutral.items():
        if getattr(sampling, name) != value:
            raise RequestError(name, "a lookahead engine applies no penalties", f"Send {value:g} or leave it out")
    if any(len(word) > 1 for word in sampling.bad_words):
        raise RequestError("bad_words", "a lookahead engine bans single tokens only, and a word has more", _LEAVE_OUT)


def needs_one_call(request: ServingRequest) -> bool:
    """Whether the whole output must come from one call: a grammar acts on the output of that call."""
    return request.guide is not None


@dataclass(frozen=True, slots=True)
class Round:
    """The next call: `draft_len` tokens are drafted (0 = none), the target generates `max_new_tokens` at most."""

    draft_len: int
    max_new_tokens: int


def plan_round(planned: int, limit: int, *, max_draft_len: int, plain_chunk: int | None = PLAIN_CHUNK) -> Round:
    """`planned` is the router's K at this load, `limit` (>= 1) the output tokens that may still come.

    A drafted round emits one token more than it accepts, so K stays below `limit`; `max_draft_len` is what the engines
    can take now. `plain_chunk` None = a call without drafts goes on to the end.
    """
    draft_len = max(0, min(planned, max_draft_len, limit - 1))
    if draft_len:
        return Round(draft_len, draft_len + 1)
    return Round(0, limit if plain_chunk is None else min(plain_chunk, limit))


def common_prefix_len(draft: Sequence[int], output: Sequence[int]) -> int:
    """How many draft tokens the target emitted before it differed."""
    return next(
        (index for index, (drafted, emitted) in enumerate(zip(draft, output, strict=False)) if drafted != emitted),
        min(len(draft), len(output)),
    )


@dataclass(slots=True)
class Emission:
    """The output of one request so far. `accept` is the sink's: told every token, True when a stop string is complete.

    `max_output` is the smaller of max_tokens and what the engine's longest sequence leaves.
    """

    request_id: str
    request: ServingRequest
    max_output: int
    accept: Callable[[int], bool]
    token_ids: list[int] = field(default_factory=list)  # output only
    stats: RequestStats = field(default_factory=RequestStats)
    finish_reason: FinishReason | None = None
    _is_measured: bool = True
    _has_bare_end: bool = True  # whether the last message of a stream brought no token

    @property
    def text_ids(self) -> list[int]:
        """Prompt and output."""
        return [*self.request.prompt_ids, *self.token_ids]

    @property
    def limit(self) -> int:
        """Output tokens the next call may generate: what is left, or less where stop ids are held back by bias."""
        left = self.max_output - len(self.token_ids)
        held_back = stop_rule(self.request, len(self.token_ids)).max_new_tokens
        return left if held_back is None else min(left, held_back)

    def add_round(self, output: EngineOutput, draft: Sequence[int], max_new_tokens: int) -> RowUpdate:
        """Take the answer of one whole call that was asked for `max_new_tokens`.

        Raises ValueError when it holds no token and nothing says why: the request could then never end.
        """
        ids = self._with_end_id(output.token_ids, is_short=self._is_short(output.token_ids, draft, max_new_tokens))
        if not ids:
            raise ValueError("it answered without a token, and without an end id that would explain it")
        emitted = self._emit(ids)
        self._count_round(output, draft, ids, emitted)
        return self._update(emitted, output.log_probs)

    def add_streamed(self, output: EngineOutput) -> RowUpdate:
        """Take one message of a streaming call: the tokens of one step of the engine."""
        emitted = self._emit(output.token_ids)
        self._has_bare_end = not output.token_ids
        self.stats.num_steps = (self.stats.num_steps or 0) + bool(emitted)
        return self._update(emitted, output.log_probs)

    def end_stream(self, num_from_call: int, max_new_tokens: int, *, is_drafting: bool = False) -> RowUpdate | None:
        """A streaming call ended by itself after `num_from_call` tokens. None = it went as far as it was asked to.

        The end id that is put back was chosen in a step of its own where the last message is empty; behind tokens it
        came out of their step, which only a step that verifies a draft can do.
        Raises ValueError when it ended early and no end id was sent that would explain it.
        """
        if self.finish_reason is not None or num_from_call >= max_new_tokens:
            return None
        ids = self._with_end_id((), is_short=True)
        if not ids:
            raise ValueError(f"it ended after {num_from_call} of {max_new_tokens} tokens, and not at an end id")
        emitted = self._emit(ids)
        self.stats.num_steps = (self.stats.num_steps or 0) + (self._has_bare_end or not is_drafting)
        return self._update(emitted, None)

    def _is_short(self, ids: Sequence[int], draft: Sequence[int], max_new_tokens: int) -> bool:
        """Whether the call ended where the end id was chosen. A drafted call ends after one verification
        (updateRequests in cpp/tensorrt_llm/batch_manager/trtGptModelInflightBatching.cpp@00825c4e), with a token of the
        target's own behind the accepted ones, unless that is the end id."""
        return common_prefix_len(draft, ids) == len(ids) if draft else len(ids) < max_new_tokens

    def _with_end_id(self, ids: tuple[int, ...], *, is_short: bool) -> tuple[int, ...]:
        end_id = stop_rule(self.request, len(self.token_ids)).end_id
        if not is_short or end_id is None or self.request.stop_ids.intersection(ids):
            return ids
        return (*ids, end_id)

    def _emit(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Append tokens one by one up to the first that ends the request; what is behind it is dropped."""
        emitted: list[int] = []
        for token in ids:
            if self.finish_reason is not None:
                break
            self.token_ids.append(token)
            emitted.append(token)
            self.finish_reason = self._reason_at(token)
        return tuple(emitted)

    def _reason_at(self, token: int) -> FinishReason | None:
        num_output = len(self.token_ids)
        ends_with_stop_string = self.accept(token)  # told every token, also before min_tokens: it follows the text
        if token in self.request.stop_ids:
            return "stop"
        if ends_with_stop_string and num_output >= self.request.sampling.min_tokens:
            return "stop"
        return "length" if num_output >= self.max_output else None

    def _count_round(
        self, output: EngineOutput, draft: Sequence[int], ids: Sequence[int], emitted: Sequence[int]
    ) -> None:
        """A drafted round is one forward of the target, a plain one a forward for each token. The backend's counts
        describe one call: they confirm ours or are not used."""
        num_accepted = common_prefix_len(draft, ids)
        if draft:
            # What the backend takes for accepted is the length of its output less one, also where the end id is missing
            # from that (updateNumTokensPerIteration in cpp/include/tensorrt_llm/batch_manager/llmRequest.h).
            agreeing = (
                {num_accepted} if len(ids) == len(output.token_ids) else {num_accepted, len(ids) - 1, len(ids) - 2}
            )
            self._is_measured &= output.num_draft_tokens == len(draft) and output.num_accepted_tokens in agreeing
            self.stats.source = "measured" if self._is_measured else DERIVED
        num_emitted_drafts = min(num_accepted, len(emitted))
        self.stats.count_step(len(draft), num_emitted_drafts)
        self.stats.num_steps = (self.stats.num_steps or 0) + max(0, len(emitted) - num_emitted_drafts - 1)

    def _update(self, emitted: tuple[int, ...], log_probs: tuple[float, ...] | None) -> RowUpdate:
        shown = None if log_probs is None else log_probs[: len(emitted)]
        return RowUpdate(self.request_id, emitted, shown, self.finish_reason, self.stats)
