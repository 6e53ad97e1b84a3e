"""Drafters whose acceptance the test decides."""

import random
from collections.abc import Callable, Sequence

import torch

from specdeploy.runtime.drafters.base import Draft, DraftRow, Observation
from specdeploy.runtime.sampling import draw_index, uniform_at


class QuietDrafter:
    """The parts of the protocol a test does not care about."""

    hidden_layers: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.released: list[int] = []

    def max_draft_tokens(self, draft_len: int) -> int:
        return draft_len

    def observe(self, observations: Sequence[Observation]) -> None:
        pass

    def release(self, slot: int) -> None:
        self.released.append(slot)


class ScriptedDrafter(QuietDrafter):
    """Proposes each row's known plain continuation, wrong from a position on that `num_right` decides.

    `texts` maps a prompt to the tokens plain decoding gives it. `num_right(prompt, step)` says how many draft tokens
    of the row's `step`-th draft shall be accepted.
    """

    def __init__(
        self, texts: dict[tuple[int, ...], Sequence[int]], num_right: Callable[[tuple[int, ...], int], int]
    ) -> None:
        super().__init__()
        self._texts, self._num_right = texts, num_right
        self._steps: dict[int, int] = {}

    def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
        return [self._draft(row) for row in rows]

    def release(self, slot: int) -> None:
        super().release(slot)
        self._steps.pop(slot, None)

    def _draft(self, row: DraftRow) -> Draft:
        prompt = next(p for p in self._texts if tuple(row.token_ids[: len(p)]) == p)
        num_output = len(row.token_ids) - len(prompt)
        step = self._steps[row.slot] = self._steps.get(row.slot, -1) + 1
        right = list(self._texts[prompt][num_output : num_output + row.draft_len])
        return self._shaped(right, self._num_right(prompt, step))

    def _shaped(self, right: Sequence[int], num_right: int) -> Draft:
        return Draft(tuple(token if i < num_right else token ^ 1 for i, token in enumerate(right)))


class ScriptedTreeDrafter(ScriptedDrafter):
    """The same as a tree: every depth has `num_wrong` wrong tokens, and the right one after them while `num_right`
    allows, so that the accepted path is never the first tokens of the draft. One wrong token has a child too."""

    def __init__(
        self,
        texts: dict[tuple[int, ...], Sequence[int]],
        num_right: Callable[[tuple[int, ...], int], int],
        *,
        num_wrong: int = 2,
    ) -> None:
        super().__init__(texts, num_right)
        self._num_wrong = num_wrong

    def max_draft_tokens(self, draft_len: int) -> int:
        return draft_len * (self._num_wrong + 2)

    def _shaped(self, right: Sequence[int], num_right: int) -> Draft:
        token_ids: list[int] = []
        parents: list[int] = []
        on_path = -1
        for depth, token in enumerate(right[: num_right + 1]):
            first = len(token_ids)
            token_ids += [token ^ (1 << i) for i in range(self._num_wrong)]
            parents += [on_path] * self._num_wrong
            if self._num_wrong and depth + 1 < len(right):
                token_ids.append(right[depth + 1])  # the right token below a wrong one must not be taken
                parents.append(first)
            if depth < num_right:
                on_path_next = len(token_ids)
                token_ids.append(token)
                parents.append(on_path)
                on_path = on_path_next
        return Draft(tuple(token_ids), tuple(parents))


class SampledDrafter(QuietDrafter):
    """Draws chains from `probs_of(text)`; point masses where the row may not be drafted for at random."""

    def __init__(self, probs_of: Callable[[Sequence[int]], torch.Tensor]) -> None:
        super().__init__()
        self._probs_of = probs_of

    def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
        return [self._draft(row) for row in rows]

    def _draft(self, row: DraftRow) -> Draft:
        text = list(row.token_ids)
        probs = []
        for index in range(row.draft_len):
            probs.append(self._probs_of(text))
            if row.sampling is None:
                text.append(int(probs[-1].argmax()))
            else:
                uniform = uniform_at(row.sampling.seed, row.num_output + index, "draft")
                text.append(draw_index(probs[-1], uniform))
        drafted = tuple(text[len(row.token_ids) :])
        return Draft(drafted, None, None if row.sampling is None else torch.stack(probs))


class CarelessDrafter(QuietDrafter):
    """Anything a drafter may come up with: right and wrong chains and trees, too deep ones, ids that do not exist.

    `texts` are prompts with their plain continuations. What is drafted depends on `seed`, the slot and the text, so
    that a run can be repeated.
    """

    hidden_layers = (0,)

    def __init__(self, texts: Sequence[Sequence[int]], *, seed: int, vocab_size: int) -> None:
        super().__init__()
        self._texts, self._seed, self._vocab_size = texts, seed, vocab_size

    def max_draft_tokens(self, draft_len: int) -> int:
        return 3 * draft_len

    def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
        return [self._draft(row, random.Random(f"{self._seed} {row.slot} {len(row.token_ids)}")) for row in rows]

    def _draft(self, row: DraftRow, rng: random.Random) -> Draft:
        num_tokens = len(row.token_ids)
        right = next(text[num_tokens:] for text in self._texts if list(text[:num_tokens]) == row.token_ids)
        length = rng.randrange(row.draft_len + 3)
        chain = [self._token(right, depth, rng) for depth in range(length)]
        if rng.random() < 0.5:
            return Draft(tuple(chain))
        token_ids: list[int] = []
        parents: list[int] = []
        above = [-1]
        for depth in range(length):
            nodes = []
            for token in {self._token(right, depth, rng) for _ in range(rng.randrange(1, 4))}:
                nodes.append(len(token_ids))
                token_ids.append(token)
                parents.append(rng.choice(above))
            above = nodes
        return Draft(tuple(token_ids), tuple(parents))

    def _token(self, right: Sequence[int], depth: int, rng: random.Random) -> int:
        if depth < len(right) and rng.random() < 0.7:
            return right[depth]
        return rng.randrange(self._vocab_size + 2)
