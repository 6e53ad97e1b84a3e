"""Step times of an engine that was measured as a whole: what `Calibration.target` and `.draft` say, as a cost model."""

from specdeploy.planner.step_curve import captured, curve_seconds
from specdeploy.planner.step_times import StepLoad, StepTime, uniform_load
from specdeploy.planner_contract import ArithmeticLine, CalibratedRange, Calibration, MeasuredDraft, MeasuredTarget


class MeasuredStepTimes:
    """Implements `StepTimes`: target(m tokens, R rows, C cached) + drafter, as the classes of the contract say."""

    def __init__(self, calibration: Calibration) -> None:
        """Raises ValueError for a calibration of overheads, which says nothing without kernel tables."""
        if calibration.target is None:
            raise ValueError(f"calibration {calibration.name} holds overheads, not a measured target")
        self._calibration = calibration
        self._target: MeasuredTarget = calibration.target
        self._draft = calibration.draft or MeasuredDraft()
        self._known: dict[StepLoad, StepTime] = {}

    def time(self, load: StepLoad) -> StepTime:
        """Seconds of a step."""
        known = self._known.get(load)
        if known is None:
            known = self._known[load] = self._time(load)
        return known

    def target_s(self, load: StepLoad) -> float:
        """The target's pass without what it reads of cached tokens."""
        target, sizes = self._target, self._calibration.captured_tokens
        seconds = curve_seconds(captured(load.num_tokens, sizes), target.curve_tokens, target.curve_s)
        seconds += target.row_s * max(load.num_rows - 1, 0)
        return seconds + self._calibration.eager_step_s if sizes and load.num_tokens > sizes[-1] else seconds

    def draft_s(self, load: StepLoad) -> float:
        """The drafter, all its passes."""
        draft = self._draft
        seconds = draft.idle_s + draft.prefill_token_s * load.draft_prefill_tokens
        if load.num_draft_tokens:
            seconds += draft.first_s + draft.depth_s * load.depth + draft.token_s * load.num_draft_tokens
        return seconds

    def range_problem(self, num_rows: int, draft_len: int) -> str | None:
        """Why nothing is promised for such steps, in one line; None inside the calibrated range."""
        return range_problem(self._calibration.range, num_rows, draft_len)

    def explain(self, num_rows: int, draft_len: int, kv_tokens: float) -> tuple[ArithmeticLine, ...]:
        """The arithmetic of one step, line by line, with the numbers filled in."""
        target, draft, load = self._target, self._draft, uniform_load(num_rows, draft_len)
        step = self.time(load)
        read = captured(load.num_tokens, self._calibration.captured_tokens)
        padding = "" if read == load.num_tokens else f", padded from {load.num_tokens}"
        lines = [
            _line(
                "target, step of this size",
                f"curve({read:g} tokens{padding}) + {_ms(target.row_s)} x {num_rows - 1} rows",
                self.target_s(load),
            ),
            _line(
                "target, cached tokens",
                f"{step.kv_token_s * 1e6:.3g} us x {kv_tokens:.0f} tokens",
                step.kv_token_s * kv_tokens,
            ),
        ]
        if load.num_draft_tokens:
            formula = (
                f"{_ms(draft.idle_s)} + {_ms(draft.first_s)} + {_ms(draft.depth_s)} x {load.depth} deep "
                f"+ {_ms(draft.token_s)} x {load.num_draft_tokens} tokens"
            )
        else:
            formula = f"{_ms(draft.idle_s)} without drafts"
        lines.append(_line("drafter", formula, self.draft_s(load)))
        lines.append(_line("step", f"{num_rows} rows, K {draft_len}: the sum", step.seconds(kv_tokens)))
        return tuple(lines)

    @property
    def ridge_tokens(self) -> float:
        """Where the curve has come to twice its start, or its last point."""
        points, seconds = self._target.curve_tokens, self._target.curve_s
        limit = 2 * seconds[0]
        for index in range(1, len(points)):
            if seconds[index] >= limit:
                rise = seconds[index] - seconds[index - 1]
                share = (limit - seconds[index - 1]) / rise if rise else 0.0
                return points[index - 1] + max(share, 0.0) * (points[index] - points[index - 1])
        return float(points[-1])

    def _time(self, load: StepLoad) -> StepTime:
        target = self._target
        tokens_per_row = 1 + load.num_draft_tokens / load.num_rows if load.num_rows else 1.0
        return StepTime(
            fixed_s=self.target_s(load) + self.draft_s(load),
            kv_token_s=target.kv_token_s + target.pair_s * tokens_per_row,
            prefill_context_s=target.kv_token_s + target.pair_s * load.prefill_tokens,
        )


def range_problem(calibrated: CalibratedRange, num_rows: int, draft_len: int) -> str | None:
    """What of such steps lies beyond a calibrated range, in one line; None if nothing does."""
    tokens = num_rows * (draft_len + 1)
    for seen, most, words in (
        (num_rows, calibrated.max_rows, "rows"),
        (draft_len, calibrated.max_draft_len, "draft tokens per row"),
        (tokens, calibrated.max_step_tokens, "tokens in a step"),
    ):
        if seen > most:
            return f"{seen} {words}: the calibration saw at most {most}"
    return None


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"


def _line(subject: str, formula: str, seconds: float) -> ArithmeticLine:
    return ArithmeticLine(subject=subject, formula=formula, value=seconds, unit="s")
