"""Facts of whole checkpoints: against transformers' own view of small ones, and of true-size ones over sparse files."""

import hashlib
import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.fabricated_checkpoints import (
    LLAMA_8B,
    LLAMA_405B,
    QWEN25_05B,
    QWEN25_7B,
    SMALL,
    LlamaSize,
    Shapes,
    byte_level_tokenizer,
    layer_tensors,
    llama_config,
    llama_tensors,
    write_checkpoint,
    write_weights,
)
from specdeploy.checkpoint.info import inspect_checkpoint, read_checkpoint_files
from specdeploy.checkpoint_contract import CheckpointInfo, CheckpointKind, MoeShape, RopeScaling
from specdeploy.errors import CheckpointError

COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT: dict[str, Any] = {
    "kv_lora_rank": 8,
    "q_lora_rank": 12,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"head_dim": 8},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16},
    "phi3": {},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {**EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 24},
    "qwen3_moe": {**EXPERTS, "num_experts": 4, "head_dim": 8, "decoder_sparse_step": 2},
    "deepseek_v3": {**EXPERTS, **LATENT, "num_key_value_heads": 4},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "layer_types": None},
}


def save_with_transformers(folder: Path, family: str, **overrides: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family, **{**COMMON, **FAMILIES[family], **overrides})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
        model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_same_view_as_transformers(tmp_path: Path, family: str) -> None:
    model = save_with_transformers(tmp_path, family)
    config = model.config

    info = inspect_checkpoint(tmp_path)

    assert info.kind is CheckpointKind.CAUSAL_LM
    assert (info.architecture, info.model_type) == (type(model).__name__, family)
    assert (info.num_layers, info.hidden_size, info.num_heads) == (3, 32, 4)
    assert info.num_kv_heads == config.num_key_value_heads
    if family != "deepseek_v3":
        assert info.head_dim == (getattr(config, "head_dim", None) or 8)
    assert info.num_parameters == model.num_parameters()
    assert info.parameters_from == "headers"
    assert info.tie_word_embeddings == bool(config.tie_word_embeddings)
    assert (info.dtype, info.max_positions) == ("bfloat16", 128)
    assert info.vocabulary.config_vocab_size == info.vocabulary.embedding_rows == 96
    assert info.vocabulary.lm_head_rows == (None if config.tie_word_embeddings else 96)
    assert info.special_tokens.eos_token_ids == (2,)
    assert not info.not_found


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen2_moe", "deepseek_v3"])
def test_count_by_config_is_close_to_the_headers(tmp_path: Path, family: str) -> None:
    save_with_transformers(tmp_path, family, intermediate_size=512, moe_intermediate_size=512)
    by_headers = inspect_checkpoint(tmp_path)
    for path in tmp_path.glob("*.safetensors"):
        path.unlink()

    by_config = inspect_checkpoint(tmp_path)

    assert by_config.parameters_from == "config"
    assert by_config.num_parameters == pytest.approx(by_headers.num_parameters, rel=0.01)
    assert by_config.num_active_parameters == pytest.approx(by_headers.num_active_parameters, rel=0.01)
    assert by_config.kv_elements_per_token == by_headers.kv_elements_per_token


def test_active_parameters_of_experts(tmp_path: Path) -> None:
    """Hand count: 2 of 4 experts, 3 x 32 x 16 each, in the layers that have them; the router is always read."""
    model = save_with_transformers(tmp_path, "qwen3_moe")

    info = inspect_checkpoint(tmp_path)

    assert info.moe == MoeShape(
        num_experts=4,
        num_experts_per_token=2,
        num_moe_layers=1,
        num_dense_layers=2,
        expert_intermediate_size=16,
    )
    assert info.num_active_parameters == model.num_parameters() - 1 * 2 * 3 * 32 * 16


def test_shared_experts_and_latent_cache(tmp_path: Path) -> None:
    model = save_with_transformers(tmp_path, "deepseek_v3")

    info = inspect_checkpoint(tmp_path)

    assert info.moe is not None
    assert (info.moe.num_moe_layers, info.moe.num_dense_layers, info.moe.num_shared_experts) == (2, 1, 1)
    assert info.num_active_parameters == model.num_parameters() - 2 * 2 * 3 * 32 * 16
    assert info.kv_elements_per_token == 3 * (8 + 4)


# Sizes from the published config.json; billions of parameters, total and active, from the model cards.
PUBLISHED: dict[str, tuple[dict[str, Any], float, float]] = {
    "Mixtral-8x7B": (
        {
            **llama_config(LlamaSize(32, 4096, 14336, 32, 8, 32000), model_type="mixtral"),
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
        46.7,
        12.9,
    ),
    "Qwen3-235B-A22B": (
        {
            **llama_config(LlamaSize(94, 4096, 12288, 64, 4, 151936), model_type="qwen3_moe"),
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1536,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
        235,
        22,
    ),
    "DeepSeek-V3": (
        {
            **llama_config(LlamaSize(61, 7168, 18432, 128, 128, 129280), model_type="deepseek_v3"),
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 2048,
            "first_k_dense_replace": 3,
            "moe_layer_freq": 1,
            "num_nextn_predict_layers": 1,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
        },
        671,
        37.5,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts_of_mixtures(tmp_path: Path, name: str) -> None:
    config, total, active = PUBLISHED[name]

    info = inspect_checkpoint(write_checkpoint(tmp_path, config))

    assert (info.num_parameters or 0) / 1e9 == pytest.approx(total, rel=0.01)
    assert (info.num_active_parameters or 0) / 1e9 == pytest.approx(active, rel=0.02)


def with_experts(names: dict[str, tuple[int, ...]]) -> Shapes:
    """`SMALL` whose MLPs are replaced by `names`, formatted with the layer."""
    shapes = {name: shape for name, shape in llama_tensors(SMALL).items() if ".mlp." not in name}
    for layer in range(SMALL.num_layers):
        shapes |= {name.format(layer): ("BF16", shape) for name, shape in names.items()}
    return shapes


class TestUnusualMixtures:
    @pytest.mark.parametrize("key", ["moe_k", "top_k_experts", "moe_top_k", "num_experts_per_tok"])
    def test_keys_of_the_experts_that_a_token_uses(self, tmp_path: Path, key: str) -> None:
        config = llama_config(SMALL, model_type="novel", moe_num_experts=4, **{key: 1})
        shapes = with_experts({"model.layers.{}.mlp.experts.down_proj": (4, 64, 16)})

        info = inspect_checkpoint(write_checkpoint(tmp_path, config, shapes))

        assert info.moe is not None
        assert (info.moe.num_experts, info.moe.num_experts_per_token) == (4, 1)
        assert info.num_active_parameters == (info.num_parameters or 0) - 2 * 3 * 64 * 16

    def test_experts_fused_into_one_linear(self, tmp_path: Path) -> None:
        config = llama_config(SMALL, model_type="granitemoe", num_local_experts=4, num_experts_per_tok=2)
        sizes = {"input": (4, 256, 64), "output": (4, 64, 128)}
        shapes = with_experts(
            {f"model.layers.{{}}.block_sparse_moe.{name}_linear.weight": shape for name, shape in sizes.items()}
        )

        info = inspect_checkpoint(write_checkpoint(tmp_path, config, shapes))

        assert info.num_active_parameters == (info.num_parameters or 0) - 2 * 2 * 3 * 64 * 128

    @pytest.mark.parametrize("has_weights", [True, False])
    def test_dbrx(self, tmp_path: Path, has_weights: bool) -> None:
        config = {
            "model_type": "dbrx",
            "d_model": 64,
            "n_heads": 4,
            "n_layers": 2,
            "vocab_size": 320,
            "max_seq_len": 128,
            "attn_config": {"kv_n_heads": 2},
            "ffn_config": {"moe_num_experts": 4, "moe_top_k": 1, "ffn_hidden_size": 32},
            "tie_word_embeddings": False,
        }
        shapes: Shapes = {"transformer.wte.weight": ("BF16", (320, 64)), "lm_head.weight": ("BF16", (320, 64))}
        for layer in range(2):
            prefix = f"transformer.blocks.{layer}"
            shapes |= {f"{prefix}.ffn.experts.mlp.{name}": ("BF16", (4 * 32, 64)) for name in ("w1", "v1", "w2")}
            shapes[f"{prefix}.norm_attn_norm.attn.Wqkv.weight"] = ("BF16", (128, 64))

        info = inspect_checkpoint(write_checkpoint(tmp_path, config, shapes if has_weights else None))

        assert info.moe is not None
        assert (info.moe.num_moe_layers, info.moe.expert_intermediate_size) == (2, 32)
        assert (info.num_kv_heads, info.head_dim, info.max_positions) == (2, 16, 128)
        assert info.kv_elements_per_token == 2 * 2 * 2 * 16
        assert info.num_active_parameters == (info.num_parameters or 0) - 3 * 2 * 3 * 32 * 64
        if has_weights:
            assert (info.vocabulary.embedding_rows, info.vocabulary.lm_head_rows) == (320, 320)

    @pytest.mark.parametrize(
        ("overrides", "name"),
        [
            ({"num_experts": 4}, "model.layers.{}.mlp.experts.0.up_proj.weight"),
            ({"num_experts": 4, "num_experts_per_tok": 2}, "model.layers.{}.mlp.bank.weight"),
            ({"moe_num_primary_experts": 4}, "model.layers.{}.mlp.bank.weight"),
            ({}, "model.layers.{}.mlp.experts.0.up_proj.weight"),
            ({}, "model.layers.{}.feed.expert_bank.weight"),
        ],
    )
    def test_signs_of_experts_without_a_shape(self, tmp_path: Path, overrides: dict[str, Any], name: str) -> None:
        config = llama_config(SMALL, model_type="novel", **overrides)

        info = inspect_checkpoint(write_checkpoint(tmp_path, config, with_experts({name: (64, 64)})))

        assert info.num_parameters
        assert info.num_active_parameters is None
        assert any("num_active_parameters" in entry for entry in info.not_found)

    @pytest.mark.parametrize("overrides", [{"num_local_experts": 0}, {"num_experts": 1, "num_experts_per_tok": 1}, {}])
    def test_dense_models_stay_dense(self, tmp_path: Path, overrides: dict[str, Any]) -> None:
        shapes = llama_tensors(SMALL)
        shapes["model.layers.0.mlp.shared_experts.up_proj.weight"] = ("BF16", (64, 64))

        info = inspect_checkpoint(write_checkpoint(tmp_path, llama_config(SMALL, **overrides), shapes))

        assert info.num_active_parameters == info.num_parameters

    def test_counts_by_layer(self, tmp_path: Path) -> None:
        config = llama_config(
            SMALL, num_experts=[4, 4], moe_topk=[2, 2], moe_intermediate_size=[16, 16], moe_layer_freq=[0, 1]
        )

        info = inspect_checkpoint(write_checkpoint(tmp_path, config))

        assert info.moe == MoeShape(
            num_experts=4,
            num_experts_per_token=2,
            num_moe_layers=1,
            num_dense_layers=1,
            expert_intermediate_size=16,
        )


class TestHybrids:
    SIZE = LlamaSize(8, 64, 128, 4, 2, 320, head_dim=16)

    @pytest.mark.parametrize(
        ("overrides", "layers"),
        [
            ({"full_attention_interval": 4}, 2),
            ({"hybrid_override_pattern": "M-M*-M*E"}, 2),
            ({"attn_layer_period": 8, "attn_layer_offset": 4}, 1),
            ({"layers_block_type": ["mamba"] * 6 + ["hybrid", "attention"]}, 2),
            ({"hybrid_override_pattern": "M*"}, None),
            ({"layer_types": ["linear_attention", "full_attention"]}, None),
            ({"mamba_d_state": 16}, None),
            ({"linear_attn_config": {"num_heads": 4}}, None),
        ],
    )
    def test_rules_in_the_config(self, tmp_path: Path, overrides: dict[str, Any], layers: int | None) -> None:
        info = inspect_checkpoint(write_checkpoint(tmp_path, llama_config(self.SIZE, **overrides)))

        assert info.kv_elements_per_token == (None if layers is None else layers * 2 * 2 * 16)
        assert any("kv_elements_per_token" in entry for entry in info.not_found) is (layers is None)
        assert info.num_parameters is None  # the other layers have other weights

    @pytest.mark.parametrize(
        ("state", "layers"),
        [("mamba.A_log", 2), ("linear_attn.in_proj_qkvz.weight", 2), ("unnamed.weight", 2), ("self_attn.A_log", 2)],
    )
    def test_layers_that_store_a_projection_of_keys(self, tmp_path: Path, state: str, layers: int) -> None:
        shapes: Shapes = {}
        for layer in range(8):
            prefix = f"model.layers.{layer}."
            shapes |= layer_tensors(self.SIZE, prefix) if layer % 4 == 3 else {prefix + state: ("BF16", (4,))}
            if state.startswith("self_attn."):
                shapes[f"{prefix}self_attn.k_proj.weight"] = ("BF16", (32, 64))

        info = inspect_checkpoint(write_checkpoint(tmp_path, llama_config(self.SIZE), shapes))

        assert info.kv_elements_per_token == layers * 2 * 2 * 16

    def test_state_layers_whose_attention_has_no_known_name(self, tmp_path: Path) -> None:
        shapes: Shapes = {f"model.layers.{layer}.mamba.A_log": ("BF16", (4,)) for layer in range(8)}

        info = inspect_checkpoint(write_checkpoint(tmp_path, llama_config(self.SIZE), shapes))

        assert info.kv_bytes_per_token is None


class TestMultimodal:
    @pytest.mark.parametrize(
        ("decoder", "head"),
        [
            ("language_model.model.", "language_model."),
            ("model.language_model.", ""),
            ("model.text_model.", ""),
            ("thinker.model.", "thinker."),
        ],
    )
    def test_the_decoder_alone_counts(self, tmp_path: Path, decoder: str, head: str) -> None:
        config = {"architectures": ["XForConditionalGeneration"], "text_config": llama_config(SMALL, head_dim=None)}
        plain = llama_tensors(SMALL)
        shapes = {
            name.replace("model.", decoder, 1) if name.startswith("model.") else head + name: shape
            for name, shape in plain.items()
        }
        shapes |= {
            f"{prefix}.layers.{SMALL.num_layers + 5}.self_attn.k_proj.weight": ("BF16", (10, 10))
            for prefix in ("visual", "model.vision_tower.vision_model.encoder", "audio_tower")
        }
        shapes["multi_modal_projector.linear.weight"] = ("BF16", (10, 10))

        info = inspect_checkpoint(write_checkpoint(tmp_path, config, shapes))

        text = inspect_checkpoint(write_checkpoint(tmp_path / "text", llama_config(SMALL), plain))
        assert info.num_parameters == info.num_active_parameters == text.num_parameters
        assert (info.vocabulary, info.head_dim, info.num_mtp_layers) == (text.vocabulary, 16, 0)
        assert info.kv_elements_per_token == text.kv_elements_per_token
        assert info.left_out_parameters == {
            "visual": 100,
            "model.vision_tower": 100,
            "audio_tower": 100,
            "multi_modal_projector": 100,
        }

    def test_mtp_module_under_the_decoder(self, tmp_path: Path) -> None:
        config = {"text_config": llama_config(SMALL)}
        shapes = {f"language_model.{name}": shape for name, shape in llama_tensors(SMALL).items()}
        shapes[f"language_model.model.layers.{SMALL.num_layers}.eh_proj.weight"] = ("BF16", (64, 128))

        info = inspect_checkpoint(write_checkpoint(tmp_path, config, shapes))

        assert (info.num_mtp_layers, info.left_out_parameters) == (1, {"mtp": 64 * 128})


class TestTrueSizes:
    def test_405b_over_191_sparse_files(self, tmp_path: Path) -> None:
        folder = write_checkpoint(
            tmp_path / "llama-405b",
            llama_config(LLAMA_405B, rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}),
            llama_tensors(LLAMA_405B),
            num_shards=191,
            generation_config={"bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009]},
        )

        info = inspect_checkpoint(folder, reference="meta/405b")

        assert (info.reference, info.folder) == ("meta/405b", str(folder))
        assert info.num_parameters == info.num_active_parameters == 405_853_388_800
        assert info.num_bytes == 2 * 405_853_388_800
        assert info.stored_dtypes == {"BF16": 2 * 405_853_388_800}
        assert info.kv_elements_per_token == 126 * 2 * 8 * 128
        assert info.kv_bytes_per_token == 2 * 126 * 2 * 8 * 128
        assert info.rope == RopeScaling(type="llama3", factor=8.0)
        assert info.special_tokens.eos_token_ids == (128001, 128008, 128009)
        assert CheckpointInfo.model_validate_json(info.model_dump_json()) == info

    def test_three_vocabulary_sizes_of_a_padded_pair(self, tmp_path: Path) -> None:
        tokenizer = byte_level_tokenizer(1000)
        target = write_checkpoint(
            tmp_path / "7b", llama_config(QWEN25_7B, model_type="qwen2"), llama_tensors(QWEN25_7B), tokenizer=tokenizer
        )
        draft = write_checkpoint(
            tmp_path / "0.5b",
            llama_config(QWEN25_05B, model_type="qwen2"),
            llama_tensors(QWEN25_05B),
            tokenizer=tokenizer,
        )

        target_sizes, draft_sizes = (inspect_checkpoint(folder).vocabulary for folder in (target, draft))

        assert target_sizes.model_dump() == {
            "tokenizer_length": 1000,
            "config_vocab_size": 152064,
            "lm_head_rows": 152064,
            "embedding_rows": 152064,
        }
        assert (draft_sizes.lm_head_rows, draft_sizes.embedding_rows) == (None, 151936)

    def test_mtp_module_inside_the_target(self, tmp_path: Path) -> None:
        config = llama_config(SMALL, model_type="deepseek_v3", num_nextn_predict_layers=1)
        shapes = llama_tensors(SMALL)
        plain = inspect_checkpoint(write_checkpoint(tmp_path / "plain", config, shapes))
        extra = {f"model.layers.{SMALL.num_layers}.eh_proj.weight": ("BF16", (64, 128))}

        info = inspect_checkpoint(write_checkpoint(tmp_path / "mtp", config, {**shapes, **extra}))

        assert (plain.num_mtp_layers, info.num_mtp_layers) == (0, 1)
        assert info.num_parameters == plain.num_parameters


class TestQuantization:
    def test_fp8_by_config(self, tmp_path: Path) -> None:
        config = llama_config(
            SMALL, quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128], "kv_cache_scheme": None}
        )
        shapes = llama_tensors(SMALL)
        shapes = {name: ("F8_E4M3" if "proj" in name else dtype, shape) for name, (dtype, shape) in shapes.items()}
        scales = {f"{name}_scale_inv": ("F32", (1, 1)) for name in shapes if "proj" in name}

        info = inspect_checkpoint(write_checkpoint(tmp_path, config, {**shapes, **scales}))

        assert info.quantization is not None
        assert (info.quantization.method, info.quantization.bits) == ("fp8", 8)
        assert (
            info.num_parameters
            == inspect_checkpoint(
                write_checkpoint(tmp_path / "plain", llama_config(SMALL), llama_tensors(SMALL))
            ).num_parameters
        )

    def test_modelopt_beside_the_config(self, tmp_path: Path) -> None:
        write_checkpoint(tmp_path, llama_config(SMALL), llama_tensors(SMALL))
        quant = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
        (tmp_path / "hf_quant_config.json").write_text(json.dumps(quant))

        info = inspect_checkpoint(tmp_path)

        assert info.quantization is not None
        assert (info.quantization.method, info.quantization.bits, info.kv_dtype) == ("FP8", 8, "fp8")
        assert info.kv_bytes_per_token == info.kv_elements_per_token

    @pytest.mark.parametrize(
        ("stated", "method"),
        [
            ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt NVFP4"),
            ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "compressed-tensors nvfp4-pack"),
        ],
    )
    def test_the_algorithm_is_named_beside_the_tool(self, tmp_path: Path, stated: dict[str, str], method: str) -> None:
        """Which lane can run the weights depends on the algorithm, not on who wrote it."""
        config = llama_config(SMALL, quantization_config=stated)
        info = inspect_checkpoint(write_checkpoint(tmp_path, config, llama_tensors(SMALL)))
        assert info.quantization is not None
        assert info.quantization.method.startswith(method)
        assert info.quantization.bits == 4

    def test_packed_four_bit_weights_count_unpacked(self, tmp_path: Path) -> None:
        config = llama_config(SMALL, quantization_config={"quant_method": "gptq", "bits": 4})
        shapes = llama_tensors(SMALL)
        packed = {
            name.replace(".weight", ".qweight") if "proj" in name else name: (
                ("I32", (shape[0] // 8, *shape[1:])) if "proj" in name else (dtype, shape)
            )
            for name, (dtype, shape) in shapes.items()
        }
        packed["model.layers.0.mlp.up_proj.scales"] = ("F16", (2, 2))

        info = inspect_checkpoint(write_checkpoint(tmp_path, config, packed))

        plain = write_checkpoint(tmp_path / "plain", llama_config(SMALL), shapes)
        assert info.num_parameters == inspect_checkpoint(plain).num_parameters


class TestSmallFiles:
    @pytest.mark.parametrize("place", ["chat_template.jinja", "chat_template.json", "tokenizer_config.json", "named"])
    def test_chat_template_hash_is_of_its_text(self, tmp_path: Path, place: str) -> None:
        write_checkpoint(tmp_path, llama_config(SMALL), llama_tensors(SMALL))
        template = "{% for é in messages %}{% endfor %}"
        if place.endswith(".jinja"):
            (tmp_path / place).write_text(template)
            (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "other"}')
        elif place == "named":
            named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": template}]
            (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
        else:
            (tmp_path / place).write_text(json.dumps({"chat_template": template}))

        sha256 = inspect_checkpoint(tmp_path).special_tokens.chat_template_sha256

        assert sha256 == hashlib.sha256(template.encode()).hexdigest()

    def test_what_no_key_states_is_listed(self, tmp_path: Path) -> None:
        info = inspect_checkpoint(write_checkpoint(tmp_path, {"model_type": "novel", "n_embd": 64, "num_heads": 4}))

        assert (info.hidden_size, info.num_heads, info.head_dim, info.num_kv_heads) == (64, 4, None, None)
        assert info.kv_bytes_per_token is None
        assert info.num_parameters is None
        assert any("num_hidden_layers" in entry for entry in info.not_found)
        assert {"head_dim", "num_key_value_heads"} <= set(info.not_found)

    def test_shapes_say_what_the_config_leaves_out(self, tmp_path: Path) -> None:
        config = llama_config(SMALL, head_dim=None, num_key_value_heads=None, model_type="novel")

        info = inspect_checkpoint(write_checkpoint(tmp_path, config, llama_tensors(SMALL)))

        assert (info.head_dim, info.num_kv_heads) == (SMALL.head_dim, SMALL.kv_heads)

    def test_language_model_of_a_multimodal_checkpoint(self, tmp_path: Path) -> None:
        config = {"architectures": ["SomeForConditionalGeneration"], "text_config": llama_config(SMALL)}

        info = inspect_checkpoint(write_checkpoint(tmp_path, config, llama_tensors(SMALL)))

        assert (info.num_layers, info.hidden_size, info.dtype) == (SMALL.num_layers, SMALL.hidden, "bfloat16")

    def test_hybrid_layers_without_a_cache_do_not_count(self, tmp_path: Path) -> None:
        config = llama_config(SMALL, layer_types=["linear_attention", "full_attention"])

        assert inspect_checkpoint(write_checkpoint(tmp_path, config)).kv_elements_per_token == 2 * 2 * 16

    def test_negative_special_ids_are_none(self, tmp_path: Path) -> None:
        config = llama_config(SMALL, pad_token_id=-1, bos_token_id=5, eos_token_id=[2, -1])
        generation = {"pad_token_id": -1, "bos_token_id": -1}

        special = inspect_checkpoint(write_checkpoint(tmp_path, config, generation_config=generation)).special_tokens

        assert (special.pad_token_id, special.bos_token_id, special.eos_token_ids) == (None, 5, (2,))


class TestBadInput:
    @pytest.mark.parametrize(
        "key",
        ["num_hidden_layers", "num_experts", "num_experts_per_tok", "num_attention_heads", "num_key_value_heads"],
    )
    @pytest.mark.parametrize("value", [10**6, 10**12, 10**15])
    def test_counts_beyond_every_model(self, tmp_path: Path, key: str, value: int) -> None:
        config = {**llama_config(SMALL), "num_experts": 4, "num_experts_per_tok": 2, key: value}
        start = time.monotonic()

        with pytest.raises(CheckpointError, match=rf"config.json: {key}: must be .* at most \d+, found \d+. Fetch"):
            inspect_checkpoint(write_checkpoint(tmp_path, config))

        assert time.monotonic() - start < 1

    @pytest.mark.parametrize("name", ["generation_config.json", "tokenizer_config.json", "hf_quant_config.json"])
    @pytest.mark.parametrize(("goal", "reason"), [("gone", "not there"), (None, "leads to itself")])
    def test_links_that_lead_nowhere(self, tmp_path: Path, name: str, goal: str | None, reason: str) -> None:
        write_checkpoint(tmp_path, llama_config(SMALL), llama_tensors(SMALL))
        os.symlink(goal or name, tmp_path / name)

        with pytest.raises(CheckpointError, match=rf"{name}: a symlink .*{reason}"):
            inspect_checkpoint(tmp_path)

    @pytest.mark.parametrize(
        "template",
        [[{"name": ["default"], "template": "x"}], [{"name": "default", "template": 1}], ["x"], 7, {"default": "x"}],
    )
    def test_chat_templates_that_are_none(self, tmp_path: Path, template: object) -> None:
        write_checkpoint(tmp_path, llama_config(SMALL))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))

        with pytest.raises(CheckpointError, match=r"tokenizer_config.json: chat_template: must be a text, or a list"):
            inspect_checkpoint(tmp_path)

    def test_names_longer_than_a_file_can_have(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="not a folder"):
            inspect_checkpoint(tmp_path / ("x" * 300))
        write_checkpoint(tmp_path, llama_config(SMALL))
        shard = f"{'x' * 300}.safetensors"
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
        with pytest.raises(CheckpointError, match=r"x.safetensors: missing, but"):
            inspect_checkpoint(tmp_path)

    def test_layer_number_of_thousands_of_digits(self, tmp_path: Path) -> None:
        shapes = {**llama_tensors(SMALL), f"model.layers.{'9' * 5000}.mlp.experts.0.weight": ("BF16", (2,))}

        assert inspect_checkpoint(write_checkpoint(tmp_path, llama_config(SMALL), shapes)).num_layers == 2

    def test_all_wrong_values_at_once(self, tmp_path: Path) -> None:
        config = llama_config(SMALL, num_hidden_layers="two", vocab_size=float("nan"), rope_scaling={"factor": "x"})

        with pytest.raises(CheckpointError) as caught:
            inspect_checkpoint(write_checkpoint(tmp_path, config, generation_config={"eos_token_id": "end"}))

        lines = str(caught.value).splitlines()
        for key in ("num_hidden_layers", "vocab_size", "rope_scaling.factor", "eos_token_id"):
            assert any(f"{key}: must be" in line and "Fetch the checkpoint again" in line for line in lines), key

    def test_all_broken_files_at_once(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{")
        (tmp_path / "generation_config.json").write_text("[]")
        (tmp_path / "tokenizer.json").write_bytes(b"")
        (tmp_path / "model.safetensors").write_bytes(b"")

        with pytest.raises(CheckpointError) as caught:
            inspect_checkpoint(tmp_path)

        for name in ("config.json", "generation_config.json", "tokenizer.json", "model.safetensors"):
            assert f"{name}: " in str(caught.value)

    @pytest.mark.parametrize("name", ["pytorch_model.bin", "medusa_lm_head.pt", "consolidated.00.pth"])
    def test_pickled_weights_are_refused_with_the_command(self, tmp_path: Path, name: str) -> None:
        write_checkpoint(tmp_path, llama_config(SMALL))
        (tmp_path / name).write_bytes(b"cos\nsystem\n(S'echo no'\ntR.")

        with pytest.raises(CheckpointError, match=rf"weights only as {name}.*save_pretrained.*weights_only=True"):
            inspect_checkpoint(tmp_path)

    def test_training_state_is_no_weight(self, tmp_path: Path) -> None:
        write_checkpoint(tmp_path, llama_config(SMALL))
        (tmp_path / "training_args.bin").write_bytes(b"")

        assert inspect_checkpoint(tmp_path).parameters_from == "config"

    def test_folder_that_is_none(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="not a folder"):
            read_checkpoint_files(tmp_path / "nowhere")


def test_no_weight_byte_is_read(tmp_path: Path) -> None:
    """Files as long as 16 GB of weights, of which only the headers are on disk."""
    folder = write_weights(tmp_path, llama_tensors(LLAMA_8B), num_shards=4)
    on_disk = sum(path.stat().st_blocks * 512 for path in folder.iterdir())
    (folder / "config.json").write_text(json.dumps(llama_config(LLAMA_8B)))

    assert inspect_checkpoint(folder).num_parameters == 8_030_261_248
    assert on_disk < 1 << 20
