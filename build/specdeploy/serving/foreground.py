"""`python3 -m specdeploy.serving.foreground COMMAND...`: run a command that starts a server and returns, and stay.

launch_triton_server.py starts mpirun and ends at once. Whoever supervises the server (a shell, `serve`, a container)
needs one process that lives as long as it does and that ends it when told to. This is that process: what the command
leaves behind becomes its child (Linux: child subreaper), it waits for all of them and hands SIGTERM on.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


@dataclass(slots=True)
class _Told:
    """The signal that was asked to be handed on, None before the first, and which children got it."""

    number: int | None = None
    pids: set[int] = field(default_factory=set)

    def tell(self, number: int) -> None:
        """Remember `number` and send it to every child, again to those that an earlier call told."""
        self.number = number
        self.pids.clear()
        self.repeat()

    def repeat(self) -> None:
        """Send what is remembered to the children that came since: what a launcher left behind when it ended."""
        if self.number is None:
            return
        for pid in set(_children(os.getpid())) - self.pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, self.number)
            self.pids.add(pid)


def run_in_foreground(command: Sequence[str]) -> int:
    """Run `command` and wait for it and everything it leaves behind. Gives the first exit code that is not 0.

    SIGTERM and SIGHUP go to every process that is waited for, also to those that become children later. Ctrl-C reaches
    them from the terminal by itself; a SIGINT without one (a container, a supervisor) is handed on as SIGTERM. Raises
    `OSError` when the command cannot be started.
    """
    told = _Told()

    def hand_on(number: int, _frame: FrameType | None) -> None:
        told.tell(number)

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if not _is_in_foreground():
            told.tell(signal.SIGTERM)

    _adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, hand_on)
    signal.signal(signal.SIGINT, interrupt)
    # Children must not inherit what this process ignores or handles.
    defaults = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]
    os.posix_spawnp(command[0], list(command), os.environ, setsigdef=defaults)
    exit_code = 0
    with suppress(ChildProcessError):  # no child is left
        while True:
            told.repeat()
            pid, status = os.wait()
            told.pids.discard(pid)
            exit_code = exit_code or _exit_code(status)
    return exit_code


def _is_in_foreground() -> bool:
    """Whether a terminal sends Ctrl-C to this process and its children: they are its foreground process group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:  # no controlling terminal
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _adopt_orphans() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot adopt the processes of the server: {os.strerror(number)}")


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with suppress(OSError, ValueError, IndexError):
            # pid (command, which may hold spaces and parentheses) state ppid ...
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent:
                found.append(int(entry.name))
    return found


def _exit_code(status: int) -> int:
    """As a shell gives it: 128 + number for a process ended by a signal."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def main() -> int:
    """Entry of the module: the arguments are the command."""
    if len(sys.argv) < 2:
        sys.stderr.write("usage: python3 -m specdeploy.serving.foreground COMMAND [ARGUMENT ...]\n")
        return 64
    try:
        return run_in_foreground(sys.argv[1:])
    except OSError as error:
        sys.stderr.write(f"{sys.argv[1]}: {error.strerror or error}\n")
        return 127


if __name__ == "__main__":
    sys.exit(main())
