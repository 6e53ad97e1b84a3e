"""How servers with an OpenAI-compatible API differ in what goes beyond it, and request bodies in each dialect.

Read in: vllm-project/vllm `vllm/entrypoints/openai/completion/protocol.py` (002032e), sgl-project/sglang
`python/sglang/srt/entrypoints/openai/protocol.py` (004c82e) and NVIDIA/TensorRT-LLM
`tensorrt_llm/serve/openai_protocol.py` (0076e93), which refuses fields it does not know. vLLM's `guided_*` fields went
with its 0.12.
"""

import json
from dataclasses import dataclass
from typing import Any

from specdeploy.errors import RequestError
from specdeploy_client.transport import GenerationRequest


@dataclass(frozen=True, slots=True)
class OpenAiDialect:
    """`token_ids`: knows `return_token_ids`. `running_usage`: counts tokens in every chunk (`continuous_usage_stats`),
    from which the tokens of each follow. `length_field`: the name of the limit on output tokens."""

    name: str
    token_ids: bool = False
    running_usage: bool = False
    length_field: str = "max_tokens"


PLAIN = OpenAiDialect("openai")
VLLM = OpenAiDialect("vllm", token_ids=True)
SGLANG = OpenAiDialect("sglang", token_ids=True)
TRTLLM = OpenAiDialect("trtllm-serve", running_usage=True)
# `owned_by` of a model's entry on the page /v1/models.
DIALECT_OF_OWNER = {"vllm": VLLM, "sglang": SGLANG, "tensorrt_llm": TRTLLM}
_GUIDE_TYPES = ("json", "json_schema", "regex", "ebnf_grammar")


def request_body(request: GenerationRequest, model: str, dialect: OpenAiDialect, *, is_chat: bool) -> dict[str, Any]:
    """The JSON of `request`. Its traffic label stays with the client. Raises `RequestError` for what cannot be said."""
    if request.num_draft_tokens is not None:
        raise RequestError(
            "num_draft_tokens",
            "an OpenAI-compatible request cannot say how many tokens to draft",
            "Compare two servers or models instead: --off-url, --off-model",
        )
    body: dict[str, Any] = {"model": model}
    body |= {"messages": _messages(request)} if is_chat else {"prompt": request.prompt}
    body[dialect.length_field] = request.max_tokens
    body["stream"] = True
    body["stream_options"] = {"include_usage": True}
    if dialect.running_usage and not dialect.token_ids:
        body["stream_options"]["continuous_usage_stats"] = True
    if dialect.token_ids:
        body["return_token_ids"] = True
    optional = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "seed": request.seed,
        "min_tokens": request.min_tokens,
        "ignore_eos": request.ignore_eos,
        "stop": list(request.stop_words) or None,
    }
    body |= {name: value for name, value in optional.items() if value is not None}
    return body | _guide(request, dialect)


def _messages(request: GenerationRequest) -> list[dict[str, str]]:
    """User and assistant in turn, the user first."""
    turns = request.turns or (request.prompt,)
    return [{"role": ("user", "assistant")[number % 2], "content": turn} for number, turn in enumerate(turns)]


def _guide(request: GenerationRequest, dialect: OpenAiDialect) -> dict[str, Any]:
    """The fields that constrain the answer."""
    kind, guide = request.guide_type, request.guide or ""
    if kind is None:
        return {}
    if kind not in _GUIDE_TYPES:
        raise RequestError("guide_type", f"{kind!r} is not known", f"Use one of {', '.join(_GUIDE_TYPES)}")
    if kind == "json":
        return {"response_format": {"type": "json_object"}}
    if kind == "json_schema":
        return {"response_format": _schema_format(guide, dialect)}
    is_regex = kind == "regex"
    if dialect.name == VLLM.name:
        return {"structured_outputs": {"regex" if is_regex else "grammar": guide}}
    if dialect.name == SGLANG.name:
        return {"regex" if is_regex else "ebnf": guide}
    if dialect.name == TRTLLM.name:
        name = "regex" if is_regex else "ebnf"
        return {"response_format": {"type": name, name: guide}}
    raise RequestError(
        "guide_type",
        f"OpenAI's own API has no field for {kind}",
        "Use json or json_schema, or vLLM, SGLang, trtllm-serve",
    )


def _schema_format(guide: str, dialect: OpenAiDialect) -> dict[str, Any]:
    try:
        schema = json.loads(guide)
    except ValueError as error:
        raise RequestError("guide", f"the JSON schema is no JSON ({error})", "Correct it") from error
    if dialect.name == TRTLLM.name:
        return {"type": "json", "schema": schema}
    return {"type": "json_schema", "json_schema": {"name": "guide", "strict": True, "schema": schema}}
