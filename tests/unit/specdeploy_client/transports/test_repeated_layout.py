"""The shortcut gives what the protobuf parser gives, or nothing."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from specdeploy_client.tensors import decode_outputs
from specdeploy_client.transports.repeated_layout import RepeatedLayout

PREFIX = b"12345"


def _envelope(
    text: str, ids: tuple[int, ...], *, request_id: str = "r", is_final: bool = False, swap: bool = False
) -> Any:
    envelope = service_pb2.ModelStreamInferResponse()
    response = envelope.infer_response
    response.model_name, response.id = "llm", request_id
    response.parameters["triton_final_response"].bool_param = is_final
    tensors = [
        ("text_output", "BYTES", struct.pack("<I", len(text.encode())) + text.encode(), 1),
        ("output_ids", "INT32", struct.pack(f"<{len(ids)}i", *ids), len(ids)),
    ]
    for name, datatype, raw, size in reversed(tensors) if swap else tensors:
        response.outputs.add(name=name, datatype=datatype, shape=[1, size])
        response.raw_output_contents.append(raw)
    return envelope


def _learned(*envelopes: Any) -> RepeatedLayout:
    layout = RepeatedLayout()
    for envelope in envelopes:
        layout.learn(envelope.SerializeToString(), envelope.infer_response)
    return layout


def _read(layout: RepeatedLayout, raw: bytes) -> Any:
    return layout.read(PREFIX + raw, len(PREFIX))


@given(st.text(max_size=60), st.lists(st.integers(-(2**31), 2**31 - 1), max_size=70), st.booleans())
def test_a_known_head_reads_what_the_parser_reads(text: str, ids: list[int], swap: bool) -> None:
    layout = _learned(*(_envelope("x", (1,) * count, swap=swap) for count in range(1, 9)))
    envelope = _envelope(text, tuple(ids), swap=swap)
    known = _read(layout, envelope.SerializeToString())
    if known is not None:
        assert (*known, None) == decode_outputs(envelope.infer_response)
    elif 1 <= len(ids) <= 8:
        assert len(text.encode()) + 4 > 127


def test_other_heads_go_the_long_way() -> None:
    layout = _learned(_envelope("x", (1,)))
    assert _read(layout, _envelope("y", (2,)).SerializeToString()) == ("y", (2,))
    for other in (
        _envelope("y", (2, 3)),
        _envelope("y", (2,), request_id="s"),
        _envelope("y", (2,), is_final=True),
        _envelope("y", (2,), swap=True),
    ):
        assert _read(layout, other.SerializeToString()) is None


def test_messages_with_counts_or_other_types_are_not_learned() -> None:
    with_count = _envelope("x", (1,))
    with_count.infer_response.outputs.add(name="num_steps", datatype="INT32", shape=[1, 1])
    with_count.infer_response.raw_output_contents.append(struct.pack("<i", 3))
    wide = _envelope("x", (1,))
    wide.infer_response.outputs[1].datatype = "INT64"
    for envelope in (with_count, wide):
        layout = _learned(envelope)
        assert _read(layout, envelope.SerializeToString()) is None


@given(st.binary(max_size=80), st.integers(0, 200))
def test_broken_bytes_never_raise_and_are_never_taken_for_more_than_they_are(garbage: bytes, cut: int) -> None:
    layout = _learned(_envelope("x", (1,)), _envelope("x", (1, 2)))
    whole = _envelope("hello", (5, 6)).SerializeToString()
    broken = whole[:cut] + garbage
    known = _read(layout, broken)
    if known is not None:
        parsed = service_pb2.ModelStreamInferResponse.FromString(broken)
        assert (*known, None) == decode_outputs(parsed.infer_response)


@pytest.mark.parametrize("size", [0, 1, 4])
def test_nothing_is_known_of_the_first_message(size: int) -> None:
    assert _read(RepeatedLayout(), b"\x12\x03abc"[:size]) is None
