"""Seconds of a step from kernels: the target's pass, the drafter's, and what the engine adds to both.

    step = target_scale x target's kernels + step_s + row_s x rows (+ eager_step_s without a graph)
         + speculation_s + speculation_row_s x rows + draft_scale x drafter's kernels + draft_step_s x passes

The second line belongs to steps that draft.
"""

from bisect import bisect_left
from collections.abc import Iterator

from specdeploy.planner.draft_cost import draft_parts
from specdeploy.planner.draft_shape import DraftShape
from specdeploy.planner.kernel_tables import KernelTables
from specdeploy.planner.model_shape import ModelShape
from specdeploy.planner.pass_cost import Device, PassCost
from specdeploy.planner.pass_parts import CostPart, PassLoad, model_parts, readout_part
from specdeploy.planner.step_times import StepLoad, StepTime, uniform_load
from specdeploy.planner_contract import ArithmeticLine, Calibration, HardwareRecord, Overheads


class KernelStepTimes:
    """A `StepTimes` of `target`, and `draft` where there is one, on `tensor_parallel` GPUs.

    `draft_tensor_parallel` GPUs of the drafter, None = as the target. `calibration` without overheads adds nothing.
    """

    def __init__(
        self,
        target: ModelShape,
        draft: DraftShape | None,
        hardware: HardwareRecord,
        tables: KernelTables,
        tensor_parallel: int,
        calibration: Calibration,
        *,
        draft_tensor_parallel: int | None = None,
    ) -> None:
        self.device = device = Device(hardware, tables)
        self.target = target
        self.draft = draft
        self.calibration = calibration
        self._overheads = calibration.overheads or Overheads()
        self._pass = PassCost(target, device, tensor_parallel)
        draft_gpus = draft_tensor_parallel or tensor_parallel
        self._draft_pass = PassCost((draft.model if draft else None) or target, device, draft_gpus)
        self._times: dict[tuple[int, int, int, int, int], StepTime] = {}

    def time(self, load: StepLoad) -> StepTime:
        """Seconds of a step; the same load is computed once."""
        # A tuple: hashing and comparing the dataclass itself takes longer than all the rest of a repeated call.
        key = (load.num_rows, load.num_draft_tokens, load.depth, load.prefill_tokens, load.draft_prefill_tokens)
        known = self._times.get(key)
        if known is None:
            known = self._times[key] = self._sum(load)
        return known

    def parts(self, load: StepLoad) -> tuple[CostPart, ...]:
        """What a step is made of; the parts add up to `time`."""
        return (*self._target_parts(load), *self._engine_parts(load), *self._draft_parts(load))

    def range_problem(self, num_rows: int, draft_len: int) -> str | None:
        """The first of: kernels that were not measured, another device's calibration, a load beyond the calibrated."""
        calibration, passes = self.calibration, [self._pass]
        if draft_len and self.draft is not None and self.draft.model is not None:
            passes.append(self._draft_pass)
        for one in passes:
            if problem := one.problem():
                return problem
        if calibration.hardware != self.device.record.name:
            return f"calibration {calibration.name} is of {calibration.hardware}, not of {self.device.record.name}"
        return _beyond(calibration, num_rows, draft_len)

    def explain(self, num_rows: int, draft_len: int, kv_tokens: float) -> tuple[ArithmeticLine, ...]:
        """One line per part in seconds; they add up to the step's time over `kv_tokens` cached tokens."""
        return tuple(
            ArithmeticLine(
                subject=part.subject,
                formula=part.formula_with(kv_tokens),
                value=part.fixed_s + part.kv_token_s * kv_tokens,
                unit="s",
            )
            for part in self.parts(uniform_load(num_rows, draft_len))
        )

    @property
    def ridge_tokens(self) -> float:
        """As `PassCost.ridge_tokens`, of the target."""
        return self._pass.ridge_tokens()

    def _sum(self, load: StepLoad) -> StepTime:
        fixed_s = kv_token_s = prefill_context_s = 0.0
        for part in self.parts(load):
            fixed_s += part.fixed_s
            kv_token_s += part.kv_token_s
            prefill_context_s += part.prefill_context_s
        return StepTime(fixed_s, kv_token_s, prefill_context_s)

    def _target_parts(self, load: StepLoad) -> Iterator[CostPart]:
        tokens, _ = self._recorded(load.num_tokens)
        pass_load = PassLoad(
            tokens=tokens,
            real_tokens=load.num_tokens,
            rows=load.num_rows,
            queries=load.num_rows + load.num_draft_tokens,
            prompt_tokens=load.prefill_tokens,
        )
        scale = self._overheads.target_scale
        for part in model_parts(self._pass, pass_load, "target"):
            yield part.scaled(scale)
        readouts = load.num_rows + load.num_draft_tokens + (1 if load.prefill_tokens else 0)
        target = self.target
        yield readout_part(self._pass, target.hidden_size, target.lm_head_rows, readouts, "target").scaled(scale)

    def _engine_parts(self, load: StepLoad) -> Iterator[CostPart]:
        own, rows = self._overheads, load.num_rows
        yield CostPart(
            "engine: step",
            own.step_s + own.row_s * rows,
            lambda: f"{own.step_s:.3g} s + {own.row_s:.3g} s x {rows} rows",
        )
        _, is_eager = self._recorded(load.num_tokens)
        if is_eager:
            yield CostPart(
                "engine: no graph",
                self.calibration.eager_step_s,
                lambda: f"{load.num_tokens} tokens are above the largest graph, {self.calibration.captured_tokens[-1]}",
            )
        if _drafts(load):
            yield CostPart(
                "engine: speculation",
                own.speculation_s + own.speculation_row_s * rows,
                lambda: f"{own.speculation_s:.3g} s + {own.speculation_row_s:.3g} s x {rows} rows",
            )

    def _draft_parts(self, load: StepLoad) -> Iterator[CostPart]:
        draft, own = self.draft, self._overheads
        if draft is None or not (_drafts(load) or load.draft_prefill_tokens):
            return
        for part in draft_parts(draft, self._draft_pass, load, lambda tokens: self._recorded(tokens)[0]):
            yield part.scaled(own.draft_scale)
        passes = draft.num_passes(load.depth)
        if passes and own.draft_step_s:
            yield CostPart(
                "engine: drafter's passes",
                own.draft_step_s * passes,
                lambda: f"{own.draft_step_s:.3g} s x {passes} passes",
            )

    def _recorded(self, tokens: int) -> tuple[int, bool]:
        """Tokens with the padding up to the next recorded size; whether they are beyond the last."""
        sizes = self.calibration.captured_tokens
        if not sizes:
            return tokens, False
        index = bisect_left(sizes, tokens)
        return (tokens, True) if index == len(sizes) else (sizes[index], False)


def _drafts(load: StepLoad) -> bool:
    return load.depth > 0 or load.num_draft_tokens > 0


def _beyond(calibration: Calibration, num_rows: int, draft_len: int) -> str | None:
    limits, tokens = calibration.range, num_rows * (draft_len + 1)
    if num_rows > limits.max_rows:
        return f"{num_rows} requests at once: calibration {calibration.name} ends at {limits.max_rows}"
    if draft_len > limits.max_draft_len:
        return f"K {draft_len}: calibration {calibration.name} ends at {limits.max_draft_len}"
    if tokens > limits.max_step_tokens:
        return f"{tokens} tokens in a step: calibration {calibration.name} ends at {limits.max_step_tokens}"
    return None
