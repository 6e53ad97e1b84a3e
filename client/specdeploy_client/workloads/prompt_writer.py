"""Prompts of exactly the tokens that were asked for, cut from a corpus and counted by the target's tokenizer.

A prompt is a run of the corpus's words, cut where the next word would be too much; the rest is filled with the words
that come next and still fit. Every prompt is counted as the server will count it, chat template included, and made
again until it is exact. Prompts begin at different words: what a prefix cache could share is the template alone for as
long as the corpus has words that begin with a token no earlier prompt began with.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from specdeploy.errors import ClientError
from specdeploy_client.workloads.base import derive_rng
from specdeploy_client.workloads.corpus import TextKind, Words, load_words
from specdeploy_client.workloads.render import Rendering

_MAX_CORRECTIONS = 24
_MAX_WORD_TOKENS = 16  # prompts with room for more may begin with any word
_MAX_CACHED_BLOCKS = 8192
CountTokens = Callable[[str], int]


class PromptWriter:
    """Makes prompts of one kind of text for one way of rendering. Raises `ClientError` without a tokenizer."""

    def __init__(self, rendering: Rendering, kind: TextKind, seed: int, words: Words | None = None) -> None:
        """`words` None: the corpus of `kind`."""
        self.rendering = rendering
        self.kind = kind
        self._seed = seed
        self._counter = rendering.require_counter("prompts of an exact length")
        self._words = load_words(kind) if words is None else words
        self._starts_within = lru_cache(maxsize=None)(self._order_starts)
        self._block = lru_cache(maxsize=_MAX_CACHED_BLOCKS)(self._write_block)

    @property
    def description(self) -> str:
        """For the record of a run."""
        return f"{self.kind} of the Python library (sha256 {self._words.digest})"

    def num_distinct(self, num_tokens: int) -> int:
        """How many different prompts of `num_tokens` tokens there are at least: short ones differ by their first token,
        longer ones by the word they begin at."""
        budget = num_tokens - self.rendering.frame.num_frame_tokens
        starts = self._starts_within(min(budget, _MAX_WORD_TOKENS), self._before_text)
        return starts.num_first_tokens if budget < _MAX_WORD_TOKENS else len(starts.order)

    @property
    def least_tokens(self) -> int:
        """Tokens of the shortest rendered prompt."""
        return self.rendering.frame.least_tokens

    def write(self, num_tokens: int, serial: int) -> str:
        """A user turn whose rendered prompt has `num_tokens` tokens; number `serial` of a sequence without repeats.

        Raises `ClientError` for a length below `least_tokens`, or where the tokenizer lets none be made.
        """
        if num_tokens < self.least_tokens:
            raise ClientError(self.unreachable_reason(num_tokens))
        budget = num_tokens - self.rendering.frame.num_frame_tokens
        return self._fit(self._start(serial, budget), budget, num_tokens, self._count_rendered)

    def write_turn(self, num_tokens: int, serial: int) -> str:
        """A user turn of `num_tokens` tokens without the template, for a conversation that goes on."""
        return self._fit(self._start(serial, num_tokens), num_tokens, num_tokens, self._count_plain)

    def write_blocks(self, num_tokens: int, block_ranks: tuple[int, ...], block_tokens: int) -> str:
        """A user turn whose rendered prompt has `num_tokens` tokens in blocks of `block_tokens`, the template included.

        Prompts that begin with the same `block_ranks` have the same tokens in these blocks. `block_ranks` [B]: one
        number per block; B must be the number of blocks that `num_tokens` fills, the last one partly.
        """
        if num_tokens < self.least_tokens:
            raise ClientError(self.unreachable_reason(num_tokens))
        frame = self.rendering.frame
        num_tail = frame.num_frame_tokens - frame.num_head_tokens
        ends = [min((number + 1) * block_tokens, num_tokens - num_tail) for number in range(len(block_ranks))]
        begins = [max(number * block_tokens, frame.num_head_tokens) for number in range(len(block_ranks))]
        sizes = [max(0, end - begin) for begin, end in zip(begins, ends, strict=True)]
        # Blocks that the template fills have no text: at the begin those of its head, at the end those of its tail.
        *filled, last = (number for number, size in enumerate(sizes) if size)
        shared = "".join(self._block(block_ranks[n], sizes[n], not at) for at, n in enumerate(filled))
        separator = " " if shared else ""
        start = self._start(block_ranks[last], sizes[last], separator or None)
        text = self._fit(start, sizes[last], num_tokens, lambda piece: self._count_rendered(shared + separator + piece))
        return shared + separator + text

    def unreachable_reason(self, num_tokens: int) -> str:
        """Why no prompt has `num_tokens` tokens."""
        template = "the chat template alone takes" if self.rendering.template else "the tokenizer alone adds"
        return (
            f"a prompt of {num_tokens} tokens cannot be made: {template} {self.least_tokens - 1}. "
            f"The shortest has {self.least_tokens}"
        )

    def _write_block(self, rank: int, num_tokens: int, is_first: bool) -> str:
        """Block number `rank`: text of exactly `num_tokens` tokens after the head of a prompt or another block."""
        separator = "" if is_first else " "
        measure = self._count_after_head if is_first else self._count_after_word
        start = self._start(rank, num_tokens, separator or None)
        return separator + self._fit(start, num_tokens, num_tokens, measure)

    def _count_rendered(self, text: str) -> int:
        return self._counter.count(self.rendering.prompt(text))

    def _count_plain(self, text: str) -> int:
        return len(self._counter.plain_ids(text))

    def _count_after_word(self, text: str) -> int:
        return self._count_plain(f" {text}")

    def _count_after_head(self, text: str) -> int:
        head = self.rendering.frame.head
        return self._count_plain(head + text) - self._count_plain(head.rstrip(" "))

    def _fit(self, start: int, budget: int, want: int, measure: CountTokens) -> str:
        """Words from `start` on for which `measure` says `want`. `budget`: tokens to try first.

        Raises `ClientError` when corrections lead nowhere: the tokenizer then joins words.
        """
        for _ in range(_MAX_CORRECTIONS):
            pieces, end = self._cut(start, budget)
            missing = want - measure(" ".join(pieces))
            if missing < 0:
                budget += missing
                continue
            text = " ".join([*pieces, *self._fillers(end, missing)])
            if missing == 0 or measure(text) == want:
                return text
            budget -= 1
        raise ClientError(
            f"no prompt of exactly {want} tokens could be made of {self.kind} with this tokenizer. "
            "Ask for another length, or use a prompt file with --input-file"
        )

    def _cut(self, start: int, budget: int) -> tuple[list[str], int]:
        """Runs of words from `start` on with at most `budget` tokens, and the number of the word after them.

        The first word is always there: a prompt is told from others by it. The corpus begins again where it ends.
        """
        words, sums = self._words, self._token_sums
        pieces: list[str] = []
        while True:
            before = int(sums[start - 1]) if start else 0
            end = int(np.searchsorted(sums, before + budget, side="right"))  # the first word that is too much
            end = max(end, start + 1) if not pieces else end
            if end > start:
                pieces.append(words.text[words.begins[start] : words.ends[end - 1]])
                budget -= int(sums[end - 1]) - before
            if budget <= 0 or end < len(sums):
                return pieces, end
            start = 0

    def _fillers(self, first: int, count: int) -> list[str]:
        """The next `count` words from `first` on that are one token each."""
        singles = self._single_token_words
        begin = int(np.searchsorted(singles, first))
        return [self._words.word(int(singles[(begin + number) % len(singles)])) for number in range(count)]

    def _start(self, serial: int, budget: int, before: str | None = None) -> int:
        """The word that prompt or block number `serial` begins with; it has at most `budget` tokens after the character
        `before` (None: the last one of the template's head)."""
        order = self._starts_within(
            min(budget, _MAX_WORD_TOKENS), self._before_text if before is None else before
        ).order
        return int(order[serial % len(order)])

    @property
    def _before_text(self) -> str:
        return self.rendering.frame.head[-1:]

    @cached_property
    def _token_sums(self) -> npt.NDArray[np.int64]:
        """[W] tokens of the corpus up to the end of each word."""
        encoding = self._counter.tokenizer.encode(self._words.text, add_special_tokens=False)
        token_ends = np.maximum.accumulate(np.array([end for _, end in encoding.offsets], dtype=np.int64))
        return np.searchsorted(token_ends, self._words.ends, side="right").astype(np.int64)

    @cached_property
    def _single_token_words(self) -> npt.NDArray[np.int64]:
        """Words that are one token after a blank, in the order of the corpus."""
        candidates = np.flatnonzero(self._words.is_start)
        singles: npt.NDArray[np.int64] = candidates[self._spellings(candidates, " ").num_tokens == 1]
        if len(singles) == 0:
            raise ClientError("the tokenizer has no word of one token, so that no prompt can be filled up to a length")
        return singles

    def _order_starts(self, max_tokens: int, before: str) -> "_Starts":
        """Words where prompts begin, after the character `before`, in order: one for every token that a prompt can
        begin with, then a second one for each, and so on; within such a round sentences and lines of code before other
        words."""
        words = self._words
        candidates = derive_rng(self._seed, "starts", self.kind).permutation(np.flatnonzero(words.is_start))
        candidates = candidates[np.argsort(~words.is_natural_start[candidates], kind="stable")]
        spelled = self._spellings(candidates, before)
        fits = spelled.num_tokens <= max_tokens
        candidates, first_ids = candidates[fits], spelled.first_ids[fits]
        if len(candidates) == 0:
            raise ClientError(f"no word of {self.kind} has at most {max_tokens} tokens. Ask for a longer prompt")
        by_id = np.argsort(first_ids, kind="stable")
        is_new = np.concatenate(([True], first_ids[by_id][1:] != first_ids[by_id][:-1]))
        group_begin = np.maximum.accumulate(np.where(is_new, np.arange(len(by_id)), 0))
        rounds = np.empty(len(by_id), dtype=np.int64)
        rounds[by_id] = np.arange(len(by_id)) - group_begin
        return _Starts(candidates[np.argsort(rounds, kind="stable")], int(is_new.sum()))

    def _spellings(self, indices: npt.NDArray[np.int64], before: str) -> "_Spellings":
        """How the tokenizer spells the words `indices` after the character `before`."""
        texts, which = np.unique([self._words.word(int(index)) for index in indices], return_inverse=True)
        encodings = self._counter.tokenizer.encode_batch([before + text for text in texts], add_special_tokens=False)
        # A blank belongs to the word's token; anything else has tokens of its own.
        num_before = 0 if before == " " else len(self._counter.plain_ids(before))
        ids = [encoding.ids[num_before:] or encoding.ids[-1:] for encoding in encodings]
        return _Spellings(
            first_ids=np.array([spelled[0] for spelled in ids], dtype=np.int64)[which],
            num_tokens=np.array([len(spelled) for spelled in ids], dtype=np.int64)[which],
        )


@dataclass(frozen=True, slots=True)
class _Starts:
    """[S] words where prompts begin, in order; the first `num_first_tokens` of them begin with different tokens."""

    order: npt.NDArray[np.int64]
    num_first_tokens: int


@dataclass(frozen=True, slots=True)
class _Spellings:
    """[N] the first token of each word and how many it has."""

    first_ids: npt.NDArray[np.int64]
    num_tokens: npt.NDArray[np.int64]
