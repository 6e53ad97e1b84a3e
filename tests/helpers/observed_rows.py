"""Rows whose text is known beforehand, read for a drafter step by step as the engine would."""

from collections.abc import Callable, Sequence

import torch

from specdeploy.runtime.attention import Span
from specdeploy.runtime.drafters.base import Draft, Drafter, DraftRow, Observation
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.request import SamplingParams


class ObservedRow:
    """`text` is all the row will ever say; of it `length` tokens are there now, and the target has read all but one."""

    def __init__(self, target: DecoderModel, slot: int, text: Sequence[int], prompt_len: int, layers: Sequence[int]):
        self.slot, self.text, self.prompt_len = slot, list(text), prompt_len
        self.length = prompt_len
        self.num_read = 0
        self.seen: dict[int, torch.Tensor] = {}
        spans = [Span(0, len(text), 0, 0)]
        hidden = target.forward(list(text), spans, [], target.new_cache(1), hidden_layers=layers).hidden
        assert hidden is not None
        self.states = hidden

    def read(self, upto: int, *, is_observed: bool = True) -> list[Observation]:
        """The target reads up to position `upto` - 1; the observation of it unless drafting is off."""
        first, self.num_read = self.num_read, upto
        self.length = max(self.length, upto + 1)
        if not is_observed or upto == first:
            return []
        self.seen |= {position: self.states[position] for position in range(first, upto)}
        return [Observation(self.slot, self.text[: self.length], upto, self.states[first:upto])]

    def draft_row(self, draft_len: int, sampling: SamplingParams | None = None) -> DraftRow:
        return DraftRow(self.slot, self.text[: self.length], draft_len, self.length - self.prompt_len, sampling)


def read_prompts(drafter: Drafter, rows: Sequence[ObservedRow], chunk: int) -> None:
    """All rows read their prompts side by side, `chunk` tokens a step."""
    while any(row.num_read < row.prompt_len for row in rows):
        seen = [part for row in rows for part in row.read(min(row.num_read + chunk, row.prompt_len))]
        drafter.observe(seen)


def walk(
    drafter: Drafter,
    rows: Sequence[ObservedRow],
    *,
    num_steps: int,
    draft_len: Callable[[int, int], int],
    num_accepted: Callable[[int, int], int],
    check: Callable[[ObservedRow, int, Draft], None],
    is_observed: Callable[[int, int], bool] = lambda step, index: True,
) -> None:
    """Decode: draft, check each draft, accept as many of the text's own tokens as told, observe.

    The callables are given step and row index; a row with `draft_len` 0 is not asked.
    """
    for step in range(num_steps):
        asked = [(index, depth) for index in range(len(rows)) if (depth := draft_len(step, index))]
        drafts = drafter.propose([rows[index].draft_row(depth) for index, depth in asked])
        for (index, depth), draft in zip(asked, drafts, strict=True):
            check(rows[index], depth, draft)
        seen: list[Observation] = []
        for index, row in enumerate(rows):
            upto = row.num_read + 1 + num_accepted(step, index)
            seen += row.read(upto, is_observed=is_observed(step, index))
        drafter.observe(seen)


def draft_paths(draft: Draft) -> set[tuple[int, ...]]:
    """The token path of every node."""
    paths: list[tuple[int, ...]] = []
    parents = range(-1, len(draft.token_ids) - 1) if draft.parents is None else draft.parents
    for token, parent in zip(draft.token_ids, parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return set(paths)
