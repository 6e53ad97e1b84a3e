"""Event streams, split anywhere."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy_client.transport import ProtocolError
from specdeploy_client.transports import event_stream
from specdeploy_client.transports.event_stream import EventReader

STREAM = (
    b"\xef\xbb\xbfdata: one\n\n"
    b": a comment\n\n"
    b"event: error\r\ndata:two\r\nid: 3\r\n\r\n"
    b"data: three\rdata: lines\r\r"
    b"data\n\n"
    b"retry: 5\n\n"
    b"data: vi\xc3\xa9r \xe2\x82\xac\n\n"
)
EVENTS = [b"one", b"two", b"three\nlines", b"", "vi\u00e9r \u20ac".encode()]


def _read(chunks: list[bytes]) -> list[bytes]:
    reader = EventReader()
    return [event for chunk in chunks for event in reader.split(chunk)]


def test_all_at_once_and_byte_by_byte() -> None:
    assert _read([STREAM]) == EVENTS
    assert _read([STREAM[index : index + 1] for index in range(len(STREAM))]) == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_split_anywhere(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    assert _read([STREAM[start:end] for start, end in pairwise(edges)]) == EVENTS


def test_an_event_without_an_empty_line_after_it_is_none() -> None:
    assert _read([b"data: one\n\ndata: two\n"]) == [b"one"]


def test_a_carriage_return_at_the_end_of_a_chunk_may_be_half_a_line_end() -> None:
    assert _read([b"data: one\r", b"\n\r", b"\ndata: two\n\n"]) == [b"one", b"two"]


def test_an_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MAX_EVENT_BYTES", 10)
    with pytest.raises(ProtocolError, match="more than 10 bytes"):
        _read([b"data: 0123456789"])
