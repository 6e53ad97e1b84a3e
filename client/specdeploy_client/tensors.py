"""Requests and responses of the Triton model `llm` as KServe v2 protobuf messages; no sockets here.

Every tensor has shape [1, n]: `llm` has a batch dimension of one. Wire format: little-endian numbers; a string is its
length as uint32 followed by its UTF-8 bytes (KServe v2 binary data).
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Any

from tritonclient.grpc import service_pb2

from specdeploy_client.transport import Completion, GenerationRequest, Message

MODEL_NAME = "llm"
_NUMBER_FORMATS = {"INT32": "i", "INT64": "q", "UINT64": "Q", "FP32": "f", "BOOL": "?"}


def encode_request(request: GenerationRequest) -> Any:
    """The `ModelInferRequest` for `request`; optional tensors that are None are left out."""
    message = service_pb2.ModelInferRequest(model_name=MODEL_NAME, id=request.request_id)
    # Asks for the final flag even when the model ends its stream with an empty response.
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    for name, datatype, values in _input_tensors(request):
        message.inputs.add(name=name, datatype=datatype, shape=[1, len(values)])
        message.raw_input_contents.append(_encode(datatype, values))
    return message


def decode_response(response: Any, recv_ns: int) -> Message | None:
    """The message in a `ModelInferResponse`, or None when it carries no tensors (an empty final response)."""
    if not response.outputs:
        return None
    tensors = {
        output.name: _decode(output.datatype, raw)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }
    return Message(
        recv_ns=recv_ns,
        text="".join(tensors.get("text_output", ())),
        output_ids=tuple(tensors.get("output_ids", ())),
        completion=_completion(tensors),
    )


def is_final(response: Any) -> bool:
    """Whether the server flagged this response as the last one of its request."""
    return "triton_final_response" in response.parameters and bool(
        response.parameters["triton_final_response"].bool_param
    )


def _input_tensors(request: GenerationRequest) -> Iterable[tuple[str, str, Sequence[Any]]]:
    candidates: tuple[tuple[str, str, Any], ...] = (
        ("text_input", "BYTES", request.prompt),
        ("max_tokens", "INT32", request.max_tokens),
        ("stream", "BOOL", request.stream),
        ("num_draft_tokens", "INT32", request.num_draft_tokens),
        ("segment", "BYTES", request.segment),
        ("temperature", "FP32", request.temperature),
        ("top_k", "INT32", request.top_k),
        ("top_p", "FP32", request.top_p),
        ("seed", "UINT64", request.seed),
        ("min_tokens", "INT32", request.min_tokens),
        ("ignore_eos", "BOOL", request.ignore_eos),
        ("return_perf_metrics", "BOOL", True),  # engines of other lanes report draft counts only when asked
    )
    for name, datatype, value in candidates:
        if value is not None:
            yield name, datatype, (value,)
    if request.stop_words:
        yield "stop_words", "BYTES", request.stop_words


def _completion(tensors: dict[str, list[Any]]) -> Completion | None:
    """The final counts; only the last message of a request has a `finish_reason`."""
    if "finish_reason" not in tensors:
        return None

    def first(name: str) -> Any:
        values = tensors.get(name)
        return values[0] if values else None

    return Completion(
        finish_reason=first("finish_reason"),
        input_token_count=first("input_token_count"),
        output_token_count=first("output_token_count"),
        num_steps=first("num_steps"),
        total_draft_tokens=first("total_draft_tokens"),
        total_accepted_draft_tokens=first("total_accepted_draft_tokens"),
        speculation=first("speculation"),
        speculation_stats=first("speculation_stats"),
    )


def _encode(datatype: str, values: Sequence[Any]) -> bytes:
    if datatype == "BYTES":
        encoded = (value.encode("utf-8") for value in values)
        return b"".join(struct.pack("<I", len(item)) + item for item in encoded)
    return struct.pack(f"<{len(values)}{_NUMBER_FORMATS[datatype]}", *values)


def _decode(datatype: str, raw: bytes) -> list[Any]:
    """Flat values of one tensor; a datatype this client does not know decodes to nothing."""
    if datatype == "BYTES":
        return _decode_strings(raw)
    if datatype not in _NUMBER_FORMATS:
        return []
    code = _NUMBER_FORMATS[datatype]
    return list(struct.unpack(f"<{len(raw) // struct.calcsize('<' + code)}{code}", raw))


def _decode_strings(raw: bytes) -> list[str]:
    strings: list[str] = []
    offset = 0
    while offset < len(raw):
        (length,) = struct.unpack_from("<I", raw, offset)
        offset += 4
        # Bytes that are no UTF-8 become U+FFFD, which the integrity check looks for.
        strings.append(raw[offset : offset + length].decode("utf-8", errors="replace"))
        offset += length
    return strings
