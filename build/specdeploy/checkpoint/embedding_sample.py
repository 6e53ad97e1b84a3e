"""Are the embeddings of a head the target's, its own, or numbers that were never trained? From 256 rows of each."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdeploy.checkpoint.safetensors_header import TensorEntry, read_rows

NUM_ROWS = 256
# Two unrelated directions in H dimensions have a cosine of about N(0, 1/H): 0.1 is far outside for any real H.
_MAX_CHANCE_COSINE = 0.1
# Untrained rows are drawn from one N(0, sigma): their norms hardly vary and their excess kurtosis is 0. Trained rows
# of published models vary in norm by 10 % and more between rare and frequent tokens.
_MAX_NORM_VARIATION_FACTOR = 2.0
_MAX_EXCESS_KURTOSIS = 0.3


class Likeness(StrEnum):
    """What a sample of a head's embeddings looks like beside the target's."""

    SAME = "same"
    DIFFERENT = "different"
    RANDOM = "looks random"
    BROKEN = "holds NaN or infinity"


@dataclass(frozen=True, slots=True)
class EmbeddingSample:
    """`num_equal` of `num_rows` sampled rows are equal; `mean_cosine` between rows of one id, None for other widths."""

    likeness: Likeness
    num_rows: int
    num_equal: int
    mean_cosine: float | None
    excess_kurtosis: float

    def describe(self) -> str:
        """One line for people."""
        if self.likeness is Likeness.BROKEN:
            return f"one of the two matrices {self.likeness}, seen in {self.num_rows} sampled rows"
        cosine = "widths differ" if self.mean_cosine is None else f"mean cosine {self.mean_cosine:.3f}"
        return (
            f"{self.likeness}: {self.num_equal} of {self.num_rows} sampled rows equal, {cosine}, "
            f"excess kurtosis {self.excess_kurtosis:.2f}"
        )


def sample_embeddings(target: TensorEntry, draft: TensorEntry, num_rows: int = NUM_ROWS) -> EmbeddingSample:
    """Compare rows spread evenly over the ids that both matrices [V, H] have.

    Raises `CheckpointError` where the values are of a dtype that cannot be read (quantised embeddings).
    """
    common = min(target.shape[0], draft.shape[0])
    rows = np.unique(np.linspace(0, common - 1, num_rows).astype(np.int64)).tolist()
    return compare_rows(read_rows(target, rows), read_rows(draft, rows))


def compare_rows(target: NDArray[Any], draft: NDArray[Any]) -> EmbeddingSample:
    """`target` [R, H] and `draft` [R, H'], row by row the same ids."""
    with np.errstate(invalid="ignore"):  # a signalling NaN warns on conversion
        ours, theirs = target.astype(np.float64), draft.astype(np.float64)
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return EmbeddingSample(Likeness.BROKEN, len(theirs), 0, None, 0.0)
    kurtosis = _excess_kurtosis(theirs)
    if ours.shape != theirs.shape:
        likeness = Likeness.RANDOM if _looks_untrained(theirs, kurtosis) else Likeness.DIFFERENT
        return EmbeddingSample(likeness, len(theirs), 0, None, kurtosis)
    # Equal after rounding to 16 bit, so that a copy in another precision is still a copy.
    equal = int(np.isclose(ours, theirs, rtol=1e-2, atol=1e-6).all(axis=1).sum())
    cosine = _mean_cosine(ours, theirs)
    likeness = Likeness.DIFFERENT
    if equal == len(ours):
        likeness = Likeness.SAME
    elif abs(cosine) < _MAX_CHANCE_COSINE and _looks_untrained(theirs, kurtosis):
        likeness = Likeness.RANDOM
    return EmbeddingSample(likeness, len(ours), equal, cosine, kurtosis)


def _mean_cosine(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> float:
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    used = norms > 0  # rows of padding are zero
    return float(((ours * theirs).sum(axis=1)[used] / norms[used]).mean()) if used.any() else 0.0


def _excess_kurtosis(values: NDArray[np.float64]) -> float:
    """0 for a normal distribution, 3 for a Laplace one, -1.2 for a uniform one."""
    centred = values - values.mean()
    variance = float((centred**2).mean())
    return float((centred**4).mean()) / variance**2 - 3.0 if variance > 0 else -3.0


def _looks_untrained(values: NDArray[np.float64], kurtosis: float) -> bool:
    """One normal distribution for every row: norms of H numbers then vary by about 1 / sqrt(2 H)."""
    norms = np.linalg.norm(values, axis=1)
    expected = 1.0 / np.sqrt(2.0 * values.shape[1])
    varies_little = float(norms.std()) <= _MAX_NORM_VARIATION_FACTOR * expected * float(norms.mean())
    return varies_little and abs(kurtosis) <= _MAX_EXCESS_KURTOSIS
