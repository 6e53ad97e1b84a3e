"""The part of Triton's Python backend that `llm` uses, in memory: what was sent is what tests look at."""

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np


class FakeError(Exception):
    """TritonModelException."""


class FakeTensor:
    def __init__(self, name: str, value: np.ndarray[Any, Any]) -> None:
        self._name, self._value = name, value

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray[Any, Any]:
        return self._value


class FakeResponse:
    def __init__(self, output_tensors: list[FakeTensor] | None = None, error: Any = None) -> None:
        self.tensors = {tensor.name(): tensor.as_numpy() for tensor in output_tensors or []}
        self.error = error


class FakeSender:
    """Collects responses; `done` is set by the final one, after which nothing may follow."""

    def __init__(self) -> None:
        self.responses: list[FakeResponse] = []
        self.done = threading.Event()
        self.cancelled = False

    def send(self, response: FakeResponse, flags: int = 0) -> None:
        assert not self.done.is_set(), "a response after the final one"
        self.responses.append(response)
        if flags:
            self.done.set()

    def is_cancelled(self) -> bool:
        return self.cancelled


class FakeRequest:
    def __init__(self, tensors: dict[str, np.ndarray[Any, Any]], outputs: list[str]) -> None:
        self._tensors = [FakeTensor(name, value) for name, value in tensors.items()]
        self._outputs = outputs
        self.sender = FakeSender()

    def inputs(self) -> list[FakeTensor]:
        return self._tensors

    def get_response_sender(self) -> FakeSender:
        return self.sender

    def requested_output_names(self) -> list[str]:
        return self._outputs


class FakeMetric:
    def __init__(self) -> None:
        self.value = 0.0

    def increment(self, amount: float) -> None:
        self.value += amount

    def set(self, value: float) -> None:
        self.value = value


class FakeMetricFamily:
    COUNTER, GAUGE = "counter", "gauge"
    values: dict[tuple[str, tuple[tuple[str, str], ...]], FakeMetric] = {}  # noqa: RUF012 - read by the tests

    def __init__(self, *, name: str, description: str, kind: str) -> None:
        self._name = name

    def Metric(self, *, labels: dict[str, str]) -> FakeMetric:  # noqa: N802 - Triton's name
        metric = self.values[(self._name, tuple(sorted(labels.items())))] = FakeMetric()
        return metric


def make_module() -> Any:
    """A stand-in for `triton_python_backend_utils`."""
    FakeMetricFamily.values = {}
    return SimpleNamespace(
        Tensor=FakeTensor,
        InferenceResponse=FakeResponse,
        TritonError=str,
        TritonModelException=FakeError,
        MetricFamily=FakeMetricFamily,
        Logger=SimpleNamespace(log_error=lambda message: None),
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=1,
    )
