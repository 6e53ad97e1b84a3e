"""What every cost model of the planner answers: how long one step takes.

A step is taken to be affine in the cached tokens it reads, so that a simulator can add up many steps at once.
"""

from dataclasses import dataclass
from typing import Protocol

from specdeploy.planner_contract import ArithmeticLine


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What one step has to do.

    `num_rows` requests decode one token each; `num_draft_tokens` over all of them are verified too, the deepest draft
    being `depth` tokens deep (passes of a chain drafter, one after the other). `prefill_tokens` of prompts join;
    `draft_prefill_tokens` of them the drafter reads as well.
    """

    num_rows: int
    num_draft_tokens: int = 0
    depth: int = 0
    prefill_tokens: int = 0
    draft_prefill_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens of the target's pass."""
        return self.num_rows + self.num_draft_tokens + self.prefill_tokens


def uniform_load(num_rows: int, draft_len: int) -> StepLoad:
    """Every row drafts `draft_len` tokens in a chain; 0 is plain decoding."""
    return StepLoad(num_rows, num_rows * draft_len, draft_len)


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step: `fixed_s` + `kv_token_s` x tokens cached by all decoding rows + `prefill_context_s` x tokens
    that lie before the prompt tokens joining."""

    fixed_s: float
    kv_token_s: float
    prefill_context_s: float = 0.0

    def seconds(self, kv_tokens: float, prefill_context: float = 0.0) -> float:
        """The whole step."""
        return self.fixed_s + self.kv_token_s * kv_tokens + self.prefill_context_s * prefill_context


class StepTimes(Protocol):
    """A cost model. Implementations remember answers: a simulator asks for the same loads over and over."""

    def time(self, load: StepLoad) -> StepTime:
        """Seconds of a step."""
        ...

    def range_problem(self, num_rows: int, draft_len: int) -> str | None:
        """Why nothing is promised for such steps, in one line; None inside the calibrated range."""
        ...

    def explain(self, num_rows: int, draft_len: int, kv_tokens: float) -> tuple[ArithmeticLine, ...]:
        """The arithmetic of one step, line by line, with the numbers filled in."""
        ...

    @property
    def ridge_tokens(self) -> float:
        """Tokens of a step beyond which its matrix products wait for arithmetic rather than for memory."""
        ...
