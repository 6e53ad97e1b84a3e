"""Tables, verdicts and plots out of the measurements. Nothing here measures."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from bars import Bar, bar_plot
from comparison import DraftCounts, Goal, Ratio, markdown_table, optional, paired_ratio
from records import Record

PLAIN_GOAL = Goal(2.5, 1.5)
READ_ONCE_GOAL = Goal(2.0, 3.0, is_floor=False)
VERIFY_GOAL = Goal(1.15, is_floor=False)
DRAFTED_GOAL = Goal(2.0, 1.3)
BATCH_GOAL = Goal(3.0)
PEER_SINGLE_GOAL = Goal(1.5)
PEER_BATCH_GOAL = Goal(1.0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One measured number beside its goal."""

    subject: str
    ratio: Ratio
    goal: Goal

    def row(self) -> list[str]:
        """For the table of verdicts."""
        return [self.subject, self.ratio.text(), self.goal.text(), self.goal.verdict(self.ratio.value)]


class Measurements:
    """Records of one run, asked by segment and arm."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._singles: dict[str, dict[str, dict[str, Record]]] = {}  # segment -> arm -> block -> record
        self._batches: dict[str, dict[str, list[Record]]] = {}
        for record in records:
            if record.kind == "single":
                self._singles.setdefault(record.segment, {}).setdefault(record.arm, {})[record.block] = record
            else:
                self._batches.setdefault(record.segment, {}).setdefault(record.arm, []).append(record)

    @property
    def segments(self) -> list[str]:
        """Those with at least one measurement, in the order they came."""
        return list(self._singles)

    def has(self, segment: str, arm: str) -> bool:
        """Whether the arm ran single prompts of the segment."""
        return arm in self._singles.get(segment, {})

    def singles(self, segment: str, arm: str) -> list[Record]:
        """One record per prompt."""
        return list(self._singles.get(segment, {}).get(arm, {}).values())

    def speedup(self, segment: str | None, arm: str, slower: str) -> Ratio | None:
        """Median seconds of `slower` over those of `arm` on the prompts both ran, of all segments for None.

        None when both ran none.
        """
        pairs = [
            (theirs[block].seconds, record.seconds)
            for name in ([segment] if segment is not None else self.segments)
            for block, record in self._singles.get(name, {}).get(arm, {}).items()
            if block in (theirs := self._singles.get(name, {}).get(slower, {}))
        ]
        if not pairs:
            return None
        return paired_ratio([theirs for theirs, _ in pairs], [ours for _, ours in pairs])

    def fastest(self, segment: str, arms: Sequence[str]) -> str | None:
        """The arm with the lowest median among those that ran."""
        ran = [arm for arm in arms if self.has(segment, arm)]
        return min(ran, key=lambda arm: self.median_seconds(segment, arm), default=None)

    def median_seconds(self, segment: str, arm: str) -> float:
        """Of one prompt, batch 1."""
        return float(np.median([record.seconds for record in self.singles(segment, arm)]))

    def tokens_per_second(self, segment: str, arm: str, *, is_batch: bool) -> float | None:
        """Output tokens over seconds: prompts one after another, or all at once (median of the repeats)."""
        if is_batch:
            batches = self._batches.get(segment, {}).get(arm, [])
            rates = [record.num_tokens / record.seconds for record in batches]
            return float(np.median(rates)) if rates else None
        singles = self.singles(segment, arm)
        if not singles:
            return None
        return sum(record.num_tokens for record in singles) / sum(record.seconds for record in singles)

    def counts(self, segment: str, arm: str) -> DraftCounts | None:
        """Drafting over the segment; None where the arm does not count steps."""
        singles = self.singles(segment, arm)
        if not singles or any(record.num_steps is None for record in singles):
            return None
        return DraftCounts(
            num_output_tokens=sum(record.num_tokens for record in singles),
            num_steps=sum(record.num_steps or 0 for record in singles),
            num_draft_tokens=sum(record.num_draft_tokens or 0 for record in singles),
            num_accepted_tokens=sum(record.num_accepted_tokens or 0 for record in singles),
        )

    def num_same_text(self, segment: str, arm: str, other: str) -> tuple[int, int]:
        """Prompts with the same tokens from both, and prompts both ran."""
        theirs = self._singles.get(segment, {}).get(other, {})
        pairs = [(r, theirs[block]) for block, r in self._singles[segment][arm].items() if block in theirs]
        return sum(a.token_ids == b.token_ids for a, b in pairs), len(pairs)


def step_table(costs: Sequence[Mapping[str, Any]]) -> tuple[str, list[Verdict]]:
    """The plain step by parts, in milliseconds, one line per dtype; and how it stands."""
    names = list(dict.fromkeys(name for cost in costs for name in cost["parts_s"]))
    rows, verdicts = [], []
    for cost in costs:
        verify = paired_ratio(cost["verify_forward_s"], cost["plain_forward_s"])
        over_floor = cost["step_s"] / cost["read_once_s"]
        rows.append(
            [
                cost["dtype"],
                f"{cost['step_s'] * 1e3:.2f}",
                *(f"{cost['parts_s'].get(name, 0.0) * 1e3:.2f}" for name in names),
                f"{cost['read_once_s'] * 1e3:.2f}",
                f"{over_floor:.2f}",
                verify.text(),
            ]
        )
        floor = Ratio(over_floor, None, None, 1)
        verdicts.append(Verdict(f"{cost['dtype']}: plain step over reading the weights once", floor, READ_ONCE_GOAL))
        if cost["dtype"] == "bfloat16":
            subject = f"{cost['dtype']}: verifying {cost['verified_tokens']} tokens over a plain step"
            verdicts.append(Verdict(subject, verify, VERIFY_GOAL))
    header = [
        "dtype",
        "step ms",
        *names,
        "weights read once ms",
        "step / that",
        f"verify {costs[0]['verified_tokens']}",
    ]
    return markdown_table(header, rows), verdicts


def plain_table(runs: Mapping[str, Measurements], ours: str, theirs: str) -> tuple[str, list[Verdict]]:
    """Plain decoding, ours against transformers, by dtype and over all segments."""
    rows, verdicts = [], []
    for dtype, run in runs.items():
        for segment in [*run.segments, None]:
            ratio = run.speedup(segment, ours, theirs)
            if ratio is None:
                continue
            if segment is None:
                verdicts.append(Verdict(f"{dtype}: plain decoding, transformers over ours", ratio, PLAIN_GOAL))
                continue
            rates = [run.tokens_per_second(segment, arm, is_batch=False) for arm in (ours, theirs)]
            rows.append([dtype, segment, *(optional(rate, 1) for rate in rates), ratio.text()])
    header = ["dtype", "segment", "ours tokens/s", "transformers tokens/s", "speed-up (95 % interval)"]
    return markdown_table(header, rows), verdicts


def method_table(run: Measurements, methods: Mapping[str, str], plain: str) -> str:
    """Every drafting method against plain decoding of the same engine. `methods`: arm -> what to call it."""
    rows = []
    for segment in run.segments:
        for arm, name in methods.items():
            ratio = run.speedup(segment, arm, plain)
            counts = run.counts(segment, arm)
            if ratio is None or counts is None:
                continue
            same, num_pairs = run.num_same_text(segment, arm, plain)
            rows.append(
                [
                    segment,
                    name,
                    f"{run.median_seconds(segment, arm):.2f}",
                    ratio.text(),
                    optional(counts.acceptance_rate),
                    optional(counts.tokens_per_step),
                    f"{same} of {num_pairs}",
                ]
            )
    header = ["segment", "method", "e2e s p50", "plain / method", "acceptance", "tokens per step", "same text"]
    return markdown_table(header, rows)


def against_table(
    run: Measurements, pairs: Mapping[str, Sequence[str]], names: Mapping[str, str], goal: Goal
) -> tuple[str, list[Verdict]]:
    """`pairs`: our arm -> the peer's arms it stands against. The goal is judged against the peer's fastest."""
    rows, verdicts = [], []
    for segment in run.segments:
        for ours, peers in pairs.items():
            best = run.fastest(segment, peers)
            for peer in peers:
                ratio = run.speedup(segment, ours, peer)
                if ratio is None:
                    continue
                counts = run.counts(segment, peer)
                rows.append(
                    [
                        segment,
                        names.get(ours, ours),
                        names.get(peer, peer) + (" (its fastest)" if peer == best and len(peers) > 1 else ""),
                        f"{run.median_seconds(segment, ours):.2f}",
                        f"{run.median_seconds(segment, peer):.2f}",
                        ratio.text(),
                        optional(None if counts is None else counts.tokens_per_step),
                    ]
                )
                if peer == best:
                    subject = f"{segment}: {names.get(ours, ours)} against {names.get(peer, peer)}"
                    verdicts.append(Verdict(subject, ratio, goal))
    header = ["segment", "ours", "peer", "ours s p50", "peer s p50", "peer / ours", "peer's tokens per step"]
    return markdown_table(header, rows), verdicts


def batch_table(
    run: Measurements, pairs: Sequence[tuple[str, str, bool]], names: Mapping[str, str], goal: Goal
) -> tuple[str, list[Verdict]]:
    """Throughput of our arm at the full batch over another's. `pairs`: ours, other, whether the other is batched."""
    rows, verdicts = [], []
    for segment in run.segments:
        for ours, other, is_batch in pairs:
            fast = run.tokens_per_second(segment, ours, is_batch=True)
            slow = run.tokens_per_second(segment, other, is_batch=is_batch)
            if fast is None or slow is None:
                continue
            how = "at once" if is_batch else "one after another"
            subject = f"{names.get(ours, ours)} at once over {names.get(other, other)} {how}"
            rows.append([segment, subject, f"{fast:.1f}", f"{slow:.1f}", f"{fast / slow:.2f}"])
            verdicts.append(Verdict(f"{segment}: {subject}", Ratio(fast / slow, None, None, 1), goal))
    header = ["segment", "comparison", "tokens/s", "other's tokens/s", "ratio"]
    return markdown_table(header, rows), verdicts


def verdict_table(verdicts: Sequence[Verdict]) -> str:
    """Goals beside what was measured."""
    return markdown_table(["what", "measured", "goal", "verdict"], [verdict.row() for verdict in verdicts])


def verdicts_as_json(verdicts: Sequence[Verdict]) -> list[dict[str, str]]:
    """The same for a program."""
    return [dict(zip(("what", "measured", "goal", "verdict"), verdict.row(), strict=True)) for verdict in verdicts]


def speedup_plot(run: Measurements, arms: Mapping[str, str], slower: str, title: str) -> str:
    """SVG: how many times faster than `slower` each arm is, by segment."""
    groups: dict[str, dict[str, Bar]] = {}
    for segment in run.segments:
        bars = {
            name: Bar(ratio.value, ratio.low, ratio.high)
            for arm, name in arms.items()
            if (ratio := run.speedup(segment, arm, slower)) is not None
        }
        if bars:
            groups[segment] = bars
    return bar_plot(title, groups, [(1.0, "equal")])


def machine_text(facts: Mapping[str, Any], skipped: Mapping[str, str]) -> str:
    """What the numbers belong to."""
    flags = ", ".join(facts["flags"]) or "none of those looked for"
    machine = f"{facts['processor']}, {facts['cores']} cores, {facts['threads']} threads, {flags}"
    versions = f"torch {facts['torch']}, Python {facts['python']}"
    lines = ["# Measurements\n", f"{machine}; {versions}; load average at the start {facts['load_average']:.2f}."]
    if not facts["has_amx"]:
        lines.append("No AMX: bfloat16 is multiplied by vector instructions, so float32 is shown beside it.")
    lines += [f"Skipped: {name}: {reason}" for name, reason in skipped.items()]
    return "\n".join(lines) + "\n"
