"""Shapes of models that are not on the machine: what follows from them is what their publishers say."""

import json
from pathlib import Path

import pytest

from helpers.planner_shapes import sparse_target_dense_draft
from specdeploy.checkpoint.known_models import known_model, known_model_folder, list_known_models
from specdeploy.checkpoint_contract import CheckpointInfo, CheckpointKind
from specdeploy.config.load import list_deployments, load_deployment

CONFIGS = Path(__file__).parents[4] / "configs"


def known(reference: str) -> CheckpointInfo:
    info = known_model(reference, CONFIGS)
    assert info is not None, reference
    return info


@pytest.mark.parametrize(
    ("reference", "billions"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 8.03),
        ("meta-llama/Llama-3.1-70B-Instruct", 70.6),
        ("meta-llama/Llama-3.3-70B-Instruct", 70.6),
        ("nvidia/Llama-3.3-70B-Instruct-FP8", 70.6),
        ("meta-llama/Llama-3.1-405B-Instruct", 405.9),
        ("meta-llama/Llama-3.2-1B-Instruct", 1.24),
        ("meta-llama/Llama-3.2-3B-Instruct", 3.21),
        ("meta-llama/Llama-2-7b-hf", 6.74),
        ("meta-llama/Llama-2-13b-chat-hf", 13.0),
        ("meta-llama/Llama-2-70b-hf", 69.0),
        ("lmsys/vicuna-33b-v1.3", 32.5),
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", 1.1),
        ("Qwen/Qwen2-0.5B-Instruct", 0.494),
        ("Qwen/Qwen3-8B", 8.19),
        ("Qwen/Qwen3-32B", 32.8),
        # heads: SafeAILab's README and, for EAGLE-3, 850 MB in 16 bit
        ("yuhuili/EAGLE-Vicuna-7B-v1.3", 0.236),
        ("yuhuili/EAGLE-Vicuna-13B-v1.3", 0.37),
        ("yuhuili/EAGLE-llama2-chat-70B", 0.99),
        ("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", 0.425),
        ("FasterDecoding/medusa-vicuna-7b-v1.3", 1.478493144 / 2),
    ],
)
def test_parameters_are_the_published_ones(reference: str, billions: float) -> None:
    info = known(reference)

    assert info.num_parameters == pytest.approx(billions * 1e9, rel=0.01)
    assert info.num_active_parameters == info.num_parameters
    assert info.parameters_from == "config"


@pytest.mark.parametrize(
    ("reference", "total", "active", "counts_embedding"),
    [
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 46.7, 12.9, True),
        ("deepseek-ai/DeepSeek-V3", 671.0, 37.0, False),
        ("deepseek-ai/DeepSeek-R1", 671.0, 37.0, False),
        ("Qwen/Qwen3-30B-A3B", 30.5, 3.35, True),
        ("Qwen/Qwen2-57B-A14B-Instruct", 57.4, 14.2, True),
        ("openai/gpt-oss-20b", 20.9, 3.6, False),
        ("openai/gpt-oss-120b", 116.8, 5.13, False),
    ],
)
def test_active_parameters_of_mixtures(reference: str, total: float, active: float, counts_embedding: bool) -> None:
    """Some publishers leave the embedding out of what a token uses: it is looked up, not multiplied."""
    info = known(reference)
    assert info.num_parameters is not None
    assert info.num_active_parameters is not None
    table = (info.vocabulary.config_vocab_size or 0) * (info.hidden_size or 0)
    used = info.num_active_parameters - (0 if counts_embedding else table)

    assert info.num_parameters == pytest.approx(total * 1e9, rel=0.01)
    assert used == pytest.approx(active * 1e9, rel=0.011)


def test_the_module_of_deepseek_is_counted_apart() -> None:
    info = known("deepseek-ai/DeepSeek-V3")
    # attention 1536 x (7168 + 24576) + 7168 x 576 + 512 x 32768 + 16384 x 7168 = 187 105 280; 256 experts and a shared
    # one of 44 040 192, router 1 835 008, projection 2 x 7168 x 7168, norms 5 x 7168
    by_hand = 187_105_280 + 257 * 44_040_192 + 1_835_008 + 2 * 7168 * 7168 + 5 * 7168

    assert info.num_mtp_layers == 1
    assert info.left_out_parameters == {"mtp": by_hand}
    # 671.0 and 11.6 and the copies of both tables that the file holds make the 685e9 of its page.
    assert info.num_parameters is not None
    assert info.num_parameters + by_hand + 2 * 129_280 * 7168 == pytest.approx(685e9, rel=0.01)


def test_an_eagle3_head_by_hand() -> None:
    info = known("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B")
    # fc 4096 x 12288; q [4096, 8192]; k and v [1024, 8192]; o [4096, 4096]; MLP 3 x 4096 x 14336; lm_head 32000 x 4096;
    # norms: input, hidden, after attention, last
    by_hand = 4096 * 12_288 + 4096 * 8192 + 2 * 1024 * 8192 + 4096 * 4096 + 3 * 4096 * 14_336 + 32_000 * 4096 + 4 * 4096

    assert info.kind is CheckpointKind.EAGLE3
    assert info.num_parameters == by_hand
    assert info.kv_elements_per_token == 2 * 8 * 128
    assert info.head is not None
    assert info.head.draft_vocab_size == 32_000


@pytest.mark.parametrize("name", list_deployments(CONFIGS))
def test_every_shipped_deployment_names_models_that_are_known(name: str) -> None:
    config = load_deployment(name, CONFIGS).config
    draft = config.speculation.draft
    for reference in (config.target.checkpoint, *((draft.checkpoint,) if draft else ())):
        if not reference.startswith(("wheel:", ".")):
            info = known(reference)
            assert info.num_parameters is not None
            assert info.kind is CheckpointKind.MEDUSA or info.kv_elements_per_token is not None


def test_every_known_model_has_sizes_and_no_text() -> None:
    references = list_known_models(CONFIGS)
    assert len(references) > 40
    for reference in references:
        info = known(reference)
        assert info.reference == reference
        assert info.num_parameters is not None, reference
        folder = known_model_folder(reference, CONFIGS)
        assert folder is not None
        assert {path.name for path in folder.iterdir()} <= {"config.json", "hf_quant_config.json"}
        assert len((folder / "config.json").read_text()) < 2000, "sizes only"
        assert "transformers_version" not in json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize(
    "reference",
    [
        "nobody/unheard-of",
        "Qwen3-8B",
        "Qwen/../Qwen/Qwen3-8B",
        "../models/Qwen--Qwen3-8B",
        "wheel:llm==1.0",
        "",
        "Qwen/",
    ],
)
def test_what_is_not_known_is_none(reference: str) -> None:
    assert known_model_folder(reference, CONFIGS) is None
    assert known_model(reference, CONFIGS) is None


def test_a_folder_of_ones_own_is_known(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "me--mine"
    folder.mkdir(parents=True)
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    (folder / "config.json").write_text(json.dumps({**config, "num_attention_heads": 4, "vocab_size": 100}))

    info = known_model("me/mine", tmp_path)
    assert info is not None
    # 2 x (4 x 64 x 64 + 3 x 64 x 128 + 2 x 64) + 64 + 2 x 100 x 64: not tied, as far as it says
    assert info.num_parameters == 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64 + 2 * 100 * 64
    assert list_known_models(tmp_path) == ("me/mine",)


def test_the_heavy_draft_of_a_sparse_target() -> None:
    report = sparse_target_dense_draft()

    assert report.draft_cost_ratio == pytest.approx(0.53, abs=0.005)
    assert report.target.num_active_parameters == 17_000_000_000
