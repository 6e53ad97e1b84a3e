"""`specdeploy plan`: decide before renting GPUs whether speculative decoding will pay, and with which K."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdeploy.commands.options import CONFIGS, ENGINES, AsJson, ConfigsRoot, Deployment, EnginesRoot
from specdeploy.config.load import load_deployment

if TYPE_CHECKING:
    from specdeploy.planner_contract import PlanReport

ARTIFACTS = Path("artifacts")
PLANS = Path("plans")
PLAN_FILE = "plan.json"
PAGE_FILE = "plan.html"
_MAX_CONCURRENCY = 4096  # more than any engine decodes at once
# Extension of each dialect's own snippet.
_SCHEDULE_FILES = {
    "specdeploy": "schedule.specdeploy.yaml",
    "tensorrt_llm": "schedule.tensorrt_llm.yaml",
    "vllm": "schedule.vllm.txt",
    "sglang": "schedule.sglang.txt",
}


def plan(
    deployment: Deployment,
    hardware: Annotated[
        str | None,
        typer.Option(help="Device of configs/hardware, or the path of a record; default the deployment's GPU, or cpu."),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="What an engine's steps were seen to take, *.calibration.json.")
    ] = None,
    acceptance: Annotated[
        list[Path] | None,
        typer.Option(help="Acceptance file (ours or speculation_profile.json) or the folder of a run; repeatable."),
    ] = None,
    traffic: Annotated[
        str | None, typer.Option(help="Mix of configs/traffic, or a mix or trace file; default the segments' prompts.")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, max=_MAX_CONCURRENCY, help="Requests in flight to decide for; default the deployment's."),
    ] = None,
    max_draft_cost_ratio: Annotated[
        float, typer.Option(min=0.0, help="No-go for a mixture of experts above this draft/active parameter ratio.")
    ] = 0.25,
    explain: Annotated[bool, typer.Option("--explain", help="Print the arithmetic, line by line.")] = False,
    as_json: AsJson = False,
    output_dir: Annotated[Path | None, typer.Option(help="Where plan.json goes; default plans/<deployment>.")] = None,
    random_seed: Annotated[int, typer.Option(min=0, help="The same seed and inputs give the same bytes.")] = 0,
    configs_root: ConfigsRoot = CONFIGS,
    engines_root: EnginesRoot = ENGINES,
) -> None:
    """Will speculative decoding pay, from which concurrency on not, with which K? Nothing is built or fetched.

    Exit code 0 = go, 1 = no-go, 2 = measure first.
    """
    from specdeploy.commands.plan_console import EXIT_OF_VERDICT, render_arithmetic, render_plan
    from specdeploy.commands.plan_reading import PlanFolders, PlanRequest, read_plan_inputs
    from specdeploy.planner.decide import decide

    loaded = load_deployment(deployment, configs_root)
    if max_draft_cost_ratio != max_draft_cost_ratio:
        raise typer.BadParameter("--max-draft-cost-ratio: NaN is no ratio")
    request = PlanRequest(
        hardware=hardware,
        calibration=calibration,
        acceptance=tuple(acceptance or ()),
        traffic=traffic,
        concurrency=concurrency,
        max_draft_cost_ratio=max_draft_cost_ratio,
        random_seed=random_seed,
    )
    report = decide(read_plan_inputs(loaded, request, PlanFolders(configs_root, engines_root, ARTIFACTS)))
    folder = output_dir or PLANS / loaded.config.name
    written = write_plan(report, folder)
    if as_json:
        typer.echo(report.model_dump_json(indent=2))
    else:
        typer.echo(render_plan(report, written), nl=False)
        if explain:
            typer.echo("\n" + render_arithmetic(report.arithmetic), nl=False)
    raise typer.Exit(EXIT_OF_VERDICT[report.verdict])


def write_plan(report: "PlanReport", folder: Path) -> list[str]:
    """plan.json, the page and a snippet per engine, each whole or not at all; returns what to name on screen."""
    from specdeploy.manifest import write_json_atomically, write_text_atomically
    from specdeploy.planner.plan_page import render_plan_page

    write_json_atomically(folder / PLAN_FILE, report)
    write_text_atomically(folder / PAGE_FILE, render_plan_page(report))
    for schedule in report.schedules:
        notes = "".join(f"# not said: {lost}\n" for lost in schedule.lost)
        head = f"# {schedule.dialect} {schedule.version}, K by load of the plan of {report.deployment}\n"
        write_text_atomically(folder / _SCHEDULE_FILES[schedule.dialect], head + notes + schedule.text)
    engines = ", ".join(f"{one.dialect} {one.version}" for one in report.schedules)
    return [f"{folder}/: {PLAN_FILE}, {PAGE_FILE}, schedule.* ({engines})"]
