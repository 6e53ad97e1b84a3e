"""`Transport` over Triton's `generate_stream`: a JSON request, an event stream of JSON messages."""

from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from typing import Any, NoReturn
from urllib.parse import quote

import orjson

from specdeploy.errors import ClientError, RequestError
from specdeploy_client.tensors import LLM_INTERFACE, ModelInterface, TensorSpec, input_values
from specdeploy_client.transport import (
    GenerationRequest,
    Message,
    ProtocolError,
    RequestRefusedError,
    ServerUnreachableError,
    StreamClosedError,
)
from specdeploy_client.transports.answer import AnswerInProgress
from specdeploy_client.transports.base import PageTransport
from specdeploy_client.transports.endpoint import Endpoint
from specdeploy_client.transports.event_stream import EventReader
from specdeploy_client.transports.exchange import Exchange, ExchangeError

_HEADERS = (("content-type", "application/json"), ("accept", "text/event-stream"))


class HttpTransport(PageTransport):
    """Talks to one model of a Triton server. `timeout_s` limits one whole request.

    `interface` and `is_cumulative` as in `GrpcTransport`.
    """

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        super().__init__(endpoint, timeout_s)
        self.interface = replace(LLM_INTERFACE, model=endpoint.model)
        self.is_cumulative = False
        self._model_path = f"/v2/models/{quote(endpoint.model, safe='')}"

    async def is_ready(self) -> bool:
        """Whether the model is ready to answer. Raises `ServerUnreachableError` when nobody listens."""
        status, _ = await self._fetch(f"{self._model_path}/ready")
        return status == 200

    async def read_interface(self) -> ModelInterface:
        """Ask the server what the model takes and gives, and build requests by it from now on."""
        status, content = await self._fetch(f"{self._model_path}/config")
        config = self._json(content)
        if status != 200:
            self._raise_refused(status, content)
        try:
            self.interface = interface_of(config)
        except (KeyError, TypeError) as error:
            raise ProtocolError(f"server at {self.url}: a model configuration without {error}") from error
        return self.interface

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[Message, None]:
        """Send `request`; yield its messages, stamped before they are decoded."""
        call = self._call(f"{self._model_path}/generate_stream", _body(request, self.interface), _HEADERS)
        events = EventReader()
        holds_last = not self.interface.has_output("finish_reason")
        try:
            async with self._connections.exchange(call) as exchange:
                answer = AnswerInProgress(exchange, is_cumulative=self.is_cumulative, holds_last=holds_last)
                try:
                    while chunks := await exchange.read():
                        if exchange.status != 200:
                            break
                        for message in self._messages(chunks, events, answer):
                            yield message
                    if exchange.status != 200:
                        content = b"".join(chunk for _, chunk in chunks) + await exchange.read_all()
                        self._raise_refused(exchange.status or 0, content)
                    if (last := self._last_message(exchange, answer)) is not None:
                        yield last
                except (ExchangeError, ClientError):
                    if (held := answer.held()) is not None:
                        yield held
                    raise
        except ExchangeError as error:
            await self._raise_for(error)

    def _messages(
        self, chunks: list[tuple[int, bytes]], events: EventReader, answer: AnswerInProgress
    ) -> Iterator[Message]:
        tells_no_end = not self.interface.has_output("finish_reason")
        for recv_ns, chunk in chunks:
            for data in events.split(chunk):
                outputs = self._json(data)
                if not isinstance(outputs, dict):
                    raise ProtocolError(f"server at {self.url}: {str(outputs)[:80]!r} is no message")
                if (problem := outputs.get("error")) is not None:
                    raise RequestRefusedError(f"server at {self.url}: {problem}")
                text, output_ids = _text_of(outputs), _ids_of(outputs)
                counts = outputs if tells_no_end or "finish_reason" in outputs else None
                message = answer.take(recv_ns, text, output_ids, counts)
                if message is not None:
                    yield message

    def _last_message(self, exchange: Exchange, answer: AnswerInProgress) -> Message | None:
        """What is still to be passed on of an answer that ended well."""
        kind = exchange.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            raise ProtocolError(f"the server at {self.url} answers {kind or 'without a content type'}, no event stream")
        if answer.is_complete:
            return answer.held()
        if not answer.has_begun or self.interface.has_output("finish_reason"):
            raise StreamClosedError(f"server at {self.url}: the stream ended before its last message")
        return answer.close()

    def _json(self, content: bytes) -> Any:
        try:
            return orjson.loads(content)
        except orjson.JSONDecodeError as error:
            raise ProtocolError(f"server at {self.url}: {content[:80]!r} is no JSON ({error})") from error

    def _raise_refused(self, status: int, content: bytes) -> NoReturn:
        """Raise what an answer other than 200 means."""
        try:
            parsed = orjson.loads(content.strip().removeprefix(b"data:"))  # as an event once the model saw the request
        except orjson.JSONDecodeError:
            parsed = None
        problem = parsed.get("error") if isinstance(parsed, dict) else None
        if problem is None:
            raise ProtocolError(
                f"the server at {self.url} answers HTTP {status}, not as Triton does. --url must be Triton's HTTP port"
            )
        if "unknown model" in str(problem):
            raise ServerUnreachableError(self._no_model(str(problem)))
        raise RequestRefusedError(f"server at {self.url}: {problem}")


def interface_of(config: dict[str, Any]) -> ModelInterface:
    """The interface that a model's configuration (JSON) declares."""

    def specs(key: str) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(
                name=tensor["name"],
                datatype="BYTES" if tensor["data_type"] == "TYPE_STRING" else tensor["data_type"].removeprefix("TYPE_"),
                dims=tuple(int(size) for size in tensor["dims"]),
                is_optional=bool(tensor.get("optional", False)),
            )
            for tensor in config.get(key, ())
        )

    return ModelInterface(
        model=config["name"],
        inputs=specs("input"),
        outputs=specs("output"),
        has_batch=int(config.get("max_batch_size", 0)) > 0,
        is_decoupled=bool(config.get("model_transaction_policy", {}).get("decoupled", False)),
    )


def _body(request: GenerationRequest, interface: ModelInterface) -> bytes:
    """The JSON of a generate request: inputs by name, a value alone where it is one."""
    fields: dict[str, Any] = {"id": request.request_id} if request.request_id else {}
    for spec, values in input_values(request, interface):
        is_list = len(values) != 1 or (spec.dims and spec.dims[-1] == -1 and spec.name != "text_input")
        fields[spec.name] = list(values) if is_list else values[0]
    try:
        return orjson.dumps(fields)
    except (TypeError, orjson.JSONEncodeError) as error:
        raise RequestError("text_input", f"cannot be sent as JSON ({error})") from error


def _text_of(outputs: dict[str, Any]) -> str:
    text = outputs.get("text_output", "")
    if isinstance(text, str):
        return text
    if isinstance(text, list) and all(isinstance(part, str) for part in text):
        return "".join(text)
    raise ProtocolError(f"the output text_output is {type(text).__name__}, not text")


def _ids_of(outputs: dict[str, Any]) -> tuple[int, ...] | None:
    """Token ids; one alone comes as itself."""
    if "output_ids" not in outputs:
        return None
    ids = outputs["output_ids"]
    values = ids if isinstance(ids, list) else [ids]
    if not all(type(value) is int for value in values):
        raise ProtocolError(f"the output output_ids is {ids!r}, not whole numbers")
    return tuple(values)
