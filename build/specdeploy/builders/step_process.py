"""One child process of a build with everything it starts: its own process group, its log, its end.

Two things make sure that nothing survives. The group is killed when the step ends, however it ends. And every process
below carries the step's folder in its environment, so that what a killed runner left behind is found and ended
by the next one (Linux; elsewhere only the group is known).
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from specdeploy.errors import BuildError

FOLDER_VARIABLE = "SPECDEPLOY_STEP_FOLDER"
GRACE_S = 5.0  # between TERM and KILL
POLL_S = 0.02
_PROC = Path("/proc")


class StepProcess:
    """A running command. Its working folder is the step folder: `trtllm-build` drops its timing cache where it runs
    (default of --output_timing_cache)."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path) -> None:
        """Start it, output appended to `log`. Raises `OSError` when the program cannot be started."""
        with log.open("ab") as stream:
            self._process = subprocess.Popen(
                list(argv),
                cwd=folder,
                env={**os.environ, **environment, FOLDER_VARIABLE: str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id, which is the id of its group too."""
        return self._process.pid

    def poll(self) -> int | None:
        """Exit code (negative = signal) once the command has ended, and with it all of its group; else None."""
        if not self._has_ended():
            return None
        self._signal(signal.SIGKILL)  # workers it left behind must not write into a finished folder
        return self._process.wait()

    def end(self, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """End the whole group: TERM, then KILL when the command has ended, after a grace, or at once when hurried."""
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while not self._has_ended() and not is_hurried() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _has_ended(self) -> bool:
        """Without reaping it: an unreaped leader keeps the group id from being given to strangers."""
        if self._process.returncode is not None:
            return True
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, flags) is not None

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)


def end_leftovers(folder: Path, timeout_s: float = 10.0) -> int:
    """Kill every process that was started for the step folder `folder`; how many there were.

    Raises `BuildError` when one cannot be ended (it belongs to another user, or hangs in the kernel).
    """
    killed: set[int] = set()
    deadline = time.monotonic() + timeout_s
    while alive := _find_processes(folder):
        if time.monotonic() > deadline:
            raise BuildError(f"process {alive[0]} of an earlier build still runs in {folder}. End it, then build again")
        for pid in alive:
            killed.add(pid)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)
    return len(killed)


def _find_processes(folder: Path) -> list[int]:
    """Processes whose environment names `folder`; zombies have none. Empty where there is no /proc."""
    wanted = f"{FOLDER_VARIABLE}={folder}".encode()
    found = []
    for path in _PROC.glob("[0-9]*/environ"):
        with suppress(OSError):  # it ended meanwhile, or it is another user's
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return [pid for pid in found if pid != os.getpid()]


@dataclass(slots=True)
class Interruption:
    """How many times somebody asked this process to end, and whether it is ending its children already."""

    count: int = 0
    is_ending: bool = False

    def is_hurried(self) -> bool:
        """Asked more than once: no grace for the children."""
        return self.count > 1


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Turn SIGINT, SIGTERM and SIGHUP into KeyboardInterrupt and SystemExit, once, so that children are ended first.

    A second signal only takes away their grace. A signal that is ignored (`nohup`) stays so. Outside the main thread
    Python allows no handlers: then only exceptions end the children.
    """
    interruption = Interruption()

    def interrupt(number: int, _frame: FrameType | None) -> None:
        interruption.count += 1
        if interruption.count > 1 or interruption.is_ending:
            return
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    replaced = {number: handler for number, handler in before.items() if handler not in (None, signal.SIG_IGN)}
    try:
        for number in replaced:
            signal.signal(number, interrupt)
        yield interruption
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)
