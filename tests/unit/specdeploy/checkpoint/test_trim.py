"""A trimmed draft: rows copied byte for byte, maps that agree, everything else as it was, nothing left by a failure."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import safe_open

from helpers.fabricated_checkpoints import (
    LlamaSize,
    byte_level_tokenizer,
    eagle1_tensors,
    llama_config,
    llama_tensors,
    write_checkpoint,
)
from helpers.pair_files import codes, compare, edit_config, kept_ids, write_eagle3
from specdeploy.checkpoint.safetensors_header import read_tensor, read_weight_files
from specdeploy.checkpoint.trim import REPORT_NAME, trim_vocabulary
from specdeploy.checkpoint.vocab_maps import maps_of_kept_ids
from specdeploy.checkpoint_contract import PairVerdict
from specdeploy.contract import Lane, Method
from specdeploy.errors import CheckpointError

SIZE = LlamaSize(2, 32, 64, 4, 2, 320, head_dim=8)
TIED = LlamaSize(2, 32, 64, 4, 2, 320, head_dim=8, tied=True)
TOKENIZER = byte_level_tokenizer(320, added=("<|end|>", "<|bot|>"))  # ids 318, 319
RNG = np.random.default_rng(0)


def values_of(shapes: dict[str, tuple[str, tuple[int, ...]]]) -> dict[str, NDArray[Any]]:
    """Some bits for every bfloat16 tensor."""
    return {
        name: RNG.integers(0, 2**16, shape).astype(np.uint16)
        for name, (dtype, shape) in shapes.items()
        if dtype == "BF16"
    }


def write_draft(folder: Path, size: LlamaSize = SIZE, *, num_shards: int = 1) -> Path:
    shapes = llama_tensors(size)
    write_checkpoint(
        folder,
        llama_config(size),
        shapes,
        values=values_of(shapes),
        num_shards=num_shards,
        tokenizer=TOKENIZER,
        generation_config={"eos_token_id": 17},
    )
    (folder / "README.md").write_text("model card")
    return folder


def write_corpus(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


def raw(folder: Path, name: str) -> bytes:
    entry = read_weight_files(folder).tensors[name]
    return entry.path.read_bytes()[entry.begin : entry.end]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Ids 5 (four times), 9 (three), 200 (twice), 7 (once)."""
    return write_corpus(tmp_path / "corpus.jsonl", {"token_ids": [5, 5, 5, 9, 9, 200]}, {"output_ids": [5, 9, 200, 7]})


@pytest.mark.parametrize(("size", "num_shards"), [(SIZE, 1), (SIZE, 3), (TIED, 1)])
def test_rows_are_copied_and_the_rest_is_untouched(
    size: LlamaSize, num_shards: int, corpus: Path, tmp_path: Path
) -> None:
    draft = write_draft(tmp_path / "draft", size, num_shards=num_shards)

    report = trim_vocabulary(draft, [corpus], 3, tmp_path / "trimmed", lane=Lane.TORCH)

    kept = [5, 9, 17, 200, 318, 319]  # 17 ends a text, 318 and 319 are control tokens
    assert (report.num_kept, report.num_frequent, report.num_rows) == (6, 3, 320)
    assert (report.coverage, report.num_corpus_tokens) == (0.9, 10)
    before, after = read_weight_files(draft).tensors, read_weight_files(tmp_path / "trimmed").tensors
    source = "model.embed_tokens.weight" if size.tied else "lm_head.weight"
    row_bytes = 2 * size.hidden
    whole = raw(draft, source)
    assert raw(tmp_path / "trimmed", "lm_head.weight") == b"".join(
        whole[row * row_bytes : (row + 1) * row_bytes] for row in kept
    )
    assert after.keys() == {*before, "lm_head.weight", "d2t", "t2d"}
    assert all(raw(draft, name) == raw(tmp_path / "trimmed", name) for name in before if name != "lm_head.weight")
    d2t, t2d = read_tensor(after["d2t"]), read_tensor(after["t2d"])
    assert [str(array.dtype) for array in (d2t, t2d)] == ["int64", "bool"]
    assert (np.arange(6) + d2t).tolist() == np.flatnonzero(t2d).tolist() == kept
    config = json.loads((tmp_path / "trimmed" / "config.json").read_text())
    assert (config["draft_vocab_size"], config["vocab_size"], config["tie_word_embeddings"]) == (6, 320, False)
    assert (tmp_path / "trimmed" / "README.md").read_text() == "model card"
    assert json.loads((tmp_path / "trimmed" / REPORT_NAME).read_text())["coverage"] == 0.9


def test_the_safetensors_library_reads_what_was_written(corpus: Path, tmp_path: Path) -> None:
    trim_vocabulary(write_draft(tmp_path / "draft"), [corpus], 3, tmp_path / "trimmed")

    with safe_open(tmp_path / "trimmed" / "model.safetensors", framework="numpy") as tensors:
        assert tensors.metadata() == {"format": "pt"}
        assert tensors.get_tensor("d2t").tolist() == [5, 8, 15, 197, 314, 314]
        assert tensors.get_slice("lm_head.weight").get_shape() == [6, 32]


def test_a_trimmed_draft_fits_the_target_of_the_whole_one(corpus: Path, tmp_path: Path) -> None:
    target = write_draft(tmp_path / "target")
    trim_vocabulary(write_draft(tmp_path / "draft"), [corpus], 3, tmp_path / "trimmed")

    report = compare(target, tmp_path / "trimmed", lane=Lane.TORCH, method=Method.DRAFT_MODEL)

    assert report.verdict is not PairVerdict.INCOMPATIBLE, [one.detail for one in report.findings]
    elsewhere = compare(target, tmp_path / "trimmed", lane=Lane.TRTLLM_LLMAPI)
    assert "lane-cannot-serve" in codes(elsewhere)
    assert "target-is-trimmed" in codes(compare(tmp_path / "trimmed", target))


def test_an_eagle3_head_is_trimmed_further_within_what_it_can_propose(tmp_path: Path) -> None:
    write_draft(tmp_path / "target")
    head = write_eagle3(tmp_path / "head", SIZE, draft_vocab=100)
    able = np.flatnonzero(read_tensor(read_weight_files(head).tensors["t2d"]))
    unable = next(token_id for token_id in range(300) if token_id not in able)
    wanted = [int(able[3]), int(able[50])]
    corpus = write_corpus(tmp_path / "c.jsonl", {"token_ids": [*wanted, *wanted, unable, unable, unable]})

    report = trim_vocabulary(head, [corpus], 2, tmp_path / "trimmed", target=tmp_path / "target")

    after = read_weight_files(tmp_path / "trimmed").tensors
    kept = np.flatnonzero(read_tensor(after["t2d"])).tolist()
    assert set(wanted) <= set(kept) <= set(able.tolist())
    assert report.coverage == pytest.approx(4 / 7)
    assert after["lm_head.weight"].shape == (report.num_kept, 32)
    assert not {
        code for code in codes(compare(tmp_path / "target", tmp_path / "trimmed")) if code.startswith("vocab-map")
    }


def test_a_head_without_lm_head_takes_rows_of_the_target(corpus: Path, tmp_path: Path) -> None:
    target = write_draft(tmp_path / "target")
    head = write_eagle3(tmp_path / "head", SIZE, draft_vocab=SIZE.vocab, leave_out=("lm_head.weight", "d2t", "t2d"))
    with pytest.raises(CheckpointError, match=r"it borrows the target's\. Name the target's folder"):
        trim_vocabulary(head, [corpus], 3, tmp_path / "trimmed")

    trim_vocabulary(head, [corpus], 3, tmp_path / "trimmed", target=target)

    assert raw(tmp_path / "trimmed", "lm_head.weight")[:64] == raw(target, "lm_head.weight")[5 * 64 : 6 * 64]


@pytest.mark.parametrize("lane", [Lane.TRTLLM_ENGINE, Lane.TRTLLM_LLMAPI])
def test_lanes_that_cannot_read_the_map_are_refused_by_name(lane: Lane, corpus: Path, tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "draft")

    with pytest.raises(CheckpointError, match=rf"lane {lane} cannot read a causal_lm draft .* Lanes that can: torch"):
        trim_vocabulary(draft, [corpus], 3, tmp_path / "trimmed", lane=lane)


def test_an_eagle_1_head_has_no_reduced_vocabulary(corpus: Path, tmp_path: Path) -> None:
    head = write_checkpoint(tmp_path / "head", llama_config(SIZE, num_hidden_layers=1), eagle1_tensors(SIZE))

    with pytest.raises(CheckpointError, match="kind eagle has no reduced vocabulary"):
        trim_vocabulary(head, [corpus], 3, tmp_path / "trimmed")


@pytest.mark.parametrize("num_frequent", [0, 320, 999])
def test_numbers_that_trim_nothing(num_frequent: int, corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"{num_frequent} is not between 1 and 319"):
        trim_vocabulary(write_draft(tmp_path / "draft"), [corpus], num_frequent, tmp_path / "trimmed")


def test_a_quantised_lm_head_is_refused(corpus: Path, tmp_path: Path) -> None:
    shapes = {**llama_tensors(SIZE), "lm_head.weight_scale": ("F32", (320, 1))}
    write_checkpoint(tmp_path / "draft", llama_config(SIZE), shapes, tokenizer=TOKENIZER)

    with pytest.raises(CheckpointError, match=r"not one plain matrix \(lm_head\.weight_scale\)"):
        trim_vocabulary(tmp_path / "draft", [corpus], 3, tmp_path / "trimmed")


def test_an_existing_folder_is_never_overwritten(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "trimmed").mkdir()
    with pytest.raises(CheckpointError, match=r"exists\. Name a folder that does not exist yet"):
        trim_vocabulary(write_draft(tmp_path / "draft"), [corpus], 3, tmp_path / "trimmed")


def test_a_failure_leaves_nothing_behind(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = write_draft(tmp_path / "draft")
    before = set(tmp_path.iterdir())

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(CheckpointError, match=r"trimmed: cannot be written \(No space left on device"):
        trim_vocabulary(draft, [corpus], 3, tmp_path / "trimmed")
    assert set(tmp_path.iterdir()) == before


def test_the_same_corpus_gives_the_same_bytes(corpus: Path, tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "draft")
    for name in ("a", "b"):
        trim_vocabulary(draft, [corpus], 50, tmp_path / name)  # more than the corpus uses: ties, lowest first
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("d2t", "words"),
    [
        (np.zeros(100, np.int64), r"d2t: \[vocab-map-all-zero\]"),
        (kept_ids(SIZE, 100), r"d2t: \[vocab-map-absolute\]"),
        (np.roll(maps_of_kept_ids(kept_ids(SIZE, 100), 320)[0], 1), r"d2t: \[vocab-map-"),
        (np.arange(100)[::-1].astype(np.int64), r"d2t: \[vocab-map-order\]"),
        (maps_of_kept_ids(kept_ids(SIZE, 90), 320)[0], r"\[vocab-map-size\] 90 entries"),
        (maps_of_kept_ids(kept_ids(SIZE, 100), 320)[0][:, None], r"d2t: I64 \[100, 1\], expected int64 \[n\]"),
        (np.zeros((), np.int64), r"d2t: I64 \[\], expected int64 \[n\]"),
        (np.zeros(100, np.int32), r"d2t: I32 \[100\], expected int64 \[n\]"),
        (np.zeros(1_000_000, np.int64), r"d2t: I64 \[1000000\], expected int64 \[n\]"),
    ],
)
def test_a_head_with_wrong_maps_is_not_trimmed_into_one_that_looks_right(
    d2t: NDArray[Any], words: str, corpus: Path, tmp_path: Path
) -> None:
    write_draft(tmp_path / "target")
    shapes = {"d2t": ({"int64": "I64", "int32": "I32"}[str(d2t.dtype)], d2t.shape)}
    head = write_eagle3(tmp_path / "head", SIZE, draft_vocab=100, d2t=d2t, extra=shapes)

    with pytest.raises(CheckpointError, match=words):
        trim_vocabulary(head, [corpus], 2, tmp_path / "trimmed", target=tmp_path / "target")

    assert not (tmp_path / "trimmed").exists()


def test_a_mask_or_a_stated_size_that_disagrees_is_refused(corpus: Path, tmp_path: Path) -> None:
    write_draft(tmp_path / "target")
    other = maps_of_kept_ids(np.arange(100), 320)[1]
    heads = {
        "vocab-map-disagree": write_eagle3(tmp_path / "a", SIZE, draft_vocab=100, values={"t2d": other}),
        "vocab-map-size": write_eagle3(tmp_path / "b", SIZE, draft_vocab=100),
        "t2d: BOOL": write_eagle3(tmp_path / "c", SIZE, draft_vocab=100, extra={"t2d": ("BOOL", (320, 1))}),
    }
    edit_config(heads["vocab-map-size"], draft_vocab_size=99)

    for words, head in heads.items():
        with pytest.raises(CheckpointError, match=words):
            trim_vocabulary(head, [corpus], 2, tmp_path / "trimmed", target=tmp_path / "target")


def test_a_vocabulary_size_that_no_model_has_asks_for_no_memory(corpus: Path, tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "draft")
    edit_config(draft, vocab_size=10**12)

    with pytest.raises(CheckpointError, match="1000000000000 is no vocabulary"):
        trim_vocabulary(draft, [corpus], 2, tmp_path / "trimmed")
