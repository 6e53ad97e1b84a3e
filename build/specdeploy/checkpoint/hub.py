"""Checkpoints of the model hub: what is still to be fetched, whether the disks have room for it, and the download.

The largest checkpoints are hundreds of GB: that they do not fit is said before the first byte, with the numbers.
"""

import errno
import fnmatch
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from specdeploy.errors import CheckpointError
from specdeploy.units import format_bytes

# Seconds that the hub may take to list the files of a repository; without an answer the download itself says why.
_LIST_TIMEOUT_S = 10.0
_FULL_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT)
# Of libraries that pass the words of the system on but not its number.
_FULL_DISK_WORDS = ("no space left on device", "disk quota exceeded")
_ROOM_REMEDY = (
    "Free space there, or set HF_HOME to a folder on a larger disk, or copy the checkpoint to one and write its folder"
)


@dataclass(frozen=True, slots=True)
class HubDownload:
    """What fetching a checkpoint takes. `missing_bytes` is what the cache does not hold yet.

    `weight_bytes` are those of all its safetensors files, `num_parameters` what is in them where the hub counted it.
    """

    reference: str
    missing_bytes: int
    weight_bytes: int
    num_parameters: int | None


@dataclass(frozen=True, slots=True)
class DiskNeed:
    """Bytes that will be written below `folder`, which need not exist; `what` names them."""

    folder: Path
    num_bytes: int
    what: str


def measure_download(reference: str, revision: str | None, patterns: Sequence[str]) -> HubDownload | None:
    """What a download of the files named by `patterns` takes, or None where the hub cannot be asked.

    One request, no file is touched. A file counts as there when its blob or its link in the snapshot is: layout of the
    cache as in `source.hub_blob_sha256`. What broken off downloads left does not count, a new one starts anew
    (huggingface_hub 2.4.0, `file_download._download_to_tmp_and_move`).
    """
    from huggingface_hub import HfApi

    try:
        found = HfApi().model_info(reference, revision=revision, files_metadata=True, timeout=_LIST_TIMEOUT_S)
    except Exception:  # offline, no such repository, no access: the download says it, or finds all in the cache
        return None
    repository = hub_cache() / f"models--{reference.replace('/', '--')}"
    missing, weights = 0, 0
    for file in found.siblings or ():
        if not any(fnmatch.fnmatchcase(file.rfilename, pattern) for pattern in patterns):
            continue
        num_bytes = file.size or 0
        weights += num_bytes if file.rfilename.endswith(".safetensors") else 0
        etag = file.lfs.sha256 if file.lfs is not None else file.blob_id
        places = [repository / "snapshots" / (found.sha or "none") / file.rfilename]
        places += [repository / "blobs" / etag] if etag else []
        missing += 0 if any(place.is_file() for place in places) else num_bytes
    counted = found.safetensors.total if found.safetensors is not None else None
    return HubDownload(reference, missing, weights, counted)


def check_room(downloads: Sequence[HubDownload], then: Sequence[DiskNeed] = ()) -> None:
    """Compare what will be fetched, and what is written from it `then`, with the free space of the disks.

    Nothing is compared where nothing is missing. Raises `CheckpointError` with the numbers of every disk too small.
    """
    fetched = [
        DiskNeed(hub_cache(), one.missing_bytes, f"{one.reference} from the model hub")
        for one in downloads
        if one.missing_bytes
    ]
    if not fetched:
        return
    disks: dict[int, list[DiskNeed]] = {}
    for need in (*fetched, *(one for one in then if one.num_bytes)):
        disks.setdefault(_existing(need.folder).stat().st_dev, []).append(need)
    if problems := [problem for needs in disks.values() for problem in _find_lack(needs)]:
        raise CheckpointError("\n".join(problems))


def download_snapshot(reference: str, revision: str | None, patterns: Sequence[str], *, looked_at: Path) -> Path:
    """The folder of the snapshot in the hub's cache, fetched where it is not there; `looked_at` for the message.

    Raises `CheckpointError` with the reason, a full disk apart from all others.
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repo_id=reference, revision=revision, allow_patterns=list(patterns)))
    except Exception as error:  # besides OSError whatever its HTTP client and its transfer library raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(_explain(reference, revision, error, reason, looked_at)) from error


def hub_cache() -> Path:
    """The folder that holds every repository fetched from the hub."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()


def _explain(reference: str, revision: str | None, error: Exception, reason: str, looked_at: Path) -> str:
    at = f" at revision {revision}" if revision else ""
    if _is_disk_full(error):
        cache = hub_cache()
        free = format_bytes(shutil.disk_usage(_existing(cache)).free)
        return (
            f"{reference}: the disk became full while it was fetched{at} ({reason}). {cache} has {free} left; what was "
            f"fetched whole is kept. {_ROOM_REMEDY}"
        )
    return (
        f"{reference}: no folder {looked_at}, and the model hub did not give it{at} ({type(error).__name__}: {reason})."
        " Check the spelling and the network (a private model needs HF_TOKEN), or copy the checkpoint here and "
        "write its folder instead"
    )


def _is_disk_full(error: BaseException) -> bool:
    return any(
        getattr(one, "errno", None) in _FULL_DISK_ERRORS or any(words in str(one).lower() for words in _FULL_DISK_WORDS)
        for one in _causes(error)
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """`error` and what it was raised from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _find_lack(needs: Sequence[DiskNeed]) -> Iterator[str]:
    """One sentence where a disk has less room than all that will be written to it."""
    needed = sum(need.num_bytes for need in needs)
    free = shutil.disk_usage(_existing(needs[0].folder)).free
    if needed <= free:
        return
    parts = [f"{need.what} {format_bytes(need.num_bytes)}" for need in needs]
    total = f", together {format_bytes(needed)}" if len(needs) > 1 else ""
    folders = " and ".join(_distinct(str(need.folder) for need in needs))
    yield f"{folders}: too little room: {', '.join(parts)}{total}; the disk has {format_bytes(free)}. {_ROOM_REMEDY}"


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _existing(folder: Path) -> Path:
    """`folder`, or the nearest folder above it that exists."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
