"""What a server would be started with: checked against what was built and packed, before anything is started.

Lane torch starts the server itself. The TensorRT-LLM lanes start the launch.sh packed beside the models, inside
their container only, and with the versions the build was made with.
"""

import ipaddress
import os
import secrets
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from specdeploy.config.load import LoadedDeployment
from specdeploy.config.schema import ServingConfig
from specdeploy.contract import ConstrainedPolicy, Lane
from specdeploy.errors import ServerError, SpecDeployError
from specdeploy.manifest import CurrentBuild, load_current_build
from specdeploy.serving.installation import (
    ENGINES_ROOT_VARIABLE,
    ServerInstallation,
    find_container,
    find_installation,
    server_environment,
)
from specdeploy.serving.packed_repository import repository_problems
from specdeploy.serving.place import place_problems
from specdeploy.serving.runtime_versions import Installed, find_installed_versions, runtime_problems
from specdeploy.verdict_contract import IntegrityReport, Status

MODEL = "llm"
# Below STOP_GRACE_S: requests in flight get this long, then the server leaves by itself.
_EXIT_TIMEOUT_S = 10
# Importing torch and reading weights happens while the server waits for the stub; its default is 30 s.
_STUB_TIMEOUT_S = 300
LAUNCH_SCRIPT = "launch.sh"
SHM_PREFIX_VARIABLE = "SPECDEPLOY_SHM_PREFIX"
CANARY_VARIABLE = "SPECDEPLOY_CANARY"
_START_TIMEOUT_S = 300.0
# Engines and snapshots of hundreds of gigabytes are read from disk before the server answers.
_LARGE_START_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything that starting a server needs, decided; `state_folder` is where its state, log and layout live."""

    deployment: str
    build_id: str
    config_digest: str
    serving: ServingConfig
    model_repository: Path
    engines_root: Path
    state_folder: Path
    installation: ServerInstallation
    shm_prefix: str
    lane: Lane = Lane.TORCH
    is_canary: bool = False

    @property
    def log_path(self) -> Path:
        """Standard output and error of the server."""
        return self.state_folder / "server.log"

    @property
    def start_timeout_s(self) -> float:
        """How long a start may take before it counts as failed."""
        return _START_TIMEOUT_S if self.lane is Lane.TORCH else _LARGE_START_TIMEOUT_S

    def command(self) -> list[str]:
        """The command line of the server; the first word is the path of a program."""
        if self.lane is not Lane.TORCH:
            return [shutil.which("bash") or "/bin/bash", str(self.model_repository / LAUNCH_SCRIPT)]
        serving = self.serving
        return [
            str(self.installation.binary),
            f"--model-repository={self.model_repository}",
            f"--backend-directory={self.installation.backend_directory(self.state_folder)}",
            "--model-control-mode=none",
            "--disable-auto-complete-config",
            "--exit-on-error=true",
            f"--exit-timeout-secs={_EXIT_TIMEOUT_S}",
            f"--http-address={serving.host}",
            f"--http-port={serving.http_port}",
            f"--grpc-address={serving.host}",
            f"--grpc-port={serving.grpc_port}",
            f"--metrics-address={serving.host}",
            f"--metrics-port={serving.metrics_port}",
            "--log-info=true",
            f"--backend-config=python,shm-region-prefix-name={self.shm_prefix}",
            f"--backend-config=python,stub-timeout-seconds={_STUB_TIMEOUT_S}",
        ]

    def environment(self) -> dict[str, str]:
        """The environment of the server."""
        environment = server_environment(self.installation, self.engines_root, os.environ)
        environment.pop(CANARY_VARIABLE, None)
        if self.is_canary:
            environment[CANARY_VARIABLE] = "1"
        if self.lane is not Lane.TORCH:
            environment[SHM_PREFIX_VARIABLE] = self.shm_prefix
        return environment

    def describe(self) -> str:
        """The command as one would type it, with the environment that matters."""
        environment = self.environment()
        names = ("LD_LIBRARY_PATH", "PATH", ENGINES_ROOT_VARIABLE, SHM_PREFIX_VARIABLE, CANARY_VARIABLE)
        changed = [name for name in names if name in environment and environment[name] != os.environ.get(name)]
        parts = [f"{name}={shlex.quote(environment[name])}" for name in changed]
        return " \\\n  ".join(["env", *parts, *(shlex.quote(part) for part in self.command())])


def plan_launch(
    loaded: LoadedDeployment,
    *,
    engines_root: Path,
    repo_root: Path,
    state_root: Path,
    installation: ServerInstallation | None = None,
    installed: Installed | None = None,
    is_canary: bool = False,
) -> LaunchPlan:
    """Check that what was built and packed is what the config asks for. Raises `ServerError` naming all that is not.

    `installation` and `installed` (versions of TensorRT-LLM and what it needs) are looked for where not given.
    `is_canary`: a server for trying out, on this machine alone (see `ConstrainedPolicy`).
    """
    config = loaded.config
    is_vendor_lane = config.lane is not Lane.TORCH
    repository = repo_root / config.name
    problems = _canary_problems(loaded) if is_canary else []
    if is_vendor_lane:
        installation = installation or find_container()
        problems += place_problems(config, engines_root, repository, is_in_container=installation is not None)
        if installation is None:
            installed = None  # versions here are not those it will run with
        elif installed is None:
            installed = find_installed_versions(os.environ)
    current: CurrentBuild | None = None
    try:
        current = load_current_build(engines_root, config.name)
        problems += _build_problems(current, loaded, engines_root)
        if config.speculation.constrained is ConstrainedPolicy.ON and not is_canary:
            problems += _integrity_problems(current, loaded, engines_root)
        if is_vendor_lane:
            problems += runtime_problems(engines_root, current.build_id, installed)
    except SpecDeployError as error:
        problems.append(
            f"{error}" if "make engines" in str(error) else f"{error}. Run: {make_command('engines', config.name)}"
        )
    problems += _repository_problems(loaded, repository, current)
    if problems or current is None:
        raise ServerError("\n".join(dict.fromkeys(problems)))
    return LaunchPlan(
        deployment=config.name,
        build_id=current.build_id,
        config_digest=loaded.digest,
        serving=config.serving,
        model_repository=repository.resolve(),
        engines_root=engines_root.resolve(),
        state_folder=(state_root / config.name).resolve(),
        installation=installation or find_installation(),
        shm_prefix=new_shm_prefix(config.name),
        lane=config.lane,
        is_canary=is_canary,
    )


def new_shm_prefix(deployment: str) -> str:
    """A prefix for shared memory that no other start of any server has."""
    return f"specdeploy_{deployment}_{secrets.token_hex(4)}_"


def _canary_problems(loaded: LoadedDeployment) -> list[str]:
    host = loaded.config.serving.host
    problems = []
    if loaded.config.lane is not Lane.TORCH:
        problems.append(f"{loaded.path}: lane: {loaded.config.lane} has no canary servers. Serve it without --canary")
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        reason = f"{host} can be reached from other machines, a canary server must not be"
        problems.append(f"{loaded.path}: serving.host: {reason}. Write 127.0.0.1, or serve it without --canary")
    return problems


def _integrity_problems(current: CurrentBuild, loaded: LoadedDeployment, engines_root: Path) -> list[str]:
    """`speculation.constrained: on` needs a passed report of this very build."""
    name, dtype = loaded.config.name, loaded.config.dtype.value
    path = engines_root / "integrity" / f"{current.build_id}-{name}.json"
    wanted = f"{loaded.path}: speculation.constrained: on needs a passed integrity report of build {current.build_id}"
    remedy = f"Run: specdeploy serve {name} --canary, then: {make_command('verify', name)}, or write off"
    try:
        report = IntegrityReport.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return [f"{wanted}, and {path} does not exist. {remedy}"]
    except (OSError, ValueError) as error:
        return [f"{wanted}, and {path} cannot be read: {error}. {remedy}"]
    if (report.deployment, report.build_id, report.dtype) != (name, current.build_id, dtype):
        return [f"{wanted}, and {path} is of another. {remedy}"]
    return [] if report.status is Status.PASS else [f"{wanted}, and {path} says {report.status}. {remedy}"]


def _build_problems(current: CurrentBuild, loaded: LoadedDeployment, engines_root: Path) -> list[str]:
    name = loaded.config.name
    if current.config_digest != loaded.digest:
        then = "" if loaded.config.lane is Lane.TORCH else f", then: {make_command('repo', name)}"
        changed = f"{loaded.path}: changed since {engines_root / name}.json was written"
        return [f"{changed}. Run: {make_command('engines', name)}{then}"]
    if not (engines_root / current.build_id / "manifest.json").is_file():
        return [f"{engines_root / current.build_id}: the build is gone. Run: {make_command('engines', name)}"]
    return []


def _repository_problems(loaded: LoadedDeployment, repository: Path, current: CurrentBuild | None) -> list[str]:
    """Is the repository there, as it was packed, and for this build?"""
    name = loaded.config.name
    if not (repository / MODEL / "config.pbtxt").is_file():
        return [f"{repository}: holds no model repository. Run: {make_command('repo', name)}"]
    try:
        problems = [] if current is None else repository_problems(repository, current)
    except SpecDeployError as error:
        return [str(error)]
    section = loaded.config.tensorrt_llm
    needs_script = loaded.config.lane is not Lane.TORCH and section is not None and section.num_nodes == 1
    if needs_script and not problems and not (repository / LAUNCH_SCRIPT).is_file():
        problems.append(f"{repository}: has no {LAUNCH_SCRIPT}. Run: {make_command('repo', name)}")
    return problems


def make_command(target: str, deployment: str) -> str:
    """The make target that mends things, as one types it."""
    return f"make {target} DEPLOYMENT={deployment}"
