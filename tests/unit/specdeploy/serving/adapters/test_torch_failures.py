"""A step that raises, on the engine's thread: every client is told, and the thread lives on."""

import queue
from typing import Any

import pytest

from specdeploy.serving.adapters.torch import TorchAdapter


class FakeSink:
    def __init__(self) -> None:
        self.messages: list[str] = []

    def is_cancelled(self) -> bool:
        return False

    def fail(self, message: str) -> None:
        self.messages.append(message)


class FailingEngine:
    """Fails in its step, and when `resets` is false in the way back from it too. Stops its adapter after that."""

    waiting_request_ids: tuple[str, ...] = ()

    def __init__(self, inbox: "queue.SimpleQueue[Any]", *, resets: bool) -> None:
        self._inbox, self._resets = inbox, resets
        self.num_in_flight = 1
        self.row_request_ids = ["0"]

    def step(self) -> list[Any]:
        raise RuntimeError("out of memory")

    def reset(self) -> None:
        self.row_request_ids = []
        self.num_in_flight = 0
        self._inbox.put(None)
        if not self._resets:
            raise RuntimeError("the way back fails, too")


@pytest.mark.parametrize("resets", [True, False])
def test_every_client_is_told_of_a_step_that_raised(resets: bool) -> None:
    adapter = TorchAdapter.__new__(TorchAdapter)
    adapter._inbox = queue.SimpleQueue()
    adapter._num_asked = 0
    sink = FakeSink()
    adapter._sinks = {"0": sink}  # type: ignore[dict-item]
    adapter._serve(FailingEngine(adapter._inbox, resets=resets))  # type: ignore[arg-type]
    assert [message.split(":")[0] for message in sink.messages] == ["the engine failed"]
    assert adapter._sinks == {}
