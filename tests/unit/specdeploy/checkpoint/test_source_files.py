"""Which files make a checkpoint for the TensorRT-LLM lanes, and digests that need not be read."""

import hashlib
from pathlib import Path

import pytest

from helpers.fabricated_checkpoints import (
    SMALL,
    byte_level_tokenizer,
    llama_config,
    llama_tensors,
    write_checkpoint,
)
from specdeploy.checkpoint.source import (
    CheckpointForm,
    CheckpointReference,
    digest_files,
    hub_blob_sha256,
    list_checkpoint_files,
    list_text_files,
    resolve_checkpoint,
)
from specdeploy.errors import CheckpointError

SHA256 = "ab" * 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = write_checkpoint(
        tmp_path / "model",
        llama_config(SMALL),
        llama_tensors(SMALL),
        num_shards=3,
        tokenizer=byte_level_tokenizer(SMALL.vocab),
        generation_config={"eos_token_id": 1},
    )
    (path / "hf_quant_config.json").write_text("{}")
    (path / "modeling_own.py").write_text("")
    (path / "README.md").write_text("not part of it")
    return path


def test_lists_what_decides_an_engine(folder: Path) -> None:
    names = [path.name for path in list_checkpoint_files(folder)]

    assert names == [
        "config.json",
        "tokenizer.json",
        "generation_config.json",
        "hf_quant_config.json",
        "model.safetensors.index.json",
        "modeling_own.py",
        *(f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)),
    ]


def test_texts_hold_no_weights_and_no_index(folder: Path) -> None:
    assert {path.name for path in list_text_files(folder)} == {
        "config.json",
        "tokenizer.json",
        "generation_config.json",
    }


def test_missing_shard_is_an_error(folder: Path) -> None:
    (folder / "model-00002-of-00003.safetensors").unlink()

    with pytest.raises(CheckpointError, match="model-00002-of-00003"):
        list_checkpoint_files(folder)


def test_how_it_is_quantised_is_part_of_the_digest(folder: Path) -> None:
    before = digest_files(list_checkpoint_files(folder))
    (folder / "hf_quant_config.json").write_text('{"quantization": {}}')

    assert digest_files(list_checkpoint_files(folder)) != before


def test_lane_torch_counts_the_files_it_did_before(folder: Path) -> None:
    names = {path.name for path in resolve_checkpoint(str(folder), base=folder).files}

    assert not names & {"hf_quant_config.json", "modeling_own.py", "README.md"}


def test_digest_may_come_from_elsewhere_and_is_the_same(tmp_path: Path) -> None:
    paths = (tmp_path / "b", tmp_path / "a")
    for path in paths:
        path.write_text(path.name)
    reference = CheckpointReference("r", CheckpointForm.FOLDER, tmp_path, paths)

    known = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}

    assert reference.digest(known.__getitem__) == reference.digest() == digest_files(reversed(paths))
    assert reference.digest(lambda _path: SHA256) != reference.digest()


@pytest.mark.parametrize(
    ("repository", "place", "blob", "expected"),
    [
        ("models--owner--name", "blobs", SHA256, SHA256),
        ("models--owner--name", "blobs", "ab" * 20, None),  # a small file: named by its git hash
        ("models--owner--name", "blobs", f"{SHA256[:-1]}x", None),
        ("models--owner--name", "other", SHA256, None),
        ("datasets--owner--name", "blobs", SHA256, None),
    ],
)
def test_only_weight_blobs_of_the_hub_cache_name_their_digest(
    repository: str, place: str, blob: str, expected: str | None, tmp_path: Path
) -> None:
    target = tmp_path / repository / place / blob
    target.parent.mkdir(parents=True)
    target.write_bytes(b"weights")
    link = tmp_path / repository / "snapshots" / "commit" / "model.safetensors"
    link.parent.mkdir(parents=True)
    link.symlink_to(target)

    assert hub_blob_sha256(link) == expected
    assert hub_blob_sha256(target) == expected
