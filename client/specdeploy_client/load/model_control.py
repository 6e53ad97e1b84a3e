"""Loads and unloads models of a running Triton server, through the model-repository extension of its HTTP protocol.

The server must have been started with `--model-control-mode=explicit`.
https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/protocol/extension_model_repository.html
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
from prometheus_client.parser import text_string_to_metric_families

from specdeploy.errors import ClientError
from specdeploy_client.transport import ServerUnreachableError

_GPU_MEMORY = "nv_gpu_memory_used_bytes"
_MEMORY_TOLERANCE = 0.01  # the metric is refreshed every few seconds and wavers a little
_MEMORY_READS_THAT_AGREE = 3


@dataclass(frozen=True, slots=True)
class ModelControl:
    """`url`: the server's HTTP service, such as http://localhost:8000. `metrics_url`: its metrics page; where that
    shows the memory of GPUs, a swap waits until unloading has given it back.

    `timeout_s` bounds each of unloading, waiting for memory and loading; `poll_s` is the pause between questions.
    `http` None makes a client of its own.
    """

    url: str
    metrics_url: str | None = None
    timeout_s: float = 600.0
    poll_s: float = 0.5
    http: httpx.AsyncClient | None = None

    async def swap(self, unload: Sequence[str], load: Sequence[str]) -> None:
        """Unload some models in this order, load others in this order; wait until all are gone, and ready.

        What is as wanted already stays untouched. Raises `ClientError` naming the model and what the server says, and
        `ServerUnreachableError`.
        """
        if self.http is not None:
            await self._swap(self.http, unload, load)
            return
        async with httpx.AsyncClient(timeout=self.timeout_s, trust_env=False) as http:
            await self._swap(http, unload, load)

    async def _swap(self, http: httpx.AsyncClient, unload: Sequence[str], load: Sequence[str]) -> None:
        states = await self._states(http)
        if unknown := [name for name in load if name not in states]:
            raise ClientError(
                f"{self.url} has no model {', '.join(unknown)} in its repository. It has {', '.join(sorted(states))}"
            )
        loaded = [name for name in unload if states.get(name) not in (None, "UNAVAILABLE")]
        for name in loaded:
            await self._post(http, f"models/{quote(name)}/unload", name)
        await self._until(f"model {', '.join(loaded)} is gone", lambda: self._are_in_state(http, loaded, "UNAVAILABLE"))
        if loaded:
            await self._wait_for_memory(http)
        for name in load:
            if states[name] != "READY":
                await self._post(http, f"models/{quote(name)}/load", name)
        await self._until(f"model {', '.join(load)} is ready", lambda: self._are_in_state(http, load, "READY"))

    async def _are_in_state(self, http: httpx.AsyncClient, names: Collection[str], state: str) -> bool:
        states = await self._states(http) if names else {}
        return all(states.get(name) == state for name in names)

    async def _states(self, http: httpx.AsyncClient) -> dict[str, str]:
        """State of every model in the repository: READY, UNAVAILABLE, LOADING, UNLOADING.

        A model that was never loaded has no state in the answer; of several versions one that is up counts.
        """
        answer = await self._post(http, "index")
        if not isinstance(answer, list) or not all(isinstance(entry, dict) and "name" in entry for entry in answer):
            raise ClientError(f"{self.url}: not an index of models: {str(answer)[:200]}")
        states: dict[str, str] = {}
        for entry in answer:
            state = entry.get("state") or "UNAVAILABLE"
            if states.get(entry["name"], "UNAVAILABLE") == "UNAVAILABLE":
                states[entry["name"]] = state
        return states

    async def _post(self, http: httpx.AsyncClient, path: str, model: str | None = None) -> Any:
        """The JSON that the server answers, None where it answers nothing, its text where that is something else."""
        try:
            response = await http.post(f"{self.url.rstrip('/')}/v2/repository/{path}", json={})
        except httpx.ReadTimeout as error:
            what = path if model is None else f"{path.rpartition('/')[2]} of model {model}"
            raise ClientError(f"{self.url}: no answer to {what} in time. See the server's log") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServerUnreachableError(
                f"no model control at {self.url} ({str(error) or type(error).__name__}). Give the address of the "
                "server's HTTP service"
            ) from error
        content = _content(response)
        if response.is_success:
            return content
        reason = content.get("error") if isinstance(content, dict) else None
        # Triton puts stack traces and lone semicolons into its reasons.
        words = " ".join(str(reason or f"HTTP {response.status_code} {response.reason_phrase}").split()).rstrip(" ;.")
        raise ClientError(
            f"{self.url}: {f'model {model}: ' if model else ''}{words}. See the server's log; models can be swapped "
            "only where it was started with --model-control-mode=explicit"
        )

    async def _until(self, what: str, is_so: Callable[[], Awaitable[bool]]) -> None:
        """Ask until `is_so`, at most `timeout_s`."""
        try:
            async with asyncio.timeout(self.timeout_s):
                while not await is_so():
                    await asyncio.sleep(self.poll_s)
        except TimeoutError:
            raise ClientError(
                f"{self.url}: after {self.timeout_s:g} s still not so: {what}. See the server's log"
            ) from None

    async def _wait_for_memory(self, http: httpx.AsyncClient) -> None:
        """Until the memory used on GPUs no longer falls; at once where the server shows none."""
        used = await self._gpu_memory_bytes(http)
        num_agreeing = 1

        async def has_settled() -> bool:
            nonlocal used, num_agreeing
            if used is None or num_agreeing >= _MEMORY_READS_THAT_AGREE:
                return True
            await asyncio.sleep(self.poll_s)
            now = await self._gpu_memory_bytes(http)
            is_same = now is not None and abs(now - used) <= _MEMORY_TOLERANCE * used
            used, num_agreeing = now, num_agreeing + 1 if is_same else 1
            return False

        await self._until("the memory of the GPUs no longer falls", has_settled)

    async def _gpu_memory_bytes(self, http: httpx.AsyncClient) -> float | None:
        """Used on all GPUs together, None where nothing says."""
        if self.metrics_url is None:
            return None
        try:
            response = await http.get(self.metrics_url)
            response.raise_for_status()
            samples = [
                sample.value
                for family in text_string_to_metric_families(response.text)
                for sample in family.samples
                if sample.name == _GPU_MEMORY
            ]
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise ServerUnreachableError(
                f"no metrics at {self.metrics_url} ({str(error) or type(error).__name__})"
            ) from error
        return sum(samples) if samples else None


def _content(response: httpx.Response) -> Any:
    """The body as JSON, as text where it is none; None where it is empty."""
    try:
        return response.json() if response.content else None
    except ValueError:
        return response.text
