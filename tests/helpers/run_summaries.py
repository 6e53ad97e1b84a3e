"""Made-up run summaries with the numbers a test chooses, without any records behind them."""

from collections.abc import Sequence
from typing import Any

from specdeploy.run_contract import (
    Arm,
    CellSummary,
    Comparison,
    Crossover,
    Load,
    MetricName,
    Percentile,
    Percentiles,
    PlannedDraftLen,
    RunSummary,
    VoidCode,
    VoidReason,
)

PLANNED_ON = PlannedDraftLen(segment="chat", draft_len=4)
PLANNED_OFF = PlannedDraftLen(segment="chat", draft_len=0, off_reason="measured slower")


def percentiles(p50: float, p99: float | None = None, num_samples: int = 40) -> Percentiles:
    """A median and, where given, a tail."""
    return Percentiles(p50=p50, p90=None, p99=p99, num_samples=num_samples)


def cell(
    arm: Arm,
    load: Load | None = None,
    segment: str = "chat",
    ttft: Percentiles | None = None,
    e2e: Percentiles | None = None,
    **changes: Any,
) -> CellSummary:
    """One arm of one cell, by default at concurrency 4."""
    load = load or Load(4)
    return CellSummary(
        segment=segment,
        concurrency=load.concurrency,
        request_rate=load.request_rate,
        arm=arm,
        ttft_ms=ttft or percentiles(50.0),
        tpot_ms=percentiles(20.0),
        e2e_ms=e2e or percentiles(700.0),
        **{
            "num_requests": 40,
            "num_errors": 0,
            "tokens_per_message": 1.0,
            "output_throughput": 100.0,
            "acceptance": None,
            **changes,
        },
    )


def comparison(
    interval: tuple[float, float, float] | None = (0.58, 0.62, 0.67),
    metric: MetricName = MetricName.E2E,
    percentile: Percentile = Percentile.P50,
    load: Load | None = None,
    segment: str = "chat",
    voids: Sequence[VoidReason] = (),
    num_pairs_needed: int | None = None,
) -> Comparison:
    """on/off with (low, ratio, high), by default at concurrency 4; None: not measured."""
    load = load or Load(4)
    low, ratio, high = interval or (None, None, None)
    return Comparison(
        segment=segment,
        concurrency=load.concurrency,
        request_rate=load.request_rate,
        metric=metric,
        percentile=percentile,
        ratio=ratio,
        ci_low=low,
        ci_high=high,
        confidence=0.99,
        num_pairs=40,
        num_pairs_needed=num_pairs_needed,
        void_reasons=tuple(voids),
    )


def void(code: VoidCode, detail: str = "seen") -> VoidReason:
    """A reason."""
    return VoidReason(code=code, detail=detail)


def crosses(low: float | None, at: float, high: float | None, max_concurrency: int = 16) -> Crossover:
    """A crossover of e2e for chat."""
    return Crossover(
        segment="chat",
        metric=MetricName.E2E,
        kind="crosses",
        concurrency=at,
        ci_low=low,
        ci_high=high,
        max_concurrency=max_concurrency,
    )


def run_summary(
    comparisons: Sequence[Comparison] = (),
    cells: Sequence[CellSummary] | None = None,
    planned: Sequence[PlannedDraftLen] = (PLANNED_ON,),
    **changes: Any,
) -> RunSummary:
    """A run of `demo` whose expected concurrency is 4; both arms of every compared cell where no cells are given."""
    if cells is None:
        keys = dict.fromkeys((c.segment, c.load) for c in comparisons)
        cells = [cell(arm, load, segment) for segment, load in keys for arm in (Arm.OFF, Arm.ON)]
    facts: dict[str, Any] = {
        "deployment": "demo",
        "build_id": "b1",
        "lane": "torch",
        "method": "ngram",
        "max_draft_len": 4,
        "dtype": "float32",
        "server_threads": 1,
        "budget": "quick",
        "random_seed": 0,
        "started_at": "2026-01-01T12:00:00+00:00",
        "duration_s": 93.4,
        "expected_concurrency": 4,
        "slos": (),
        "environment": {"client machine": "Linux x86_64, 2 CPUs"},
    }
    return RunSummary.model_validate(
        {
            **facts,
            "planned": tuple(planned),
            "cells": tuple(cells),
            "comparisons": tuple(comparisons),
            **changes,
        }
    )
