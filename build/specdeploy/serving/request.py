"""Input tensors of the public model `llm` -> one checked request.

Free of Triton: tensors arrive as a name -> numpy array mapping without the batch dimension. A parameter this lane
cannot honour is refused by name, never ignored.
"""

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from specdeploy.errors import RequestError
from specdeploy.runtime.request import SamplingParams

Tensors = Mapping[str, np.ndarray[Any, Any]]

GUIDE_TYPES = ("json", "json_schema", "regex", "ebnf_grammar")

# Inputs that exist because stock clients may send them; presence alone is a request this lane cannot serve.
_REFUSED_WHEN_PRESENT = {
    "decoder_text_input": "encoder-decoder models are not supported",
    "image_input": "multimodal input is not supported",
    "image_bytes_input": "multimodal input is not supported",
    "image_url_input": "multimodal input is not supported",
    "image_sizes_input": "multimodal input is not supported",
    "video_bytes_input": "multimodal input is not supported",
    "prompt_embedding_table": "prompt tuning is not supported",
    "prompt_vocab_size": "prompt tuning is not supported",
    "prompt_table_extra_id": "prompt tuning is not supported",
    "lora_task_id": "LoRA adapters are not supported",
    "lora_weights": "LoRA adapters are not supported",
    "lora_config": "LoRA adapters are not supported",
}
_REFUSED_WHEN_TRUE = {
    "return_context_logits": "logits are not returned",
    "return_generation_logits": "logits are not returned",
    "use_draft_logits": "drafts are verified token by token against the target, draft logits have no part in it",
}
_NEUTRAL_VALUE = {
    "beam_width": (1, "beam search is not supported with speculation"),
    "num_return_sequences": (1, "one sequence per request is supported; send several requests"),
    "length_penalty": (1.0, "it only acts on beams, and beam search is not supported"),
}


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """What the deployment allows: context length, ids that can be emitted (padding rows of the vocabulary left out)
    and the longest token in UTF-8 bytes. `serves_guides`: whether its engine enforces guided decoding; if not,
    `no_guides_reason` says why."""

    max_seq_len: int
    num_token_ids: int
    longest_token_bytes: int
    serves_guides: bool = False
    no_guides_reason: str = "nothing in this deployment enforces it (no guided decoding backend)"


@dataclass(frozen=True, slots=True)
class Guide:
    """A constraint on the output: `kind` is one of GUIDE_TYPES, `text` the schema, expression or grammar."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class ServingRequest:
    """One request, checked and tokenised."""

    prompt: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams
    stop_ids: frozenset[int]
    stop_strings: tuple[str, ...]
    num_draft_tokens: int | None
    segment: str
    stream: bool
    exclude_input: bool
    wants_log_probs: bool
    wants_perf_metrics: bool
    wants_input_count: bool
    wants_output_count: bool
    guide: Guide | None = None
    is_seed_given: bool = False


def parse_request(
    tensors: Tensors, tokenizer: Tokenizer, limits: ServingLimits, eos_ids: frozenset[int]
) -> ServingRequest:
    """Check every field and tokenise the prompt. Raises RequestError naming the first field at fault."""
    _refuse_unsupported(tensors)
    max_tokens = _integer(tensors, "max_tokens", minimum=1)
    if max_tokens is None:
        raise RequestError("max_tokens", "is missing", "Send the number of tokens to generate, at least 1")
    prompt = _prompt(tensors, limits)
    stop_strings, stop_tokens = _stop_words(tensors, tokenizer, limits)
    min_tokens = _integer(tensors, "min_tokens", minimum=0) or 0
    if min_tokens > max_tokens:
        raise RequestError("min_tokens", f"{min_tokens} exceeds max_tokens {max_tokens}")
    return ServingRequest(
        prompt=prompt,
        prompt_ids=encode_prompt(prompt, tokenizer),
        max_tokens=max_tokens,
        sampling=_sampling(tensors, tokenizer, limits, min_tokens),
        stop_ids=_stop_ids(tensors, limits, eos_ids) | stop_tokens,
        stop_strings=stop_strings,
        num_draft_tokens=_integer(tensors, "num_draft_tokens", minimum=0),
        segment=_string(tensors, "segment") or "",
        stream=_boolean(tensors, "stream", default=False),
        exclude_input=_boolean(tensors, "exclude_input_in_output", default=True),
        wants_log_probs=_boolean(tensors, "return_log_probs", default=False),
        wants_perf_metrics=_boolean(tensors, "return_perf_metrics", default=False),
        wants_input_count=_boolean(tensors, "return_num_input_tokens", default=False),
        wants_output_count=_boolean(tensors, "return_num_output_tokens", default=False),
        guide=_guide(tensors, limits),
        is_seed_given=_scalar(tensors, "seed") is not None,
    )


def _refuse_unsupported(tensors: Tensors) -> None:
    for name, reason in _REFUSED_WHEN_PRESENT.items():
        if name in tensors and any(value not in (b"", "") for value in np.ravel(tensors[name])[:1]):
            raise RequestError(name, reason, "Leave it out")
    for name, reason in _REFUSED_WHEN_TRUE.items():
        if _boolean(tensors, name, default=False):
            raise RequestError(name, reason, "Send false or leave it out")
    for name, (neutral, reason) in _NEUTRAL_VALUE.items():
        value = _scalar(tensors, name)
        if value is not None and value != neutral:
            raise RequestError(name, f"{value} - {reason}", f"Send {neutral} or leave it out")


def _guide(tensors: Tensors, limits: ServingLimits) -> Guide | None:
    guide_type, guide = _string(tensors, "guided_decoding_guide_type"), _string(tensors, "guided_decoding_guide")
    if not guide_type and not guide:
        return None
    if guide_type not in GUIDE_TYPES:
        raise RequestError(
            "guided_decoding_guide_type", f"unknown type {guide_type!r}", f"Known types: {', '.join(GUIDE_TYPES)}"
        )
    if limits.serves_guides:
        if not guide and guide_type != "json":
            raise RequestError("guided_decoding_guide", f"is missing for type {guide_type}", "Send its text")
        return Guide(guide_type, guide or "")
    raise RequestError(
        "guided_decoding_guide_type",
        limits.no_guides_reason,
        "Leave out guided_decoding_guide_type and guided_decoding_guide; an unenforced constraint is never accepted",
    )


def _prompt(tensors: Tensors, limits: ServingLimits) -> str:
    raw = _bytes_of(tensors, "text_input")
    if raw is None:
        raise RequestError("text_input", "is missing")
    if not raw:
        raise RequestError("text_input", "is empty", "Send a prompt with at least one character")
    # A token holds at most this many bytes, so a longer prompt cannot fit: refused before it is tokenised.
    least_tokens = math.ceil(len(raw) / limits.longest_token_bytes)
    if least_tokens >= limits.max_seq_len:
        raise RequestError(
            "text_input",
            f"{len(raw)} bytes are at least {least_tokens} tokens, the context holds {limits.max_seq_len}",
            "Shorten the prompt or raise serving.max_seq_len",
        )
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise RequestError("text_input", f"not valid UTF-8 at byte {error.start}", "Send UTF-8 text") from None


def encode_prompt(prompt: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Token ids with the tokenizer's own special tokens; a begin token that the text already spells is not doubled."""
    ids = tokenizer.encode(prompt).ids
    plain = tokenizer.encode(prompt, add_special_tokens=False).ids if len(ids) > 1 and ids[0] == ids[1] else None
    return tuple(plain if plain is not None and plain[:1] == ids[:1] else ids)


def _sampling(tensors: Tensors, tokenizer: Tokenizer, limits: ServingLimits, min_tokens: int) -> SamplingParams:
    """Without temperature, top_k and top_p the choice is greedy, as in TensorRT-LLM; top_p 0 means not set there."""
    top_k = _integer(tensors, "top_k", minimum=0) or 0
    top_p = _number(tensors, "top_p", minimum=0.0, maximum=1.0) or 1.0
    min_p = _number(tensors, "min_p", minimum=0.0, maximum=1.0) or 0.0
    temperature = _number(tensors, "temperature", minimum=0.0)
    if temperature is None:
        temperature = 1.0 if top_k > 1 or top_p < 1.0 or min_p > 0.0 else 0.0
    seed = _scalar(tensors, "seed")
    repetition_penalty = _number(tensors, "repetition_penalty", minimum=0.0)
    if repetition_penalty == 0.0:
        raise RequestError("repetition_penalty", "must be above 0", "1 means no penalty")
    return SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=1.0 if repetition_penalty is None else repetition_penalty,
        presence_penalty=_number(tensors, "presence_penalty") or 0.0,
        frequency_penalty=_number(tensors, "frequency_penalty") or 0.0,
        logit_bias=_logit_bias(tensors, tokenizer, limits),
        bad_words=_bad_words(tensors, tokenizer, limits),
        min_tokens=min_tokens,
        seed=secrets.randbits(64) if seed is None else int(seed),
        has_own_seed=seed is not None,
    )


def _logit_bias(tensors: Tensors, tokenizer: Tokenizer, limits: ServingLimits) -> dict[int, float]:
    """As TensorRT-LLM's preprocessing: a word's weight is added to each of its tokens."""
    words = _strings(tensors, "embedding_bias_words")
    weights = [float(weight) for weight in np.ravel(tensors.get("embedding_bias_weights", np.empty(0)))]
    if len(words) != len(weights):
        raise RequestError(
            "embedding_bias_weights",
            f"{len(weights)} weights for {len(words)} embedding_bias_words",
            "Send one per word",
        )
    bias: dict[int, float] = {}
    for word, weight in zip(words, weights, strict=True):
        if not math.isfinite(weight):
            raise RequestError("embedding_bias_weights", f"the weight of {word!r} is {weight}", "Send a finite number")
        for token in tokenizer.encode(word, add_special_tokens=False).ids:
            if token < limits.num_token_ids:
                bias[token] = bias.get(token, 0.0) + weight
    return bias


def _stop_words(
    tensors: Tensors, tokenizer: Tokenizer, limits: ServingLimits
) -> tuple[tuple[str, ...], frozenset[int]]:
    """Words to look for in the text, and ids to look for in its place: special tokens are no part of the text. One
    without a row in the checkpoint is never emitted, and there is nothing to look for."""
    words = [word for word in _strings(tensors, "stop_words") if word]
    special = {word: _special_id(tokenizer, word) for word in words}
    return (
        tuple(word for word in words if special[word] is None),
        frozenset(token for token in special.values() if token is not None and token < limits.num_token_ids),
    )


def _special_id(tokenizer: Tokenizer, word: str) -> int | None:
    token = tokenizer.token_to_id(word)
    if token is None:
        return None
    added = tokenizer.get_added_tokens_decoder().get(token)
    return token if added is not None and added.special else None


def _bad_words(tensors: Tensors, tokenizer: Tokenizer, limits: ServingLimits) -> tuple[tuple[int, ...], ...]:
    """Each word as the tokenizer spells it at the start of a text and after a space, if it can be emitted at all."""
    spellings: dict[tuple[int, ...], None] = {}
    for word in _strings(tensors, "bad_words"):
        for text in (word, f" {word}") if word else ():
            spellings[tuple(tokenizer.encode(text, add_special_tokens=False).ids)] = None
    return tuple(spelling for spelling in spellings if spelling and max(spelling) < limits.num_token_ids)


def _stop_ids(tensors: Tensors, limits: ServingLimits, eos_ids: frozenset[int]) -> frozenset[int]:
    if _boolean(tensors, "ignore_eos", default=False):
        return frozenset()
    end_id = _integer(tensors, "end_id", minimum=-1)
    if end_id is None:
        return frozenset(token for token in eos_ids if token < limits.num_token_ids)
    if end_id >= limits.num_token_ids:
        raise RequestError("end_id", f"{end_id} is outside the vocabulary of {limits.num_token_ids}")
    return frozenset() if end_id < 0 else frozenset({end_id})


def _scalar(tensors: Tensors, name: str) -> Any:
    """The single value of a tensor, or None when it was not sent."""
    if name not in tensors:
        return None
    values = np.ravel(tensors[name])
    if len(values) != 1:
        raise RequestError(name, f"{len(values)} values where one belongs", "Send shape [1, 1]")
    return values[0].item() if isinstance(values[0], np.generic) else values[0]


def _number(tensors: Tensors, name: str, *, minimum: float | None = None, maximum: float | None = None) -> float | None:
    value = _scalar(tensors, name)
    if value is None:
        return None
    if not math.isfinite(value):
        raise RequestError(name, f"{value} is not a finite number")
    if minimum is not None and value < minimum:
        raise RequestError(name, f"{value:g} is below {minimum:g}", f"Send at least {minimum:g}")
    if maximum is not None and value > maximum:
        raise RequestError(name, f"{value:g} is above {maximum:g}", f"Send at most {maximum:g}")
    return float(value)


def _integer(tensors: Tensors, name: str, *, minimum: int) -> int | None:
    value = _number(tensors, name, minimum=minimum)
    return None if value is None else int(value)


def _boolean(tensors: Tensors, name: str, *, default: bool) -> bool:
    value = _scalar(tensors, name)
    return default if value is None else bool(value)


def _bytes_of(tensors: Tensors, name: str) -> bytes | None:
    value = _scalar(tensors, name)
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode()


def _string(tensors: Tensors, name: str) -> str | None:
    raw = _bytes_of(tensors, name)
    return None if raw is None else _decode(name, raw)


def _strings(tensors: Tensors, name: str) -> Sequence[str]:
    values = np.ravel(tensors[name]) if name in tensors else ()
    return [_decode(name, value if isinstance(value, bytes) else str(value).encode()) for value in values]


def _decode(name: str, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise RequestError(name, f"not valid UTF-8 at byte {error.start}", "Send UTF-8 text") from None
