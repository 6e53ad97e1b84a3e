"""Measured times made to never fall where the work grows: noise and tile edges of single cells are averaged away."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def rising(values: Floats, axis: int) -> Floats:
    """The rising sequence nearest to `values` along `axis` in least squares (isotonic regression, equal weights).

    By the min-max formula of Robertson, Wright and Dykstra, Order Restricted Statistical Inference (1988), 1.4:
    result[i] = max over a <= i of min over b >= i of mean(values[a..b]). Sequences that rise stay as they are, and what
    rises along another axis still does afterwards.
    """
    moved = np.moveaxis(values, axis, -1)
    size = moved.shape[-1]
    sums = np.concatenate([np.zeros((*moved.shape[:-1], 1)), np.cumsum(moved, axis=-1)], axis=-1)
    first, last = np.arange(size)[:, None], np.arange(size)[None, :]
    lengths = np.maximum(last - first + 1, 1)
    means = np.where(last >= first, (sums[..., None, 1:] - sums[..., :-1, None]) / lengths, np.inf)
    lowest = np.minimum.accumulate(means[..., ::-1], axis=-1)[..., ::-1]
    result = np.where(last >= first, lowest, -np.inf).max(axis=-2)
    return np.moveaxis(result, -1, axis)


def without_peaks(values: Floats) -> Floats:
    """`values` [N, K, M] (logarithms) without what single layers show above the usual excess at that size.

    Excess: over the least value at this or a larger size. The median excess of all layers is the kernel's own, such as
    a tile half filled; what a layer has more is a disturbed measurement and cut.
    """
    envelope = np.minimum.accumulate(values[..., ::-1], axis=-1)[..., ::-1]
    usual = np.median(values - envelope, axis=(0, 1))
    return np.minimum(values, envelope + usual)
