"""JSON of strangers: size, item count, nesting and duplicate keys are checked; a fault names file, key and remedy."""

import contextlib
import errno
import gc
import json
import math
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specdeploy.errors import CheckpointError, Violation

FETCH_AGAIN = "Fetch the checkpoint again"
# A config.json takes a few KiB. Items = commas and brackets: they bound what parsing allocates (about 150 bytes each).
MAX_CONFIG_BYTES = 8 << 20
MAX_CONFIG_ITEMS = 400_000
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


def is_present(path: Path) -> bool:
    """Whether anything has this name, a link that leads nowhere included. A name no file can have is not present."""
    return os.path.lexists(path)


def read_regular_file(path: Path, *, max_bytes: int) -> bytes:
    """All of `path`. Raises `CheckpointError` for anything but a readable regular file of at most `max_bytes`."""
    with RegularFile(path) as file:
        if file.num_bytes > max_bytes:
            raise CheckpointError(
                f"{path}: {file.num_bytes} bytes, more than the {max_bytes} that such a file may have. {FETCH_AGAIN}"
            )
        return file.read(0, file.num_bytes)


class RegularFile:
    """An open regular file read at offsets. Pipes, folders and symlink loops are refused, so nothing can hang."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        self.num_bytes = 0

    def __enter__(self) -> "RegularFile":
        try:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            status = os.fstat(self._descriptor)
        except (OSError, ValueError) as error:
            self._close()
            raise CheckpointError(f"{self.path}: {_open_failure(self.path, error)}. {FETCH_AGAIN}") from error
        if not stat.S_ISREG(status.st_mode):
            self._close()
            raise CheckpointError(f"{self.path}: not a regular file. {FETCH_AGAIN}")
        self.num_bytes = status.st_size
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Exactly `num_bytes` from `offset`; a file that ends earlier is a `CheckpointError`."""
        parts = []
        while num_bytes > 0:
            try:
                part = os.pread(self._descriptor, num_bytes, offset)
            except OSError as error:
                raise CheckpointError(f"{self.path}: cannot be read ({error.strerror}). {FETCH_AGAIN}") from error
            if not part:
                raise CheckpointError(f"{self.path}: ended while it was read. {FETCH_AGAIN}")
            parts.append(part)
            offset, num_bytes = offset + len(part), num_bytes - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _open_failure(path: Path, error: OSError | ValueError) -> str:
    if not isinstance(error, OSError):
        return f"not a file name ({error})"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return "a symlink to a file that is not there" if os.path.islink(path) else "missing"
    return "a symlink that leads to itself" if error.errno == errno.ELOOP else f"cannot be read ({error.strerror})"


# `Any` is what JSON gives: whoever takes a value out of the object checks it (see `ObjectReader`).
def load_json_object(
    path: Path, *, max_bytes: int = MAX_CONFIG_BYTES, max_items: int = MAX_CONFIG_ITEMS
) -> dict[str, Any]:
    """The object in `path`. Raises `CheckpointError` for everything that is not one object of bounded size."""
    return parse_json_object(read_regular_file(path, max_bytes=max_bytes), str(path), max_items=max_items)


def parse_json_object(raw: bytes, place: str, *, max_items: int = MAX_CONFIG_ITEMS) -> dict[str, Any]:
    """`raw` as an object; `place` names it in errors.

    NaN and Infinity, which some writers put into a config, become floats; no reader of numbers lets them pass.
    """
    if (num_items := _count_items(raw)) > max_items:
        raise CheckpointError(f"{place}: about {num_items} items, more than the {max_items} allowed. {FETCH_AGAIN}")
    try:
        with _no_garbage_collection():
            parsed = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique_keys)
        if _SURROGATE_ESCAPE.search(raw):
            json.dumps(parsed, ensure_ascii=False).encode("utf-8")
    except _DuplicateKeyError as error:
        raise CheckpointError(f"{place}: key {error} occurs twice in one object. {FETCH_AGAIN}") from None
    except RecursionError:
        raise CheckpointError(f"{place}: nested too deeply. {FETCH_AGAIN}") from None
    except UnicodeEncodeError:
        raise CheckpointError(f"{place}: holds half of a surrogate pair, which is no text. {FETCH_AGAIN}") from None
    except ValueError as error:  # bad UTF-8, bad JSON, a number of thousands of digits
        raise CheckpointError(f"{place}: cannot be read as JSON ({error}). {FETCH_AGAIN}") from None
    if not isinstance(parsed, dict):
        raise CheckpointError(f"{place}: holds a {type(parsed).__name__}, not an object. {FETCH_AGAIN}")
    return parsed


def end_of_array(raw: bytes, start: int, *, chunk: int = 1 << 22) -> int | None:
    """Index after the array that opens at `raw[start]`, or None where it does not close.

    Strings are told apart from brackets, elements are not looked at: 0.1 s for the 20 MB that the parser would turn
    into a million objects.
    """
    depth, is_inside_string, is_first_escaped = 0, False, False
    for at in range(start, len(raw), chunk):
        part = np.frombuffer(raw, np.uint8, min(chunk, len(raw) - at), at)
        backslashes, quotes = part == ord("\\"), part == ord('"')
        if is_first_escaped:
            backslashes[0] = quotes[0] = False
        places = np.flatnonzero(backslashes)
        run_starts = places[np.diff(places, prepend=-2) != 1]
        run_ends = places[np.diff(places, append=len(part) + 1) != 1] + 1
        escaped = run_ends[(run_ends - run_starts) % 2 == 1]
        is_first_escaped = bool(len(escaped)) and int(escaped[-1]) == len(part)
        quotes[escaped[escaped < len(part)]] = False
        quote_places = np.flatnonzero(quotes)
        brackets = np.flatnonzero((part == ord("[")) | (part == ord("]")))
        num_quotes_before = np.searchsorted(quote_places, brackets) + is_inside_string
        brackets = brackets[num_quotes_before % 2 == 0]
        depths = depth + np.cumsum(np.where(part[brackets] == ord("["), 1, -1))
        if len(closed := np.flatnonzero(depths == 0)):
            return at + int(brackets[closed[0]]) + 1
        depth = int(depths[-1]) if len(depths) else depth
        is_inside_string = (len(quote_places) + is_inside_string) % 2 == 1
    return None


def _count_items(raw: bytes) -> int:
    signs = np.frombuffer(raw, np.uint8)
    return sum(int(np.count_nonzero(signs == ord(sign))) for sign in ",[{")


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Parsing makes no cycles, yet the collector walks its millions of objects: half of the time of a tokenizer."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _DuplicateKeyError(Exception):
    pass


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKeyError(repr(key))
            seen.add(key)
    return result


class ObjectReader:
    """Typed reads from one JSON object by any of several key names; wrong values are collected in `problems`.

    Every read gives None for a value that is absent, null or wrong. `not_found` collects what no name states.
    """

    def __init__(self, content: dict[str, Any], file: str, prefix: str = "") -> None:
        self.content = content
        self.file = file
        self.prefix = prefix
        self.problems: list[str] = []
        self.not_found: list[str] = []

    def nested(self, key: str) -> "ObjectReader":
        """Reader of the object under `key` (of nothing where there is none); it shares `problems` and `not_found`."""
        value = self.content.get(key)
        if value is not None and not isinstance(value, dict):
            self.complain(key, value, "an object")
            value = None
        reader = ObjectReader(value or {}, self.file, f"{self.prefix}{key}.")
        reader.problems, reader.not_found = self.problems, self.not_found
        return reader

    def complain(self, key: str, value: object, expected: str, remedy: str = FETCH_AGAIN) -> None:
        """Note that `key` holds `value`, which is not `expected`."""
        shown = repr(value)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        reason = f"must be {expected}, found {shown}"
        self.problems.append(str(Violation(self.file, f"{self.prefix}{key}", reason, remedy)))

    def check(self) -> None:
        """Raise `CheckpointError` with every problem so far."""
        if self.problems:
            raise CheckpointError("\n".join(dict.fromkeys(self.problems)))

    def first(self, names: Sequence[str]) -> tuple[str, Any] | None:
        """Key and value of the first of `names` that is there and not null."""
        return next(((name, self.content[name]) for name in names if self.content.get(name) is not None), None)

    def size(self, *names: str, minimum: int = 1, maximum: int = (1 << 53) - 1) -> int | None:
        """A whole number from `minimum` to `maximum`."""
        found = self.first(names)
        if found is None:
            return None
        key, value = found
        if isinstance(value, float) and value.is_integer():  # some writers turn 8 into 8.0
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum:
            return value
        expected = "a positive whole number" if minimum > 0 else "a whole number, not negative"
        limit = f" and at most {maximum}" if maximum < (1 << 53) - 1 else ""
        self.complain(key, found[1], f"{expected}{limit}")
        return None

    def wanted_size(self, *names: str, maximum: int = (1 << 53) - 1) -> int | None:
        """`size`, noted in `not_found` when none of `names` is there."""
        if self.first(names) is None:
            self.not_found.append(" or ".join(f"{self.prefix}{name}" for name in names))
        return self.size(*names, maximum=maximum)

    def number(self, *names: str) -> float | None:
        """A finite number."""
        found = self.first(names)
        if found is None:
            return None
        key, value = found
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and abs(value) < 1e300
            and math.isfinite(value)
        ):
            return float(value)
        self.complain(key, value, "a finite number")
        return None

    def text(self, *names: str) -> str | None:
        """A string."""
        found = self.first(names)
        if found is None or isinstance(found[1], str):
            return None if found is None else found[1]
        self.complain(found[0], found[1], "a string")
        return None

    def flag(self, *names: str) -> bool | None:
        """true or false."""
        found = self.first(names)
        if found is None or isinstance(found[1], bool):
            return None if found is None else found[1]
        self.complain(found[0], found[1], "true or false")
        return None

    def sizes(self, *names: str, max_length: int = 4096) -> tuple[int, ...] | None:
        """A whole number or a list of them, none negative, as a tuple."""
        found = self.first(names)
        if found is None:
            return None
        values = found[1] if isinstance(found[1], list) else [found[1]]
        if len(values) <= max_length and all(
            isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 for value in values
        ):
            return tuple(values)
        self.complain(found[0], found[1], "whole numbers, none negative")
        return None

    def token_ids(self, name: str) -> tuple[int, ...] | None:
        """A token id or a list of them. Negative ids say that there is none; None where no other is left."""
        value = self.content.get(name)
        values = value if isinstance(value, list) else [value]
        numbers = [item for item in values if isinstance(item, int) and not isinstance(item, bool)]
        kept = tuple(number for number in numbers if number >= 0)
        if value is None or (values and not kept and len(numbers) == len(values)):
            return None
        if len(values) <= 4096 and len(numbers) == len(values) and all(number < 1 << 53 for number in kept):
            return kept
        self.complain(name, value, "a token id or a list of them")
        return None

    def texts(self, *names: str) -> tuple[str, ...]:
        """A list of strings, empty where absent."""
        found = self.first(names)
        if found is None:
            return ()
        if isinstance(found[1], list) and all(isinstance(value, str) for value in found[1]):
            return tuple(found[1])
        self.complain(found[0], found[1], "a list of strings")
        return ()
