"""Start, watch and stop the Triton server of one deployment.

The server outlives the shell that started it. `<state_root>/<deployment>/server.json` says which process it is (pid
and creation time, so that a reused pid is never mistaken for it); a prefix of its shared memory, unique to this start,
marks the stub processes and memory regions that belong to it.
"""

import os
import shlex
import shutil
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Literal

import httpx
import psutil
from filelock import FileLock
from pydantic import ValidationError

from specdeploy.config.schema import ServingConfig
from specdeploy.contract import ContractModel
from specdeploy.errors import PortInUseError, ServerError
from specdeploy.manifest import write_json_atomically
from specdeploy.serving.installation import lay_out_backends
from specdeploy.serving.launch import LaunchPlan, make_command
from specdeploy.serving.server_log import extract_cause, read_log_tail

DEFAULT_START_TIMEOUT_S = 300.0
STOP_GRACE_S = 20.0
_POLL_S = 0.2
# Creation times are derived from the machine's boot time, which clock adjustments move a little.
_CREATE_TIME_TOLERANCE_S = 2.0
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  (POSIX shared memory, not a place for temporary files)
_PORT_KEYS = ("http_port", "grpc_port", "metrics_port")


class ServerState(ContractModel):
    """`server.json`: the server that was started for a deployment, and what it serves."""

    schema_version: Literal[1] = 1
    deployment: str
    pid: int
    create_time: float
    host: str
    http_port: int
    grpc_port: int
    metrics_port: int
    build_id: str
    config_digest: str
    shm_prefix: str
    log_path: str
    started_at: str
    is_canary: bool = False


class ServerStatus(ContractModel):
    """What `status` shows. `state` is None when no server is running."""

    deployment: str
    running: bool
    ready: bool
    uptime_s: float | None = None
    state: ServerState | None = None


class StopOutcome(StrEnum):
    """How `stop_server` found and left things."""

    STOPPED = "stopped"
    KILLED = "killed"
    NOT_RUNNING = "not running"


# --- starting -------------------------------------------------------------------------------------------------------


def start_server(
    plan: LaunchPlan,
    *,
    timeout_s: float = DEFAULT_START_TIMEOUT_S,
    on_wait: Callable[[float], None] = lambda _elapsed_s: None,
) -> tuple[ServerState, bool]:
    """Start the server and wait until its model is ready. The flag is False when it was running already.

    `on_wait` is called about five times a second with the seconds waited. A server that does not come up is ended
    and `ServerError` carries the cause.
    """
    plan.state_folder.mkdir(parents=True, exist_ok=True)
    with FileLock(plan.state_folder / "start.lock"):
        if (running := load_running_state(plan.state_folder)) is not None:
            _check_serves_plan(running, plan)
            return running, False
        check_ports(plan.serving, plan.state_folder.parent)
        lay_out_backends(plan.installation, plan.state_folder)
        state = _spawn(plan)
    try:
        _wait_until_ready(state, timeout_s, on_wait)
    except BaseException:  # an interrupt too must not leave a half-started server behind
        _end_processes(state, grace_s=5.0)
        _forget(plan.state_folder, state)
        raise
    return state, True


def _check_serves_plan(running: ServerState, plan: LaunchPlan) -> None:
    stop_first = f"Run: {make_command('stop', plan.deployment)}, then serve again"
    if running.build_id != plan.build_id:
        raise ServerError(
            f"{plan.deployment}: already running (pid {running.pid}) with build {running.build_id}, "
            f"not {plan.build_id}. {stop_first}"
        )
    if running.config_digest != plan.config_digest:
        raise ServerError(f"{plan.deployment}: already running (pid {running.pid}) with an older config. {stop_first}")
    if running.is_canary != plan.is_canary:
        kind = "a canary server" if running.is_canary else "no canary server"
        raise ServerError(f"{plan.deployment}: already running (pid {running.pid}) as {kind}. {stop_first}")
    if not is_ready(running):
        raise ServerError(
            f"{plan.deployment}: already running (pid {running.pid}) but not ready yet; "
            f"its log is {running.log_path}. Wait, or {stop_first[0].lower()}{stop_first[1:]}"
        )


def _spawn(plan: LaunchPlan) -> ServerState:
    log = plan.log_path
    if log.exists():
        log.replace(log.with_name("server.previous.log"))
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    # posix_spawn, not subprocess: the server is meant to outlive this process, nobody here owns it.
    command = plan.command()
    pid = os.posix_spawn(
        command[0],
        command,
        plan.environment(),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), append, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    state = ServerState(
        deployment=plan.deployment,
        pid=pid,
        create_time=psutil.Process(pid).create_time(),
        host=plan.serving.host,
        http_port=plan.serving.http_port,
        grpc_port=plan.serving.grpc_port,
        metrics_port=plan.serving.metrics_port,
        build_id=plan.build_id,
        config_digest=plan.config_digest,
        shm_prefix=plan.shm_prefix,
        is_canary=plan.is_canary,
        log_path=str(log),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    write_json_atomically(_state_path(plan.state_folder), state)
    return state


def _wait_until_ready(state: ServerState, timeout_s: float, on_wait: Callable[[float], None]) -> None:
    process = _process(state)
    started = time.monotonic()
    while process is not None:
        try:
            exit_code = process.wait(timeout=_POLL_S)
        except psutil.TimeoutExpired:
            pass
        else:
            raise ServerError(_failure(state, f"the server ended while it was loading ({_exit_reason(exit_code)})"))
        if is_ready(state):
            return
        elapsed_s = time.monotonic() - started
        on_wait(elapsed_s)
        if elapsed_s > timeout_s:
            raise ServerError(_failure(state, f"it was not ready after {timeout_s:.0f} s"))
    raise ServerError(_failure(state, "the server ended at once"))


def _failure(state: ServerState, what: str) -> str:
    cause = extract_cause(read_log_tail(Path(state.log_path)))
    return f"{state.deployment}: {f'the server did not start: {cause}' if cause else what}\nLog: {state.log_path}"


def _exit_reason(exit_code: int | None) -> str:
    if exit_code is None:
        return "exit status unknown"
    if exit_code >= 0:
        return f"exit status {exit_code}"
    hint = ", often out of memory" if -exit_code == signal.SIGKILL else ""
    return f"signal {-exit_code}{hint}"


def is_ready(state: ServerState) -> bool:
    """Whether this server answers that all its models are ready: `llm` loads before the engines it calls."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(state.host, state.host)  # noqa: S104  (compared, not bound)
    host = f"[{host}]" if ":" in host else host
    try:
        response = httpx.get(f"http://{host}:{state.http_port}/v2/health/ready", timeout=2.0, trust_env=False)
    except httpx.HTTPError:
        return False
    return response.status_code == httpx.codes.OK


# --- ports ----------------------------------------------------------------------------------------------------------


def check_ports(serving: ServingConfig, state_root: Path) -> None:
    """Raise `PortInUseError` naming every port of the config that is taken, and by whom where that is visible."""
    busy = []
    for key in _PORT_KEYS:
        port = int(getattr(serving, key))
        if not _can_bind(serving.host, port):
            busy.append(
                f"serving.{key}: port {port} is taken by {_holder(port, state_root)}. "
                f"Stop that process or write another port"
            )
    if busy:
        raise PortInUseError("\n".join(busy))


def _can_bind(host: str, port: int) -> bool:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except PermissionError as error:
        raise ServerError(f"serving: port {port} needs privileges ({error}). Write a port above 1023") from error
    except OSError as error:
        if isinstance(error, socket.gaierror) or "assign requested address" in str(error):
            raise ServerError(f"serving.host: {host} is not an address of this machine ({error})") from error
        return False
    return True


def _holder(port: int, state_root: Path) -> str:
    """Who listens on `port`, in words."""
    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections(kind="tcp"):
            listens = connection.status == psutil.CONN_LISTEN and getattr(connection.laddr, "port", None) == port
            if not listens or connection.pid is None:
                continue
            command = shlex.join(psutil.Process(connection.pid).cmdline())
            shown = command if len(command) <= 120 else command[:117] + "..."
            ours = _deployment_of(connection.pid, state_root)
            remedy = f", the server of deployment {ours} (stop it with: {make_command('stop', ours)})" if ours else ""
            return f"pid {connection.pid} ({shown}){remedy}"
    return "a process of another user or namespace (not visible)"


def _deployment_of(pid: int, state_root: Path) -> str | None:
    for path in state_root.glob("*/server.json"):
        state = _load_state(path.parent)
        if state is not None and state.pid == pid:
            return state.deployment
    return None


# --- state ----------------------------------------------------------------------------------------------------------


def _state_path(state_folder: Path) -> Path:
    return state_folder / "server.json"


def _load_state(state_folder: Path) -> ServerState | None:
    try:
        return ServerState.model_validate_json(_state_path(state_folder).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def load_running_state(state_folder: Path) -> ServerState | None:
    """The server of this deployment if it is alive. What a dead one left (state, stubs, memory) is cleaned."""
    state = _load_state(state_folder)
    if state is None:
        _state_path(state_folder).unlink(missing_ok=True)
        return None
    if _process(state) is not None:
        return state
    _end_processes(state, grace_s=0.0)
    _forget(state_folder, state)
    return None


def _process(state: ServerState) -> psutil.Process | None:
    """The living process this state is about, or None."""
    try:
        process = psutil.Process(state.pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        if abs(process.create_time() - state.create_time) > _CREATE_TIME_TOLERANCE_S:
            return None
    except psutil.Error:
        return None
    return process


def _forget(state_folder: Path, state: ServerState) -> None:
    for region in _SHARED_MEMORY.glob(f"{state.shm_prefix}*"):
        with suppress(OSError):
            region.unlink()
    shutil.rmtree(state_folder / "backends", ignore_errors=True)
    if (known := _load_state(state_folder)) is None or known.pid == state.pid:
        _state_path(state_folder).unlink(missing_ok=True)


# --- stopping and looking -------------------------------------------------------------------------------------------


def stop_server(state_root: Path, deployment: str, *, grace_s: float = STOP_GRACE_S) -> StopOutcome:
    """End the server of `deployment` and its stubs, nothing else. Requests in flight get time to finish."""
    state_folder = state_root / deployment
    state = load_running_state(state_folder)
    if state is None:
        return StopOutcome.NOT_RUNNING
    outcome = _end_processes(state, grace_s=grace_s)
    _forget(state_folder, state)
    return outcome


def inspect_server(state_root: Path, deployment: str) -> ServerStatus:
    """Is it running, is it ready, since when?"""
    state = load_running_state(state_root / deployment)
    if state is None:
        return ServerStatus(deployment=deployment, running=False, ready=False)
    return ServerStatus(
        deployment=deployment,
        running=True,
        ready=is_ready(state),
        uptime_s=max(0.0, time.time() - state.create_time),
        state=state,
    )


def _end_processes(state: ServerState, *, grace_s: float) -> StopOutcome:
    """SIGTERM to the server, which ends its stubs; SIGKILL to whatever is left of them after `grace_s`."""
    server = _process(state)
    processes = [server, *_descendants(server)] if server is not None else []
    processes += [stub for stub in _stubs(state.shm_prefix) if stub not in processes]
    if server is not None:
        with suppress(psutil.Error):
            server.terminate()
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    alive = [process for process in alive if _is_alive(process)]
    for process in alive:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=5.0)
    return StopOutcome.KILLED if alive else StopOutcome.STOPPED


def _descendants(process: psutil.Process) -> Sequence[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _stubs(shm_prefix: str) -> list[psutil.Process]:
    """Stub processes of this start: the server hands each one a region with its prefix on the command line."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(argument.startswith(shm_prefix) for argument in process.cmdline()):
                found.append(process)
    return found


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
