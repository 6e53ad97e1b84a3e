"""The parent's side of an arm: a process that loaded one configuration and generates on request.

One line of JSON each way (arm.py). All arms of a run stay loaded, and only the one that was asked computes: the others
are stopped, because some engines wait for work by spinning, which would halve everybody else's speed.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

_PROGRAM = Path(__file__).with_name("arm.py")
_LOAD_SECONDS = 1200.0  # an arm that compiles itself the first time takes minutes
_ANSWER_SECONDS = 300.0


class ArmError(Exception):
    """The arm died, answered nonsense or did not answer in time; the message names its log."""


@dataclass(frozen=True, slots=True)
class ArmSpec:
    """What one arm is. `options` go to arm.py as `--name value`; `python` is the interpreter of its environment."""

    name: str
    kind: str
    options: dict[str, str] = field(default_factory=dict)
    python: str = sys.executable
    environment: dict[str, str] = field(default_factory=dict)

    def command(self, num_threads: int) -> list[str]:
        """The command line that starts it."""
        flags = [text for name, value in self.options.items() for text in (f"--{name}", value)]
        return [self.python, str(_PROGRAM), self.kind, "--threads", str(num_threads), *flags]


@dataclass(frozen=True, slots=True)
class Answer:
    """One generation: seconds from the prompts to the last token, to the first token (None: not seen), the tokens of
    every prompt, and the counts of the drafting (None: not counted)."""

    seconds: float
    first_token_seconds: float | None
    token_ids: list[list[int]]
    num_steps: int | None
    num_draft_tokens: int | None
    num_accepted_tokens: int | None


class ArmProcess:
    """Starts the arm and waits until it has loaded. `skipped` says why it cannot run, None when it can."""

    def __init__(self, spec: ArmSpec, *, num_threads: int, log_folder: Path) -> None:
        """Raises ArmError when it neither loads nor says why not."""
        self.name = spec.name
        log_folder.mkdir(parents=True, exist_ok=True)
        self._log_path = log_folder / f"{spec.name}.log"
        cores = sorted(os.sched_getaffinity(0))[:num_threads]
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                spec.command(num_threads),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,  # an arm may have processes of its own, which must not outlive it
                env={**os.environ, **spec.environment},
                preexec_fn=lambda: os.sched_setaffinity(0, cores),  # the arm's thread pool inherits it
            )
        if self._process.stdin is None or self._process.stdout is None:
            raise ArmError(f"{spec.name}: started without pipes")
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._pending = b""
        try:
            hello = self._receive(_LOAD_SECONDS)
        except ArmError:
            self.close()
            raise
        self.skipped: str | None = hello.get("skip")
        self.facts: dict[str, Any] = hello.get("facts", {})
        self._signal(signal.SIGSTOP)

    def generate(
        self, prompts: list[tuple[int, ...]], max_tokens: list[int], *, stop_ids: tuple[int, ...] = ()
    ) -> Answer:
        """All prompts at once, `max_tokens[i]` tokens of prompt i or up to one of `stop_ids`. Raises ArmError."""
        self._signal(signal.SIGCONT)
        self._send({"prompts": prompts, "max_tokens": max_tokens, "stop_ids": stop_ids})
        answer = Answer(**self._receive(_ANSWER_SECONDS))
        self._signal(signal.SIGSTOP)
        lengths = [len(tokens) for tokens in answer.token_ids]
        if not stop_ids and lengths != max_tokens:
            raise ArmError(f"{self.name}: asked for {max_tokens} tokens, got {lengths}: nothing could be compared")
        return answer

    def close(self) -> None:
        """Ask it to end; kill it if it does not."""
        self._signal(signal.SIGCONT)
        self._stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=20)
        with suppress(ProcessLookupError):  # it, or what it left behind
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._stdout.close()

    def __enter__(self) -> "ArmProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _signal(self, number: signal.Signals) -> None:
        """To the arm and to processes of its own."""
        with suppress(psutil.NoSuchProcess):
            arm = psutil.Process(self._process.pid)
            for process in (arm, *arm.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(number)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._stdin.write(json.dumps(message).encode() + b"\n")
        except BrokenPipeError as error:
            raise ArmError(f"{self.name}: the process is gone; see {self._log_path}") from error

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._pending:
            ready, _, _ = select.select([self._stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise ArmError(f"{self.name}: no answer within {timeout_s:.0f} s; see {self._log_path}")
            chunk = self._stdout.read(1 << 16)
            if not chunk:
                raise ArmError(f"{self.name}: the process ended without an answer; see {self._log_path}")
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise ArmError(f"{self.name}: {message['error']}; see {self._log_path}")
        return message
