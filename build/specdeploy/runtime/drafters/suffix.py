"""Suffix lookup: continue the text as it went on after the longest suffix of it that was there before.

The index is a suffix automaton, built token by token (Blumer et al. 1985, "The smallest automaton recognizing the
subwords of a text"), as SAM-Decoding uses it for drafting (Hu et al. 2024, arXiv:2411.10666). A state stands for all
substrings that end at the same places; its `link` is the state of its longest suffix that ends at more places. So the
link of the whole text's state is the longest suffix that occurred before: the match needs no search at all. Text of n
tokens makes at most 2n states and 3n transitions; a token costs amortised constant time.

Against n-grams: matches of any length, so that of two places that agree in the last few tokens the one that agrees
further back is continued.
"""

from collections.abc import Sequence

from specdeploy.runtime.drafters.lookup import LookupDrafter, TextIndex

# A state remembers where it ended last. Every suffix of a match ended there too, and there are as many as the match is
# long when a text repeats one token; beyond this many they keep an older place, which is an occurrence all the same.
_MAX_REFRESHED = 16
_ROOT = 0


class SuffixAutomaton:
    """The substrings of a growing text."""

    __slots__ = ("_ends", "_lengths", "_links", "_min_size", "_next", "_whole", "match_end", "match_size", "num_read")

    def __init__(self, min_size: int) -> None:
        """Matches shorter than `min_size` need not be followed closely: their place may be old."""
        self._min_size = min_size
        self._next: list[dict[int, int]] = [{}]  # per state: token -> state
        self._links = [-1]
        self._lengths = [0]  # of the longest substring of the state
        self._ends = [0]  # where the substrings of the state ended last, as far as it was noted
        self._whole = _ROOT  # state of the whole text
        self.num_read = 0
        self.match_size = 0  # tokens of the longest suffix that occurred before; 0: none did
        self.match_end = 0  # where such an occurrence ended: the index of the token after it

    @property
    def num_states(self) -> int:
        """At most 2n after n tokens."""
        return len(self._links)

    def append(self, token: int) -> None:
        """One more token of the text."""
        self.num_read += 1
        new = self._add_state({}, self.num_read, self.num_read)
        state = self._whole
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = new
            state = self._links[state]
        self._links[new] = _ROOT if state < 0 else self._suffix_state(state, token)
        self._whole = new
        self._note_match(self._links[new])

    def _suffix_state(self, state: int, token: int) -> int:
        """The state of exactly the longest substring of `state` followed by `token`; split off if it has none."""
        long = self._next[state][token]
        if self._lengths[long] == self._lengths[state] + 1:
            return long
        split = self._add_state(self._next[long].copy(), self._lengths[state] + 1, self._ends[long])
        self._links[split] = self._links[long]
        self._links[long] = split
        while state >= 0 and self._next[state].get(token) == long:
            self._next[state][token] = split
            state = self._links[state]
        return split

    def _note_match(self, state: int) -> None:
        self.match_size, self.match_end = self._lengths[state], self._ends[state]
        for _ in range(_MAX_REFRESHED):
            if self._lengths[state] < self._min_size:
                break
            self._ends[state] = self.num_read
            state = self._links[state]

    def _add_state(self, transitions: dict[int, int], length: int, end: int) -> int:
        self._next.append(transitions)
        self._links.append(_ROOT)
        self._lengths.append(length)
        self._ends.append(end)
        return len(self._links) - 1


class _SuffixIndex:
    """A row's automaton, and how much of a match may be copied."""

    __slots__ = ("_automaton", "_max_draft_factor", "_min_size")

    def __init__(self, min_size: int, max_draft_factor: float | None) -> None:
        self._automaton = SuffixAutomaton(min_size)
        self._min_size, self._max_draft_factor = min_size, max_draft_factor

    def read(self, token_ids: Sequence[int], end: int) -> None:
        """Append what is new before `end`."""
        append = self._automaton.append
        for place in range(self._automaton.num_read, end):
            append(token_ids[place])

    def match(self, token_ids: Sequence[int], draft_len: int) -> tuple[int, int]:
        """The end of an earlier occurrence of the longest suffix that has one."""
        self.read(token_ids, len(token_ids))
        size = self._automaton.match_size
        if size < self._min_size:
            return 0, 0
        if self._max_draft_factor is not None:
            draft_len = min(draft_len, int(self._max_draft_factor * size))
        return self._automaton.match_end, draft_len


class SuffixDrafter(LookupDrafter):
    """Drafts from the row's own prompt and output."""

    def __init__(self, *, min_matching_size: int, max_draft_factor: float | None = None) -> None:
        """Matches below `min_matching_size` >= 1 tokens are not continued.

        `max_draft_factor`: a draft is at most this many times as long as its match (SuffixDecoding, Oliaro et al.
        2024, arXiv:2411.04975); None leaves the length to whoever asks.
        """
        super().__init__()
        self._min_size, self._max_draft_factor = min_matching_size, max_draft_factor

    def _new_index(self) -> TextIndex:
        return _SuffixIndex(self._min_size, self._max_draft_factor)
