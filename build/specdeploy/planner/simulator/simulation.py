"""The simulation: from event to event, with the steps between two of them added up at once."""

import math
from collections import deque
from collections.abc import Sequence

import numpy as np

from specdeploy.contract import SegmentPlan
from specdeploy.planner.mean_step import mean_step_time
from specdeploy.planner.simulated_traffic import SimulatedTraffic
from specdeploy.planner.simulator.columns import seconds, whole_numbers
from specdeploy.planner.simulator.draft_lengths import UNBOUNDED, DraftLengths
from specdeploy.planner.simulator.result import Refusal, SimulationResult
from specdeploy.planner.simulator.rows import DecodingRows, PromptQueue, Row
from specdeploy.planner.simulator.settings import SimulationSettings
from specdeploy.planner.simulator.sources import source_of
from specdeploy.planner.simulator.step_counts import StepAcceptance, StepCounts
from specdeploy.planner.step_times import StepLoad, StepTimes

SAME_MOMENT_S = 1e-9  # an arrival this close behind a step's end counts as before it: sums of seconds are rounded
_MAX_KNOWN_LOADS = 1 << 17  # answers of the cost model kept here


def simulate(
    traffic: SimulatedTraffic,
    times: StepTimes,
    acceptance: Sequence[StepAcceptance | None],
    plans: Sequence[SegmentPlan],
    settings: SimulationSettings,
) -> SimulationResult:
    """Serve all of `traffic`; `acceptance` and `plans` have one entry per segment, in the order of its names.

    Where K is 0 everywhere nothing is drawn and no acceptance model is asked: plain decoding. Raises ValueError for
    entries that do not match the segments, a K above 0 without a model, or no arrivals and no concurrency.
    """
    num_segments = len(traffic.segment_names)
    if len(acceptance) != num_segments or len(plans) != num_segments:
        raise ValueError(f"acceptance and plans: one per segment, {num_segments}")
    return _Simulation(traffic, times, acceptance, plans, settings).run()


class _Simulation:
    def __init__(
        self,
        traffic: SimulatedTraffic,
        times: StepTimes,
        acceptance: Sequence[StepAcceptance | None],
        plans: Sequence[SegmentPlan],
        settings: SimulationSettings,
    ) -> None:
        self._traffic = traffic
        self._settings = settings
        self._lengths = DraftLengths(plans, acceptance)
        self._steps_of = StepCounts(traffic, self._lengths.choices, acceptance, settings.seed)
        self._source = source_of(traffic, settings.concurrency)
        self._times = times
        self._known: dict[tuple[int, float, int, int, int], tuple[float, float, float]] = {}

        self._inputs, self._outputs, self._segments = map(
            whole_numbers, (traffic.input_tokens, traffic.output_tokens, traffic.segment)
        )
        num_requests = traffic.num_requests
        self._arrival_s = np.zeros(num_requests)
        self._ttft_s = np.full(num_requests, np.nan)
        self._e2e_s = np.full(num_requests, np.nan)
        self._num_steps = np.zeros(num_requests, np.int64)
        self._refusal = np.zeros(num_requests, np.uint8)
        self._arrivals, self._ttfts, self._e2es = map(seconds, (self._arrival_s, self._ttft_s, self._e2e_s))

        self._now_s = self._source.next_s
        self._step = 0
        self._busy_s = 0.0
        self._request_s = 0.0  # requests in flight, integrated over time
        self._last_end_s = 0.0
        self._num_left_waiting = 0
        self._in_flight = 0
        self._regime = self._lengths.at(1)
        self._free_rows = settings.max_rows
        self._kv_limit = UNBOUNDED if settings.kv_tokens is None else settings.kv_tokens
        self._free_kv = self._kv_limit
        self._deepest = [draft_lens[-1] for draft_lens in self._lengths.choices]
        self._waiting: deque[int] = deque()
        self._prompts = PromptQueue(settings.prefill_chunk)
        self._decoding = DecodingRows(len(plans))

    def run(self) -> SimulationResult:
        source = self._source
        while True:
            if self._decoding.next_finish == self._step:
                self._leave()
            starting = self._first_tokens() if self._prompts.completed else ()
            if source.next_s <= self._now_s + SAME_MOMENT_S:
                self._submit()
            if not self._in_flight:
                if source.next_s == math.inf:
                    return self._result()
                self._now_s = source.next_s
                continue
            if not self._regime.low <= self._in_flight <= self._regime.high:
                self._change_regime()
            for row in starting:
                self._decoding.start(row, self._step, self._regime.positions[row.segment])
            if self._waiting:
                self._admit()
            self._advance()

    def _leave(self) -> None:
        for row in self._decoding.remove_finished(self._step):
            self._finish(row, self._step - row.first_step + 1)

    def _first_tokens(self) -> list[Row]:
        """Prompts that the last step has read to the end: their first token is out. Returns those that go on."""
        starting = []
        for row in self._prompts.completed:
            self._ttfts[row.index] = self._now_s - self._arrivals[row.index]
            if row.growth:
                starting.append(row)
            else:
                self._finish(row, 1)
        self._prompts.completed.clear()
        return starting

    def _finish(self, row: Row, num_steps: int) -> None:
        self._e2es[row.index] = self._now_s - self._arrivals[row.index]
        self._num_steps[row.index] = num_steps
        self._last_end_s = self._now_s
        self._free_rows += 1
        self._free_kv += row.reserved_tokens
        self._in_flight -= 1
        self._source.answer(self._now_s)

    def _submit(self) -> None:
        """Everything that has arrived by now: into the queue, or refused as the engine would."""
        source, max_queue, until_s = self._source, self._settings.max_queue, self._now_s + SAME_MOMENT_S
        while source.next_s <= until_s:
            index, arrival_s = source.take()
            self._arrivals[index] = arrival_s
            if self._inputs[index] + self._outputs[index] > self._kv_limit:
                self._refuse(index, Refusal.NEVER_FITS)
            elif max_queue is not None and len(self._waiting) >= self._free_rows + max_queue:
                self._refuse(index, Refusal.QUEUE_FULL)
            else:
                self._waiting.append(index)
                self._in_flight += 1
                self._request_s += self._now_s - arrival_s
            if index == self._traffic.num_requests - 1:
                self._num_left_waiting = max(len(self._waiting) - self._free_rows, 0)

    def _refuse(self, index: int, reason: Refusal) -> None:
        self._refusal[index] = reason
        self._source.answer(self._now_s)

    def _change_regime(self) -> None:
        self._regime = self._lengths.at(self._in_flight)
        self._decoding.change(self._step, self._regime.positions)

    def _admit(self) -> None:
        """In order of arrival: a request that does not fit now is not overtaken."""
        while self._waiting and self._free_rows:
            index = self._waiting[0]
            prompt, output, segment = self._inputs[index], self._outputs[index], self._segments[index]
            reserved = min(prompt + output + self._deepest[segment], self._kv_limit)
            if reserved > self._free_kv:
                return
            self._waiting.popleft()
            self._free_rows -= 1
            self._free_kv -= reserved
            reads_draft = self._regime.draft_lens[segment] > 0
            row = Row(index, segment, prompt, output - 1, self._steps_of.of(index), reserved, reads_draft)
            self._prompts.add(row)

    def _advance(self) -> None:
        """All steps up to the next event."""
        decoding, chunk = self._decoding, self._prompts.next_chunk()
        fixed_s, kv_token_s, context_s = self._step_time(chunk.tokens, chunk.draft_tokens)
        first_s = fixed_s + kv_token_s * decoding.kv_tokens + context_s * chunk.context
        growth_s = kv_token_s * decoding.kv_per_step + context_s * chunk.context_growth
        num_steps = min(decoding.next_finish - self._step, chunk.max_steps)
        duration_s = num_steps * first_s + growth_s * (num_steps * (num_steps - 1) / 2)
        gap_s = self._source.next_s - SAME_MOMENT_S - self._now_s
        if num_steps > 1 and duration_s > gap_s:
            num_steps = steps_within(gap_s, first_s, growth_s)
            duration_s = num_steps * first_s + growth_s * (num_steps * (num_steps - 1) / 2)
        if chunk.tokens:
            self._prompts.read(chunk, num_steps)
        decoding.advance(num_steps)
        self._step += num_steps
        self._now_s += duration_s
        self._busy_s += duration_s
        self._request_s += self._in_flight * duration_s

    def _step_time(self, prefill_tokens: int, draft_prefill_tokens: int) -> tuple[float, float, float]:
        """Fixed seconds, seconds per cached token and per token of context of the next step."""
        num_drafted, depth, regime = 0.0, 0, self._regime
        for segment, count in enumerate(self._decoding.counts):
            if count and regime.draft_lens[segment]:
                num_drafted += count * regime.drafted_tokens[segment]
                depth = max(depth, regime.draft_lens[segment])
        key = (self._decoding.num_rows, num_drafted, depth, prefill_tokens, draft_prefill_tokens)
        known = self._known.get(key)
        if known is None:
            load = StepLoad(self._decoding.num_rows, 0, depth, prefill_tokens, draft_prefill_tokens)
            time = mean_step_time(self._times, load, num_drafted)
            known = (time.fixed_s, time.kv_token_s, time.prefill_context_s)
            if len(self._known) >= _MAX_KNOWN_LOADS:
                self._known.clear()
            self._known[key] = known
        return known

    def _result(self) -> SimulationResult:
        with np.errstate(divide="ignore", invalid="ignore"):
            tpot_s = (self._e2e_s - self._ttft_s) / (self._traffic.output_tokens - 1)
        duration_s = max(self._last_end_s - float(self._arrival_s[0]), 0.0)
        return SimulationResult(
            traffic=self._traffic,
            arrival_s=self._arrival_s,
            ttft_s=self._ttft_s,
            e2e_s=self._e2e_s,
            tpot_s=tpot_s,
            num_steps=self._num_steps,
            refusal=self._refusal,
            duration_s=duration_s,
            busy_s=self._busy_s,
            num_engine_steps=self._step,
            mean_in_flight=self._request_s / duration_s if duration_s else 0.0,
            num_left_waiting=self._num_left_waiting,
            max_rows=self._settings.max_rows,
        )


def steps_within(gap_s: float, first_s: float, growth_s: float) -> int:
    """The smallest n >= 1 whose n steps take at least `gap_s`; the first takes `first_s`, each next `growth_s` more.

    n steps take n x first + growth x n (n - 1) / 2; the root of that is corrected to the exact whole number.
    """
    slope = first_s - growth_s / 2
    root = 2 * gap_s / (slope + math.sqrt(max(slope * slope + 2 * growth_s * gap_s, 0.0))) if gap_s > 0 else 0.0
    num_steps = max(1, math.ceil(root))
    while num_steps * first_s + growth_s * (num_steps * (num_steps - 1) / 2) < gap_s:
        num_steps += 1
    while num_steps > 1 and (num_steps - 1) * first_s + growth_s * ((num_steps - 1) * (num_steps - 2) / 2) >= gap_s:
        num_steps -= 1
    return num_steps
