"""Lane `trtllm_engine`: convert checkpoints, build engines, check them against what was planned.

    engines/.steps/<key>/                finished commands, each by its content address (`step_runner`)
    engines/<build id>/target/           config, tokenizer and chat template for the serving front; no weights
    engines/<build id>/target_engine/    rank<i>.engine, config.json; also draft_engine/, target_plain_engine/

Everything that can be known is refused before the first command runs, which may take hours.
"""

import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from specdeploy.builders.base import (
    BuildRecipe,
    BuildResult,
    BuildStep,
    Report,
    is_finished,
    link_or_copy,
    run_build,
)
from specdeploy.builders.engine_config import engine_config_problems as engine_config_problems
from specdeploy.builders.engine_disk import WORK as WORK
from specdeploy.builders.engine_plan import EngineBuildPlan as EngineBuildPlan
from specdeploy.builders.engine_plan import plan_engine_build as plan_engine_build
from specdeploy.builders.file_errors import file_errors
from specdeploy.builders.pair import Consent
from specdeploy.builders.step_runner import run_graph
from specdeploy.builders.step_store import StepStore
from specdeploy.builders.trtllm_commands import ENGINE
from specdeploy.builders.trtllm_installation import find_installation
from specdeploy.checkpoint.digest_cache import DigestCache, open_digest_cache
from specdeploy.checkpoint.pair import digest_of_pair
from specdeploy.checkpoint.source import list_text_files
from specdeploy.config.load import LoadedDeployment
from specdeploy.contract import BuildCheck, EngineModel, EngineRecord, Lane
from specdeploy.errors import BuildError

Folders = Callable[[], dict[str, Path]]


def build_trtllm_engine(
    loaded: LoadedDeployment, engines_root: Path, *, report: Report, consent: Consent
) -> BuildResult:
    """Build every engine of a deployment, or reuse what is there: whole builds, else single finished commands.

    Raises `ConfigError`, `CheckpointError` or `BuildError`, before the first command with all problems at once.
    """
    installation = find_installation(os.environ)
    plan = plan_engine_build(loaded, installation=installation, consent=consent, engines_root=engines_root)
    for check in plan.checks:
        report(f"{check.name}: {check.detail}")
    cache = open_digest_cache(engines_root)
    commands = _of_phase("commands", report)
    folders = functools.cache(lambda: run_graph(plan.graph, engines_root / WORK, report=commands))
    recipe = _recipe(plan, folders, cache)
    # Held until the engines are linked: whoever prunes meanwhile must not take the finished commands away.
    with StepStore(engines_root / WORK).in_use():
        if not is_finished(engines_root, recipe.build_id):
            folders()  # outside the lock of the engines root: other builds need not wait for hours
        try:
            result = run_build(recipe, engines_root, _of_phase("putting together", report))
        finally:
            with file_errors(engines_root):
                cache.save()
    if result.reused:
        for engine in plan.engines:
            _check_engine(result.build_folder / engine.folder, engine, plan, f"Remove {result.build_folder}")
    return result


def _of_phase(name: str, report: Report) -> Report:
    """`report` with the phase before every line: commands, and the steps that put a build together, count apart."""
    return lambda line: report(f"{name}: {line}")


def _recipe(plan: EngineBuildPlan, folders: Folders, cache: DigestCache) -> BuildRecipe:
    target = plan.target_folder
    if target is None:
        raise BuildError("the target's checkpoint is not on this machine: only a dry run is possible")
    digests = {source.role: source.digest for source in plan.checkpoints}
    return BuildRecipe(
        lane=Lane.TRTLLM_ENGINE,
        checkpoints=plan.checkpoints,
        versions=plan.versions,
        steps=(
            BuildStep("copy target's texts", (str(target),), ("target/config.json",), _copy_texts(target)),
            *(_link_step(engine, plan, folders) for engine in plan.engines),
        ),
        checks=plan.checks,
        pair_digest=lambda staging: digest_of_pair(
            staging / "target",
            target_digest=digests["target"],
            draft_digest=digests.get("draft"),
            lane=Lane.TRTLLM_ENGINE,
            versions=plan.pair_versions,
        ),
        engines=plan.engines,
        memory=plan.memory,
        gpu_architecture=plan.gpu_architecture,
        digest_of=cache.sha256,
    )


def _copy_texts(target: Path) -> Callable[[Path], tuple[BuildCheck, ...]]:
    def run(staging: Path) -> tuple[BuildCheck, ...]:
        (staging / "target").mkdir()
        for path in list_text_files(target):  # small and edited in place, so copied
            shutil.copyfile(path, staging / "target" / path.name)
        return ()

    return run


def _link_step(engine: EngineRecord, plan: EngineBuildPlan, folders: Folders) -> BuildStep:
    name = f"build {engine.model}"

    def run(staging: Path) -> tuple[BuildCheck, ...]:
        made = folders()[name] / ENGINE
        _check_engine(made, engine, plan, f"Remove {made.parent}")
        for path in sorted(made.rglob("*")):
            target = staging / engine.folder / path.relative_to(made)
            if path.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                place = link_or_copy if path.suffix != ".json" else shutil.copyfile
                place(path, target)
        ranks = engine.tensor_parallel * engine.pipeline_parallel
        detail = f"config.json and {ranks} rank files are what was planned ({engine.decoding or 'plain'})"
        return (BuildCheck(name=engine.folder, detail=detail),)

    return BuildStep(f"link {engine.folder}", (name,), (f"{engine.folder}/config.json",), run)


def _check_engine(folder: Path, engine: EngineRecord, plan: EngineBuildPlan, remedy: str) -> None:
    version = plan.versions["tensorrt_llm"]
    experts = plan.expert_parallel if engine.model is not EngineModel.DRAFT else 1
    if problems := engine_config_problems(folder, engine, version=version, expert_parallel=experts):
        raise BuildError(
            "\n".join(problems) + f"\n{engine.folder} is not the engine that was planned. {remedy} and build again"
        )
