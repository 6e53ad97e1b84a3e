"""One series scored: every cell predicted, then errors, signs, crossovers and best K."""

from collections.abc import Sequence
from dataclasses import dataclass

from cells import Cell
from predicting import TauOf, predicted_value, speed, step_seconds
from scoring import (
    UNDECIDED,
    BestLength,
    Crossover,
    Prediction,
    SeriesScore,
    crossing,
    interpolated,
    is_sign_error,
    median_error,
    worst_error,
)

from specdeploy.planner.step_times import StepTimes


@dataclass(frozen=True, slots=True)
class FittedArm:
    """How one arm of a series is predicted: its cost model and its tokens per step."""

    times: StepTimes
    tau_of: TauOf


@dataclass(frozen=True, slots=True)
class Speedup:
    """One drafting cell against plain decoding at the same load: off/on, above 1 = faster."""

    cell: Cell
    published: float
    predicted: float


def predictions_of(cells: Sequence[Cell], arms: dict[str, FittedArm]) -> tuple[Prediction, ...]:
    """Every cell, by its arm."""
    return tuple(Prediction(cell, predicted_value(cell, arms[cell.arm].times, arms[cell.arm].tau_of)) for cell in cells)


def speedups_of(cells: Sequence[Cell], arms: dict[str, FittedArm]) -> tuple[Speedup, ...]:
    """Drafting cells whose plain decoding was published: as a ratio, at the same load, or at loads around it."""
    found = []
    for cell in cells:
        if cell.arm == "plain" or cell.arm not in arms:
            continue
        published = _published_speedup(cell, cells)
        if published is not None:
            found.append(Speedup(cell, published, _predicted_speedup(cell, arms[cell.arm])))
    return tuple(found)


def score_series(series: str, title: str, kind: str, cells: Sequence[Cell], arms: dict[str, FittedArm]) -> SeriesScore:
    """`kind` is a key of the goals."""
    return score_of(series, title, kind, predictions_of(cells, arms), speedups_of(cells, arms))


def score_of(
    series: str, title: str, kind: str, predictions: Sequence[Prediction], speedups: Sequence[Speedup] = ()
) -> SeriesScore:
    """The same from predictions."""
    fitted = [one for one in predictions if one.cell.split == "fit"]
    held_out = [one for one in predictions if one.cell.split == "held_out"]
    signs = [one for one in speedups if one.cell.split == "held_out"]
    slowdowns = [one for one in signs if one.published < 1 - UNDECIDED]
    return SeriesScore(
        series=series,
        title=title,
        kind=kind,
        num_fit=len(fitted),
        num_held_out=len(held_out),
        fit_median=median_error(fitted),
        held_out_median=median_error(held_out),
        held_out_worst=worst_error(held_out),
        num_signs=len(signs),
        num_slowdowns=len(slowdowns),
        num_slowdowns_found=sum(one.predicted < 1 for one in slowdowns),
        sign_errors=tuple(
            f"{one.cell.arm}, {one.cell.rows:g} rows, K {one.cell.draft_lens}: {one.published:.2f}, "
            f"predicted {one.predicted:.2f}"
            for one in signs
            if is_sign_error(one.published, one.predicted)
        ),
        crossovers=_crossovers(speedups),
        best_lengths=_best_lengths(predictions),
    )


def _published_speedup(cell: Cell, cells: Sequence[Cell]) -> float | None:
    if cell.metric == "ratio":
        return cell.value
    plain = sorted(
        (other.rows, speed(other, other.value))
        for other in cells
        if other.arm == "plain" and (other.task, other.context) == (cell.task, cell.context)
    )
    for rows, value in plain:
        if rows == cell.rows:
            return speed(cell, cell.value) / value
    between = interpolated(plain, cell.rows)
    return None if between is None else speed(cell, cell.value) / between


def _predicted_speedup(cell: Cell, arm: FittedArm) -> float:
    plain_s = step_seconds(arm.times, cell, 0)
    return max(arm.tau_of(cell, length) * plain_s / step_seconds(arm.times, cell, length) for length in cell.draft_lens)


def _crossovers(speedups: Sequence[Speedup]) -> tuple[Crossover, ...]:
    """One per arm, task and K that was published at three concurrencies or more."""
    groups: dict[tuple[str, str, tuple[int, ...]], list[Speedup]] = {}
    for one in speedups:
        groups.setdefault((one.cell.arm, one.cell.task, one.cell.draft_lens), []).append(one)
    found = []
    for (arm, task, lengths), members in groups.items():
        members.sort(key=lambda one: one.cell.rows)
        rows = [one.cell.rows for one in members]
        if len(set(rows)) >= 3:
            found.append(
                Crossover(
                    f"{arm}, {task}, K {lengths}",
                    crossing([(one.cell.rows, one.published) for one in members]),
                    crossing([(one.cell.rows, one.predicted) for one in members]),
                    rows[-1],
                )
            )
    return tuple(found)


def _best_lengths(predictions: Sequence[Prediction]) -> tuple[BestLength, ...]:
    """One per arm, rows and task that was published with three K or more."""
    groups: dict[tuple[str, float, str], list[Prediction]] = {}
    for one in predictions:
        if len(one.cell.draft_lens) == 1 and one.cell.draft_len > 0:
            groups.setdefault((one.cell.arm, one.cell.rows, one.cell.task), []).append(one)
    found = []
    for (arm, rows, task), members in groups.items():
        lengths = tuple(sorted({one.cell.draft_len for one in members}))
        if len(lengths) < 3:
            continue
        published = max(members, key=lambda one: speed(one.cell, one.cell.value)).cell.draft_len
        predicted = max(members, key=lambda one: speed(one.cell, one.predicted)).cell.draft_len
        found.append(BestLength(f"{arm}, {rows:g} rows, {task}", published, predicted, lengths))
    return tuple(found)
