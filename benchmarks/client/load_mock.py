"""A load mock for measuring clients: streams of messages, serialised beforehand, each with the time it was sent.

    python benchmarks/client/load_mock.py --rate 50 --messages 500

Prints its port, then `{"late_p99_ms": ...}` when its standard input closes. Every request gets `--messages` messages,
`--rate` a second, first at a random moment of one period; the very first is there to warm the client up and gets
20. It speaks gRPC (KServe v2 `ModelStreamInfer`, over bare
HTTP/2) and, to requests in HTTP/1.1, event streams: Triton's `generate_stream` or OpenAI's completions.

It runs alone in a process, on one thread without an event loop: `select` waits to some 60 microseconds, and a message
costs about 20. The text of a message is the monotonic time in ns at which it was handed to the socket, so the client's
stamp minus that number is the lag of the way and of the client. How late the mock itself was is measured too: the
numbers of a run in which it was late are void. Where it may, it therefore runs before all other processes.
"""

import argparse
import heapq
import json
import os
import random
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from tritonclient.grpc import service_pb2

STAMP_DIGITS = 19
WARM_UP_MESSAGES = 20
STAMP = b"*" * STAMP_DIGITS  # where the stamp goes
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INITIAL_WINDOW = 65535
# HPACK without its tables: `:status: 200` and the name content-type from the static table, the rest spelled out.
RESPONSE_HEADERS = b"\x88\x0f\x10\x10application/grpc"
TRAILERS = b"\x00\x0bgrpc-status\x010"
HTTP1_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass(slots=True)
class Stream:
    """One answer on its way: when its next message is due, how many are left, how much the client lets it send."""

    connection: "Connection"
    number: int
    parts: "MessageParts"
    left: int
    due_ns: int
    window: int
    is_open: bool = True


@dataclass(slots=True)
class Connection:
    """One client's connection. `http1`: None until its first bytes say which protocol it is."""

    socket: socket.socket
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    http1: bool | None = None
    window: int = INITIAL_WINDOW
    stream_window: int = INITIAL_WINDOW
    streams: dict[int, Stream] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MessageParts:
    """A serialised message before and after its stamp, and the last one of an answer."""

    before: bytes
    after: bytes
    last_before: bytes
    last_after: bytes


class LoadMock:
    """The server: sends what is due, then waits for the next moment or for a client."""

    def __init__(self, rate: float, num_messages: int, seed: int) -> None:
        self._period_ns = int(1e9 / rate)
        self._num_messages = num_messages
        self._random = random.Random(seed)  # noqa: S311 - moments, no secrets
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._connections: dict[int, Connection] = {}
        self._due: list[tuple[int, int, Stream]] = []
        self._num_streams = 0
        self._late_ns: list[int] = []
        self.port = self._listener.getsockname()[1]

    def run(self) -> None:
        """Serve until standard input closes."""
        while True:
            self._send_due()
            wait_s = max(self._due[0][0] - time.monotonic_ns(), 0) / 1e9 if self._due else 1.0
            readers = [self._listener, sys.stdin, *(connection.socket for connection in self._connections.values())]
            writers = [connection.socket for connection in self._connections.values() if connection.unsent]
            readable, writable, _ = select.select(readers, writers, [], wait_s)
            for ready in readable:
                if ready is sys.stdin:
                    return
                if ready is self._listener:
                    self._accept()
                elif isinstance(ready, socket.socket):
                    self._receive(ready)
            for ready in writable:
                connection = self._connections.get(ready.fileno())
                if connection is not None:
                    self._flush(connection)

    def lateness(self) -> dict[str, float]:
        """How late messages were handed over, in ms."""
        ordered = sorted(self._late_ns) or [0]
        return {
            "messages": len(self._late_ns),
            "late_p50_ms": ordered[len(ordered) // 2] / 1e6,
            "late_p99_ms": ordered[int(len(ordered) * 0.99)] / 1e6,
            "cpu_s": time.process_time(),
        }

    def _accept(self) -> None:
        accepted, _ = self._listener.accept()
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections[accepted.fileno()] = Connection(accepted)

    def _receive(self, ready: socket.socket) -> None:
        connection = self._connections[ready.fileno()]
        try:
            chunk = ready.recv(1 << 16)
        except OSError:
            chunk = b""
        if not chunk:
            self._drop(connection)
            return
        connection.received += chunk
        if connection.http1 is None and len(connection.received) >= len(PREFACE):
            connection.http1 = not connection.received.startswith(PREFACE)
            if not connection.http1:
                del connection.received[: len(PREFACE)]
                self._write(connection, _frame(SETTINGS, 0, 0, b""))
        if connection.http1:
            self._read_http1(connection)
        elif connection.http1 is False:
            self._read_frames(connection)

    def _read_frames(self, connection: Connection) -> None:
        received = connection.received
        while len(received) >= 9:
            length = int.from_bytes(received[:3], "big")
            if len(received) < 9 + length:
                return
            kind, flags, number = received[3], received[4], int.from_bytes(received[5:9], "big") & 0x7FFFFFFF
            payload = bytes(received[9 : 9 + length])
            del received[: 9 + length]
            self._take_frame(connection, kind, flags, number, payload)

    def _take_frame(self, connection: Connection, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            for offset in range(0, len(payload), 6):
                name, value = struct.unpack_from(">HI", payload, offset)
                if name == 4:  # SETTINGS_INITIAL_WINDOW_SIZE
                    connection.stream_window = value
            self._write(connection, _frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self._write(connection, _frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            increment = int.from_bytes(payload, "big")
            if number == 0:
                connection.window += increment
            elif number in connection.streams:
                connection.streams[number].window += increment
        elif kind == RST_STREAM:
            if (stream := connection.streams.pop(number, None)) is not None:
                stream.is_open = False
        elif kind == DATA and len(payload) >= 5 and number not in connection.streams:
            self._write(connection, _frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", len(payload))))
            self._write(connection, _frame(HEADERS, END_HEADERS, number, RESPONSE_HEADERS))
            self._begin(connection, number, GRPC_PARTS)

    def _read_http1(self, connection: Connection) -> None:
        head, blank, body = bytes(connection.received).partition(b"\r\n\r\n")
        if not blank:
            return
        lengths = [
            line.partition(b":")[2] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
        ]
        if lengths and len(body) < int(lengths[0]):
            return
        connection.received.clear()
        self._write(connection, HTTP1_HEAD)
        self._begin(connection, 0, OPENAI_PARTS if b"/v1/" in head.split(b"\r\n")[0] else TRITON_PARTS)

    def _begin(self, connection: Connection, number: int, parts: MessageParts) -> None:
        due_ns = time.monotonic_ns() + int(self._random.random() * self._period_ns)
        left = self._num_messages if self._num_streams else min(WARM_UP_MESSAGES, self._num_messages)
        stream = Stream(connection, number, parts, left, due_ns, connection.stream_window)
        connection.streams[number] = stream
        self._num_streams += 1
        heapq.heappush(self._due, (due_ns, self._num_streams, stream))

    def _send_due(self) -> None:
        while self._due and self._due[0][0] <= (now_ns := time.monotonic_ns()):
            due_ns, order, stream = heapq.heappop(self._due)
            if not stream.is_open:
                continue
            self._late_ns.append(now_ns - due_ns)
            self._send_message(stream)
            if stream.left:
                stream.due_ns += self._period_ns
                heapq.heappush(self._due, (stream.due_ns, order, stream))

    def _send_message(self, stream: Stream) -> None:
        stream.left -= 1
        parts, connection = stream.parts, stream.connection
        is_last = stream.left == 0
        before, after = (parts.last_before, parts.last_after) if is_last else (parts.before, parts.after)
        message = before + b"%019d" % time.monotonic_ns() + after
        if connection.http1:
            ending = b"0\r\n\r\n" if is_last else b""
            self._write(connection, b"%x\r\n%s\r\n%s" % (len(message), message, ending))
        else:
            size = len(message) + 5
            if stream.window < size or connection.window < size:
                raise RuntimeError(
                    f"the client's flow control stopped stream {stream.number}; such a run has no meaning"
                )
            stream.window -= size
            connection.window -= size
            framed = _frame(DATA, 0, stream.number, struct.pack(">BI", 0, len(message)) + message)
            if is_last:
                framed += _frame(HEADERS, END_HEADERS | END_STREAM, stream.number, TRAILERS)
            self._write(connection, framed)
        if is_last:
            connection.streams.pop(stream.number, None)

    def _write(self, connection: Connection, content: bytes) -> None:
        connection.unsent += content
        self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        try:
            sent = connection.socket.send(connection.unsent)
        except BlockingIOError:
            return
        except OSError:
            self._drop(connection)
            return
        del connection.unsent[:sent]

    def _drop(self, connection: Connection) -> None:
        for stream in connection.streams.values():
            stream.is_open = False
        self._connections.pop(connection.socket.fileno(), None)
        connection.socket.close()


def _frame(kind: int, flags: int, number: int, payload: bytes) -> bytes:
    """One HTTP/2 frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + number.to_bytes(4, "big") + payload


def _grpc_message(is_last: bool) -> bytes:
    """What `llm` streams: a delta of text, two token ids, on the last message the counts."""
    envelope = service_pb2.ModelStreamInferResponse()
    response = envelope.infer_response
    response.model_name, response.model_version, response.id = "llm", "1", "chat-c64-on-000001"
    response.parameters["triton_final_response"].bool_param = is_last
    tensors = [
        ("text_output", "BYTES", struct.pack("<I", STAMP_DIGITS) + STAMP),
        ("output_ids", "INT32", struct.pack("<2i", 5432, 65432)),
    ]
    if is_last:
        tensors += [
            ("finish_reason", "BYTES", struct.pack("<I", 6) + b"length"),
            ("output_token_count", "INT32", struct.pack("<i", 100)),
            ("num_steps", "INT32", struct.pack("<i", 50)),
        ]
    for name, datatype, raw in tensors:
        response.outputs.add(name=name, datatype=datatype, shape=[1, 2 if name == "output_ids" else 1])
        response.raw_output_contents.append(raw)
    return bytes(envelope.SerializeToString())


def _triton_event(is_last: bool) -> bytes:
    outputs = {"model_name": "llm", "model_version": "1", "output_ids": [5432, 65432], "text_output": STAMP.decode()}
    if is_last:
        outputs |= {"finish_reason": "length", "output_token_count": 100, "num_steps": 50}
    return b"data: " + _json(outputs) + b"\n\n"


def _openai_event(is_last: bool) -> bytes:
    choice = {"index": 0, "text": STAMP.decode(), "logprobs": None, "finish_reason": "length" if is_last else None}
    chunk = {"id": "cmpl-000001", "object": "text_completion", "created": 1, "model": "llm", "choices": [choice]}
    ending = b""
    if is_last:
        usage = {"prompt_tokens": 10, "completion_tokens": 100, "total_tokens": 110}
        ending = b"data: " + _json(chunk | {"choices": [], "usage": usage}) + b"\n\ndata: [DONE]\n\n"
    return b"data: " + _json(chunk) + b"\n\n" + ending


def _json(content: object) -> bytes:
    return json.dumps(content).encode()


def _parts(make: Callable[[bool], bytes]) -> MessageParts:
    before, _, after = make(False).partition(STAMP)
    last_before, _, last_after = make(True).partition(STAMP)
    return MessageParts(before, after, last_before, last_after)


GRPC_PARTS = _parts(_grpc_message)
TRITON_PARTS = _parts(_triton_event)
OPENAI_PARTS = _parts(_openai_event)


def main() -> None:
    """Serve one measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=50.0, help="messages per second of one stream")
    parser.add_argument("--messages", type=int, default=500, help="messages of one stream")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with suppress(PermissionError):  # then other processes of the machine make it late, which it reports
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    mock = LoadMock(arguments.rate, arguments.messages, arguments.seed)
    print(mock.port, flush=True)
    mock.run()
    print(json.dumps(mock.lateness()), flush=True)


if __name__ == "__main__":
    main()
