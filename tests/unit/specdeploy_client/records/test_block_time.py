"""Time of one block: of closed loops to the last answer, of open ones as long as requests were due."""

import numpy as np
import pytest

from specdeploy_client.records.block_time import closed_block_time_ns, open_block_time_ns

MS = 1_000_000


def _ms(*values: float) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.array([round(value * MS) for value in values], dtype=np.int64)


def test_a_closed_loop_lasts_to_its_last_answer() -> None:
    assert closed_block_time_ns(_ms(30, 10, 20), _ms(40, 90, 50)) == 80 * MS


def test_an_open_loop_lasts_while_requests_are_due() -> None:
    due = _ms(0, 100, 250, 300)
    assert open_block_time_ns(due, due + 5 * MS, 10.0) == 400 * MS
    assert open_block_time_ns(due[::-1], due[::-1] + 5000 * MS, 10.0) == 400 * MS
    assert open_block_time_ns(_ms(7), _ms(900), 10.0) == 100 * MS
    assert open_block_time_ns(_ms(7, 7), _ms(900, 900), 10.0) == 100 * MS


@pytest.mark.parametrize("seed", range(5))
def test_chance_is_not_falling_behind(seed: int) -> None:
    due = np.arange(40, dtype=np.int64) * 100 * MS
    latency = np.random.default_rng(seed).lognormal(0, 0.6, 40) * 500 * MS
    assert open_block_time_ns(due, due + latency.astype(np.int64), 10.0) == 4000 * MS


def test_what_a_server_fell_behind_counts() -> None:
    due = np.arange(100, dtype=np.int64) * 100 * MS
    served = np.arange(1, 101, dtype=np.int64) * 250 * MS  # 4 a second of the 10 that are due
    assert open_block_time_ns(due, served, 10.0) == pytest.approx(25_000 * MS, rel=0.01)
