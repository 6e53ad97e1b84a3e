"""Tokenizer and vocabulary of a pair: foreign, swapped, padded, and the maps of a reduced vocabulary."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers.fabricated_checkpoints import LLAMA_8B, QWEN25_05B, QWEN25_7B, SMALL, LlamaSize, byte_level_tokenizer
from helpers.pair_files import (
    codes,
    compare,
    edit_config,
    foreign_tokenizer,
    kept_ids,
    only,
    rename_tokens,
    write_eagle3,
    write_model,
)
from specdeploy.checkpoint_contract import PairVerdict, Severity
from specdeploy.contract import Lane

QWEN_TOKENS = 151665
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def small(vocab: int = 320) -> LlamaSize:
    return LlamaSize(2, 64, 128, 4, 2, vocab, head_dim=16)


def test_the_same_tokenizer_is_identical(tmp_path: Path) -> None:
    for name in ("target", "draft"):
        write_model(tmp_path / name, SMALL, tokenizer=byte_level_tokenizer(320))

    report = compare(tmp_path / "target", tmp_path / "draft", max_draft_cost_ratio=2.0)

    assert report.verdict is PairVerdict.IDENTICAL
    assert report.num_differing_ids == 0


@pytest.mark.parametrize(("target_vocab", "draft_vocab"), [(152064, 32002), (49152, 49152)])
def test_a_draft_of_another_tokenizer_family_is_refused(target_vocab: int, draft_vocab: int, tmp_path: Path) -> None:
    write_model(tmp_path / "target", small(target_vocab), tokenizer=byte_level_tokenizer(target_vocab))
    write_model(tmp_path / "draft", small(draft_vocab), tokenizer=foreign_tokenizer(draft_vocab))

    report = compare(tmp_path / "target", tmp_path / "draft")

    found = only(report, "tokens-differ")
    assert (report.verdict, found.severity) == (PairVerdict.INCOMPATIBLE, Severity.FAILURE)
    assert "acceptance would collapse to about 0, and nothing would log it" in found.why
    assert [entry.token_id for entry in report.first_differing_ids] == list(range(10))
    assert all(entry.target and entry.draft for entry in report.first_differing_ids)
    assert ("no padding of one vocabulary" in found.detail) is (target_vocab != draft_vocab)
    assert "vocabulary-padded" not in codes(report)


def test_token_zero_spelled_differently_is_refused(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer(320)
    write_model(tmp_path / "target", SMALL, tokenizer=tokenizer)
    write_model(tmp_path / "draft", SMALL, tokenizer=rename_tokens(tokenizer, {0: "Zero"}))

    report = compare(tmp_path / "target", tmp_path / "draft")

    assert only(report, "tokens-differ").detail.startswith("1 of 320 common ids are other tokens: 0: ")
    assert report.first_differing_ids[0].draft == "'Zero'"


def test_two_swapped_ordinary_tokens_are_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "target", SMALL, tokenizer=byte_level_tokenizer(320))
    write_model(tmp_path / "draft", SMALL, tokenizer=byte_level_tokenizer(320, swap=(65, 300)))

    report = compare(tmp_path / "target", tmp_path / "draft")

    assert report.verdict is PairVerdict.INCOMPATIBLE
    assert [entry.token_id for entry in report.first_differing_ids] == [65, 300]
    assert report.first_differing_ids[0].target == report.first_differing_ids[1].draft


def test_padded_rows_of_one_tokenizer_are_recognised(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer(QWEN_TOKENS, added=CONTROL)
    write_model(tmp_path / "target", QWEN25_7B, tokenizer=tokenizer, model_type="qwen2")
    write_model(tmp_path / "draft", QWEN25_05B, tokenizer=tokenizer, model_type="qwen2")

    report = compare(tmp_path / "target", tmp_path / "draft", lane=Lane.TORCH)

    found = only(report, "vocabulary-padded")
    assert report.verdict is PairVerdict.COMPATIBLE
    assert found.detail.startswith("same tokenizer, padded 151936 -> 152064 ")
    assert "target: tokenizer length 151665, config vocab_size 152064, lm_head rows 152064" in found.detail
    assert "draft: tokenizer length 151665, config vocab_size 151936, lm_head tied to 151936" in found.detail
    assert found.severity is Severity.INFO
    elsewhere = compare(tmp_path / "target", tmp_path / "draft", lane=Lane.TRTLLM_LLMAPI)
    assert only(elsewhere, "vocabulary-padded").severity is Severity.WARNING


def test_padding_is_refused_when_the_shared_ids_are_not_the_same(tmp_path: Path) -> None:
    write_model(tmp_path / "target", small(384), tokenizer=byte_level_tokenizer(320))
    write_model(tmp_path / "draft", small(352), tokenizer=byte_level_tokenizer(320, swap=(70, 71)))

    report = compare(tmp_path / "target", tmp_path / "draft", lane=Lane.TORCH)

    assert "vocabulary-padded" not in codes(report)
    assert "no padding" in only(report, "tokens-differ").detail


def test_a_config_edited_to_the_others_size_is_found_out(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer(320)
    write_model(tmp_path / "target", small(384), tokenizer=tokenizer)
    write_model(tmp_path / "draft", small(352), tokenizer=tokenizer)
    edit_config(tmp_path / "draft", vocab_size=384)

    found = [
        one for one in compare(tmp_path / "target", tmp_path / "draft").findings if one.severity is Severity.FAILURE
    ]

    assert {one.code for one in found} == {"vocabulary-rows-differ"}
    assert found[0].detail == "config.json says vocab_size 384, the stored embedding has 352 rows"


def test_a_draft_without_rows_for_all_ids_is_refused(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer(320)
    write_model(tmp_path / "target", small(320), tokenizer=tokenizer)
    write_model(tmp_path / "draft", small(300), tokenizer=tokenizer)

    found = only(compare(tmp_path / "target", tmp_path / "draft"), "draft-rows-short")

    assert found.detail == "has 300 embedding rows, but the target's tokenizer uses ids up to 319"


def test_ids_that_only_one_side_knows_are_listed(tmp_path: Path) -> None:
    write_model(tmp_path / "target", small(), tokenizer=byte_level_tokenizer(300, added=("<|end|>", "<|a|>")))
    write_model(tmp_path / "draft", small(), tokenizer=byte_level_tokenizer(299, added=("<|end|>",)))

    report = compare(tmp_path / "target", tmp_path / "draft")
    reverse = compare(tmp_path / "draft", tmp_path / "target")

    assert only(report, "draft-lacks-ids").detail == "1 of the target's ids are not in its tokenizer: 299 '<|a|>'"
    assert "299 '<|a|>'" in only(reverse, "draft-has-extra-ids").detail
    assert report.first_differing_ids[0].draft is None
    assert report.verdict is PairVerdict.COMPATIBLE


def test_control_tokens_end_of_text_and_templates_are_named(tmp_path: Path) -> None:
    write_model(
        tmp_path / "target",
        SMALL,
        tokenizer=byte_level_tokenizer(320, added=("<|end|>", "<|bot|>")),
        generation_config={"eos_token_id": [318, 319]},
        chat_template="a",
    )
    write_model(
        tmp_path / "draft",
        SMALL,
        tokenizer=byte_level_tokenizer(320, added=("<|end|>", "<|dog|>")),
        generation_config={"eos_token_id": 318, "pad_token_id": 0},
        chat_template="b",
    )

    report = compare(tmp_path / "target", tmp_path / "draft")

    assert report.verdict is PairVerdict.COMPATIBLE
    assert "319: target '<|bot|>', draft '<|dog|>'" in only(report, "control-tokens-differ").detail
    detail = only(report, "eos-differs").detail
    assert detail == "target ends at 318 '<|end|>', 319 '<|bot|>', draft at 318 '<|end|>'"
    assert only(report, "special-tokens-differ").detail == "target not stated, draft 0"
    assert only(report, "chat-template-differs").detail == "the two templates differ"


def test_a_model_without_tokenizer_proves_nothing(tmp_path: Path) -> None:
    write_model(tmp_path / "target", SMALL, tokenizer=byte_level_tokenizer(320))
    write_model(tmp_path / "draft", SMALL)

    assert only(compare(tmp_path / "target", tmp_path / "draft"), "tokenizer-missing").subject == "draft draft"


class TestMapsOfAHead:
    @pytest.fixture
    def target(self, tmp_path: Path) -> Path:
        return write_model(tmp_path / "target", LLAMA_8B, tokenizer=byte_level_tokenizer(LLAMA_8B.vocab))

    def test_offsets_pass_and_the_head_borrows_the_tokenizer(self, target: Path, tmp_path: Path) -> None:
        report = compare(target, write_eagle3(tmp_path / "head", LLAMA_8B))

        assert not [one for one in report.findings if one.severity is Severity.FAILURE]
        assert only(report, "tokenizer-borrowed").severity is Severity.INFO

    @pytest.mark.parametrize(
        ("d2t", "code"),
        [(np.zeros(32000, np.int64), "vocab-map-all-zero"), (kept_ids(LLAMA_8B), "vocab-map-absolute")],
    )
    def test_zeros_and_absolute_ids_are_refused(
        self, d2t: NDArray[Any], code: str, target: Path, tmp_path: Path
    ) -> None:
        head = write_eagle3(tmp_path / "head", LLAMA_8B, d2t=d2t)
        started = time.perf_counter()

        report = compare(target, head)

        assert time.perf_counter() - started < 2.0
        assert report.verdict is PairVerdict.INCOMPATIBLE
        assert only(report, code).subject == "draft: d2t"

    def test_a_full_vocabulary_needs_no_maps_and_a_reduced_one_does(self, target: Path, tmp_path: Path) -> None:
        full = write_eagle3(tmp_path / "full", LLAMA_8B, draft_vocab=LLAMA_8B.vocab, leave_out=("d2t", "t2d"))
        reduced = write_eagle3(tmp_path / "reduced", LLAMA_8B, leave_out=("d2t", "t2d"))

        assert not codes(compare(target, full)) & {"vocab-map-missing", "tensors-missing"}
        assert {"vocab-map-missing", "tensors-missing"} <= codes(compare(target, reduced))

    def test_a_head_for_another_vocabulary(self, target: Path, tmp_path: Path) -> None:
        other = LlamaSize(32, 4096, 14336, 32, 8, 32000)
        report = compare(target, write_eagle3(tmp_path / "head", other, draft_vocab=8000))

        assert "made for 32000 target tokens" in only(report, "head-vocabulary-differs").detail
        assert report.verdict is PairVerdict.INCOMPATIBLE


def test_two_tokenizers_of_256k_tokens_compare_in_under_two_seconds(tmp_path: Path) -> None:
    for name in ("target", "draft"):
        write_model(tmp_path / name, small(256000), tokenizer=byte_level_tokenizer(256000, swap=(5, 255998)))
    started = time.perf_counter()

    report = compare(tmp_path / "target", tmp_path / "draft")

    assert time.perf_counter() - started < 2.0
    assert report.num_differing_ids == 0
