"""Lookups where they match, the model's drafts for all other rows, both always up to date."""

from collections.abc import Sequence

import torch

from helpers.naive_rollout import greedy
from specdeploy.runtime.drafters import (
    AutoDrafter,
    Draft,
    DraftModelDrafter,
    DraftRow,
    NgramDrafter,
    Observation,
)
from specdeploy.runtime.model import DecoderModel


class NotingDrafter:
    """A drafter that notes what it is asked and told."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.told: list[Observation] = []
        self.released: list[int] = []

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        return (1, 2)

    def max_draft_tokens(self, draft_len: int) -> int:
        return 3 * draft_len

    def observe(self, observations: Sequence[Observation]) -> None:
        self.told.extend(observations)

    def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
        self.asked.append([row.slot for row in rows])
        return [Draft((100 + row.slot, 1), (-1, -1)) for row in rows]

    def release(self, slot: int) -> None:
        self.released.append(slot)


def lookup(min_size: int = 2) -> NgramDrafter:
    return NgramDrafter(min_matching_ngram_size=min_size, max_matching_ngram_size=3)


def test_rows_are_split_and_the_model_is_asked_once() -> None:
    model = NotingDrafter()
    drafter = AutoDrafter(lookup(), model)
    matching, other = [1, 2, 9, 1, 2], [1, 2, 3]
    rows = [DraftRow(3, other, 2), DraftRow(0, matching, 2), DraftRow(7, other, 2), DraftRow(1, matching, 1)]
    drafts = drafter.propose(rows)
    assert model.asked == [[3, 7]]
    assert drafts == [Draft((103, 1), (-1, -1)), Draft((9, 1)), Draft((107, 1), (-1, -1)), Draft((9,))]


def test_the_model_is_not_asked_for_nothing() -> None:
    model = NotingDrafter()
    AutoDrafter(lookup(), model).propose([DraftRow(0, [1, 2, 9, 1, 2], 2)])
    assert model.asked == []


def test_it_passes_on_what_the_engine_asks_and_tells() -> None:
    model = NotingDrafter()
    drafter = AutoDrafter(lookup(1), model)
    assert drafter.hidden_layers == (1, 2)
    assert drafter.max_draft_tokens(4) == 12
    seen = Observation(0, [1, 9, 1, 2], 3, torch.zeros(3, 4))
    drafter.observe([seen])
    assert model.told == [seen]
    assert drafter.propose([DraftRow(0, [1, 9, 1, 2, 9], 2)])[0].token_ids == (1, 2)
    drafter.release(0)
    assert model.released == [0]
    assert drafter.propose([DraftRow(0, [5, 9], 2)])[0].token_ids == (100, 1)  # the lookup forgot the row too


def test_the_model_takes_over_after_steps_in_which_it_was_not_asked(draft: DecoderModel) -> None:
    drafter = AutoDrafter(lookup(), DraftModelDrafter(draft, num_slots=1))
    text = [5, 17, 200]
    proposal = drafter.propose([DraftRow(0, text, 3)])[0].token_ids
    assert proposal == greedy(draft, text, 3)
    for tokens in ([proposal[0], 5, 17], [200, proposal[0], 5, 17], [200, proposal[0], 5]):  # the lookup's turn
        text += tokens
        drafter.observe([Observation(0, text, len(text) - 1, None)])
        assert drafter.propose([DraftRow(0, text, 2)])[0].token_ids != greedy(draft, text, 2)
    text += [250, 251]
    drafter.observe([Observation(0, text, len(text) - 1, None)])
    assert drafter.propose([DraftRow(0, text, 3)])[0].token_ids == greedy(draft, text, 3)
