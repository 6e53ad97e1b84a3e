"""A compiled guide at one place of one output: which tokens may come next, and what came so far."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


class ThinkingEnd:
    """The text after which guides apply, and how tokens make it up. Shared by all outputs; bytes throughout."""

    def __init__(self, marker: bytes, spelled: Sequence[bytes]) -> None:
        """`spelled` the bytes of every token, special ones as the tokenizer spells them."""
        self._marker = marker
        self._spelled = spelled
        self._prefixes = tuple(marker[:length] for length in range(1, len(marker)))
        may_overrun = [token for token, text in enumerate(spelled) if self._may_overrun(text)]
        self._overrunning_ids = tuple(may_overrun)
        self._holding_ids = tuple(token for token in may_overrun if marker in spelled[token])

    def overrunning_ids(self, tail: bytes) -> tuple[int, ...]:
        """Tokens that may complete the marker after `tail` and go on with something that is not blank."""
        return self._overrunning_ids if tail.endswith(self._prefixes) else self._holding_ids

    def after(self, tail: bytes, token_id: int) -> tuple[bytes, bytes | None]:
        """With `token_id` after text that ended in `tail`: the new tail, and what follows the marker when it is now
        complete, else None. Blanks that follow it are dropped: they belong to the thinking."""
        text = tail + self._spelled[token_id]
        place = text.find(self._marker)
        if place < 0:
            keep = min(len(self._marker) - 1, len(text))
            return text[len(text) - keep :], None
        return b"", text[place + len(self._marker) :].lstrip()

    def _may_overrun(self, text: bytes) -> bool:
        """Whether the marker may end inside the token, before something that is not blank."""
        return any(
            text[end:].strip() and (self._marker.endswith(text[:end]) or text[:end].endswith(self._marker))
            for end in range(1, len(text))
        )


@dataclass(frozen=True, slots=True)
class _Place:
    """What it takes to return to a place of the output: steps of the matcher to take back, and the thinking."""

    num_steps: int
    tail: bytes
    is_active: bool


class GrammarOutput:
    """See `GuidedOutput`. While thinking goes on every token is allowed but stop ids, and what would end the thinking
    and begin the guided text with something the guide forbids.

    A token is legal exactly when the mask has it. A stop id is legal where the guide's text may end. Without stop ids
    the output ends where nothing can follow.
    """

    def __init__(
        self,
        grammar: Any,
        num_token_ids: int,
        *,
        textless_ids: frozenset[int],
        stop_ids: frozenset[int],
        thinking: ThinkingEnd | None = None,
    ) -> None:
        """`grammar` is compiled for a vocabulary of `num_token_ids` and one id more, which nothing can emit.
        `textless_ids` stand for no text in it, nor for its end."""
        import xgrammar  # loaded when the guide was compiled

        self._num_token_ids = num_token_ids
        self._textless_ids = textless_ids
        self._stop_ids = stop_ids
        self._matcher = xgrammar.GrammarMatcher(grammar, override_stop_tokens=sorted(stop_ids) or [num_token_ids])
        self._apply_mask = xgrammar.apply_token_bitmask_inplace
        self._thinking = thinking
        self._is_active = thinking is None
        self._tail = b""
        self._bitmask = xgrammar.allocate_token_bitmask(1, num_token_ids + 1)  # [1, ceil((V + 1) / 32)] int32
        self._ordinary_bits = _bits_of_all_but(sorted({*stop_ids, num_token_ids}), self._bitmask.shape[1])
        self._is_mask_current = False
        self._is_stuck = False

    def mask_logits(self, logits: torch.Tensor) -> None:
        """Set the logits [V] of tokens that may not come next to -inf, in place."""
        if not self._is_active:
            forbidden = [*self._stop_ids, *self._illegal_overruns()]
            if forbidden:
                logits[torch.tensor(forbidden, device=logits.device)] = float("-inf")
            return
        self._fill_mask()
        num_logits = min(logits.shape[0], self._num_token_ids)
        if logits.device.type == "cpu":
            self._apply_mask(logits, self._bitmask, vocab_size=num_logits)
        else:  # the kernel for GPUs is written in the Triton language, which is not installed with us
            self._apply_mask(
                logits.unsqueeze(0), self._bitmask.to(logits.device), vocab_size=num_logits, backend="torch_native"
            )

    def accept(self, token_id: int) -> None:
        """One more output token. One that `mask_logits` forbids leaves the output stuck."""
        if self._advance(token_id) is None:
            self._is_stuck = True

    def legal_draft(self, token_ids: Sequence[int], parents: Sequence[int] | None) -> list[int]:
        """Indices, in order, of the draft tokens that are legal after the text and their ancestors."""
        if self.is_stuck:
            return []
        children: dict[int, list[int]] = {}
        for index in range(len(token_ids)):
            children.setdefault(index - 1 if parents is None else parents[index], []).append(index)
        legal: list[int] = []
        self._collect_legal(-1, token_ids, children, legal)
        return sorted(legal)

    @property
    def allows_text(self) -> bool:
        """Whether the guide allows any text at all; asked at the start."""
        return self._can_go_on()

    @property
    def is_finished(self) -> bool:
        """Nothing but the end may follow."""
        if not self._is_active:
            return False
        if self._matcher.is_terminated():
            return True
        return bool(self._matcher.is_completed()) and not self._can_go_on()

    @property
    def is_stuck(self) -> bool:
        """No token is legal and the text must not end here: a guide with a dead end, or one that needs bytes that no
        token of the vocabulary has."""
        if self._is_stuck:
            return True
        if not self._is_active or self._matcher.is_terminated():
            return False
        return not (self._matcher.is_completed() or self._can_go_on())

    def _collect_legal(
        self, parent: int, token_ids: Sequence[int], children: dict[int, list[int]], legal: list[int]
    ) -> None:
        for index in children.get(parent, ()):
            before = self._advance(token_ids[index])
            if before is not None:
                legal.append(index)
                self._collect_legal(index, token_ids, children, legal)
                self._return_to(before)

    def _advance(self, token_id: int) -> _Place | None:
        """Go over a token; gives the way back, or None, and stays, where the token is not legal."""
        if not 0 <= token_id < self._num_token_ids:
            return None
        if self._is_active:
            # xgrammar logs a line for every textless token it is asked about.
            if token_id in self._textless_ids or self._matcher.is_terminated():
                return None
            if not self._matcher.accept_token(token_id):
                return None
            self._is_mask_current = False
            return _Place(1, self._tail, is_active=True)
        if self._thinking is None or token_id in self._stop_ids:
            return None
        tail, guided = self._thinking.after(self._tail, token_id)
        if guided and not self._matcher.accept_string(guided):
            return None
        before = _Place(1 if guided else 0, self._tail, is_active=False)
        self._tail, self._is_active = tail, guided is not None
        self._is_mask_current = False
        return before

    def _return_to(self, place: _Place) -> None:
        if place.num_steps:
            self._matcher.rollback(place.num_steps)
        self._tail, self._is_active = place.tail, place.is_active
        self._is_mask_current = False

    def _illegal_overruns(self) -> list[int]:
        """Tokens that would end the thinking and begin the guided text with something the guide forbids."""
        illegal = []
        for token_id in self._thinking.overrunning_ids(self._tail) if self._thinking is not None else ():
            before = self._advance(token_id)
            if before is None:
                illegal.append(token_id)
            else:
                self._return_to(before)
        return illegal

    def _can_go_on(self) -> bool:
        """Whether a token other than the end may come next."""
        self._fill_mask()
        return bool((self._bitmask.numpy()[0] & self._ordinary_bits).any())

    def _fill_mask(self) -> None:
        if self._is_mask_current:
            return
        if self._matcher.is_terminated():  # it has no next token to speak of
            self._bitmask.zero_()
        else:
            self._matcher.fill_next_token_bitmask(self._bitmask)
        self._is_mask_current = True


def _bits_of_all_but(token_ids: Sequence[int], num_words: int) -> "np.ndarray[Any, np.dtype[np.int32]]":
    """A mask [num_words] with every bit set but those of `token_ids`."""
    bits = np.full(num_words, 0xFFFFFFFF, dtype=np.uint32)
    for token_id in token_ids:
        bits[token_id // 32] &= ~np.uint32(1 << (token_id % 32))
    return bits.view(np.int32)
