"""EAGLE-3 heads of all producers beside their target: layers, tensors, embeddings, norms, generation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers.fabricated_checkpoints import (
    LLAMA_8B,
    LLAMA_70B,
    LlamaSize,
    byte_level_tokenizer,
    eagle1_tensors,
    eagle3_config,
    llama_config,
    medusa_tensors,
    write_checkpoint,
)
from helpers.pair_files import codes, compare, edit_config, only, write_eagle3, write_model
from specdeploy.checkpoint_contract import PairVerdict, Severity, TensorOrigin
from specdeploy.contract import Method

SIZE = LlamaSize(32, 256, 512, 4, 2, 2048, head_dim=64)
LAYOUTS = ("safeailab", "specforge", "speculators", "modelopt")
IDS_KEY = "eagle_aux_hidden_state_layer_ids"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_model(tmp_path / "target", SIZE, tokenizer=byte_level_tokenizer(SIZE.vocab))


def write_head(folder: Path, layout: str = "safeailab", **options: Any) -> Path:
    return write_eagle3(folder, SIZE, layout=layout, draft_vocab=500, **options)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_whole_head_of_every_producer_fits(layout: str, target: Path, tmp_path: Path) -> None:
    head = write_head(tmp_path / "head", layout, **{IDS_KEY: [2, 16, 29]})

    report = compare(target, head, method=Method.EAGLE3)

    assert [one.detail for one in report.findings if one.severity is Severity.FAILURE] == []
    assert only(report, "aux-layers").detail == f"[2, 16, 29] from {IDS_KEY}: after 2, 16, 29 layers"


def test_layers_that_a_head_does_not_name_are_a_risk_with_the_guess_printed(tmp_path: Path) -> None:
    target = write_model(tmp_path / "target", LLAMA_70B, tokenizer=byte_level_tokenizer(LLAMA_70B.vocab))

    report = compare(target, write_eagle3(tmp_path / "head", LLAMA_70B, layout="modelopt"))

    found = only(report, "aux-layers-guessed")
    assert found.severity is Severity.WARNING
    assert found.detail.startswith("unverified: names no auxiliary layers")
    assert found.detail.endswith("(2, n // 2, n - 3) gives (2, 40, 77)")
    assert "acceptance would collapse to about 0, and nothing would log it" in found.why


def test_layers_nested_under_eagle_config_are_found_with_their_source(tmp_path: Path) -> None:
    size = LlamaSize(43, 256, 512, 4, 2, 2048, head_dim=64)
    target = write_model(tmp_path / "target", size, tokenizer=byte_level_tokenizer(size.vocab))
    head = write_eagle3(
        tmp_path / "head", size, layout="modelopt", draft_vocab=500, eagle_config={IDS_KEY: [1, 42, 21]}
    )

    assert only(compare(target, head), "aux-layers").detail == (
        f"[1, 21, 42] from eagle_config.{IDS_KEY}: after 2, 22, 43 layers"
    )


def test_a_trainers_ids_under_the_key_of_engines_are_a_risk(target: Path, tmp_path: Path) -> None:
    """1, n // 2 - 1, n - 4 are outputs of layers; read as the flat key is, each would be taken a layer too early."""
    copied = compare(target, write_head(tmp_path / "copied", eagle_aux_hidden_state_layer_ids=[1, 15, 28]))
    nested = compare(
        target, write_head(tmp_path / "nested", "modelopt", eagle_config={IDS_KEY: [1, 15, 28]}), method=Method.EAGLE3
    )

    found = only(copied, "aux-layers-unshifted")
    assert found.severity is Severity.WARNING
    assert "[1, 15, 28]" in found.detail
    assert f"{IDS_KEY} [2, 16, 29]" in found.remedy
    assert copied.verdict is PairVerdict.COMPATIBLE
    assert "aux-layers-unshifted" not in codes(nested)


@pytest.mark.parametrize(
    ("ids", "fault"),
    [
        ({IDS_KEY: [2, 16, 60]}, "60 lies beyond the target's 32 layers"),
        ({IDS_KEY: [16, 2, 29]}, "they do not rise"),
        ({"target_layer_ids": [16, 2, 29]}, "they do not rise"),
        ({"eagle_config": {IDS_KEY: [1, 15, 32]}}, "33 lies beyond the target's 32 layers"),
        ({"eagle_config": {IDS_KEY: [1, 1, 15]}}, "they do not rise"),
    ],
)
def test_layers_that_cannot_be_right(ids: dict[str, Any], fault: str, target: Path, tmp_path: Path) -> None:
    report = compare(target, write_head(tmp_path / "head", "modelopt", **ids))

    assert fault in only(report, "aux-layers-wrong").detail
    assert report.verdict is PairVerdict.INCOMPATIBLE


def test_fc_must_read_as_many_layers_as_are_named(target: Path, tmp_path: Path) -> None:
    head = write_head(tmp_path / "head", target_hidden_size=256, eagle_aux_hidden_state_layer_ids=[2, 29])

    assert only(compare(target, head), "head-shape").detail == (
        "fc reads 768 values per position, expected 2 layers x hidden size 256 = 512"
    )


def test_a_head_for_a_wider_target(tmp_path: Path) -> None:
    wide = write_model(tmp_path / "wide", LLAMA_8B, tokenizer=byte_level_tokenizer(2048))

    assert (
        "hidden size 256, this target has 4096"
        in only(compare(wide, write_head(tmp_path / "head")), "hidden-size-differs").detail
    )


class TestOriginOfTensors:
    def test_a_reduced_head_without_lm_head_is_refused(self, target: Path, tmp_path: Path) -> None:
        report = compare(target, write_head(tmp_path / "head", leave_out=("lm_head.weight",)))

        assert only(report, "tensors-missing").detail == "needed and not there: lm_head.weight"
        assert report.verdict is PairVerdict.INCOMPATIBLE
        assert report.draft is not None
        assert report.draft.head is not None
        origins = report.draft.head.tensors
        assert origins["embed_tokens.weight"] is TensorOrigin.BORROWED_FROM_TARGET
        assert origins["fc.weight"] is TensorOrigin.IN_HEAD

    def test_random_embeddings_are_recognised(self, target: Path, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        ours = rng.standard_normal((2048, 256)) * np.exp(rng.standard_normal((2048, 1)))
        for name, values in (
            ("random", rng.standard_normal((2048, 256))),
            ("same", ours),
            ("different", ours * 2 + 1),
        ):
            bits = {"embed_tokens.weight": to_bf16(values)}
            write_head(tmp_path / name, embedding=True, values=bits)
        write_embedding(target, to_bf16(ours))

        random = only(compare(target, tmp_path / "random"), "embeddings-random")
        assert random.detail.startswith("looks random: 0 of 256 sampled rows equal")
        assert random.severity is Severity.WARNING
        assert only(compare(target, tmp_path / "same"), "embeddings-same").severity is Severity.INFO
        assert only(compare(target, tmp_path / "different"), "embeddings-differ").severity is Severity.WARNING

    def test_tensors_of_no_known_head_are_named(self, target: Path, tmp_path: Path) -> None:
        head = write_head(tmp_path / "head", extra={"midlayer.extra_gate.weight": ("BF16", (256,))})

        assert "extra_gate" in only(compare(target, head), "tensors-unexpected").detail


def to_bf16(values: NDArray[Any]) -> NDArray[Any]:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def write_embedding(folder: Path, bits: NDArray[Any]) -> None:
    """Put values into the hole where the sparse target has its embedding."""
    from specdeploy.checkpoint.safetensors_header import read_weight_files

    entry = read_weight_files(folder).tensors["model.embed_tokens.weight"]
    with entry.path.open("r+b") as file:
        file.seek(entry.begin)
        file.write(bits.tobytes())


class TestNormSwitches:
    def test_a_norm_without_its_switch(self, target: Path, tmp_path: Path) -> None:
        head = write_head(tmp_path / "head", extra={"fc_norm.0.weight": ("BF16", (256,))})

        found = only(compare(target, head), "norm-tensor-without-switch")
        assert found.detail == "holds fc_norm.0.weight, but fc_norm is not in the config"
        assert found.severity is Severity.WARNING

    def test_a_switch_without_its_norm(self, target: Path, tmp_path: Path) -> None:
        report = compare(target, write_head(tmp_path / "head", "specforge", fc_norm=True, norm_output=True))

        assert only(report, "norm-switch-without-tensor").detail == "fc_norm is true, but there is no tensor fc_norm"

    def test_a_switch_with_its_norms_is_kept(self, target: Path, tmp_path: Path) -> None:
        norms = {f"fc_norm.{index}.weight": ("BF16", (256,)) for index in range(3)}
        head = write_head(tmp_path / "head", "specforge", fc_norm=True, norm_output=True, extra=norms)

        report = compare(target, head)

        assert not codes(report) & {"norm-switch-without-tensor", "norm-tensor-without-switch", "tensors-missing"}
        assert report.draft is not None
        assert report.draft.head is not None
        assert report.draft.head.norm_switches["norm_output"] is True

    def test_unknown_keys_and_applied_defaults_are_listed(self, target: Path, tmp_path: Path) -> None:
        report = compare(target, write_head(tmp_path / "head", residual_gate="sigmoid"))

        assert "config key residual_gate" in only(report, "head-key-unknown").detail
        assert "norm_before_residual: false" in only(report, "head-defaults").detail


class TestGeneration:
    def test_an_older_head_passed_off_as_v3_is_named(self, target: Path, tmp_path: Path) -> None:
        config = eagle3_config(SIZE, "specforge", draft_vocab=None)
        head = write_checkpoint(tmp_path / "head", config, eagle1_tensors(SIZE))

        report = compare(target, head, method=Method.EAGLE3)

        details = [one.detail for one in report.findings if one.code == "head-generation"]
        assert details == [
            "config.json calls it v3, its tensors are those of v1",
            "method eagle3 needs v3, this head is v1/v2: its fc reads 512 values per position",
        ]
        assert report.verdict is PairVerdict.INCOMPATIBLE

    def test_an_eagle_head_with_a_bias_its_config_denies(self, target: Path, tmp_path: Path) -> None:
        config = llama_config(SIZE, num_hidden_layers=1, bias=False)
        head = write_checkpoint(tmp_path / "head", config, eagle1_tensors(SIZE, bias=True))

        assert "fc.bias" in only(compare(target, head), "tensors-unexpected").detail

    def test_an_eagle_head_without_the_bias_its_config_promises(self, target: Path, tmp_path: Path) -> None:
        config = llama_config(SIZE, num_hidden_layers=1, bias=True)
        head = write_checkpoint(tmp_path / "head", config, eagle1_tensors(SIZE))

        assert "fc.bias" in only(compare(target, head), "tensors-missing").detail

    def test_a_model_is_no_head_and_a_head_no_model(self, target: Path, tmp_path: Path) -> None:
        medusa = write_checkpoint(
            tmp_path / "medusa", {"medusa_num_heads": 4, "medusa_num_layers": 1}, medusa_tensors(256, 2048)
        )

        assert "draft-kind" in codes(compare(target, target, method=Method.EAGLE3))
        assert "draft-kind" in codes(compare(target, medusa, method=Method.DRAFT_MODEL))
        assert "draft-kind" not in codes(compare(target, medusa))


def test_a_head_trained_for_2048_positions(target: Path, tmp_path: Path) -> None:
    head = write_head(tmp_path / "head")

    assert "2048 positions" in only(compare(target, head), "context-short").detail
    found = only(compare(target, head, max_seq_len=8192), "context-short")
    assert found.detail == "serving.max_seq_len 8192 exceeds the 2048 positions it was trained for"
    assert "switch speculation off for longer requests" in found.remedy
    assert "context-short" not in codes(compare(target, head, max_seq_len=2048))


def test_all_findings_come_at_once_failures_first(target: Path, tmp_path: Path) -> None:
    head = write_head(tmp_path / "head", leave_out=("norm.weight",), d2t=np.zeros(500, np.int64))
    edit_config(head, surprise=1)

    report = compare(target, head, max_seq_len=8192, tensor_parallel=3)

    assert {
        "tensors-missing",
        "vocab-map-all-zero",
        "head-key-unknown",
        "aux-layers-guessed",
        "context-short",
        "tensor-parallel",
    } <= codes(report)
    severities = [list(Severity).index(one.severity) for one in report.findings]
    assert severities == sorted(severities, reverse=True)
    assert all(one.why and one.remedy and one.detail and one.subject for one in report.findings)
