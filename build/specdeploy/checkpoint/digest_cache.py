"""SHA-256 of large files, each read once: `engines/.digests.json` remembers them until the file changes.

A checkpoint of hundreds of GB takes minutes to hash, and every build needs its digest; so does every engine that is
linked into another build. An entry holds for one file of the file system (device and inode, so that hard links share
it) as long as size and time of change are the same. `verify-manifest` does not trust it: it reads every byte.
"""

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import Field, NonNegativeInt, ValidationError

from specdeploy.checkpoint.source import hub_blob_sha256
from specdeploy.contract import ContractModel
from specdeploy.errors import BuildError
from specdeploy.manifest import sha256_file, write_text_atomically

CACHE_NAME = ".digests.json"
# File systems stamp times in steps of up to 2 s: a file that is younger may still change without a new stamp.
_SETTLED_NS = 2_000_000_000


class FileEntry(ContractModel):
    """One file that was read. `path` is where it was, for people; the key of the entry is `<device>:<inode>`."""

    path: str
    num_bytes: NonNegativeInt
    mtime_ns: int
    sha256: str


class DigestFile(ContractModel):
    """`engines/.digests.json`."""

    schema_version: int = 1
    files: dict[str, FileEntry] = Field(default_factory=dict)


class DigestCache:
    """SHA-256 by path, read from the file only where nothing is remembered. `save` keeps what was read."""

    def __init__(self, path: Path, *, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._path = path
        self._clock_ns = clock_ns
        self._new: dict[str, FileEntry] = {}
        self._known = _load(path).files

    def sha256(self, path: Path) -> str:
        """SHA-256 of `path` in hex. A weight file in the cache of the model hub is named by it and is not read.

        Raises `BuildError` when the file cannot be read.
        """
        return hub_blob_sha256(path) or self._of_file(path)

    def known(self, path: Path) -> str | None:
        """The SHA-256 of `path` if it is known without reading the file."""
        if (named := hub_blob_sha256(path)) is not None:
            return named
        key, num_bytes, mtime_ns = _identity(path)
        entry = self._new.get(key) or self._known.get(key)
        if entry is None or (entry.num_bytes, entry.mtime_ns) != (num_bytes, mtime_ns):
            return None
        return entry.sha256

    def save(self) -> None:
        """Write what was read since the last time, beside what other processes wrote meanwhile.

        Where the folder cannot be written (a container mounts it read-only) nothing is kept but in this process.
        """
        if not self._new:
            return
        merged = DigestFile(files={**_load(self._path).files, **self._new})
        with contextlib.suppress(OSError):
            write_text_atomically(self._path, json.dumps(merged.model_dump(mode="json"), indent=1) + "\n")
        self._known, self._new = merged.files, {}

    def _of_file(self, path: Path) -> str:
        if (known := self.known(path)) is not None:
            return known
        key, num_bytes, mtime_ns = _identity(path)
        digest = sha256_file(path)
        is_settled = self._clock_ns() - mtime_ns > _SETTLED_NS
        if is_settled and _identity(path) == (key, num_bytes, mtime_ns):  # it did not change while it was read
            self._new[key] = FileEntry(path=str(path), num_bytes=num_bytes, mtime_ns=mtime_ns, sha256=digest)
        return digest


def open_digest_cache(engines_root: Path) -> DigestCache:
    """The cache of one engines root. One that cannot be read as such is started anew."""
    return DigestCache(engines_root / CACHE_NAME)


def _identity(path: Path) -> tuple[str, int, int]:
    """(device and inode, size, time of change) of the file itself, links followed."""
    try:
        status = path.stat()
    except OSError as error:
        reason = error.strerror or str(error)
        raise BuildError(f"{path}: cannot be read ({reason}). Make it readable for this user, then repeat") from error
    return f"{status.st_dev}:{status.st_ino}", status.st_size, status.st_mtime_ns


def _load(path: Path) -> DigestFile:
    try:
        return DigestFile.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):  # a cache: what cannot be read is computed again
        return DigestFile()
