"""`specdeploy profile`: the acceptance of a deployment on its own prompts, measured offline for the planner."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from specdeploy.commands.options import CONFIGS, ENGINES, AsJson, ConfigsRoot, Deployment, EnginesRoot
from specdeploy.commands.profile_prompts import PromptTemplate, read_prompts
from specdeploy.config.load import load_deployment
from specdeploy.config.schema import SegmentConfig
from specdeploy.contract import Lane
from specdeploy.errors import ConfigError, Violation
from specdeploy.manifest import load_current_build, write_json_atomically
from specdeploy.planner_contract import AcceptanceFile, AcceptanceProfile

if TYPE_CHECKING:
    from specdeploy.config.load import LoadedDeployment
    from specdeploy.manifest import CurrentBuild
    from specdeploy.planner.counted_acceptance import RequestCounts
    from specdeploy.runtime.measure_acceptance import MeasuredPrompt

PROFILES = "acceptance"  # below the engines root: a machine's own
_SUFFIX = ".acceptance.json"


def profile(
    deployment: Deployment,
    segment: Annotated[list[str] | None, typer.Option(help="Segment to measure, repeatable; default all.")] = None,
    requests: Annotated[int, typer.Option(min=2, help="Prompts of each segment, the first of its file.")] = 12,
    temperature: Annotated[float, typer.Option(min=0.0, help="Of the answers; 0 is greedy.")] = 0.0,
    output: Annotated[
        Path | None, typer.Option(help="Where to write; default engines/acceptance/<deployment>.acceptance.json.")
    ] = None,
    as_json: AsJson = False,
    configs_root: ConfigsRoot = CONFIGS,
    engines_root: EnginesRoot = ENGINES,
) -> None:
    """Measure how many drafted tokens survive on the deployment's own prompts, for `specdeploy plan`.

    Lane torch runs here, from its build, without a server; K is the deployment's max_draft_len in every step. Of the
    other lanes a finished client run says the same, and a pair that a processor can hold may be profiled in a
    deployment of lane torch.
    """
    loaded = load_deployment(deployment, configs_root)
    segments = _segments_of(loaded, segment)
    if loaded.config.lane is not Lane.TORCH:
        raise ConfigError([_other_lane(loaded)])
    build = load_current_build(engines_root, loaded.config.name)
    started = time.monotonic()
    profiles = tuple(_profiles_of(loaded, build, engines_root, segments, requests, temperature, quiet=as_json))
    if not profiles:
        reason = "nothing was drafted on its prompts, so there is no acceptance to speak of"
        raise ConfigError([Violation(str(loaded.path), "speculation.method", reason, "Try another method.")])
    path = output or engines_root / PROFILES / f"{loaded.config.name}{_SUFFIX}"
    path.parent.mkdir(parents=True, exist_ok=True)
    file = AcceptanceFile(profiles=profiles)
    write_json_atomically(path, file)
    if as_json:
        typer.echo(file.model_dump_json(indent=2))
        return
    lines = [*_table(profiles), "", f"wrote {path} ({time.monotonic() - started:.0f} s)"]
    Console(soft_wrap=True, highlight=False).print(escape("\n".join(lines)))


def _segments_of(loaded: "LoadedDeployment", names: Sequence[str] | None) -> tuple[SegmentConfig, ...]:
    """The named segments that draft, or all of them. Raises ConfigError."""
    known = {entry.name: entry for entry in loaded.config.traffic.segments}
    if unknown := [name for name in names or () if name not in known]:
        remedy = f"Segments are {', '.join(known)}."
        reason = f"there is no segment {', '.join(unknown)}"
        raise ConfigError([Violation(str(loaded.path), "traffic.segments", reason, remedy)])
    chosen = tuple(entry for entry in known.values() if entry.speculate and (not names or entry.name in names))
    if not chosen:
        reason = "none of these segments drafts (speculate: false)"
        raise ConfigError([Violation(str(loaded.path), "traffic.segments", reason, "Name one that does.")])
    return chosen


def _other_lane(loaded: "LoadedDeployment") -> Violation:
    name, lane = loaded.config.name, loaded.config.lane
    reason = f"lane {lane} cannot be run from here without its server"
    remedy = (
        f"Serve it and run `specdeploy-client bench {name}`: `specdeploy plan` reads acceptance from it. Or write "
        "a deployment of lane torch with the same target and draft, where a processor can hold them, and profile that."
    )
    return Violation(str(loaded.path), "lane", reason, remedy)


def _profiles_of(
    loaded: "LoadedDeployment",
    build: "CurrentBuild",
    engines_root: Path,
    segments: Sequence[SegmentConfig],
    num_requests: int,
    temperature: float,
    *,
    quiet: bool,
) -> Iterator[AcceptanceProfile]:
    """A profile per segment, and one over all of them for any other. What the build serves is what is measured."""
    import torch

    from specdeploy.planner.counted_acceptance import RequestCounts
    from specdeploy.runtime.assemble import load_parts
    from specdeploy.runtime.measure_acceptance import measure_acceptance
    from specdeploy.serving.adapters.torch import engine_sources, resolve_num_threads
    from specdeploy.serving.tokenizer import load_eos_ids

    torch.set_num_threads(resolve_num_threads(build.config.runtime.threads))
    target, draft, settings = engine_sources(build, engines_root)
    parts = load_parts(target, draft, settings)
    stop_ids = load_eos_ids(target)
    everything: list[RequestCounts] = []
    for segment in segments:
        started = time.monotonic()
        prompts = _measured_prompts(loaded, segment, target, num_requests)
        counted = measure_acceptance(
            parts,
            settings,
            prompts,
            stop_ids=stop_ids,
            temperature=temperature,
            report=lambda line: _note(line, quiet),
        )
        counts = [RequestCounts(one.num_steps, one.num_drafts, tuple(one.accepted_per_pos)) for one in counted]
        everything += counts
        found = _profile_of(counts, build, segment.name, temperature)
        _note(f"{segment.name}: {len(counts)} prompts in {time.monotonic() - started:.1f} s", quiet)
        if found is None:
            _note(f"{segment.name}: nothing was drafted", quiet)
        else:
            yield found
    if len(segments) > 1 and (found := _profile_of(everything, build, None, temperature)) is not None:
        yield found


def _measured_prompts(
    loaded: "LoadedDeployment", segment: SegmentConfig, target: Path, num_requests: int
) -> "list[MeasuredPrompt]":
    from specdeploy.runtime.measure_acceptance import MeasuredPrompt
    from specdeploy.serving.request import encode_prompt
    from specdeploy.serving.tokenizer import load_tokenizer

    tokenizer, template = load_tokenizer(target), PromptTemplate(target)
    return [
        MeasuredPrompt(encode_prompt(template.render(prompt.text), tokenizer), prompt.max_tokens or segment.max_tokens)
        for prompt in read_prompts(loaded.path.parent / segment.prompts, num_requests)
    ]


def _profile_of(
    counts: "Sequence[RequestCounts]", build: "CurrentBuild", segment: str | None, temperature: float
) -> AcceptanceProfile | None:
    from specdeploy.planner.counted_acceptance import profile_of_counts
    from specdeploy.planner.draft_tree import tree_nodes_of
    from specdeploy.planner.published_acceptance import form_of

    speculation = build.config.speculation
    return profile_of_counts(
        counts,
        speculation.max_draft_len,
        method=speculation.method,
        form=form_of(speculation.method, has_tree=tree_nodes_of(build.config) is not None),
        source=f"specdeploy profile {build.deployment}: build {build.build_id}, {segment or 'all segments'}",
        segment=segment,
        temperature=temperature,
        target=build.config.target.checkpoint,
        draft=None if speculation.draft is None else speculation.draft.checkpoint,
    )


def _table(profiles: Sequence[AcceptanceProfile]) -> Iterator[str]:
    from specdeploy.planner.acceptance import AcceptanceModel

    yield "segment          prompts  steps  drafted  tokens/step [95 %]      spread  survivals"
    for entry in profiles:
        model = AcceptanceModel.from_profile(entry)
        low, value, high = (model.at(bound).mean_tokens(len(entry.survivals)) for bound in ("low", "value", "high"))
        survivals = " ".join(f"{survival:.2f}" for survival in entry.survivals)
        yield (
            f"{entry.segment or '(any other)':<16} {entry.num_requests or 0:>7} {entry.num_steps or 0:>6} "
            f"{entry.draft_share:>7.0%}  {value:>5.2f} [{low:.2f}, {high:.2f}]      {entry.request_sd or 0.0:>6.2f}  "
            f"{survivals}"
        )


def _note(line: str, quiet: bool) -> None:
    if not quiet:
        Console(stderr=True, soft_wrap=True, highlight=False).print(escape(line))
