"""Where the steps of a build live on disk: finished folders, running ones, locks, logs.

<key>/                  finished: outputs and `step.json`; made by one rename, never changed afterwards
<key>.partial-<pid>/    running, or left behind by a build that was killed
logs/<key>.log, .log.1  output of the last attempt and of the one before
locks/<key>.lock        held while a step is run or repaired; `locks/gpu.lock` beside it while that needs the GPU
locks/in-use            shared by all running builds
"""

import fcntl
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import ValidationError

from specdeploy.builders.file_errors import file_errors
from specdeploy.builders.step_graph import STEP_RECORD_NAME, GraphStep
from specdeploy.builders.step_process import end_leftovers
from specdeploy.contract import ContractModel
from specdeploy.errors import BuildError

LOGS = "logs"
LOCKS = "locks"
IN_USE = "in-use"
GPU_LOCK = "gpu"  # held beside that of the step by whoever uses the GPU
PARTIAL = ".partial-"


class StepFile(ContractModel):
    """One file of a finished step; `path` relative to the step folder, with forward slashes."""

    path: str
    num_bytes: int


class StepRecord(ContractModel):
    """`step.json`, the marker of a finished step. `command` as it was run, paths of that machine included."""

    name: str
    key: str
    command: tuple[str, ...]
    seconds: float
    num_bytes: int
    files: tuple[StepFile, ...]
    created_at: str


class StepStore:
    """The steps below one `work_root`. Every `OSError` of the file system becomes a `BuildError` naming the path."""

    def __init__(self, work_root: Path) -> None:
        self.root = work_root.resolve()  # one spelling: what a killed build left is looked for by this path
        with file_errors(self.root):
            for folder in (self.root, self.root / LOGS, self.root / LOCKS):
                folder.mkdir(parents=True, exist_ok=True)

    def folder(self, key: str) -> Path:
        """Folder of the finished step `key`, whether it is there or not."""
        return self.root / key

    def log(self, key: str) -> Path:
        """Log of the last attempt at the step `key`."""
        return self.root / LOGS / f"{key}.log"

    def is_finished(self, key: str) -> bool:
        """The step is there, undamaged."""
        return self.folder(key).is_dir() and self.find_damage(key) is None

    def find_damage(self, key: str) -> str | None:
        """What is wrong with a folder that claims to be finished: no marker, a file gone or of another size."""
        path = self.folder(key) / STEP_RECORD_NAME
        try:
            record = StepRecord.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            return f"{STEP_RECORD_NAME} is missing or unreadable"
        for file in record.files:
            try:
                num_bytes = (self.folder(key) / file.path).stat().st_size
            except OSError:
                return f"{file.path} is missing"
            if num_bytes != file.num_bytes:
                return f"{file.path} has {num_bytes} bytes instead of {file.num_bytes}"
        return None

    def try_lock(self, key: str) -> FileLock | None:
        """The lock of the step, or None while another build holds it. The lock dies with its process."""
        lock = FileLock(self.root / LOCKS / f"{key}.lock")
        with file_errors(self.root / LOCKS):
            try:
                lock.acquire(timeout=0)
            except Timeout:
                return None
        return lock

    def clear(self, key: str) -> None:
        """Remove what is not a finished, undamaged step, and end what still runs for it. Needs the lock of `key`."""
        with file_errors(self.folder(key)):
            if self.folder(key).exists() and not self.is_finished(key):
                self.folder(key).replace(self.root / f"{key}{PARTIAL}damaged-{os.getpid()}")
            for partial in sorted(self.root.glob(f"{key}{PARTIAL}*")):
                end_leftovers(partial)
                shutil.rmtree(partial)

    def clear_abandoned(self) -> list[str]:
        """Remove partial folders that no running build owns; their keys."""
        keys = sorted({path.name.partition(PARTIAL)[0] for path in self.root.glob(f"*{PARTIAL}*")})
        cleared = []
        for key in keys:
            if (lock := self.try_lock(key)) is not None:
                try:
                    self.clear(key)
                    cleared.append(key)
                finally:
                    lock.release()
        return cleared

    def partial_bytes(self, key: str) -> int:
        """Bytes that a running or a killed build has written of the step so far."""
        total = 0
        for partial in self.root.glob(f"{key}{PARTIAL}*"):
            for path in partial.rglob("*"):
                with suppress(OSError):  # its owner may remove it meanwhile
                    total += path.stat().st_size if path.is_file() else 0
        return total

    def open_partial(self, key: str) -> Path:
        """A new empty folder for a run of the step. Needs the lock of `key`."""
        partial = self.root / f"{key}{PARTIAL}{os.getpid()}"
        with file_errors(partial):
            partial.mkdir()
        return partial

    def open_log(self, key: str, heading: str) -> int:
        """Start a new log with `heading`, the last one kept as `.1`; bytes of the heading."""
        log = self.log(key)
        with file_errors(log):
            if log.exists():
                log.replace(log.with_name(f"{log.name}.1"))
            log.write_text(heading)
        return len(heading.encode())

    def commit(self, key: str, partial: Path, step: GraphStep, command: list[str], seconds: float) -> StepRecord:
        """Make a filled folder the finished step by one rename. Needs the lock of `key`."""
        with file_errors(partial):
            files = tuple(
                StepFile(path=path.relative_to(partial).as_posix(), num_bytes=path.stat().st_size)
                for path in output_files(partial, step)
            )
            record = StepRecord(
                name=step.name,
                key=key,
                command=tuple(command),
                seconds=round(seconds, 3),
                num_bytes=sum(file.num_bytes for file in files),
                files=files,
                created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            with (partial / STEP_RECORD_NAME).open("w") as stream:
                stream.write(record.model_dump_json(indent=2) + "\n")
                stream.flush()
                os.fsync(stream.fileno())
            partial.replace(self.folder(key))
        return record

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """While it lasts, no finished step is pruned."""
        with _flock(self.root, fcntl.LOCK_SH):
            yield


def output_files(folder: Path, step: GraphStep) -> list[Path]:
    """Every file of the outputs of `step` below `folder`, sorted."""
    paths: list[Path] = []
    for name in step.outputs:
        output = folder / name
        paths += [output] if output.is_file() else [path for path in output.rglob("*") if path.is_file()]
    return sorted(paths)


def find_missing(folder: Path, step: GraphStep) -> list[str]:
    """Outputs and required files of `step` that are not below `folder` or are empty."""
    missing = []
    for name in step.outputs:
        output = folder / name
        if not output.is_file() and not (output.is_dir() and any(path.is_file() for path in output.rglob("*"))):
            missing.append(name)
    for pattern in step.required_files:
        matches = [path for path in folder.glob(pattern) if path.is_file()]
        if not matches or any(path.stat().st_size == 0 for path in matches):
            missing.append(pattern)
    return missing


def read_log_tail(log: Path, skip: int, num_bytes: int) -> str:
    """The last `num_bytes` of `log`, but nothing of its first `skip`; empty when it cannot be read."""
    try:
        with log.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(skip, size - num_bytes))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def last_line(text: str) -> str:
    """The last line that is not empty; a progress bar's carriage return ends a line too."""
    lines = [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def prune_steps(work_root: Path, keep: Collection[str]) -> int:
    """Delete the finished steps whose key is not in `keep`, with their logs, and what killed builds left; bytes freed.

    A step whose files a build shares by hard links stays: it takes no space of its own, and saves compiling again.

    Raises `BuildError` while a build of this folder runs: it may read any finished step.
    """
    if not work_root.is_dir():
        return 0
    store = StepStore(work_root)
    freed = 0
    with _flock(store.root, fcntl.LOCK_EX | fcntl.LOCK_NB):
        store.clear_abandoned()
        for path in sorted(store.root.iterdir()):
            if not (path / STEP_RECORD_NAME).is_file() or path.name in keep:
                continue
            files = [each.stat() for each in path.rglob("*") if each.is_file()]
            if any(file.st_nlink > 1 for file in files):
                continue
            freed += sum(file.st_size for file in files)
            partial = path.replace(store.root / f"{path.name}{PARTIAL}pruned")  # never half there
            with file_errors(partial):
                shutil.rmtree(partial)
            for log in (store.root / LOGS).glob(f"{path.name}.log*"):
                log.unlink()
    return freed


@contextmanager
def _flock(root: Path, mode: int) -> Iterator[None]:
    """Hold `locks/in-use` shared or alone; it dies with the process."""
    with file_errors(root):
        descriptor = os.open(root / LOCKS / IN_USE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with file_errors(root):
            try:
                fcntl.flock(descriptor, mode)
            except BlockingIOError:
                raise BuildError(f"{root}: a build is running here. Wait for it to end") from None
        yield
    finally:
        os.close(descriptor)
