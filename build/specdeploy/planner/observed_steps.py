"""Steps that an engine was seen to take, and of which engine: what calibrations are fitted to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from specdeploy.contract import Method
from specdeploy.planner.step_times import StepLoad


@dataclass(frozen=True, slots=True)
class StepObservation:
    """One step, or the median of like ones, that an engine was seen to take.

    `num_rows` requests decoded over `kv_tokens` cached tokens together and `num_draft_tokens` over all of them, the
    deepest draft `depth` deep; `prefill_tokens` of prompts joined behind `prefill_context` tokens of theirs, and the
    drafter read `draft_prefill_tokens` of them too. Tokens may be means over steps. `seconds` is the whole step,
    `draft_seconds` the drafter's part, None where only the whole was seen. `weight` as so many observations.
    """

    num_rows: int
    num_draft_tokens: float
    depth: float
    kv_tokens: float
    prefill_tokens: int
    seconds: float
    draft_seconds: float | None = None
    weight: float = 1.0
    is_held_out: bool = False
    prefill_context: float = 0.0
    draft_prefill_tokens: float = 0.0

    @property
    def num_tokens(self) -> float:
        """Tokens of the target's pass."""
        return self.num_rows + self.num_draft_tokens + self.prefill_tokens

    @property
    def load(self) -> StepLoad:
        """The load of a cost model, whole tokens."""
        return StepLoad(
            num_rows=self.num_rows,
            num_draft_tokens=round(self.num_draft_tokens),
            depth=round(self.depth),
            prefill_tokens=self.prefill_tokens,
            draft_prefill_tokens=round(self.draft_prefill_tokens),
        )


@dataclass(frozen=True, slots=True)
class CalibrationSubject:
    """What was observed, and where: goes into the calibration as it is. `source` says how to see it again."""

    name: str
    hardware: str
    engine: str
    source: str
    engine_version: str | None = None
    target_reference: str | None = None
    method: Method | None = None
    dtype: str | None = None
    threads: int | None = None


def hold_out(
    observations: Sequence[StepObservation], share: float, *, random_seed: int = 0
) -> tuple[StepObservation, ...]:
    """The observations with `share` of them held out.

    One of every few neighbours in size is chosen at random, so that kinks are seen from both sides. The ends are kept:
    what has the fewest or most tokens, rows, draft tokens or cached tokens of all. A prediction for a load between
    observations is what the error shall be of.
    """
    sizes = [(one.num_tokens, one.num_rows, one.num_draft_tokens, one.kv_tokens) for one in observations]
    ends = {
        index for column in zip(*sizes, strict=True) for index in (column.index(min(column)), column.index(max(column)))
    }
    inner = sorted(set(range(len(observations))) - ends, key=lambda index: (sizes[index], index))
    count = min(round(share * len(observations)), len(inner))
    rng = np.random.default_rng(random_seed)
    chosen = {int(rng.choice(group)) for group in np.array_split(inner, count)} if count else set()
    return tuple(replace(one, is_held_out=index in chosen) for index, one in enumerate(observations))
