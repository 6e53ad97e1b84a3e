"""Run a step graph: reuse what is finished, run the rest as child processes, never leave anything half there.

A build may be killed at any moment and started again: finished steps are kept, the others start anew. Two builds at
once share work: one lock per step, the second waits and then finds the result.
"""

import shlex
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock

from specdeploy.builders.step_failures import explain_failure
from specdeploy.builders.step_graph import GraphSource, GraphStep, SourcePath, StepGraph, ToolPath, resolve_argv
from specdeploy.builders.step_process import POLL_S, Interruption, StepProcess, end_leftovers, interruptible
from specdeploy.builders.step_store import StepStore, find_missing, last_line, prune_steps, read_log_tail
from specdeploy.errors import BuildError
from specdeploy.units import format_bytes

__all__ = ["Host", "prune_steps", "run_graph"]

PROGRESS_S = 10.0  # between two progress lines of a running step
TAIL_BYTES = 64 << 10  # of a log that is read to explain a failure
PROGRESS_BYTES = 4 << 10  # of a log that is read to find its last line
MAX_PROGRESS_LENGTH = 120

Report = Callable[[str], None]


def _free_bytes(path: Path) -> int:
    return shutil.disk_usage(path).free


@dataclass(frozen=True, slots=True)
class Host:
    """Clock and disk, as a seam for tests. `now` seconds, monotonic; `pause` waits; `free_bytes` of a path's disk."""

    now: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep
    free_bytes: Callable[[Path], int] = _free_bytes


def run_graph(
    graph: StepGraph, work_root: Path, *, report: Report, jobs: int = 1, host: Host | None = None
) -> dict[str, Path]:
    """Bring every step of `graph` to its finished folder below `work_root`: step name -> folder (absolute).

    `jobs` steps run beside each other at most, those that need the GPU never. When one fails, none is started any
    more and those running are let finish, so that their work is kept.

    Raises `BuildError`: a wrong graph, a missing checkpoint or a disk too small before anything starts; then every
    step that failed, with its cause, remedy, last error lines and log. SIGINT, SIGTERM and SIGHUP end all children
    with everything they started, then leave as KeyboardInterrupt or SystemExit.
    """
    keys = graph.keys()
    store = StepStore(work_root)
    with store.in_use(), interruptible() as interruption:
        run = _Run(graph, graph.order(), keys, store, report, jobs, host or Host(), interruption)
        store.clear_abandoned()
        run.check_before()
        return run.finish()


@dataclass(slots=True)
class _Running:
    """A step that was started here. `process` is None in the moment before it exists."""

    step: GraphStep
    key: str
    lock: FileLock
    partial: Path
    command: list[str]
    heading_bytes: int
    started: float
    reported: float
    process: StepProcess | None = None


@dataclass(slots=True)
class _Run:
    graph: StepGraph
    steps: tuple[GraphStep, ...]
    keys: dict[str, str]
    store: StepStore
    report: Report
    jobs: int
    host: Host
    interruption: Interruption
    done: dict[str, Path] = field(default_factory=dict)
    running: list[_Running] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)

    def check_before(self) -> None:
        """Everything that would make a long build fail late: absent checkpoints, too little disk."""
        pending = [step for step in self.steps if not self.store.is_finished(self.keys[step.name])]
        roles = {argument.role for step in pending for argument in step.argv if isinstance(argument, SourcePath)}
        sources = {role: self.graph.sources[role].path for role in sorted(roles)}
        problems = [
            f"{path}: the checkpoint of {role} is not there" for role, path in sources.items() if not path.exists()
        ]
        sizes = {self.keys[step.name]: step.num_bytes or 0 for step in pending}
        # What another build has written of a step already is gone from the free space and will not be written again.
        needed = sum(max(0, num_bytes - self.store.partial_bytes(key)) for key, num_bytes in sizes.items())
        free = self.host.free_bytes(self.store.root)
        if needed > free:
            problems.append(
                f"{self.store.root}: the build needs about {format_bytes(needed)}, the disk has {format_bytes(free)}. "
                "Free space (old builds may be deleted) or use a larger disk for the engines"
            )
        if problems:
            raise BuildError("\n".join(problems))

    def finish(self) -> dict[str, Path]:
        """Run until every step is done, or none can be started any more."""
        try:
            while len(self.done) < len(self.steps):
                has_moved = self._collect()
                if not self.failures:
                    has_moved |= self._start_ready()
                elif not self.running:
                    raise BuildError("\n".join(self.failures.values()))
                if not has_moved:
                    self._report_progress()
                    self.host.pause(POLL_S)
        finally:
            self._drop_running()
        return {step.name: self.done[step.name] for step in self.steps}

    def _start_ready(self) -> bool:
        """Reuse or start every step that can be; whether anything changed."""
        has_moved = False
        for step in self.steps:
            key = self.keys[step.name]
            is_running = any(running.key == key for running in self.running)
            if step.name in self.done or is_running or any(name not in self.done for name in step.needs):
                continue
            if self.store.is_finished(key):
                self._reuse(step)
                has_moved = True
            elif self._has_room(step):
                has_moved |= self._try_start(step)
        return has_moved

    def _has_room(self, step: GraphStep) -> bool:
        is_gpu_free = not (step.needs_gpu and any(running.step.needs_gpu for running in self.running))
        return is_gpu_free and len(self.running) < max(1, self.jobs)

    def _reuse(self, step: GraphStep) -> None:
        self.done[step.name] = self.store.folder(self.keys[step.name])
        maker = "made by the other build" if step.name in self.waiting else "kept from an earlier run"
        self.report(f"{self._place(step)}: {maker}")

    def _try_start(self, step: GraphStep) -> bool:
        key = self.keys[step.name]
        lock = self.store.try_lock(key)
        if lock is None:
            if step.name not in self.waiting:
                self.waiting.add(step.name)
                self.report(f"{self._place(step)}: another build runs this step, waiting for it")
            return False
        try:
            if self.store.is_finished(key):  # since it was looked for without the lock
                self._reuse(step)
                return True
            running = self._prepare(step, lock)
        except BaseException:
            lock.release()
            raise
        finally:
            if step.name in self.done:
                lock.release()
        self.running.append(running)  # before the process exists: an interrupt in between must find its folder
        self._launch(running)
        return True

    def _prepare(self, step: GraphStep, lock: FileLock) -> _Running:
        key = self.keys[step.name]
        if self.store.folder(key).exists():
            self.report(f"{self._place(step)}: damaged ({self.store.find_damage(key)}), running it again")
        self.store.clear(key)
        partial = self.store.open_partial(key)
        folders: dict[str, Path | str] = {**self.done, step.name: partial}
        local, sources = _from_here(self.graph, step)
        command = resolve_argv(local, folders, sources)
        heading = f"# {datetime.now(UTC).isoformat(timespec='seconds')} {step.name}\n$ {shlex.join(command)}\n"
        heading_bytes = self.store.open_log(key, heading)
        now = self.host.now()
        return _Running(step, key, lock, partial, command, heading_bytes, now, now)

    def _launch(self, running: _Running) -> None:
        self.report(f"{self._place(running.step)} ...")
        log = self.store.log(running.key)
        try:
            running.process = StepProcess(running.command, running.step.environment, running.partial, log)
        except OSError as error:
            is_program = isinstance(error, FileNotFoundError | PermissionError)
            remedy = "Run the build where TensorRT-LLM is installed" if is_program else "Free memory, processes or disk"
            reason = f"{running.command[0]}: {error.strerror or error}"
            self.failures[running.step.name] = f"step {running.step.name}: {reason}. {remedy}"
            self._discard(running)

    def _collect(self) -> bool:
        """Take in the steps that have ended; whether there was one."""
        ended = False
        for running in list(self.running):
            if running.process is None or (exit_code := running.process.poll()) is None:
                continue
            ended = True
            end_leftovers(running.partial)  # workers that left the group must not write into a finished folder either
            seconds = self.host.now() - running.started
            if exit_code != 0:
                self.failures[running.step.name] = self._explain(running, exit_code, seconds)
            elif missing := find_missing(running.partial, running.step):
                self.failures[running.step.name] = self._explain_missing(running, missing)
            else:
                record = self.store.commit(running.key, running.partial, running.step, running.command, seconds)
                self.done[running.step.name] = self.store.folder(running.key)
                size = format_bytes(record.num_bytes)
                self.report(f"{self._place(running.step)}: done in {_duration(seconds)}, {size}")
            self._discard(running)
        return ended

    def _explain(self, running: _Running, exit_code: int, seconds: float) -> str:
        tail = read_log_tail(self.store.log(running.key), running.heading_bytes, TAIL_BYTES)
        failure = explain_failure(tail, exit_code, free_bytes=self.host.free_bytes(self.store.root))
        ending = f"exit code {exit_code}" if exit_code >= 0 else f"signal {-exit_code}"
        lines = [
            f"step {running.step.name}: {failure.cause} ({ending} after {_duration(seconds)}). {failure.remedy}",
            *(f"  | {line}" for line in failure.lines),
            f"  log: {self.store.log(running.key)}",
        ]
        return "\n".join(lines)

    def _explain_missing(self, running: _Running, missing: list[str]) -> str:
        log = self.store.log(running.key)
        tail = read_log_tail(log, running.heading_bytes, TAIL_BYTES)
        what = f"it ended without an error but did not write {', '.join(missing)}. Read the log"
        lines = [f"  | {line}" for line in explain_failure(tail, 0).lines]
        return "\n".join([f"step {running.step.name}: {what}", *lines, f"  log: {log}"])

    def _report_progress(self) -> None:
        now = self.host.now()
        for running in self.running:
            if now - running.reported >= PROGRESS_S:
                running.reported = now
                tail = read_log_tail(self.store.log(running.key), running.heading_bytes, PROGRESS_BYTES)
                last = last_line(tail)[:MAX_PROGRESS_LENGTH]
                self.report(f"{self._place(running.step)}: {_duration(now - running.started)}" + (last and f", {last}"))

    def _drop_running(self) -> None:
        """End and remove whatever still runs: after an interruption or an error of this program."""
        if not self.running:
            return
        self.interruption.is_ending = True
        for running in self.running:
            if running.process is not None:
                running.process.end(self.interruption.is_hurried)
        for running in list(self.running):
            self._discard(running)

    def _discard(self, running: _Running) -> None:
        """Forget a step that has ended, whatever it left, and let others have it."""
        self.running.remove(running)
        try:
            if running.partial.exists():
                end_leftovers(running.partial)
                shutil.rmtree(running.partial, ignore_errors=True)
        finally:
            running.lock.release()

    def _place(self, step: GraphStep) -> str:
        return f"[{self.steps.index(step) + 1}/{len(self.steps)}] {step.name}"


def _from_here(graph: StepGraph, step: GraphStep) -> tuple[GraphStep, dict[str, GraphSource]]:
    """`step` and its sources with relative paths made absolute, since children run in their step folder.

    A tool that is a bare name stays one: it is looked up in PATH.
    """
    argv = tuple(
        replace(each, path=each.path.absolute()) if isinstance(each, ToolPath) and len(each.path.parts) > 1 else each
        for each in step.argv
    )
    sources = {role: replace(source, path=source.path.absolute()) for role, source in graph.sources.items()}
    return replace(step, argv=argv), sources


def _duration(seconds: float) -> str:
    """3.24 -> '3.2 s', 75 -> '1 min 15 s', 3700 -> '1 h 1 min'."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds) // 60
    return f"{minutes} min {int(seconds) % 60} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
