"""Rows that draft now and then: a mixture of whole steps."""

from itertools import pairwise

import pytest

from helpers.cost_models import LLAMA_3B, LLAMA_8B, bare_times, small_draft
from specdeploy.planner.mean_step import mean_step_time
from specdeploy.planner.step_times import StepLoad, uniform_load

TIMES = bare_times(LLAMA_8B, small_draft(LLAMA_3B))


def test_one_row_mixes_its_whole_draft_with_none() -> None:
    drafting, idle = (TIMES.time(StepLoad(1, tokens, 4)) for tokens in (4, 0))
    for share in (0.1, 0.45, 0.8):
        mixed = mean_step_time(TIMES, StepLoad(1, 0, 4), share * 4)
        assert mixed.fixed_s == pytest.approx(share * drafting.fixed_s + (1 - share) * idle.fixed_s)
        assert mixed.kv_token_s == pytest.approx(share * drafting.kv_token_s + (1 - share) * idle.kv_token_s)


def test_whole_drafts_are_asked_for_as_they_are() -> None:
    assert mean_step_time(TIMES, StepLoad(4, 0, 3), 12.0) == TIMES.time(uniform_load(4, 3))
    assert mean_step_time(TIMES, StepLoad(4, 0, 3), 6.0 - 1e-12) == TIMES.time(StepLoad(4, 6, 3))
    assert mean_step_time(TIMES, StepLoad(4), 0.0) == TIMES.time(StepLoad(4))


def test_more_drafts_never_take_less() -> None:
    seconds = [mean_step_time(TIMES, StepLoad(3, 0, 5), tokens / 7).seconds(3000) for tokens in range(3 * 5 * 7 + 1)]
    assert all(later >= earlier for earlier, later in pairwise(seconds))
    assert seconds[-1] > 1.5 * seconds[0]
