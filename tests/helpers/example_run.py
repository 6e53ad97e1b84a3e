"""A made-up run with everything a report may have to show: several segments, levels, voids, crossovers, a queue.

The records are columns drawn from a known law (`SegmentLaw`); the summary is computed from them as for any run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from specdeploy.run_contract import Arm, CellConditions, Load, MetricName, Objective, PlannedDraftLen, RunSummary
from specdeploy_client.records.histogram import LogHistogram
from specdeploy_client.records.table import ArmColumns, CellKey, RecordTable
from specdeploy_client.server_facts import ServerFacts
from specdeploy_client.summary import RunFacts, TargetFacts, summarise_run

CLOSED = tuple(Load(level) for level in (1, 2, 4, 8, 16, 32))
_TOKENS = 128
_BLOCK = 20


@dataclass(frozen=True)
class SegmentLaw:
    """How one segment behaves: e2e on/off is `ratio_at_one` * load ** `slope`, TTFT on/off is `ttft_ratio`.

    `rates`: acceptance by position, marginal. `spread`: sigma of a request's own ratio, in log.
    """

    ratio_at_one: float
    slope: float
    ttft_ratio: float = 1.04
    spread: float = 0.12
    rates: tuple[float, ...] = (0.82, 0.63, 0.47, 0.36)
    num_pairs: int = 400
    step_ms: float = 9.0


LAWS = {
    "code_edit": SegmentLaw(0.46, 0.12, spread=0.34, rates=(0.91, 0.82, 0.74, 0.66), num_pairs=1000),
    "chat": SegmentLaw(0.71, 0.12, spread=0.3, num_pairs=200, rates=(0.68, 0.44, 0.27, 0.16)),
    "retrieval": SegmentLaw(0.80, 0.11, 1.29, 0.34, (0.61, 0.36, 0.2, 0.1), num_pairs=120),
    "summarisation": SegmentLaw(1.02, 0.06, 1.11, 0.2, (0.41, 0.15, 0.05, 0.02)),
}


# Prompts from a warm prefix cache; requests sent late; counters of the server that disagree with its answers.
Spoil = Literal["cache", "late", "counters"]


@dataclass(frozen=True)
class ExampleRun:
    """What to draw. `spoils`: what goes wrong, by cell. `limit`: requests the server decodes at once.

    `method` None: a foreign endpoint that says nothing of itself.
    """

    laws: Mapping[str, SegmentLaw] = field(default_factory=lambda: LAWS)
    loads: Sequence[Load] = CLOSED
    spoils: Mapping[CellKey, Spoil] = field(default_factory=dict)
    limit: int | None = None
    expected: int = 8
    seed: int = 0
    interrupted: str | None = None
    has_positions: bool = True
    deployment: str = "demo"
    method: str | None = "draft_model"
    dtype: str | None = "bfloat16"

    def build(self) -> tuple[RunSummary, RecordTable]:
        """The summary and the records it was computed from."""
        rng = np.random.default_rng(self.seed)
        cells = {
            (segment, load): _spoil(_draw_cell(law, load, rng, self.limit), self.spoils.get((segment, load)))
            for segment, law in self.laws.items()
            for load in self.loads
        }
        table = RecordTable(cells)
        return _summarise(self, table), table


def full_run() -> ExampleRun:
    """The one to look at."""
    return ExampleRun(
        spoils={
            ("chat", Load(2)): "counters",
            ("retrieval", Load(2)): "cache",
            ("retrieval", Load(32)): "late",
            ("summarisation", Load(32)): "late",
        },
        limit=24,
    )


def open_run() -> ExampleRun:
    """An open loop with one rate."""
    return ExampleRun(laws={name: LAWS[name] for name in ("code_edit", "chat")}, loads=(Load(None, 2.5),), seed=3)


def small_run(**changes: Any) -> ExampleRun:
    """Three segments that pay, lose and do not say, few requests, one void cell: summarised in about a second."""
    laws = {
        "code_edit": replace(LAWS["code_edit"], num_pairs=60, spread=0.05),
        "chat": replace(LAWS["chat"], ratio_at_one=0.62, slope=0.25, num_pairs=60, spread=0.03),
        "summarisation": replace(LAWS["summarisation"], ratio_at_one=1.15, num_pairs=60, spread=0.05),
    }
    given: dict[str, Any] = {
        "laws": laws,
        "loads": tuple(map(Load, (1, 4, 16))),
        "expected": 4,
        "spoils": {("summarisation", Load(16)): "late", ("chat", Load(1)): "counters"},
    }
    return ExampleRun(**{**given, **changes})


def foreign_run() -> ExampleRun:
    """An endpoint that says nothing of itself: no method, no dtype, no counts by position."""
    few = {"chat": replace(LAWS["chat"], num_pairs=60)}
    return ExampleRun(laws=few, loads=(Load(1), Load(8)), method=None, dtype=None, has_positions=False)


def _draw_cell(law: SegmentLaw, load: Load, rng: np.random.Generator, limit: int | None) -> dict[Arm, ArmColumns]:
    step_ms = law.step_ms * (1 + 0.035 * load.value)
    queue_ms = 0.0 if limit is None or load.value <= limit else 900.0 * (load.value - limit) / limit
    scale = rng.lognormal(0, 0.18, law.num_pairs)  # what both arms of a request share
    own = rng.lognormal(0, law.spread, law.num_pairs)
    ratio = law.ratio_at_one * load.value**law.slope
    ttft = (42 + 6.5 * load.value) * scale * rng.gamma(9, 1 / 9, law.num_pairs) + queue_ms
    decode = step_ms * (_TOKENS - 1) * scale
    off = _columns(ttft, decode, _TOKENS, Arm.OFF, law, rng)
    on_ttft = ttft * law.ttft_ratio * rng.lognormal(0, 0.03, law.num_pairs)
    on = _columns(on_ttft, decode * ratio * own, _TOKENS, Arm.ON, law, rng)
    return {Arm.OFF: off, Arm.ON: on}


def _spoil(arms: dict[Arm, ArmColumns], spoil: Spoil | None) -> dict[Arm, ArmColumns]:
    if spoil == "cache":
        return {arm: replace(columns, cached_tokens=columns.cached_tokens + 112) for arm, columns in arms.items()}
    if spoil == "late":
        return {arm: replace(columns, send_ns=columns.send_ns + 40_000_000) for arm, columns in arms.items()}
    return arms


def _columns(
    ttft_ms: npt.NDArray[np.float64],
    decode_ms: npt.NDArray[np.float64],
    num_tokens: int,
    arm: Arm,
    law: SegmentLaw,
    rng: np.random.Generator,
) -> ArmColumns:
    n = len(ttft_ms)
    per_step = 1 + sum(law.rates) if arm is Arm.ON else 1.0
    steps = np.round((num_tokens - 1) / per_step * rng.normal(1, 0.04, n)).astype(np.int32) + 1
    ttft, tpot = ttft_ms * 1e6, decode_ms * 1e6 / (num_tokens - 1)
    scheduled = np.cumsum(np.full(n, 2_000_000_000, dtype=np.int64))
    gaps = LogHistogram()
    gaps.add(np.repeat(decode_ms * 1e6 / (steps - 1), 20) * rng.lognormal(0, 0.25, 20 * n))

    def ints(value: int) -> npt.NDArray[np.int32]:
        return np.full(n, value, dtype=np.int32)

    is_on = arm is Arm.ON
    return ArmColumns(
        block=(np.arange(n) // _BLOCK).astype(np.int32),
        index=np.arange(n, dtype=np.int32),
        prompt=np.arange(n, dtype=np.int64),
        scheduled_ns=scheduled,
        send_ns=scheduled + rng.integers(50_000, 400_000, n),
        end_ns=scheduled + (ttft + decode_ms * 1e6).astype(np.int64),
        ttft_ns=ttft,
        tpot_ns=tpot,
        e2e_ns=ttft + decode_ms * 1e6,
        num_tokens=ints(num_tokens),
        num_messages=steps,
        max_tokens=ints(num_tokens),
        input_tokens=ints(256),
        expected_input_tokens=ints(256),
        cached_tokens=ints(0),
        num_steps=steps,
        num_draft_tokens=(steps - 1) * len(law.rates) if is_on else ints(0),
        num_accepted_tokens=ints(num_tokens) - steps if is_on else ints(0),
        failure=np.zeros(n, dtype=np.int8),
        speculation=np.full(n, int(is_on), dtype=np.int8),
        is_counted=np.ones(n, dtype=np.bool_),
        is_short=np.zeros(n, dtype=np.bool_),
        is_degenerate=np.zeros(n, dtype=np.bool_),
        is_buffered=np.zeros(n, dtype=np.bool_),
        has_drafting=np.full(n, is_on),
        icl=gaps,
        token_gaps=gaps,
    )


def _summarise(run: ExampleRun, table: RecordTable) -> RunSummary:
    is_open = any(load.request_rate for load in run.loads)
    planned = tuple(
        PlannedDraftLen(segment=segment, draft_len=0, off_reason="acceptance is low")
        if law.ratio_at_one > 1
        else PlannedDraftLen(segment=segment, draft_len=4)
        for segment, law in run.laws.items()
    )
    facts = ServerFacts(
        deployment=run.deployment,
        build_id="9f2c41d7ab03" if run.method else None,
        lane="torch" if run.method else None,
        method=run.method,
        dtype=run.dtype,
        threads=16 if run.method else None,
        max_draft_len=4 if run.method else None,
        effective_concurrency=run.limit,
        concurrency_limit="key/value memory" if run.limit else None,
    )
    return summarise_run(
        table,
        TargetFacts(run.deployment, run.expected, planned=planned if run.method else ()),
        facts,
        RunFacts(
            budget="full",
            random_seed=run.seed,
            started_at="2026-11-30T16:43:07+00:00",
            duration_s=1843.2,
            environment={
                "command": "specdeploy-client bench --concurrency 1,2,4,8,16,32 --goodput 'ttft:200 tpot:30'",
                "prompts digest": "sha256:41b0c7d1e4f0aa19c07d4cc8b1a1f3be21c5f6f1d0c38aa10d93",
                "client": "specdeploy 0.1.0, Python 3.11.2",
                "client machine": "Linux x86_64, 2 CPUs",
            },
            conditions=tuple(_conditions(run, key, arms) for key, arms in table.cells.items()),
            objectives=(
                Objective(metric=MetricName.TTFT, max_ms=200),
                Objective(metric=MetricName.TPOT, max_ms=30),
            ),
            load_kind="open loop, poisson arrivals" if is_open else "closed loop",
            interrupted=run.interrupted,
        ),
    )


def _conditions(run: ExampleRun, key: CellKey, arms: Mapping[Arm, ArmColumns]) -> CellConditions:
    law, on = run.laws[key[0]], arms[Arm.ON]
    drafts = int((on.num_steps - 1).sum())
    drafted = int(on.num_draft_tokens.sum()) + (380 if run.spoils.get(key) == "counters" else 0)
    return CellConditions(
        segment=key[0],
        concurrency=key[1].concurrency,
        request_rate=key[1].request_rate,
        client_cpu_share=0.04 + 0.011 * key[1].value,
        wake_up_lag_p99_ms=0.3 + 0.02 * key[1].value,
        num_drafts=drafts if run.has_positions else None,
        num_draft_tokens=drafted if run.has_positions else None,
        num_accepted_tokens=int(on.num_accepted_tokens.sum()) if run.has_positions else None,
        accepted_per_pos=tuple(round(drafts * rate) for rate in law.rates) if run.has_positions else None,
        cold_ttft_ms={Arm.OFF: 188.4, Arm.ON: 1504.0},
        stopped_after=240 if key == ("chat", Load(1)) else None,
    )
