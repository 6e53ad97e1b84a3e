"""The thread that compiles guides: order, errors, the end."""

import threading
from typing import Any

from helpers.serving_requests import make_request
from specdeploy.errors import RequestError, SpecDeployError
from specdeploy.serving.guides import GuideThread
from specdeploy.serving.request import Guide, ServingRequest


class Taken:
    """What the thread handed on."""

    def __init__(self) -> None:
        self.items: list[tuple[str, Any]] = []
        self.came = threading.Semaphore(0)

    def __call__(self, request: ServingRequest, sink: Any, guided: Any) -> None:
        self.items.append((request.prompt, guided))
        self.came.release()

    def wait(self, number: int) -> list[tuple[str, Any]]:
        for _ in range(number):
            assert self.came.acquire(timeout=10)
        return self.items


def request(prompt: str) -> ServingRequest:
    return make_request(prompt=prompt, guide=Guide("json", ""))


def test_requests_come_with_their_guide_or_why_not_in_order() -> None:
    def compile_guide(request: ServingRequest) -> Any:
        if request.prompt == "bad":
            raise RequestError("guided_decoding_guide", "is bad")
        if request.prompt == "bug":
            raise ZeroDivisionError("oops")
        return request.prompt.upper()

    taken = Taken()
    thread = GuideThread(compile_guide, taken, max_waiting=10)
    for prompt in ("a", "bad", "bug", "b"):
        thread.submit(request(prompt), None)  # type: ignore[arg-type]
    items = taken.wait(4)
    thread.close()
    assert [prompt for prompt, _ in items] == ["a", "bad", "bug", "b"]
    assert (items[0][1], items[3][1]) == ("A", "B")
    assert str(items[1][1]) == "guided_decoding_guide: is bad"
    assert "could not be compiled: ZeroDivisionError('oops')" in str(items[2][1])


def test_a_crowd_is_refused_and_what_waits_at_the_end_is_told() -> None:
    began, may_go_on = threading.Event(), threading.Event()

    def compile_guide(request: ServingRequest) -> Any:
        began.set()
        assert may_go_on.wait(10)
        return "done"

    taken = Taken()
    thread = GuideThread(compile_guide, taken, max_waiting=2)
    thread.submit(request("0"), None)  # type: ignore[arg-type]
    assert began.wait(10)
    for prompt in "123":
        thread.submit(request(prompt), None)  # type: ignore[arg-type]
    ((prompt, error),) = taken.wait(1)
    assert prompt == "3"
    assert isinstance(error, RequestError)
    assert "2 guides wait to be compiled already" in str(error)
    closing = threading.Thread(target=thread.close)
    closing.start()
    while not thread._is_closing:
        pass
    may_go_on.set()
    closing.join()
    assert taken.wait(3)[1] == ("0", "done")
    assert all(isinstance(error, SpecDeployError) for _, error in taken.items[2:])
    assert [str(error) for _, error in taken.items[2:]] == ["the server is shutting down"] * 2
