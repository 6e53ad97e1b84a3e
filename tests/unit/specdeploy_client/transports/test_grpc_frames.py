"""gRPC messages inside chunks of a stream."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy_client.transport import ProtocolError
from specdeploy_client.transports.grpc_frames import FrameReader, frame, parse_status

MESSAGES = [b"", b"a", b"message" * 50, b"b" * 5]
STREAM = b"".join(frame(message) for message in MESSAGES)


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_split_anywhere(cuts: list[int]) -> None:
    reader = FrameReader()
    edges = [0, *sorted(cuts), len(STREAM)]
    chunks = [STREAM[start:end] for start, end in pairwise(edges)]
    assert [message for chunk in chunks for message in reader.split(chunk)] == MESSAGES


def test_a_message_is_framed_by_flag_and_big_endian_length() -> None:
    assert frame(b"abc") == b"\0\0\0\0\x03abc"


@pytest.mark.parametrize("head", [b"\x01\0\0\0\x01", b"\0\xff\xff\xff\xff", b"HTTP/"])
def test_what_is_compressed_or_no_grpc_is_refused(head: bytes) -> None:
    with pytest.raises(ProtocolError, match="compressed, or no gRPC"):
        FrameReader().split(head)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, None),
        ({"grpc-status": "0"}, ("OK", "")),
        ({"grpc-status": "14", "grpc-message": "gone%20away"}, ("UNAVAILABLE", "gone away")),
        ({"grpc-status": "77", "grpc-message": "?"}, ("status 77", "?")),
        ({"grpc-status": "x"}, ("UNKNOWN", "")),
    ],
)
def test_status(fields: dict[str, str], status: tuple[str, str] | None) -> None:
    assert parse_status(fields) == status
