"""Slots are handed out once."""

import pytest
import torch

from specdeploy.runtime.kv_cache import KvCache


def test_slots_are_unique_until_released() -> None:
    cache = KvCache(
        num_slots=3,
        max_seq_len=8,
        num_layers=1,
        num_kv_heads=1,
        head_dim=2,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    slots = [cache.allocate() for _ in range(3)]
    assert sorted(slots) == [0, 1, 2]
    assert cache.num_free == 0
    cache.release(slots[1])
    with pytest.raises(ValueError, match="already released"):
        cache.release(slots[1])
    assert cache.allocate() == slots[1]
    assert cache.start_of(2) == 16
