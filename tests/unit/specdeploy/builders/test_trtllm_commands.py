"""Commands per method, each flag against the facts of its version; a planted wrong one is caught by the code itself."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from helpers.engine_deployments import CHOICES, EAGLE_CHOICES, METHODS, NUM_ROWS, SEQ_LEN, EngineDeployment
from helpers.trtllm_standins import QUANTIZE_FLAGS
from specdeploy.builders.engine_records import EngineInputs, EngineTools, plan_engines
from specdeploy.builders.step_graph import Argument, GraphStep, StepOutput, ToolPath
from specdeploy.builders.trtllm_commands import check_command, plan_commands
from specdeploy.checkpoint.info import inspect_checkpoint
from specdeploy.checkpoint_contract import MoeShape, Quantization
from specdeploy.contract import EngineModel
from specdeploy.errors import BuildError, ConfigError
from specdeploy.trtllm.facts import ConvertScript, Flag, build_flags, command_problems, convert_flags

QUANTIZE = {flag.name: flag for flag in QUANTIZE_FLAGS}
SCRIPT_OF_TOOL = {
    "examples/models/core/llama/convert_checkpoint.py": ConvertScript.LLAMA,
    "examples/models/core/qwen/convert_checkpoint.py": ConvertScript.QWEN,
    "examples/medusa/convert_checkpoint.py": ConvertScript.MEDUSA,
    "examples/eagle/convert_checkpoint.py": ConvertScript.EAGLE,
    "examples/redrafter/convert_checkpoint.py": ConvertScript.REDRAFTER,
}


@pytest.fixture
def deployment(tmp_path: Path) -> EngineDeployment:
    return EngineDeployment(tmp_path)


def inputs_of(deployment: EngineDeployment, method: str, **options: Any) -> EngineInputs:
    loaded = deployment.write(method, **options)
    section = loaded.config.tensorrt_llm
    assert section is not None
    draft = None if method == "lookahead" else inspect_checkpoint(deployment.root / "draft")
    target = inspect_checkpoint(deployment.root / "target")
    return EngineInputs(loaded.config, section, Version(section.version), target, draft, EngineTools())


def commands(inputs: EngineInputs) -> dict[str, GraphStep]:
    return {step.name: step for step in plan_commands(inputs, plan_engines(inputs))}


def value(step: GraphStep, flag: str) -> Argument:
    """What follows `flag`; the flag is there once."""
    assert step.argv.count(flag) == 1, flag
    return step.argv[step.argv.index(flag) + 1]


def flags_of(step: GraphStep, version: Version) -> tuple[list[str], Any]:
    """Arguments of a command as text, and the flags that its program has."""
    tools = [argument for argument in step.argv if isinstance(argument, ToolPath)]
    texts = [argument if isinstance(argument, str) else "somewhere" for argument in step.argv[len(tools) :]]
    name = tools[-1].name
    if name == "trtllm-build":
        return texts, build_flags(version)
    return texts, QUANTIZE if "quantize" in name else convert_flags(SCRIPT_OF_TOOL[name])


class TestAgainstFacts:
    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("version", ["1.0.0", "1.1.0", "1.2.1"])
    def test_every_command_matches_its_flags(self, method: str, version: str, deployment: EngineDeployment) -> None:
        inputs = inputs_of(deployment, method, section={"version": version, "tensor_parallel": 2})

        for step in commands(inputs).values():
            assert command_problems(*flags_of(step, inputs.version)) == [], step.name

    @pytest.mark.parametrize(
        ("argv", "words"),
        [
            (["--max_batchsize", "4"], r"--max_batchsize: no such flag"),
            (["--max_batch_size", "many"], "'many' is no int"),
            (["--gemm_plugin", "bf16"], "'bf16' is none of"),
            (["--speculative_decoding_mode", "eagle3"], "'eagle3' is none of"),
            (["--max_draft_len"], "needs a value"),
        ],
    )
    def test_planted_wrong_command_names_flag_and_version(self, argv: list[Argument], words: str) -> None:
        version = Version("1.2.1")

        with pytest.raises(BuildError, match=rf"^step build target: .* TensorRT-LLM 1\.2\.1: .*{words}"):
            check_command("build target", argv, build_flags(version), version)

    def test_wrong_flag_of_the_generator_is_caught_before_it_is_a_step(
        self, deployment: EngineDeployment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def without(version: Version) -> dict[str, Flag]:
            return {name: flag for name, flag in build_flags(version).items() if name != "--kv_cache_type"}

        monkeypatch.setattr("specdeploy.builders.trtllm_commands.build_flags", without)

        with pytest.raises(BuildError, match="--kv_cache_type: no such flag"):
            commands(inputs_of(deployment, "lookahead"))

    def test_required_flag_that_is_missing(self) -> None:
        flags = convert_flags(ConvertScript.REDRAFTER)

        with pytest.raises(BuildError, match="--drafter_model_dir: missing, it is required"):
            check_command("convert target", ["--model_dir", "x"], flags, Version("1.2.1"))

    def test_redrafter_has_no_pipeline_flag(self) -> None:
        argv: list[Argument] = ["--model_dir", "x", "--drafter_model_dir", "y", "--pp_size", "1"]

        with pytest.raises(BuildError, match="--pp_size: no such flag"):
            check_command("convert target", argv, convert_flags(ConvertScript.REDRAFTER), Version("1.2.1"))


class TestBuild:
    @pytest.mark.parametrize("method", METHODS)
    def test_what_is_always_written(self, method: str, deployment: EngineDeployment) -> None:
        for name, step in commands(inputs_of(deployment, method)).items():
            if not name.startswith("build"):
                continue
            assert value(step, "--max_batch_size") == str(NUM_ROWS)
            assert value(step, "--max_seq_len") == str(SEQ_LEN)
            assert value(step, "--max_input_len") == str(SEQ_LEN)
            assert value(step, "--max_num_tokens") == str(NUM_ROWS * SEQ_LEN)
            assert value(step, "--max_beam_width") == "1"
            assert value(step, "--kv_cache_type") == "paged"
            assert value(step, "--use_paged_context_fmha") == "enable"
            assert value(step, "--gemm_plugin") == "bfloat16"
            assert value(step, "--workers") == "1"
            assert step.needs_gpu
            assert step.required_files == ("engine/config.json", "engine/rank0.engine")
            assert "--gather_context_logits" not in step.argv

    @pytest.mark.parametrize(
        ("method", "mode", "draft_len"),
        [
            ("draft_model", "draft_tokens_external", "4"),
            ("medusa", "medusa", None),
            ("eagle", "eagle", None),
            ("redrafter", "explicit_draft_tokens", None),
            ("lookahead", "lookahead_decoding", "83"),
        ],
    )
    def test_mode_and_draft_length(
        self, method: str, mode: str, draft_len: str | None, deployment: EngineDeployment
    ) -> None:
        steps = commands(inputs_of(deployment, method))

        target = steps["build target"]
        assert value(target, "--speculative_decoding_mode") == mode
        # Heads carry it in their converted checkpoint.
        assert ("--max_draft_len" in target.argv) == (draft_len is not None)
        assert draft_len is None or value(target, "--max_draft_len") == draft_len
        for name in ("build draft", "build target_plain"):
            assert name not in steps or "--speculative_decoding_mode" not in steps[name].argv

    def test_room_for_drafts_of_all_rows_in_one_step(self, deployment: EngineDeployment) -> None:
        serving = {"max_rows": 64, "max_seq_len": SEQ_LEN}
        inputs = inputs_of(deployment, "lookahead", serving=serving, section={"max_num_tokens": 1024})

        assert value(commands(inputs)["build target"], "--max_num_tokens") == str(64 * 84)
        assert plan_engines(inputs)[0].max_num_tokens == 64 * 84

    def test_small_step_is_at_least_one_block(self, deployment: EngineDeployment) -> None:
        inputs = inputs_of(deployment, "draft_model", section={"max_num_tokens": 8})

        assert [engine.max_num_tokens for engine in plan_engines(inputs)] == [32, 32]

    def test_ranks_are_built_side_by_side(self, deployment: EngineDeployment) -> None:
        inputs = inputs_of(deployment, "lookahead", section={"tensor_parallel": 2, "pipeline_parallel": 2})

        step = commands(inputs)["build target"]
        assert value(step, "--workers") == "4"
        assert step.required_files[-1] == "engine/rank3.engine"

    def test_reads_what_was_converted(self, deployment: EngineDeployment) -> None:
        steps = commands(inputs_of(deployment, "medusa"))

        assert value(steps["build target"], "--checkpoint_dir") == StepOutput("convert target", "checkpoint")
        assert value(steps["build target_plain"], "--checkpoint_dir") == StepOutput(
            "convert target_plain", "checkpoint"
        )


class TestConvert:
    def test_draft_model_converts_both_as_usual(self, deployment: EngineDeployment) -> None:
        section = {"tensor_parallel": 4, "draft_tensor_parallel": 2}
        steps = commands(inputs_of(deployment, "draft_model", section=section))

        for name, ranks in (("convert target", "4"), ("convert draft", "2")):
            assert value(steps[name], "--tp_size") == ranks
            assert value(steps[name], "--pp_size") == "1"
            assert value(steps[name], "--dtype") == "bfloat16"
            assert steps[name].argv[1] == ToolPath(
                "examples/models/core/llama/convert_checkpoint.py",
                Path("/app/examples/models/core/llama/convert_checkpoint.py"),
            )
            assert len(steps[name].required_files) == int(ranks) + 1

    def test_medusa(self, deployment: EngineDeployment) -> None:
        step = commands(inputs_of(deployment, "medusa"))["convert target"]

        assert value(step, "--num_medusa_heads") == "4"
        assert value(step, "--num_medusa_layers") == "1"
        assert value(step, "--max_medusa_token_len") == str(len(CHOICES))
        assert value(step, "--model_type") == "llama"
        assert "auto" not in step.argv

    def test_medusa_default_tree_has_63_nodes(self, deployment: EngineDeployment) -> None:
        speculation = {"max_draft_len": 4, "medusa": {"num_heads": 4}}
        inputs = inputs_of(deployment, "medusa", speculation=speculation)

        assert value(commands(inputs)["convert target"], "--max_medusa_token_len") == "63"
        assert plan_engines(inputs)[0].max_draft_len == 63

    @pytest.mark.parametrize(
        ("architecture", "kind"),
        [("LlamaForCausalLM", "llama"), ("MixtralForCausalLM", "mixtral"), ("Qwen2ForCausalLM", "qwen2")],
    )
    def test_medusa_model_type(self, architecture: str, kind: str, deployment: EngineDeployment) -> None:
        inputs = inputs_of(deployment, "medusa")
        assert inputs.target is not None
        target = inputs.target.model_copy(update={"architecture": architecture})

        step = commands(replace(inputs, target=target))["convert target"]

        assert value(step, "--model_type") == kind

    def test_eagle(self, deployment: EngineDeployment) -> None:
        step = commands(inputs_of(deployment, "eagle"))["convert target"]

        assert value(step, "--max_draft_len") == str(len(EAGLE_CHOICES))
        assert value(step, "--num_eagle_layers") == "3"
        assert value(step, "--max_non_leaves_per_layer") == "5"
        assert value(step, "--pp_size") == "1"

    def test_redrafter(self, deployment: EngineDeployment) -> None:
        inputs = inputs_of(deployment, "redrafter")
        step = commands(inputs)["convert target"]

        assert value(step, "--redrafter_num_beams") == "4"
        assert value(step, "--redrafter_draft_len_per_beam") == "5"
        assert "--pp_size" not in step.argv
        assert plan_engines(inputs)[0].max_draft_len == 20

    def test_qwen_has_its_own_script(self, deployment: EngineDeployment) -> None:
        deployment.write_target(model_type="qwen3")

        step = commands(inputs_of(deployment, "lookahead"))["convert target"]

        assert isinstance(step.argv[1], ToolPath)
        assert step.argv[1].name == "examples/models/core/qwen/convert_checkpoint.py"

    @pytest.mark.parametrize("experts", [None, 4])
    def test_experts_are_shared_out(self, experts: int | None, deployment: EngineDeployment) -> None:
        section = {"tensor_parallel": 4, **({"expert_parallel": experts} if experts else {})}
        inputs = inputs_of(deployment, "lookahead", section=section)
        assert inputs.target is not None
        moe = MoeShape(num_experts=8, num_experts_per_token=2, num_moe_layers=16, num_dense_layers=0)
        target = inputs.target.model_copy(update={"architecture": "MixtralForCausalLM", "moe": moe})

        step = commands(replace(inputs, target=target))["convert target"]

        assert value(step, "--moe_ep_size") == str(experts or 1)
        assert value(step, "--moe_tp_size") == str(4 // (experts or 1))

    @pytest.mark.parametrize("experts", [None, 2])
    def test_experts_below_medusa_heads_are_shared_out(self, experts: int | None, deployment: EngineDeployment) -> None:
        section = {"tensor_parallel": 4, **({"expert_parallel": experts} if experts else {})}
        inputs = inputs_of(deployment, "medusa", section=section)
        assert inputs.target is not None
        moe = MoeShape(num_experts=8, num_experts_per_token=2, num_moe_layers=16, num_dense_layers=0)
        target = inputs.target.model_copy(update={"architecture": "MixtralForCausalLM", "moe": moe})

        steps = commands(replace(inputs, target=target))

        for step in (steps["convert target"], steps["convert target_plain"]):
            assert value(step, "--moe_ep_size") == str(experts or 1)
            assert value(step, "--moe_tp_size") == str(4 // (experts or 1))
            assert command_problems(*flags_of(step, inputs.version)) == []

    @pytest.mark.parametrize(
        ("method", "cache", "flags"),
        [
            ("modelopt FP8", "fp8", ["--use_fp8", "--fp8_kv_cache"]),
            ("FP8", None, ["--use_fp8"]),
            ("fbgemm_fp8", None, ["--use_fp8_rowwise"]),
            ("awq", None, []),
        ],
    )
    def test_quantised_checkpoints_of_llama(
        self, method: str, cache: str | None, flags: list[str], deployment: EngineDeployment
    ) -> None:
        inputs = inputs_of(deployment, "lookahead")
        assert inputs.target is not None
        stored = Quantization(method=method, kv_cache_dtype=cache, source="config.json")
        inputs = replace(inputs, target=inputs.target.model_copy(update={"quantization": stored}))

        steps = commands(inputs)

        convert = steps["convert target"].argv
        fp8 = [argument for argument in convert if isinstance(argument, str) and "fp8" in argument]
        assert fp8 == flags
        assert plan_engines(inputs)[0].kv_cache_dtype == ("fp8" if cache else "auto")
        assert value(steps["build target"], "--gemm_plugin") == ("bfloat16" if method == "awq" else "fp8")

    def test_fp8_goes_through_the_quantisation_example(self, deployment: EngineDeployment) -> None:
        section = {"quantization": "fp8", "kv_cache_dtype": "fp8", "tensor_parallel": 2}
        inputs = inputs_of(deployment, "draft_model", section=section)
        steps = commands(inputs)

        step = steps["quantize target"]
        assert isinstance(step.argv[1], ToolPath)
        assert step.argv[1].name == "examples/quantization/quantize.py"
        assert value(step, "--qformat") == "fp8"
        assert value(step, "--kv_cache_dtype") == "fp8"
        assert value(step, "--tp_size") == "2"
        assert command_problems(*flags_of(step, inputs.version)) == []
        assert "may differ in this version" in step.note
        assert value(steps["build target"], "--gemm_plugin") == "fp8"
        assert value(steps["build draft"], "--gemm_plugin") == "bfloat16"
        assert "convert draft" in steps


class TestWithoutCheckpoint:
    @pytest.mark.parametrize("method", METHODS)
    def test_placeholders_stand_for_what_is_not_known(self, method: str, deployment: EngineDeployment) -> None:
        inputs = replace(inputs_of(deployment, method), target=None, draft=None)

        steps = commands(inputs)

        shown = " ".join(str(argument) for step in steps.values() for argument in step.argv)
        assert ("<model type>" in shown) == (method == "medusa")
        assert all(step.num_bytes is None for step in steps.values())
        if method in ("draft_model", "lookahead"):
            assert "examples/models/core/<family>/convert_checkpoint.py" in shown
            assert "once the checkpoint is on this machine" in steps["convert target"].note


class TestUnconvertible:
    def test_unknown_family(self, deployment: EngineDeployment) -> None:
        inputs = inputs_of(deployment, "lookahead")
        assert inputs.target is not None
        target = inputs.target.model_copy(update={"architecture": "GemmaForCausalLM"})

        with pytest.raises(ConfigError, match="GemmaForCausalLM, for which no convert script is known"):
            commands(replace(inputs, target=target))

    @pytest.mark.parametrize("method", ["medusa", "eagle", "redrafter"])
    def test_head_of_a_family_its_converter_does_not_read(self, method: str, deployment: EngineDeployment) -> None:
        inputs = inputs_of(deployment, method)
        assert inputs.target is not None
        target = inputs.target.model_copy(update={"architecture": "Qwen3ForCausalLM"})

        with pytest.raises(ConfigError, match=f"the {method} converter does not read Qwen3ForCausalLM"):
            commands(replace(inputs, target=target))


def test_sizes_for_the_disk_check(deployment: EngineDeployment) -> None:
    inputs = inputs_of(deployment, "medusa")
    assert inputs.target is not None
    assert inputs.draft is not None

    steps = commands(inputs)

    plain = (inputs.target.num_parameters or 0) * 2
    assert steps["convert target_plain"].num_bytes == plain
    assert steps["convert target"].num_bytes == plain + (inputs.draft.num_bytes or 0)


def test_gpus_of_one_node(deployment: EngineDeployment) -> None:
    section = {"tensor_parallel": 4, "pipeline_parallel": 4, "num_nodes": 2, "draft_tensor_parallel": 2}
    engines = {engine.model: engine for engine in plan_engines(inputs_of(deployment, "draft_model", section=section))}

    assert engines[EngineModel.TARGET].gpu_ids == tuple(range(8))
    assert engines[EngineModel.DRAFT].gpu_ids == (0, 1)
    assert engines[EngineModel.DRAFT].pipeline_parallel == 1
