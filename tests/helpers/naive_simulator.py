"""The simulator's meaning, written down the slow way: one turn of a loop per engine step, progress in fractions.

Nothing is shared with `specdeploy.planner.simulator` but the types of what goes in.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from specdeploy.contract import SegmentPlan
from specdeploy.planner.simulated_traffic import SimulatedTraffic
from specdeploy.planner.simulator.settings import SimulationSettings
from specdeploy.planner.simulator.step_counts import StepAcceptance
from specdeploy.planner.step_times import StepLoad, StepTimes

SAME_MOMENT_S = 1e-9


@dataclass
class NaiveRow:
    index: int
    segment: int
    prompt: int
    output: int
    reserved: int
    reads_draft: bool
    read: int = 0
    is_decoding: bool = False
    done: Fraction = Fraction(0)  # share of the decoding steps
    num_steps: int = 0

    @property
    def cached(self) -> float:
        return self.prompt + float(self.done * (self.output - 1))


@dataclass
class NaiveSimulation:
    """`run` fills the results: seconds and steps by request, and the requests that were refused."""

    traffic: SimulatedTraffic
    times: StepTimes
    acceptance: Sequence[StepAcceptance | None]
    plans: Sequence[SegmentPlan]
    settings: SimulationSettings
    ttft_s: dict[int, float] = field(default_factory=dict)
    e2e_s: dict[int, float] = field(default_factory=dict)
    num_steps: dict[int, int] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    num_engine_steps: int = 0
    busy_s: float = 0.0

    def __post_init__(self) -> None:
        self.now = 0.0
        self.sent: dict[int, float] = {}
        self.idle_clients = self.settings.concurrency or 0
        self.waiting: list[int] = []
        self.rows: list[NaiveRow] = []
        self.kv_limit = 10**18 if self.settings.kv_tokens is None else self.settings.kv_tokens
        self.steps_of = {
            (segment, draft_len): _steps(model, self.traffic, segment, draft_len, self.settings.seed)
            for segment, (model, plan) in enumerate(zip(self.acceptance, self.plans, strict=True))
            for draft_len in {0, *(entry.draft_len for entry in plan.ranges)}
        }

    def run(self) -> None:
        while True:
            self.submit()
            in_flight = len(self.rows) + len(self.waiting)
            if in_flight:
                draft_lens = [plan.draft_len(in_flight) for plan in self.plans]
                self.admit(draft_lens)
                self.take_step(draft_lens)
                continue
            arrival = self.next_arrival()
            if arrival is None:
                return
            self.now = arrival

    def next_arrival(self) -> float | None:
        index = len(self.sent)
        if index == self.traffic.num_requests:
            return None
        if self.settings.concurrency:
            return self.now if self.idle_clients else None
        assert self.traffic.arrival_s is not None
        return float(self.traffic.arrival_s[index])

    def submit(self) -> None:
        while (arrival := self.next_arrival()) is not None and arrival <= self.now + SAME_MOMENT_S:
            index = len(self.sent)
            self.sent[index] = arrival
            self.idle_clients -= 1
            tokens = int(self.traffic.input_tokens[index] + self.traffic.output_tokens[index])
            most = self.settings.max_queue
            is_full = most is not None and len(self.waiting) >= self.settings.max_rows - len(self.rows) + most
            if tokens > self.kv_limit or is_full:
                self.refused.add(index)
                self.idle_clients += 1
            else:
                self.waiting.append(index)

    def admit(self, draft_lens: list[int]) -> None:
        while self.waiting and len(self.rows) < self.settings.max_rows:
            index = self.waiting[0]
            segment = int(self.traffic.segment[index])
            prompt, output = int(self.traffic.input_tokens[index]), int(self.traffic.output_tokens[index])
            deepest = max(0, *(entry.draft_len for entry in self.plans[segment].ranges))
            reserved = min(prompt + output + deepest, self.kv_limit)
            if sum(row.reserved for row in self.rows) + reserved > self.kv_limit:
                return
            self.waiting.pop(0)
            self.rows.append(NaiveRow(index, segment, prompt, output, reserved, draft_lens[segment] > 0))

    def take_step(self, draft_lens: list[int]) -> None:
        decoding = [row for row in self.rows if row.is_decoding]
        chunks = self.chunks()
        prefill = sum(taken for _, taken in chunks)
        context = sum(row.read * taken for row, taken in chunks) / prefill if prefill else 0.0
        cached = sum(row.cached for row in decoding)
        step_s = 0.0
        for drafted, share in self.drafted(decoding, draft_lens):
            load = StepLoad(
                num_rows=len(decoding),
                num_draft_tokens=drafted,
                depth=max((draft_lens[row.segment] for row in decoding), default=0),
                prefill_tokens=prefill,
                draft_prefill_tokens=sum(taken for row, taken in chunks if row.reads_draft),
            )
            step_s += share * self.times.time(load).seconds(cached, context)
        self.now += step_s
        self.busy_s += step_s
        self.num_engine_steps += 1
        for row in decoding:
            row.done += Fraction(1, self.steps_of[row.segment, draft_lens[row.segment]][row.index])
            row.num_steps += 1
        for row, taken in chunks:
            row.read += taken
            if row.read == row.prompt:
                self.emit_first_token(row)
        self.remove_finished()

    def chunks(self) -> list[tuple[NaiveRow, int]]:
        budget, chunks = self.settings.prefill_chunk, []
        for row in self.rows:
            if not row.is_decoding and budget:
                taken = min(budget, row.prompt - row.read)
                budget -= taken
                chunks.append((row, taken))
        return chunks

    def drafted(self, decoding: list[NaiveRow], draft_lens: list[int]) -> list[tuple[int, float]]:
        """Tokens drafted in a step, and in which share of such steps: whole drafts of the deepest K."""
        drafted, deepest = 0.0, 0
        for segment, draft_len in enumerate(draft_lens):
            count = sum(row.segment == segment for row in decoding)
            model = self.acceptance[segment]
            if model is not None and draft_len and count:
                drafted += count * model.mean_draft_tokens(draft_len)
                deepest = max(deepest, draft_len)
        if not deepest:
            return [(0, 1.0)]
        below = int(drafted / deepest + 1e-9)
        share = max(drafted / deepest - below, 0.0)
        return [(below * deepest, 1 - share), *([((below + 1) * deepest, share)] if share > 1e-9 else [])]

    def emit_first_token(self, row: NaiveRow) -> None:
        row.is_decoding = True
        row.num_steps += 1
        row.done = Fraction(0) if row.output > 1 else Fraction(1)
        self.ttft_s[row.index] = self.now - self.sent[row.index]

    def remove_finished(self) -> None:
        for row in [row for row in self.rows if row.done >= 1]:
            self.rows.remove(row)
            self.e2e_s[row.index] = self.now - self.sent[row.index]
            self.num_steps[row.index] = row.num_steps
            self.idle_clients += 1


def _steps(
    model: StepAcceptance | None, traffic: SimulatedTraffic, segment: int, draft_len: int, seed: int
) -> dict[int, int]:
    """By request. Small traffics are one window: the draw is of all requests of the segment at once."""
    places = np.flatnonzero(traffic.segment == segment)
    outputs = traffic.output_tokens[places]
    if model is None or draft_len == 0:
        steps = outputs - 1
    else:
        steps = model.draw_steps(outputs, draft_len, np.random.default_rng((seed, 0, segment)))
    return dict(zip(places.tolist(), np.maximum(steps, 1).tolist(), strict=True))
