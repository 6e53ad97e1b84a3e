"""Key/value memory: one slot of `max_seq_len` positions per row.

A row owns its slot from admission to the end and its length is the row's own number, so rows of one batch may be at
any lengths and nothing moves when a neighbour joins or leaves. Rejected draft tokens need no clean-up: the length
does not advance over them and the next step overwrites them. Memory is zeroed, so that positions nobody wrote hold
finite numbers; on Linux untouched positions still cost none.
"""

import torch


class KvCache:
    """Keys and values of L layers, each [num_slots * max_seq_len, KV heads, head dim]."""

    def __init__(
        self,
        *,
        num_slots: int,
        max_seq_len: int,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_slots * max_seq_len, num_kv_heads, head_dim)
        self.num_slots = num_slots
        self.max_seq_len = max_seq_len
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self._free = list(range(num_slots - 1, -1, -1))

    @property
    def num_positions(self) -> int:
        """Positions of one layer over all slots."""
        return self.num_slots * self.max_seq_len

    @property
    def num_free(self) -> int:
        """Slots nobody owns."""
        return len(self._free)

    def allocate(self) -> int:
        """A free slot. The caller checks `num_free` first; running out here is a bug."""
        return self._free.pop()

    def release(self, slot: int) -> None:
        """Give a slot back. Its contents stay and are overwritten by the next owner."""
        if slot in self._free:
            raise ValueError(f"slot {slot} was already released")
        self._free.append(slot)

    def start_of(self, slot: int) -> int:
        """Flat index of the slot's position 0."""
        return slot * self.max_seq_len
