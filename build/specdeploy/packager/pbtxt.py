"""Typed Triton model config -> `config.pbtxt`, through the protobuf that the Triton server itself reads.

Nothing is written that was not parsed back and found equal: a template with a forgotten variable, a misspelt field or a
shape that Triton would refuse stops here, not at server start.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from specdeploy.errors import PackagingError
from specdeploy.packager.tensors import Tensor

TEMPLATE_MARK = "${"  # what fill_template.py leaves behind when a variable was not given


class InstanceKind(StrEnum):
    """Where Triton places an instance. A Python model picks its own device, so KIND_CPU fits on a GPU as well."""

    CPU = "KIND_CPU"
    GPU = "KIND_GPU"
    MODEL = "KIND_MODEL"


@dataclass(frozen=True, slots=True)
class TritonModelConfig:
    """What a `config.pbtxt` of this project may say. No response cache; batches are made by the engine.

    `max_queue_size` adds the dynamic batcher that the C++ backend of TensorRT-LLM is fed by, without any delay of its
    own; 0 = no limit. `blank_parameters` are written with an empty value, which reads as unset.
    """

    name: str
    backend: str
    max_batch_size: int
    decoupled: bool
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    instance_kind: InstanceKind = InstanceKind.CPU
    instance_count: int = 1
    parameters: Mapping[str, str] = field(default_factory=dict)
    max_queue_size: int | None = None
    blank_parameters: tuple[str, ...] = ()


def render_pbtxt(config: TritonModelConfig, header: str = "") -> str:
    """The text of `config.pbtxt`; `header` lines become comments. PackagingError lists everything wrong."""
    if problems := list(_find_problems(config)):
        raise PackagingError("\n".join(f"{config.name}/config.pbtxt: {problem}" for problem in problems))
    message = _to_message(config)
    comments = "".join(f"# {line}\n" for line in header.splitlines())
    text = comments + str(text_format.MessageToString(message))
    if parse_pbtxt(text, f"{config.name}/config.pbtxt") != message:
        raise PackagingError(f"{config.name}/config.pbtxt: reading it back gives another config; it was not written")
    return text


def parse_pbtxt(text: str, file: str) -> model_config_pb2.ModelConfig:
    """A `config.pbtxt` as Triton reads it; `file` names it in errors."""
    if TEMPLATE_MARK in text:
        line = text[: text.index(TEMPLATE_MARK)].count("\n") + 1
        raise PackagingError(f"{file}: line {line}: an unfilled template variable ({TEMPLATE_MARK}...)")
    message = model_config_pb2.ModelConfig()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        raise PackagingError(f"{file}: not a Triton model config: {error}") from error
    return message


def _to_message(config: TritonModelConfig) -> model_config_pb2.ModelConfig:
    message = model_config_pb2.ModelConfig(
        name=config.name, backend=config.backend, max_batch_size=config.max_batch_size
    )
    message.model_transaction_policy.decoupled = config.decoupled
    for tensor in config.inputs:
        entry = message.input.add(name=tensor.name, dims=tensor.dims, optional=tensor.optional)
        entry.data_type = model_config_pb2.DataType.Value(f"TYPE_{tensor.data_type}")
        if tensor.reshape_to_scalar:
            entry.reshape.SetInParent()  # present and empty: shape [ ]
        entry.allow_ragged_batch = tensor.allow_ragged_batch
    for tensor in config.outputs:
        entry = message.output.add(name=tensor.name, dims=tensor.dims)
        entry.data_type = model_config_pb2.DataType.Value(f"TYPE_{tensor.data_type}")
    kind = model_config_pb2.ModelInstanceGroup.Kind.Value(config.instance_kind.value)
    message.instance_group.add(count=config.instance_count, kind=kind)
    for key, value in config.parameters.items():
        message.parameters[key].string_value = value
    for key in config.blank_parameters:
        message.parameters[key].string_value = ""
    if config.max_queue_size is not None:
        message.dynamic_batching.preferred_batch_size.append(config.max_batch_size)
        message.dynamic_batching.max_queue_delay_microseconds = 0
        message.dynamic_batching.default_queue_policy.max_queue_size = config.max_queue_size
        message.dynamic_batching.default_queue_policy.SetInParent()
    return message


def _find_problems(config: TritonModelConfig) -> Iterator[str]:
    if config.max_batch_size < 1:
        yield f"max_batch_size {config.max_batch_size}: stock clients send a batch dimension, so it must be at least 1"
    if config.instance_count < 1:
        yield f"instance_count {config.instance_count}: at least one instance must serve"
    for kind, tensors in (("input", config.inputs), ("output", config.outputs)):
        yield from _find_tensor_problems(kind, tensors)
    for key, value in config.parameters.items():
        if not value:
            yield f"parameter {key} is empty"
    for key in sorted(set(config.blank_parameters) & set(config.parameters)):
        yield f"parameter {key} has a value and is said to be blank"
    if config.max_queue_size is not None and config.max_queue_size < 0:
        yield f"max_queue_size {config.max_queue_size}: 0 means no limit, less means nothing"
    texts = (config.name, config.backend, *config.parameters, *config.parameters.values(), *config.blank_parameters)
    for text in (*texts, *(tensor.name for tensor in config.inputs + config.outputs)):
        if TEMPLATE_MARK in text:
            yield f"{text!r} holds an unfilled template variable"


def _find_tensor_problems(kind: str, tensors: tuple[Tensor, ...]) -> Iterator[str]:
    if not tensors:
        yield f"it has no {kind}"
    names = [tensor.name for tensor in tensors]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{kind} {name} is declared twice"
    for tensor in tensors:
        if not tensor.dims or any(size == 0 or size < -1 for size in tensor.dims):
            yield f"{kind} {tensor.name}: dims {list(tensor.dims)} must be sizes of 1 or more, or -1 for any"
        if tensor.reshape_to_scalar and tensor.dims != (1,):
            yield f"{kind} {tensor.name}: only dims [1] can be reshaped to a scalar, not {list(tensor.dims)}"
        if kind == "output" and (tensor.optional or tensor.reshape_to_scalar or tensor.allow_ragged_batch):
            yield f"output {tensor.name}: optional, reshape_to_scalar and allow_ragged_batch belong to inputs"
