"""The user's trace or mix, or the deployment's own segments, served without speculation and by the plan."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdeploy.contract import DeploymentPlan, SegmentPlan
from specdeploy.planner.acceptance import AcceptanceModel
from specdeploy.planner.plan_inputs import OfferedTraffic, PlanInputs, SegmentInputs
from specdeploy.planner.ranges import always_off
from specdeploy.planner.simulated_traffic import SimulatedTraffic
from specdeploy.planner.simulator.result import SimulationResult
from specdeploy.planner.simulator.settings import SimulationSettings
from specdeploy.planner.simulator.simulation import SAME_MOMENT_S, simulate
from specdeploy.planner_contract import SimulatedArm, TrafficPrediction
from specdeploy.run_contract import MetricName, Objective, Percentile, Slo

_NUM_BINS = 40
_OWN_REQUESTS_PER_CLIENT = 8
_SEED_OF_MIX = 0x6D6978


@dataclass(frozen=True, slots=True)
class MissedObjective:
    """An objective that is predicted to be missed, in milliseconds. `is_met_off`: only with drafts it is missed."""

    slo: Slo
    off_ms: float
    on_ms: float

    @property
    def is_met_off(self) -> bool:
        return self.off_ms <= self.slo.max_ms

    def __str__(self) -> str:
        return (
            f"{self.slo.metric} {self.slo.percentile} is predicted at {self.on_ms:.0f} ms with drafts and "
            f"{self.off_ms:.0f} ms without; the objective is {self.slo.max_ms:g} ms"
        )


@dataclass(frozen=True, slots=True)
class ServedTraffic:
    """What was simulated, as the report shows it, and every objective that is missed with the plan."""

    prediction: TrafficPrediction
    missed: tuple[MissedObjective, ...]


def serve_traffic(inputs: PlanInputs, plan: DeploymentPlan) -> ServedTraffic:
    """Both arms over the same requests in the same order."""
    offered = inputs.offered or own_traffic(inputs)
    traffic = offered.traffic
    models = [_model_of(inputs, name) for name in traffic.segment_names]
    plans = [plan.segment(name) for name in traffic.segment_names]
    drafts = any(entry.draft_len for one in plans for entry in one.ranges)
    off = _simulate(
        inputs, offered, models, [always_off(name, "off") for name in traffic.segment_names], has_draft=False
    )
    on = _simulate(inputs, offered, models, plans, has_draft=True) if drafts else off
    edges = _edges(off, on)
    objectives = _objectives(inputs.config.slos)
    prediction = TrafficPrediction(
        traffic=offered.name,
        off=_arm("off", off, edges, objectives),
        on=_arm("on", on, edges, objectives),
        is_overloaded=off.is_overloaded or on.is_overloaded,
        range_problem=_beyond_range(inputs, plan, (off, on)),
    )
    missed = tuple(_missed(inputs.config.slos, off, on)) if _is_comparable(inputs, offered) else ()
    return ServedTraffic(prediction, missed)


def _beyond_range(inputs: PlanInputs, plan: DeploymentPlan, arms: Sequence[SimulationResult]) -> str | None:
    """Why the busiest moments are extrapolated; None where all of them lie inside the calibrated range."""
    for arm in arms:
        in_flight = most_in_flight(arm)
        rows = inputs.num_rows(in_flight, has_draft=arm is not arms[0])
        lens = (
            {0} if arm is arms[0] else {plan.segment(name).draft_len(in_flight) for name in arm.traffic.segment_names}
        )
        problems = [inputs.times.range_problem(rows, draft_len) for draft_len in sorted(lens)]
        if (problem := next((one for one in problems if one is not None), None)) is not None:
            return f"up to {in_flight} requests are in flight, {rows} decoded together: {problem}"
    return None


def most_in_flight(result: SimulationResult) -> int:
    """Served requests that were waiting or running at the same moment, at most."""
    served = result.is_served
    arrivals = np.sort(result.arrival_s[served])
    ends = np.sort(result.arrival_s[served] + result.e2e_s[served])
    if not len(arrivals):
        return 1
    # One that ends as another arrives has left: clients of a closed loop send again at that moment.
    in_flight = np.arange(1, len(arrivals) + 1) - np.searchsorted(ends, arrivals + SAME_MOMENT_S, side="right")
    return max(1, int(in_flight.max()))


def own_traffic(inputs: PlanInputs) -> OfferedTraffic:
    """The deployment's segments by their shares, from as many clients as are expected."""
    expected = inputs.expected_concurrency
    num_requests = max(inputs.effort.own, _OWN_REQUESTS_PER_CLIENT * expected)
    rng = np.random.default_rng((inputs.random_seed, _SEED_OF_MIX))
    shares = np.array([segment.share for segment in inputs.segments])
    picked = rng.choice(len(inputs.segments), size=num_requests, p=shares / shares.sum())
    lengths = [_draw(segment, picked == index, rng) for index, segment in enumerate(inputs.segments)]
    prompts = np.ones(num_requests, np.int64)
    outputs = np.ones(num_requests, np.int64)
    for index, (input_tokens, output_tokens) in enumerate(lengths):
        prompts[picked == index], outputs[picked == index] = input_tokens, output_tokens
    # Clients that begin together with answers of equal length would end together for ever (see levels.py).
    outputs[:expected] = np.maximum(1, np.ceil(outputs[:expected] * rng.random(len(outputs[:expected]))))
    names = tuple(segment.segment for segment in inputs.segments)
    traffic = SimulatedTraffic(None, prompts, outputs, picked.astype(np.int64), names)
    return OfferedTraffic(f"{num_requests} requests of its own segments, {expected} at once", traffic, expected)


def _draw(
    segment: SegmentInputs, chosen: NDArray[np.bool_], rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    rows = rng.integers(0, len(segment.input_tokens), size=int(chosen.sum()))
    return segment.input_tokens[rows], segment.output_tokens[rows]


def _model_of(inputs: PlanInputs, name: str) -> AcceptanceModel:
    """Of the segment; traffic that no segment covers accepts like the first one (a stated assumption)."""
    segment = next((one for one in inputs.segments if one.segment == name), inputs.segments[0])
    return segment.model()


def _simulate(
    inputs: PlanInputs,
    offered: OfferedTraffic,
    models: Sequence[AcceptanceModel],
    plans: Sequence[SegmentPlan],
    *,
    has_draft: bool,
) -> SimulationResult:
    settings = SimulationSettings(
        max_rows=inputs.config.serving.max_rows,
        prefill_chunk=inputs.prefill_chunk,
        kv_tokens=inputs.kv_tokens(has_draft=has_draft),
        concurrency=offered.concurrency,
        seed=inputs.random_seed,
        max_queue=inputs.config.serving.max_queue,
    )
    return simulate(offered.traffic, inputs.times, models, plans, settings)


def _arm(
    name: str, result: SimulationResult, edges: NDArray[np.float64], objectives: Sequence[Objective]
) -> SimulatedArm:
    latencies = {
        metric: {q: result.percentile(metric, q) for q in Percentile}
        for metric in MetricName
        if len(result.values(metric))
    }
    counts, _ = np.histogram(result.values(MetricName.E2E), bins=edges)
    return SimulatedArm(
        arm="on" if name == "on" else "off",
        latency_s=latencies,
        output_throughput=result.output_throughput,
        request_throughput=result.request_throughput,
        goodput=result.goodput(objectives) if objectives else None,
        num_requests=result.traffic.num_requests,
        num_refused=result.num_refused,
        mean_in_flight=result.mean_in_flight,
        histogram_edges_s=tuple(float(edge) for edge in edges),
        histogram_counts=tuple(int(count) for count in counts),
    )


def _edges(off: SimulationResult, on: SimulationResult) -> NDArray[np.float64]:
    """Equal bins from 0 to the slowest request of either arm."""
    slowest = max((float(values.max()) for arm in (off, on) if len(values := arm.values(MetricName.E2E))), default=1.0)
    return np.linspace(0.0, slowest, _NUM_BINS + 1)


def _objectives(slos: Sequence[Slo]) -> list[Objective]:
    """The loosest limit per metric: what a request must keep to count as good whatever its segment."""
    limits: dict[MetricName, float] = {}
    for slo in slos:
        limits[slo.metric] = max(limits.get(slo.metric, 0.0), slo.max_ms)
    return [Objective(metric=metric, max_ms=max_ms) for metric, max_ms in limits.items()]


def _is_comparable(inputs: PlanInputs, offered: OfferedTraffic) -> bool:
    """Objectives are of the expected concurrency, or of the traffic that the user gave."""
    return inputs.offered is not None or offered.concurrency == inputs.expected_concurrency


def _missed(slos: Sequence[Slo], off: SimulationResult, on: SimulationResult) -> list[MissedObjective]:
    missed = []
    for slo in slos:
        if slo.segment not in on.traffic.segment_names:
            continue
        arms = [arm.percentile(slo.metric, slo.percentile, slo.segment) * 1000 for arm in (off, on)]
        if all(math.isfinite(value) for value in arms) and arms[1] > slo.max_ms:
            missed.append(MissedObjective(slo, arms[0], arms[1]))
    return missed
