"""Requests and responses of a Triton model as KServe v2 protobuf messages; no sockets here.

Wire format: little-endian numbers; a string is its length as uint32 followed by its UTF-8 bytes (KServe v2 binary
data). Types, ranks and what is required come from the model's own configuration (`ModelInterface`); before that is
read, from the tensors of this project's `llm`.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tritonclient.grpc import service_pb2

from specdeploy.errors import RequestError
from specdeploy_client.transport import Completion, GenerationRequest, Message, ProtocolError

MODEL_NAME = "llm"
FINAL_FLAG = "triton_final_response"
_NUMBER_FORMATS = {
    "BOOL": "?",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
_STRING_TYPE = "BYTES"
_FLOAT_TYPES = ("FP16", "FP32", "FP64")
# Ready for as many token ids as a message usually has, by the size of their tensor.
_UNPACK_INT32 = {4 * count: struct.Struct(f"<{count}i").unpack for count in range(64)}
# A stock model says nothing with these words, on messages that are not its last.
_NO_FINISH_REASON = ("", "None", "null")
_COUNT_OUTPUTS = frozenset(
    {
        "finish_reason",
        "input_token_count",
        "num_input_tokens",
        "output_token_count",
        "num_output_tokens",
        "num_steps",
        "total_draft_tokens",
        "total_accepted_draft_tokens",
        "speculation",
        "speculation_stats",
        "cached_token_count",
    }
)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output as the model's configuration declares it; `dims` without the batch dimension."""

    name: str
    datatype: str
    dims: tuple[int, ...] = (1,)
    is_optional: bool = True


@dataclass(frozen=True, slots=True)
class ModelInterface:
    """What a Triton model takes and gives. `has_batch`: every shape starts with a batch dimension."""

    model: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    has_batch: bool
    is_decoupled: bool

    def input_named(self, *names: str) -> TensorSpec | None:
        """The first of `names` that the model declares."""
        for name in names:
            for spec in self.inputs:
                if spec.name == name:
                    return spec
        return None

    def has_output(self, *names: str) -> bool:
        """Whether the model declares one of these outputs."""
        return any(spec.name in names for spec in self.outputs)


@dataclass(frozen=True, slots=True)
class _Field:
    """One value of a request: its tensor's names, ours first, then those of TensorRT-LLM's own models.

    `is_vital`: a model that does not declare it cannot be asked for what the request says.
    """

    names: tuple[str, ...]
    values: Sequence[Any] | None
    is_vital: bool = True


LLM_INTERFACE = ModelInterface(
    model=MODEL_NAME,
    inputs=(
        TensorSpec("text_input", "BYTES", is_optional=False),
        TensorSpec("max_tokens", "INT32", is_optional=False),
        TensorSpec("stream", "BOOL"),
        TensorSpec("num_draft_tokens", "INT32"),
        TensorSpec("segment", "BYTES"),
        TensorSpec("temperature", "FP32"),
        TensorSpec("top_k", "INT32"),
        TensorSpec("top_p", "FP32"),
        TensorSpec("seed", "UINT64"),
        TensorSpec("min_tokens", "INT32"),
        TensorSpec("ignore_eos", "BOOL"),
        TensorSpec("return_perf_metrics", "BOOL"),
        TensorSpec("stop_words", "BYTES", (-1,)),
        TensorSpec("guided_decoding_guide_type", "BYTES"),
        TensorSpec("guided_decoding_guide", "BYTES"),
    ),
    outputs=(
        TensorSpec("text_output", "BYTES", (-1,)),
        TensorSpec("output_ids", "INT32", (-1,)),
        TensorSpec("finish_reason", "BYTES"),
        TensorSpec("output_token_count", "INT32"),
    ),
    has_batch=True,
    is_decoupled=True,
)


def encode_request(request: GenerationRequest, interface: ModelInterface = LLM_INTERFACE) -> Any:
    """The `ModelInferRequest` for `request`; optional tensors that are None are left out.

    Raises `RequestError` for a value that the model has no input for, and for a required input without a value.
    """
    message = service_pb2.ModelInferRequest(model_name=interface.model, id=request.request_id)
    # Asks for the final flag even when the model ends its stream with an empty response.
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    batch = [1] if interface.has_batch else []
    for spec, values in input_values(request, interface):
        shape = [*batch, *[1] * (len(spec.dims) - 1), *([len(values)] if spec.dims else [])]
        message.inputs.add(name=spec.name, datatype=spec.datatype, shape=shape)
        message.raw_input_contents.append(_encode(spec, values))
    return message


def input_values(request: GenerationRequest, interface: ModelInterface) -> list[tuple[TensorSpec, Sequence[Any]]]:
    """The inputs to send and their values. Raises `RequestError` as `encode_request` does."""
    chosen: list[tuple[TensorSpec, Sequence[Any]]] = []
    for field in _fields(request):
        if field.values is None:
            continue
        spec = interface.input_named(*field.names)
        if spec is not None:
            chosen.append((spec, field.values))
        elif field.is_vital:
            raise RequestError(
                field.names[0],
                f"the model {interface.model} has no such input",
                "Leave it out, or measure a model that has it",
            )
    sent = {spec.name for spec, _ in chosen}
    missing = [spec.name for spec in interface.inputs if not spec.is_optional and spec.name not in sent]
    if missing:
        raise RequestError(
            ", ".join(missing),
            f"the model {interface.model} requires what this client does not send",
            "Is it the model that takes text? --model names another",
        )
    return chosen


def decode_response(response: Any, recv_ns: int) -> Message | None:
    """The message in a `ModelInferResponse`, or None when it carries no tensors (an empty final response).

    Raises `ProtocolError` for tensors that are not what an answer is made of.
    """
    if not response.outputs:
        return None
    text, output_ids, counts = decode_outputs(response)
    return Message(recv_ns, text, output_ids, None if counts is None else completion_of(counts))


def decode_outputs(response: Any) -> tuple[str, tuple[int, ...] | None, dict[str, Any] | None]:
    """Text, token ids and the other outputs by name; None for ids that were not sent and where there are no others.

    Raises `ProtocolError` as `decode_response` does.
    """
    outputs, contents = response.outputs, response.raw_output_contents
    if len(contents) != len(outputs):
        raise ProtocolError(f"{len(outputs)} output tensors, but the contents of {len(contents)}")
    text = ""
    output_ids: tuple[int, ...] | None = None
    counts: dict[str, Any] | None = None
    for output, raw in zip(outputs, contents, strict=True):
        name = output.name
        if name == "text_output":
            text = _decode_text(output.datatype, raw)
        elif name == "output_ids":
            output_ids = _decode_ids(output.datatype, raw)
        elif name in _COUNT_OUTPUTS:
            values = _decode(name, output.datatype, raw)
            if values:
                counts = {} if counts is None else counts
                counts[name] = values[0]
    return text, output_ids, counts


def is_final(response: Any) -> bool:
    """Whether the server flagged this response as the last one of its request."""
    parameters = response.parameters
    return FINAL_FLAG in parameters and bool(parameters[FINAL_FLAG].bool_param)


def completion_of(values: Mapping[str, Any]) -> Completion | None:
    """The final counts, from outputs by name; only the last message of a request has a `finish_reason`."""
    finish_reason = values.get("finish_reason")
    if finish_reason is None or finish_reason in _NO_FINISH_REASON:
        return None
    return closing_counts(values)


def closing_counts(values: Mapping[str, Any]) -> Completion:
    """What is known at the end of an answer, under our names or TensorRT-LLM's, as numbers or as text."""

    def count(*names: str) -> int | None:
        for name in names:
            if (value := values.get(name)) is not None:
                return _whole_number(name, value)
        return None

    def text(name: str) -> str | None:
        value = values.get(name)
        return None if value is None or value in _NO_FINISH_REASON else str(value)

    return Completion(
        finish_reason=text("finish_reason"),
        input_token_count=count("input_token_count", "num_input_tokens"),
        output_token_count=count("output_token_count", "num_output_tokens"),
        num_steps=count("num_steps"),
        total_draft_tokens=count("total_draft_tokens"),
        total_accepted_draft_tokens=count("total_accepted_draft_tokens"),
        speculation=text("speculation"),
        speculation_stats=text("speculation_stats"),
        cached_token_count=count("cached_token_count"),
    )


def _fields(request: GenerationRequest) -> Iterable[_Field]:
    def one(value: Any) -> Sequence[Any] | None:
        return None if value is None else (value,)

    yield _Field(("text_input",), (request.prompt,))
    yield _Field(("max_tokens", "sampling_param_max_tokens"), (request.max_tokens,))
    yield _Field(("stream", "streaming"), (request.stream,), is_vital=False)
    yield _Field(("num_draft_tokens",), one(request.num_draft_tokens))
    yield _Field(("segment",), one(request.segment), is_vital=False)  # a label for the server's counters
    yield _Field(("temperature", "sampling_param_temperature"), one(request.temperature))
    yield _Field(("top_k", "sampling_param_top_k"), one(request.top_k))
    yield _Field(("top_p", "sampling_param_top_p"), one(request.top_p))
    yield _Field(("seed", "sampling_param_seed"), one(request.seed))
    yield _Field(("min_tokens",), one(request.min_tokens))
    yield _Field(("ignore_eos",), one(request.ignore_eos))
    yield _Field(("stop_words", "sampling_param_stop"), request.stop_words or None)
    yield _Field(("guided_decoding_guide_type",), one(request.guide_type))
    yield _Field(("guided_decoding_guide",), one(request.guide))
    # Engines of other lanes report draft counts only when asked, and stock models repeat the prompt unless told not to.
    yield _Field(("return_perf_metrics", "sampling_param_return_perf_metrics"), (True,), is_vital=False)
    yield _Field(("exclude_input_in_output", "sampling_param_exclude_input_from_output"), (True,), is_vital=False)
    for name in ("return_finish_reason", "return_num_input_tokens", "return_num_output_tokens"):
        yield _Field((name,), (True,), is_vital=False)


def _encode(spec: TensorSpec, values: Sequence[Any]) -> bytes:
    is_text = any(isinstance(value, str) for value in values)
    if is_text is not (spec.datatype == _STRING_TYPE) or (spec.datatype not in _NUMBER_FORMATS and not is_text):
        kind = "text" if is_text else "a number"
        raise RequestError(spec.name, f"the model declares it as {spec.datatype}, the client has {kind}")
    if is_text:
        encoded = (value.encode("utf-8") for value in values)
        return b"".join(struct.pack("<I", len(item)) + item for item in encoded)
    convert = float if spec.datatype in _FLOAT_TYPES else int
    try:
        return struct.pack(f"<{len(values)}{_NUMBER_FORMATS[spec.datatype]}", *(convert(value) for value in values))
    except (struct.error, OverflowError) as error:
        raise RequestError(spec.name, f"{values[0]} does not fit into {spec.datatype}") from error


def _decode_text(datatype: str, raw: bytes) -> str:
    if datatype != _STRING_TYPE:
        raise ProtocolError(f"the output text_output is {datatype}, not text")
    # The usual case: one string. Bytes that are no UTF-8 become U+FFFD, which the integrity check looks for.
    if int.from_bytes(raw[:4], "little") == len(raw) - 4:
        return raw[4:].decode("utf-8", "replace")
    return "".join(_decode_strings("text_output", raw))


def _decode_ids(datatype: str, raw: bytes) -> tuple[int, ...]:
    if datatype == "INT32" and (unpack := _UNPACK_INT32.get(len(raw))) is not None:
        return unpack(raw)
    if datatype == _STRING_TYPE or datatype in _FLOAT_TYPES or datatype not in _NUMBER_FORMATS:
        raise ProtocolError(f"the output output_ids is {datatype}, not whole numbers")
    return tuple(_decode("output_ids", datatype, raw))


def _decode(name: str, datatype: str, raw: bytes) -> list[Any]:
    """Flat values of one tensor."""
    if datatype == _STRING_TYPE:
        return _decode_strings(name, raw)
    if datatype not in _NUMBER_FORMATS:
        raise ProtocolError(f"the output {name} has the unknown type {datatype}")
    code = _NUMBER_FORMATS[datatype]
    size = struct.calcsize("<" + code)
    if len(raw) % size:
        raise ProtocolError(f"the output {name} is {len(raw)} bytes long, no multiple of {size} as {datatype} is")
    return list(struct.unpack(f"<{len(raw) // size}{code}", raw))


def _decode_strings(name: str, raw: bytes) -> list[str]:
    strings: list[str] = []
    offset = 0
    while offset < len(raw):
        length = int.from_bytes(raw[offset : offset + 4], "little")
        offset += 4
        if offset + length > len(raw):
            raise ProtocolError(f"the output {name} ends in the middle of a text")
        strings.append(raw[offset : offset + length].decode("utf-8", errors="replace"))
        offset += length
    return strings


def _whole_number(name: str, value: Any) -> int | None:
    """Counts arrive as numbers, or as text from some stock models; a negative one stands for unknown."""
    try:
        number = int(value)
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"the output {name} is {value!r}, not a whole number") from error
    return number if number >= 0 else None
