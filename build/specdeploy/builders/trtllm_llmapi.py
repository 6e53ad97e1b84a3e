"""Lane `trtllm_llmapi`: nothing is compiled. Pin the checkpoints, write the arguments of the LLM objects, try them.

    engines/<build id>/llm_args.yaml        arguments of the instance that drafts
    engines/<build id>/llm_args_plain.yaml  of the one that does not, only with plain_instance: beside
    engines/<build id>/sources.json         folders, commits and digests of the checkpoints, which stay where they are
    engines/<build id>/target/, draft/      config and tokenizer files
    engines/<build id>/warmup.json          first tokens with and without drafting, where there was a GPU

The arguments are written for the installed version, never for the newest: names and meanings moved between releases.
"""

import hashlib
import os
import shutil
from pathlib import Path

import yaml

from specdeploy.builders.base import BuildRecipe, BuildResult, BuildStep, Report, run_build
from specdeploy.builders.llmapi_plan import LlmapiBuildPlan as LlmapiBuildPlan
from specdeploy.builders.llmapi_plan import llmapi_section
from specdeploy.builders.llmapi_plan import plan_llmapi_build as plan_llmapi_build
from specdeploy.builders.pair import Consent
from specdeploy.builders.trtllm_installation import TrtllmInstallation, find_installation
from specdeploy.builders.trtllm_probe import probe_installed, validate_with_classes
from specdeploy.builders.trtllm_snapshot import checkpoint_source
from specdeploy.builders.trtllm_warmup import ARGUMENT_FILES, WARMUP_NAME, reason_without_warmup, run_warmup
from specdeploy.checkpoint.pair import digest_of_pair
from specdeploy.checkpoint.pinned_sources import SOURCES_NAME, PinnedSource, PinnedSources
from specdeploy.checkpoint.source import list_text_files
from specdeploy.config.load import LoadedDeployment
from specdeploy.config.schema import TensorRtLlmConfig
from specdeploy.contract import BuildCheck, Lane
from specdeploy.errors import BuildError
from specdeploy.manifest import write_json_atomically, write_text_atomically
from specdeploy.trtllm.probe_record import ProbeRecord, load_probe, probe_path
from specdeploy.trtllm.versions import parse_version

LOGS = Path(".steps", "logs")
_LLM_CLASSES = "arguments against the installed classes"
_WARMUP = "warm-up"


def build_trtllm_llmapi(
    loaded: LoadedDeployment, engines_root: Path, *, report: Report, consent: Consent | None = None
) -> BuildResult:
    """Build, or reuse, what `loaded` asks for with the TensorRT-LLM of this machine.

    Raises `ConfigError`, `CheckpointError` or `BuildError` with everything that forbids it.
    """
    section = llmapi_section(loaded)
    installation = find_installation(os.environ)
    probe = _find_probe(section, installation, engines_root, report)
    plan = plan_llmapi_build(
        loaded, installation=installation, probe=probe, consent=consent or Consent(), engines_root=engines_root
    )
    for check in plan.checks:
        report(f"{check.name}: {check.detail}")
    assert installation is not None  # noqa: S101 - `plan_llmapi_build` refused otherwise
    return run_build(_recipe(plan, section, installation, engines_root, report), engines_root, report)


def _find_probe(
    section: TensorRtLlmConfig, installation: TrtllmInstallation | None, engines_root: Path, report: Report
) -> ProbeRecord | None:
    """The record of this version; made now where the version that the config names is the installed one."""
    path = probe_path(engines_root, section.version)
    if path.is_file():
        return load_probe(path)
    if installation is None or parse_version(installation.version) != parse_version(section.version):
        return None  # planning says what is wrong with that
    try:
        return probe_installed(engines_root, report)
    except BuildError as error:  # where the facts of the version suffice, planning needs no probe
        report(f"probe: not run: {error}")
        return None


def _recipe(
    plan: LlmapiBuildPlan,
    section: TensorRtLlmConfig,
    installation: TrtllmInstallation,
    engines_root: Path,
    report: Report,
) -> BuildRecipe:
    sources = tuple(checkpoint_source(one) for one in plan.pinned)
    digests = {source.role: source.digest for source in sources}
    skipped = _reason_to_skip(section, installation)
    texts = "".join(text for _, text in sorted(plan.files.items()))
    # Whatever changes the files of the build is part of its id, whatever may change what was proven of a pair of its
    # pair digest: paths and limits are in the arguments, but they change no token.
    pair_versions = {"tensorrt_llm": installation.version}
    versions = {
        **pair_versions,
        "arguments": hashlib.sha256(texts.encode()).hexdigest()[:16],
        _WARMUP: "not run" if skipped else "run",
    }
    revisions = [
        BuildCheck(
            name=f"{one.role} snapshot",
            detail=f"commit {one.commit}" if one.commit else "a folder of its own, pinned by its digest",
        )
        for one in plan.pinned
    ]
    return BuildRecipe(
        lane=Lane.TRTLLM_LLMAPI,
        checkpoints=sources,
        versions=versions,
        steps=(
            *(_pin_step(one) for one in plan.pinned),
            _arguments_step(plan),
            _classes_step(plan),
            _warmup_step(plan, skipped, engines_root, report),
        ),
        checks=(*plan.checks, *revisions),
        pair_digest=lambda staging: digest_of_pair(
            staging / "target",
            target_digest=digests["target"],
            draft_digest=digests.get("draft"),
            lane=Lane.TRTLLM_LLMAPI,
            versions=pair_versions,
        ),
        engines=plan.engines,
        memory=plan.memory,
        gpu_architecture=installation.gpu_architecture,
    )


def _pin_step(pinned: PinnedSource) -> BuildStep:
    folder = Path(pinned.folder)

    def copy(staging: Path) -> tuple[BuildCheck, ...]:
        (staging / pinned.role).mkdir()
        for path in list_text_files(folder):  # small, and edited in place: a link would change with them
            shutil.copyfile(path, staging / pinned.role / path.name)
        return ()

    return BuildStep(f"pin {pinned.role}", (pinned.folder,), (f"{pinned.role}/config.json",), copy)


def _arguments_step(plan: LlmapiBuildPlan) -> BuildStep:
    def write(staging: Path) -> tuple[BuildCheck, ...]:
        write_json_atomically(staging / SOURCES_NAME, PinnedSources(checkpoints=plan.pinned))
        for name, text in plan.files.items():
            write_text_atomically(staging / name, text)
            if yaml.safe_load(text) not in plan.arguments.values():
                raise BuildError(f"{name}: read back, it is not what was rendered")
        return ()

    roles = tuple(one.role for one in plan.pinned)
    return BuildStep("write arguments", roles, (*plan.files, SOURCES_NAME), write)


def _classes_step(plan: LlmapiBuildPlan) -> BuildStep:
    def validate(_: Path) -> tuple[BuildCheck, ...]:
        try:
            problems = [
                f"{ARGUMENT_FILES[instance]}: {problem}"
                for instance, arguments in plan.arguments.items()
                for problem in validate_with_classes(arguments)
            ]
        except BuildError as error:  # it is installed, and cannot be imported here: a driver is missing, for example
            return (BuildCheck(name=_LLM_CLASSES, detail=f"not run: {error}"),)
        if problems:
            raise BuildError("the installed TensorRT-LLM refuses the arguments:\n" + "\n".join(problems))
        return (BuildCheck(name=_LLM_CLASSES, detail=f"accepted: {', '.join(plan.files)}"),)

    return BuildStep("validate arguments", tuple(plan.files), (), validate)


def _reason_to_skip(section: TensorRtLlmConfig, installation: TrtllmInstallation) -> str | None:
    """Why no LLM object can be loaded here, or None when it can."""
    if not installation.gpu_names:
        return "not run: no GPU is visible on this machine"
    if reason := reason_without_warmup(section):
        return reason
    if len(installation.gpu_names) < section.num_gpus:
        return f"not run: it needs {section.num_gpus} GPUs and this machine shows {len(installation.gpu_names)}"
    return None


def _warmup_step(plan: LlmapiBuildPlan, skipped: str | None, engines_root: Path, report: Report) -> BuildStep:
    if skipped is not None:
        told = (BuildCheck(name=_WARMUP, detail=skipped),)
        return BuildStep(_WARMUP, tuple(plan.files), (), lambda _: told)

    def warm_up(staging: Path) -> tuple[BuildCheck, ...]:
        record = run_warmup(staging, engines_root / LOGS, report)
        write_json_atomically(staging / WARMUP_NAME, record)
        return record.checks

    return BuildStep(_WARMUP, tuple(plan.files), (WARMUP_NAME,), warm_up)
