"""The mock model server in a thread of its own, for tests that call the command line, which has its own event loop."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from helpers.mock_llm_server import MockBehaviour, MockLlmServer


@contextmanager
def serve_mock(behaviour: MockBehaviour | None = None, models: tuple[str, ...] = ()) -> Iterator[MockLlmServer]:
    """A running mock; `behaviour` may be replaced between two commands."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="mock server")
    thread.start()
    server = MockLlmServer(behaviour, models=models)
    try:
        asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(timeout=10)
        try:
            yield server
        finally:
            asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(timeout=10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=10)
        loop.close()
