"""A request -> input tensors of the C++ model `tensorrt_llm`, and its output tensors back.

Names, types and shapes: `specdeploy.trtllm.facts.triton_model("tensorrt_llm")`. The model has a batch dimension: a
scalar is sent as [1, 1], a vector as [1, n], a word list as [1, 2, n]. Upstream files below are NVIDIA/TensorRT-LLM's
at the commit named.

What the backend does and its tensor table does not say:

- The end id is not part of the output: the length does not grow over it
  (cpp/tensorrt_llm/kernels/speculativeDecoding/externalDraftTokensKernels.cu@2931b93f and updateRequests in
  batch_manager/trtGptModelInflightBatching.cpp@00825c4e). Stop words are. `draft_rounds` puts the end id back.
- Without draft tokens an engine built for K still keeps K positions free: prompt + asked + K beyond its longest
  sequence lowers what it generates (batch_manager/llmRequest.cpp@89fd9b74).
- `len_penalty` and `early_stopping` are never sent: the constructor they go to was given another order once
  (triton_backend/inflight_batcher_llm/src/utils.cc@c8c6df08), and they act on beams only.
- Repetition, presence and frequency penalties all count prompt and output
  (cpp/tensorrt_llm/kernels/penaltyKernels.cu@249d93d5). Lane torch counts presence and frequency over the output only:
  the same request may get other tokens there. Output that comes in several calls is counted the same as in one.
- The bad-words kernel never bans token 0 (cpp/tensorrt_llm/kernels/banBadWords.cu@23bc5b7c): single tokens are banned
  by bias instead, and a longer bad word that ends in token 0 is refused.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specdeploy.errors import RequestError
from specdeploy.serving.request import ServingRequest

Array = np.ndarray[Any, Any]

OUTPUT_IDS = "output_ids"
SEQUENCE_LENGTH = "sequence_length"
DRAFT_COUNT = "total_draft_tokens"
ACCEPTED_COUNT = "total_accepted_draft_tokens"
LOG_PROBS = "output_log_probs"

MAX_TOP_K = 1024  # TOP_K_MAX of cpp/tensorrt_llm/kernels/samplingTopKKernels.h@e41b05cd; a larger one is clamped there
# Added to a logit to ban its token: far below any real one, and still a number where logits are float16 (65504).
BAN_BIAS = -30000.0


@dataclass(frozen=True, slots=True)
class StopRule:
    """How one call is told where to stop. `min_tokens` belongs to `end_id`, the only id the backend can hold back;
    where that is not enough, `banned` ids get BAN_BIAS and the call may generate `max_new_tokens` at most."""

    end_id: int | None
    listed: tuple[int, ...] = ()
    banned: tuple[int, ...] = ()
    min_tokens: int = 0
    max_new_tokens: int | None = None


def stop_rule(request: ServingRequest, num_emitted: int) -> StopRule:
    """The rule after `num_emitted` output tokens.

    Log probabilities are wanted for every token, and an end id that is left out has none: then all stop ids are
    listed as stop words, which are part of the output.
    """
    ids = sorted(request.stop_ids)
    held_back = max(0, request.sampling.min_tokens - num_emitted)
    end_id = ids[0] if ids and not request.wants_log_probs else None
    listed = tuple(ids if end_id is None else ids[1:])
    if held_back and listed:
        return StopRule(None, banned=tuple(ids), max_new_tokens=held_back)
    return StopRule(end_id, listed, min_tokens=held_back if end_id is not None else 0)


@dataclass(frozen=True, slots=True)
class EngineCall:
    """One call: the text so far (prompt, then `num_emitted` output tokens), what to verify and how far to go."""

    token_ids: Sequence[int]
    num_emitted: int
    max_new_tokens: int
    draft_ids: Sequence[int] = ()
    is_streaming: bool = False
    lookahead: tuple[int, int, int] | None = None  # window, n-gram and verification set size


def target_tensors(request: ServingRequest, call: EngineCall, *, vocab_size: int) -> dict[str, Array]:
    """Inputs of a target. `vocab_size` is the engine's, without padding: `embedding_bias` must have exactly that length
    (batch_manager/createNewDecoderRequests.cpp@b35ac1b6)."""
    rule = stop_rule(request, call.num_emitted)
    tensors = _text_tensors(call) | _sampling_tensors(request, call.num_emitted)
    tensors |= _penalty_tensors(request) | _ban_tensors(request, rule.banned, vocab_size)
    tensors["return_perf_metrics"] = _bool(True)  # else there are no counts of draft tokens
    if rule.end_id is not None:
        tensors["end_id"] = _int32(rule.end_id)
    if rule.listed:
        tensors["stop_words_list"] = word_list([(token,) for token in rule.listed])
    if rule.min_tokens:
        tensors["min_tokens"] = _int32(rule.min_tokens)
    if call.draft_ids:
        tensors["draft_input_ids"] = _int32(*call.draft_ids)
    if call.is_streaming:
        tensors["streaming"] = _bool(True)
    if request.wants_log_probs:
        tensors["return_log_probs"] = _bool(True)
    if request.guide is not None:
        tensors["guided_decoding_guide_type"] = _text(request.guide.kind)
        if request.guide.text:
            tensors["guided_decoding_guide"] = _text(request.guide.text)
    if call.lookahead is not None:
        names = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
        tensors |= {name: _int32(size) for name, size in zip(names, call.lookahead, strict=True)}
    return tensors


def draft_tensors(request: ServingRequest, call: EngineCall, *, vocab_size: int | None) -> dict[str, Array]:
    """Inputs of the draft: greedy, with the target's penalties and bans, and without any end: a drafted end id is a
    token like others, which the target accepts or not. `vocab_size` None = not known to be the target's: no bias and no
    words then, whose ids may not be there, which costs acceptance and nothing else."""
    tensors = _text_tensors(call) | {"runtime_top_k": _int32(1)} | _penalty_tensors(request)
    held_back = request.stop_ids if call.num_emitted < request.sampling.min_tokens else ()
    if vocab_size is None:
        return tensors
    return tensors | _ban_tensors(request, held_back, vocab_size)


def probe_tensors(token_ids: Sequence[int]) -> dict[str, Array]:
    """Inputs that ask for one token after `token_ids`: a longer answer repeats the prompt."""
    return _text_tensors(EngineCall(token_ids, 0, 1)) | {"runtime_top_k": _int32(1)}


def stop_tensors() -> dict[str, Array]:
    """Inputs that cancel the running request with the same request id; the text is there because it must be."""
    return {
        "input_ids": _int32(0),
        "input_lengths": _int32(0),
        "request_output_len": _int32(0),
        "stop": _bool(True),
    }


def target_outputs(request: ServingRequest) -> tuple[str, ...]:
    """Outputs to ask a target for. The backend answers with an error where the first two are not among them
    (triton_backend/inflight_batcher_llm/src/model_instance_state.cc@c8c6df08)."""
    counts = (OUTPUT_IDS, SEQUENCE_LENGTH, DRAFT_COUNT, ACCEPTED_COUNT)
    return (*counts, LOG_PROBS) if request.wants_log_probs else counts


DRAFT_OUTPUTS = (OUTPUT_IDS, SEQUENCE_LENGTH)


def check_representable(request: ServingRequest) -> None:
    """Raises RequestError naming the first parameter that the C++ backend has no tensor for, or reads another way."""
    sampling = request.sampling
    if sampling.min_p > 0.0:
        raise RequestError("min_p", "the TensorRT-LLM C++ backend has no input for it", "Send 0, or use top_p")
    if not sampling.is_greedy and sampling.top_k > MAX_TOP_K:
        raise RequestError("top_k", f"{sampling.top_k} exceeds the {MAX_TOP_K} of TensorRT-LLM", "Send 0 for no limit")
    if any(len(word) > 1 and word[-1] == 0 for word in sampling.bad_words):
        raise RequestError("bad_words", "a word ends in token 0, which TensorRT-LLM never bans", "Leave it out")
    if request.guide is not None and stop_rule(request, 0).max_new_tokens is not None:
        reason = f"TensorRT-LLM holds back one end id and there are {len(request.stop_ids)}"
        raise RequestError("min_tokens", f"{reason}, which does not go with guided decoding", "Leave it out")


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """What one response says. Counts are None where the backend did not report them."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...] | None
    num_draft_tokens: int | None
    num_accepted_tokens: int | None


def is_blank(tensors: Mapping[str, Array]) -> bool:
    """Whether a response says nothing of tokens, as the one that only ends a decoupled call."""
    return OUTPUT_IDS not in tensors and SEQUENCE_LENGTH not in tensors


def read_output(tensors: Mapping[str, Array], *, num_prompt: int = 0, wants_log_probs: bool = False) -> EngineOutput:
    """The first beam of a response, without its first `num_prompt` tokens (of a backend that repeats the prompt).

    Log probabilities may be those of the whole output so far: the last ones belong to these tokens.
    Raises ValueError when the tensors of tokens are not there or say nothing, or when there are fewer log probabilities
    than tokens.
    """
    if missing := [name for name in (OUTPUT_IDS, SEQUENCE_LENGTH) if name not in tensors]:
        raise ValueError(f"it answered without {' and '.join(missing)}")
    lengths = np.ravel(tensors[SEQUENCE_LENGTH])
    if not len(lengths) or lengths[0] < num_prompt:
        raise ValueError(f"{SEQUENCE_LENGTH} is {lengths.tolist()} for a prompt of {num_prompt} repeated tokens")
    length = int(lengths[0])
    beams = np.asarray(tensors[OUTPUT_IDS])
    ids = tuple(int(token) for token in beams.reshape(-1, beams.shape[-1])[0, num_prompt:length]) if beams.size else ()
    log_probs: tuple[float, ...] | None = None
    if wants_log_probs:
        values = np.ravel(tensors.get(LOG_PROBS, np.empty(0)))
        if len(values) < len(ids):
            raise ValueError(f"{LOG_PROBS} has {len(values)} values for {len(ids)} tokens")
        log_probs = tuple(float(value) for value in values[len(values) - len(ids) :])
    return EngineOutput(ids, log_probs, _count(tensors, DRAFT_COUNT), _count(tensors, ACCEPTED_COUNT))


def word_list(words: Sequence[Sequence[int]]) -> Array:
    """Token sequences as int32 [1, 2, n]: all ids end to end, then where each word ends; n is the number of ids.

    Ids are padded with 0, ends with -1, both to the length of the other (`_to_word_list_format` in
    triton_backend/all_models/inflight_batcher_llm/preprocessing/1/model.py@beb339f5; read back by `convertWordList` in
    triton_backend/inflight_batcher_llm/src/utils.cc@c8c6df08).
    """
    ids = [token for word in words for token in word]
    ends = np.cumsum([len(word) for word in words]).tolist()
    return np.array([[ids, ends + [-1] * (len(ids) - len(ends))]], dtype=np.int32)


def seed_at(seed: int, num_emitted: int) -> int:
    """The seed of the call that starts after `num_emitted` output tokens: calls must not repeat each other's random
    numbers. The first one has the request's own."""
    if num_emitted == 0:
        return seed % 2**64
    text = f"{seed} {num_emitted}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _text_tensors(call: EngineCall) -> dict[str, Array]:
    return {
        "input_ids": _int32(*call.token_ids),
        "input_lengths": _int32(len(call.token_ids)),
        "request_output_len": _int32(call.max_new_tokens),
        "exclude_input_in_output": _bool(True),
    }


def _sampling_tensors(request: ServingRequest, num_emitted: int) -> dict[str, Array]:
    """Neither top_k nor top_p is greedy there, so a choice over everything must say top_p 1."""
    sampling = request.sampling
    if sampling.is_greedy:
        return {"runtime_top_k": _int32(1)}
    return {
        "temperature": _float32(sampling.temperature),
        "runtime_top_k": _int32(sampling.top_k),
        "runtime_top_p": _float32(sampling.top_p),
        "seed": np.array([[seed_at(sampling.seed, num_emitted)]], dtype=np.uint64),
    }


def _penalty_tensors(request: ServingRequest) -> dict[str, Array]:
    sampling = request.sampling
    neutral = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    values = {name: float(getattr(sampling, name)) for name in neutral}
    return {name: _float32(value) for name, value in values.items() if value != neutral[name]}


def _ban_tensors(request: ServingRequest, banned: Iterable[int], vocab_size: int) -> dict[str, Array]:
    """Logit bias, single-token bad words and `banned` ids as one dense bias; longer bad words as a list."""
    sampling = request.sampling
    single = {word[0] for word in sampling.bad_words if len(word) == 1} | set(banned)
    tensors = _long_bad_words(request)
    if single or sampling.logit_bias:
        bias = np.zeros((1, vocab_size), dtype=np.float32)
        for token, weight in sampling.logit_bias.items():
            bias[0, token] = weight
        bias[0, [token for token in single if token < vocab_size]] = BAN_BIAS
        tensors["embedding_bias"] = bias
    return tensors


def _long_bad_words(request: ServingRequest) -> dict[str, Array]:
    words = [word for word in request.sampling.bad_words if len(word) > 1]
    return {"bad_words_list": word_list(words)} if words else {}


def _count(tensors: Mapping[str, Array], name: str) -> int | None:
    values = np.ravel(tensors.get(name, np.empty(0)))
    return int(values[0]) if len(values) else None


def _int32(*values: int) -> Array:
    return np.array([values], dtype=np.int32)


def _float32(value: float) -> Array:
    return np.array([[value]], dtype=np.float32)


def _bool(value: bool) -> Array:
    return np.array([[value]], dtype=np.bool_)


def _text(value: str) -> Array:
    return np.array([[value.encode()]], dtype=object)
