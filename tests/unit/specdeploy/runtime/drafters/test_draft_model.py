"""The draft model proposes what it would generate itself, whatever happened to its earlier proposals."""

import torch

from specdeploy.runtime.attention import Span
from specdeploy.runtime.drafters import DraftModelDrafter, DraftRow
from specdeploy.runtime.model import DecoderModel


def greedy(model: DecoderModel, token_ids: list[int], length: int) -> list[int]:
    tokens = list(token_ids)
    for _ in range(length):
        logits = model.forward(tokens, [Span(0, len(tokens), 0, 0)], [len(tokens) - 1], model.new_cache(1)).logits
        tokens.append(int(torch.argmax(logits)))
    return tokens[len(token_ids) :]


def test_rejected_and_skipped_drafts_leave_no_trace(draft: DecoderModel) -> None:
    drafter = DraftModelDrafter(draft, num_slots=3)
    text = [5, 17, 200, 31]
    drafter.prefill(1, text)
    for kept, own in [(0, 9), (2, 11), (4, 12), (1, 13)]:
        proposal = drafter.propose([DraftRow(1, text, 4)])[0]
        assert proposal == greedy(draft, text, 4)
        text += [*proposal[:kept], own]
    text += [40, proposal[1], 41, 42, 43]  # steps without drafts: the cache is behind and partly wrong
    assert drafter.propose([DraftRow(1, text, 3)])[0] == greedy(draft, text, 3)


def test_rows_of_different_lengths_are_drafted_together(draft: DecoderModel) -> None:
    drafter = DraftModelDrafter(draft, num_slots=3)
    rows = [DraftRow(0, [5, 17], 1), DraftRow(2, list(range(30, 60)), 5), DraftRow(1, [9], 0)]
    assert drafter.propose(rows) == [greedy(draft, [5, 17], 1), greedy(draft, list(range(30, 60)), 5), []]


def test_rows_beyond_the_drafts_context_get_none(draft: DecoderModel) -> None:
    drafter = DraftModelDrafter(draft, num_slots=1)
    text = list(range(draft.max_seq_len - 2))
    assert len(drafter.propose([DraftRow(0, text, 3)])[0]) == 3
    assert drafter.propose([DraftRow(0, [*text, 1, 2, 3], 3)]) == [[]]


def test_a_row_that_is_far_behind_catches_up_in_chunks(draft: DecoderModel) -> None:
    """Nothing was drafted for it while the load was high; reading it all at once would stall the other rows."""
    drafter = DraftModelDrafter(draft, num_slots=2, prefill_chunk=8)
    text = list(range(30, 60))
    rows = [DraftRow(0, text, 3), DraftRow(1, [5, 6], 2)]
    expected = [greedy(draft, text, 3), greedy(draft, [5, 6], 2)]
    for _ in range(3):
        assert drafter.propose(rows) == [[], expected[1]]
    assert drafter.propose(rows) == expected
