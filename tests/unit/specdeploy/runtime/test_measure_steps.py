"""The measuring code runs a real, tiny engine: every load is there, forced K is what is drafted, times are positive."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.scripted_drafter import QuietDrafter
from helpers.toy_heads import write_eagle3_head
from specdeploy.contract import Method
from specdeploy.runtime.assemble import EngineSettings, load_parts
from specdeploy.runtime.drafters.base import Draft, DraftRow
from specdeploy.runtime.forced_drafts import FilledDrafts
from specdeploy.runtime.measure_steps import MeasuredStep, StepGrid, measure_steps

SETTINGS = EngineSettings(
    method=Method.NGRAM,
    dtype=torch.float32,
    device=torch.device("cpu"),
    max_draft_len=3,
    max_rows=3,
    max_seq_len=256,
    prefill_chunk=16,
    num_token_ids=320,
)
GRID = StepGrid(max_rows=3, draft_lens=(0, 1, 3), contexts=(20,), budget_s=0.0)


def measured(target: Path, draft: Path | None, settings: EngineSettings = SETTINGS) -> tuple[MeasuredStep, ...]:
    clock = itertools.count(1_000, 1_000)
    return measure_steps(
        load_parts(target, draft, settings), settings, GRID, clock=lambda: next(clock), now=lambda: 0.0
    )


def test_the_grid_of_an_engine_doubles_up_to_what_it_serves() -> None:
    grid = StepGrid.of(replace(SETTINGS, max_rows=6, max_draft_len=9, max_seq_len=2048))
    assert grid.draft_lens == (0, 1, 2, 3, 4, 8, 9)
    assert grid.contexts == (64, 512)
    assert grid.row_counts(64) == (6, 4, 2, 1)
    assert grid.row_counts(512) == (2, 1)


def test_a_short_context_leaves_room_for_output() -> None:
    assert StepGrid.of(replace(SETTINGS, max_seq_len=96)).contexts == (48,)


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_every_load_is_measured_with_the_forced_draft(target_folder: Path, is_dynamic: bool) -> None:
    steps = measured(target_folder, None, replace(SETTINGS, is_draft_len_dynamic=is_dynamic))
    decoding = {(one.num_rows, one.depth, one.num_draft_tokens) for one in steps if not one.prompt_tokens}
    assert decoding == {(rows, k, rows * k) for rows in (1, 2, 3) for k in (0, 1, 3)}
    assert all(one.step_s > 0 and 0 <= one.draft_s < one.step_s for one in steps)
    assert all(one.num_steps >= 2 for one in steps)


def test_prompts_are_measured_by_chunk_and_by_what_lies_before_it(target_folder: Path) -> None:
    reading = [one for one in measured(target_folder, None) if one.prompt_tokens]
    # Three prompts of 20 tokens in chunks of 16: the second chunk ends one prompt and begins the next.
    assert [(one.prompt_tokens, one.prompt_context, one.num_rows) for one in reading] == [
        (16, 0, 0),
        (16, 16, 0),
        (16, 12, 1),
        (12, 8, 2),
    ]


def test_a_head_is_measured_too_and_what_it_reads_of_prompts_belongs_to_them(
    target_folder: Path, tmp_path: Path
) -> None:
    head = write_eagle3_head(tmp_path / "head", target_folder, aux_layer_ids=(0, 1, 2))
    steps = measured(target_folder, head, replace(SETTINGS, method=Method.EAGLE3))
    decoding = {(one.num_rows, one.depth, one.num_draft_tokens) for one in steps if not one.prompt_tokens}
    assert decoding == {(rows, k, rows * k) for rows in (1, 2, 3) for k in (0, 1, 3)}
    assert all(one.draft_s > 0 for one in steps if one.prompt_tokens)


def test_small_memory_measures_the_rows_that_fit(target_folder: Path) -> None:
    steps = measured(target_folder, None, replace(SETTINGS, kv_cache_tokens=300))
    assert {one.num_rows for one in steps if not one.prompt_tokens} == {1}


def test_outputs_that_end_early_end_the_visit(target_folder: Path) -> None:
    settings = replace(SETTINGS, max_seq_len=40)
    assert measured(target_folder, None, settings)


class _Short(QuietDrafter):
    def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
        return [Draft((7,)), Draft()]


def test_a_drafter_that_finds_little_is_filled_up() -> None:
    rows = [DraftRow(0, [1, 2], 3), DraftRow(1, [4, 5], 2)]
    assert [draft.token_ids for draft in FilledDrafts(_Short()).propose(rows)] == [(7, 7, 7), (5, 5)]
