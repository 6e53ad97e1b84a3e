"""Rooms are handed out once, none is lost, and what is moved arrives."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdeploy.runtime.attention import Span
from specdeploy.runtime.kv_cache import KvCache
from specdeploy.runtime.model import DecoderModel

NUM_LAYERS = 2


def make_cache(
    num_slots: int = 3, max_seq_len: int = 8, *, num_tokens: int | None = None, extra_tokens: int = 0
) -> KvCache:
    return KvCache(
        num_slots=num_slots,
        max_seq_len=max_seq_len,
        num_layers=NUM_LAYERS,
        num_kv_heads=1,
        head_dim=2,
        dtype=torch.float32,
        device=torch.device("cpu"),
        num_tokens=num_tokens,
        extra_tokens=extra_tokens,
    )


def test_slots_are_unique_until_released() -> None:
    cache = make_cache()
    assert [cache.allocate(8) for _ in range(3)] == [0, 1, 2]
    assert (cache.num_free, cache.num_tokens_in_use) == (0, 24)
    assert cache.allocate(1) is None
    cache.release(1)
    with pytest.raises(ValueError, match="slot 1 is not owned"):
        cache.release(1)
    assert cache.allocate(3) == 1
    assert cache.start_of(2) == 16


def test_uniform_slots_lie_at_equal_distances_and_need_no_owner() -> None:
    cache = make_cache(extra_tokens=3)
    assert [cache.start_of(slot) for slot in range(3)] == [0, 11, 22]
    assert (cache.num_positions, cache.max_request_tokens) == (33, 11)
    assert cache.keys[0].shape == (33, 1, 2)


def test_the_lowest_free_slot_is_given_first() -> None:
    cache = make_cache(4)
    for _ in range(4):
        cache.allocate(1)
    for slot in (3, 0, 2):
        cache.release(slot)
    assert [cache.allocate(1) for _ in range(3)] == [0, 2, 3]


@pytest.mark.parametrize("num_tokens", [24, 1000])
def test_an_arena_with_room_for_every_context_is_uniform(num_tokens: int) -> None:
    cache = make_cache(num_tokens=num_tokens)
    assert cache.is_uniform
    assert cache.num_positions == 24


def test_a_bounded_arena_gives_what_is_asked_for() -> None:
    cache = make_cache(num_tokens=12)
    assert cache.max_request_tokens == 8
    assert [cache.allocate(7), cache.allocate(4)] == [0, 1]
    assert cache.allocate(2) is None  # one position is left, and one slot
    assert cache.num_free == 1
    assert [cache.start_of(0), cache.start_of(1)] == [0, 7]
    cache.release(0)
    assert cache.allocate(8) is None  # 7 and 1 positions are free, not in one piece
    assert cache.allocate(7) == 0
    cache.release(0)
    cache.release(1)
    assert cache.num_tokens_in_use == 0
    assert cache.allocate(8) == 0  # neighbours have joined


def test_a_bounded_slot_without_owner_has_no_place() -> None:
    with pytest.raises(ValueError, match="slot 0 is not owned"):
        make_cache(num_tokens=12).start_of(0)


@pytest.mark.parametrize(("num_tokens", "asked"), [(None, 9), (None, 0), (12, 9), (5, 6)])
def test_what_will_never_fit_is_refused(num_tokens: int | None, asked: int) -> None:
    with pytest.raises(ValueError, match=f"num_tokens: {asked} is not in"):
        make_cache(num_tokens=num_tokens).allocate(asked)


def test_an_empty_arena_is_refused() -> None:
    with pytest.raises(ValueError, match="num_tokens: 0"):
        make_cache(num_tokens=0)


@settings(deadline=None)
@given(
    arena=st.sampled_from([None, 30, 17, 9]),
    actions=st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=60),
)
def test_rooms_never_overlap_and_none_is_lost(arena: int | None, actions: list[tuple[bool, int]]) -> None:
    cache = make_cache(5, 8, num_tokens=arena, extra_tokens=1)
    owned: dict[int, range] = {}
    for is_allocation, number in actions:
        if is_allocation:
            slot = cache.allocate(number)
            if slot is None:
                assert len(owned) == 5 or not fits(owned, number, cache.num_positions)
                continue
            assert slot not in owned
            owned[slot] = range(cache.start_of(slot), cache.start_of(slot) + number)
            assert owned[slot].stop <= cache.num_positions
        elif owned:
            slot = sorted(owned)[number % len(owned)]
            del owned[slot]
            cache.release(slot)
        rooms = sorted(owned.values(), key=lambda room: room.start)
        assert all(one.stop <= two.start for one, two in itertools.pairwise(rooms))
        assert all(cache.start_of(slot) == room.start for slot, room in owned.items())
    for slot in owned:
        cache.release(slot)
    assert (cache.num_free, cache.num_tokens_in_use) == (5, 0)
    assert cache.allocate(cache.max_request_tokens) == 0


def fits(owned: dict[int, range], number: int, num_positions: int) -> bool:
    """Whether `number` positions in one piece belong to nobody."""
    taken = {position for room in owned.values() for position in room}
    return any(not taken.intersection(range(start, start + number)) for start in range(num_positions - number + 1))


@settings(deadline=None)
@given(st.data())
def test_a_move_equals_a_copy_position_by_position(data: st.DataObject) -> None:
    arena = data.draw(st.sampled_from([None, 20]))
    cache = make_cache(3, 8, num_tokens=arena)
    for _ in range(2):
        cache.allocate(8)
    sources = sorted(data.draw(st.sets(st.integers(0, 7))))
    target = data.draw(st.integers(0, sources[0] if sources else 8))
    before = torch.randn(2, NUM_LAYERS, cache.num_positions, 1, 2)
    for layer in range(NUM_LAYERS):
        cache.keys[layer].copy_(before[0, layer])
        cache.values[layer].copy_(before[1, layer])
    expected = before.clone()
    for offset, source in enumerate(sources):
        expected[:, :, 8 + target + offset] = before[:, :, 8 + source]

    cache.move(1, sources, target)

    assert torch.equal(torch.stack([torch.stack(cache.keys), torch.stack(cache.values)]), expected)


def test_rows_of_a_bounded_arena_give_the_logits_of_uniform_rows(target: DecoderModel) -> None:
    uniform = target.new_cache(3, extra_tokens=4)
    bounded = target.new_cache(3, num_tokens=60)
    for room in (11, 23, 17):  # unequal distances: the rows are gathered
        bounded.allocate(room)
    prompts = [[5, 9, 2, 7], [3, 3, 8], [1, 6]]
    spans = [Span(0, 4, 0, 0), Span(4, 7, 1, 0), Span(7, 9, 2, 0)]
    tokens = [token for prompt in prompts for token in prompt]
    next_spans = [Span(0, 1, 0, 4), Span(1, 2, 1, 3), Span(2, 3, 2, 2)]
    logits = []
    for cache in (uniform, bounded):
        target.forward(tokens, spans, [], cache)
        logits.append(target.forward([4, 4, 4], next_spans, range(3), cache).logits)
    torch.testing.assert_close(logits[0], logits[1])
