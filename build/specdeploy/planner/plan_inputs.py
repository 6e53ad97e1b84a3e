"""Everything a decision is made from, read and counted beforehand: decide.py reads no file and starts no clock."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from specdeploy.checkpoint_contract import CheckpointInfo
from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import Lane, Method
from specdeploy.planner.acceptance import AcceptanceModel
from specdeploy.planner.simulated_traffic import SimulatedTraffic
from specdeploy.planner.step_times import StepTimes
from specdeploy.planner_contract import AcceptanceProfile, PlanMemory

# K of these is part of the engine or of the algorithm: it is drafted, or nothing is.
_FIXED_DRAFT_LEN = (Method.LOOKAHEAD, Method.REDRAFTER)
DEFAULT_MAX_DRAFT_COST_RATIO = 0.25  # R016: a draft above a quarter of what a token of a mixture of experts reads


@dataclass(frozen=True, slots=True)
class SegmentInputs:
    """One segment: lengths of its requests in tokens, `input_tokens` and `output_tokens` [N], and its acceptance.

    `share` of the traffic. `lengths_source` says where the lengths come from. `off_by_config` is the deployment's own
    reason not to draft, None where it drafts.
    """

    segment: str
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    acceptance: AcceptanceProfile
    share: float = 1.0
    lengths_source: str = ""
    off_by_config: str | None = None

    @property
    def mean_input(self) -> float:
        return float(self.input_tokens.mean())

    @property
    def mean_output(self) -> float:
        return float(self.output_tokens.mean())

    def model(self) -> AcceptanceModel:
        """The acceptance as a model to ask for any K."""
        return AcceptanceModel.from_profile(self.acceptance)


@dataclass(frozen=True, slots=True)
class OfferedTraffic:
    """The user's trace or mix as arrays. `concurrency` None: requests arrive when the traffic says."""

    name: str
    traffic: SimulatedTraffic
    concurrency: int | None


@dataclass(frozen=True, slots=True)
class SimulationEffort:
    """Requests that are simulated: fewer are quicker, and noisier.

    At each level `per_client` for each client of the closed loop, of which one fills and one empties it, and `steady`
    more; where the user gave no traffic at least `own` of the deployment's segments.
    """

    per_client: int = 4
    steady: int = 96
    own: int = 512


@dataclass(frozen=True, slots=True)
class BorrowedTimes:
    """What another engine's or device's calibration expects on this device's kernels, for loads that `PlanInputs.times`
    promises nothing at. `source` in words; `model_error` of ratios, what transfers have shown at least. `notes`: what
    is assumed by it."""

    times: StepTimes
    source: str
    model_error: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """Inputs of `decide`.

    `times` answers for exactly this target, draft and device; `fp8_times` for the same with the target's weights in
    fp8, None where they are already or no table knows; `lookup_times` for the target alone, whose drafts come from
    text. `engine` and `hardware` in words. `calibration` names what the overheads come from. `model_error` is the
    relative error of predictions that every interval includes. `draft_cost_ratio`: parameters that a draft step reads
    / active parameters of the target. `tree_nodes` tokens of a whole tree, None for chains. `effort`: how
    many requests are simulated.
    """

    config: DeploymentConfig
    target: CheckpointInfo
    draft: CheckpointInfo | None
    times: StepTimes
    segments: tuple[SegmentInputs, ...]
    expected_concurrency: int
    hardware: str
    engine: str
    calibration: str
    model_error: float
    model_error_source: str
    borrowed: BorrowedTimes | None = None
    memory: PlanMemory | None = None
    offered: OfferedTraffic | None = None
    fp8_times: StepTimes | None = None
    lookup_times: StepTimes | None = None
    draft_cost_ratio: float | None = None
    max_draft_cost_ratio: float = DEFAULT_MAX_DRAFT_COST_RATIO
    tree_nodes: int | None = None
    random_seed: int = 0
    effort: SimulationEffort = SimulationEffort()
    assumptions: tuple[str, ...] = ()

    @property
    def max_draft_len(self) -> int:
        return self.config.speculation.max_draft_len

    @property
    def draft_lens(self) -> tuple[int, ...]:
        """K to choose from besides 0."""
        if self.tree_nodes is not None or self.config.speculation.method in _FIXED_DRAFT_LEN:
            return (self.max_draft_len,)
        return tuple(range(1, self.max_draft_len + 1))

    def num_nodes(self, draft_len: int) -> int:
        """Draft tokens of a row that a step verifies: K of a chain, the nodes of a tree."""
        return draft_len if self.tree_nodes is None or draft_len == 0 else self.tree_nodes

    @property
    def prefill_chunk(self) -> int:
        """Prompt tokens that may join one step."""
        if self.config.lane is Lane.TORCH or self.config.tensorrt_llm is None:
            return self.config.serving.prefill_chunk
        return self.config.tensorrt_llm.max_num_tokens

    @property
    def fits(self) -> bool:
        """Whether the memory budget, where there is one, holds at least one request."""
        return self.memory is None or (self.memory.misfit is None and self.memory.num_requests > 0)

    def num_rows(self, concurrency: int, *, has_draft: bool = True) -> int:
        """Requests decoded at once when `concurrency` are in flight: the others wait for a row or for memory."""
        rows = min(concurrency, self.config.serving.max_rows)
        if self.memory is None or not self.fits:
            return rows
        fitting = self.memory.num_requests if has_draft else self.memory.num_requests_without_draft
        return max(1, min(rows, fitting))

    def kv_tokens(self, *, has_draft: bool) -> int | None:
        """Tokens of the key/value cache, None without a limit; without a draft there is room for more."""
        if self.memory is None or not self.fits:
            return self.config.serving.kv_cache_tokens
        tokens = min(self.memory.budget.kv_tokens.values())
        if has_draft:
            return tokens
        return max(tokens, self.memory.num_requests_without_draft * self.memory.request_tokens)

    def as_borrowed(self) -> "PlanInputs | None":
        """The same with the borrowed step times: whatever they predict is indicative. None where nothing is lent."""
        if self.borrowed is None:
            return None
        return replace(self, times=self.borrowed.times, model_error=self.borrowed.model_error, borrowed=None)

    def drafting_segments(self) -> Iterator[SegmentInputs]:
        """Segments that the deployment does not itself exclude from drafting."""
        yield from (segment for segment in self.segments if segment.off_by_config is None)
