"""Steps drawn at random for many requests at once: each step emits one token more than it accepts."""

import numpy as np
from numpy.typing import NDArray

_CHUNK_TOKENS = 1 << 18  # drawn at once: chances and sums stay in the processor's cache


def draw_steps(needed: NDArray[np.int64], accepted: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Steps [N] until at least `needed` [N] tokens were emitted; 0 where none is needed.

    `accepted` [C, K]: chance that a step of class c accepts at least 1, 2, .. tokens. Each request gets a class at
    random and keeps it. As many numbers are drawn as tokens are needed, whatever `accepted` says: the same generator
    gives the same class and the same number to the same step for any K.
    """
    class_of = rng.integers(len(accepted), size=len(needed), dtype=np.uint8)
    steps = np.zeros(len(needed), np.int64)
    for number, survivals in enumerate(accepted):
        members = np.flatnonzero((class_of == number) & (needed > 0))
        for chunk in _chunks(members, needed):
            steps[chunk] = _steps_of_chunk(needed[chunk], survivals, rng)
    return steps


def _chunks(members: NDArray[np.int64], needed: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """`members` in pieces of at most about `_CHUNK_TOKENS` needed tokens; at least one request each."""
    if not len(members):
        return []
    piece_of = np.cumsum(needed[members]) // _CHUNK_TOKENS
    return np.split(members, np.flatnonzero(np.diff(piece_of)) + 1)


def _steps_of_chunk(
    needed: NDArray[np.int64], survivals: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """One class. A request takes no more steps than it needs tokens, so that many lie behind one another for each."""
    chance = rng.random(int(needed.sum()), dtype=np.float32)
    emitted = np.ones(len(chance), np.int16)
    for survival in survivals.astype(np.float32):
        if survival <= 0:
            break
        emitted += chance < survival
    total = np.cumsum(emitted, dtype=np.int64)
    ends = np.cumsum(needed)
    starts = ends - needed
    before = np.where(starts > 0, total[starts - 1], 0)
    # Sums rise by at least 1 a step, so each request's last step is found among its own.
    return np.searchsorted(total, before + needed, side="left") - starts + 1
