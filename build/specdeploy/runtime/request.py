"""What a request asks of the engine, and what one step gives back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, Protocol

import torch

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target's next token is chosen. `seed` must be set whenever the choice is random.

    `repetition_penalty` counts prompt and output (Keskar et al. 2019); `presence_penalty` and `frequency_penalty`
    count the output only. `bad_words` are token sequences that must not be completed. Stop ids cannot be chosen
    before `min_tokens` output tokens exist.

    `has_own_seed`: the client named the seed, so the text must depend on it alone and not on what was drafted: drafts
    then are definite guesses. Without it sampled drafts are verified by the ratio rule, which accepts more of them.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    seed: int = 0
    has_own_seed: bool = True

    @property
    def is_greedy(self) -> bool:
        """Whether the choice is the argmax."""
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def has_penalties(self) -> bool:
        """Whether the tokens of the text so far act on the logits."""
        return bool(self.repetition_penalty != 1.0 or self.presence_penalty or self.frequency_penalty)

    @property
    def changes_logits(self) -> bool:
        """Whether anything but temperature and truncation acts on the logits."""
        return bool(self.has_penalties or self.logit_bias or self.bad_words or self.min_tokens)


class GuidedOutput(Protocol):
    """A grammar at one place of one request's output."""

    def mask_logits(self, logits: torch.Tensor) -> None:
        """Set the logits [V] of tokens that may not come next to -inf, in place. While it is not active yet, little
        or nothing."""

    def accept(self, token_id: int) -> None:
        """One more output token. It was allowed by `mask_logits`."""

    def legal_draft(self, token_ids: Sequence[int], parents: Sequence[int] | None) -> list[int]:
        """Which draft tokens could be emitted: indices, in order, of those that are legal after the text and their
        ancestors. Leaves the state as it was."""

    @property
    def is_finished(self) -> bool:
        """Nothing but the end may follow."""

    @property
    def is_stuck(self) -> bool:
        """Nothing may follow and the output must not end here: it cannot be what was asked for any more."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt to continue.

    `draft_len` gives K for a number of in-flight requests (0 = do not draft). `ends_with_stop_string` is told every
    output token in order and answers whether the text now ends with a stop string; it owns its own state. `guided`
    constrains the output; it too is told every output token in order.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    sampling: SamplingParams = SamplingParams()
    draft_len: Callable[[int], int] = lambda in_flight: 0  # noqa: ARG005 - the signature is the contract
    ends_with_stop_string: Callable[[int], bool] | None = None
    wants_log_probs: bool = False
    guided: GuidedOutput | None = None


@dataclass(slots=True)
class RequestStats:
    """Counts over one request. `num_accepted_tokens` are draft tokens that were emitted.

    `was_allowed_to_draft` says that K was above 0 at some point, also when the drafter then had nothing to propose;
    `num_steps` target forwards that emitted a token; `num_drafts` steps with at least one draft token;
    `num_accepted_tokens_per_pos[i]` drafts whose tokens of depth 0..i were all accepted. Of a tree every token that was
    verified counts as a draft token, so its acceptance rate is low by nature.

    `source` is `measured`, `derived:<how>` or `unavailable:<why>`; of an unavailable count nothing is reported.
    `num_steps` is None where steps cannot be seen. `off_reason` is set by an engine that did not draft for a reason of
    its own.
    """

    was_allowed_to_draft: bool = False
    num_steps: int | None = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)
    source: str = "measured"
    off_reason: str | None = None

    @property
    def is_available(self) -> bool:
        """Whether the counts of draft tokens mean anything."""
        return not self.source.startswith("unavailable")

    def count_step(self, num_drafted: int, num_accepted: int) -> None:
        """Add one step that drafted `num_drafted` tokens and emitted `num_accepted` of them."""
        self.num_steps = (self.num_steps or 0) + 1
        self.num_drafts += num_drafted > 0
        self.num_draft_tokens += num_drafted
        self.num_accepted_tokens += num_accepted
        missing = num_accepted - len(self.num_accepted_tokens_per_pos)
        self.num_accepted_tokens_per_pos.extend([0] * max(0, missing))
        for position in range(num_accepted):
            self.num_accepted_tokens_per_pos[position] += 1


@dataclass(frozen=True, slots=True)
class RowUpdate:
    """What one step did for one request: the tokens to deliver and, when it ended, why and with which counts."""

    request_id: str
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...] | None
    finish_reason: FinishReason | None
    stats: RequestStats
