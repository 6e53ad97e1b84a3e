"""A request's place in the batch: its text, how far the target has read it, and when it ends."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from specdeploy.runtime.request import FinishReason, GenerationRequest, RequestStats
from specdeploy.runtime.sampling import TokenCounts


@dataclass(slots=True)
class Row:
    """While decoding, `num_cached == len(token_ids) - 1`: the newest token is unread.

    `max_output` tokens of output at most; `num_positions` of key/value memory are its own from the start;
    `planned_draft_len` is K as its request has it at the load of this step, 0 where nothing drafts.
    """

    request: GenerationRequest
    slot: int
    max_output: int
    num_positions: int
    token_ids: list[int]
    counts: TokenCounts | None
    num_cached: int = 0
    planned_draft_len: int = 0
    stats: RequestStats = field(default_factory=RequestStats)
    finish_reason: FinishReason | None = None

    @classmethod
    def admit(cls, request: GenerationRequest, slot: int, *, max_output: int, num_positions: int) -> "Row":
        """A row that has read nothing yet."""
        has_penalties = request.sampling.has_penalties
        counts = TokenCounts(request.prompt_ids, max_output) if has_penalties else None
        return cls(request, slot, max_output, num_positions, list(request.prompt_ids), counts)

    @property
    def num_output(self) -> int:
        """Output tokens so far."""
        return len(self.token_ids) - len(self.request.prompt_ids)

    @property
    def num_unread(self) -> int:
        """Tokens of the text the target has not read."""
        return len(self.token_ids) - self.num_cached

    @property
    def is_decoding(self) -> bool:
        """Whether the whole text but its newest output token was read."""
        return self.num_unread == 1 and self.num_output > 0

    @property
    def num_free_positions(self) -> int:
        """Key/value memory beyond the text, for draft tokens."""
        return self.num_positions - len(self.token_ids)

    @property
    def may_sample_drafts(self) -> bool:
        """Whether drafts may be drawn at random and verified by the ratio rule, which does not keep a seed's text."""
        sampling = self.request.sampling
        return not (sampling.is_greedy or sampling.has_own_seed or self.request.guided is not None)

    def unread(self, most: int) -> Sequence[int]:
        """The next tokens of the prompt, `most` at most."""
        return self.token_ids[self.num_cached : self.num_cached + most]

    def append(self, token: int) -> bool:
        """One more output token, told to everything that follows the text. True when the request ends with it."""
        self.token_ids.append(token)
        if self.counts is not None:
            self.counts.add(token)
        if self.request.guided is not None:
            self.request.guided.accept(token)
        self.finish_reason = self._finish_reason(token)
        return self.finish_reason is not None

    def _finish_reason(self, token: int) -> FinishReason | None:
        request = self.request
        # The matcher sees every token, also before min_tokens: it follows the text.
        ends_with_stop_string = request.ends_with_stop_string is not None and request.ends_with_stop_string(token)
        if token in request.stop_ids:
            return "stop"
        if ends_with_stop_string and self.num_output >= request.sampling.min_tokens:
            return "stop"
        if request.guided is not None and request.guided.is_finished:
            return "stop"
        if request.guided is not None and request.guided.is_stuck:
            return "error"
        return "length" if self.num_output >= self.max_output else None
