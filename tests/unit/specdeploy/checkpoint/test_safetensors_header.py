"""Headers: the same view as the safetensors library on good files, a clear refusal of every lying one."""

import json
import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from helpers.fabricated_checkpoints import SMALL, llama_tensors, write_sparse, write_weights
from specdeploy.checkpoint import safetensors_header
from specdeploy.checkpoint.safetensors_header import read_header, read_rows, read_tensor, read_weight_files
from specdeploy.errors import CheckpointError


def write_raw(path: Path, header: bytes | dict[str, Any], data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def tensor(begin: int = 0, end: int = 8, dtype: str = "F32", shape: Any = (2,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


class TestGoodFiles:
    def test_same_view_as_the_library(self, tmp_path: Path) -> None:
        tensors = {
            "model.embed_tokens.weight": torch.randn(7, 4).bfloat16(),
            "half": torch.randn(3).half(),
            "d2t": torch.arange(5),
            "t2d": torch.tensor([True, False, True]),
            "scalar": torch.tensor(2.5),
            "empty": torch.zeros(0, 4),
            'odd "name" \\ \u00e9': torch.zeros(2, dtype=torch.uint8),
            "fp8": torch.zeros(4).to(torch.float8_e4m3fn),
        }
        path = tmp_path / "model.safetensors"
        save_file(tensors, path, metadata={"format": "pt", "note": "} , {"})

        header = read_header(path)

        assert header.keys() == tensors.keys()
        with safe_open(path, framework="pt") as library:
            for name in tensors:
                view = library.get_slice(name)
                assert list(header[name].shape) == view.get_shape(), name
                assert header[name].dtype == view.get_dtype(), name
                if name != "fp8":
                    ours = torch.from_numpy(np.array(read_tensor(header[name])))
                    assert torch.equal(ours, library.get_tensor(name).to(ours.dtype)), name

    def test_rows_come_in_the_order_asked_for(self, tmp_path: Path) -> None:
        matrix = torch.arange(20, dtype=torch.bfloat16).reshape(5, 4)
        save_file({"w": matrix}, tmp_path / "x.safetensors")
        entry = read_header(tmp_path / "x.safetensors")["w"]

        assert read_rows(entry, [4, 0]).tolist() == [[16, 17, 18, 19], [0, 1, 2, 3]]
        with pytest.raises(CheckpointError, match="no such rows"):
            read_rows(entry, [5])

    def test_other_spellings_of_json(self, tmp_path: Path) -> None:
        text = b'{ "a" : {"shape": [ 2 ],\n"data_offsets":[0 , 8], "dtype":"F32"} , "__metadata__":{} }   '

        assert read_header(write_raw(tmp_path / "x", text, bytes(8)))["a"].shape == (2,)

    def test_no_tensors(self, tmp_path: Path) -> None:
        assert read_header(write_raw(tmp_path / "x", b"{}")) == {}
        assert read_header(write_raw(tmp_path / "x", b'{"__metadata__":{"a":"b"}}')) == {}

    def test_large_tensors_are_not_read(self, tmp_path: Path) -> None:
        write_sparse(tmp_path / "x.safetensors", {"w": ("BF16", (1 << 20, 1 << 12))})
        entry = read_header(tmp_path / "x.safetensors")["w"]

        assert entry.num_bytes == 1 << 33
        with pytest.raises(CheckpointError, match="more than the"):
            read_tensor(entry)


LIES = {
    "no bytes": (b"", None, "too short for a header"),
    "seven bytes": (b"\x01" * 7, None, "too short"),
    "huge length": (struct.pack("<Q", 1 << 62), None, "claims 4611686018427387904 bytes"),
    "length beyond the file": (struct.pack("<Q", 1000) + b"{}", None, "the file has 10 in all"),
    "not utf-8": (None, b'{"\xff": 1}', "not UTF-8 at byte 2"),
    "not an object": (None, b"[]", "does not start with {"),
    "space first": (None, b" {}", "does not start with {"),
    "cut off": (None, b'{"a":{"dtype":"F32"', "not an object of at most"),
    "unterminated name": (None, b'{"a', "a string expected"),
    "control character": (None, b'{"a\n":1}', "a string expected"),
    "half a surrogate": (None, b'{"\\ud800":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', "not JSON"),
    "text after": (None, b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}x', "text after"),
    "same name twice": (
        None,
        b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}',
        "'a' twice",
    ),
    "same key twice": (None, b'{"a":{"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]}}', "once each"),
    "metadata of numbers": (None, b'{"__metadata__":{"a":1}}', "a string expected"),
    "deep nesting": (None, b'{"a":' + b"[" * 5000 + b"}", "not an object"),
    "unknown dtype": (None, {"a": tensor(dtype="F31")}, "unknown dtype 'F31'"),
    "dtype of a number": (None, {"a": {**tensor(), "dtype": 1}}, "unknown dtype"),
    "minus nothing": (None, b'{"a":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}}', "none negative"),
    "negative shape": (None, {"a": tensor(shape=[-2])}, "none negative"),
    "shape of text": (None, {"a": {**tensor(), "shape": "2"}}, "whole numbers"),
    "shape of NaN": (None, b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}', "whole numbers"),
    "shape overflows": (None, {"a": tensor(shape=[1 << 62, 1 << 62])}, "does not fill"),
    "offsets of one": (None, {"a": {**tensor(), "data_offsets": [0]}}, "two ascending"),
    "offsets backwards": (None, {"a": tensor(8, 0)}, "two ascending"),
    "too little data": (None, {"a": tensor(shape=[3])}, "does not fill the 8 bytes"),
    "beyond the file": (None, {"a": tensor(0, 16, shape=[4])}, "cut off or lies"),
    "overlap": (None, {"a": tensor(0, 8), "b": tensor(4, 8, shape=[1])}, "overlaps"),
    "hole": (None, {"a": tensor(0, 2, "U8"), "b": tensor(6, 8, "U8")}, "leaves a hole"),
    "hole at the start": (None, {"a": tensor(6, 8, "U8")}, "leaves a hole"),
    "data of nobody": (None, {"a": tensor(0, 4, shape=[1])}, "4 bytes after the last tensor"),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_are_refused_as_the_library_refuses_them(tmp_path: Path, lie: str) -> None:
    whole, header, words = LIES[lie]
    path = tmp_path / "model.safetensors"
    if whole is not None:
        path.write_bytes(whole)
    else:
        assert header is not None
        write_raw(path, header, bytes(8))

    with pytest.raises(CheckpointError) as caught:
        read_header(path)

    message = str(caught.value)
    assert message.startswith(f"{path}: broken safetensors file (")
    assert words in message
    assert "Fetch the file again" in message
    if lie not in ("same key twice",):  # the library takes the last of the two
        with pytest.raises(SafetensorError), safe_open(path, framework="np"):
            pass


def test_a_header_of_100_mb_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 100_000_000) + b"{")
        file.truncate(200_000_000)

    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="claims 100000000 bytes, more than the 25000000"):
            read_header(path)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_the_number_of_tensors_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_header, "MAX_TENSORS", 3)
    write_sparse(tmp_path / "x", {f"t{index}": ("U8", (1,)) for index in range(4)})

    with pytest.raises(CheckpointError, match="more than 3 tensors"):
        read_header(tmp_path / "x")


class TestFolder:
    def test_shards_and_index_give_all_tensors(self, tmp_path: Path) -> None:
        shapes = llama_tensors(SMALL)
        weights = read_weight_files(write_weights(tmp_path, shapes, num_shards=5))

        assert len(weights.files) == 5
        assert {name: (entry.dtype, entry.shape) for name, entry in weights.tensors.items()} == shapes
        assert weights.num_bytes == sum(2 * int(np.prod(shape)) for _, shape in shapes.values())

    def test_no_weights_are_no_files(self, tmp_path: Path) -> None:
        assert read_weight_files(tmp_path).files == ()

    def test_everything_wrong_with_an_index_is_said_at_once(self, tmp_path: Path) -> None:
        write_sparse(tmp_path / "a.safetensors", {"x": ("U8", (1,))})
        (tmp_path / "zero.safetensors").write_bytes(b"")
        (tmp_path / "loop.safetensors").symlink_to("loop.safetensors")
        os.mkfifo(tmp_path / "pipe.safetensors")
        outside = (
            "../a.safetensors",
            "/etc/a.safetensors",
            "..",
            "",
            "a\0.safetensors",
            "config.json",
            "s/a.safetensors",
        )
        weight_map = {
            "x": "a.safetensors",
            "lost": "a.safetensors",
            "absent": "b.safetensors",
            "zero": "zero.safetensors",
            "loop": "loop.safetensors",
            "pipe": "pipe.safetensors",
            **{f"outside{index}": name for index, name in enumerate(outside)},
        }
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

        with pytest.raises(CheckpointError) as caught:
            read_weight_files(tmp_path)

        message = str(caught.value)
        assert "a.safetensors: lacks 1 tensors that model.safetensors.index.json promises, the first is lost" in message
        assert "b.safetensors: missing, but" in message
        assert "zero.safetensors: broken safetensors file (0 bytes" in message
        assert "loop.safetensors: a symlink that leads to itself" in message
        assert "pipe.safetensors: not a regular file" in message
        assert message.count("which is not a file of this folder") == len(outside)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("[]", "holds a list"),
            ("{}", "not a weight index"),
            ('{"weight_map": []}', "not a weight index"),
            ('{"weight_map": {"a": 1}}', "'a' is placed in 1"),
            ('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "key 'a' occurs twice"),
            ('{"weight_map": {"a": NaN}}', "is placed in nan"),
        ],
    )
    def test_what_is_no_index(self, tmp_path: Path, text: str, words: str) -> None:
        (tmp_path / "model.safetensors.index.json").write_text(text)

        with pytest.raises(CheckpointError, match=words):
            read_weight_files(tmp_path)

    def test_links_of_a_hub_cache_are_followed(self, tmp_path: Path) -> None:
        (tmp_path / "blobs").mkdir()
        (tmp_path / "snapshot").mkdir()
        write_sparse(tmp_path / "blobs" / "0a1b", {"x": ("U8", (1,))})
        (tmp_path / "snapshot" / "model.safetensors").symlink_to("../blobs/0a1b")

        assert set(read_weight_files(tmp_path / "snapshot").tensors) == {"x"}
