"""Target and draft are found together: what both would fetch is compared with the disk before either is fetched."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.engine_deployments import EngineDeployment
from helpers.fake_hub import FakeHub
from specdeploy.builders.trtllm_snapshot import find_snapshots, is_hub_reference
from specdeploy.checkpoint.hub import DiskNeed, HubDownload
from specdeploy.config.load import LoadedDeployment
from specdeploy.config.schema import TargetConfig
from specdeploy.errors import CheckpointError

GIB = 1 << 30


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeHub:
    found = FakeHub.install(monkeypatch, tmp_path / "cache")
    found.add("owner/name", {"model.safetensors": 6 * GIB})
    found.add("owner/draft", {"model.safetensors": 3 * GIB})
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: usage._replace(free=8 * GIB))
    return found


def pair_on_hub(tmp_path: Path, target: str = "owner/name", draft: str = "owner/draft") -> LoadedDeployment:
    loaded = EngineDeployment(tmp_path).write("draft_model", with_checkpoints=False)
    speculation = loaded.config.speculation.model_copy(update={"draft": TargetConfig(checkpoint=draft)})
    update = {"target": TargetConfig(checkpoint=target), "speculation": speculation}
    return replace(loaded, config=loaded.config.model_copy(update=update))


def test_both_are_counted_before_one_is_fetched(hub: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        find_snapshots(pair_on_hub(tmp_path), is_dry_run=False)

    assert str(caught.value).startswith(
        f"{hub.cache}: too little room: owner/name from the model hub 6.0 GiB, owner/draft from the model hub 3.0 GiB, "
        "together 9.0 GiB; the disk has 8.0 GiB"
    )
    assert hub.fetched == []


def test_one_checkpoint_in_two_roles_is_counted_once(hub: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nothing is fetched in a test"):
        find_snapshots(pair_on_hub(tmp_path, draft="owner/name"), is_dry_run=False)

    assert hub.fetched == ["owner/name"] * 2


def test_what_is_made_from_them_counts_too(hub: FakeHub, tmp_path: Path) -> None:
    loaded = pair_on_hub(tmp_path, target="owner/draft")
    asked: list[list[str]] = []

    def then(downloads: Mapping[str, HubDownload]) -> DiskNeed:
        asked.append(list(downloads))
        return DiskNeed(tmp_path / "engines", 6 * GIB, "the commands")

    with pytest.raises(CheckpointError, match=r"the commands 6\.0 GiB, together 9\.0 GiB"):
        find_snapshots(loaded, is_dry_run=False, then=then)
    assert asked == [["target", "draft"]]


def test_a_dry_run_asks_nobody(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", None)

    found = find_snapshots(pair_on_hub(tmp_path), is_dry_run=True)

    assert [snapshot.folder for snapshot in found] == [None, None]


@pytest.mark.parametrize(
    ("reference", "expected"),
    [("owner/name", True), ("/models/owner--name", False), ("./a/b", False), ("a/b/c", False)],
)
def test_hub_references(reference: str, expected: bool, tmp_path: Path) -> None:
    assert is_hub_reference(TargetConfig(checkpoint=reference), tmp_path) is expected
