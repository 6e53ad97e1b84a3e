"""Counters of the server over a run: when they are read, how cells add up, and the file they are kept in."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specdeploy.errors import ClientError, ConfigError, Violation
from specdeploy_client.artifacts import write_text
from specdeploy_client.reconcile import CounterIncrease
from specdeploy_client.server_facts import SegmentCounters, ServerFacts

ReadFacts = Callable[[], Awaitable[ServerFacts]]
_SETTLE_INTERVAL_S = 0.2
_MAX_SETTLE_READS = 15


async def read_settled_facts(read_facts: ReadFacts) -> ServerFacts | None:
    """Read until two reads agree: counters may trail the last message a little. None where there is no such page."""
    try:
        facts = await read_facts()
        for _ in range(_MAX_SETTLE_READS):
            await asyncio.sleep(_SETTLE_INTERVAL_S)
            again = await read_facts()
            if (again.counters, again.whole_server) == (facts.counters, facts.whole_server):
                return again
            facts = again
    except ClientError:
        return None
    return facts


def write_counters(path: Path, counters: Mapping[str, SegmentCounters] | None) -> None:
    """Counters as JSON, by segment; `null` when they were not read."""
    content = None if counters is None else {segment: asdict(value) for segment, value in counters.items()}
    write_text(path, json.dumps(content, indent=2) + "\n")


def load_counters(path: Path) -> dict[str, SegmentCounters] | None:
    """Counters that `write_counters` wrote. Raises `ConfigError` for anything else."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        if content is None:
            return None
        return {
            segment: SegmentCounters(**{**value, "accepted_per_pos": tuple(value["accepted_per_pos"])})
            for segment, value in content.items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"not a file of server counters ({error})"
        raise ConfigError([Violation(str(path), "", reason, "Measure again")]) from error


def add_increases(increases: Sequence[CounterIncrease]) -> SegmentCounters | None:
    """What the cells of one segment added together; None where one of them lacks a counter. Positions: () likewise."""
    drafts = [increase.num_drafts for increase in increases if increase.num_drafts is not None]
    drafted = [increase.num_draft_tokens for increase in increases if increase.num_draft_tokens is not None]
    accepted = [increase.num_accepted_tokens for increase in increases if increase.num_accepted_tokens is not None]
    if not len(drafts) == len(drafted) == len(accepted) == len(increases):
        return None
    positions = [increase.accepted_per_pos or () for increase in increases]
    longest = max(map(len, positions)) if all(positions) else 0
    return SegmentCounters(
        num_drafts=sum(drafts),
        num_draft_tokens=sum(drafted),
        num_accepted_tokens=sum(accepted),
        accepted_per_pos=tuple(sum(row[i] for row in positions if i < len(row)) for i in range(longest)),
    )
