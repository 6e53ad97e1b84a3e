"""Why did the server not come up? The one cause in a log of hundreds of lines."""

import json
import re
from pathlib import Path

# Put before every line of an error that is meant for people: by `serving.model`, launch.sh and what launch.sh asks.
ERROR_MARK = "specdeploy: "

_TAIL_BYTES = 512 * 1024
_MAX_CAUSE_LINES = 12
_MAX_CAUSE_CHARS = 2000

_LINE = re.compile(r"^(?P<level>[IWEF])\d{4} [\d:.]+ \d+ [\w.]+:\d+\] +(?P<message>.*)$")
_FAILED_LOAD = re.compile(r"failed to load '(?P<model>[^']+)' version \d+: [A-Za-z ]+: (?P<reason>.*)", re.DOTALL)
_FRAMES = "\n\nAt:\n"
_NOT_RUN = re.compile(
    r"error while loading shared libraries"
    r"|^\S*python\S*: .*No module named "
    r"|^(bash|\S.*\.sh): line \d+: .+"
    r"|^\S+: (cannot execute|command not found|Permission denied|No such file or directory)"
)
_MPI_RULE = re.compile(r"^-{40,}$", re.MULTILINE)
_MPI_WORDS = re.compile(
    r"\bmpirun\b|\borterun\b|\bprterun\b|slots available|Open MPI|MPI_ABORT|process rank", re.IGNORECASE
)
_MPI_END = re.compile(r"exited|non-zero|MPI_ABORT|terminated", re.IGNORECASE)
_VENDOR_ERROR = re.compile(r"\[TensorRT-LLM\]\[ERROR\]|\[TRT-LLM\] \[E\]")
# Errors that every machine without a GPU logs while all is well.
_HARMLESS = ("CudaDriverHelper has not been initialized", "Failed to initialize NVML", "failed to load all models")


def read_log_tail(path: Path) -> str:
    """The end of a log, long enough for any cause; empty when there is no log."""
    try:
        with path.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - _TAIL_BYTES))
            return stream.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def extract_cause(log_text: str) -> str | None:
    """The most telling error of a Triton server log, at most a dozen lines; None when the log shows none.

    In order: a message marked by this project, the exception that a model failed to load with, the last Python
    traceback, what kept a program of the launch script from running, the last error line, what mpirun says at the end.
    """
    # The server repeats errors in tables, broken over several lines.
    entries = [_parse_line(line) for line in log_text.splitlines() if not line.startswith(("|", "+"))]
    cause = (
        _marked_message(entries)
        or _failed_load(entries)
        or _traceback(log_text)
        or _not_run(log_text)
        or _mpi_refusal(log_text)
        or _last_error(entries)
        or _mpi_end(log_text)
    )
    return _shorten(_explain(cause)) if cause else None


def _parse_line(line: str) -> tuple[str, str]:
    """(level, message) of a line; level is '' for what libraries print on their own."""
    match = _LINE.match(line)
    if match is None:
        return "", line
    message = match["message"].strip()
    if message.startswith('"'):
        try:
            message = str(json.loads(message))
        except ValueError:
            message = message.strip('"').replace("\\n", "\n")
    return match["level"], message


def _marked_message(entries: list[tuple[str, str]]) -> str | None:
    """The last marked message; lines that a script printed one by one, each with its mark, are one message."""
    last = next((index for index in reversed(range(len(entries))) if ERROR_MARK in entries[index][1]), None)
    if last is None:
        return None
    level, message = entries[last]
    if level or not message.startswith(ERROR_MARK):
        return message.partition(ERROR_MARK)[2].split(_FRAMES)[0].strip()
    first = last
    while first > 0 and entries[first - 1][0] == "" and entries[first - 1][1].startswith(ERROR_MARK):
        first -= 1
    return "\n".join(line.removeprefix(ERROR_MARK) for _level, line in entries[first : last + 1]).strip()


def _failed_load(entries: list[tuple[str, str]]) -> str | None:
    for level, message in reversed(entries):
        if level != "E" or (match := _FAILED_LOAD.search(message)) is None:
            continue
        reason, _, frames = match["reason"].partition(_FRAMES)
        innermost = next((frame.strip() for frame in frames.splitlines() if frame.strip()), "")
        place = f" (at {innermost})" if innermost else ""
        return f"model {match['model']}: {reason.strip()}{place}"
    return None


def _traceback(log_text: str) -> str | None:
    _, found, after = log_text.rpartition("Traceback (most recent call last):")
    if not found:
        return None
    return next((line for line in after.splitlines()[1:] if line and not line[0].isspace()), None)


def _not_run(log_text: str) -> str | None:
    """The last line of the dynamic loader, Python or bash about a program that could not be run."""
    return next((line.strip() for line in reversed(log_text.splitlines()) if _NOT_RUN.search(line)), None)


def _mpi_blocks(log_text: str) -> list[str]:
    """mpirun's messages, each between two rules of hyphens."""
    blocks = [" ".join(block.split()) for block in _MPI_RULE.split(log_text)[1::2]]
    return [block for block in blocks if _MPI_WORDS.search(block)]


def _mpi_refusal(log_text: str) -> str | None:
    """Why mpirun started nothing."""
    return next((block for block in _mpi_blocks(log_text) if not _MPI_END.search(block)), None)


def _mpi_end(log_text: str) -> str | None:
    """What mpirun says of a process that ended: where nothing else is told, at least its exit code or signal."""
    return next((block for block in reversed(_mpi_blocks(log_text)) if _MPI_END.search(block)), None)


def _last_error(entries: list[tuple[str, str]]) -> str | None:
    for level, message in reversed(entries):
        if any(text in message for text in _HARMLESS):
            continue
        if level in ("E", "F") or message.lower().startswith("error: ") or _VENDOR_ERROR.match(message):
            return message.split(_FRAMES)[0].strip()
    return None


def _explain(cause: str) -> str:
    """Add what to do where the message of others does not say it."""
    if "is not healthy" in cause:
        return f"{cause.rstrip('.')}: the model's process died (out of memory, or a crash in native code)"
    if "loading shared libraries: libpython" in cause:
        return f"{cause}. The server embeds Python: install the shared library of this Python version"
    if re.search(r"No module named '?specdeploy\b", cause):
        return (
            f"{cause}. Run: python3 -m pip install SOURCE_FOLDER, with the Python that the container starts as python3"
        )
    return cause


def _shorten(cause: str) -> str:
    lines = cause.splitlines()
    if len(lines) > _MAX_CAUSE_LINES:
        lines = [*lines[:_MAX_CAUSE_LINES], "..."]
    text = "\n".join(lines)
    return text if len(text) <= _MAX_CAUSE_CHARS else text[:_MAX_CAUSE_CHARS] + " ..."
