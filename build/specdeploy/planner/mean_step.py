"""The mean step of rows that do not draft in every step."""

from dataclasses import replace

from specdeploy.planner.step_times import StepLoad, StepTime, StepTimes

_ROUNDING = 1e-9  # of a draft


def mean_step_time(times: StepTimes, load: StepLoad, mean_drafted: float) -> StepTime:
    """Seconds of `load` where its rows draft `mean_drafted` tokens in the mean over many steps.

    Drafts come whole, `load.depth` tokens at a time: a mean between two whole numbers of drafts is a mixture of steps
    with the one and the other. One row that drafts in half of its steps thereby takes the mean of a step with its
    whole draft and one with none, not the time of half a draft. `load.num_draft_tokens` is not read.
    """
    drafts = mean_drafted / load.depth if load.depth else 0.0
    below = int(drafts + _ROUNDING)
    fewer = times.time(replace(load, num_draft_tokens=below * load.depth))
    share = drafts - below
    if share <= _ROUNDING:
        return fewer
    more = times.time(replace(load, num_draft_tokens=(below + 1) * load.depth))
    return StepTime(
        fewer.fixed_s + share * (more.fixed_s - fewer.fixed_s),
        fewer.kv_token_s + share * (more.kv_token_s - fewer.kv_token_s),
        fewer.prefill_context_s + share * (more.prefill_context_s - fewer.prefill_context_s),
    )
