"""A rising curve of step seconds over the tokens of a step: linear between its points, and how one is fitted.

Processors have kinks both ways: the second token needs another kernel than the first, a full tile is cheap to enter
and dear to leave. So pieces may become steeper and flatter, only never fall.
"""

import bisect
import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Points nearer to each other than this say the same; more of them would follow the noise.
_MIN_RATIO = 1.2
_MAX_POINTS = 24


def curve_points(tokens: Sequence[int]) -> tuple[int, ...]:
    """Where the curve of observations with so many tokens shall bend: the smallest and largest, and between them such
    that each is at least a fifth above the one before."""
    distinct = sorted(set(tokens))
    ratio = max(_MIN_RATIO, (distinct[-1] / distinct[0]) ** (1 / _MAX_POINTS))
    points = distinct[:1]
    for count in distinct[1:]:
        if count >= ratio * points[-1]:
            points.append(count)
    if points[-1] != distinct[-1]:
        points[max(1, len(points) - 1) :] = distinct[-1:]
    return tuple(points)


def captured(tokens: float, sizes: Sequence[int]) -> float:
    """Tokens that a step is computed for: the next of the rising `sizes`, as they are beyond the last."""
    index = bisect.bisect_left(sizes, tokens)
    return tokens if index == len(sizes) else float(sizes[index])


def ramps(tokens: float, points: Sequence[int]) -> list[float]:
    """Features [n] of a step with so many tokens: 1, then how far it has come through each piece of the curve.

    Coefficients that are not negative make a rising curve: the value at the first point, then each piece's rise.
    Below the first point it is constant, beyond the last it goes on as in the last piece.
    """
    features = [1.0]
    for index, (low, high) in enumerate(itertools.pairwise(points)):
        share = max((tokens - low) / (high - low), 0.0)
        features.append(share if index == len(points) - 2 else min(share, 1.0))
    return features


def curve_of(coefficients: NDArray[np.float64]) -> tuple[float, ...]:
    """Seconds at the points, from the coefficients [n] of `ramps`."""
    return tuple(float(value) for value in np.cumsum(coefficients))


def curve_seconds(tokens: float, points: Sequence[int], seconds: Sequence[float]) -> float:
    """The curve at `tokens`."""
    if len(points) == 1 or tokens <= points[0]:
        return seconds[0]
    above = min(bisect.bisect_left(points, tokens), len(points) - 1)
    low, high = points[above - 1], points[above]
    return seconds[above - 1] + (seconds[above] - seconds[above - 1]) * (tokens - low) / (high - low)
