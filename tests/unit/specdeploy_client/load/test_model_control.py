"""Swapping models of a Triton server, against a made-up one behind httpx's mock transport."""

import asyncio
import json

import httpx
import pytest

from helpers.fake_model_repository import FakeTriton
from specdeploy.errors import ClientError
from specdeploy_client.load.model_control import ModelControl
from specdeploy_client.transport import ServerUnreachableError


def _swap(triton: FakeTriton, unload: tuple[str, ...], load: tuple[str, ...], timeout_s: float = 5.0) -> None:
    async def main() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(triton.answer)) as http:
            metrics_url = "http://triton:8002/metrics" if triton.memory else None
            control = ModelControl("http://triton:8000/", metrics_url, timeout_s=timeout_s, poll_s=0.001, http=http)
            await control.swap(unload, load)

    asyncio.run(main())


def test_models_are_unloaded_before_others_are_loaded_in_order() -> None:
    triton = FakeTriton({"llm": "READY", "draft": "READY", "llm_plain": None, "target": "UNAVAILABLE"}, slow=3)
    _swap(triton, ("llm", "draft"), ("target", "llm_plain"))
    assert triton.calls == ["unload llm", "unload draft", "load target", "load llm_plain"]
    assert triton.states == {
        "llm": "UNAVAILABLE",
        "draft": "UNAVAILABLE",
        "llm_plain": "READY",
        "target": "READY",
    }


def test_what_is_as_wanted_stays_untouched() -> None:
    triton = FakeTriton({"llm": "UNAVAILABLE", "llm_plain": "READY"})
    _swap(triton, ("llm", "never there"), ("llm_plain",))
    assert triton.calls == []


def test_loading_waits_until_the_memory_no_longer_falls() -> None:
    triton = FakeTriton({"llm": "READY", "llm_plain": None}, memory=[900, 900, 600, 300, 101, 100, 100])
    _swap(triton, ("llm",), ("llm_plain",))
    assert triton.calls == ["unload llm", *["metrics"] * 7, "load llm_plain"]


def test_a_server_without_gpus_is_not_waited_for() -> None:
    triton = FakeTriton({"llm": "READY", "llm_plain": None}, memory=[-1])
    _swap(triton, ("llm",), ("llm_plain",))
    assert triton.calls == ["unload llm", "metrics", "load llm_plain"]


def test_a_model_that_is_not_in_the_repository_is_named_before_anything_is_unloaded() -> None:
    triton = FakeTriton({"llm": "READY", "llm_plain": None})
    with pytest.raises(ClientError, match=r"no model llm_plian in its repository\. It has llm, llm_plain"):
        _swap(triton, ("llm",), ("llm_plian",))
    assert triton.calls == []


def test_what_the_server_says_of_a_model_is_passed_on() -> None:
    triton = FakeTriton({"llm": None}, broken=frozenset({"llm"}))
    with pytest.raises(ClientError, match=r"model llm: failed to load 'llm', no version is available\. See the"):
        _swap(triton, (), ("llm",))


def test_a_swap_that_never_ends_is_given_up() -> None:
    triton = FakeTriton({"llm": None}, slow=10**9)
    with pytest.raises(ClientError, match=r"after 0\.05 s still not so: model llm is ready"):
        _swap(triton, (), ("llm",), timeout_s=0.05)


@pytest.mark.parametrize(
    ("response", "error", "words"),
    [
        (
            httpx.Response(404),
            ClientError,
            "HTTP 404 Not Found. See the server's log; models can be swapped only where",
        ),
        (httpx.Response(200, text=json.dumps({"a": 1})), ClientError, "not an index of models"),
        (httpx.Response(200, text="<html>hello"), ClientError, "not an index of models: <html>hello"),
        (None, ServerUnreachableError, "no model control at http://triton:8000/"),
    ],
)
def test_a_server_that_cannot_swap_is_named(
    response: httpx.Response | None, error: type[ClientError], words: str
) -> None:
    class Other(FakeTriton):
        def answer(self, request: httpx.Request) -> httpx.Response:
            if response is None:
                raise httpx.ConnectError("connection refused")
            return response

    with pytest.raises(error, match=words):
        _swap(Other({}), (), ("llm",))


def test_a_server_that_hangs_while_loading_is_named() -> None:
    class Hanging(FakeTriton):
        def answer(self, request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("load"):
                raise httpx.ReadTimeout("")
            return super().answer(request)

    with pytest.raises(ClientError, match=r"8000/: no answer to load of model llm in time\. See the server's log"):
        _swap(Hanging({"llm": None}), (), ("llm",))


def test_a_metrics_page_that_does_not_answer_is_named() -> None:
    class NoMetrics(FakeTriton):
        def answer(self, request: httpx.Request) -> httpx.Response:
            return httpx.Response(500) if request.url.path == "/metrics" else super().answer(request)

    with pytest.raises(ServerUnreachableError, match="no metrics at http://triton:8002/metrics"):
        _swap(NoMetrics({"llm": "READY", "b": None}, memory=[1]), ("llm",), ("b",))
