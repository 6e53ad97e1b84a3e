"""Room on the disks is compared before a byte is fetched, and a disk that becomes full is said as such."""

import errno
import shutil
from pathlib import Path

import pytest

from helpers.fake_hub import COMMIT, FakeHub
from specdeploy.checkpoint.hub import DiskNeed, HubDownload, check_room, measure_download
from specdeploy.checkpoint.source import measure_hub_download, resolve_checkpoint
from specdeploy.errors import CheckpointError

GIB = 1 << 30
PATTERNS = ("config.json", "*.safetensors")
FILES = {"config.json": 1000, "model-1.safetensors": 5 * GIB, "model-2.safetensors": 3 * GIB, "README.md": GIB}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeHub:
    found = FakeHub.install(monkeypatch, tmp_path / "cache")
    found.add("owner/name", FILES, num_parameters=4 * GIB)
    return found


def set_free(monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr("shutil.disk_usage", lambda _path: usage._replace(free=num_bytes))


def test_measures_the_files_that_would_be_fetched(hub: FakeHub) -> None:
    assert measure_download("owner/name", None, PATTERNS) == HubDownload("owner/name", 8 * GIB + 1000, 8 * GIB, 4 * GIB)


def test_what_the_cache_holds_is_not_fetched_again(hub: FakeHub) -> None:
    blob = hub.blob("owner/name", "model-1.safetensors")
    blob.parent.mkdir(parents=True)
    blob.touch()
    link = blob.parents[1] / "snapshots" / COMMIT / "config.json"
    link.parent.mkdir(parents=True)
    link.touch()

    found = measure_download("owner/name", None, PATTERNS)

    assert found is not None
    assert (found.missing_bytes, found.weight_bytes) == (3 * GIB, 8 * GIB)


def test_a_hub_that_cannot_be_asked_says_nothing(hub: FakeHub, tmp_path: Path) -> None:
    assert measure_download("owner/other", None, PATTERNS) is None
    assert measure_hub_download("./folder", None, base=tmp_path) is None
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert measure_hub_download("owner/name", None, base=tmp_path) is None  # a folder wins


def test_too_little_room_is_said_before_the_download(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    set_free(monkeypatch, 7 * GIB)

    with pytest.raises(CheckpointError) as caught:
        resolve_checkpoint("owner/name", base=tmp_path)

    assert str(caught.value).startswith(
        f"{hub.cache}: too little room: owner/name from the model hub 8.0 GiB; the disk has 7.0 GiB. Free space there, "
        "or set HF_HOME to a folder on a larger disk"
    )
    assert hub.fetched == []


def test_enough_room_is_no_matter(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_free(monkeypatch, 9 * GIB)

    with pytest.raises(CheckpointError, match="nothing is fetched in a test"):
        resolve_checkpoint("owner/name", base=tmp_path)
    assert hub.fetched == ["owner/name"]


def test_needs_of_one_disk_are_added_up(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_free(monkeypatch, 20 * GIB)
    downloads = [HubDownload("owner/name", 8 * GIB, 8 * GIB, None), HubDownload("owner/draft", GIB, GIB, None)]

    check_room(downloads, [DiskNeed(tmp_path / "engines", 11 * GIB, "the commands")])
    with pytest.raises(
        CheckpointError, match=r"8\.0 GiB, owner/draft .* 1\.0 GiB, the commands 12\.0 GiB, together 21"
    ):
        check_room(downloads, [DiskNeed(tmp_path / "engines", 12 * GIB, "the commands")])


def test_where_all_is_fetched_nothing_is_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_free(monkeypatch, 0)

    check_room([HubDownload("owner/name", 0, 8 * GIB, None)], [DiskNeed(tmp_path, GIB, "the commands")])


@pytest.mark.parametrize(
    "failure",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("Data processing error: File reconstruction error: No space left on device (os error 28)"),
    ],
)
def test_a_disk_that_becomes_full_has_its_own_remedy(failure: Exception, hub: FakeHub, tmp_path: Path) -> None:
    hub.failure = failure

    with pytest.raises(CheckpointError) as caught:
        resolve_checkpoint("owner/name", base=tmp_path)

    message = str(caught.value)
    assert message.startswith("owner/name: the disk became full while it was fetched (")
    assert f"{hub.cache} has " in message
    assert "set HF_HOME" in message
    assert "spelling" not in message
    assert "network" not in message


def test_a_cause_behind_an_error_counts(hub: FakeHub, tmp_path: Path) -> None:
    hub.failure = ValueError("cannot write")
    hub.failure.__cause__ = OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(CheckpointError, match="the disk became full"):
        resolve_checkpoint("owner/name", base=tmp_path)


def test_errors_of_the_http_client_are_no_defect_of_ours(hub: FakeHub, tmp_path: Path) -> None:
    class ReadTimeoutError(Exception):
        """Of whatever client huggingface_hub uses: neither an OSError nor of a package named here."""

    hub.failure = ReadTimeoutError("timed out")

    with pytest.raises(CheckpointError, match=r"did not give it \(ReadTimeoutError: timed out\)\. Check the spelling"):
        resolve_checkpoint("owner/name", base=tmp_path)
