"""Requests and answers as KServe v2 tensors: what is sent by which declaration, what an answer is made of."""

import struct
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from specdeploy.errors import RequestError
from specdeploy_client.tensors import (
    LLM_INTERFACE,
    ModelInterface,
    TensorSpec,
    completion_of,
    decode_outputs,
    decode_response,
    encode_request,
    is_final,
)
from specdeploy_client.transport import Completion, GenerationRequest, Message, ProtocolError

REQUEST = GenerationRequest("hi", 3)


def _response(
    tensors: dict[str, tuple[str, bytes]] | None = None, /, *, final: bool = False, **more: tuple[str, bytes]
) -> Any:
    response = service_pb2.ModelInferResponse(model_name="llm")
    for name, (datatype, raw) in ((tensors or {}) | more).items():
        response.outputs.add(name=name, datatype=datatype, shape=[1, 1])
        response.raw_output_contents.append(raw)
    response.parameters["triton_final_response"].bool_param = final
    return response


def _text(*texts: str) -> tuple[str, bytes]:
    return "BYTES", b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)


def _ints(*values: int) -> tuple[str, bytes]:
    return "INT32", struct.pack(f"<{len(values)}i", *values)


LAST = _response(
    text_output=_text("c"),
    output_ids=_ints(7),
    finish_reason=_text("stop"),
    output_token_count=_ints(3),
    num_steps=_ints(2),
)


def _sent(request: GenerationRequest, interface: ModelInterface = LLM_INTERFACE) -> dict[str, tuple[str, Any, bytes]]:
    message = encode_request(request, interface)
    return {
        tensor.name: (tensor.datatype, list(tensor.shape), raw)
        for tensor, raw in zip(message.inputs, message.raw_input_contents, strict=True)
    }


def _interface(*inputs: TensorSpec, has_batch: bool = True) -> ModelInterface:
    text = TensorSpec("text_input", "BYTES", is_optional=False)
    return ModelInterface("other", (text, *inputs), LLM_INTERFACE.outputs, has_batch, True)


def test_only_given_fields_are_sent_each_with_shape_one_by_n() -> None:
    request = GenerationRequest(
        "hi", 3, num_draft_tokens=0, segment="chat", seed=0, stop_words=("a", "\u00e4"), request_id="r1"
    )
    sent = _sent(request)
    plain = {"text_input", "max_tokens", "stream", "num_draft_tokens", "segment", "seed", "stop_words"}
    assert set(sent) == plain | {"return_perf_metrics"}
    assert sent["text_input"] == ("BYTES", [1, 1], b"\x02\0\0\0hi")
    assert sent["num_draft_tokens"] == ("INT32", [1, 1], b"\0\0\0\0")
    assert sent["seed"] == ("UINT64", [1, 1], bytes(8))
    assert sent["stream"] == ("BOOL", [1, 1], b"\x01")
    assert sent["stop_words"] == ("BYTES", [1, 2], b"\x01\0\0\0a\x02\0\0\0\xc3\xa4")
    message = encode_request(request)
    assert (message.model_name, message.id) == ("llm", "r1")
    assert message.parameters["triton_enable_empty_final_response"].bool_param


def test_a_guide_is_sent_under_the_names_of_the_stock_model() -> None:
    sent = _sent(GenerationRequest("hi", 3, guide_type="regex", guide="[ab]+"))
    assert sent["guided_decoding_guide_type"] == ("BYTES", [1, 1], b"\x05\0\0\0regex")
    assert sent["guided_decoding_guide"] == ("BYTES", [1, 1], b"\x05\0\0\0[ab]+")


@pytest.mark.parametrize(
    ("datatype", "raw"),
    [
        ("INT32", struct.pack("<i", 3)),
        ("INT64", struct.pack("<q", 3)),
        ("UINT32", struct.pack("<I", 3)),
        ("UINT8", b"\x03"),
        ("FP32", struct.pack("<f", 3)),
    ],
)
@pytest.mark.parametrize(("has_batch", "shape"), [(True, [1, 1]), (False, [1])])
def test_types_and_ranks_are_those_the_model_declares(
    datatype: str, raw: bytes, has_batch: bool, shape: list[int]
) -> None:
    sent = _sent(REQUEST, _interface(TensorSpec("max_tokens", datatype), has_batch=has_batch))
    assert sent["max_tokens"] == (datatype, shape, raw)
    assert sent["text_input"][1] == shape


def test_inputs_of_more_dimensions_get_leading_ones_and_scalars_none() -> None:
    interface = _interface(TensorSpec("max_tokens", "INT32", ()), TensorSpec("stop_words", "BYTES", (1, -1)))
    sent = _sent(GenerationRequest("hi", 3, stop_words=("a", "b")), interface)
    assert (sent["max_tokens"][1], sent["stop_words"][1]) == ([1], [1, 1, 2])


def test_the_names_of_tensorrt_llms_own_model_are_used_where_ours_are_not_declared() -> None:
    interface = _interface(
        TensorSpec("streaming", "BOOL"),
        TensorSpec("sampling_param_max_tokens", "INT32"),
        TensorSpec("sampling_param_seed", "UINT64"),
        TensorSpec("sampling_param_exclude_input_from_output", "BOOL"),
        TensorSpec("return_finish_reason", "BOOL"),
        has_batch=False,
    )
    sent = _sent(GenerationRequest("hi", 3, seed=7, segment="chat"), interface)
    assert sent["sampling_param_max_tokens"][2] == struct.pack("<i", 3)
    assert sent["sampling_param_seed"][2] == struct.pack("<Q", 7)
    assert {"streaming", "sampling_param_exclude_input_from_output", "return_finish_reason"} < set(sent)
    assert "segment" not in sent  # a label; the model has no place for it


def test_a_value_that_the_model_cannot_be_told_is_an_error_with_its_name() -> None:
    interface = _interface(TensorSpec("max_tokens", "INT32"))
    with pytest.raises(RequestError, match="num_draft_tokens: the model other has no such input"):
        encode_request(GenerationRequest("hi", 3, num_draft_tokens=0), interface)


def test_a_required_input_without_a_value_is_named_before_anything_is_sent() -> None:
    interface = _interface(TensorSpec("max_tokens", "INT32"), TensorSpec("end_id", "INT32", is_optional=False))
    with pytest.raises(RequestError, match="end_id: the model other requires"):
        encode_request(REQUEST, interface)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (TensorSpec("max_tokens", "BYTES"), "declares it as BYTES, the client has a number"),
        (TensorSpec("max_tokens", "BF16"), "declares it as BF16"),
        (TensorSpec("max_tokens", "UINT8"), "300 does not fit into UINT8"),
    ],
)
def test_a_declaration_that_the_value_does_not_fit_names_both(spec: TensorSpec, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        encode_request(GenerationRequest("hi", 300), _interface(spec))


def test_a_text_input_declared_as_numbers_is_refused() -> None:
    interface = ModelInterface(
        "other", (TensorSpec("text_input", "INT32"), TensorSpec("max_tokens", "INT32")), (), True, True
    )
    with pytest.raises(RequestError, match="text_input: the model declares it as INT32, the client has text"):
        encode_request(REQUEST, interface)


def test_an_absent_count_stays_none() -> None:
    message = decode_response(LAST, 1)
    assert message == Message(1, "c", (7,), Completion(finish_reason="stop", output_token_count=3, num_steps=2))


def test_a_response_without_tensors_is_no_message() -> None:
    empty = _response(final=True)
    assert decode_response(empty, 1) is None
    assert (is_final(empty), is_final(LAST)) == (True, False)


@pytest.mark.parametrize("count", [0, 1, 5, 63, 64, 300])
def test_any_number_of_token_ids(count: int) -> None:
    ids = tuple(range(count))
    assert decode_outputs(_response(output_ids=_ints(*ids)))[1] == ids


def test_ids_of_other_whole_types_and_texts_of_several_strings() -> None:
    response = _response(output_ids=("INT64", struct.pack("<2q", 5, 6)), text_output=_text("a", "b"))
    assert decode_outputs(response) == ("ab", (5, 6), None)


def test_a_model_without_token_ids_has_none_and_not_an_empty_list() -> None:
    assert decode_outputs(_response(text_output=_text("a")))[1] is None


def test_a_split_character_is_marked_and_not_an_error() -> None:
    raw = struct.pack("<I", 2) + b"a\xc3"
    assert decode_outputs(_response(text_output=("BYTES", raw)))[0] == "a\ufffd"


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"output_ids": ("FP32", bytes(4))}, "output_ids is FP32, not whole numbers"),
        ({"output_ids": ("BYTES", bytes(4))}, "output_ids is BYTES"),
        ({"output_ids": ("INT32", bytes(5))}, "5 bytes long, no multiple of 4"),
        ({"text_output": ("INT32", bytes(4))}, "text_output is INT32, not text"),
        ({"text_output": ("BYTES", struct.pack("<I", 9) + b"abc")}, "in the middle of a text"),
        ({"finish_reason": ("COMPLEX", bytes(4))}, "finish_reason has the unknown type COMPLEX"),
    ],
)
def test_tensors_that_are_no_answer_are_named(tensors: dict[str, tuple[str, bytes]], words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        decode_outputs(_response(tensors))


def test_contents_that_are_missing_are_named() -> None:
    response = _response(text_output=_text("a"), output_ids=_ints(1))
    del response.raw_output_contents[:]
    with pytest.raises(ProtocolError, match="2 output tensors, but the contents of 0"):
        decode_outputs(response)


def test_large_outputs_that_nobody_asked_for_are_not_decoded() -> None:
    response = _response(text_output=_text("a"), context_logits=("BF16", bytes(3)))
    assert decode_outputs(response) == ("a", None, None)


@pytest.mark.parametrize("words", ["", "None", "null"])
def test_a_stock_models_empty_finish_reason_is_no_end(words: str) -> None:
    assert completion_of({"finish_reason": words, "total_draft_tokens": 3}) is None


def test_counts_under_stock_names_and_as_text() -> None:
    values = {"finish_reason": "stop", "num_input_tokens": "12", "total_draft_tokens": "8", "num_steps": -1}
    completion = completion_of(values)
    assert completion == Completion(finish_reason="stop", input_token_count=12, total_draft_tokens=8)


def test_a_count_that_is_no_number_is_named() -> None:
    with pytest.raises(ProtocolError, match="num_steps is 'many'"):
        completion_of({"finish_reason": "stop", "num_steps": "many"})
