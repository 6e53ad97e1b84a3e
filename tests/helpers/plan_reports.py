"""A PlanReport with something of everything, for pages and tests."""

from specdeploy.contract import (
    DeploymentPlan,
    DraftLenRange,
    EngineModel,
    MemoryBudget,
    MemoryLine,
    Method,
    SegmentPlan,
)
from specdeploy.planner_contract import (
    AcceptanceOrigin,
    AcceptanceProfile,
    ArithmeticLine,
    DraftForm,
    EmittedSchedule,
    Estimate,
    LevelPrediction,
    PlanMemory,
    PlannedSegment,
    PlanReport,
    PlanVerdict,
    PredictedCrossover,
    Sensitivity,
    SimulatedArm,
    TrafficKind,
    TrafficPrediction,
)
from specdeploy.run_contract import MetricName, Percentile

_GIB = 2**30


def estimate(value: float, spread: float = 0.1) -> Estimate:
    return Estimate(value=value, low=value * (1 - spread), high=value * (1 + spread))


def level(concurrency: int, ratio: float | None, *, draft_len: int = 3, is_queued: bool = False) -> LevelPrediction:
    """One level; no ratio = outside the calibrated range."""
    known = None if ratio is None else estimate(ratio)
    return LevelPrediction(
        concurrency=concurrency,
        draft_len=draft_len,
        best_static_draft_len=draft_len or 1,
        tpot_ratio=known,
        e2e_ratio=known,
        ttft_ratio=None if ratio is None else estimate(1.04, 0.05),
        off_tpot_s=None if ratio is None else 0.0071,
        on_tpot_s=None if ratio is None else 0.0071 * ratio,
        off_throughput=None if ratio is None else concurrency / 0.0071,
        on_throughput=None if ratio is None else concurrency / 0.0071 / ratio,
        tokens_per_step=2.4,
        verified_tokens=concurrency * (draft_len + 1),
        is_compute_bound=concurrency * (draft_len + 1) > 206,
        is_queued=is_queued,
        off_reason=None if draft_len else "slower at this load",
        range_problem="128 rows: calibrated up to 64" if ratio is None else None,
    )


def planned_segment(name: str = "chat", verdict: PlanVerdict = PlanVerdict.GO) -> PlannedSegment:
    ratios = (0.6, 0.62, 0.66, 0.71, 0.8, 0.93, 1.12)
    levels = [
        level(2**power, ratio, draft_len=3 if ratio < 1 else 0, is_queued=power == 6)
        for power, ratio in enumerate(ratios)
    ]
    return PlannedSegment(
        segment=name,
        verdict=verdict,
        expected_concurrency=16,
        draft_len=3,
        reasons=("e2e 0.80 [0.72, 0.88]: faster within every bound", "TTFT 4 % later: the draft reads the prompt too"),
        traffic_kind=TrafficKind.DECODE_BOUND,
        decode_share=0.93,
        mean_input_tokens=412.0,
        mean_output_tokens=256.0,
        acceptance=AcceptanceProfile(
            segment=name,
            method=Method.EAGLE3,
            form=DraftForm.CHAIN,
            survivals=(0.7, 0.45, 0.27),
            origin=AcceptanceOrigin.PUBLISHED,
            source="a table <of somebody>",
        ),
        levels=(*levels, level(128, None)),
        crossover=PredictedCrossover(kind="crosses", concurrency=41.3, low=24.0, high=None, max_concurrency=64),
        alternatives=("fp8 weights: a step takes 0.63 of its time",),
    )


def simulated_arm(arm: str, scale: float) -> SimulatedArm:
    percentiles = {
        Percentile.P50: 1.9 * scale,
        Percentile.P90: 3.1 * scale,
        Percentile.P95: 3.6 * scale,
        Percentile.P99: 5 * scale,
    }
    counts = (0, 4, 40, 30, 20, 6) if arm == "off" else (4, 40, 32, 18, 6, 0)
    return SimulatedArm.model_validate(
        {
            "arm": arm,
            "latency_s": dict.fromkeys(MetricName, percentiles),
            "output_throughput": 1100.0 / scale,
            "request_throughput": 4.3,
            "goodput": 4.1,
            "num_requests": 100,
            "mean_in_flight": 9.4 * scale,
            "histogram_edges_s": (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0),
            "histogram_counts": counts,
        }
    )


def plan_report() -> PlanReport:
    segment = planned_segment()
    ranges = (
        DraftLenRange(min_in_flight=1, max_in_flight=32, draft_len=3),
        DraftLenRange(min_in_flight=33, max_in_flight=None, draft_len=0),
    )
    plan = SegmentPlan(segment="chat", ranges=ranges, off_reason="load")
    budget = MemoryBudget(
        gpu="H200 SXM (GPU 0)",
        num_bytes=131 * _GIB,
        lines=(
            MemoryLine(subject="weights of target", formula="8.0e9 x 2 B", num_bytes=15 * _GIB),
            MemoryLine(subject="weights of target_plain", formula="8.0e9 x 2 B", num_bytes=15 * _GIB),
            MemoryLine(subject="weights of draft", formula="0.4e9 x 2 B", num_bytes=_GIB),
            MemoryLine(subject="activations of target", formula="estimated", num_bytes=2 * _GIB),
            MemoryLine(subject="kept free", formula="15 %", num_bytes=14 * _GIB),
        ),
        kv_bytes=84 * _GIB,
        kv_bytes_per_token={EngineModel.TARGET: 131072},
        kv_tokens={EngineModel.TARGET: 600_000},
        max_sequences=73,
        max_sequences_without_draft=80,
    )
    return PlanReport(
        deployment="llama-3-1-8b-eagle3",
        hardware="H200 SXM",
        engine="TensorRT-LLM 1.2.1",
        calibration="kernel tables of this GPU, overheads fitted to published runs",
        method=Method.EAGLE3,
        plan=DeploymentPlan(
            deployment="llama-3-1-8b-eagle3",
            source="planner",
            method=Method.EAGLE3,
            max_draft_len=3,
            segments=(plan,),
            default=plan.model_copy(update={"segment": "other"}),
        ),
        verdict=PlanVerdict.GO,
        headline="Speculate up to 32 requests at once, then switch it off.",
        memory=PlanMemory(budget=budget, request_tokens=671, num_requests=89, num_requests_without_draft=97),
        segments=(segment, planned_segment("code_edit", PlanVerdict.MEASURE_FIRST)),
        traffic=TrafficPrediction(
            traffic="azure", off=simulated_arm("off", 1.0), on=simulated_arm("on", 0.7), is_overloaded=False
        ),
        sensitivities=(
            Sensitivity(
                segment="chat", change="acceptance 0.1 lower", ratio=estimate(0.93), draft_len=2,
                verdict=PlanVerdict.MEASURE_FIRST,
            ),
            Sensitivity(
                segment="chat", change="concurrency doubled", ratio=None, draft_len=0, verdict=PlanVerdict.MEASURE_FIRST
            ),
        ),
        schedules=(
            EmittedSchedule(dialect="vLLM", version="0.24.0", text='{"a": 3}', lost=("K by load",)),
        ),
        arithmetic=(
            ArithmeticLine(subject="weights", formula="15.0e9 B / (4.8e12 B/s x 0.78)", value=4.0, unit="ms"),
        ),
        draft_cost_ratio=0.05,
        model_error=0.12,
        model_error_source="median of held-out published cells",
        assumptions=("output length: max_tokens, an upper bound",),
        random_seed=0,
    )  # fmt: skip
