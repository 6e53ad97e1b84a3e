"""One client reads many streams of the load mock, alone in its process; prints what that cost as JSON.

    python benchmarks/client/stream_client.py tritonclient --port 5001 --streams 64

Every client does what a measurement needs with a message: a stamp on arrival, its text and its token ids decoded.
"""

import argparse
import asyncio
import json
import os
import struct
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

Lags = list[int]


def run_specdeploy(url: str, kind: str, num_streams: int, lags: Lags) -> None:
    """This project's transports."""
    from specdeploy_client.transport import GenerationRequest
    from specdeploy_client.transports.endpoint import open_transport, parse_endpoint

    async def one(transport: Any) -> None:
        async for message in transport.stream(GenerationRequest("hello", 16)):
            lags.append(message.recv_ns - int(message.text))

    async def main() -> None:
        async with open_transport(parse_endpoint(url, kind, model="llm"), 300.0) as transport:
            await asyncio.gather(*[one(transport) for _ in range(num_streams)])

    asyncio.run(main())


def run_tritonclient(url: str, num_streams: int, lags: Lags) -> None:
    """Plain tritonclient: one client for each stream, as it takes only one; results come in its threads."""
    import numpy as np
    import tritonclient.grpc as triton

    finished = threading.Semaphore(0)

    def on_result(result: Any, error: Exception | None) -> None:
        recv_ns = time.monotonic_ns()
        if error is not None:  # raising in its thread would only be lost
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
        text = result.as_numpy("text_output").reshape(-1)[0].decode()
        result.as_numpy("output_ids").tolist()
        lags.append(recv_ns - int(text))
        if result.get_response().parameters["triton_final_response"].bool_param:
            finished.release()

    text_input = triton.InferInput("text_input", [1, 1], "BYTES")
    text_input.set_data_from_numpy(np.array([["hello"]], dtype=object))
    clients = [triton.InferenceServerClient(url) for _ in range(num_streams)]
    for client in clients:
        client.start_stream(on_result)
        client.async_stream_infer("llm", [text_input])
    for _ in clients:
        finished.acquire()
    for client in clients:
        client.stop_stream()
        client.close()


def run_tritonclient_aio(url: str, num_streams: int, lags: Lags) -> None:
    """tritonclient's own asyncio client."""
    import numpy as np
    import tritonclient.grpc.aio as triton

    text_input = triton.InferInput("text_input", [1, 1], "BYTES")
    text_input.set_data_from_numpy(np.array([["hello"]], dtype=object))

    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "llm", "inputs": [text_input]}

    async def one(client: Any) -> None:
        async for result, error in client.stream_infer(requests()):
            recv_ns = time.monotonic_ns()
            if error is not None:
                raise error
            text = result.as_numpy("text_output").reshape(-1)[0].decode()
            result.as_numpy("output_ids").tolist()
            lags.append(recv_ns - int(text))

    async def main() -> None:
        async with triton.InferenceServerClient(url) as client:
            await asyncio.gather(*[one(client) for _ in range(num_streams)])

    asyncio.run(main())


def run_grpc_aio(url: str, num_streams: int, lags: Lags) -> None:
    """The generated stubs on grpc.aio, decoded by hand."""
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    request = service_pb2.ModelInferRequest(model_name="llm")
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1])
    request.raw_input_contents.append(struct.pack("<I", 5) + b"hello")

    async def requests() -> AsyncIterator[Any]:
        yield request

    async def one(stub: Any) -> None:
        async for envelope in stub.ModelStreamInfer(requests()):
            recv_ns = time.monotonic_ns()
            response = envelope.infer_response
            contents = {
                output.name: raw for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
            }
            struct.unpack(f"<{len(contents['output_ids']) // 4}i", contents["output_ids"])
            lags.append(recv_ns - int(contents["text_output"][4:].decode()))

    async def main() -> None:
        async with grpc.aio.insecure_channel(url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            await asyncio.gather(*[one(stub) for _ in range(num_streams)])

    asyncio.run(main())


CLIENTS: dict[str, Callable[[str, int, Lags], None]] = {
    "specdeploy": lambda url, num, lags: run_specdeploy(url, "triton-grpc", num, lags),
    "specdeploy-http": lambda url, num, lags: run_specdeploy(f"http://{url}", "triton-http", num, lags),
    "specdeploy-openai": lambda url, num, lags: run_specdeploy(f"http://{url}", "openai-completions", num, lags),
    "tritonclient": run_tritonclient,
    "tritonclient-aio": run_tritonclient_aio,
    "grpc-aio": run_grpc_aio,
}


def main() -> None:
    """Read the streams and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--streams", type=int, default=64)
    arguments = parser.parse_args()
    warm_up: Lags = []
    url = f"127.0.0.1:{arguments.port}"
    CLIENTS[arguments.client](url, 1, warm_up)  # imports and first calls are not per message
    lags: Lags = []
    cpu_s, wall_s = time.process_time(), time.monotonic()
    CLIENTS[arguments.client](url, arguments.streams, lags)
    cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - wall_s
    lags.sort()
    measured = {
        "messages": len(lags),
        "cpu_us": cpu_s / len(lags) * 1e6,
        "cpu_share": cpu_s / wall_s,
        "lag_p50_ms": lags[len(lags) // 2] / 1e6,
        "lag_p99_ms": lags[int(len(lags) * 0.99)] / 1e6,
    }
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
