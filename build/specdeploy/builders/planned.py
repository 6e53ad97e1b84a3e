"""A plan that the planner wrote (plan.json), taken over by a build."""

from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from specdeploy.config.load import LoadedDeployment
from specdeploy.config.problems import Problem, ProblemsError
from specdeploy.config.schema import DeploymentConfig, SegmentConfig
from specdeploy.contract import DeploymentPlan, DraftLenRange, SegmentPlan
from specdeploy.errors import ConfigError, Violation
from specdeploy.planner.dialects import default_ranges
from specdeploy.planner_contract import PlanReport


def load_plan(path: Path) -> PlanReport:
    """plan.json as `specdeploy plan` wrote it. Raises `ConfigError` naming what cannot be read."""
    remedy = "Write it with: specdeploy plan DEPLOYMENT"
    try:
        return PlanReport.model_validate_json(path.read_bytes())
    except OSError as error:
        reason = f"cannot be read ({error.strerror or error})"
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        reason = f"is no plan: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    raise ConfigError([Violation(str(path), "", reason, remedy)])


def with_plan(loaded: LoadedDeployment, plan: DeploymentPlan, file: Path) -> LoadedDeployment:
    """`loaded` with the plan's K by load in place of its own; its digest stays that of the YAML file.

    Raises `ConfigError` for a plan of another deployment, method or set of segments, and for a K that the deployment
    does not allow.
    """
    config = loaded.config
    if violations := _misfits(config, plan, str(file)):
        raise ConfigError(violations)
    segments = tuple(_planned_segment(segment, plan.segment(segment.name)) for segment in config.traffic.segments)
    others = default_ranges(config, plan)
    changed = config.model_copy(
        update={
            "speculation": config.speculation.model_copy(update={"draft_len_by_in_flight": others}),
            "traffic": config.traffic.model_copy(update={"segments": segments}),
        }
    )
    try:
        checked = DeploymentConfig.model_validate(changed.model_dump())
    except ValidationError as error:
        raise ConfigError([_violation(problem, str(file)) for problem in _problems(error)]) from error
    return replace(loaded, config=checked)


def _misfits(config: DeploymentConfig, plan: DeploymentPlan, file: str) -> list[Violation]:
    found = []
    again = f"Run: specdeploy plan {config.name}"
    if plan.deployment != config.name:
        found.append(Violation(file, "plan.deployment", f"it is of {plan.deployment}, not of {config.name}", again))
    if plan.method is not config.speculation.method:
        reason = f"it is for {plan.method}, the deployment drafts with {config.speculation.method}"
        found.append(Violation(file, "plan.method", reason, again))
    ours, theirs = {one.name for one in config.traffic.segments}, {one.segment for one in plan.segments}
    if ours != theirs:
        reason = f"it plans {', '.join(sorted(theirs))}; the deployment has {', '.join(sorted(ours))}"
        found.append(Violation(file, "plan.segments", reason, again))
    most = max((entry.draft_len for one in (*plan.segments, plan.default) for entry in one.ranges), default=0)
    if most > config.speculation.max_draft_len:
        reason = f"K {most} exceeds speculation.max_draft_len {config.speculation.max_draft_len}"
        found.append(Violation(file, "plan.segments", reason, f"Raise max_draft_len, or: {again}"))
    return found


def _planned_segment(segment: SegmentConfig, plan: SegmentPlan) -> SegmentConfig:
    ranges = _drafting(plan)
    if ranges:
        return segment.model_copy(update={"speculate": True, "off_reason": None, "draft_len_by_in_flight": ranges})
    reason = plan.off_reason or "the plan drafts at no load"
    return segment.model_copy(update={"speculate": False, "off_reason": reason, "draft_len_by_in_flight": ()})


def _drafting(plan: SegmentPlan) -> tuple[DraftLenRange, ...]:
    """What is not covered is not drafted for, so only ranges with a K are written."""
    return tuple(entry for entry in plan.ranges if entry.draft_len > 0)


def _problems(error: ValidationError) -> list[Problem]:
    found: list[Problem] = []
    for details in error.errors(include_url=False):
        cause = details.get("ctx", {}).get("error")
        key = ".".join(str(part) for part in details["loc"])
        found += cause.problems if isinstance(cause, ProblemsError) else [Problem(key, details["msg"], "Plan again.")]
    return found


def _violation(problem: Problem, file: str) -> Violation:
    return Violation(file, problem.key, problem.reason, problem.remedy)
