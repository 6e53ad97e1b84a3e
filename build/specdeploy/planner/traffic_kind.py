"""What limits a segment by its lengths: the time of one request alone, prompt and answer apart.

Speculation shortens the answer only. With a share d of the time in the answer, even an answer for nothing would leave
1 - d of the time: the ratio cannot fall below that (Amdahl's law).
"""

from dataclasses import dataclass

from specdeploy.planner.plan_inputs import PlanInputs, SegmentInputs
from specdeploy.planner.step_times import StepLoad
from specdeploy.planner_contract import ArithmeticLine, TrafficKind

MIN_DECODE_SHARE = 0.5
MIN_OUTPUT_TOKENS = 16.0


@dataclass(frozen=True, slots=True)
class TimeAlone:
    """Seconds of one request of mean lengths with nobody else on the server, without speculation."""

    input_tokens: float
    output_tokens: float
    prefill_s: float
    decode_s: float

    @property
    def decode_share(self) -> float:
        total = self.prefill_s + self.decode_s
        return self.decode_s / total if total > 0 else 1.0

    @property
    def kind(self) -> TrafficKind:
        if self.output_tokens < MIN_OUTPUT_TOKENS:
            return TrafficKind.SHORT_OUTPUT
        return TrafficKind.PREFILL_BOUND if self.decode_share < MIN_DECODE_SHARE else TrafficKind.DECODE_BOUND

    def describe(self) -> str:
        """The arithmetic in one line."""
        return (
            f"{self.input_tokens:.0f} prompt tokens take {_time(self.prefill_s)}, {self.output_tokens:.0f} output "
            f"tokens {_time(self.decode_s)}: {self.decode_share:.0%} of the time can shrink, no ratio falls below "
            f"{1 - self.decode_share:.2f}"
        )

    def arithmetic(self, segment: str) -> tuple[ArithmeticLine, ...]:
        """Lines for `--explain`."""
        lines = (
            ("prompt alone", f"{self.input_tokens:.0f} tokens in chunks", self.prefill_s, "s"),
            ("answer alone", f"{self.output_tokens:.0f} - 1 plain steps of one row", self.decode_s, "s"),
            (
                "decode share",
                f"{self.decode_s:.4g} / ({self.prefill_s:.4g} + {self.decode_s:.4g})",
                self.decode_share,
                "of 1",
            ),
        )
        return tuple(
            ArithmeticLine(subject=f"{segment}: {subject}", formula=formula, value=value, unit=unit)
            for subject, formula, value, unit in lines
        )


def time_alone(inputs: PlanInputs, segment: SegmentInputs) -> TimeAlone:
    """One request of the segment's mean lengths: its prompt in chunks, then a plain step for each further token."""
    prompt, output = segment.mean_input, segment.mean_output
    prefill_s, read = 0.0, 0
    while read < prompt:
        chunk = min(inputs.prefill_chunk, round(prompt) - read)
        if chunk < 1:
            break
        load = StepLoad(num_rows=0, prefill_tokens=chunk)
        prefill_s += inputs.times.time(load).seconds(0, prefill_context=read)
        read += chunk
    step_s = inputs.times.time(StepLoad(num_rows=1)).seconds(prompt + output / 2)
    return TimeAlone(prompt, output, prefill_s, max(0.0, output - 1) * step_s)


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
