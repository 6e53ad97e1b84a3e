"""Isotonic regression and the cutting of peaks."""

import numpy as np
import pytest

from specdeploy.planner.monotone import rising, without_peaks


def test_what_rises_stays() -> None:
    values = np.array([1.0, 1.0, 2.0, 5.0])
    assert rising(values, 0) == pytest.approx(values)


def test_what_falls_is_pooled_to_its_mean() -> None:
    assert rising(np.array([1.0, 4.0, 2.0, 3.0, 9.0]), 0) == pytest.approx([1, 3, 3, 3, 9])
    assert rising(np.array([3.0, 2.0, 1.0]), 0) == pytest.approx([2, 2, 2])


def test_along_one_axis_it_keeps_the_order_along_the_other() -> None:
    values = np.random.default_rng(0).normal(size=(7, 9))
    twice = rising(rising(values, 1), 0)
    assert (np.diff(twice, axis=0) >= -1e-12).all()
    assert (np.diff(twice, axis=1) >= -1e-12).all()


def test_no_rising_sequence_is_nearer() -> None:
    generator = np.random.default_rng(1)
    values = generator.normal(size=12)
    fitted = rising(values, 0)
    for _ in range(200):
        other = np.sort(fitted + generator.normal(scale=0.1, size=12))
        assert np.sum((fitted - values) ** 2) <= np.sum((other - values) ** 2) + 1e-12


def test_a_peak_of_one_layer_is_cut_and_one_of_all_stays() -> None:
    steady = np.zeros((3, 2, 4))
    steady[..., 2] = 0.2  # every layer is slower at the third size: a tile edge
    disturbed = steady.copy()
    disturbed[1, 1, 1] = 0.7
    assert without_peaks(disturbed) == pytest.approx(steady)
