"""What steps cost on this engine, learned from the steps themselves.

A step with R rows and n draft tokens, the deepest draft d tokens deep, is taken to cost

    target:   plain + per_row * R + (first + per_token * n                   if n > 0)
    drafter:  plain               + (first + per_depth * d + per_token * n   if n > 0)

`first` is what the first draft token of a step costs beside its own price: processors read one token per row by
other kernels than two. A drafter takes time in steps without drafts too, to look for one or to read what the target
has read. The target's times have more kinks, where a tile or a captured graph is full: what steps with so many tokens
took beside the line is kept too. Old steps are forgotten.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Steps after which a measured time counts for 1/e; with one plain step in 64 that leaves a few plain steps to go by.
_MEMORY_STEPS = 256
# A step that took longer than this many times its forecast was held up by something else than its tokens.
_MAX_SURPRISE = 3.0
_SURPRISED_AFTER = 8
# Solving costs as much as planning a step; coefficients hardly move in fewer steps, once there are some.
_REFIT_EVERY = 8
_SETTLED_AFTER = 32
# Where a load never varied, two lines explain it equally well. The larger the weight the less a term explains then:
# rows cost what the step costs, first draft tokens what all draft tokens cost, until steps say otherwise.
_CERTAIN, _LIKELY, _UNLIKELY = 1e-9, 1e-6, 1e-4
# Of a step's line at least so much is left where a kink takes away from it: on a machine that became much faster cells
# and line forget at different rates.
_LEAST_SHARE = 0.1
# Steps with the same number of tokens are averaged over so many of them, and believed while one was seen not long ago.
_CELL_MEMORY = 16
_CELL_AGE = 1024


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Nanoseconds of a step with `num_rows` rows: without drafts, and what drafting adds.

    `plain_ns` includes `draft_idle_ns`, what a drafter takes that drafts nothing. `kinks`: pairs of the target's tokens
    in a step, rising, and nanoseconds that such steps take beside the line.
    """

    num_rows: int
    plain_ns: float
    draft_idle_ns: float
    target_first_ns: float
    target_token_ns: float
    draft_first_ns: float
    draft_depth_ns: float
    draft_token_ns: float
    kinks: tuple[tuple[int, float], ...] = ()

    def step_ns(self, depth: int, num_draft_tokens: float) -> float:
        """A step whose deepest draft is `depth` with `num_draft_tokens` over all rows; 0 and 0 is a plain step."""
        kink_ns = self._kink_ns(self.num_rows + num_draft_tokens)
        line_ns = max(self.plain_ns + kink_ns, _LEAST_SHARE * self.plain_ns)
        if depth == 0:
            return line_ns
        return line_ns + self.first_ns + depth * self.draft_depth_ns + num_draft_tokens * self.token_ns

    def _kink_ns(self, num_tokens: float) -> float:
        """Interpolated between the numbers of tokens that were seen, constant beyond."""
        if not self.kinks:
            return 0.0
        above = bisect.bisect_left(self.kinks, (num_tokens, float("-inf")))
        if above == 0 or above == len(self.kinks):
            return self.kinks[min(above, len(self.kinks) - 1)][1]
        (low, low_ns), (high, high_ns) = self.kinks[above - 1], self.kinks[above]
        return low_ns + (high_ns - low_ns) * (num_tokens - low) / (high - low)

    @property
    def first_ns(self) -> float:
        """What the step's first draft token adds beside its depth and itself."""
        return self.target_first_ns + self.draft_first_ns

    @property
    def token_ns(self) -> float:
        """What one more draft token adds to a step that drafts deep enough already."""
        return self.target_token_ns + self.draft_token_ns

    @property
    def draft_cost_ratio(self) -> float:
        """c: one pass of the drafter over all rows ÷ a step without drafts."""
        return (self.draft_depth_ns + self.num_rows * self.draft_token_ns) / self.step_ns(0, 0)

    def verify_cost_ratio(self, draft_len: int) -> float:
        """v: a step in which every row brings `draft_len` tokens that cost nothing to draft ÷ one without drafts."""
        if draft_len == 0:
            return 1.0
        num_draft_tokens = draft_len * self.num_rows
        drafter_ns = self.draft_first_ns + draft_len * self.draft_depth_ns + num_draft_tokens * self.draft_token_ns
        return (self.step_ns(draft_len, num_draft_tokens) - drafter_ns) / self.step_ns(0, 0)


def is_fit_due(num_samples: int) -> bool:
    """Whether coefficients are solved for after so many samples."""
    return num_samples <= _SETTLED_AFTER or num_samples % _REFIT_EVERY == 0


class RunningFit:
    """Least squares with non-negative coefficients over samples that fade; `weights` [n] shrink them (ridge)."""

    def __init__(self, weights: Sequence[float]) -> None:
        self._weights = np.array(weights)
        self._moments = np.zeros((len(weights), len(weights)))  # sum of x x'
        self._targets = np.zeros(len(weights))  # sum of x y
        self._coefficients = [0.0] * len(weights)
        self._num_samples = 0

    @property
    def coefficients(self) -> list[float]:
        """One per feature, never negative."""
        return self._coefficients

    def forecast(self, features: Sequence[float]) -> float:
        """The value of such a sample."""
        return sum(c * x for c, x in zip(self._coefficients, features, strict=True))

    def add(self, features: Sequence[float], value: float) -> float:
        """One sample. A value far above its forecast counts as a large one only; returns what it counted as."""
        forecast = self.forecast(features)
        if self._num_samples >= _SURPRISED_AFTER and forecast > 0:
            value = min(value, _MAX_SURPRISE * forecast)
        x = np.array(features)
        fade = 1.0 - 1.0 / _MEMORY_STEPS
        self._moments = fade * self._moments + np.outer(x, x)
        self._targets = fade * self._targets + x * value
        self._num_samples += 1
        if is_fit_due(self._num_samples):
            self._coefficients = self._solve()
        return value

    def _solve(self) -> list[float]:
        """Normal equations; the most negative coefficient is held at 0 until none is left."""
        diagonal = np.diagonal(self._moments)
        matrix = self._moments + np.diag(self._weights * diagonal)
        used = [index for index in range(len(self._weights)) if diagonal[index] > 0]
        solution = [0.0] * len(self._weights)
        while used:
            part = np.linalg.solve(matrix[np.ix_(used, used)], self._targets[used])
            lowest = int(np.argmin(part))
            if part[lowest] >= 0:
                for index, coefficient in zip(used, part.tolist(), strict=True):
                    solution[index] = coefficient
                break
            del used[lowest]
        return solution


@dataclass(slots=True)
class _Cell:
    """Steps with one number of target tokens: running means of their features and times."""

    features: list[float]
    target_ns: float
    num_steps: int
    last_step: int


class StepCostModel:
    """Learns StepCosts from steps without prefill."""

    def __init__(self) -> None:
        self._target = RunningFit((_CERTAIN, _UNLIKELY, _LIKELY, _UNLIKELY))  # 1, first, tokens, rows
        self._drafter = RunningFit((_CERTAIN, _UNLIKELY, _LIKELY, _UNLIKELY))  # 1, first, depth, tokens
        self._cells: dict[int, _Cell] = {}  # by target tokens of the step
        self._num_steps = 0
        self._known: dict[int, StepCosts] = {}  # by rows, until the next fit

    def record(self, *, num_rows: int, num_draft_tokens: int, depth: int, draft_ns: int, verify_ns: int) -> None:
        """One step."""
        is_first = float(num_draft_tokens > 0)
        features = (1.0, is_first, num_draft_tokens, num_rows)
        counted_ns = self._target.add(features, verify_ns)
        self._drafter.add((1.0, is_first, depth, num_draft_tokens), draft_ns)
        self._num_steps += 1
        if is_fit_due(self._num_steps):
            self._known.clear()
        self._count_in_cell(num_rows + num_draft_tokens, features, counted_ns)

    def costs(self, num_rows: int) -> StepCosts:
        """What a step with `num_rows` rows costs, as far as it is known."""
        if num_rows not in self._known:
            self._known[num_rows] = self._work_out(num_rows)
        return self._known[num_rows]

    def _work_out(self, num_rows: int) -> StepCosts:
        constant, target_first, target_token, row = self._target.coefficients
        idle, draft_first, draft_depth, draft_token = self._drafter.coefficients
        return StepCosts(
            num_rows=num_rows,
            plain_ns=max(constant + row * num_rows + idle, 1.0),
            draft_idle_ns=idle,
            target_first_ns=target_first,
            target_token_ns=target_token,
            draft_first_ns=draft_first,
            draft_depth_ns=draft_depth,
            draft_token_ns=draft_token,
            kinks=self._kinks(),
        )

    def _count_in_cell(self, num_tokens: int, features: Sequence[float], target_ns: float) -> None:
        cell = self._cells.get(num_tokens)
        if cell is None or self._num_steps - cell.last_step > _CELL_AGE:
            self._cells[num_tokens] = _Cell(list(features), target_ns, 1, self._num_steps)
            return
        cell.num_steps = min(cell.num_steps + 1, _CELL_MEMORY)
        cell.last_step = self._num_steps
        cell.target_ns += (target_ns - cell.target_ns) / cell.num_steps
        cell.features = [mean + (x - mean) / cell.num_steps for mean, x in zip(cell.features, features, strict=True)]

    def _kinks(self) -> tuple[tuple[int, float], ...]:
        return tuple(
            (num_tokens, cell.target_ns - self._target.forecast(cell.features))
            for num_tokens, cell in sorted(self._cells.items())
            if self._num_steps - cell.last_step <= _CELL_AGE
        )
