"""What is said about a step that failed: cause, remedy, the lines that show it, and where the whole log is."""

from collections.abc import Sequence
from pathlib import Path

from specdeploy.builders.step_failures import explain_failure
from specdeploy.builders.step_store import read_log_tail

TAIL_BYTES = 64 << 10  # of a log that is read to explain a failure


def describe_failure(
    name: str, log: Path, heading_bytes: int, *, exit_code: int, seconds: float, free_bytes: int
) -> str:
    """Of a step that ended with `exit_code` (negative = signal); `free_bytes` is what its disk has left."""
    failure = explain_failure(read_log_tail(log, heading_bytes, TAIL_BYTES), exit_code, free_bytes=free_bytes)
    ending = f"exit code {exit_code}" if exit_code >= 0 else f"signal {-exit_code}"
    first = f"step {name}: {failure.cause} ({ending} after {format_duration(seconds)}). {failure.remedy}"
    return _with_log(first, failure.lines, log)


def describe_missing(name: str, log: Path, heading_bytes: int, missing: Sequence[str]) -> str:
    """Of a step that ended well and left outputs out."""
    lines = explain_failure(read_log_tail(log, heading_bytes, TAIL_BYTES), 0).lines
    what = f"it ended without an error but did not write {', '.join(missing)}. Read the log"
    return _with_log(f"step {name}: {what}", lines, log)


def format_duration(seconds: float) -> str:
    """3.24 -> '3.2 s', 75 -> '1 min 15 s', 3700 -> '1 h 1 min'."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds) // 60
    return f"{minutes} min {int(seconds) % 60} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _with_log(first: str, lines: Sequence[str], log: Path) -> str:
    return "\n".join([first, *(f"  | {line}" for line in lines), f"  log: {log}"])
