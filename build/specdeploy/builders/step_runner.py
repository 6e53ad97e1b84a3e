"""Run a step graph: reuse what is finished, run the rest as child processes, never leave anything half there.

A build may be killed at any moment and started again: finished steps are kept, the others start anew. Two builds at
once share work: one lock per step, the second waits and then finds the result.
"""

import shlex
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock

from specdeploy.builders.step_graph import GraphStep, SourcePath, StepGraph, resolve_argv, with_absolute_paths
from specdeploy.builders.step_messages import describe_failure, describe_missing, format_duration
from specdeploy.builders.step_process import POLL_S, Interruption, StepProcess, end_leftovers, interruptible
from specdeploy.builders.step_store import GPU_LOCK, StepStore, find_missing, last_line, prune_steps, read_log_tail
from specdeploy.errors import BuildError
from specdeploy.units import format_bytes

__all__ = ["Host", "prune_steps", "run_graph"]

PROGRESS_S = 10.0  # between two progress lines of a running step
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
    """Bring the steps of `graph` to their finished folders below `work_root`: step name -> folder (absolute).

    `jobs` steps run beside each other at most, those that need the GPU never, not even those of two builds. When one
    fails, none is started any more and those running are let finish, so that their work is kept. A step that is gone
    and that only finished steps would read is not run again, and has no folder in the answer.

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
    locks: tuple[FileLock, ...]
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
    wanted: tuple[GraphStep, ...] = ()
    running: list[_Running] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)

    def check_before(self) -> None:
        """Everything that would make a long build fail late: absent checkpoints, too little disk.

        What nothing needs any more is left out of the run: a conversion whose engine is finished may be gone.
        """
        pending = self._find_pending()
        needed_steps = [step for step in self.steps if step in pending or self.store.is_finished(self.keys[step.name])]
        for step in self.steps:
            if step not in needed_steps:
                self.report(f"{self._place(step)}: not needed, what is made from it is finished")
        self.wanted = tuple(needed_steps)
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

    def _find_pending(self) -> list[GraphStep]:
        """The steps that must run, in order: backwards from those that no step reads."""
        read = {name for step in self.steps for name in step.needs}
        names = {step.name for step in self.steps if step.name not in read}
        pending = []
        for step in reversed(self.steps):  # every step after all that read it
            if step.name in names and not self.store.is_finished(self.keys[step.name]):
                pending.append(step)
                names.update(step.needs)
        return pending[::-1]

    def finish(self) -> dict[str, Path]:
        """Run until every step that is wanted is done, or none can be started any more."""
        try:
            while len(self.done) < len(self.wanted):
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
        return {step.name: self.done[step.name] for step in self.wanted}

    def _start_ready(self) -> bool:
        """Reuse or start every step that can be; whether anything changed."""
        has_moved = False
        for step in self.wanted:
            key = self.keys[step.name]
            is_running = any(running.key == key for running in self.running)
            if step.name in self.done or is_running:
                continue
            if self.store.is_finished(key):
                self._reuse(step)
                has_moved = True
            elif any(name not in self.done for name in step.needs):
                continue
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
        locks = self._try_locks(step)
        if not locks:
            return False
        try:
            if self.store.is_finished(key):  # since it was looked for without the lock
                self._reuse(step)
                return True
            running = self._prepare(step, locks)
        except BaseException:
            _release(locks)
            raise
        finally:
            if step.name in self.done:
                _release(locks)
        self.running.append(running)  # before the process exists: an interrupt in between must find its folder
        self._launch(running)
        return True

    def _try_locks(self, step: GraphStep) -> tuple[FileLock, ...]:
        """The lock of the step and, where it needs one, that of the GPU; none while another build holds one of them."""
        lock = self.store.try_lock(self.keys[step.name])
        if lock is None:
            self._report_waiting(step, "another build runs this step, waiting for it")
            return ()
        if not step.needs_gpu:
            return (lock,)
        gpu = self.store.try_lock(GPU_LOCK)
        if gpu is None:
            lock.release()
            self._report_waiting(step, "another build uses the GPU, waiting for it")
            return ()
        return (lock, gpu)

    def _report_waiting(self, step: GraphStep, text: str) -> None:
        if step.name not in self.waiting:
            self.waiting.add(step.name)
            self.report(f"{self._place(step)}: {text}")

    def _prepare(self, step: GraphStep, locks: tuple[FileLock, ...]) -> _Running:
        key = self.keys[step.name]
        if self.store.folder(key).exists():
            self.report(f"{self._place(step)}: damaged ({self.store.find_damage(key)}), running it again")
        self.store.clear(key)
        partial = self.store.open_partial(key)
        folders: dict[str, Path | str] = {**self.done, step.name: partial}
        local, sources = with_absolute_paths(self.graph, step)
        command = resolve_argv(local, folders, sources)
        heading = f"# {datetime.now(UTC).isoformat(timespec='seconds')} {step.name}\n$ {shlex.join(command)}\n"
        heading_bytes = self.store.open_log(key, heading)
        now = self.host.now()
        return _Running(step, key, locks, partial, command, heading_bytes, now, now)

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
                self.failures[running.step.name] = describe_failure(
                    running.step.name,
                    self.store.log(running.key),
                    running.heading_bytes,
                    exit_code=exit_code,
                    seconds=seconds,
                    free_bytes=self.host.free_bytes(self.store.root),
                )
            elif missing := find_missing(running.partial, running.step):
                self.failures[running.step.name] = describe_missing(
                    running.step.name, self.store.log(running.key), running.heading_bytes, missing
                )
            else:
                record = self.store.commit(running.key, running.partial, running.step, running.command, seconds)
                self.done[running.step.name] = self.store.folder(running.key)
                size = format_bytes(record.num_bytes)
                self.report(f"{self._place(running.step)}: done in {format_duration(seconds)}, {size}")
            self._discard(running)
        return ended

    def _report_progress(self) -> None:
        now = self.host.now()
        for running in self.running:
            if now - running.reported >= PROGRESS_S:
                running.reported = now
                tail = read_log_tail(self.store.log(running.key), running.heading_bytes, PROGRESS_BYTES)
                last = last_line(tail)[:MAX_PROGRESS_LENGTH]
                self.report(
                    f"{self._place(running.step)}: {format_duration(now - running.started)}" + (last and f", {last}")
                )

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
            _release(running.locks)

    def _place(self, step: GraphStep) -> str:
        return f"[{self.steps.index(step) + 1}/{len(self.steps)}] {step.name}"


def _release(locks: tuple[FileLock, ...]) -> None:
    for lock in locks:
        lock.release()
