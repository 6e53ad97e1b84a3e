"""Messages of many requests in flat arrays: exact values, and nothing leaks from one request into the next."""

import numpy as np
import pytest

from specdeploy_client.records.message_columns import MessageColumns, flat_ints, whole_numbers


def _columns(
    message_ns: list[list[int]], message_tokens: list[list[int] | None], reported: list[int] | None = None
) -> MessageColumns:
    zeros = np.zeros(len(message_ns), dtype=np.int64)
    reported_tokens = zeros - 1 if reported is None else np.array(reported)
    return MessageColumns.of(message_ns, message_tokens, reported_tokens, zeros)


@pytest.mark.parametrize("burst", [1, 2, 3, 4, 5])
def test_bursts_of_known_times_give_exact_values(burst: int) -> None:
    arrivals = [100 + 60 * i for i in range(7)]
    columns = _columns([arrivals, arrivals], [[1] + [burst] * 6, [1] * 7])
    assert columns.ttft_ns.tolist() == [100, 100]
    assert columns.e2e_ns.tolist() == [460, 460]
    assert columns.tpot_ns.tolist() == [360 / (6 * burst), 60]
    assert columns.gaps_ns.tolist() == [60] * 12
    assert columns.gap_tokens.tolist() == [burst] * 6 + [1] * 6
    assert columns.gap_requests.tolist() == [0] * 6 + [1] * 6


def test_requests_without_messages_or_tokens_stand_between_others() -> None:
    columns = _columns([[], [5, 9], [], [7], [3, 8, 20], []], [[], [1, 2], [], [0], [0, 1, 1], None])
    assert columns.num_tokens.tolist() == [0, 3, 0, 0, 2, -1]
    assert columns.num_messages.tolist() == [0, 2, 0, 0, 2, 0]
    np.testing.assert_array_equal(columns.ttft_ns, [np.nan, 5, np.nan, np.nan, 8, np.nan])
    np.testing.assert_array_equal(columns.e2e_ns, [np.nan, 9, np.nan, 7, 20, np.nan])
    np.testing.assert_array_equal(columns.tpot_ns, [np.nan, 2, np.nan, np.nan, 12, np.nan])
    assert columns.gaps_ns.tolist() == [4, 12]
    assert columns.gap_requests.tolist() == [1, 4]


def test_where_tokens_are_not_said_every_message_counts_and_the_server_says_how_many() -> None:
    columns = _columns([[10, 30], [10]], [None, [4]], reported=[5, 99])
    assert columns.num_tokens.tolist() == [5, 4]
    assert columns.tpot_ns[0] == 5.0
    assert columns.gap_tokens.tolist() == [0]


def test_no_requests_are_no_values() -> None:
    columns = _columns([], [])
    assert columns.ttft_ns.size == columns.gaps_ns.size == columns.gap_tokens.size == columns.num_messages.size == 0


def test_numbers_that_are_not_whole_are_refused() -> None:
    for values in (["7"], [7.0], [None], [2**70], [[1], [1, 2]], [True], [1, False]):
        with pytest.raises((TypeError, OverflowError)):
            whole_numbers(values)  # type: ignore[arg-type]
    assert flat_ints([[1], [], [2, 3]]).tolist() == [1, 2, 3]


def test_counts_that_do_not_fit_the_messages_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        _columns([[1, 2]], [[1]])
    with pytest.raises(ValueError, match="negative"):
        _columns([[1, 2]], [[1, -1]])


def test_tpot_ends_with_the_last_message_that_carries_a_token() -> None:
    columns = _columns([[100, 140, 180, 400], [10, 30]], [[1, 4, 4, 0], None], reported=[9, 5])
    assert columns.e2e_ns.tolist() == [400, 30]
    assert columns.tpot_ns.tolist() == [80 / 8, 20 / 4]


def test_an_unknown_number_of_tokens_has_no_tpot() -> None:
    columns = _columns([[10, 30]], [None])
    assert columns.num_tokens.tolist() == [-1]
    assert np.isnan(columns.tpot_ns).all()
