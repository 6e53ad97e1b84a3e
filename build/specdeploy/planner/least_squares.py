"""Least squares whose coefficients keep within bounds. Columns are brought to one size before they are solved for."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear, nnls


def non_negative(equations: Sequence[tuple[list[float], float, float]]) -> NDArray[np.float64]:
    """Least squares of scale x (features . coefficients - seconds); columns are brought to one size first."""
    scales = np.array([scale for _, _, scale in equations])
    matrix = np.array([features for features, _, _ in equations]) * scales[:, None]
    seconds = np.array([value for _, value, _ in equations]) * scales
    sizes = np.abs(matrix).max(axis=0)
    sizes[sizes == 0] = 1.0
    solution, _ = nnls(matrix / sizes, seconds)
    found: NDArray[np.float64] = solution / sizes
    return found


def bounded(
    matrix: NDArray[np.float64], seconds: NDArray[np.float64], lower: list[float], upper: list[float]
) -> list[float]:
    """Least squares within bounds; a coefficient whose bounds are one is that one."""
    fixed = [low if low == high else 0.0 for low, high in zip(lower, upper, strict=True)]
    free = [index for index, (low, high) in enumerate(zip(lower, upper, strict=True)) if low < high]
    sizes = np.abs(matrix[:, free]).max(axis=0)
    sizes[sizes == 0] = 1.0
    bounds = np.array([lower[index] for index in free]) * sizes, np.array([upper[index] for index in free]) * sizes
    solution = lsq_linear(matrix[:, free] / sizes, seconds - matrix @ np.array(fixed), bounds, method="bvls").x / sizes
    for index, value in zip(free, solution.tolist(), strict=True):
        fixed[index] = min(max(value, lower[index]), upper[index])
    return fixed
