"""Inputs of the planner made by hand: a cost model of five numbers, an acceptance, a deployment."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from helpers.deployment_files import write_deployment
from specdeploy.checkpoint_contract import CheckpointInfo, CheckpointKind, MoeShape
from specdeploy.config.load import load_deployment
from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import EngineModel, MemoryBudget, MemoryLine, Method
from specdeploy.planner.plan_inputs import PlanInputs, SegmentInputs, SimulationEffort
from specdeploy.planner.step_times import StepLoad, StepTime
from specdeploy.planner_contract import (
    AcceptanceOrigin,
    AcceptanceProfile,
    ArithmeticLine,
    DraftForm,
    PlanMemory,
)

QUICK = SimulationEffort(per_client=2, steady=24, own=64)


@dataclass(frozen=True, slots=True)
class StandInTimes:
    """A step takes `base_s` up to `ridge` tokens and in proportion beyond; each pass of the drafter `draft_s`, each row
    that drafts `row_s`; reading a prompt token `prefill_s`."""

    base_s: float = 0.010
    ridge: float = 200.0
    draft_s: float = 0.001
    row_s: float = 0.0
    prefill_s: float = 0.00002
    draft_prefill_s: float = 0.0
    max_rows: int = 256
    max_draft_len: int = 16

    def time(self, load: StepLoad) -> StepTime:
        tokens = load.num_rows + load.num_draft_tokens
        seconds = self.base_s * max(1.0, tokens / self.ridge) + self.prefill_s * load.prefill_tokens
        seconds += self.draft_prefill_s * load.draft_prefill_tokens
        if load.depth:
            seconds += self.draft_s * load.depth + self.row_s * load.num_rows
        return StepTime(seconds, 0.0)

    def range_problem(self, num_rows: int, draft_len: int) -> str | None:
        if num_rows > self.max_rows:
            return f"{num_rows} rows, calibrated to {self.max_rows}"
        return f"K {draft_len}, calibrated to {self.max_draft_len}" if draft_len > self.max_draft_len else None

    def explain(self, num_rows: int, draft_len: int, kv_tokens: float) -> tuple[ArithmeticLine, ...]:
        seconds = self.time(StepLoad(num_rows, num_rows * draft_len, draft_len)).seconds(kv_tokens)
        return (ArithmeticLine(subject="step", formula="stand-in", value=seconds, unit="s"),)

    @property
    def ridge_tokens(self) -> float:
        return self.ridge


def profile(alpha: float = 0.7, spread: float = 0.03, depth: int = 8, **changes: Any) -> AcceptanceProfile:
    """Every token accepted with `alpha` when those before it were; bounds `alpha` +- `spread`."""

    def survivals(chance: float) -> tuple[float, ...]:
        return tuple(min(1.0, max(0.0, chance)) ** (position + 1) for position in range(depth))

    values: dict[str, Any] = {
        "method": Method.DRAFT_MODEL,
        "form": DraftForm.CHAIN,
        "survivals": survivals(alpha),
        "survivals_low": survivals(alpha - spread),
        "survivals_high": survivals(alpha + spread),
        "origin": AcceptanceOrigin.STATED,
        "source": f"alpha {alpha:g}",
        **changes,
    }
    return AcceptanceProfile(**values)


def segment(
    name: str = "chat",
    *,
    inputs: Sequence[int] = (100, 200, 300),
    outputs: Sequence[int] = (100, 200, 300),
    acceptance: AcceptanceProfile | None = None,
    off_by_config: str | None = None,
) -> SegmentInputs:
    """`inputs` and `outputs` are repeated to the longer of the two."""
    num_requests = max(len(inputs), len(outputs))
    return SegmentInputs(
        segment=name,
        input_tokens=np.resize(np.array(inputs, np.int64), num_requests),
        output_tokens=np.resize(np.array(outputs, np.int64), num_requests),
        acceptance=acceptance or profile(),
        off_by_config=off_by_config,
    )


def deployment(folder: Path, **sections: Any) -> DeploymentConfig:
    """A deployment of lane torch with K up to 4 and 64 rows; `sections` replace whole sections."""
    defaults = {
        "speculation": {"method": "ngram", "max_draft_len": 4},
        "serving": {"max_seq_len": 4096, "max_rows": 64, "prefill_chunk": 512},
        "traffic": {"expected_concurrency": 8, "segments": [{"name": "chat", "prompts": "prompts.jsonl"}]},
    }
    write_deployment(folder, "tiny", {**defaults, **sections})
    return load_deployment("tiny", folder).config


def checkpoint(*, moe: MoeShape | None = None, parameters: int = 8_000_000_000) -> CheckpointInfo:
    return CheckpointInfo(
        reference="target",
        folder="/target",
        kind=CheckpointKind.CAUSAL_LM,
        num_parameters=parameters,
        num_active_parameters=parameters,
        moe=moe,
    )


def mixture(num_experts: int = 128, per_token: int = 8) -> MoeShape:
    return MoeShape(num_experts=num_experts, num_experts_per_token=per_token, num_moe_layers=48, num_dense_layers=0)


def memory(num_requests: int = 500, without_draft: int = 600, misfit: str | None = None) -> PlanMemory:
    budget = MemoryBudget(
        gpu="stand-in",
        num_bytes=80 << 30,
        lines=(MemoryLine(subject="weights of target", formula="1", num_bytes=60 << 30),),
        kv_bytes=20 << 30,
        kv_bytes_per_token={EngineModel.TARGET: 1},
        kv_tokens={EngineModel.TARGET: max(1, num_requests) * 1000},
        max_sequences=num_requests,
        max_sequences_without_draft=without_draft,
    )
    return PlanMemory(
        budget=budget,
        request_tokens=1000,
        num_requests=num_requests,
        num_requests_without_draft=without_draft,
        misfit=misfit,
    )


def plan_inputs(folder: Path, **changes: Any) -> PlanInputs:
    """A dense target with a good draft at 8 at once, few requests simulated; `changes` replace fields."""
    config = changes.pop("config", None) or deployment(folder)
    values: dict[str, Any] = {
        "config": config,
        "target": checkpoint(),
        "draft": None,
        "times": StandInTimes(),
        "segments": (segment(),),
        "expected_concurrency": config.traffic.expected_concurrency,
        "hardware": "stand-in device",
        "engine": "stand-in engine",
        "calibration": "stand-in",
        "model_error": 0.05,
        "model_error_source": "stated",
        "effort": QUICK,
        **changes,
    }
    return PlanInputs(**values)
