"""From a cost model to a published number, and from a published number to the seconds of a step."""

from collections.abc import Callable
from math import ceil, floor

from cells import Cell

from specdeploy.planner.step_times import StepLoad, StepTimes

# Tokens per step of one K; 1 without drafting.
TauOf = Callable[[Cell, int], float]


def published_tau(cell: Cell, draft_len: int) -> float:
    """What the source says. Raises ValueError where it says nothing."""
    if draft_len == 0:
        return 1.0
    if len(cell.taus) != len(cell.draft_lens):
        raise ValueError(f"{cell.series}, {cell.arm}: no tau was published")
    return cell.taus[cell.draft_lens.index(draft_len)]


def load_of(cell: Cell, draft_len: int, num_rows: int) -> StepLoad:
    """What one step of the cell has to do at this K."""
    return StepLoad(num_rows, num_rows * draft_len, cell.depth_of(draft_len))


def step_seconds(times: StepTimes, cell: Cell, draft_len: int) -> float:
    """Seconds of a step; a mean number of rows that is not whole lies between the two whole ones."""
    lower, upper = floor(cell.rows), ceil(cell.rows)

    def at(num_rows: int) -> float:
        return times.time(load_of(cell, draft_len, num_rows)).seconds(num_rows * cell.context)

    return at(lower) if lower == upper else at(lower) + (at(upper) - at(lower)) * (cell.rows - lower)


def observed_seconds(cell: Cell, tau: float, plain_s: float | None) -> float:
    """The step that the published number stands for. A ratio needs `plain_s`, the plain step at the same rows."""
    match cell.metric:
        case "step_s":
            return cell.value
        case "tpot_s":
            return cell.value * tau
        case "tok_s_user":
            return tau / cell.value
        case "tok_s":
            return cell.rows * tau / cell.value
        case "ratio":
            if plain_s is None:
                raise ValueError(f"{cell.series}: a ratio needs the plain step")
            return plain_s * tau / cell.value


def predicted_value(cell: Cell, times: StepTimes, tau_of: TauOf) -> float:
    """The cell's metric, at the best of its K."""
    draft_len = min(cell.draft_lens, key=lambda length: step_seconds(times, cell, length) / tau_of(cell, length))
    step_s, tau = step_seconds(times, cell, draft_len), tau_of(cell, draft_len)
    match cell.metric:
        case "step_s":
            return step_s
        case "tpot_s":
            return step_s / tau
        case "tok_s_user":
            return tau / step_s
        case "tok_s":
            return cell.rows * tau / step_s
        case "ratio":
            return step_seconds(times, cell, 0) * tau / step_s


def speed(cell: Cell, value: float) -> float:
    """A number that rises with speed, alike over the arms of a series: tokens per second and request, or the ratio."""
    match cell.metric:
        case "step_s" | "tpot_s":
            return 1 / value
        case "tok_s_user" | "ratio":
            return value
        case "tok_s":
            return value / cell.rows
