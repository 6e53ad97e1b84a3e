"""Acceptance of a finished client run: what the on arm of each segment was seen to accept.

Cells of all loads are pooled, because acceptance belongs to the text and not to the load; a cell whose comparison is
void is left out. Survivals come from the server's counters (accepted tokens by position over drafts). Where a server
has none, only tokens per step are known, and one alpha that gives them stands in for survivals.

A server may draft less than K when it sees fit (lane torch, `dynamic_draft_len`). Then deep positions were tried in
part of the drafts only: survivals are lower bounds, and `source` says so.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specdeploy.contract import Method
from specdeploy.errors import ConfigError, Violation
from specdeploy.planner.closed_form import alpha_of, survivals_of
from specdeploy.planner.counted_acceptance import request_sd_of_means
from specdeploy.planner.published_acceptance import form_of
from specdeploy.planner_contract import AcceptanceOrigin, AcceptanceProfile, DraftForm
from specdeploy.run_contract import Acceptance, Arm, CellConditions, CellSummary, RunSummary

_MEASURE = "Measure with `specdeploy-client bench`, or offline with `specdeploy profile`"
# Drafted tokens per draft below this part of K: the server cut them. The last steps of an answer do so a little.
_IS_WHOLE = 0.95
_IS_TREE = 1.05  # above this part of K more than a chain was verified


@dataclass(frozen=True, slots=True)
class _Cell:
    """One cell's on arm: counts over its steps, and counters of the server where they can be trusted."""

    acceptance: Acceptance
    num_requests: int
    num_drafts: int | None
    accepted_per_pos: tuple[int, ...] | None


def profiles_of_run(summary: RunSummary, file: str, method: Method | None = None) -> tuple[AcceptanceProfile, ...]:
    """One profile per segment that has usable cells. Raises ConfigError where none has, with the reasons."""
    method = method or next((known for known in Method if known.value == summary.method), None)
    segments = dict.fromkeys(cell.segment for cell in summary.cells)
    profiles, reasons = [], []
    for segment in segments:
        cells, why_not = _usable_cells(summary, segment)
        profile = _profile_of(cells, segment, method, summary, file) if cells else None
        if profile is not None:
            profiles.append(profile)
        else:
            reasons.append(f"{segment}: {why_not or 'nothing was drafted'}")
    if not profiles:
        reason = "no cell shows an acceptance" + (f" ({'; '.join(reasons)})" if reasons else "")
        raise ConfigError([Violation(file, "cells", reason, _MEASURE)])
    return tuple(profiles)


def _usable_cells(summary: RunSummary, segment: str) -> tuple[list[_Cell], str | None]:
    """Cells of a segment that drafted and are not void, and why others were left out."""
    conditions = {(entry.segment, entry.load): entry for entry in summary.conditions}
    cells, why_not = [], None
    for cell in summary.cells:
        if cell.segment != segment or cell.arm is not Arm.ON or cell.acceptance is None:
            continue
        voids = [
            str(reason)
            for comparison in summary.comparisons
            if comparison.segment == segment and comparison.load == cell.load
            for reason in comparison.void_reasons
        ]
        if voids:
            why_not = f"{cell.load} is void, {voids[0]}"
        elif cell.acceptance.num_steps > 0 and cell.acceptance.num_draft_tokens > 0:
            cells.append(_cell_of(cell, cell.acceptance, conditions.get((segment, cell.load))))
    return cells, why_not


def _cell_of(cell: CellSummary, acceptance: Acceptance, conditions: CellConditions | None) -> _Cell:
    num_requests = cell.num_requests - cell.num_errors
    is_counted = conditions is not None and conditions.counter_mismatch is None
    if conditions is None or not is_counted or not conditions.num_drafts or not conditions.accepted_per_pos:
        return _Cell(acceptance, num_requests, None, None)
    return _Cell(acceptance, num_requests, conditions.num_drafts, conditions.accepted_per_pos)


def _profile_of(
    cells: Sequence[_Cell], segment: str, method: Method | None, summary: RunSummary, file: str
) -> AcceptanceProfile | None:
    num_steps = sum(cell.acceptance.num_steps for cell in cells)
    num_draft_tokens = sum(cell.acceptance.num_draft_tokens for cell in cells)
    num_requests = sum(cell.num_requests for cell in cells)
    mean_tokens = 1 + sum(cell.acceptance.num_accepted_tokens for cell in cells) / num_steps
    num_drafts = _sum_of(cell.num_drafts for cell in cells)
    draft_len = summary.max_draft_len or max((len(cell.accepted_per_pos or ()) for cell in cells), default=0)
    notes = [f"{file}, {segment}, {len(cells)} cells"]
    if num_drafts and all(cell.accepted_per_pos for cell in cells):
        survivals = _pooled([cell.accepted_per_pos or () for cell in cells], num_drafts, draft_len)
        draft_share = min(1.0, num_drafts / num_steps)
        drafted = num_draft_tokens / num_drafts / max(draft_len, 1)
        if drafted < _IS_WHOLE:
            notes.append(
                f"drafts had {drafted * draft_len:.1f} of K {draft_len} tokens on average, so deep survivals are lower "
                "bounds; measure with dynamic_draft_len: false or `specdeploy profile`"
            )
    elif draft_len:
        survivals = survivals_of(alpha_of(min(mean_tokens, draft_len + 1), draft_len), draft_len)
        draft_share, drafted = 1.0, num_draft_tokens / num_steps / draft_len
        notes.append("only tokens per step were reported: survivals of the one alpha that gives them")
    else:
        return None
    form = DraftForm.CHAIN if method is None else form_of(method, has_tree=drafted > _IS_TREE)
    # A chain that did not draft was told not to: that is a decision, and no property of the text.
    is_lookup = form is DraftForm.LOOKUP
    return AcceptanceProfile(
        segment=segment,
        method=method,
        form=form,
        survivals=survivals,
        draft_share=draft_share if is_lookup else 1.0,
        request_sd=_request_sd(cells, survivals, draft_share),
        num_steps=num_steps if is_lookup or num_drafts is None else min(num_drafts, num_steps),
        num_requests=num_requests,
        target=None,
        draft=None,
        origin=AcceptanceOrigin.RUN,
        source="; ".join(notes),
    )


def _pooled(counts: Sequence[Sequence[int]], num_drafts: int, draft_len: int) -> tuple[float, ...]:
    """Accepted by position over drafts; positions that no cell reached were never accepted."""
    depth = max(draft_len, *(len(accepted) for accepted in counts))
    survivals: list[float] = []
    for position in range(depth):
        accepted = sum(entry[position] for entry in counts if position < len(entry))
        survivals.append(min(accepted / num_drafts, *survivals[-1:], 1.0))
    return tuple(survivals)


def _request_sd(cells: Sequence[_Cell], survivals: Sequence[float], draft_share: float) -> float | None:
    """Spread over requests from the two means of each cell, averaged over cells by their requests."""
    spreads = [
        (cell.num_requests, spread)
        for cell in cells
        if (
            spread := request_sd_of_means(
                step_mean=cell.acceptance.mean_acceptance_length,
                request_mean=cell.acceptance.mean_acceptance_length_per_request,
                num_steps=cell.acceptance.num_steps,
                num_requests=cell.num_requests,
                survivals=survivals,
                draft_share=draft_share,
            )
        )
        is not None
    ]
    total = sum(weight for weight, _ in spreads)
    return sum(weight * spread for weight, spread in spreads) / total if total else None


def _sum_of(values: Iterable[int | None]) -> int | None:
    """None where one is not known."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)
