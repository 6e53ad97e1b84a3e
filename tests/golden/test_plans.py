"""What `plan` says of shipped TensorRT-LLM deployments; `make golden` rewrites it.

tests/golden/plans/<deployment>.txt: the screen, and the numbers of every level. Shapes are the published ones,
acceptance and overheads those that are shipped: nothing depends on the machine. Lane torch is planned from step times
measured on one, and has none here.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.shipped_checkpoints import use_hub_cache
from specdeploy.commands.plan_console import render_plan
from specdeploy.commands.plan_reading import PlanFolders, PlanRequest, read_plan_inputs
from specdeploy.config.load import list_deployments, load_deployment
from specdeploy.contract import Lane
from specdeploy.planner.decide import decide
from specdeploy.planner.plan_inputs import PlanInputs, SimulationEffort
from specdeploy.planner_contract import Estimate, PlannedSegment, PlanReport, PlanVerdict

GOLDEN = Path(__file__).parent / "plans"
CONFIGS = Path(__file__).parents[2] / "configs"
REWRITE = "SPECDEPLOY_REWRITE_GOLDEN"
SHIPPED = [name for name in list_deployments(CONFIGS) if load_deployment(name, CONFIGS).config.lane is not Lane.TORCH]
# A head, a tree; and the device and engine that a pair was measured on. The others are planned
# with few requests, and only their verdict is looked at.
CASES: dict[str, tuple[str, PlanRequest]] = {
    "llama-3-1-8b-eagle3": ("llama-3-1-8b-eagle3", PlanRequest()),
    "vicuna-13b-medusa": ("vicuna-13b-medusa", PlanRequest()),
    "llama-3-1-8b-eagle3-h100-sglang": (
        "llama-3-1-8b-eagle3",
        PlanRequest(
            hardware="h100-sxm",
            calibration=CONFIGS / "calibrations" / "sglang-h100-eagle3.calibration.json",
        ),
    ),
}
# Goldens look at numbers: enough requests that they mean something, fewer than `plan` takes.
FEWER = SimulationEffort(per_client=2, steady=32, own=128)
FEWEST = SimulationEffort(per_client=2, steady=4, own=16)


def inputs_of(name: str, request: PlanRequest, machine: Path) -> PlanInputs:
    folders = PlanFolders(CONFIGS, machine / "engines", machine / "artifacts")
    return read_plan_inputs(load_deployment(name, CONFIGS), request, folders)


def text_of(case: str, machine: Path) -> str:
    inputs = replace(inputs_of(*CASES[case], machine), effort=FEWER)
    report = decide(inputs)
    return render_plan(report) + "\n" + "\n".join(key_numbers(report)) + "\n"


def key_numbers(report: PlanReport) -> Iterator[str]:
    yield "load  K  best K  e2e                 TPOT                TTFT                tokens/step  verified"
    for segment in report.segments:
        yield f"{segment.segment}: {segment.mean_input_tokens:.0f} in, {segment.mean_output_tokens:.0f} out"
        yield from levels_of(segment)


def levels_of(segment: PlannedSegment) -> Iterator[str]:
    for level in segment.levels:
        mark = "~" if level.is_indicative else ""
        ratios = "  ".join(ratio(one, mark).ljust(18) for one in (level.e2e_ratio, level.tpot_ratio, level.ttft_ratio))
        yield (
            f"{level.concurrency:>4} {level.draft_len:>2} {level.best_static_draft_len:>7}  {ratios}  "
            f"{level.tokens_per_step:>11.2f} {level.verified_tokens:>9}"
        )


def ratio(estimate: Estimate | None, mark: str) -> str:
    return "-" if estimate is None else f"{mark}{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


@pytest.mark.parametrize("case", CASES)
def test_plans_are_those_checked_in(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_hub_cache(monkeypatch, tmp_path / "hub")
    found, path = text_of(case, tmp_path), GOLDEN / f"{case}.txt"
    if os.environ.get(REWRITE):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found)
    assert found == path.read_text(), "read the difference, then run `make golden`"


@pytest.mark.parametrize("case", CASES)
def test_a_plan_is_one_screen(case: str) -> None:
    lines = (GOLDEN / f"{case}.txt").read_text().split("\nload  K  best K")[0].splitlines()
    assert len(lines) <= 43
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("name", [name for name in SHIPPED if name not in CASES])
def test_every_other_deployment_is_measured_first_with_something_to_expect(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_hub_cache(monkeypatch, tmp_path / "hub")
    inputs = inputs_of(name, PlanRequest(), tmp_path)
    report = decide(replace(inputs, segments=inputs.segments[:1], effort=FEWEST))

    level = next(one for one in report.segments[0].levels if one.concurrency == inputs.expected_concurrency)
    assert report.verdict is PlanVerdict.MEASURE_FIRST
    assert level.is_indicative
    assert report.indicative_source


def test_nothing_else_is_checked_in() -> None:
    assert {path.stem for path in GOLDEN.glob("*")} == set(CASES)
