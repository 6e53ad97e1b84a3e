"""K by load in the arguments: a schedule or a limit where no router switches by load, and what of the plan is lost."""

from collections.abc import Mapping

from packaging.version import Version

from specdeploy.config.schema import DeploymentConfig, PlainInstance, TensorRtLlmConfig
from specdeploy.contract import Method
from specdeploy.trtllm.argument_draft import ArgumentDraft
from specdeploy.trtllm.columns import Field
from specdeploy.trtllm.draft_len_schedule import (
    SCHEDULED_METHODS,
    LoadStep,
    drafts_inside_target,
    load_steps,
    obeys_max_concurrency,
    render_schedule,
    schedule_meaning,
    single_cut,
)


def put_load_limits(
    draft: ArgumentDraft,
    rendered: dict[str, object],
    config: DeploymentConfig,
    settings: TensorRtLlmConfig,
    names: Mapping[str, Field],
) -> None:
    """`draft_len_schedule` or `max_concurrency` from `draft_len_by_in_flight`, where no router switches by load."""
    speculation = config.speculation
    steps = load_steps(speculation.draft_len_by_in_flight, speculation.max_draft_len, config.serving.max_rows)
    if settings.plain_instance is PlainInstance.BESIDE:
        if any(0 < step.draft_len < speculation.max_draft_len for step in steps):
            draft.notes.append(
                "the router switches drafting on or off by load; a K in between is served as max_draft_len"
            )
        return
    if any(segment.draft_len_by_in_flight or not segment.speculate for segment in config.traffic.segments):
        draft.notes.append("K by segment is not kept: one instance drafts alike for all requests of a step")
    if [step.draft_len for step in steps] == [speculation.max_draft_len]:
        return
    limits = _load_limits(steps, speculation.method, speculation.max_draft_len, draft.version, names)
    rendered.update(limits)
    if limits and steps[-1].draft_len == 0 and drafts_inside_target(speculation.method, draft.version):
        draft.notes.append(
            f"from {steps[-1].first} requests on the plan drafts nothing; TensorRT-LLM {draft.version} either drafts"
            " one token there, or accepts fewer drafts afterwards for requests in flight (its pull request 16888)"
        )
    if not limits:
        cause = _cause_of_loss(steps, speculation.method, speculation.max_draft_len, draft.version, names)
        draft.notes.append(
            f"speculation.draft_len_by_in_flight is not kept: {cause}; {speculation.max_draft_len} tokens are drafted"
            " at every load"
        )


def _reads_schedule(method: Method, version: Version, names: Mapping[str, Field]) -> bool:
    meaning = schedule_meaning(version)
    return "draft_len_schedule" in names and meaning is not None and method in SCHEDULED_METHODS[meaning]


def _load_limits(
    steps: tuple[LoadStep, ...], method: Method, max_draft_len: int, version: Version, names: Mapping[str, Field]
) -> dict[str, object]:
    meaning = schedule_meaning(version)
    if meaning is not None and _reads_schedule(method, version, names):
        schedule = render_schedule(steps, meaning, max_draft_len)
        if schedule is not None:
            return {"draft_len_schedule": schedule}
    cut = single_cut(steps, max_draft_len)
    if "max_concurrency" in names and cut is not None and obeys_max_concurrency(method, version):
        return {"max_concurrency": cut}
    return {}


def _cause_of_loss(
    steps: tuple[LoadStep, ...], method: Method, max_draft_len: int, version: Version, names: Mapping[str, Field]
) -> str:
    """Why neither a schedule nor a limit says `steps`, with what to write instead where that would help."""
    first = steps[0].draft_len
    if not _reads_schedule(method, version, names) or first == max_draft_len:
        return f"TensorRT-LLM {version} cannot vary the draft length of {method} this way"
    ways = [f"give 1 request on draft_len {max_draft_len}"]
    if first > 0 and all(step.draft_len <= first for step in steps):
        ways.insert(0, f"write speculation.max_draft_len: {first}")
    return (
        f"a schedule of TensorRT-LLM {version} must begin with max_draft_len {max_draft_len}, and the plan drafts"
        f" {first} for 1 request ({', or '.join(ways)}, or plain_instance: beside)"
    )
