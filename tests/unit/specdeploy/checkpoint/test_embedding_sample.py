"""Embeddings of a head beside its target's: the same, its own, or never trained."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from specdeploy.checkpoint.embedding_sample import Likeness, compare_rows, sample_embeddings
from specdeploy.checkpoint.safetensors_header import read_header

RNG = np.random.default_rng(0)
WIDTH = 512


def trained(num_rows: int = 256, seed: int = 1) -> NDArray[Any]:
    """Rows as trained models have them: some directions are stronger than others, rare tokens have other norms."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((num_rows, WIDTH)) * np.exp(0.7 * rng.standard_normal(WIDTH))
    rows: NDArray[Any] = (values * np.exp(0.4 * rng.standard_normal((num_rows, 1))) * 0.02).astype(np.float32)
    return rows


def test_a_copy_in_another_precision_is_the_same() -> None:
    rows = trained()
    assert compare_rows(rows, rows).likeness is Likeness.SAME
    assert compare_rows(rows, rows.astype(np.float16)).likeness is Likeness.SAME


def test_fine_tuned_and_foreign_embeddings_are_different() -> None:
    rows = trained()
    tuned = rows * 1.1 + trained(seed=3) * 0.1
    assert compare_rows(rows, tuned).likeness is Likeness.DIFFERENT
    assert compare_rows(rows, trained(seed=2)).likeness is Likeness.DIFFERENT


@pytest.mark.parametrize("sigma", [1.0, 0.02])
def test_start_values_look_random(sigma: float) -> None:
    random = (RNG.standard_normal((256, WIDTH)) * sigma).astype(np.float32)

    sample = compare_rows(trained(), random)

    assert sample.likeness is Likeness.RANDOM
    assert abs(sample.mean_cosine or 0) < 0.02
    assert "looks random: 0 of 256 sampled rows equal" in sample.describe()


def test_other_widths_have_no_cosine() -> None:
    narrow = (RNG.standard_normal((256, 64)) * 0.02).astype(np.float32)
    assert compare_rows(trained(), narrow).likeness is Likeness.RANDOM
    assert compare_rows(narrow, trained()).mean_cosine is None


def test_values_that_are_no_numbers_are_named() -> None:
    broken = trained()
    broken[3, 4] = np.nan
    assert compare_rows(trained(), broken).likeness is Likeness.BROKEN
    assert "holds NaN or infinity" in compare_rows(broken, trained()).describe()


def test_rows_of_zeros_are_no_random_numbers() -> None:
    assert compare_rows(trained(), np.zeros((256, WIDTH), np.float32)).likeness is Likeness.DIFFERENT


def test_rows_are_read_where_both_have_them(tmp_path: Path) -> None:
    rows = trained(1000)
    save_file({"a": rows, "b": rows[:600]}, tmp_path / "x.safetensors")
    entries = read_header(tmp_path / "x.safetensors")

    sample = sample_embeddings(entries["a"], entries["b"])

    assert (sample.likeness, sample.num_rows) == (Likeness.SAME, 256)
