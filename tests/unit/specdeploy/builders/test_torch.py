"""Lane torch: folders are taken over, GGUF files converted, drafts compared with their target."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer

from helpers.tiny_checkpoint import EOS_ID, make_checkpoint
from specdeploy.builders.dispatch import build_deployment, describe_build
from specdeploy.config.load import LoadedDeployment
from specdeploy.errors import BuildError, CheckpointError, ConfigError
from specdeploy.manifest import load_current_build

Load = Callable[..., LoadedDeployment]


def ignore(_line: str) -> None:
    """Reports of a build that nobody reads."""


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


class TestFolder:
    def test_build_and_pointer(self, tiny_checkpoint: Path, load_with: Load, tmp_path: Path) -> None:
        loaded = load_with(target={"checkpoint": str(tiny_checkpoint)})

        result = build_deployment(loaded, tmp_path / "engines", report=ignore)

        current = load_current_build(tmp_path / "engines", "tiny")
        target = tmp_path / "engines" / current.target_folder
        assert current.build_id == result.manifest.build_id
        assert (current.config, current.config_digest) == (loaded.config, loaded.digest)
        assert (current.draft_folder, current.plan.max_draft_len) == (None, 4)
        assert (target / "model.safetensors").samefile(tiny_checkpoint / "model.safetensors")
        assert not (target / "config.json").samefile(tiny_checkpoint / "config.json")
        assert (target / "chat_template.jinja").is_file()
        assert [check.name for check in result.manifest.checks] == ["target loads"]

    def test_deployments_that_differ_in_dtype_share_a_build(
        self, tiny_checkpoint: Path, load_with: Load, tmp_path: Path
    ) -> None:
        target = {"checkpoint": str(tiny_checkpoint)}

        first = build_deployment(load_with(target=target), tmp_path / "engines", report=ignore)
        second = build_deployment(
            load_with("half", target=target, dtype="bfloat16"), tmp_path / "engines", report=ignore
        )

        assert second.reused
        assert second.build_folder == first.build_folder
        assert load_current_build(tmp_path / "engines", "half").config.dtype == "bfloat16"

    def test_missing_weights_are_not_filled_with_noise(
        self, checkpoint_copy: Path, load_with: Load, tmp_path: Path
    ) -> None:
        path = checkpoint_copy / "model.safetensors"
        tensors = load_file(path)
        del tensors["model.layers.1.mlp.up_proj.weight"]
        save_file(tensors, path, metadata={"format": "pt"})

        with pytest.raises(CheckpointError, match=r"lacks weights model\.layers\.1\.mlp\.up_proj\.weight"):
            build_deployment(
                load_with(target={"checkpoint": str(checkpoint_copy)}), tmp_path / "engines", report=ignore
            )

        assert not (tmp_path / "engines" / "tiny.json").exists()

    def test_weights_that_are_not_numbers(self, checkpoint_copy: Path, load_with: Load, tmp_path: Path) -> None:
        path = checkpoint_copy / "model.safetensors"
        tensors = load_file(path)
        tensors["model.norm.weight"] = np.full_like(tensors["model.norm.weight"], np.nan)
        save_file(tensors, path, metadata={"format": "pt"})

        with pytest.raises(BuildError, match="logits are not finite"):
            build_deployment(
                load_with(target={"checkpoint": str(checkpoint_copy)}), tmp_path / "engines", report=ignore
            )

    def test_longer_requests_than_positions(self, tiny_checkpoint: Path, load_with: Load, tmp_path: Path) -> None:
        loaded = load_with(target={"checkpoint": str(tiny_checkpoint)}, serving={"max_seq_len": 4096})

        with pytest.raises(ConfigError, match=r"serving\.max_seq_len: 4096 exceeds the 512 positions of target"):
            build_deployment(loaded, tmp_path / "engines", report=ignore)


class TestDraft:
    def test_draft_is_built_beside_the_target(self, tiny_checkpoint: Path, load_with: Load, tmp_path: Path) -> None:
        draft = make_checkpoint(tmp_path / "draft", num_layers=1, seed=1)
        loaded = load_with(
            target={"checkpoint": str(tiny_checkpoint)},
            speculation={"method": "draft_model", "max_draft_len": 2, "draft": {"checkpoint": str(draft)}},
        )

        build_deployment(loaded, tmp_path / "engines", report=ignore)

        current = load_current_build(tmp_path / "engines", "tiny")
        assert current.draft_folder == f"{current.build_id}/draft"
        config = json.loads((tmp_path / "engines" / current.draft_folder / "config.json").read_text())
        assert config["num_hidden_layers"] == 1

    def test_other_tokenizer_is_refused_before_anything_is_built(
        self, tiny_checkpoint: Path, checkpoint_copy: Path, load_with: Load, tmp_path: Path
    ) -> None:
        path = checkpoint_copy / "tokenizer.json"
        path.write_text(path.read_text().replace("<|bot|>", "<|dog|>"))
        loaded = load_with(
            target={"checkpoint": str(tiny_checkpoint)},
            speculation={"method": "draft_model", "max_draft_len": 2, "draft": {"checkpoint": str(checkpoint_copy)}},
        )

        with pytest.raises(CheckpointError, match=r"'<\|bot\|>', draft '<\|dog\|>'"):
            build_deployment(loaded, tmp_path / "engines", report=ignore)

        assert not (tmp_path / "engines").exists()

    def test_draft_with_too_few_embedding_rows(
        self, tiny_checkpoint: Path, checkpoint_copy: Path, load_with: Load, tmp_path: Path
    ) -> None:
        edit_json(checkpoint_copy / "config.json", vocab_size=10)
        loaded = load_with(
            target={"checkpoint": str(tiny_checkpoint)},
            speculation={"method": "draft_model", "max_draft_len": 2, "draft": {"checkpoint": str(checkpoint_copy)}},
        )

        with pytest.raises(CheckpointError, match="has 10 embedding rows"):
            build_deployment(loaded, tmp_path / "engines", report=ignore)


def write_gguf(path: Path, checkpoint: Path) -> None:
    """`checkpoint` (two layers, grouped queries) as an unquantised GGUF, with the names and layout that format has."""
    config = json.loads((checkpoint / "config.json").read_text())
    tensors = load_file(checkpoint / "model.safetensors")
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    vocabulary = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(vocabulary)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in vocabulary])
    writer.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    )
    writer.add_eos_token_id(EOS_ID)
    writer.add_bos_token_id(EOS_ID)
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    outer = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    for name, tensor in tensors.items():
        if name in outer:
            writer.add_tensor(outer[name], tensor)
            continue
        layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
        if part in ("self_attn.q_proj", "self_attn.k_proj"):  # the format interleaves the halves that RoPE rotates
            count = heads if part.endswith("q_proj") else kv_heads
            rows, columns = tensor.shape
            tensor = tensor.reshape(count, 2, rows // count // 2, columns).swapaxes(1, 2).reshape(rows, columns)
        writer.add_tensor(f"blk.{layer}.{names[part]}.weight", np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class TestWheel:
    @pytest.fixture
    def wheel(self, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """An installed distribution `tiny-gguf` 1.0 with one GGUF."""
        site = tmp_path / "site"
        info = site / "tiny_gguf-1.0.dist-info"
        info.mkdir(parents=True)
        (site / "tiny_gguf").mkdir()
        write_gguf(site / "tiny_gguf" / "tiny.gguf", tiny_checkpoint)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-gguf\nVersion: 1.0\n")
        (info / "RECORD").write_text("tiny_gguf/tiny.gguf,,\n")
        monkeypatch.syspath_prepend(str(site))
        return site / "tiny_gguf" / "tiny.gguf"

    def test_conversion_gives_back_the_checkpoint(
        self,
        wheel: Path,
        tiny_checkpoint: Path,
        load_with: Load,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        loaded = load_with(target={"checkpoint": "wheel:tiny-gguf==1.0"})

        result = build_deployment(loaded, tmp_path / "engines", report=ignore)

        target = result.build_folder / "target"
        original, converted = (load_file(path / "model.safetensors") for path in (tiny_checkpoint, target))
        assert original.keys() == converted.keys()
        assert all(np.array_equal(original[name], converted[name]) for name in original)
        assert json.loads((target / "generation_config.json").read_text())["eos_token_id"] == EOS_ID
        assert "largest absolute difference 0 " in result.manifest.checks[0].detail
        assert {"converter", "gguf", "transformers"} <= result.manifest.versions.keys()
        assert capsys.readouterr().err == ""
        assert "tiny_gguf" not in sys.modules

    def test_dry_run_names_steps_and_writes_nothing(self, wheel: Path, load_with: Load, tmp_path: Path) -> None:
        lines = describe_build(load_with(target={"checkpoint": "wheel:tiny-gguf==1.0"}))

        assert lines[0].startswith("build ")
        assert lines[1] == "convert target tokenizer: tiny.gguf -> target/tokenizer.json"
        assert not (tmp_path / "engines").exists()

    def test_reload_that_differs_is_an_error(
        self, wheel: Path, load_with: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import specdeploy.builders.torch as builder

        probe = builder._probe_logits
        calls: list[int] = []

        def drifting(model: Any) -> Any:
            calls.append(1)
            return probe(model) + len(calls)

        monkeypatch.setattr(builder, "_probe_logits", drifting)

        with pytest.raises(BuildError, match="logits differ by 1 after saving"):
            build_deployment(
                load_with(target={"checkpoint": "wheel:tiny-gguf==1.0"}), tmp_path / "engines", report=ignore
            )

    def test_target_and_draft_from_different_forms(self, wheel: Path, load_with: Load, tmp_path: Path) -> None:
        draft = make_checkpoint(tmp_path / "draft", num_layers=1, seed=1, vocab_size=321)
        # Reading a GGUF adds this token when the vocabulary lacks it.
        tokenizer = Tokenizer.from_file(str(draft / "tokenizer.json"))
        tokenizer.add_special_tokens([AddedToken("<|endoftext|>")])
        tokenizer.save(str(draft / "tokenizer.json"))
        loaded = load_with(
            target={"checkpoint": "wheel:tiny-gguf==1.0"},
            speculation={"method": "draft_model", "max_draft_len": 2, "draft": {"checkpoint": str(draft)}},
        )

        result = build_deployment(loaded, tmp_path / "engines", report=ignore)

        assert [source.role for source in result.manifest.checkpoints] == ["target", "draft"]
