"""The old place of `transports.triton_grpc`; goes when nothing imports it any more."""

from specdeploy_client.transports import triton_grpc
from specdeploy_client.transports.endpoint import EndpointKind, parse_endpoint


class GrpcTransport(triton_grpc.GrpcTransport):
    """Talks to the Triton model `llm` at `url` (host:port)."""

    def __init__(self, url: str, timeout_s: float) -> None:
        super().__init__(parse_endpoint(url, EndpointKind.TRITON_GRPC), timeout_s)
