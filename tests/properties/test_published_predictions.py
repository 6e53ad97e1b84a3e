"""The planner against published measurements: errors on held-out numbers never exceed the recorded ones.

The numbers below were printed by `python benchmarks/planner/published.py`. A change that predicts worse fails here;
one that predicts better may lower them. They are never raised to let a change pass, and no cell may leave its part.
"""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from specdeploy.planner_contract import Calibration

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "benchmarks" / "planner"
CALIBRATIONS = REPOSITORY / "configs" / "calibrations"

# Series: cells fitted to, cells held out, median and worst relative error of those held out.
RECORDED = {
    "dspark-verify": (15, 73, 0.028, 0.145),
    "dspark-draft": (9, 26, 0.039, 0.121),
    "vllm-h100-8b": (7, 6, 0.012, 0.031),
    "trtllm-r1-mtp": (3, 3, 0.009, 0.034),
    "sglang-h100-8b": (9, 10, 0.068, 0.183),
    "sglang-h100-qwen3-8b": (0, 1, 0.155, 0.155),
    "vllm-a100-qwen3-8b": (29, 24, 0.009, 0.043),
    "vllm-a100-8b": (8, 8, 0.027, 0.081),
    "vllm-h100-gpt-oss-120b": (3, 2, 0.031, 0.056),
    "magicdec-7b": (2, 2, 0.058, 0.063),
    "magicdec-7b-h100": (0, 3, 0.138, 0.232),
    "v4-pro": (18, 18, 0.040, 0.077),
    "vllm-a100-qwen3-30b-moe": (15, 9, 0.007, 0.042),
    "vllm-a100-gemma-31b": (15, 9, 0.014, 0.022),
    "vllm-b200-gpt-oss-20b": (21, 42, 0.085, 0.305),
    "sglang-h200-30b-moe": (8, 8, 0.078, 0.294),
    "vllm-mi355x-kimi-k2.5": (9, 6, 0.019, 0.061),
    "vllm-mi355x-minimax-m2.5": (6, 4, 0.019, 0.038),
    "tilert-b200-glm-5.1": (6, 8, 0.108, 0.279),
    "gpt-fast-a100": (4, 10, 0.033, 0.318),
    "trtllm-h200": (1, 1, 0.048, 0.048),
}
TOLERANCE = 1.05  # another machine's least squares
MAX_SIGN_ERRORS = 1
MAX_MISSED_CROSSOVERS = 1
MAX_MISSED_LENGTHS = 1


@pytest.fixture(scope="module")
def scripts() -> Iterator[Any]:
    """Modules of the benchmark by name; they import each other by bare name and leave nothing behind."""
    before = set(sys.modules)
    sys.path.insert(0, str(FOLDER))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    sys.path.remove(str(FOLDER))
    for name in (set(sys.modules) - before) & {path.stem for path in FOLDER.glob("*.py")}:
        del sys.modules[name]


@pytest.fixture(scope="module")
def results(scripts: Any) -> Any:
    return scripts("results").predict_everything()


def worse_than_recorded(scores: Any) -> list[str]:
    found = []
    for score in scores:
        _, _, median, worst = RECORDED[score.series]
        if score.held_out_median > median * TOLERANCE or score.held_out_worst > worst * TOLERANCE:
            found.append(f"{score.series}: median {score.held_out_median:.3f}, worst {score.held_out_worst:.3f}")
    return found


def test_no_series_is_predicted_worse_than_recorded(results: Any) -> None:
    assert worse_than_recorded(results.scores) == []


def test_every_cell_stays_in_its_part_of_the_split(results: Any) -> None:
    counts = {score.series: (score.num_fit, score.num_held_out) for score in results.scores}

    assert counts == {series: recorded[:2] for series, recorded in RECORDED.items()}
    assert all(exclusion.reason for exclusion in results.exclusions)


def test_decisions_are_as_right_as_recorded(results: Any) -> None:
    signs = [error for score in results.scores for error in score.sign_errors]
    crossovers = [one for score in results.scores for one in score.crossovers]
    lengths = [one for score in results.scores for one in score.best_lengths]

    assert len(signs) <= MAX_SIGN_ERRORS, signs
    assert sum(one.doublings > 1 for one in crossovers) <= MAX_MISSED_CROSSOVERS
    assert sum(bool(one.published) != bool(one.predicted) for one in crossovers) == 0
    assert sum(one.distance > 1 for one in lengths) <= MAX_MISSED_LENGTHS


def test_kept_calibrations_are_what_the_fit_gives(results: Any, scripts: Any) -> None:
    texts = scripts("calibration_texts")
    for fitted in results.calibrations:
        path = CALIBRATIONS / texts.file_name(fitted)
        kept = Calibration.model_validate_json(path.read_text(encoding="utf-8"))
        fresh = texts.rounded(fitted)

        remedy = f"{path.name}: run `python benchmarks/planner/published.py --write`"
        assert kept.model_dump(exclude={"overheads", "residuals", "median_relative_error", "p90_relative_error"}) == (
            fresh.model_dump(exclude={"overheads", "residuals", "median_relative_error", "p90_relative_error"})
        ), remedy
        assert kept.overheads is not None
        for name, value in kept.overheads.model_dump().items():
            assert value == pytest.approx(getattr(fresh.overheads, name), rel=0.01, abs=2e-6), (remedy, name)
        for one, other in zip(kept.residuals, fresh.residuals, strict=True):
            assert one.predicted_s == pytest.approx(other.predicted_s, rel=0.01), remedy


@pytest.mark.parametrize("damage", ["verifying is free", "drafting costs half", "a fifth faster"])
def test_a_worse_cost_model_is_noticed(
    damage: str, results: Any, scripts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicting, evaluating = scripts("predicting"), scripts("evaluating")
    honest = predicting.step_seconds

    def damaged(times: Any, cell: Any, draft_len: int) -> float:
        seconds: float = honest(times, cell, draft_len)
        if damage == "a fifth faster":
            return 0.8 * seconds
        plain: float = honest(times, cell, 0)
        if damage == "verifying is free":
            return plain
        return plain + 0.5 * (seconds - plain)

    monkeypatch.setattr(predicting, "step_seconds", damaged)
    monkeypatch.setattr(evaluating, "step_seconds", damaged)
    setups, fitting, cells = scripts("setups"), scripts("fitting"), scripts("cells")
    setup = next(one for one in setups.SETUPS if one.series == "vllm-h100-8b")
    own = [cell for cell in cells.read_cells() if cell.series == setup.series]
    arms = {arm: one.arm for arm, one in fitting.fit_series(setup, own).items()}

    assert worse_than_recorded([evaluating.score_series(setup.series, setup.title, setup.kind, own, arms)])


def test_crossings_and_distances(scripts: Any) -> None:
    scoring = scripts("scoring")

    assert scoring.crossing([(1, 2.0), (4, 1.5), (16, 1.0)]) == pytest.approx(16)
    assert scoring.crossing([(1, 1.5), (4, 0.5)]) == pytest.approx(2)
    assert scoring.crossing([(2, 0.9), (4, 1.1)]) == 2
    assert scoring.crossing([(1, 1.5), (64, 1.1)]) is None
    assert scoring.Crossover("", 16, 32, 64).doublings == 1
    assert scoring.Crossover("", None, 16, 64).doublings == 2
    assert scoring.Crossover("", None, None, 64).doublings == 0
    assert scoring.is_sign_error(1.2, 0.9)
    assert not scoring.is_sign_error(1.01, 0.99)  # within the noise of 1
    assert scoring.BestLength("", 5, 3, (1, 3, 5)).distance == 1
