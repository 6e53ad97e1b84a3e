"""Steps of fixed shape against the general forward pass: the same numbers for the same text, whatever is padded.

Here without graphs; `tests/gpu` repeats the comparison through CUDA graphs.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from helpers import reference_varlen
from specdeploy.errors import CheckpointError
from specdeploy.runtime import static_attention, static_step
from specdeploy.runtime.attention import Span
from specdeploy.runtime.cuda_graph import GraphPool
from specdeploy.runtime.graphed_model import GraphedModel
from specdeploy.runtime.kv_cache import KvCache
from specdeploy.runtime.model import FINAL_NORM, DecoderModel
from specdeploy.runtime.static_step import StaticSteps, context_buckets

from .conftest import MAX_SEQ_LEN

TREE = (-1, 0, 0, 1, 1, 2)
SLOTS = 5


def filled_cache(model: DecoderModel, lengths: dict[int, int], **options: int) -> KvCache:
    """A cache whose slots hold random text of the given lengths; equal for equal arguments."""
    draw = random.Random(0)
    cache = model.new_cache(SLOTS, **options)
    if not cache.is_uniform:
        for _ in range(1 + max(lengths)):
            assert cache.allocate(30) is not None
    for slot, length in lengths.items():
        text = [draw.randrange(model.vocab_size) for _ in range(length)]
        model.forward(text, [Span(0, length, slot, 0)], [], cache)
    return cache


def spans_of(rows: Sequence[tuple[int, int, int]], parents: Sequence[tuple[int, ...] | None] = ()) -> list[Span]:
    """(slot, cached, tokens) of each row -> spans end to end."""
    spans, start = [], 0
    for index, (slot, cached, count) in enumerate(rows):
        spans.append(Span(start, start + count, slot, cached, parents[index] if parents else None))
        start += count
    return spans


def assert_same_step(
    model: DecoderModel, spans: list[Span], *, hidden_layers: tuple[int, ...] = (), **options: int
) -> None:
    """A static step and a general one on equal caches: logits, states, and what the next step reads."""
    lengths = {span.slot: span.cached_len for span in spans}
    expected_cache, cache = filled_cache(model, lengths, **options), filled_cache(model, lengths, **options)
    steps = StaticSteps(model, cache)
    draw = random.Random(1)
    for _ in range(3):  # from the second on the shape is recorded, and the tokens are others
        tokens = [draw.randrange(model.vocab_size) for _ in range(spans[-1].end)]
        wanted = range(spans[-1].end)[draw.randrange(2) :]  # all positions, or not all
        assert steps.can_run(spans)
        actual = steps.run(tokens, spans, wanted, hidden_layers=hidden_layers)
        expected = model.forward(tokens, spans, wanted, expected_cache, hidden_layers=hidden_layers)
        torch.testing.assert_close(actual.logits, expected.logits, atol=1e-5, rtol=1e-5)
        assert torch.equal(actual.logits.argmax(-1), expected.logits.argmax(-1))
        if hidden_layers:
            assert actual.hidden is not None
            torch.testing.assert_close(actual.hidden, expected.hidden, atol=1e-5, rtol=1e-5)
        else:
            assert actual.hidden is None
    for span in spans:
        kept = slice(cache.start_of(span.slot), cache.start_of(span.slot) + span.cached_len + span.num_tokens)
        for layer in range(model.num_layers):
            torch.testing.assert_close(cache.keys[layer][kept], expected_cache.keys[layer][kept], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(
                cache.values[layer][kept], expected_cache.values[layer][kept], atol=1e-5, rtol=1e-5
            )


@pytest.mark.parametrize("draft_len", range(9))
def test_logits_equal_the_general_pass_for_every_k(target: DecoderModel, draft_len: int) -> None:
    assert_same_step(target, spans_of([(0, 12, draft_len + 1), (3, 40, draft_len + 1)]))


@pytest.mark.parametrize(
    "rows",
    [
        [(2, 7, 1)],
        [(4, 50, 3), (0, 1, 1), (2, 33, 5)],  # three rows in a bucket of four, each of another length
        [(0, 5, 2), (1, 6, 7), (2, 7, 1), (3, 20, 4), (4, 21, 3)],
    ],
)
def test_ragged_rows_and_padding_change_nothing(target: DecoderModel, rows: list[tuple[int, int, int]]) -> None:
    assert_same_step(target, spans_of(rows))


def test_trees_see_their_ancestors_only(target: DecoderModel) -> None:
    rows = [(0, 10, len(TREE)), (2, 30, 3), (4, 18, 4)]
    assert_same_step(target, spans_of(rows, [TREE, None, TREE[:4]]))


def test_hidden_states_come_in_flat_order(target: DecoderModel) -> None:
    assert_same_step(target, spans_of([(1, 9, 3), (0, 14, 1)]), hidden_layers=(0, 2, FINAL_NORM))


def test_a_bounded_arena_with_rooms_anywhere(target: DecoderModel) -> None:
    assert_same_step(target, spans_of([(0, 8, 2), (2, 21, 4)]), num_tokens=100)


def test_the_first_layers_alone(target: DecoderModel) -> None:
    cache, other = filled_cache(target, {0: 9}), filled_cache(target, {0: 9})
    spans = [Span(0, 2, 0, 9)]
    actual = StaticSteps(target, cache).run([3, 4], spans, [1], num_layers=1).logits
    torch.testing.assert_close(actual, target.forward([3, 4], spans, [1], other, num_layers=1).logits)


def test_neighbours_keep_their_memory(target: DecoderModel) -> None:
    cache = filled_cache(target, {0: 20, 1: 20, 2: 20, 3: 20, 4: 20})
    before = [layer.clone() for layer in (*cache.keys, *cache.values)]
    StaticSteps(target, cache).run([5, 6, 7, 8], spans_of([(1, 20, 3), (3, 4, 1)]), [0])
    written = {cache.start_of(1) + 20 + offset for offset in range(3)} | {cache.start_of(3) + 4 + n for n in range(3)}
    untouched = [place for place in range(cache.num_positions) if place not in written]
    for was, now in zip(before, (*cache.keys, *cache.values), strict=True):
        assert torch.equal(was[untouched], now[untouched])


def test_outputs_are_the_callers_own(target: DecoderModel) -> None:
    cache = filled_cache(target, {0: 9})
    steps = StaticSteps(target, cache)
    first = steps.run([3], [Span(0, 1, 0, 9)], [0], hidden_layers=(1,))
    kept = first.logits.clone()
    steps.run([200], [Span(0, 1, 0, 9)], [0], hidden_layers=(1,))
    assert torch.equal(first.logits, kept)
    assert first.hidden is not None
    assert first.hidden.data_ptr() != first.logits.data_ptr()


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [(0, 5, 40)],  # a prompt
        [(0, MAX_SEQ_LEN - 3, 1), (1, 5, 4)],  # the short row's padding would lie past its memory
        [(slot % SLOTS, 3, 1) for slot in range(9)],  # more rows than slots
    ],
)
def test_steps_without_a_bucket_go_the_general_way(target: DecoderModel, rows: list[tuple[int, int, int]]) -> None:
    steps = StaticSteps(target, target.new_cache(SLOTS))
    spans = spans_of(rows)
    assert not steps.can_run(spans)
    with pytest.raises(ValueError, match="no bucket"):
        steps.run([1] * (spans[-1].end if spans else 0), spans, [])
    if 0 < len(rows) < SLOTS:
        assert steps.forward([1] * spans[-1].end, spans, [0]).logits.shape == (1, target.vocab_size)


def test_the_last_position_of_a_slot_has_a_bucket(target: DecoderModel) -> None:
    assert_same_step(target, spans_of([(4, MAX_SEQ_LEN - 2, 2), (0, 3, 1)]))


def test_a_shape_is_recorded_once_and_ahead_if_asked(target: DecoderModel, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[object] = []
    record = GraphPool.record

    def counted(pool: GraphPool, function: Callable[[], object]) -> Callable[[], object]:
        recorded.append(function)
        return record(pool, function)

    monkeypatch.setattr(GraphPool, "record", counted)
    cache = target.new_cache(SLOTS)
    steps = StaticSteps(target, cache)
    steps.prepare([(1, 1, 10), (3, 4, 90), (4, 4, 20)])
    assert len(recorded) == 2  # three and four rows share a bucket
    assert all(bool(torch.isfinite(layer).all()) for layer in (*cache.keys, *cache.values))
    steps.run([1], [Span(0, 1, 2, 0)], [0])
    steps.run([1] * 12, spans_of([(0, 5, 4), (1, 6, 4), (2, 7, 4)]), [0])
    assert len(recorded) == 2
    steps.run([1] * 2, spans_of([(0, 5, 1), (1, 6, 1)]), [0])
    assert len(recorded) == 3
    with pytest.raises(ValueError, match="not recorded"):
        steps.recorded(spans_of([(0, 5, 9)]))


@pytest.mark.parametrize(
    ("longest", "expected"),
    [
        (96, [256]),
        (1024, [1024]),
        (1025, [1024, 1280]),
        (8192, [1024, 2048, 4096, 8192]),
        (5000, [1024, 2048, 4096, 5120]),
    ],
)
def test_context_buckets(longest: int, expected: list[int]) -> None:
    assert context_buckets(longest) == expected


def test_paged_attention_reads_rows_in_place(target: DecoderModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plumbing of the GPU's way, with its kernel written out: rows start anywhere in an arena of several pages."""
    monkeypatch.setattr(static_step, "can_page", lambda *arguments, **options: True)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", reference_varlen.varlen_attn)
    seen: list[object] = []
    init = static_attention.PagedAttention.__init__

    def counted(self: static_attention.PagedAttention, *arguments: Any, **options: Any) -> None:
        seen.append(self)
        init(self, *arguments, **options)

    monkeypatch.setattr(static_attention.PagedAttention, "__init__", counted)
    for count in (1, 4):
        assert_same_step(target, spans_of([(1, 60, count), (0, 3, count), (2, 31, 1)]))
    assert len(seen) == 6
    long = DecoderModel.from_config(
        tiny_llama(tied=False), dtype=torch.float32, device=torch.device("cpu"), max_seq_len=700
    )
    assert_same_step(long, spans_of([(1, 600, 3), (2, 255, 2), (0, 3, 1)]))  # over several pages
    assert len(seen) == 9
    # The last slot's page would end past the arena, and trees have no mask there: both are gathered.
    assert_same_step(target, spans_of([(4, 60, 1)]))
    assert_same_step(target, spans_of([(0, 9, 3)], [(-1, 0, 0)]))
    assert len(seen) == 9


def test_a_graphed_model_replays_what_it_can_over_any_of_its_caches(target: DecoderModel) -> None:
    graphed = GraphedModel.of(target)
    assert graphed.embedding is target.embedding  # the weights are the model's own
    caches = [graphed.new_cache(2), graphed.new_cache(3)]
    expected = [target.new_cache(2), target.new_cache(3)]
    for tokens, span in (([5, 6, 7] * 13, Span(0, 39, 1, 0)), ([9, 8], Span(0, 2, 1, 39)), ([4], Span(0, 1, 1, 41))):
        for cache, other in zip(caches, expected, strict=True):
            actual = graphed.forward(tokens, [span], [0], cache, hidden_layers=(1,), num_layers=1)
            wanted = target.forward(tokens, [span], [0], other, hidden_layers=(1,), num_layers=1)
            torch.testing.assert_close(actual.logits, wanted.logits, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(actual.hidden, wanted.hidden, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tied", [False, True])
def test_random_weights_make_a_sane_model(tied: bool) -> None:
    model = DecoderModel.from_config(
        tiny_llama(tied), dtype=torch.float32, device=torch.device("cpu"), max_seq_len=32, seed=3
    )
    tokens = list(range(20))
    logits = model.forward(tokens, [Span(0, 20, 0, 0)], range(20), model.new_cache(1)).logits
    assert bool(torch.isfinite(logits).all())
    assert (
        0.3 < float(logits.std()) / (8.0 if tied else 1.0) < 3.0
    )  # a tied head has the embeddings' variance: sqrt(64)
    same = DecoderModel.from_config(
        tiny_llama(tied), dtype=torch.float32, device=torch.device("cpu"), max_seq_len=32, seed=3
    )
    assert torch.equal(logits, same.forward(tokens, [Span(0, 20, 0, 0)], range(20), same.new_cache(1)).logits)


def test_random_weights_of_other_families_are_refused() -> None:
    from transformers import Qwen2Config

    config = Qwen2Config(architectures=["Qwen2ForCausalLM"], hidden_size=64, num_attention_heads=4)
    with pytest.raises(CheckpointError, match="Qwen2ForCausalLM is not drawn"):
        DecoderModel.from_config(config, dtype=torch.float32, device=torch.device("cpu"), max_seq_len=32)


def tiny_llama(tied: bool) -> object:
    from transformers import LlamaConfig

    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=100,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
    )
