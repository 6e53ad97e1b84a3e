"""How deep to draft for a row in the next step."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StepTiming:
    """What one step took: `num_rows` rows decoding, `num_tokens` target tokens over all of them, nanoseconds of the
    drafter and of the target's forward with verification. `has_prefill`: prompts were read in it too. `depth`: the
    deepest draft of it, 0 for none."""

    num_rows: int
    num_tokens: int
    depth: int
    draft_ns: int
    verify_ns: int
    has_prefill: bool


class DraftLengthPolicy(Protocol):
    """Chooses K per row and step, never above the cap it is given. One per engine; state per slot."""

    def draft_len(self, slot: int, cap: int, num_rows: int) -> int:
        """K for the row in `slot` while `num_rows` rows decode; 0 <= K <= cap, cap >= 1."""

    def record(self, slot: int, num_drafted: int, num_accepted: int) -> None:
        """One verification of the row: depth of its draft (0: it had none although asked for), and how much of it was
        accepted."""

    def record_step(self, timing: StepTiming) -> None:
        """One step of the engine."""

    def release(self, slot: int) -> None:
        """The row left."""


class FixedDraftLength:
    """Always the cap: K as the request or the plan says."""

    def draft_len(self, slot: int, cap: int, num_rows: int) -> int:  # noqa: ARG002 - the signature is the contract
        """The cap."""
        return cap

    def record(self, slot: int, num_drafted: int, num_accepted: int) -> None:
        """Nothing is learned."""

    def record_step(self, timing: StepTiming) -> None:
        """Nothing is learned."""

    def release(self, slot: int) -> None:
        """Nothing is kept."""
