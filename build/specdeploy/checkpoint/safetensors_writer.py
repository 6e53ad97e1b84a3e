"""Write a safetensors file from pieces of other files: bytes are copied, values never looked at, torch never loaded."""

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specdeploy.checkpoint.json_text import RegularFile
from specdeploy.checkpoint.safetensors_header import DTYPE_BITS, TensorEntry
from specdeploy.errors import CheckpointError

_CHUNK_BYTES = 8 << 20
_DTYPE_NAMES = {"bool": "BOOL", "int64": "I64"}


@dataclass(frozen=True, slots=True)
class CopiedTensor:
    """A tensor whose bytes are `rows` (None = all) of the first dimension of `source`, in the order given."""

    name: str
    source: TensorEntry
    rows: Sequence[int] | None = None

    @property
    def dtype(self) -> str:
        """Safetensors name of the dtype."""
        return self.source.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the new file."""
        return self.source.shape if self.rows is None else (len(self.rows), *self.source.shape[1:])

    def chunks(self) -> Iterator[bytes]:
        """The tensor's bytes, a bounded piece at a time."""
        entry = self.source
        spans: Iterable[tuple[int, int]] = [(entry.begin, entry.end)]
        if self.rows is not None:
            row_bytes = entry.num_bytes // entry.shape[0]
            runs = _runs(self.rows)
            spans = [(entry.begin + first * row_bytes, entry.begin + (last + 1) * row_bytes) for first, last in runs]
        with RegularFile(entry.path) as file:
            for begin, end in spans:
                for offset in range(begin, end, _CHUNK_BYTES):
                    yield file.read(offset, min(_CHUNK_BYTES, end - offset))


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A small tensor made here: bool or int64."""

    name: str
    values: NDArray[np.generic]

    @property
    def dtype(self) -> str:
        """Safetensors name of the dtype."""
        return _DTYPE_NAMES[str(self.values.dtype)]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the new file."""
        return self.values.shape

    def chunks(self) -> Iterator[bytes]:
        """The tensor's bytes."""
        yield self.values.astype(self.values.dtype.newbyteorder("<")).tobytes()


def write_safetensors(path: Path, tensors: Sequence[CopiedTensor | NewTensor]) -> None:
    """Write `tensors` to `path`, widest dtype first as the safetensors library does, so that each is aligned.

    Raises `CheckpointError` when `path` exists, the disk is full, or a source changed while it was read.
    """
    ordered = sorted(tensors, key=lambda tensor: (-DTYPE_BITS[tensor.dtype], tensor.name))
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in ordered:
        num_bytes = int(np.prod(tensor.shape, dtype=np.int64)) * DTYPE_BITS[tensor.dtype] // 8
        offsets = [offset, offset + num_bytes]
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": offsets}
        offset += num_bytes
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    try:
        with path.open("xb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            for tensor in ordered:
                for chunk in tensor.chunks():
                    file.write(chunk)
            if file.tell() != 8 + len(header) + offset:
                raise CheckpointError(f"{path}: wrote {file.tell()} bytes of {8 + len(header) + offset}. Trim again")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written ({error.strerror or error}). Free the place first") from error


def _runs(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """[3, 4, 5, 9] -> (3, 5), (9, 9): neighbours are read in one go."""
    first = last = rows[0]
    for row in rows[1:]:
        if row != last + 1:
            yield first, last
            first = row
        last = row
    yield first, last
