"""Key/value memory: one arena, allocated once, in which every row owns a contiguous room from admission to its end.

A row's length is the row's own number, so rows of one batch may be at any lengths and nothing moves when a neighbour
joins or leaves. Rejected draft tokens need no clean-up: the length does not advance over them and the next step
overwrites them. Memory is zeroed, so that positions nobody wrote hold finite numbers; on Linux untouched positions
still cost none.

Rooms are of one of two kinds:

    uniform   the arena holds `num_slots` full contexts. Slot n starts at n * stride whether or not anyone owns it, and
              the lowest free slot is given first, so that rows lie dense and attention reads them in place.
    bounded   the arena is smaller. A row gets as many positions as it asks for, first fit, and keeps its place; freed
              rooms join their free neighbours.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class _Room:
    """Flat positions [start, start + length) of the arena."""

    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


class KvCache:
    """Keys and values of L layers, each [num_positions, KV heads, head dim], in one block of memory."""

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
        num_tokens: int | None = None,
        extra_tokens: int = 0,
    ) -> None:
        """`extra_tokens`: room of a row beyond `max_seq_len`, for draft tokens that stand side by side in a tree.

        `num_tokens`: positions of the arena. None, or as many as `num_slots` full contexts need, makes uniform slots;
        fewer make a bounded arena. More could never be used and are not allocated.
        """
        if num_tokens is not None and num_tokens < 1:
            raise ValueError(f"num_tokens: {num_tokens} is no room for any row")
        self.num_slots = num_slots
        self.max_seq_len = max_seq_len
        self._stride = max_seq_len + extra_tokens
        most = num_slots * self._stride
        self.is_uniform = num_tokens is None or num_tokens >= most
        self.num_positions = most if num_tokens is None else min(num_tokens, most)
        self._memory = torch.zeros(
            (2, num_layers, self.num_positions, num_kv_heads, head_dim), dtype=dtype, device=device
        )
        self.keys, self.values = (list(half.unbind()) for half in self._memory.unbind())
        self._free_slots = list(range(num_slots))  # a heap
        self._free_rooms = [_Room(0, self.num_positions)]  # by place; read in a bounded arena only
        self._rooms: dict[int, _Room] = {}

    @property
    def num_free(self) -> int:
        """Slots nobody owns. In a bounded arena there may be no room for them."""
        return len(self._free_slots)

    @property
    def num_tokens_in_use(self) -> int:
        """Positions that rows own; a uniform slot is owned whole."""
        return sum(room.length for room in self._rooms.values())

    @property
    def max_request_tokens(self) -> int:
        """Most positions a row may ask for: more would not fit into an empty arena either."""
        return min(self._stride, self.num_positions)

    def allocate(self, num_tokens: int) -> int | None:
        """A slot with room for `num_tokens` positions; None while no slot, or no such room in one piece, is free.

        Raises ValueError for a room that will never be free: more than `max_request_tokens`, or nothing.
        """
        if not 1 <= num_tokens <= self.max_request_tokens:
            raise ValueError(f"num_tokens: {num_tokens} is not in 1..{self.max_request_tokens}")
        if not self._free_slots:
            return None
        if self.is_uniform:
            room = _Room(self._free_slots[0] * self._stride, self._stride)
        else:
            found = self._take_room(num_tokens)
            if found is None:
                return None
            room = found
        slot = heapq.heappop(self._free_slots)
        self._rooms[slot] = room
        return slot

    def release(self, slot: int) -> None:
        """Give a slot back. Its contents stay and are overwritten by the next owner. ValueError if nobody owns it."""
        if slot not in self._rooms:
            raise ValueError(f"slot {slot} is not owned: released already, or never allocated")
        room = self._rooms.pop(slot)
        heapq.heappush(self._free_slots, slot)
        if not self.is_uniform:
            self._free_rooms = _joined([*self._free_rooms, room])

    def clear(self, slot: int) -> None:
        """Zero the slot's positions in every layer: numbers that are not finite must not outlive their row. Attention
        masks what lies behind a row, and 0 * NaN is NaN. ValueError as in `start_of`."""
        start = self.start_of(slot)
        self._memory[:, :, start : start + self.length_of(slot)] = 0.0

    def start_of(self, slot: int) -> int:
        """Flat index of the slot's position 0.

        In a uniform cache every slot has one, owned or not: a drafter's cache follows the engine's slots without
        allocating. In a bounded arena only an owned slot has; ValueError otherwise.
        """
        if self.is_uniform:
            return slot * self._stride
        if slot not in self._rooms:
            raise ValueError(f"slot {slot} is not owned and has no place in a bounded arena")
        return self._rooms[slot].start

    def length_of(self, slot: int) -> int:
        """Positions of the slot, from `start_of` on. ValueError as there."""
        if self.is_uniform:
            return self._stride
        if slot not in self._rooms:
            raise ValueError(f"slot {slot} is not owned and has no place in a bounded arena")
        return self._rooms[slot].length

    def move(self, slot: int, sources: Sequence[int], target: int) -> None:
        """Copy the slot's positions `sources` to target, target + 1, ... in the keys and values of every layer.

        This makes the accepted path of a tree contiguous: positions count from the slot's start, rise, and are never
        before their destination. Overlap is safe, everything is read before anything is written.
        """
        num_in_place = 0
        while num_in_place < len(sources) and sources[num_in_place] == target + num_in_place:
            num_in_place += 1
        moved = sources[num_in_place:]
        if not moved:
            return
        start = self.start_of(slot)
        index = torch.tensor([start + source for source in moved], device=self._memory.device)
        first = start + target + num_in_place
        self._memory[:, :, first : first + len(moved)] = self._memory.index_select(2, index)

    def _take_room(self, num_tokens: int) -> _Room | None:
        """The first free room that is long enough, cut to length."""
        for index, free in enumerate(self._free_rooms):
            if free.length >= num_tokens:
                rest = _Room(free.start + num_tokens, free.length - num_tokens)
                self._free_rooms[index : index + 1] = [rest] if rest.length else []
                return _Room(free.start, num_tokens)
        return None


def _joined(rooms: list[_Room]) -> list[_Room]:
    """Rooms by place, those that touch made one."""
    joined: list[_Room] = []
    for room in sorted(rooms, key=lambda room: room.start):
        if joined and joined[-1].end == room.start:
            joined[-1] = _Room(joined[-1].start, joined[-1].length + room.length)
        else:
            joined.append(room)
    return joined
