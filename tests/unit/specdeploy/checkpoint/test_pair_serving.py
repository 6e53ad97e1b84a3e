"""Running a pair: cost against active parameters, parallelism, quantisation, context, lanes, and who may override."""

import time
from pathlib import Path
from typing import Any

import pytest

from helpers.fabricated_checkpoints import LLAMA_8B, LLAMA_405B, LlamaSize, byte_level_tokenizer
from helpers.pair_files import codes, compare, only, write_model
from specdeploy.checkpoint.pair import (
    PairContents,
    PairSettings,
    blocking_findings,
    compare_pair,
    describe_blocking,
    digest_of_pair,
)
from specdeploy.checkpoint.pair_findings import CONSENT_CODES, WHY
from specdeploy.checkpoint.pair_serving import context_limit, draft_cost_ratio, step_parameters
from specdeploy.checkpoint.tokenizer import TokenMap
from specdeploy.checkpoint_contract import (
    CheckpointInfo,
    CheckpointKind,
    HeadFacts,
    HeadLayout,
    MoeShape,
    PairReport,
    PairVerdict,
    Quantization,
    RopeScaling,
    Severity,
    VocabularySizes,
)
from specdeploy.contract import METHODS_WITH_DRAFT, Lane, Method
from specdeploy.errors import CheckpointError

TOKENS = PairContents(TokenMap(Path("t"), (b"a", b"b"), frozenset()), TokenMap(Path("d"), (b"a", b"b"), frozenset()))


def info(reference: str, parameters: float, active: float | None = None, **facts: Any) -> CheckpointInfo:
    if active is not None:
        facts["moe"] = MoeShape(num_experts=512, num_experts_per_token=10, num_moe_layers=60, num_dense_layers=0)
    return CheckpointInfo(
        reference=reference,
        folder=reference,
        kind=CheckpointKind.CAUSAL_LM,
        num_parameters=int(parameters),
        num_active_parameters=int(active if active is not None else parameters),
        **facts,
    )


def judge(target: CheckpointInfo, draft: CheckpointInfo, **settings: Any) -> PairReport:
    return compare_pair(target, draft, TOKENS, PairSettings(**settings))


def test_a_dense_draft_half_as_heavy_as_the_active_experts_is_no_go() -> None:
    report = judge(info("moe", 397e9, 17e9), info("dense", 9e9))

    found = only(report, "draft-too-costly")
    assert (report.verdict, found.severity) == (PairVerdict.INCOMPATIBLE, Severity.FAILURE)
    assert report.draft_cost_ratio == pytest.approx(9 / 17)
    assert found.detail == (
        "no-go: the 9B parameters that a draft step reads are 0.53 of the 17B of 397B that the target reads per token; "
        "the limit is 0.25"
    )


def test_a_draft_that_borrows_its_rows_reads_them_like_its_own() -> None:
    """Parameters of a draft whose logits come from the target's embedding: all its rows, or those that d2t keeps."""
    target = info(
        "t", 200e6, hidden_size=500, tie_word_embeddings=True, vocabulary=VocabularySizes(embedding_rows=100_000)
    )
    facts: dict[str, Any] = {"hidden_size": 500, "tie_word_embeddings": True, "parameters_from": "headers"}
    bare = info("bare", 30e6, vocabulary=VocabularySizes(config_vocab_size=100_000), **facts)

    assert draft_cost_ratio(target, bare) == pytest.approx((30 + 50) / 200)
    assert draft_cost_ratio(target, bare, num_kept=20_000) == pytest.approx((30 + 10) / 200)


@pytest.mark.parametrize("lane", [None, *Lane])
def test_only_the_torch_lane_insists_on_the_targets_context(lane: Lane | None) -> None:
    short, long = info("short", 1e9, max_positions=2048), info("long", 1e9, max_positions=8192)

    target_short = only(judge(short, long, lane=lane, max_seq_len=4096), "context-short")
    draft_short = only(judge(long, short, lane=lane, max_seq_len=4096), "context-short")

    assert target_short.severity is (Severity.FAILURE if lane is Lane.TORCH else Severity.WARNING)
    assert draft_short.severity is Severity.WARNING
    assert ("decoded undrafted" in draft_short.detail) is (lane is Lane.TORCH)


def test_a_table_that_is_only_looked_up_costs_nothing() -> None:
    rows = VocabularySizes(lm_head_rows=8000, embedding_rows=100_000)
    trimmed = info("trimmed", 150e6, hidden_size=500, vocabulary=rows)  # 50M of them are the embedding
    tied = info("tied", 200e6, hidden_size=500, vocabulary=VocabularySizes(embedding_rows=100_000))

    assert judge(tied, trimmed).draft_cost_ratio == pytest.approx(0.5)


def head_info(**facts: Any) -> CheckpointInfo:
    own = facts.pop("own_lm_head", False)
    head = HeadFacts(layout=HeadLayout.SAFEAILAB, generation="v3", hidden_size=500, has_own_lm_head=own)
    return info("head", facts.pop("parameters"), hidden_size=500, **facts).model_copy(
        update={"head": head, "kind": CheckpointKind.EAGLE3}
    )


def test_a_head_looks_up_its_own_embedding_and_reads_the_borrowed_lm_head() -> None:
    both = VocabularySizes(lm_head_rows=100_000, embedding_rows=100_000)
    target = info("t", 1000e6, hidden_size=500, vocabulary=both)  # reads 950M
    head = head_info(parameters=70e6, vocabulary=VocabularySizes(embedding_rows=100_000))

    assert step_parameters(head) == 20_000_000
    assert draft_cost_ratio(target, head) == pytest.approx((20 + 50) / 950)
    # Its lm_head is stored although config.json, copied from the target, says tied: it is not in the count of 70M.
    own = head_info(parameters=70e6, vocabulary=both, tie_word_embeddings=True, own_lm_head=True)
    assert draft_cost_ratio(target, own) == pytest.approx((20 + 50) / 950)


def test_a_tied_lm_head_that_is_stored_too_counts_once() -> None:
    both = VocabularySizes(lm_head_rows=100_000, embedding_rows=100_000)

    assert step_parameters(info("t", 200e6, hidden_size=500, vocabulary=both, tie_word_embeddings=True)) == 200_000_000
    untied = info("t", 250e6, hidden_size=500, vocabulary=both, tie_word_embeddings=False)
    assert step_parameters(untied) == 200_000_000
    alone = VocabularySizes(lm_head_rows=100_000)
    assert step_parameters(info("t", 150e6, hidden_size=500, vocabulary=alone, tie_word_embeddings=True)) == 200_000_000


def test_a_count_by_config_holds_both_tables() -> None:
    sizes = VocabularySizes(config_vocab_size=100_000)
    facts: dict[str, Any] = {"hidden_size": 500, "vocabulary": sizes, "parameters_from": "config"}

    assert step_parameters(info("t", 250e6, tie_word_embeddings=False, **facts)) == 200_000_000
    assert step_parameters(info("t", 200e6, tie_word_embeddings=True, **facts)) == 200_000_000


def test_a_cost_that_cannot_be_judged_is_said() -> None:
    unknown = info("moe", 397e9, 17e9).model_copy(update={"num_active_parameters": None})

    report = judge(unknown, info("dense", 9e9))

    assert report.draft_cost_ratio is None
    found = only(report, "draft-cost-unknown")
    assert (found.severity, "could not be judged" in found.detail) == (Severity.WARNING, True)
    assert found.detail.endswith("of target unknown")


@pytest.mark.parametrize("method", sorted(METHODS_WITH_DRAFT))
def test_a_method_that_needs_a_draft_and_has_none(method: Method) -> None:
    report = compare_pair(info("t", 1e9), None, TOKENS, PairSettings(method=method))

    assert only(report, "draft-missing").severity is Severity.FAILURE
    assert report.verdict is PairVerdict.INCOMPATIBLE
    assert "draft-missing" not in codes(compare_pair(info("t", 1e9), None, TOKENS, PairSettings(method=Method.NGRAM)))


def test_a_draft_that_the_method_does_not_use() -> None:
    report = judge(info("t", 8e9), info("d", 1e9), method=Method.NGRAM)
    assert (only(report, "draft-unused").severity, report.verdict) == (Severity.WARNING, PairVerdict.COMPATIBLE)


@pytest.mark.parametrize(
    ("kind", "limit"), [("yarn", 131072), ("linear", 131072), ("llama3", 131072), ("dynamic", 32768)]
)
def test_a_stretched_rotary_embedding_extends_the_context(kind: str, limit: int) -> None:
    rope = RopeScaling(type=kind, factor=4.0, original_max_positions=32768)
    target = info("t", 8e9, max_positions=32768, rope=rope)

    assert context_limit(32768, rope) == limit
    assert context_limit(200_000, rope) == 200_000
    assert context_limit(32768, RopeScaling(type=kind, factor=4.0)) == 32768
    assert ("context-short" in codes(judge(target, target, max_seq_len=131072))) is (limit < 131072)
    assert ("context-short" in codes(judge(target, info("d", 1e9, max_positions=65536)))) is (limit > 65536)


def test_the_limit_can_be_moved_and_small_drafts_pass() -> None:
    target = info("moe", 397e9, 17e9)
    assert "draft-too-costly" not in codes(judge(target, info("dense", 9e9), max_draft_cost_ratio=0.6))
    assert "draft-too-costly" not in codes(judge(target, info("small", 0.6e9)))


def test_beside_a_dense_target_a_heavy_draft_is_a_warning() -> None:
    assert only(judge(info("8b", 8e9), info("3b", 3e9)), "draft-too-costly").severity is Severity.WARNING


def test_heads_and_rows_must_divide_by_the_gpus() -> None:
    sizes = VocabularySizes(config_vocab_size=151665)
    target = info("t", 70e9, num_heads=64, num_kv_heads=8, vocabulary=VocabularySizes(config_vocab_size=152064))
    draft = info("d", 0.5e9, num_heads=14, num_kv_heads=2, vocabulary=sizes)

    report = judge(target, draft, tensor_parallel=4)

    assert only(report, "tensor-parallel").detail == "14 attention heads do not divide by 4 GPUs"
    assert only(report, "tensor-parallel-padding").detail == "151665 vocabulary rows do not divide by 4"
    assert not codes(judge(target, draft, tensor_parallel=1)) & {"tensor-parallel", "tensor-parallel-padding"}


def test_the_drafts_precision_is_stated_and_inheritance_warned_about() -> None:
    fp8 = Quantization(method="fp8", bits=8, source="quantization_config")
    target = info("t", 70e9, dtype="bfloat16", quantization=fp8, kv_dtype="fp8")
    draft = info("d", 1e9, dtype="float16", kv_dtype="float16")

    found = only(judge(target, draft), "draft-quantization")
    assert found.severity is Severity.WARNING
    assert found.detail == (
        "draft: float16, not quantised, KV float16; target: fp8 8 bit (quantization_config), else bfloat16, KV fp8"
    )
    assert only(judge(draft, draft), "draft-quantization").severity is Severity.INFO


def test_a_lane_that_cannot_is_a_failure_and_one_nobody_tried_a_warning() -> None:
    moe = info("t", 30e9, 3e9, architecture="Qwen3MoeForCausalLM")
    draft = info("d", 0.5e9, architecture="Qwen3ForCausalLM")

    refused = only(judge(moe, draft, lane=Lane.TORCH), "lane-cannot-serve")
    assert "Qwen3MoeForCausalLM is none of" in refused.detail
    assert refused.remedy.startswith("Use trtllm_engine (TensorRT-LLM 1.0 to 1.2.1) or trtllm_llmapi")
    unknown = judge(moe, draft, lane=Lane.TRTLLM_ENGINE, method=Method.REDRAFTER)
    assert only(unknown, "lane-unknown").severity is Severity.WARNING
    assert len(unknown.lanes) == 3


def test_what_the_files_do_not_say_is_said() -> None:
    assert (
        "rope_theta" in only(judge(info("t", 1e9, not_found=("rope_theta",)), info("d", 1e8)), "facts-missing").detail
    )


def test_failures_block_always_and_warnings_only_when_strict() -> None:
    report = judge(info("8b", 8e9), info("3b", 3e9), lane=Lane.TRTLLM_LLMAPI)
    failing = judge(info("moe", 397e9, 17e9), info("dense", 9e9))

    assert blocking_findings(report, strict=False) == ()
    assert [one.code for one in blocking_findings(report, strict=True)] == ["draft-too-costly"]
    assert blocking_findings(report, strict=True, allow=["draft-too-costly"]) == ()
    blocked = blocking_findings(failing, strict=False, allow=["draft-too-costly"])
    assert "[draft-too-costly] no-go" in describe_blocking(blocked)
    with pytest.raises(CheckpointError, match="no finding has this code"):
        blocking_findings(report, strict=False, allow=["draft-too-cosy"])


def test_a_build_needs_consent_to_what_predicts_silent_loss() -> None:
    report = judge(info("8b", 8e9), info("3b", 3e9), lane=Lane.TRTLLM_LLMAPI)
    shapes: dict[str, Any] = {"num_heads": 8, "vocabulary": VocabularySizes(config_vocab_size=101)}
    padded = judge(info("8b", 8e9, **shapes), info("1b", 1e9, **shapes), tensor_parallel=2)

    assert [one.code for one in blocking_findings(report, strict=False, for_build=True)] == ["draft-too-costly"]
    assert blocking_findings(report, strict=False, for_build=True, allow=["draft-too-costly"]) == ()
    assert "tensor-parallel-padding" in codes(padded)
    assert blocking_findings(padded, strict=False, for_build=True) == ()
    assert WHY.keys() >= CONSENT_CODES


def test_a_report_survives_its_json() -> None:
    report = judge(info("moe", 397e9, 17e9), info("dense", 9e9))
    assert PairReport.model_validate_json(report.model_dump_json()) == report


def test_405b_with_8b_over_191_shards_in_under_two_seconds(tmp_path: Path) -> None:
    from helpers.fabricated_checkpoints import llama_config, llama_tensors, write_checkpoint

    tokenizer = byte_level_tokenizer(128256)
    for name, size, shards in (("target", LLAMA_405B, 191), ("draft", LLAMA_8B, 4)):
        write_checkpoint(
            tmp_path / name, llama_config(size), llama_tensors(size), num_shards=shards, tokenizer=tokenizer
        )
    started = time.perf_counter()

    report = compare(tmp_path / "target", tmp_path / "draft", max_seq_len=8192)

    assert time.perf_counter() - started < 2.0
    assert report.verdict is PairVerdict.IDENTICAL
    # Without the embedding tables (0.53B and 2.1B), of which a step takes single rows.
    assert report.draft_cost_ratio == pytest.approx((8.03 - 0.53) / (405.85 - 2.1), rel=0.01)


def test_every_unreadable_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        compare(tmp_path / "no-target", tmp_path / "no-draft")
    assert "no-target" in str(caught.value)
    assert "no-draft" in str(caught.value)


def test_the_digest_follows_tokenizer_and_special_ids(tmp_path: Path) -> None:
    size = LlamaSize(1, 64, 64, 4, 2, 320, head_dim=16)

    def digest(name: str, **options: Any) -> str:
        folder = write_model(tmp_path / name, size, **{"tokenizer": byte_level_tokenizer(320), **options})
        return digest_of_pair(
            folder, target_digest="t", draft_digest=None, lane=Lane.TORCH, versions={"converter": "1"}
        )

    first = digest("a")
    others = [
        digest("b", tokenizer=byte_level_tokenizer(320, swap=(65, 66))),
        digest("c", generation_config={"eos_token_id": 7}),
        digest("d", chat_template="x"),
    ]
    assert digest("e") == first
    assert len({first, *others}) == 4
