"""A drafter whose acceptance the test decides."""

from collections.abc import Callable, Sequence

from specdeploy.runtime.drafters.base import DraftRow


class ScriptedDrafter:
    """Proposes each row's known plain continuation, wrong from a position on that `num_right` decides.

    `texts` maps a prompt to the tokens plain decoding gives it. `num_right(prompt, step)` says how many draft tokens
    of the row's `step`-th draft shall be accepted.
    """

    def __init__(
        self, texts: dict[tuple[int, ...], Sequence[int]], num_right: Callable[[tuple[int, ...], int], int]
    ) -> None:
        self._texts, self._num_right = texts, num_right
        self._steps: dict[int, int] = {}
        self.released: list[int] = []

    def prefill(self, slot: int, token_ids: Sequence[int]) -> None:
        pass

    def propose(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        return [self._draft(row) for row in rows]

    def release(self, slot: int) -> None:
        self._steps.pop(slot, None)
        self.released.append(slot)

    def _draft(self, row: DraftRow) -> list[int]:
        prompt = next(p for p in self._texts if tuple(row.token_ids[: len(p)]) == p)
        num_output = len(row.token_ids) - len(prompt)
        step = self._steps[row.slot] = self._steps.get(row.slot, -1) + 1
        right = list(self._texts[prompt][num_output : num_output + row.draft_len])
        num_right = self._num_right(prompt, step)
        return [token if i < num_right else token ^ 1 for i, token in enumerate(right)]
