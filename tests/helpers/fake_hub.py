"""A model hub in memory: what it says about repositories, and a download that only counts.

hub = FakeHub.install(monkeypatch, tmp_path / "cache")
hub.add("owner/name", {"model.safetensors": 10 << 30}, num_parameters=5 << 30)
"""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.hf_api import BlobLfsInfo, ModelInfo

COMMIT = "c" * 40


@dataclass
class FakeHub:
    """`fetched` are the repositories whose download was asked for; `failure` is what the download raises."""

    cache: Path
    models: dict[str, dict[str, int]] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)
    fetched: list[str] = field(default_factory=list)
    failure: Exception | None = None

    @classmethod
    def install(cls, monkeypatch: pytest.MonkeyPatch, cache: Path) -> "FakeHub":
        """Replace what asks the network by this hub, with `cache` as its cache."""
        hub = cls(cache)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(HfApi, "model_info", hub.model_info)
        monkeypatch.setattr("huggingface_hub.snapshot_download", hub.download)
        return hub

    def add(self, repo_id: str, files: dict[str, int], num_parameters: int | None = None) -> None:
        """A repository with files of these sizes; small files come without the SHA-256 of large file storage."""
        self.models[repo_id] = files
        if num_parameters is not None:
            self.parameters[repo_id] = num_parameters

    def blob(self, repo_id: str, name: str) -> Path:
        """Where the cache holds the file once it was fetched."""
        digest = hashlib.sha256(name.encode()).hexdigest()
        etag = digest if name.endswith(".safetensors") else digest[:40]
        return self.cache / f"models--{repo_id.replace('/', '--')}" / "blobs" / etag

    def model_info(self, repo_id: str, *, revision: str | None, files_metadata: bool, timeout: float) -> ModelInfo:
        assert files_metadata
        assert timeout <= 60
        if repo_id not in self.models:
            raise OSError("no such repository")
        siblings = []
        for name, size in self.models[repo_id].items():
            etag = self.blob(repo_id, name).name
            lfs = {"size": size, "sha256": etag, "pointerSize": 134} if len(etag) == 64 else None
            siblings.append({"rfilename": name, "size": size, "blobId": etag[:40], "lfs": lfs})
        total = self.parameters.get(repo_id)
        counted = {} if total is None else {"safetensors": {"parameters": {"BF16": total}, "total": total}}
        info: ModelInfo = ModelInfo(  # type: ignore[no-untyped-call]
            id=repo_id, sha=revision or COMMIT, siblings=siblings, **counted
        )
        assert all(file.lfs is None or isinstance(file.lfs, BlobLfsInfo) for file in info.siblings or ())
        return info

    def download(self, repo_id: str, **_options: Any) -> str:
        self.fetched.append(repo_id)
        raise self.failure or OSError("nothing is fetched in a test")
