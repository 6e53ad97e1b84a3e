"""Calls through the Python backend's request objects."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.fake_triton import FakeError, FakeTensor
from specdeploy.serving.bls import ModelCallError, TritonCaller


class FakeAnswer:
    def __init__(self, error: str | None = None, **tensors: Any) -> None:
        self._error = error
        self._tensors = [FakeTensor(name, value) for name, value in tensors.items()]

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> Any:
        return SimpleNamespace(message=lambda: self._error)

    def output_tensors(self) -> list[FakeTensor]:
        return self._tensors


def module(answer: Any) -> Any:
    """A stand-in for `triton_python_backend_utils`; `requests` keeps what was asked."""
    requests: list[Any] = []

    class FakeInferenceRequest:
        def __init__(self, **fields: Any) -> None:
            self.fields = fields
            requests.append(self)

        def exec(self, *, decoupled: bool) -> Any:
            self.decoupled = decoupled
            if isinstance(answer, Exception):
                raise answer
            return answer

    return SimpleNamespace(
        InferenceRequest=FakeInferenceRequest, Tensor=FakeTensor, TritonModelException=FakeError, requests=requests
    )


INPUTS = {"input_ids": np.array([[1, 2]], dtype=np.int32)}


def test_one_answer_of_a_model_that_is_not_decoupled() -> None:
    ids = np.array([[[3]]], dtype=np.int32)
    fake = module(FakeAnswer(output_ids=ids))
    (tensors,) = TritonCaller(fake).call("target", INPUTS, ("output_ids",), request_id="7")
    assert tensors["output_ids"].tolist() == [[[3]]]
    assert tensors["output_ids"] is not ids  # the original's memory goes with the response
    (request,) = fake.requests
    assert request.decoupled is False
    assert request.fields["model_name"] == "target"
    assert request.fields["request_id"] == "7"
    assert request.fields["requested_output_names"] == ["output_ids"]
    assert [tensor.name() for tensor in request.fields["inputs"]] == ["input_ids"]


def test_every_answer_of_a_decoupled_model_the_empty_last_one_too() -> None:
    def answers() -> Iterator[FakeAnswer]:
        yield FakeAnswer(output_ids=np.array([[[3]]]))
        yield FakeAnswer()

    fake = module(answers())
    responses = list(TritonCaller(fake).call("target", INPUTS, ("output_ids",), decoupled=True))
    assert [sorted(response) for response in responses] == [["output_ids"], []]
    assert fake.requests[0].decoupled is True


@pytest.mark.parametrize("answer", [FakeAnswer("out of memory"), FakeError("out of memory")])
def test_errors_name_the_model(answer: Any) -> None:
    with pytest.raises(ModelCallError, match="the Triton model 'draft' failed: out of memory") as caught:
        list(TritonCaller(module(answer)).call("draft", INPUTS, ()))
    assert (caught.value.model, caught.value.reason) == ("draft", "out of memory")
