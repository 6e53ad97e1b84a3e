"""Units."""

import pytest

from specdeploy.units import format_bytes, ns_to_ms, ns_to_s


def test_durations() -> None:
    assert ns_to_ms(1_500_000) == 1.5
    assert ns_to_s(2_000_000_000) == 2.0


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (98_362_432, "93.8 MiB"),
        (3 << 30, "3.0 GiB"),
        (1 << 50, "1024.0 TiB"),
    ],
)
def test_sizes(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text
