"""`specdeploy calibrate`: what steps of an engine take, as a cost model with its own errors."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from specdeploy import __version__
from specdeploy.commands.options import CONFIGS, ENGINES, AsJson, ConfigsRoot, Deployment, EnginesRoot
from specdeploy.config.load import load_deployment
from specdeploy.contract import Lane
from specdeploy.errors import ConfigError, Violation
from specdeploy.manifest import load_current_build
from specdeploy.planner.calibration_files import CALIBRATION_SUFFIX, load_run_summary, write_calibration
from specdeploy.planner_contract import Calibration, Residual

if TYPE_CHECKING:
    from specdeploy.config.load import LoadedDeployment
    from specdeploy.planner.calibrate import CalibrationSubject, StepObservation

CALIBRATIONS = "calibrations"  # below the engines root: a machine's own
_MAX_ROWS_SHOWN = 60


def calibrate(
    deployment: Deployment,
    run: Annotated[
        Path | None, typer.Option(help="Folder of a finished client run, instead of measuring the built engine.")
    ] = None,
    held_out: Annotated[
        float, typer.Option(min=0.0, max=0.6, help="Share of the observations that is predicted, not fitted to.")
    ] = 0.3,
    seconds: Annotated[float, typer.Option(min=1.0, help="How long to measure, about.")] = 90.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the order of loads, the prompts, and what is held out.")] = 0,
    output: Annotated[
        Path | None, typer.Option(help="Where to write; default engines/calibrations/<deployment>.calibration.json.")
    ] = None,
    as_json: AsJson = False,
    configs_root: ConfigsRoot = CONFIGS,
    engines_root: EnginesRoot = ENGINES,
) -> None:
    """Measure what steps take and fit the planner's cost model to it; prints how far it is off.

    Lane torch is measured on this machine, from its build. Any lane can be fitted to a finished client run.
    """
    from specdeploy.planner.calibrate import fit_measured, hold_out

    loaded = load_deployment(deployment, configs_root)
    path = output or engines_root / CALIBRATIONS / f"{loaded.config.name}{CALIBRATION_SUFFIX}"
    if run is not None:
        observations, subject = _from_run(loaded, run, quiet=as_json)
        captured_tokens: tuple[int, ...] = ()
    else:
        observations, subject, captured_tokens = _from_engine(loaded, engines_root, seconds, seed, quiet=as_json)
    judged = hold_out(observations, held_out, random_seed=seed)
    calibration = fit_measured(judged, subject, captured_tokens=captured_tokens)
    write_calibration(path, calibration)
    if as_json:
        typer.echo(calibration.model_dump_json(indent=2))
        return
    Console(soft_wrap=True, highlight=False).print(escape(render_calibration(calibration, path)))


def _from_engine(
    loaded: "LoadedDeployment", engines_root: Path, seconds: float, seed: int, *, quiet: bool
) -> "tuple[Sequence[StepObservation], CalibrationSubject, tuple[int, ...]]":
    from specdeploy.commands.calibrate_engine import observe_engine
    from specdeploy.planner.calibrate import CalibrationSubject

    config = loaded.config
    if config.lane is not Lane.TORCH:
        reason = f"lane {config.lane} cannot be timed step by step from here"
        remedy = "Give a finished client run of it: --run artifacts/<deployment>."
        raise ConfigError([Violation(str(loaded.path), "lane", reason, remedy)])
    build = load_current_build(engines_root, config.name)
    seen = observe_engine(
        build, engines_root, budget_s=seconds, random_seed=seed, report=lambda line: _note(line, quiet)
    )
    subject = CalibrationSubject(
        name=f"{config.name} on {seen.hardware}",
        hardware=seen.hardware,
        engine=str(config.lane),
        source=f"specdeploy calibrate {config.name}: build {build.build_id}, steps of its engine in {seen.clock}",
        engine_version=__version__,
        target_reference=build.config.target.checkpoint,
        method=build.config.speculation.method,
        dtype=build.config.dtype.value,
        threads=seen.num_threads,
    )
    return seen.observations, subject, seen.captured_tokens


def _from_run(
    loaded: "LoadedDeployment", run: Path, *, quiet: bool
) -> "tuple[Sequence[StepObservation], CalibrationSubject]":
    from specdeploy.planner.calibrate import CalibrationSubject
    from specdeploy.planner.run_observations import observations_of

    config = loaded.config
    summary = load_run_summary(run)
    if summary.deployment != config.name:
        reason = f"is a run of '{summary.deployment}', not of '{config.name}'"
        raise ConfigError([Violation(str(run), "deployment", reason, "Give a run of this deployment.")])
    found = observations_of(summary)
    for line in found.left_out:
        _note(f"left out: {line}", quiet)
    return found.observations, CalibrationSubject(
        name=f"{config.name}, run of {summary.started_at}",
        hardware=summary.environment.get("server machine") or summary.environment.get("client machine") or "unknown",
        engine=str(config.lane),
        source=f"specdeploy calibrate {config.name} --run {run}",
        target_reference=config.target.checkpoint,
        method=config.speculation.method,
        dtype=summary.dtype,
        threads=summary.server_threads,
    )


def _note(line: str, quiet: bool) -> None:
    if not quiet:
        Console(stderr=True, soft_wrap=True, highlight=False).print(escape(line))


# --- what is printed ------------------------------------------------------------------------------------------------


def render_calibration(calibration: Calibration, path: Path) -> str:
    """Residuals, then the errors and where it was written. Of many residuals the largest are shown."""
    residuals = calibration.residuals
    shown = residuals
    lines = [f"{calibration.name}: {calibration.source}", ""]
    if len(residuals) > _MAX_ROWS_SHOWN:
        shown = tuple(sorted(residuals, key=lambda one: -abs(one.relative_error))[:_MAX_ROWS_SHOWN])
        lines.append(f"the {_MAX_ROWS_SHOWN} largest of {len(residuals)} residuals:")
    lines.append("rows   K  context  prompt  measured ms  predicted ms   error  held out")
    lines += [_line(one) for one in sorted(shown, key=_order)]
    num_held_out = sum(one.is_held_out for one in residuals)
    judged = f"{num_held_out} held-out steps of {len(residuals)}" if num_held_out else f"all {len(residuals)} steps"
    median, p90, limits = calibration.median_relative_error, calibration.p90_relative_error, calibration.range
    lines += ["", f"error of {judged}: median {median:.1%}, 90th percentile {p90:.1%}"]
    tokens = f"{limits.max_step_tokens} tokens in a step"
    lines.append(f"promises nothing beyond {limits.max_rows} rows, K {limits.max_draft_len}, {tokens}")
    return "\n".join([*lines, f"wrote {path}"])


def _order(one: Residual) -> tuple[int, int, int, int]:
    return (one.prefill_tokens, one.num_rows, one.draft_len, one.context or 0)


def _line(one: Residual) -> str:
    context = "-" if one.context is None else str(one.context)
    return (
        f"{one.num_rows:>4} {one.draft_len:>3} {context:>8} {one.prefill_tokens:>7} {one.measured_s * 1e3:>12.2f} "
        f"{one.predicted_s * 1e3:>13.2f} {one.relative_error:>+7.1%}  {'yes' if one.is_held_out else ''}"
    ).rstrip()
