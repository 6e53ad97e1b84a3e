"""Headers of safetensors files, and single small tensors by offset: nothing else of a weight file is ever read.

Format (https://github.com/huggingface/safetensors#format): 8 bytes, the header's length N as little-endian uint64; N
bytes of JSON `{"name": {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {str: str}}`; the data. As the
safetensors library has it: offsets are relative to the data, cover it whole, and neither overlap nor leave holes.

A header is a stranger's text. It is taken apart entry by entry, each checked before the next is looked at, so that a
hostile one costs no more than its own bytes.
"""

import json
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdeploy.checkpoint.json_text import RegularFile, is_present, load_json_object
from specdeploy.errors import CheckpointError

WEIGHT_INDEX = "model.safetensors.index.json"
# The library accepts 100 MB. The largest known checkpoints have 140,000 tensors, about 20 MB if all were in one file.
MAX_HEADER_BYTES = 25_000_000
MAX_INDEX_BYTES = 32 << 20
MAX_TENSORS = 400_000  # of one checkpoint
MAX_READ_BYTES = 64 << 20  # of one tensor or selection of rows
_MAX_ENTRY_CHARS = 4096
_MAX_METADATA_ENTRIES = 10_000

# Bits per element, as in the safetensors library.
DTYPE_BITS = {
    "F4": 4,
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}
_NUMPY_DTYPES = {
    "BOOL": "bool",
    **{f"{kind.upper()}{8 * size}": f"<{kind}{size}" for kind in "ui" for size in (1, 2, 4, 8)},
    **{f"F{8 * size}": f"<f{size}" for size in (2, 4, 8)},
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor on disk: bytes `begin` to `end` of `path`, counted from the start of the file."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def num_elements(self) -> int:
        """Product of the shape; 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes on disk."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The safetensors files of one checkpoint and every tensor in them. `index` is None for a single file."""

    files: tuple[Path, ...]
    index: Path | None
    tensors: dict[str, TensorEntry]

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(entry.num_bytes for entry in self.tensors.values())


# --- one file -------------------------------------------------------------------------------------------------------


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Every tensor of `path` by name. Raises `CheckpointError` for a file that the safetensors library refuses."""
    with RegularFile(path) as file:
        try:
            return _read_header(file)
        except _HeaderError as error:
            raise CheckpointError(f"{path}: broken safetensors file ({error}). Fetch the file again") from None


class _HeaderError(Exception):
    """What is wrong with a header; the caller adds the file."""


def _read_header(file: RegularFile) -> dict[str, TensorEntry]:
    if file.num_bytes < 8:
        raise _HeaderError(f"{file.num_bytes} bytes, too short for a header")
    (length,) = struct.unpack("<Q", file.read(0, 8))
    if length > MAX_HEADER_BYTES:
        raise _HeaderError(f"the header claims {length} bytes, more than the {MAX_HEADER_BYTES} allowed")
    if 8 + length > file.num_bytes:
        raise _HeaderError(f"the header claims {length} bytes, the file has {file.num_bytes} in all")
    try:
        text = file.read(8, length).decode("utf-8")
    except UnicodeDecodeError as error:
        raise _HeaderError(f"the header is not UTF-8 at byte {error.start}") from None
    tensors = _HeaderText(text, file.path, 8 + length).tensors()
    _check_offsets(tensors, begin=8 + length, end=file.num_bytes)
    return tensors


class _HeaderText:
    """A cursor over the header's text."""

    _BLANK = re.compile(r"[ \t\r\n]*")
    _STRING = re.compile(r'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"')
    # An entry as the library itself writes it; any other spelling goes through `json`.
    _SIZE = r"(?:0|[1-9]\d{0,17})"
    _USUAL_ENTRY = re.compile(
        r'"([^"\\\x00-\x1f]*)":\{"dtype":"(\w{1,16})",'
        rf'"shape":\[((?:{_SIZE}(?:,{_SIZE}){{0,15}})?)\],"data_offsets":\[({_SIZE}),({_SIZE})\]\}}',
        re.ASCII,
    )

    def __init__(self, text: str, path: Path, data_begin: int) -> None:
        self._text = text
        self._path = path
        self._data_begin = data_begin
        self._at = 0

    def tensors(self) -> dict[str, TensorEntry]:
        if not self._text.startswith("{"):
            raise _HeaderError("the header does not start with {")
        tensors: dict[str, TensorEntry] = {}
        seen_metadata = False
        self._at = 1
        more = self._peek() != "}"
        while more:
            entry = self._usual_entry()
            name = self._name() if entry is None else entry.name
            if name in tensors or (name == "__metadata__" and seen_metadata):
                raise _HeaderError(f"the header names {name!r} twice")
            if name == "__metadata__":
                seen_metadata = True
                self._skip_metadata()
            else:
                tensors[name] = entry or self._entry(name)
                if len(tensors) > MAX_TENSORS:
                    raise _HeaderError(f"more than {MAX_TENSORS} tensors")
            more = self._more()
        if not seen_metadata and not tensors:
            self._take("}")
        if self._peek():
            raise _HeaderError(f"text after the header's object, at character {self._at}")
        return tensors

    def _peek(self) -> str:
        """The next sign that is no blank, not taken yet; '' at the end."""
        sign = self._text[self._at : self._at + 1]
        if sign and sign in " \t\r\n" and (blanks := self._BLANK.match(self._text, self._at)):
            self._at = blanks.end()
            sign = self._text[self._at : self._at + 1]
        return sign

    def _take(self, expected: str) -> None:
        if self._peek() != expected:
            raise _HeaderError(f"the header is not JSON: {expected!r} expected at character {self._at}")
        self._at += 1

    def _more(self) -> bool:
        """Whether a comma follows; else the object ends here."""
        if self._peek() == ",":
            self._at += 1
            return True
        self._take("}")
        return False

    def _name(self) -> str:
        name = self._string()
        self._take(":")
        return name

    def _string(self) -> str:
        self._peek()
        match = self._STRING.match(self._text, self._at)
        if match is None:
            raise _HeaderError(f"the header is not JSON: a string expected at character {self._at}")
        self._at = match.end()
        if "\\" not in match[0]:
            return match[0][1:-1]
        try:
            value = str(json.loads(match[0]))
            value.encode("utf-8")
        except ValueError as error:  # an unknown escape, half a surrogate pair
            raise _HeaderError(f"the header is not JSON ({error})") from None
        return value

    def _skip_metadata(self) -> None:
        self._take("{")
        keys: set[str] = set()
        more = self._peek() != "}"
        while more:
            key = self._name()
            self._string()
            if key in keys or len(keys) >= _MAX_METADATA_ENTRIES:
                raise _HeaderError(f"__metadata__ names {key!r} twice, or holds more than {_MAX_METADATA_ENTRIES} keys")
            keys.add(key)
            more = self._more()
        if not keys:
            self._take("}")

    def _usual_entry(self) -> TensorEntry | None:
        """Name and entry, taken, if both are spelled as the library does."""
        usual = self._USUAL_ENTRY.match(self._text, self._at)
        if usual is None or usual[1] == "__metadata__":
            return None
        self._at = usual.end()
        name, dtype, dimensions, begin, end = usual.groups()
        shape = [int(size) for size in dimensions.split(",")] if dimensions else []
        return self._fitting(name, dtype, shape, int(begin), int(end))

    def _entry(self, name: str) -> TensorEntry:
        """An entry in any other spelling of JSON."""
        is_object = self._peek() == "{"
        close = self._text.find("}", self._at, self._at + _MAX_ENTRY_CHARS)
        if not is_object or close < 0:
            raise _HeaderError(f"{name!r}: its entry is not an object of at most {_MAX_ENTRY_CHARS} characters")
        try:
            pairs: Any = json.loads(
                self._text[self._at : close + 1], object_pairs_hook=lambda pairs: pairs, parse_int=_unsigned
            )
        except (ValueError, RecursionError):
            raise _HeaderError(f"{name!r}: its entry is not JSON") from None
        entry = dict(pairs)
        if len(entry) != len(pairs) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise _HeaderError(f"{name!r}: its entry must hold dtype, shape and data_offsets once each")
        self._at = close + 1
        shape, offsets = entry["shape"], entry["data_offsets"]
        if not _are_sizes(shape):
            raise _HeaderError(f"{name!r}: shape must be whole numbers, none negative")
        if not _are_sizes(offsets) or len(offsets) != 2:
            raise _HeaderError(f"{name!r}: data_offsets must be two ascending whole numbers")
        return self._fitting(name, entry["dtype"], shape, offsets[0], offsets[1])

    def _fitting(self, name: str, dtype: Any, shape: list[int], begin: int, end: int) -> TensorEntry:
        """The entry, once dtype and shape are known to fill the bytes from `begin` to `end` of the data."""
        if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
            raise _HeaderError(f"{name!r}: unknown dtype {str(dtype)[:40]!r}")
        if begin > end:
            raise _HeaderError(f"{name!r}: data_offsets must be two ascending whole numbers")
        if math.prod(shape) * DTYPE_BITS[dtype] != 8 * (end - begin):
            raise _HeaderError(f"{name!r}: {dtype} {shape} does not fill the {end - begin} bytes of its data_offsets")
        return TensorEntry(name, self._path, dtype, tuple(shape), self._data_begin + begin, self._data_begin + end)


def _unsigned(digits: str) -> int:
    """-1 for whatever has a sign: the library takes -0 for no size either."""
    return -1 if digits.startswith("-") else int(digits)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 1 << 63 for size in value
    )


def _check_offsets(tensors: dict[str, TensorEntry], *, begin: int, end: int) -> None:
    covered = begin
    for entry in sorted(tensors.values(), key=lambda entry: (entry.begin, entry.end)):
        if entry.end > end:
            raise _HeaderError(f"{entry.name!r} ends at byte {entry.end}, the file at {end}: it was cut off or lies")
        if entry.begin != covered:
            what = "overlaps the tensor before it" if entry.begin < covered else "leaves a hole before it"
            raise _HeaderError(f"{entry.name!r} {what}: begins at byte {entry.begin}, not {covered}")
        covered = entry.end
    if covered != end:
        raise _HeaderError(f"{end - covered} bytes after the last tensor belong to none")


# --- all files of a checkpoint --------------------------------------------------------------------------------------


def read_weight_files(folder: Path) -> WeightFiles:
    """Every tensor of the safetensors files of `folder`, the index compared with them.

    Raises `CheckpointError` with everything that is wrong. A folder without any safetensors file gives no files.
    """
    problems: list[str] = []
    index = folder / WEIGHT_INDEX
    weights = _read_indexed(index, problems) if is_present(index) else _read_unindexed(folder, problems)
    if problems:
        raise CheckpointError("\n".join(problems))
    return weights


def _read_unindexed(folder: Path, problems: list[str]) -> WeightFiles:
    files = sorted(folder.glob("*.safetensors"))
    if len(files) > 1 and folder / "model.safetensors" in files:
        files = [folder / "model.safetensors"]
    if len(files) > 1:
        problems.append(
            f"{folder / WEIGHT_INDEX}: missing, yet the folder holds {len(files)} safetensors files. "
            "Fetch the checkpoint again"
        )
        return WeightFiles((), None, {})
    try:
        return WeightFiles(tuple(files), None, read_header(files[0]) if files else {})
    except CheckpointError as error:
        problems.append(str(error))
        return WeightFiles((), None, {})


def _read_indexed(index: Path, problems: list[str]) -> WeightFiles:
    try:
        shards = _shards_of_index(index, problems)
    except CheckpointError as error:
        problems.append(str(error))
        return WeightFiles((), index, {})
    files: list[Path] = []
    tensors: dict[str, TensorEntry] = {}
    for name, promised in sorted(shards.items()):
        path = index.parent / name
        if not is_present(path):
            problems.append(f"{path}: missing, but {WEIGHT_INDEX} names it. Fetch the checkpoint again")
            continue
        try:
            header = read_header(path)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        files.append(path)
        _compare_shard(path, header, promised, problems)
        for tensor, entry in header.items():  # a tensor in two shards is the one that the index names
            if tensor in promised or tensor not in tensors:
                tensors[tensor] = entry
        if len(tensors) > MAX_TENSORS:
            problems.append(f"{index}: more than {MAX_TENSORS} tensors. Fetch the checkpoint again")
            break
    return WeightFiles(tuple(files), index, tensors)


def _compare_shard(path: Path, header: dict[str, TensorEntry], promised: set[str], problems: list[str]) -> None:
    if lost := sorted(promised - header.keys()):
        problems.append(
            f"{path}: lacks {len(lost)} tensors that {WEIGHT_INDEX} promises, the first is {lost[0]}. "
            "Fetch the checkpoint again"
        )


def _shards_of_index(index: Path, problems: list[str]) -> dict[str, set[str]]:
    """File name -> tensors that the index places in it."""
    content = load_json_object(index, max_bytes=MAX_INDEX_BYTES, max_items=MAX_TENSORS + 1000)
    weight_map = content.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: not a weight index (weight_map is no object of names). Fetch it again")
    shards: dict[str, set[str]] = {}
    for tensor, name in weight_map.items():
        if not isinstance(name, str):
            problems.append(f"{index}: not a weight index ({tensor!r} is placed in {name!r}). Fetch it again")
            return {}
        shards.setdefault(name, set()).add(tensor)
    for name in [name for name in shards if not _is_plain_name(name)]:
        problems.append(f"{index}: names {name!r}, which is not a file of this folder. Fetch it again")
        del shards[name]
    return shards


def _is_plain_name(name: str) -> bool:
    return name not in ("", ".", "..") and not any(sign in name for sign in "/\\\0") and name.endswith(".safetensors")


# --- small tensors --------------------------------------------------------------------------------------------------


def read_tensor(entry: TensorEntry) -> NDArray[Any]:
    """One whole small tensor, such as a vocabulary map; BF16 becomes float32. At most `MAX_READ_BYTES`."""
    with RegularFile(entry.path) as file:
        raw = file.read(entry.begin, _bounded(entry, entry.num_bytes))
    return _as_array(entry, raw).reshape(entry.shape)


def read_rows(entry: TensorEntry, rows: Sequence[int]) -> NDArray[Any]:
    """Some rows of a matrix [V, H], in the order asked for: [len(rows), H]. BF16 becomes float32."""
    if len(entry.shape) != 2 or any(not 0 <= row < entry.shape[0] for row in rows):
        raise CheckpointError(f"{entry.path}: {entry.name}: shape {list(entry.shape)} has no such rows")
    row_bytes = entry.num_bytes // max(entry.shape[0], 1)
    _bounded(entry, row_bytes * len(rows))
    with RegularFile(entry.path) as file:
        raw = b"".join(file.read(entry.begin + row * row_bytes, row_bytes) for row in rows)
    return _as_array(entry, raw).reshape(len(rows), entry.shape[1])


def _bounded(entry: TensorEntry, num_bytes: int) -> int:
    if num_bytes > MAX_READ_BYTES:
        raise CheckpointError(
            f"{entry.path}: {entry.name}: {num_bytes} bytes, more than the {MAX_READ_BYTES} that are read of "
            "one tensor. Fetch the checkpoint again"
        )
    return num_bytes


def _as_array(entry: TensorEntry, raw: bytes) -> NDArray[Any]:
    if entry.dtype == "BF16":
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    if entry.dtype not in _NUMPY_DTYPES:
        raise CheckpointError(f"{entry.path}: {entry.name}: values of dtype {entry.dtype} cannot be read here")
    return np.frombuffer(raw, _NUMPY_DTYPES[entry.dtype])
