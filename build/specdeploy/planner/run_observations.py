"""From a finished client run to observed steps.

In a closed loop with B requests at once a step of B rows sends each of them one message. Where messages hold as many
tokens as a step accepts, the median gap between them is a step, one in which no prompt is read as long as most are.
Else a step gives each row `mean_acceptance_length` tokens, so it takes TPOT times that many. TPOT also holds the steps
in which other requests' prompts are read; their tokens are counted into the mean step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specdeploy.planner.calibrate import StepObservation
from specdeploy.run_contract import Arm, CellSummary, RunSummary

_MS_PER_S = 1e3
_MAX_MESSAGE_DIFFERENCE = 0.05  # tokens per message against tokens per step


@dataclass(frozen=True, slots=True)
class RunObservations:
    """Steps of a run, and in one line each what was left out and why."""

    observations: tuple[StepObservation, ...]
    left_out: tuple[str, ...]


def observations_of(summary: RunSummary) -> RunObservations:
    """Both arms of every cell that may be compared and in which nothing waited for a row."""
    observations: list[StepObservation] = []
    left_out: list[str] = []
    for cell in summary.cells:
        if cell.arm is Arm.FLOOR:
            continue
        problem = _problem(summary, cell)
        if problem is not None:
            left_out.append(f"{cell.segment} at {cell.load}, {cell.arm}: {problem}")
            continue
        observations.append(_observation(cell))
    return RunObservations(tuple(observations), tuple(left_out))


def _problem(summary: RunSummary, cell: CellSummary) -> str | None:
    """Why a cell says nothing of a step, or None."""
    if cell.concurrency is None:
        return "an open loop has no fixed number of rows"
    if summary.is_queued(cell.concurrency):
        return f"more than the {summary.effective_concurrency} requests that are decoded at once"
    reasons = _void_reasons(summary, cell)
    if reasons:
        return f"void ({'; '.join(reasons)})"
    acceptance = cell.acceptance
    if cell.arm is Arm.ON and (acceptance is None or acceptance.mean_acceptance_length is None):
        return "the server does not say how many tokens a step accepted"
    if _step_gap_ms(cell) is None and not cell.tpot_ms.p50:
        return "neither a median TPOT nor a median gap between messages"
    return None


def _step_gap_ms(cell: CellSummary) -> float | None:
    """The median gap between messages, where each message is one step; None else."""
    if cell.icl_ms is None or not cell.icl_ms.p50 or not cell.tokens_per_message:
        return None
    is_step = abs(cell.tokens_per_message / _tokens_per_step(cell) - 1) <= _MAX_MESSAGE_DIFFERENCE
    return cell.icl_ms.p50 if is_step else None


def _tokens_per_step(cell: CellSummary) -> float:
    if cell.arm is not Arm.ON or cell.acceptance is None or cell.acceptance.mean_acceptance_length is None:
        return 1.0
    return cell.acceptance.mean_acceptance_length


def _void_reasons(summary: RunSummary, cell: CellSummary) -> Sequence[str]:
    found = (
        str(reason)
        for comparison in summary.comparisons
        if comparison.segment == cell.segment and comparison.load == cell.load
        for reason in comparison.void_reasons
    )
    return list(dict.fromkeys(found))


def _observation(cell: CellSummary) -> StepObservation:
    rows = cell.concurrency or 1
    tokens_per_step, drafted = _tokens_per_step(cell), 0.0
    acceptance = cell.acceptance
    if cell.arm is Arm.ON and acceptance is not None and acceptance.num_steps:
        drafted = acceptance.num_draft_tokens / acceptance.num_steps
    prompt, output = _mean(cell.num_input_tokens, cell), _mean(cell.num_output_tokens, cell)
    gap_ms, prefill = _step_gap_ms(cell), 0
    if gap_ms is None:
        gap_ms = (cell.tpot_ms.p50 or 0.0) * tokens_per_step
        prefill = round((rows - 1) * prompt / max(output / tokens_per_step, 1.0))
    return StepObservation(
        num_rows=rows,
        num_draft_tokens=rows * drafted,
        depth=math.ceil(drafted),
        kv_tokens=rows * (prompt + output / 2),
        prefill_tokens=prefill,
        seconds=gap_ms / _MS_PER_S,
        draft_prefill_tokens=prefill if drafted else 0,
    )


def _mean(total: int | None, cell: CellSummary) -> float:
    """Per answered request; 0 where the run does not say."""
    answered = cell.num_requests - cell.num_errors
    return 0.0 if total is None or answered <= 0 else total / answered
