"""When a server counts as lost."""

import pytest

from specdeploy.run_contract import FailureKind, RequestRecord
from specdeploy_client.load.server_watch import MAX_SILENT_TIMEOUTS, ServerWatch
from specdeploy_client.transport import Message
from unit.specdeploy_client.fabricate import make_record


def _ended(failure: FailureKind | None, send_ms: float = 0.0) -> RequestRecord:
    record = make_record((), (), send_ms=send_ms, error=None if failure is None else f"{failure} it was")
    return record.model_copy(update={"failure": failure})


def test_a_server_that_nobody_reaches_is_lost_at_once_and_once() -> None:
    watch = ServerWatch()
    assert watch.judge(_ended(FailureKind.UNREACHABLE))
    assert watch.lost == "unreachable it was"
    assert not watch.judge(_ended(FailureKind.UNREACHABLE))


@pytest.mark.parametrize(
    "failure", [None, FailureKind.REFUSED, FailureKind.STREAM_CLOSED, FailureKind.PROTOCOL, FailureKind.CLOCK]
)
def test_a_server_that_answers_anything_is_there(failure: FailureKind | None) -> None:
    watch = ServerWatch()
    assert not any(watch.judge(_ended(failure)) for _ in range(10))
    assert watch.lost is None


def test_a_server_that_says_nothing_is_lost_after_some_time_limits() -> None:
    watch = ServerWatch()
    assert [watch.judge(_ended(FailureKind.TIMEOUT)) for _ in range(MAX_SILENT_TIMEOUTS)] == [False, False, True]
    assert watch.lost == "3 requests in a row without a single message (timeout it was)"


def test_a_slow_server_that_talks_to_others_is_not_lost() -> None:
    watch = ServerWatch()
    for second in range(10):
        watch.hear(Message(second * 1_000_000_000 + 500_000_000, "x", (1,)))
        assert not watch.judge(_ended(FailureKind.TIMEOUT, send_ms=second * 1000.0))
    assert not watch.judge(_ended(FailureKind.TIMEOUT, send_ms=20_000.0))
    watch.hear(Message(21_000_000_000, "x", (1,)))
    assert not any(watch.judge(_ended(FailureKind.TIMEOUT, send_ms=22_000.0)) for _ in range(2))
    assert watch.judge(_ended(FailureKind.TIMEOUT, send_ms=22_000.0))


@pytest.mark.parametrize("sign", [None, FailureKind.REFUSED, FailureKind.STREAM_CLOSED, FailureKind.PROTOCOL])
def test_any_sign_of_life_between_time_limits_counts(sign: FailureKind | None) -> None:
    watch = ServerWatch()
    for second in range(10):
        assert not watch.judge(_ended(FailureKind.TIMEOUT, send_ms=second * 1000.0))
        assert not watch.judge(_ended(sign, send_ms=second * 1000.0 + 500.0))
    # Sent while the server still refused others: it was there.
    assert not any(watch.judge(_ended(FailureKind.TIMEOUT, send_ms=9_000.0)) for _ in range(9))
