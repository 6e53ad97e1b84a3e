"""How long a request of a segment is, in cached tokens."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestTokens:
    """Prompt and output of one request. While it is decoded its cache also holds the draft tokens of one step."""

    input_tokens: int
    output_tokens: int

    @property
    def plain(self) -> int:
        """Without drafts."""
        return max(self.input_tokens + self.output_tokens, 1)

    def with_draft(self, draft_tokens: int) -> int:
        """With the `draft_tokens` that one step verifies: K of a chain, the nodes of a tree."""
        return self.plain + draft_tokens
