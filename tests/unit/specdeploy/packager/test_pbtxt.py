"""config.pbtxt through Triton's own protobuf."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.errors import PackagingError
from specdeploy.packager.pbtxt import TritonModelConfig, parse_pbtxt, render_pbtxt
from specdeploy.packager.tensors import DataType, Tensor

TEXT = Tensor("text", DataType.STRING, (1,))
CONFIG = TritonModelConfig("llm", "python", 1, decoupled=True, inputs=(TEXT,), outputs=(TEXT,))


def test_what_is_written_is_what_triton_reads() -> None:
    flag = Tensor("flag", DataType.BOOL, (1,), optional=True, reshape_to_scalar=True)
    config = replace(CONFIG, inputs=(TEXT, flag), parameters={"deployment": "demo"})
    parsed = parse_pbtxt(render_pbtxt(config, "one\ntwo"), "config.pbtxt")
    assert (parsed.name, parsed.backend, parsed.max_batch_size) == ("llm", "python", 1)
    assert parsed.model_transaction_policy.decoupled
    assert parsed.input[1].optional
    assert parsed.input[1].HasField("reshape")
    assert not parsed.input[0].HasField("reshape")
    assert parsed.parameters["deployment"].string_value == "demo"
    assert not parsed.HasField("dynamic_batching")
    assert not parsed.response_cache.enable


def test_what_the_backend_of_tensorrt_llm_needs() -> None:
    config = replace(
        CONFIG,
        max_batch_size=8,
        inputs=(replace(TEXT, allow_ragged_batch=True),),
        max_queue_size=0,
        blank_parameters=("guided_decoding_backend",),
    )
    parsed = parse_pbtxt(render_pbtxt(config), "config.pbtxt")
    assert parsed.input[0].allow_ragged_batch
    assert list(parsed.dynamic_batching.preferred_batch_size) == [8]
    assert parsed.dynamic_batching.max_queue_delay_microseconds == 0
    assert parsed.dynamic_batching.HasField("default_queue_policy")
    assert parsed.parameters["guided_decoding_backend"].string_value == ""


def test_the_header_is_a_comment() -> None:
    assert render_pbtxt(CONFIG, "one\ntwo").startswith("# one\n# two\nname:")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"max_batch_size": 0}, "max_batch_size 0"),
        ({"instance_count": 0}, "instance_count 0"),
        ({"inputs": ()}, "it has no input"),
        ({"inputs": (TEXT, TEXT)}, "input text is declared twice"),
        ({"inputs": (replace(TEXT, dims=()),)}, "dims []"),
        ({"inputs": (replace(TEXT, dims=(0,)),)}, "dims [0]"),
        ({"inputs": (replace(TEXT, dims=(-2,)),)}, "dims [-2]"),
        ({"inputs": (replace(TEXT, dims=(2,), reshape_to_scalar=True),)}, "only dims [1]"),
        ({"outputs": (replace(TEXT, optional=True),)}, "belong to inputs"),
        ({"outputs": (replace(TEXT, allow_ragged_batch=True),)}, "belong to inputs"),
        ({"max_queue_size": -1}, "max_queue_size -1"),
        ({"parameters": {"a": "b"}, "blank_parameters": ("a",)}, "parameter a has a value and is said to be blank"),
        ({"blank_parameters": ("${a}",)}, "unfilled template variable"),
        ({"parameters": {"deployment": "${name}"}}, "unfilled template variable"),
        ({"parameters": {"deployment": ""}}, "parameter deployment is empty"),
        ({"name": "${name}"}, "unfilled template variable"),
    ],
)
def test_a_config_triton_would_refuse_is_not_rendered(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(PackagingError, match=r"config\.pbtxt") as caught:
        render_pbtxt(replace(CONFIG, **changes))
    assert reason in str(caught.value)


def test_all_problems_are_listed() -> None:
    with pytest.raises(PackagingError) as caught:
        render_pbtxt(replace(CONFIG, max_batch_size=0, inputs=(), instance_count=0))
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize("text", ["name: llm", 'nome: "llm"', "max_batch_size: ${triton_max_batch_size}", "input {"])
def test_text_that_is_no_model_config(text: str) -> None:
    with pytest.raises(PackagingError, match=r"config\.pbtxt"):
        parse_pbtxt(text, "config.pbtxt")


@given(
    st.lists(
        st.tuples(st.sampled_from(DataType), st.lists(st.sampled_from([-1, 1, 3, 576]), min_size=1, max_size=4)),
        min_size=1,
        max_size=6,
    ),
    st.dictionaries(st.text(min_size=1, max_size=9).filter(lambda t: "${" not in t), st.just("a\n\"b'"), max_size=3),
)
def test_any_valid_config_survives(tensors: list[tuple[DataType, list[int]]], parameters: dict[str, str]) -> None:
    inputs = tuple(Tensor(f"t{i}", kind, tuple(dims), optional=bool(i)) for i, (kind, dims) in enumerate(tensors))
    parsed = parse_pbtxt(render_pbtxt(replace(CONFIG, inputs=inputs, parameters=parameters)), "f")
    assert [list(entry.dims) for entry in parsed.input] == [dims for _, dims in tensors]
    assert {key: value.string_value for key, value in parsed.parameters.items()} == parameters
