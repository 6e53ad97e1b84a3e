"""The engine lane from YAML to a finished build, with stand-ins for TensorRT-LLM's programs."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.engine_deployments import (
    ENGINES,
    METHODS,
    NUM_ROWS,
    SEQ_LEN,
    TREE_TOKENS,
    EngineDeployment,
    install_standins,
)
from helpers.fabricated_checkpoints import (
    LLAMA_8B,
    LLAMA_70B,
    QWEN25_7B,
    SMALL,
    byte_level_tokenizer,
    eagle1_tensors,
    llama_config,
    llama_tensors,
    write_checkpoint,
)
from helpers.fake_hub import FakeHub
from helpers.pair_files import edit_config
from helpers.trtllm_standins import Standins
from specdeploy import cli
from specdeploy.builders.base import BuildResult
from specdeploy.builders.dispatch import build_deployment
from specdeploy.builders.pair import Consent
from specdeploy.builders.step_store import prune_steps
from specdeploy.builders.trtllm_engine import (
    EngineBuildPlan,
    build_trtllm_engine,
    engine_config_problems,
    plan_engine_build,
)
from specdeploy.builders.trtllm_installation import find_installation
from specdeploy.config.load import LoadedDeployment
from specdeploy.contract import EngineModel
from specdeploy.errors import BuildError, CheckpointError, ConfigError, SpecDeployError
from specdeploy.manifest import load_current_build, verify_build


@pytest.fixture
def deployment(tmp_path: Path) -> EngineDeployment:
    return EngineDeployment(tmp_path)


@pytest.fixture
def standins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Standins:
    return install_standins(tmp_path / "machine", monkeypatch)


def ignore(_line: str) -> None:
    """Reports of a build that nobody reads."""


def build(
    loaded: LoadedDeployment, deployment: EngineDeployment, report: Callable[[str], None] = ignore
) -> BuildResult:
    return build_trtllm_engine(loaded, deployment.engines_root, report=report, consent=Consent())


def dry_run(loaded: LoadedDeployment, deployment: EngineDeployment, **options: Any) -> EngineBuildPlan:
    settings = {"installation": None, "consent": Consent(), "engines_root": deployment.engines_root, **options}
    return plan_engine_build(loaded, is_dry_run=True, **settings)


def refusal(loaded: LoadedDeployment, deployment: EngineDeployment) -> str:
    """The message with which a build is refused; nothing was written for it but digests."""
    with pytest.raises(SpecDeployError) as caught:
        build(loaded, deployment)
    assert not (deployment.engines_root / ".steps").exists()
    return str(caught.value)


class TestBuild:
    @pytest.mark.parametrize("method", METHODS)
    def test_every_method_ends_in_checked_engines(
        self, method: str, deployment: EngineDeployment, standins: Standins
    ) -> None:
        result = build(deployment.write(method), deployment)

        manifest = result.manifest
        assert not result.reused
        assert [engine.model for engine in manifest.engines] == ENGINES[method]
        target = manifest.engines[0]
        assert (target.max_draft_len, target.max_batch_size, target.max_seq_len) == (
            TREE_TOKENS[method],
            NUM_ROWS,
            SEQ_LEN,
        )
        for engine in manifest.engines:
            folder = result.build_folder / engine.folder
            assert engine_config_problems(folder, engine, version="1.2.1") == []
            assert engine.kv_tokens is not None
            assert (engine.kv_tokens or 0) >= SEQ_LEN
            assert engine.decoding is None or engine.model is EngineModel.TARGET
        assert manifest.memory is not None
        assert manifest.gpu_architecture == "sm90"
        assert manifest.versions["tensorrt_llm"] == "1.2.1"
        assert manifest.versions["tensorrt"] == "10.14.1.48"
        assert manifest.versions["cuda"] == "13.1.0.036"
        names = {path.name for path in (result.build_folder / "target").iterdir()}
        assert names == {"config.json", "tokenizer.json", "generation_config.json"}
        assert verify_build(deployment.engines_root, manifest.build_id).is_intact
        assert len(standins.started()) == 2 * len(ENGINES[method])

    @pytest.mark.parametrize("method", METHODS)
    def test_first_known_version(
        self, method: str, deployment: EngineDeployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        standins = install_standins(tmp_path / "machine", monkeypatch, version="1.0.0")

        result = build(deployment.write(method, section={"version": "1.0.0"}), deployment)

        versions = result.manifest.versions
        assert [versions[name] for name in ("tensorrt_llm", "tensorrt", "cuda")] == [
            "1.0.0",
            "10.11.0.33",
            "12.9.1.010",
        ]
        for engine in result.manifest.engines:
            folder = result.build_folder / engine.folder
            assert json.loads((folder / "config.json").read_text())["version"] == "1.0.0"
            assert engine_config_problems(folder, engine, version="1.0.0") == []
        assert len(standins.started()) == 2 * len(ENGINES[method])

    def test_both_phases_are_named(self, deployment: EngineDeployment, standins: Standins) -> None:
        lines: list[str] = []

        build(deployment.write("lookahead"), deployment, lines.append)

        steps = [line for line in lines if line.endswith("...")]
        assert steps == [
            "commands: [1/2] convert target ...",
            "commands: [2/2] build target ...",
            "putting together: [1/2] copy target's texts ...",
            "putting together: [2/2] link target_engine ...",
        ]

    def test_every_check_is_said_once(
        self, deployment: EngineDeployment, standins: Standins, capsys: pytest.CaptureFixture[str]
    ) -> None:
        deployment.write("lookahead")
        roots = [f"--configs-root={deployment.root / 'configs'}", f"--engines-root={deployment.engines_root}"]

        assert cli.run(["build", "engine", *roots]) == 0
        first = capsys.readouterr().out.splitlines()
        assert cli.run(["build", "engine", *roots]) == 0
        second = capsys.readouterr().out.splitlines()

        assert len([line for line in first if "memory: " in line]) == 1
        assert [line for line in first if line.startswith("checked ")] == [
            "checked target_engine: config.json and 1 rank files are what was planned (lookahead_decoding)"
        ]
        assert len([line for line in second if "memory: " in line]) == 1
        assert [line.split(":")[0] for line in second if line.startswith("recorded ")] == ["recorded target_engine"]

    def test_engines_are_linked_not_copied(self, deployment: EngineDeployment, standins: Standins) -> None:
        result = build(deployment.write("draft_model"), deployment)

        engine = result.build_folder / "target_engine" / "rank0.engine"
        config = result.build_folder / "target_engine" / "config.json"
        assert engine.stat().st_nlink == 2
        assert config.stat().st_nlink == 1

    def test_second_build_runs_nothing(self, deployment: EngineDeployment, standins: Standins) -> None:
        loaded = deployment.write("medusa")
        first = build(loaded, deployment)
        started = len(standins.started())

        second = build(loaded, deployment)

        assert second.reused
        assert second.manifest == first.manifest
        assert len(standins.started()) == started

    def test_lost_build_folder_is_put_together_from_finished_steps(
        self, deployment: EngineDeployment, standins: Standins
    ) -> None:
        loaded = deployment.write("eagle")
        first = build(loaded, deployment)
        started = len(standins.started())
        shutil.rmtree(first.build_folder)

        second = build(loaded, deployment)

        assert not second.reused
        assert second.manifest.files == first.manifest.files
        assert len(standins.started()) == started

    def test_other_memory_share_is_another_build_of_the_same_engines(
        self, deployment: EngineDeployment, standins: Standins
    ) -> None:
        first = build(deployment.write("draft_model"), deployment)
        started = len(standins.started())

        second = build(deployment.write("draft_model", section={"kv_cache_fraction": 0.5}), deployment)

        assert second.manifest.build_id != first.manifest.build_id
        assert second.manifest.pair_digest == first.manifest.pair_digest  # what was proven of outputs still holds
        assert (second.manifest.engines[0].kv_tokens or 0) < (first.manifest.engines[0].kv_tokens or 0)
        assert len(standins.started()) == started

    def test_other_rows_rebuild_engines_but_convert_nothing(
        self, deployment: EngineDeployment, standins: Standins
    ) -> None:
        build(deployment.write("draft_model"), deployment)
        build(deployment.write("draft_model", serving={"max_rows": 2, "max_seq_len": SEQ_LEN}), deployment)

        started = standins.started()
        assert started.count("convert_checkpoint:llama") == 2
        assert started.count("trtllm-build") == 4

    def test_failed_step_keeps_what_was_done(
        self, deployment: EngineDeployment, standins: Standins, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loaded = deployment.write("lookahead")
        monkeypatch.setenv("STANDIN_ONLY", "trtllm-build")
        monkeypatch.setenv("STANDIN_FAIL", "oom")
        with pytest.raises(BuildError, match="build target") as caught:
            build(loaded, deployment)
        monkeypatch.delenv("STANDIN_FAIL")

        result = build(loaded, deployment)

        assert "CUDA out of memory" in str(caught.value)
        assert not result.reused
        assert standins.started().count("convert_checkpoint:llama") == 1
        assert standins.started().count("trtllm-build") == 2
        assert not (deployment.engines_root / ".staging").exists()

    def test_dispatch_points_the_deployment_to_it(self, deployment: EngineDeployment, standins: Standins) -> None:
        loaded = deployment.write("draft_model")

        result = build_deployment(loaded, deployment.engines_root, report=ignore)

        current = load_current_build(deployment.engines_root, "engine")
        assert current.target_folder == f"{result.manifest.build_id}/target"
        assert current.draft_folder is None  # its weights are in the engine
        assert current.pair_digest == result.manifest.pair_digest is not None

    def test_changed_weights_are_another_build(self, deployment: EngineDeployment, standins: Standins) -> None:
        loaded = deployment.write("lookahead")
        first = build(loaded, deployment)
        edit_config(deployment.root / "target", rms_norm_eps=1e-5)

        assert build(loaded, deployment).manifest.build_id != first.manifest.build_id

    def test_nothing_is_compiled_again_in_a_shell_without_the_cuda_variable(
        self, deployment: EngineDeployment, standins: Standins, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loaded = deployment.write("lookahead")
        first = build(loaded, deployment)
        monkeypatch.delenv("CUDA_VERSION")

        second = build(loaded, deployment)

        assert first.manifest.versions["cuda"] == "13.1.0.036"
        assert second.manifest.pair_digest == first.manifest.pair_digest
        assert standins.started().count("trtllm-build") == 1

    def test_methods_and_gpus_share_plain_conversions(
        self, deployment: EngineDeployment, standins: Standins, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        build(deployment.write("lookahead"), deployment)
        build(deployment.write("medusa"), deployment)
        shutil.rmtree(deployment.root / "draft")
        assert standins.started().count("convert_checkpoint:llama") == 1
        query = standins.trtllm_build.parent / "nvidia-smi"
        query.write_text("#!/bin/sh\necho '9.0, NVIDIA H200, 143771'\n")

        build(deployment.write("lookahead", section={"gpu": "h200"}), deployment)

        assert standins.started().count("convert_checkpoint:llama") == 1
        assert standins.started().count("trtllm-build") == 4  # an engine is of its GPU

    def test_commands_are_not_pruned_before_their_engines_are_linked(
        self, deployment: EngineDeployment, standins: Standins
    ) -> None:
        refused: list[str] = []

        def report(line: str) -> None:
            if line.startswith("putting together: [1/"):
                with pytest.raises(BuildError) as caught:
                    prune_steps(deployment.engines_root / ".steps", keep=())
                refused.append(str(caught.value))

        build(deployment.write("lookahead"), deployment, report)

        assert "a build is running here" in refused[0]

    def test_pruning_leaves_engines_that_need_no_conversion(
        self, deployment: EngineDeployment, standins: Standins
    ) -> None:
        first = build(deployment.write("draft_model"), deployment)
        started = len(standins.started())
        assert prune_steps(deployment.engines_root / ".steps", keep=()) > 0

        second = build(deployment.write("draft_model", section={"kv_cache_fraction": 0.5}), deployment)

        assert second.manifest.build_id != first.manifest.build_id
        assert len(standins.started()) == started
        assert len(list((deployment.engines_root / ".steps").glob("*/engine"))) == 2
        assert list((deployment.engines_root / ".steps").glob("*/checkpoint")) == []

    def test_patched_convert_script_is_run_again(self, deployment: EngineDeployment, standins: Standins) -> None:
        loaded = deployment.write("lookahead")
        build(loaded, deployment)
        script = standins.examples_root / "models" / "core" / "llama" / "convert_checkpoint.py"
        script.write_text(script.read_text() + "# patched\n")

        build(loaded, deployment)

        assert standins.started().count("convert_checkpoint:llama") == 2

    def test_draft_on_fewer_gpus_than_its_target(self, deployment: EngineDeployment, standins: Standins) -> None:
        loaded = deployment.write("draft_model", section={"tensor_parallel": 4, "draft_tensor_parallel": 2})

        result = build(loaded, deployment)

        target, draft = result.manifest.engines
        assert (target.tensor_parallel, target.gpu_ids) == (4, (0, 1, 2, 3))
        assert (draft.tensor_parallel, draft.gpu_ids) == (2, (0, 1))
        assert len(list((result.build_folder / "target_engine").glob("*.engine"))) == 4
        assert len(list((result.build_folder / "draft_engine").glob("*.engine"))) == 2

    def test_plain_instance_swap_builds_one_engine(self, deployment: EngineDeployment, standins: Standins) -> None:
        result = build(deployment.write("medusa", section={"plain_instance": "swap"}), deployment)

        assert [engine.model for engine in result.manifest.engines] == [EngineModel.TARGET]

    def test_fp8_is_quantised_with_its_cache(self, deployment: EngineDeployment, standins: Standins) -> None:
        loaded = deployment.write("draft_model", section={"quantization": "fp8", "kv_cache_dtype": "fp8"})

        result = build(loaded, deployment)

        target, draft = result.manifest.engines
        assert (target.quantization, target.kv_cache_dtype) == ("fp8", "fp8")
        assert (draft.quantization, draft.kv_cache_dtype) == (None, "auto")
        assert "quantize" in standins.started()
        assert any("fetched from the model hub" in check.detail for check in result.manifest.checks)


class TestEngineConfig:
    """An engine that is not what was planned is refused, whatever the difference."""

    @pytest.mark.parametrize(
        ("section", "key", "value", "words"),
        [
            ("build_config", "max_draft_len", 3, "max_draft_len is 3, expected 4"),
            ("build_config", "max_batch_size", 8, "max_batch_size is 8, expected 4"),
            ("build_config", "max_num_tokens", 64, "max_num_tokens is 64, expected"),
            ("build_config", "max_seq_len", 128, "max_seq_len is 128, expected 256 to 260"),
            ("build_config", "max_seq_len", 261, "max_seq_len is 261, expected 256 to 260"),
            ("build_config", "max_beam_width", 2, "max_beam_width is 2, expected 1"),
            ("build_config", "speculative_decoding_mode", 1, r"mode is 1, expected 2 \(draft_tokens_external\)"),
            ("build_config", "kv_cache_type", "CONTINUOUS", "expected PAGED"),
            ("build_config", "plugin_config", {"use_paged_context_fmha": False}, "use_paged_context_fmha is False"),
            ("pretrained_config", "mapping", {"tp_size": 2, "pp_size": 1}, "tp_size is 2, expected 1"),
            ("pretrained_config", "mapping", {"tp_size": 1, "pp_size": 2}, "pp_size is 2, expected 1"),
            ("pretrained_config", "dtype", "float16", "dtype is float16, expected bfloat16"),
            ("pretrained_config", "quantization", {"quant_algo": "FP8"}, "quant_algo is fp8, expected none"),
            ("pretrained_config", "quantization", {"kv_cache_quant_algo": "FP8"}, "kv_cache_quant_algo is fp8"),
            ("version", None, "1.2.0", "built by TensorRT-LLM 1.2.0, expected 1.2.1"),
            ("pretrained_config", "mapping", {"moe_ep_size": 2}, "moe_ep_size is 2, expected 1"),
            ("pretrained_config", "mapping", {"moe_tp_size": 2}, "moe_tp_size is 2, expected 1"),
        ],
    )
    def test_planted_difference(
        self,
        section: str,
        key: str | None,
        value: object,
        words: str,
        deployment: EngineDeployment,
        standins: Standins,
    ) -> None:
        loaded = deployment.write("draft_model")
        result = build(loaded, deployment)
        path = result.build_folder / "target_engine" / "config.json"
        size = path.stat().st_size
        config = json.loads(path.read_text())
        if key is None:
            config[section] = value
        else:
            config[section][key] = value
        text = json.dumps(config)
        path.write_text(text + " " * (size - len(text)))  # the same size: only a look inside finds it

        with pytest.raises(BuildError, match=words):
            build(loaded, deployment)

    def test_step_with_another_engine_is_not_taken_over(self, deployment: EngineDeployment, standins: Standins) -> None:
        loaded = deployment.write("lookahead")
        shutil.rmtree(build(loaded, deployment).build_folder)
        (path,) = deployment.engines_root.glob(".steps/*/engine/config.json")
        size = path.stat().st_size
        text = json.dumps({**json.loads(path.read_text()), "version": "0.9"})
        path.write_text(text + " " * (size - len(text)))

        with pytest.raises(BuildError, match=r"(?s)0\.9, expected 1\.2\.1.*Remove .*\.steps"):
            build(loaded, deployment)

    def test_missing_rank_and_missing_config(self, deployment: EngineDeployment, standins: Standins) -> None:
        result = build(deployment.write("lookahead"), deployment)
        (engine,) = result.manifest.engines
        folder = result.build_folder / engine.folder
        (folder / "rank0.engine").unlink()

        assert [problem for problem in engine_config_problems(folder, engine) if "rank0.engine: missing" in problem]
        (folder / "config.json").write_text("{")
        for place, words in ((folder / "nowhere", "missing"), (folder, "damaged: it holds no JSON object")):
            assert engine_config_problems(place, engine)[0] == f"{place / 'config.json'}: {words}"

    def test_foreign_config(self, deployment: EngineDeployment, standins: Standins, tmp_path: Path) -> None:
        result = build(deployment.write("lookahead"), deployment)
        (tmp_path / "config.json").write_text("{}")

        problems = engine_config_problems(tmp_path, result.manifest.engines[0])

        assert "is not the config.json of an engine" in problems[0]


class TestDryRun:
    @pytest.mark.parametrize("method", METHODS)
    def test_without_tensorrt_llm_and_without_checkpoints(self, method: str, deployment: EngineDeployment) -> None:
        loaded = deployment.write(method, with_checkpoints=False)

        plan = dry_run(loaded, deployment)

        text = "\n".join(plan.describe())
        assert plan.memory is None
        assert plan.target_folder is None
        assert "trtllm-build --checkpoint_dir work/convert-target/checkpoint" in text
        assert any("target" in sentence and "is not on this machine" in sentence for sentence in plan.not_checked)
        assert any("TensorRT-LLM is not installed" in sentence for sentence in plan.not_checked)
        assert any(sentence.startswith("memory:") for sentence in plan.not_checked)
        assert "\n".join(f"not checked: {sentence}" for sentence in plan.not_checked) in text
        assert not deployment.engines_root.exists()

    def test_with_checkpoints_it_knows_family_and_memory(self, deployment: EngineDeployment) -> None:
        plan = dry_run(deployment.write("draft_model"), deployment)

        text = "\n".join(plan.describe())
        assert "/app/examples/models/core/llama/convert_checkpoint.py" in text
        assert plan.memory is not None
        assert plan.versions["tensorrt"] == "10.14.1.48"  # of the container that carries 1.2.1
        assert any("a dry run reads no weights" in sentence for sentence in plan.not_checked)

    def test_a_large_pair_at_its_true_sizes(self, deployment: EngineDeployment) -> None:
        tokenizer = byte_level_tokenizer(LLAMA_70B.vocab)
        for name, size in (("target", LLAMA_70B), ("draft", LLAMA_8B)):
            write_checkpoint(
                deployment.root / name,
                llama_config(size),
                llama_tensors(size),
                num_shards=30,
                tokenizer=tokenizer,
                generation_config={"eos_token_id": 5},
            )
        section = {"gpu": "h200", "tensor_parallel": 4, "draft_tensor_parallel": 2}
        serving = {"max_rows": 32, "max_seq_len": 8192}

        plan = dry_run(deployment.write("draft_model", section=section, serving=serving), deployment)

        sizes = {step.name: step.num_bytes or 0 for step in plan.graph.order()}
        assert sizes["build target"] == pytest.approx(141.1e9, rel=0.01)
        assert sizes["build draft"] == pytest.approx(16.1e9, rel=0.01)
        assert plan.memory is not None
        assert {line.subject for line in plan.memory.lines} >= {"weights of target", "weights of draft"}
        target, draft = plan.engines
        assert target.kv_tokens == draft.kv_tokens  # both hold the tokens of the same requests
        assert (target.kv_tokens or 0) > 32 * 8192 / 4
        assert plan.checks[1].detail == "identical"

    def test_digests_that_are_known_make_the_build_id_of_the_build(
        self, deployment: EngineDeployment, standins: Standins
    ) -> None:
        loaded = deployment.write("lookahead")
        weights = sorted((deployment.root / "target").glob("*.safetensors"))
        for path in weights:
            os.utime(path, (1e9, 1e9))  # long enough ago to be remembered
        result = build(loaded, deployment)

        plan = dry_run(loaded, deployment, installation=find_installation(os.environ))

        assert plan.build_id == result.manifest.build_id

    def test_commands_are_those_of_the_build(self, deployment: EngineDeployment, standins: Standins) -> None:
        loaded = deployment.write("eagle")
        build(loaded, deployment)

        plan = dry_run(loaded, deployment, installation=find_installation({"PATH": ""}))

        assert [step.name for step in plan.graph.order()] == [
            "convert target",
            "build target",
            "convert target_plain",
            "build target_plain",
        ]

    def test_other_version_on_this_machine_is_only_said(self, deployment: EngineDeployment, standins: Standins) -> None:
        loaded = deployment.write("lookahead", section={"version": "1.1.0"})
        installation = find_installation({"PATH": str(standins.trtllm_build.parent)})

        plan = dry_run(loaded, deployment, installation=installation)

        assert any("1.1.0 is not the installed version, 1.2.1" in sentence for sentence in plan.not_checked)
        assert plan.versions["tensorrt_llm"] == "1.1.0"


class TestRefusals:
    def test_no_tensorrt_llm(self, deployment: EngineDeployment) -> None:
        words = refusal(deployment.write("draft_model"), deployment)

        assert "tensorrt_llm.version: TensorRT-LLM is not installed on this machine" in words
        assert "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3" in words

    @pytest.mark.parametrize("installed", [None, "1.2.1", "1.3.0rc27"])
    def test_version_without_engine_flow(
        self, installed: str | None, deployment: EngineDeployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if installed is not None:
            install_standins(tmp_path / "machine", monkeypatch, version=installed)
        loaded = deployment.write("draft_model", section={"version": "1.3.0rc27"})

        words = refusal(loaded, deployment)

        assert words == (
            f"{loaded.path}: tensorrt_llm.version: TensorRT-LLM 1.3.0rc27 has no engine flow: trtllm-build and the "
            "convert scripts were removed after 1.2.1. Use lane trtllm_llmapi, or version 1.2.1 "
            "(nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3), the last one with the engine flow."
        )

    def test_two_faults_of_one_key_are_both_said(self, deployment: EngineDeployment, standins: Standins) -> None:
        fp4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
        deployment.write_target(architectures=["GemmaForCausalLM"], model_type="gemma", quantization_config=fp4)

        words = refusal(deployment.write("lookahead"), deployment)

        assert "FP4 needs Blackwell" in words
        assert "GemmaForCausalLM, for which no convert script is known" in words

    @pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
    def test_guides_that_could_never_be_packed(
        self, backend: str, deployment: EngineDeployment, standins: Standins
    ) -> None:
        words = refusal(deployment.write("draft_model", section={"guided_decoding_backend": backend}), deployment)

        assert f"tensorrt_llm.guided_decoding_backend: {backend}: no build of lane trtllm_engine writes" in words
        assert "Use lane trtllm_llmapi" in words
        assert standins.started() == []

    def test_all_problems_at_once(self, deployment: EngineDeployment, standins: Standins) -> None:
        loaded = deployment.write("eagle", section={"version": "1.1.0", "pipeline_parallel": 2, "quantization": "fp8"})
        (deployment.root / "target" / "tokenizer.json").unlink()

        words = refusal(loaded, deployment)

        for part in (
            "tensorrt_llm.version: 1.1.0 is not the installed version, 1.2.1",
            "tensorrt_llm.pipeline_parallel: 2 with method eagle",
            "tensorrt_llm.quantization: fp8",
            "tokenizer.json: tokenizer missing",
        ):
            assert part in words

    def test_missing_folders_are_said_beside_other_problems(
        self, deployment: EngineDeployment, standins: Standins
    ) -> None:
        loaded = deployment.write("eagle", section={"pipeline_parallel": 2}, with_checkpoints=False)

        words = refusal(loaded, deployment)

        for part in (
            "tensorrt_llm.pipeline_parallel: 2",
            str(deployment.root / "target"),
            str(deployment.root / "draft"),
        ):
            assert part in words

    def test_nothing_is_fetched_for_a_refused_build(
        self, deployment: EngineDeployment, standins: Standins, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fetch(**options: Any) -> str:
            assert options.get("local_files_only"), "the model hub was asked"
            raise OSError("not in the cache")

        monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
        target = {"checkpoint": "owner/name"}
        loaded = deployment.write("lookahead", section={"version": "1.1.0"}, target=target, with_checkpoints=False)

        assert "1.1.0 is not the installed version" in refusal(loaded, deployment)

    def test_missing_examples(
        self, deployment: EngineDeployment, standins: Standins, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("SPECDEPLOY_TRTLLM_EXAMPLES")

        assert "the convert scripts are missing" in refusal(deployment.write("draft_model"), deployment)

    def test_heads_do_not_divide(self, deployment: EngineDeployment, standins: Standins) -> None:
        words = refusal(deployment.write("lookahead", section={"tensor_parallel": 3}), deployment)

        assert "tensor_parallel: 3 does not divide the 4 attention heads" in words

    def test_checkpoint_missing(self, deployment: EngineDeployment, standins: Standins) -> None:
        words = refusal(deployment.write("draft_model", with_checkpoints=False), deployment)

        assert str(deployment.root / "target") in words
        assert str(deployment.root / "draft") in words

    def test_nvfp4(self, deployment: EngineDeployment, standins: Standins) -> None:
        deployment.write_target(quantization_config={"quant_method": "modelopt", "quant_algo": "NVFP4"})

        assert "FP4 needs Blackwell" in refusal(deployment.write("draft_model"), deployment)

    def test_fp8_checkpoint_of_qwen(self, deployment: EngineDeployment, standins: Standins) -> None:
        deployment.write_target(model_type="qwen2", quantization_config={"quant_method": "fp8"})

        assert "Qwen's converter is known to read unquantised ones only" in refusal(
            deployment.write("draft_model"), deployment
        )

    def test_quantised_target_of_a_head(self, deployment: EngineDeployment, standins: Standins) -> None:
        deployment.write_target(quantization_config={"quant_method": "modelopt", "quant_algo": "FP8"})

        assert "the converter of method medusa is known to read unquantised" in refusal(
            deployment.write("medusa"), deployment
        )

    def test_fp8_cache_without_fp8_weights(self, deployment: EngineDeployment, standins: Standins) -> None:
        words = refusal(deployment.write("lookahead", section={"kv_cache_dtype": "fp8"}), deployment)

        assert "tensorrt_llm.kv_cache_dtype: fp8, and" in words
        assert "quantization: fp8" in words

    def test_unknown_architecture(self, deployment: EngineDeployment, standins: Standins) -> None:
        deployment.write_target(architectures=["GemmaForCausalLM"], model_type="gemma")

        words = refusal(deployment.write("lookahead"), deployment)

        assert "GemmaForCausalLM, for which no convert script is known" in words

    def test_medusa_heads_under_another_name(self, deployment: EngineDeployment, standins: Standins) -> None:
        loaded = deployment.write("medusa")
        head = deployment.root / "draft" / "medusa_lm_head.safetensors"
        head.rename(head.with_name("model.safetensors"))

        assert "medusa_lm_head.safetensors: missing" in refusal(loaded, deployment)

    def test_pickled_medusa_heads_would_win(self, deployment: EngineDeployment, standins: Standins) -> None:
        loaded = deployment.write("medusa")
        (deployment.root / "draft" / "medusa_lm_head.pt").write_bytes(b"")

        assert "the converter would read it instead" in refusal(loaded, deployment)

    def test_redrafter_config_without_its_keys(self, deployment: EngineDeployment, standins: Standins) -> None:
        loaded = deployment.write("redrafter")
        edit_config(deployment.root / "draft", exit_dim=None, rnn=None)

        assert "lacks exit_dim, rnn" in refusal(loaded, deployment)

    def test_too_large_for_the_gpu_shows_every_line(self, deployment: EngineDeployment, standins: Standins) -> None:
        loaded = deployment.write("lookahead", with_checkpoints=False)
        deployment.write_target(LLAMA_8B)
        shutil.rmtree(deployment.root / "target")
        big = LLAMA_8B.__class__(126, 16384, 53248, 128, 8, 320)
        deployment.write_target(big)

        words = refusal(loaded, deployment)

        assert "tensorrt_llm.tensor_parallel: the weights of one GPU, " in words
        remedy, _, arithmetic = words.partition("Counted:")
        assert "Write tensorrt_llm.quantization: fp8" in remedy
        assert "raise tensorrt_llm.tensor_parallel above 1" in remedy
        assert "weights of target" in arithmetic
        assert "weights of target" in words
        assert "DOES NOT FIT" in words

    @pytest.mark.parametrize(
        "stated",
        [
            {"quant_method": "fp8", "weight_block_size": [128, 128]},
            {
                "quant_method": "compressed-tensors",
                "format": "float-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "strategy": "block"}}},
            },
        ],
    )
    def test_scales_per_block_are_not_taken_for_scales_per_tensor(
        self, stated: dict[str, Any], deployment: EngineDeployment, standins: Standins
    ) -> None:
        loaded = deployment.write("draft_model")
        edit_config(deployment.root / "target", quantization_config=stated)

        words = refusal(loaded, deployment)

        assert "target.checkpoint: target" in words
        if "weight_block_size" in stated:
            assert (
                "scale per block of 128 x 128; the converter reads one per tensor. Use lane trtllm_llmapi, or" in words
            )

    def test_fp8_with_a_scale_per_tensor_is_converted(self, deployment: EngineDeployment, standins: Standins) -> None:
        loaded = deployment.write("draft_model")
        edit_config(deployment.root / "target", quantization_config={"quant_method": "fp8"})

        steps = dry_run(loaded, deployment).graph.order()

        assert "--use_fp8" in steps[0].argv

    def test_heads_that_do_not_divide_are_told_once_for_each_checkpoint(
        self, deployment: EngineDeployment, standins: Standins
    ) -> None:
        words = refusal(deployment.write("draft_model", section={"tensor_parallel": 3}), deployment)

        assert len([line for line in words.splitlines() if "heads" in line]) == 2
        assert "tensorrt_llm.draft_tensor_parallel: " in words

    def test_caches_too_small_name_the_longest_request_that_fits(
        self, deployment: EngineDeployment, standins: Standins
    ) -> None:
        words = refusal(deployment.write("lookahead", section={"kv_cache_fraction": 1e-6}), deployment)

        assert "serving.max_seq_len: the caches hold " in words
        assert words.index("rite at most ") < words.index("Counted:")

    def test_raised_step_is_told(self, deployment: EngineDeployment, standins: Standins) -> None:
        loaded = deployment.write("lookahead", section={"max_num_tokens": 84})

        plan = dry_run(loaded, deployment)

        (check,) = [check for check in plan.checks if check.name == "note on build target"]
        assert check.detail.startswith(f"max_num_tokens is {plan.engines[0].max_num_tokens}, not 84")

    def test_disk_too_small(
        self, deployment: EngineDeployment, standins: Standins, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loaded = deployment.write("lookahead")
        usage = shutil.disk_usage(deployment.root)
        monkeypatch.setattr("shutil.disk_usage", lambda _path: usage._replace(free=1000))

        with pytest.raises(BuildError, match=r"the build needs about .* the disk has"):
            build(loaded, deployment)
        assert standins.started() == []

    @pytest.mark.parametrize(("free", "is_enough"), [(39, False), (45, True)])
    def test_disk_too_small_for_download_and_commands(
        self,
        free: int,
        is_enough: bool,
        deployment: EngineDeployment,
        standins: Standins,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        hub = FakeHub.install(monkeypatch, deployment.root / "cache")
        hub.add("owner/name", {"model.safetensors": 14 << 30}, num_parameters=7 << 30)
        usage = shutil.disk_usage(deployment.root)
        monkeypatch.setattr("shutil.disk_usage", lambda _path: usage._replace(free=free << 30))
        loaded = deployment.write("lookahead", target={"checkpoint": "owner/name"}, with_checkpoints=False)

        words = refusal(loaded, deployment)

        part = "owner/name from the model hub 14.0 GiB, the commands of the build at least 28.0 GiB, together 42.0 GiB"
        assert (part in words) is not is_enough
        assert hub.fetched == (["owner/name"] if is_enough else [])

    def test_tokens_that_differ_forbid_the_build(self, deployment: EngineDeployment, standins: Standins) -> None:
        loaded = deployment.write("draft_model")
        path = deployment.root / "draft" / "tokenizer.json"
        tokenizer = json.loads(path.read_text())
        vocabulary = tokenizer["model"]["vocab"]
        pieces = list(vocabulary)
        tokenizer["model"]["vocab"] = dict(zip([*pieces[100:], *pieces[:100]], vocabulary.values(), strict=True))
        path.write_text(json.dumps(tokenizer))

        with pytest.raises(CheckpointError, match="tokens-differ"):
            build(loaded, deployment)

    def test_costly_draft_needs_consent(self, deployment: EngineDeployment, standins: Standins) -> None:
        write_checkpoint(
            deployment.root / "draft",
            llama_config(QWEN25_7B, vocab_size=320),
            llama_tensors(QWEN25_7B, vocab_rows=320),
            tokenizer=json.loads((deployment.write_target() / "tokenizer.json").read_text()),
            generation_config={"eos_token_id": 319},
        )

        assert "--allow draft-too-costly" in refusal(deployment.write("draft_model"), deployment)

    def test_eagle_head_without_its_embedding(self, deployment: EngineDeployment, standins: Standins) -> None:
        shapes = eagle1_tensors(SMALL, bias=True, embedding=False)
        write_checkpoint(deployment.root / "draft", llama_config(SMALL, num_hidden_layers=1), shapes)

        words = refusal(deployment.write("eagle"), deployment)

        assert "speculation.draft.checkpoint:" in words
        assert "has no embed_tokens.weight, which the EAGLE converter reads from the head" in words

    def test_experts_are_not_shared_out_by_the_quantisation(
        self, deployment: EngineDeployment, standins: Standins
    ) -> None:
        section = {"tensor_parallel": 2, "expert_parallel": 2, "quantization": "fp8"}

        words = refusal(deployment.write("lookahead", section=section), deployment)

        assert "tensorrt_llm.expert_parallel: 2 with quantization fp8: quantize.py has no flag" in words

    def test_missing_convert_script(self, deployment: EngineDeployment, standins: Standins) -> None:
        script = standins.examples_root / "models" / "core" / "llama" / "convert_checkpoint.py"
        script.unlink()

        words = refusal(deployment.write("lookahead"), deployment)

        assert words.startswith(
            f"{script}: examples/models/core/llama/convert_checkpoint.py is missing. Set SPECDEPLOY"
        )

    def test_no_gpu_in_sight(self, deployment: EngineDeployment, standins: Standins) -> None:
        (standins.trtllm_build.parent / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")

        assert "tensorrt_llm.gpu: no GPU is visible" in refusal(deployment.write("lookahead"), deployment)

    def test_engines_root_that_cannot_be_written(self, deployment: EngineDeployment, standins: Standins) -> None:
        loaded = deployment.write("lookahead")
        deployment.engines_root.write_text("a file")

        with pytest.raises(BuildError, match=r"engines.*Make the folder writable for this user and free space"):
            build(loaded, deployment)

    def test_eagle_rows(self, deployment: EngineDeployment, standins: Standins) -> None:
        words = refusal(deployment.write("eagle", serving={"max_rows": 513, "max_seq_len": SEQ_LEN}), deployment)

        assert "serving.max_rows: 513 exceeds the 512 rows of an EAGLE engine" in words

    def test_other_gpu(self, deployment: EngineDeployment, standins: Standins) -> None:
        with pytest.raises(
            ConfigError, match=r"tensorrt_llm\.gpu: h200 \(H200 SXM, sm90\) is not what this machine has"
        ):
            build(deployment.write("lookahead", section={"gpu": "h200"}), deployment)


def test_what_the_eagle_converter_may_not_find_is_recorded(deployment: EngineDeployment, standins: Standins) -> None:
    shapes = eagle1_tensors(SMALL)
    write_checkpoint(deployment.root / "draft", llama_config(SMALL, num_hidden_layers=1), shapes)
    lines: list[str] = []

    with pytest.raises(BuildError, match=r"step convert target: the checkpoint has no tensor fc\.bias"):
        build(deployment.write("eagle"), deployment, lines.append)

    assert any(line.startswith("warning eagle-fc-bias: the head has no fc.bias") for line in lines)
    assert any(line.startswith("warning eagle-pickle: ") for line in lines)


def test_stretched_rope_of_a_head_is_recorded(deployment: EngineDeployment, standins: Standins) -> None:
    rope = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
    deployment.write_target(rope_scaling=rope)

    result = build(deployment.write("medusa"), deployment)

    assert any(check.name == "warning rope-scaling" for check in result.manifest.checks)
