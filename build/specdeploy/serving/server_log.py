"""Why did the server not come up? The one cause in a log of hundreds of lines."""

import json
import re
from pathlib import Path

# `serving.model` puts this before the message of an error that is meant for people.
ERROR_MARK = "specdeploy: "

_TAIL_BYTES = 512 * 1024
_MAX_CAUSE_LINES = 12
_MAX_CAUSE_CHARS = 2000

_LINE = re.compile(r"^(?P<level>[IWEF])\d{4} [\d:.]+ \d+ [\w.]+:\d+\] +(?P<message>.*)$")
_FAILED_LOAD = re.compile(r"failed to load '(?P<model>[^']+)' version \d+: [A-Za-z ]+: (?P<reason>.*)", re.DOTALL)
_FRAMES = "\n\nAt:\n"
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

    In order: a message marked by our own model, the exception that a model failed to load with, the last Python
    traceback, the last error line.
    """
    # The server repeats errors in tables, broken over several lines.
    entries = [_parse_line(line) for line in log_text.splitlines() if not line.startswith(("|", "+"))]
    cause = (
        _marked_message(entries)
        or _failed_load(entries)
        or _traceback(log_text)
        or _shared_library(log_text)
        or _last_error(entries)
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
    for _level, message in reversed(entries):
        _before, mark, after = message.partition(ERROR_MARK)
        if mark:
            return after.split(_FRAMES)[0].strip()
    return None


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


def _shared_library(log_text: str) -> str | None:
    return next((line for line in log_text.splitlines() if "error while loading shared libraries" in line), None)


def _last_error(entries: list[tuple[str, str]]) -> str | None:
    for level, message in reversed(entries):
        if any(text in message for text in _HARMLESS):
            continue
        if level in ("E", "F") or message.lower().startswith("error: "):
            return message.split(_FRAMES)[0].strip()
    return None


def _explain(cause: str) -> str:
    """Add what to do where the message of others does not say it."""
    if "is not healthy" in cause:
        return f"{cause.rstrip('.')}: the model's process died (out of memory, or a crash in native code)"
    if "loading shared libraries: libpython" in cause:
        return f"{cause}. The server embeds Python: install the shared library of this Python version"
    return cause


def _shorten(cause: str) -> str:
    lines = cause.splitlines()
    if len(lines) > _MAX_CAUSE_LINES:
        lines = [*lines[:_MAX_CAUSE_LINES], "..."]
    text = "\n".join(lines)
    return text if len(text) <= _MAX_CAUSE_CHARS else text[:_MAX_CAUSE_CHARS] + " ..."
