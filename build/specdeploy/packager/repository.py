"""DeploymentConfig (and a build) -> Triton model repository, written beside its place and renamed into it.

triton_repo/<deployment>/repository.json     what was written, and for which build (Triton ignores files at the top)
triton_repo/<deployment>/llm/config.pbtxt    names the deployment only: no digest, no path, so it can be checked in
triton_repo/<deployment>/llm/1/model.py      two lines that import the model from the installed package

The TensorRT-LLM lanes add scripts that start the server and, in the engine lane, one C++ model per engine. Those name
absolute folders of the build: a repository belongs to the build it was packed for, and repository.json names it.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import Lane, RepositoryManifest
from specdeploy.errors import PackagingError
from specdeploy.manifest import REPOSITORY_MANIFEST_NAME, hash_folder, write_text_atomically
from specdeploy.packager.cross_checks import PUBLIC_MODEL, cross_check
from specdeploy.packager.engine_models import render_engine_model
from specdeploy.packager.launch_files import render_launch_files
from specdeploy.packager.packaged_build import PackagedBuild
from specdeploy.packager.pbtxt import TEMPLATE_MARK, TritonModelConfig, parse_pbtxt, render_pbtxt
from specdeploy.packager.slurm_files import render_slurm_files
from specdeploy.packager.tensors import INPUTS, OUTPUTS

_SCRIPT_SUFFIXES = {".sh", ".slurm"}
_READ_SUFFIXES = {".pbtxt", ".py", ".yaml", ".json"} | _SCRIPT_SUFFIXES
MODEL_SHIM = 'from specdeploy.serving.model import TritonPythonModel\n\n__all__ = ["TritonPythonModel"]\n'


def public_model_config(config: DeploymentConfig) -> TritonModelConfig:
    """The Triton model `llm`: one Python instance; the engine behind it batches, so Triton must not."""
    return TritonModelConfig(
        name=PUBLIC_MODEL,
        backend="python",
        max_batch_size=1,
        decoupled=True,
        inputs=INPUTS,
        outputs=OUTPUTS,
        parameters={"deployment": config.name},
    )


def render_repository(config: DeploymentConfig, build: PackagedBuild | None = None) -> dict[str, str]:
    """Every file of the deployment's repository: relative POSIX path -> text.

    Lane torch reads no `build`; the TensorRT-LLM lanes need one. Raises `PackagingError` for a model that could not be
    written; whether the files fit config and build is `cross_check`'s question.
    """
    header = f"Written by `make repo DEPLOYMENT={config.name}`; change configs/deployments/{config.name}.yaml instead."
    files = {
        f"{PUBLIC_MODEL}/config.pbtxt": render_pbtxt(public_model_config(config), header),
        f"{PUBLIC_MODEL}/1/model.py": MODEL_SHIM,
    }
    if config.lane is Lane.TORCH:
        return files
    build = _require_build(config, build)
    if config.lane is Lane.TRTLLM_ENGINE:
        for record in build.engines:
            files |= render_engine_model(config, build, record)
    return files | render_launch_files(config, build) | render_slurm_files(config, build)


def pack_repository(
    config: DeploymentConfig, repo_root: Path, build: PackagedBuild | None = None
) -> RepositoryManifest:
    """Write `repo_root/<deployment>/`; what stands there is replaced whole, and left alone when it is the same.

    Raises `PackagingError` with everything that does not fit config and build; nothing is written then.
    """
    if config.lane is Lane.TORCH:
        build = None
        files = render_repository(config)
    else:
        build = _require_build(config, build)
        files = render_repository(config, build)
        if problems := cross_check(config, build, files):
            raise PackagingError("\n".join(f"{config.name}: {problem}" for problem in problems))
    target = repo_root / config.name
    repo_root.mkdir(parents=True, exist_ok=True)
    with FileLock(repo_root / f".{config.name}.lock"):
        for leftover in repo_root.glob(f".{config.name}.*.partial"):  # of a run that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=f".{config.name}.", suffix=".partial", dir=repo_root))
        try:
            fresh = work / "new"
            manifest = _write_repository(fresh, config.name, files, build)
            if _read_texts(target) != _read_texts(fresh):
                _swap(fresh, target, work / "old")
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return manifest


def _require_build(config: DeploymentConfig, build: PackagedBuild | None) -> PackagedBuild:
    if build is None or not build.engines:
        raise PackagingError(
            f"{config.name}: a repository of lane {config.lane} names the engines of a build, and there is none. "
            f"Run: make engines DEPLOYMENT={config.name}"
        )
    return build


def check_repository(folder: Path) -> None:
    """PackagingError listing everything that would keep Triton from loading a model of this repository."""
    if problems := list(_find_problems(folder)):
        raise PackagingError("\n".join(problems))


def _write_repository(
    folder: Path, deployment: str, files: dict[str, str], build: PackagedBuild | None
) -> RepositoryManifest:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if path.suffix in _SCRIPT_SUFFIXES:
            path.chmod(0o755)
    check_repository(folder)
    models = tuple(sorted(path.name for path in folder.iterdir() if path.is_dir()))
    manifest = RepositoryManifest(
        deployment=deployment,
        build_id=None if build is None else build.build_id,
        config_digest=None if build is None else build.config_digest,
        models=models,
        files=hash_folder(folder),
    )
    text = manifest.model_dump_json(indent=2, exclude_none=True)
    write_text_atomically(folder / REPOSITORY_MANIFEST_NAME, text + "\n")
    return manifest


def _swap(fresh: Path, target: Path, old: Path) -> None:
    """Two renames: a kill between them leaves no repository, never half of one."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise PackagingError(f"{target} is not a folder: move it away and run `make repo` again")
    with contextlib.suppress(FileNotFoundError):
        target.rename(old)
    fresh.rename(target)


def _read_texts(folder: Path) -> dict[str, bytes]:
    """Files of a repository, without the bytecode that Python leaves beside model.py."""
    paths = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def _find_problems(folder: Path) -> Iterator[str]:
    models = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if not models:
        yield f"{folder}: holds no model folder"
    for path in sorted(folder.rglob("*")):
        if path.suffix in _READ_SUFFIXES and TEMPLATE_MARK in path.read_text(encoding="utf-8"):
            yield f"{path}: an unfilled template variable ({TEMPLATE_MARK}...)"
    for model in models:
        yield from _find_model_problems(model)


def _find_model_problems(model: Path) -> Iterator[str]:
    config_path = model / "config.pbtxt"
    if not config_path.is_file():
        yield f"{model}: has no config.pbtxt, and Triton takes every folder here for a model"
        return
    text = config_path.read_text(encoding="utf-8")
    if TEMPLATE_MARK in text:
        return  # reported above
    try:
        parsed = parse_pbtxt(text, str(config_path))
    except PackagingError as error:
        yield str(error)
        return
    if parsed.name != model.name:
        yield f"{config_path}: name: '{parsed.name}' is not the name of its folder"
    versions = [path for path in model.iterdir() if path.is_dir() and path.name.isdecimal() and path.name != "0"]
    if not versions:
        yield f"{model}: has no version folder such as {model}/1"
    for version in versions:
        if parsed.backend == "python" and not (version / "model.py").is_file():
            yield f"{version}: has no model.py"
