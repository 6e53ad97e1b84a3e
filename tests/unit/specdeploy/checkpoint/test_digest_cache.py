"""Large files are read once, and again when they may have changed."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from specdeploy.checkpoint.digest_cache import CACHE_NAME, DigestCache, open_digest_cache
from specdeploy.errors import BuildError
from specdeploy.manifest import sha256_file

CONTENT = b"weights"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were read."""
    names: list[str] = []

    def read(path: Path) -> str:
        names.append(path.name)
        return sha256_file(path)

    monkeypatch.setattr("specdeploy.checkpoint.digest_cache.sha256_file", read)
    return names


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A file that was written long ago."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(CONTENT)
    os.utime(path, (1e9, 1e9))
    return path


def test_read_once_and_remembered_by_the_next_process(tmp_path: Path, weights: Path, reads: list[str]) -> None:
    first = open_digest_cache(tmp_path)
    assert [first.sha256(weights), first.sha256(weights)] == [SHA256, SHA256]
    first.save()

    assert open_digest_cache(tmp_path).sha256(weights) == SHA256
    assert reads == ["model.safetensors"]


def test_not_saved_is_forgotten(tmp_path: Path, weights: Path) -> None:
    open_digest_cache(tmp_path).sha256(weights)

    assert open_digest_cache(tmp_path).known(weights) is None
    assert not (tmp_path / CACHE_NAME).exists()


def test_hard_link_is_the_same_file(tmp_path: Path, weights: Path, reads: list[str]) -> None:
    cache = open_digest_cache(tmp_path)
    cache.sha256(weights)
    os.link(weights, tmp_path / "linked")

    assert cache.sha256(tmp_path / "linked") == SHA256
    assert reads == ["model.safetensors"]


def grow(path: Path) -> None:
    path.write_bytes(CONTENT + b"!")
    os.utime(path, (1e9, 1e9))


def touch(path: Path) -> None:
    path.write_bytes(CONTENT[::-1])
    os.utime(path, (1e9 + 1, 1e9 + 1))


def replace_file(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(CONTENT[::-1])
    os.utime(other, (1e9, 1e9))
    other.replace(path)


@pytest.mark.parametrize("change", [grow, touch, replace_file])
def test_changed_file_is_read_again(change: Callable[[Path], None], tmp_path: Path, weights: Path) -> None:
    cache = open_digest_cache(tmp_path)
    cache.sha256(weights)

    change(weights)

    assert cache.known(weights) is None
    assert cache.sha256(weights) == hashlib.sha256(weights.read_bytes()).hexdigest() != SHA256


def test_file_that_may_still_be_written_is_not_remembered(tmp_path: Path, weights: Path, reads: list[str]) -> None:
    cache = DigestCache(tmp_path / CACHE_NAME, clock_ns=lambda: int(1e18) + 1_000_000_000)

    assert [cache.sha256(weights), cache.sha256(weights)] == [SHA256, SHA256]
    assert len(reads) == 2


def test_two_processes_keep_each_others_entries(tmp_path: Path, weights: Path) -> None:
    other = tmp_path / "other.safetensors"
    other.write_bytes(b"other")
    os.utime(other, (1e9, 1e9))
    first, second = open_digest_cache(tmp_path), open_digest_cache(tmp_path)
    first.sha256(weights)
    second.sha256(other)

    first.save()
    second.save()

    merged = open_digest_cache(tmp_path)
    assert merged.known(weights) == SHA256
    assert merged.known(other) is not None


@pytest.mark.parametrize("content", [b"", b"{", b'{"files": 3}', b'{"files": {"1:2": {"sha256": 1}}}'])
def test_broken_cache_is_started_anew(content: bytes, tmp_path: Path, weights: Path) -> None:
    (tmp_path / CACHE_NAME).write_bytes(content)
    cache = open_digest_cache(tmp_path)

    assert cache.sha256(weights) == SHA256
    cache.save()
    assert open_digest_cache(tmp_path).known(weights) == SHA256


def test_hub_blob_names_itself(tmp_path: Path, reads: list[str]) -> None:
    repository = tmp_path / "models--owner--name"
    (repository / "blobs").mkdir(parents=True)
    (repository / "blobs" / SHA256).write_bytes(CONTENT)
    (repository / "snapshots" / "abc").mkdir(parents=True)
    path = repository / "snapshots" / "abc" / "model.safetensors"
    path.symlink_to(f"../../blobs/{SHA256}")

    cache = open_digest_cache(tmp_path)

    assert cache.known(path) == cache.sha256(path) == SHA256
    assert reads == []


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="gone: cannot be read"):
        open_digest_cache(tmp_path).sha256(tmp_path / "gone")


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, weights: Path, reads: list[str]) -> None:
    """A container mounts the engines read-only: digests are then kept for this process alone."""
    (tmp_path / "mounted").write_text("a file: nothing can be written below it")
    cache = open_digest_cache(tmp_path / "mounted")

    assert cache.sha256(weights) == SHA256
    cache.save()

    assert cache.sha256(weights) == SHA256
    assert reads == ["model.safetensors"]
