"""The HTTP/1.1 side of the mock server: Triton's generate endpoints and model control, and an OpenAI-compatible API."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from helpers.mock_llm_answers import MockBehaviour, MockFailure, MockMessage, MockRequest

if TYPE_CHECKING:
    from helpers.mock_llm_server import Answer, MockLlmServer

GENERATE_PATHS = ("/generate", "/generate_stream")
OPENAI_PATHS = ("/v1/completions", "/v1/chat/completions")
OPENAI_FIELDS = frozenset(
    {"model", "prompt", "messages", "max_tokens", "max_completion_tokens", "stream", "stream_options", "include_usage"}
    | {"temperature", "top_p", "seed", "stop", "response_format"}
)


class HttpFront:
    """Serves the mock's answers over HTTP/1.1, connections kept alive."""

    def __init__(self, mock: "MockLlmServer") -> None:
        self._mock = mock
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, port: int) -> int:
        """Listen; returns the port."""
        context = None
        if (tls := self._mock.tls) is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.cert_file, tls.key_file)
            if tls.client_ca_file is not None:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(tls.client_ca_file)
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, ssl=context)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Drop every connection and stop listening."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._mock.num_connections += 1
        self._writers.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._exchange(reader, writer):
                    pass
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; whether the connection lives on."""
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        content = asyncio.ensure_future(self._answer(writer, method, path, headers, body))
        watcher = asyncio.ensure_future(reader.read(1))  # a client that gives up closes the connection
        try:
            await asyncio.wait({content, watcher}, return_when=asyncio.FIRST_COMPLETED)
            if content.done():
                return content.result()
            if not self._mock.is_dead:
                self._mock.note_cancelled()
            return False
        finally:
            for task in (content, watcher):
                task.cancel()
            await asyncio.gather(content, watcher, return_exceptions=True)

    async def _answer(
        self, writer: asyncio.StreamWriter, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> bool:
        if method == "POST" and (path in OPENAI_PATHS or path.endswith(GENERATE_PATHS)):
            return await self._generate(writer, path, headers, body)
        status, content, kind = self._plain(method, path)
        await _send(writer, status, content.encode(), kind)
        return True

    def _plain(self, method: str, path: str) -> tuple[int, str, str]:
        """Everything that is no generation: (status, content, its type)."""
        mock = self._mock
        if path == "/metrics":
            return 200, metrics_page(mock), "text/plain; version=0.0.4"
        if path in ("/health", "/v2/health/ready"):
            return (200 if mock.behaviour.is_ready else 503), "", "text/plain"
        if path == "/v1/models":
            owner = mock.behaviour.openai_owner
            names = [{"id": name, "owned_by": owner} for name, is_loaded in mock.loaded.items() if is_loaded]
            return 200, json.dumps({"object": "list", "data": names}), "application/json"
        if path == "/v2/repository/index" and method == "POST":
            states = [
                {"name": name, "state": "READY"} if is_loaded else {"name": name}
                for name, is_loaded in mock.loaded.items()
            ]
            return 200, json.dumps(states), "application/json"
        parts = path.strip("/").split("/")
        if parts[:3] == ["v2", "repository", "models"] and len(parts) == 5 and method == "POST":
            return self._control(parts[3], parts[4])
        if parts[:2] == ["v2", "models"] and len(parts) >= 3:
            return self._model_page(parts[2], parts[3:])
        return 404, json.dumps({"error": f"no such page: {path}"}), "application/json"

    def _control(self, name: str, action: str) -> tuple[int, str, str]:
        if name not in self._mock.loaded:
            problem = f"failed to load '{name}', failed to poll from model repository"
            return 400, json.dumps({"error": problem}), "application/json"
        self._mock.loaded[name] = action == "load"
        return 200, "", "application/json"

    def _model_page(self, name: str, rest: list[str]) -> tuple[int, str, str]:
        behaviour = self._mock.behaviour
        if rest == ["ready"]:
            is_ready = behaviour.is_ready and self._mock.loaded.get(name, False)
            return (200 if is_ready else 400), "", "application/json"
        if not self._mock.loaded.get(name, False):
            problem = f"Request for unknown model: '{name}' is not found"
            return 400, json.dumps({"error": problem}), "application/json"
        batch = [-1] if behaviour.max_batch_size else []
        if rest == ["config"]:
            config: dict[str, Any] = {
                "name": name,
                "max_batch_size": behaviour.max_batch_size,
                "model_transaction_policy": {"decoupled": behaviour.is_decoupled},
                "input": [
                    {
                        "name": tensor.name,
                        "data_type": "TYPE_STRING" if tensor.datatype == "BYTES" else f"TYPE_{tensor.datatype}",
                        "dims": list(tensor.dims),
                        "optional": tensor.is_optional,
                    }
                    for tensor in behaviour.inputs
                ],
                "output": [
                    {
                        "name": tensor.name,
                        "data_type": "TYPE_STRING" if tensor.datatype == "BYTES" else f"TYPE_{tensor.datatype}",
                        "dims": list(tensor.dims),
                    }
                    for tensor in behaviour.outputs
                ],
            }
            return 200, json.dumps(config), "application/json"
        tensors = {
            key: [
                {"name": tensor.name, "datatype": tensor.datatype, "shape": [*batch, *tensor.dims]}
                for tensor in declared
            ]
            for key, declared in (("inputs", behaviour.inputs), ("outputs", behaviour.outputs))
        }
        return 200, json.dumps({"name": name, "versions": ["1"], "platform": "python"} | tensors), "application/json"

    async def _generate(self, writer: asyncio.StreamWriter, path: str, headers: dict[str, str], body: bytes) -> bool:
        try:
            fields = json.loads(body)
        except ValueError:
            await _send(writer, 400, b'{"error":"failed to parse the request JSON buffer"}', "application/json")
            return True
        is_openai = path in OPENAI_PATHS
        request = read_request(self._mock, path, fields, headers)
        if not self._mock.loaded.get(request.model, False):
            problem = f"Request for unknown model: '{request.model}' is not found"
            if is_openai:
                problem = f"The model `{request.model}` does not exist."
            await _send(writer, 404, _error_json(problem, is_openai), "application/json")
            return True
        if is_openai and (unknown := _unknown_fields(self._mock.behaviour, fields)):
            await _send(writer, 400, _error_json(f"unknown fields: {unknown}", is_openai), "application/json")
            return True
        answer = await self._mock.answer(request)
        if answer.failure is MockFailure.REFUSE:
            refusal = _error_json("the mock refuses this request", is_openai)
            if is_openai:
                await _send(writer, 400, refusal, "application/json")
            else:  # as Triton does when it is the model that refuses
                await _send(writer, 400, b"data: " + refusal + b"\n\n", "text/event-stream")
            return True
        if not is_openai and path.endswith("/generate_stream") is not answer.behaviour.is_decoupled:
            problem = "the decoupled policy of the model does not fit this call"
            await _send(writer, 400, _error_json(problem, is_openai), "application/json")
            return True
        await self._stream(writer, path, answer)
        return True

    async def _stream(self, writer: asyncio.StreamWriter, path: str, answer: "Answer") -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        is_openai = path in OPENAI_PATHS
        events = openai_events(path, answer) if is_openai else triton_events(answer)
        async for event in events:
            _write_chunk(writer, b"data: " + event + b"\n\n")
            await writer.drain()
        if answer.failure is MockFailure.GARBAGE:
            _write_chunk(writer, b'data: {"text_output": "half a\n\n')
        elif answer.failure is MockFailure.ERROR_MID_STREAM:
            _write_chunk(writer, b"data: " + _error_json("the mock broke", is_openai) + b"\n\n")
        elif answer.failure is None and is_openai:
            _write_chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()


async def triton_events(answer: "Answer") -> AsyncIterator[bytes]:
    """The JSON of each message of `generate_stream`: outputs by name, one value as itself, several as a list."""
    behaviour = answer.behaviour
    declared = {tensor.name for tensor in behaviour.outputs}
    async for message in answer:
        ids: Any = message.ids[0] if len(message.ids) == 1 else message.ids
        outputs: dict[str, Any] = {"text_output": message.text}
        if behaviour.sends_ids:
            outputs["output_ids"] = str(ids) if answer.failure is MockFailure.WRONG_DTYPE else ids
        if (counts := message.counts) is not None:
            if behaviour.sends_finish:
                outputs |= {"finish_reason": "length", "speculation": "on" if counts.is_drafting else "off:request"}
            if behaviour.sends_counts:
                outputs |= {
                    "input_token_count": counts.input_token_count,
                    "output_token_count": counts.output_token_count,
                    "num_steps": counts.num_steps,
                    "total_draft_tokens": counts.num_draft_tokens,
                    "total_accepted_draft_tokens": counts.num_accepted_tokens,
                }
        head = {"model_name": behaviour.model, "model_version": "1"}
        yield json.dumps(head | {name: value for name, value in outputs.items() if name in declared}).encode()


async def openai_events(path: str, answer: "Answer") -> AsyncIterator[bytes]:
    """Chunks of a streamed completion: deltas, a last one with `finish_reason`, and usage where it was asked for."""
    behaviour, fields = answer.behaviour, answer.request.fields
    is_chat = path.endswith("/chat/completions")
    known = behaviour.openai_extensions
    with_ids = behaviour.sends_ids and fields.get("return_token_ids") and "return_token_ids" in known
    options = fields.get("stream_options") or {}
    counts_on = options.get("continuous_usage_stats") and "continuous_usage_stats" in known
    num_tokens = 0
    head = {
        "id": "cmpl-1",
        "object": "chat.completion.chunk" if is_chat else "text_completion",
        "model": behaviour.model,
    }
    if is_chat:
        yield json.dumps(head | {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}).encode()
    last: MockMessage | None = None
    async for message in answer:
        choice: dict[str, Any] = {"index": 0, "delta": {"content": message.text}} if is_chat else {"text": message.text}
        if with_ids:
            choice["token_ids"] = [str(token) for token in message.ids] if _is_wrong(answer) else list(message.ids)
        is_last = message.counts is not None and behaviour.sends_finish
        choice["finish_reason"] = "length" if is_last else None
        num_tokens += len(message.ids)
        running = {"usage": {"prompt_tokens": 1, "completion_tokens": num_tokens}} if counts_on else {}
        yield json.dumps(head | {"choices": [choice]} | running).encode()
        last = message
    if last is not None and last.counts is not None and options.get("include_usage") and behaviour.sends_counts:
        yield json.dumps(head | {"choices": [], "usage": _usage(behaviour, last)}).encode()


def _unknown_fields(behaviour: MockBehaviour, fields: dict[str, Any]) -> list[str]:
    """Fields that a strict server refuses."""
    if not behaviour.is_strict:
        return []
    options = (fields.get("stream_options") or {}).keys()
    return sorted((fields.keys() | options) - OPENAI_FIELDS - behaviour.openai_extensions)


def _usage(behaviour: MockBehaviour, last: MockMessage) -> dict[str, Any]:
    assert last.counts is not None
    usage: dict[str, Any] = {
        "prompt_tokens": last.counts.input_token_count,
        "completion_tokens": last.counts.output_token_count,
        "total_tokens": last.counts.input_token_count + last.counts.output_token_count,
    }
    if behaviour.cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": behaviour.cached_tokens}
    return usage


def _is_wrong(answer: "Answer") -> bool:
    return answer.failure is MockFailure.WRONG_DTYPE


def read_request(mock: "MockLlmServer", path: str, fields: dict[str, Any], headers: dict[str, str]) -> MockRequest:
    """The request of either API."""
    if path in OPENAI_PATHS:
        messages = fields.get("messages") or []
        prompt = fields.get("prompt") or "\n".join(str(message["content"]) for message in messages)
        max_tokens = fields.get("max_completion_tokens") or fields.get("max_tokens") or 16
        model = str(fields.get("model"))
    else:
        prompt, max_tokens = fields.get("text_input", ""), fields.get("max_tokens", 16)
        model = path.split("/")[3]
    return MockRequest(
        number=len(mock.requests),
        endpoint=path,
        model=model,
        prompt=str(prompt),
        max_tokens=int(max_tokens),
        num_draft_tokens=fields.get("num_draft_tokens"),
        segment=str(fields.get("segment") or ""),
        fields=fields,
        headers=headers,
    )


def metrics_page(mock: "MockLlmServer") -> str:
    """The counters of `mock` in Prometheus' text format."""
    lines = []
    if mock.behaviour.info:
        labels = ",".join(f'{key}="{value}"' for key, value in mock.behaviour.info.items())
        lines += ["# TYPE specdeploy_info gauge", f"specdeploy_info{{{labels}}} 1"]
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        lines.append(f"# TYPE spec_decode_{name}_total counter")
        lines += [
            f'spec_decode_{name}_total{{segment="{segment}"}} {getattr(totals, name)}'
            for segment, totals in mock.totals.items()
        ]
    lines.append("# TYPE spec_decode_num_accepted_tokens_per_pos_total counter")
    lines += [
        f'spec_decode_num_accepted_tokens_per_pos_total{{segment="{segment}",position="{position}"}} {count}'
        for segment, totals in mock.totals.items()
        for position, count in sorted(totals.accepted_per_pos.items())
    ]
    return "\n".join(lines) + "\n"


def _error_json(problem: str, is_openai: bool) -> bytes:
    content: Any = {"message": problem, "type": "BadRequestError", "code": 400} if is_openai else problem
    return json.dumps({"error": content}).encode()


async def _send(writer: asyncio.StreamWriter, status: int, content: bytes, kind: str) -> None:
    head = f"HTTP/1.1 {status} .\r\ncontent-type: {kind}\r\ncontent-length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    await writer.drain()


def _write_chunk(writer: asyncio.StreamWriter, content: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(content), content))
