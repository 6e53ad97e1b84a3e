"""Token ids -> text deltas that concatenate to the decode of all ids, with stop strings found at exact tokens.

A character may take several tokens, so the newest text is held back until it can no longer change: an unfinished
UTF-8 sequence decodes to U+FFFD, and a tail that may become a stop string must not be shown before it is decided.
Everything held back is flushed at the end.
"""

from collections.abc import Sequence

from tokenizers import Tokenizer

_REPLACEMENT = "\ufffd"


class IncrementalDetokenizer:
    """Decodes a window that starts at a settled place, so a step costs a few tokens, not the whole text.

    The window keeps the tokens before the unsettled ones, because decoders treat a first token differently
    (sentencepiece drops a leading space). The same scheme is used by text-generation-inference and vLLM.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._window_start = 0
        self._num_settled = 0

    def push(self, token_id: int) -> str:
        """The text that `token_id` settles; '' while a character is unfinished."""
        self._ids.append(token_id)
        before, after = self._window()
        if after.endswith(_REPLACEMENT) or len(after) <= len(before):
            return ""
        self._window_start, self._num_settled = self._num_settled, len(self._ids)
        return after[len(before) :]

    def flush(self) -> str:
        """The unsettled rest, as the decode of all ids shows it."""
        before, after = self._window()
        self._window_start = self._num_settled = len(self._ids)
        return after[len(before) :]

    def _window(self) -> tuple[str, str]:
        """Decoded window without and with the unsettled tokens."""
        start = self._window_start
        return (
            self._tokenizer.decode(self._ids[start : self._num_settled], skip_special_tokens=True),
            self._tokenizer.decode(self._ids[start:], skip_special_tokens=True),
        )


class OutputText:
    """The text of one request: deltas to deliver, cut before the first stop string.

    `accept` is called by the engine once per output token, in order; `take_delta` by whoever sends a message. The
    tokens of a stop string count as output tokens; its characters are never delivered.
    """

    def __init__(self, tokenizer: Tokenizer, stop_strings: Sequence[str], *, min_tokens: int = 0) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._stop_strings = tuple(stop_strings)
        self._longest_stop = max(map(len, self._stop_strings), default=0)
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._pending = ""  # settled text not delivered yet
        self._is_cut = False

    def accept(self, token_id: int) -> bool:
        """Take one output token; True when it completes a stop string."""
        self._num_tokens += 1
        settled = self._detokenizer.push(token_id)
        if not settled or self._is_cut:
            return self._is_cut
        num_old = len(self._pending)
        self._pending += settled
        if self._num_tokens >= self._min_tokens:
            self._cut_at_stop_string(num_old)
        return self._is_cut

    def take_delta(self, *, is_final: bool) -> str:
        """Text that can be shown now; all that is left when the request is over."""
        if is_final and not self._is_cut:
            num_old = len(self._pending)
            self._pending += self._detokenizer.flush()
            if self._num_tokens >= self._min_tokens:
                self._cut_at_stop_string(num_old)
        keep = 0 if is_final or self._is_cut else self._undecided_tail()
        delta, self._pending = self._pending[: len(self._pending) - keep], self._pending[len(self._pending) - keep :]
        return delta

    def _cut_at_stop_string(self, num_old: int) -> None:
        """Only a match that new characters complete counts: from `len(stop) - 1` characters before them. One that was
        complete before `min_tokens` was passed over then, however much of it is still pending."""
        found = [
            index
            for stop in self._stop_strings
            if (index := self._pending.find(stop, max(0, num_old - len(stop) + 1))) >= 0
        ]
        if found:
            self._pending = self._pending[: min(found)]
            self._is_cut = True

    def _undecided_tail(self) -> int:
        """Length of the longest ending of the pending text that begins some stop string."""
        for length in range(min(self._longest_stop - 1, len(self._pending)), 0, -1):
            if any(stop.startswith(self._pending[-length:]) for stop in self._stop_strings):
                return length
        return 0
