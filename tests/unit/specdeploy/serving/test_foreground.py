"""The process that stays while a server runs that its launcher started and left."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

SOURCES = str(Path(__file__).parents[4] / "build")


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "specdeploy.serving.foreground", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCES},
        start_new_session=True,
    )


def shell(*lines: str) -> tuple[str, ...]:
    return ("bash", "-c", "\n".join(lines))


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if path.exists() and (text := path.read_text()):
            return text
        time.sleep(0.02)
    raise AssertionError(f"{path} was not written")


@pytest.mark.parametrize(("command", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -KILL $$", 137)])
def test_gives_the_exit_code_of_the_command(command: str, code: int) -> None:
    process = start(*shell(command))
    process.communicate(timeout=30)
    assert process.returncode == code


def test_stays_until_what_the_command_left_has_ended(tmp_path: Path) -> None:
    done = tmp_path / "done"
    process = start(*shell(f"(sleep 0.5; touch {done}; exit 7) & exit 0"))
    process.communicate(timeout=30)

    assert done.exists()
    assert process.returncode == 7


def test_a_server_that_was_left_behind_is_its_child_and_is_ended_with_it(tmp_path: Path) -> None:
    pid_file, ended = tmp_path / "pid", tmp_path / "ended"
    server = f"trap 'echo yes > {ended}; exit 0' TERM; echo $BASHPID > {pid_file}; while true; do sleep 0.05; done"
    process = start(*shell(f"( {server} ) & exit 0"))
    pid = int(wait_for(pid_file))

    try:
        deadline = time.monotonic() + 10
        while pid not in [child.pid for child in psutil.Process(process.pid).children()]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    finally:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)

    assert ended.read_text() == "yes\n"
    assert process.returncode == 0


TRAPS = "trap 'echo term > {log}; exit 0' TERM; trap 'echo int > {log}; exit 0' INT; echo ready > {ready};"


def test_an_interrupt_that_no_terminal_sent_ends_the_server(tmp_path: Path) -> None:
    """As in a container: Ctrl-C reaches one process, and a server in the background has never heard of it."""
    ready, log = tmp_path / "ready", tmp_path / "log"
    process = start(*shell(TRAPS.format(ready=ready, log=log), "while true; do sleep 0.05; done"))
    try:
        wait_for(ready)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    assert log.read_text() == "term\n"
    assert process.returncode == 0


def test_an_interrupt_from_the_terminal_is_not_repeated(tmp_path: Path) -> None:
    ready, log = tmp_path / "ready", tmp_path / "log"
    ours, theirs = pty.openpty()
    take_terminal = (
        "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.executable, sys.argv[1:])"
    )
    lines = (TRAPS.format(ready=ready, log=log), "while true; do sleep 0.05; done")
    process = subprocess.Popen(
        [sys.executable, "-c", take_terminal, sys.executable, "-m", "specdeploy.serving.foreground", *shell(*lines)],
        stdin=theirs,
        env={**os.environ, "PYTHONPATH": SOURCES},
        start_new_session=True,
    )
    try:
        wait_for(ready)
        os.write(ours, b"\x03")
        assert process.wait(timeout=30) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(ours)
        os.close(theirs)
    assert log.read_text() == "int\n"


def test_a_signal_before_the_launcher_ends_reaches_what_it_leaves(tmp_path: Path) -> None:
    ready, go, log = tmp_path / "ready", tmp_path / "go", tmp_path / "log"
    server = f"trap 'echo term > {log}; exit 0' TERM; while true; do sleep 0.05; done"
    launcher = f"trap : TERM; ( {server} ) & echo ready > {ready}; until [[ -e {go} ]]; do sleep 0.02; done; exit 0"
    process = start(*shell(launcher))
    try:
        wait_for(ready)
        time.sleep(0.3)  # the launcher's own child must have set its trap
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert not log.exists()  # only the launcher was told: the server is not a child yet
        go.touch()
        process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert log.read_text() == "term\n"


def test_children_do_not_inherit_what_it_does_about_signals() -> None:
    process = start(sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)")
    assert process.communicate(timeout=30)[0] == "True\n"


@pytest.mark.parametrize(("arguments", "code"), [((), 64), (("/no/such/program",), 127)])
def test_a_command_that_cannot_start(arguments: tuple[str, ...], code: int) -> None:
    process = start(*arguments)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == code
    assert errors.count("\n") == 1
    assert "Traceback" not in errors
