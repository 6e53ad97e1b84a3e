"""Masks of trees, and what a step keeps of its layers."""

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from specdeploy.runtime import attention as subject
from specdeploy.runtime.attention import Span, StepAttention
from specdeploy.runtime.model import FINAL_NORM, DecoderModel

PARENTS = (-1, 0, 0, 1, 2, 3)
INF = float("-inf")


def step(model: DecoderModel, spans: list[Span]) -> StepAttention:
    return StepAttention(
        spans,
        model.new_cache(2),
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def test_a_tree_token_sees_the_text_its_ancestors_and_itself(target: DecoderModel) -> None:
    mask = step(target, [Span(0, 6, 0, 4, PARENTS)])._groups[0].mask
    assert mask is not None
    rows = mask[0, 0, :: target.num_heads // target.num_kv_heads]
    sees = [[0], [0, 1], [0, 2], [0, 1, 3], [0, 2, 4], [0, 1, 3, 5]]
    assert rows.tolist() == [[0.0] * 4 + [0.0 if i in seen else INF for i in range(6)] for seen in sees]


def test_a_shape_of_tree_is_built_once_and_never_written_to(target: DecoderModel) -> None:
    subject._tree_mask.cache_clear()
    first = step(target, [Span(0, 6, 0, 4, PARENTS), Span(6, 12, 1, 9, PARENTS)])
    again = step(target, [Span(0, 6, 0, 4, PARENTS), Span(6, 12, 1, 9, PARENTS)])
    assert subject._tree_mask.cache_info().misses == 1
    before, after = first._groups[0].mask, again._groups[0].mask
    assert before is not None
    assert after is not None
    assert torch.equal(before, after)


def test_rotary_positions_follow_depth(target: DecoderModel) -> None:
    assert step(target, [Span(0, 2, 1, 7), Span(2, 8, 0, 4, PARENTS)]).positions.tolist() == [
        7, 8, 4, 5, 5, 6, 6, 7,
    ]  # fmt: skip


def test_only_states_that_were_asked_for_outlive_their_layer(
    target: DecoderModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = target.states
    kept: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def watched(*arguments: Any) -> Iterator[torch.Tensor]:
        for hidden in states(*arguments):
            alive.append(sum(ref() is not None for ref in kept))
            kept.append(weakref.ref(hidden))
            yield hidden

    monkeypatch.setattr(target, "states", watched)
    target.forward((5, 6, 7), [Span(0, 3, 0, 0)], [2], target.new_cache(1))
    assert alive == [0, 1, 1]  # when a layer is done, its input


@pytest.mark.parametrize("layers", [(FINAL_NORM,), (0, FINAL_NORM), (1, 0, 1)])
@pytest.mark.parametrize("positions", [[], [2], [0, 1, 2]])
def test_hidden_states_change_no_logits(target: DecoderModel, layers: tuple[int, ...], positions: list[int]) -> None:
    def forward(*hidden_layers: int) -> Any:
        cache = target.new_cache(1)
        return target.forward((5, 6, 7), [Span(0, 3, 0, 0)], positions, cache, hidden_layers=hidden_layers)

    output = forward(*layers)
    assert torch.equal(output.logits, forward().logits)
    assert torch.equal(output.hidden, torch.cat([forward(layer).hidden for layer in layers], dim=1))
    if FINAL_NORM in layers and positions:
        normed = forward(FINAL_NORM).hidden
        assert torch.equal(target.head(normed[positions]), output.logits)
