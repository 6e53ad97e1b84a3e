"""Two sources for one number: the server's counters over a cell against the sums over the answers of its requests.

A counter that stays at zero while tokens come in bursts, or a client that lost answers, shows here. What one of the two
sources does not report is not a mismatch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from specdeploy.run_contract import Arm, CellConditions
from specdeploy_client.records.columns import NOT_REPORTED
from specdeploy_client.records.table import ArmColumns
from specdeploy_client.server_facts import ServerFacts


@dataclass(frozen=True, slots=True)
class CounterIncrease:
    """Increase of a server's counters over a cell; None where it has no such counter. Fields as in CellConditions."""

    num_drafts: int | None = None
    num_draft_tokens: int | None = None
    num_accepted_tokens: int | None = None
    accepted_per_pos: tuple[int, ...] | None = None
    cached_share: float | None = None

    @classmethod
    def of(cls, conditions: CellConditions) -> "CounterIncrease":
        """What `conditions` hold of it."""
        return cls(
            conditions.num_drafts,
            conditions.num_draft_tokens,
            conditions.num_accepted_tokens,
            conditions.accepted_per_pos,
            conditions.cached_share,
        )


def counter_increase(before: ServerFacts, after: ServerFacts, segment: str) -> CounterIncrease:
    """What `segment` added between two readings; on a server without segments, what everything added.

    A counter that went down (the server was started again in between) says nothing. Cached tokens are those of the
    whole server.
    """
    if segment in after.counters:
        counters = after.counters_since(before)[segment]
        found = CounterIncrease(
            counters.num_drafts,
            counters.num_draft_tokens,
            counters.num_accepted_tokens,
            counters.accepted_per_pos or None,
        )
    else:
        found = _whole_server_increase(before, after)
    values = (found.num_drafts, found.num_draft_tokens, found.num_accepted_tokens, *(found.accepted_per_pos or ()))
    if any(value is not None and value < 0 for value in values):
        return CounterIncrease()
    return replace(found, cached_share=after.cached_share_since(before))


def counter_mismatch(conditions: CellConditions, arms: Mapping[Arm, ArmColumns]) -> str | None:
    """Where the counters in `conditions` and the answers of `arms` (all arms of the cell) contradict each other.

    A request without an answer drafted something too, which only the server knows: where there is one, the server may
    count more, never less. Every draft is a step, so there are at least as many steps as drafts.
    """
    has_unanswered = any(not columns.is_answered.all() for columns in arms.values())
    found = [
        _difference("drafted tokens", conditions.num_draft_tokens, _total(arms, "num_draft_tokens"), has_unanswered),
        _difference(
            "accepted tokens", conditions.num_accepted_tokens, _total(arms, "num_accepted_tokens"), has_unanswered
        ),
    ]
    if not has_unanswered:
        found.append(_too_many_drafts(conditions.num_drafts, _total(arms, "num_steps")))
    return "; ".join(text for text in found if text is not None) or None


def reconcile(conditions: CellConditions, arms: Mapping[Arm, ArmColumns]) -> CellConditions:
    """`conditions` with its `counter_mismatch`."""
    return conditions.model_copy(update={"counter_mismatch": counter_mismatch(conditions, arms)})


def _whole_server_increase(before: ServerFacts, after: ServerFacts) -> CounterIncrease:
    def increase(name: str) -> int | None:
        return after.whole_server[name] - before.whole_server.get(name, 0) if name in after.whole_server else None

    earlier = before.whole_server_per_pos + (0,) * len(after.whole_server_per_pos)
    per_pos = tuple(now - then for now, then in zip(after.whole_server_per_pos, earlier, strict=False))
    return CounterIncrease(
        increase("num_drafts"), increase("num_draft_tokens"), increase("num_accepted_tokens"), per_pos or None
    )


def _total(arms: Mapping[Arm, ArmColumns], name: str) -> int | None:
    """Sum of a count over all requests; None where an answered one does not report it."""
    total = 0
    for columns in arms.values():
        values = getattr(columns, name)
        is_reported = values != NOT_REPORTED
        if (columns.is_answered & ~is_reported).any():
            return None
        total += int(values[is_reported].sum(dtype="int64"))
    return total


def _difference(what: str, on_server: int | None, in_answers: int | None, may_exceed: bool) -> str | None:
    if on_server is None or in_answers is None or on_server == in_answers or (may_exceed and on_server > in_answers):
        return None
    return f"{what}: {on_server} counted by the server, {in_answers} in the answers"


def _too_many_drafts(num_drafts: int | None, num_steps: int | None) -> str | None:
    if num_drafts is None or num_steps is None or num_drafts <= num_steps:
        return None
    return f"drafts: {num_drafts} counted by the server in {num_steps} steps of the answers"
