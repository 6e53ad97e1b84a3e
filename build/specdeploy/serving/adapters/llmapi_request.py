"""ServingRequest -> keyword arguments of TensorRT-LLM's SamplingParams and GuidedDecodingParams. Pure.

Field names: NVIDIA/TensorRT-LLM tensorrt_llm/sampling_params.py@000a01de (1.0 era); `prompt_ignore_length` is younger
(published API reference of main). Whether an instance of a given version honours a field is decided before, in
`llmapi_placement`; a field that the installed class lacks is refused by `refuse_unknown_fields`.
"""

import dataclasses
import json
from typing import Any

import numpy as np

from specdeploy.errors import RequestError
from specdeploy.runtime.request import SamplingParams
from specdeploy.serving.request import Guide, ServingRequest

# Our input for each keyword that a class of another version may lack.
_INPUT_OF = {
    "min_p": "min_p",
    "seed": "seed",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "prompt_ignore_length": "presence_penalty, frequency_penalty",
    "embedding_bias": "embedding_bias_words",
    "bad_token_ids": "bad_words",
    "min_tokens": "min_tokens",
    "logprobs": "return_log_probs",
    "guided_decoding": "guided_decoding_guide_type",
}


def output_limit(request: ServingRequest, *, max_seq_len: int, vocab_size: int) -> int:
    """Most output tokens of a request. Raises RequestError when its prompt leaves no room or has no row."""
    prompt = request.prompt_ids
    if not prompt:
        raise RequestError("text_input", "no tokens", "Send a prompt with at least one token")
    if len(prompt) >= max_seq_len:
        raise RequestError(
            "text_input",
            f"{len(prompt)} tokens leave no room for output in a context of {max_seq_len}",
            "Shorten the prompt or raise serving.max_seq_len",
        )
    if max(prompt) >= vocab_size:
        raise RequestError(
            "text_input",
            f"token id {max(prompt)} has no row in a vocabulary of {vocab_size}",
            "The tokenizer knows more tokens than the checkpoint: leave such tokens out of the prompt",
        )
    return min(request.max_tokens, max_seq_len - len(prompt))


def sampling_arguments(request: ServingRequest, *, max_output: int, vocab_size: int) -> dict[str, Any]:
    """Keyword arguments of SamplingParams. `embedding_bias` is float32 [vocab_size] in numpy: the caller makes it a
    torch tensor, and `guided_decoding` the arguments of a GuidedDecodingParams. Raises RequestError by field.

    Text is ours: stop strings are looked for here and nothing is detokenised there. The stop token stays in the output,
    as in the torch lane (it is cut off there by default).
    """
    arguments: dict[str, Any] = {
        "max_tokens": max_output,
        "detokenize": False,
        "include_stop_str_in_output": True,
        "return_perf_metrics": True,
    }
    arguments |= _choice(request.sampling)
    arguments |= _logit_changes(request, vocab_size)
    arguments |= _stops(request)
    if request.wants_log_probs:
        arguments["logprobs"] = 1  # the best token's, and the chosen one's where that is another
    if request.guide is not None:
        arguments["guided_decoding"] = guide_arguments(request.guide)
    return arguments


def guide_arguments(guide: Guide) -> dict[str, Any]:
    """Keyword arguments of GuidedDecodingParams, exactly one. Raises RequestError for a schema that is not JSON."""
    if guide.kind == "regex":
        return {"regex": guide.text}
    if guide.kind == "ebnf_grammar":
        return {"grammar": guide.text}
    if guide.kind == "json" and not guide.text.strip():
        return {"json_object": True}
    if guide.kind not in ("json", "json_schema"):
        raise RequestError("guided_decoding_guide_type", f"{guide.kind!r} is not served by this lane")
    try:
        schema = json.loads(guide.text)
    except ValueError as error:
        raise RequestError("guided_decoding_guide", f"is not JSON ({error})", "Send a JSON schema") from None
    if not isinstance(schema, dict):
        raise RequestError("guided_decoding_guide", "is no JSON object", "Send a JSON schema")
    return {"json": guide.text}


def refuse_unknown_fields(arguments: dict[str, Any], params_class: Any) -> None:
    """Raise RequestError for the first argument that the installed SamplingParams has no field for."""
    if not dataclasses.is_dataclass(params_class):
        return
    known = {field.name for field in dataclasses.fields(params_class) if field.init}
    for name in arguments:
        if name not in known:
            field = _INPUT_OF.get(name, name)
            raise RequestError(field, f"SamplingParams of this TensorRT-LLM has no {name}", "Leave it out")


def _choice(sampling: SamplingParams) -> dict[str, Any]:
    """top_k 1 is greedy in every version, whatever a generation_config says. `temperature` is always written with a
    random choice: one-model drafting takes an absent one for greedy (PR 19390)."""
    if sampling.is_greedy:
        return {"top_k": 1}
    arguments: dict[str, Any] = {"temperature": sampling.temperature, "seed": sampling.seed}
    if sampling.top_k > 0:
        arguments["top_k"] = sampling.top_k
    if sampling.top_p < 1.0:
        arguments["top_p"] = sampling.top_p
    if sampling.min_p > 0.0:
        arguments["min_p"] = sampling.min_p
    return arguments


def _logit_changes(request: ServingRequest, vocab_size: int) -> dict[str, Any]:
    sampling = request.sampling
    arguments: dict[str, Any] = {}
    if sampling.repetition_penalty != 1.0:
        arguments["repetition_penalty"] = sampling.repetition_penalty
    if sampling.presence_penalty:
        arguments["presence_penalty"] = sampling.presence_penalty
    if sampling.frequency_penalty:
        arguments["frequency_penalty"] = sampling.frequency_penalty
    if sampling.presence_penalty or sampling.frequency_penalty:
        # These two count output only here; there the prompt as well, but for its first tokens of this number.
        arguments["prompt_ignore_length"] = len(request.prompt_ids)
    if sampling.bad_words:
        arguments["bad_token_ids"] = _single_tokens(sampling.bad_words)
    if sampling.logit_bias:
        bias = np.zeros(vocab_size, dtype=np.float32)
        for token, weight in sampling.logit_bias.items():
            bias[token] = weight
        arguments["embedding_bias"] = bias
    return arguments


def _single_tokens(words: tuple[tuple[int, ...], ...]) -> list[int]:
    """`bad_token_ids` holds single tokens; longer words go in as text only, which need not be tokenised as ours was."""
    if longest := max((word for word in words if len(word) > 1), key=len, default=None):
        raise RequestError(
            "bad_words",
            f"a word of {len(longest)} tokens; this lane bans single tokens only",
            "Send words that are one token, with and without a space before them",
        )
    return [word[0] for word in words]


def _stops(request: ServingRequest) -> dict[str, Any]:
    if not request.stop_ids:
        return {"ignore_eos": True, "end_id": -1}
    end_id, *others = sorted(request.stop_ids)
    arguments: dict[str, Any] = {"end_id": end_id}
    if others:
        arguments["stop_token_ids"] = others
    if request.sampling.min_tokens > 0:
        if others:
            # Only end_id is held back until then (sampler.py, blob 440197692).
            raise RequestError(
                "min_tokens",
                f"{len(request.stop_ids)} stop tokens, of which TensorRT-LLM holds back only one",
                "Send end_id with the one to stop at, or leave min_tokens out",
            )
        arguments["min_tokens"] = request.sampling.min_tokens
    return arguments
