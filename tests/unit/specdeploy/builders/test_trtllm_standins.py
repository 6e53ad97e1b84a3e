"""The stand-ins take exactly the flags of the contracts and write what upstream writes."""

import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from helpers.fabricated_checkpoints import SMALL, eagle1_tensors, write_checkpoint
from helpers.step_graphs import LLAMA
from helpers.trtllm_standin_program import DECODING_MODES
from helpers.trtllm_standins import SCRIPT_FOLDERS, Standins, write_standins
from specdeploy.trtllm.facts import ConvertScript, Flag, build_flags, convert_flags

VERSION = "1.2.1"


@pytest.fixture(scope="module")
def standins(tmp_path_factory: pytest.TempPathFactory) -> Standins:
    return write_standins(tmp_path_factory.mktemp("trtllm"), VERSION)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path / "model"


def run(program: Path, *arguments: object, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def script(standins: Standins, which: ConvertScript) -> Path:
    return standins.examples_root / SCRIPT_FOLDERS[which] / "convert_checkpoint.py"


def convert(standins: Standins, model: Path, output: Path, *more: object, which: str = "llama") -> dict[str, Any]:
    done = run(
        script(standins, ConvertScript(which)),
        *("--model_dir", model, "--output_dir", output),
        *more,
        cwd=model.parent,
    )
    assert done.returncode == 0, done.stderr
    config: dict[str, Any] = json.loads((output / "config.json").read_text())
    return config


def build(standins: Standins, checkpoint: Path, output: Path, *more: object) -> dict[str, Any]:
    done = run(
        standins.trtllm_build, "--checkpoint_dir", checkpoint, "--output_dir", output, *more, cwd=checkpoint.parent
    )
    assert done.returncode == 0, done.stderr
    engine: dict[str, Any] = json.loads((output / "config.json").read_text())
    return engine


# --- flags ----------------------------------------------------------------------------------------------------------


def help_flags(program: Path, cwd: Path) -> dict[str, str]:
    """Long flags of the help text and the choices shown behind them."""
    text = " ".join(run(program, "--help", cwd=cwd, COLUMNS="1000").stdout.split("options:")[1].split())
    shown = re.findall(r"(--[\w-]+)(?: \{([^}]*)\})?", text)
    return {name: choices for name, choices in shown if name != "--help"}


def contract_flags(flags: Iterable[Flag]) -> dict[str, str]:
    own = {flag.name: flag for flag in flags if flag.type != "absent"}
    choices = {flag.name: ",".join(flag.choices or ()) for flag in own.values()}
    return choices | {alias: choices[flag.name] for flag in own.values() for alias in flag.aliases if alias[:2] == "--"}


@pytest.mark.parametrize("version", ["1.0.0", "1.2.1"])
def test_build_has_the_flags_of_the_contract(tmp_path: Path, version: str) -> None:
    program = write_standins(tmp_path, version).trtllm_build

    assert help_flags(program, tmp_path) == contract_flags(build_flags(Version(version)).values())


@pytest.mark.parametrize("which", list(ConvertScript))
def test_convert_scripts_have_the_flags_of_the_contract(
    standins: Standins, tmp_path: Path, which: ConvertScript
) -> None:
    assert help_flags(script(standins, which), tmp_path) == contract_flags(convert_flags(which).values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max_batch_sizes", "8"], "trtllm-build: error: unrecognized arguments: --max_batch_sizes 8"),
        (["--max_batch", "8"], "trtllm-build: error: unrecognized arguments: --max_batch 8"),  # no abbreviations
        (["--kv_cache_type", "pagd"], "trtllm-build: error: argument --kv_cache_type: invalid choice: 'pagd'"),
        (["--max_batch_size", "many"], "trtllm-build: error: argument --max_batch_size: invalid int value: 'many'"),
        (["--strip_plan", "true"], "trtllm-build: error: unrecognized arguments: true"),
    ],
)
def test_wrong_flags_exit_with_code_2(standins: Standins, tmp_path: Path, arguments: list[str], message: str) -> None:
    done = run(standins.trtllm_build, *arguments, cwd=tmp_path)

    assert done.returncode == 2
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_required_flags_are_required(standins: Standins, tmp_path: Path) -> None:
    done = run(script(standins, ConvertScript.REDRAFTER), cwd=tmp_path)

    assert done.returncode == 2
    assert "the following arguments are required: --model_dir, --drafter_model_dir" in done.stderr


def test_aliases_mean_the_same(standins: Standins, model: Path, tmp_path: Path) -> None:
    convert(standins, model, tmp_path / "checkpoint")

    engine = build(standins, tmp_path / "checkpoint", tmp_path / "engine", "--max_decoder_seq_len", 128)

    assert engine["build_config"]["max_seq_len"] == 128


def test_scripts_run_under_an_interpreter_too(standins: Standins, model: Path, tmp_path: Path) -> None:
    path = script(standins, ConvertScript.QWEN)

    done = run(Path(sys.executable), path, "--model_dir", model, "--output_dir", tmp_path / "out", cwd=tmp_path)

    assert done.returncode == 0, done.stderr


# --- outputs --------------------------------------------------------------------------------------------------------


def test_checkpoint_has_a_file_per_rank(standins: Standins, model: Path, tmp_path: Path) -> None:
    config = convert(standins, model, tmp_path / "out", "--tp_size", 2, "--pp_size", 2, "--use_fp8", "--fp8_kv_cache")

    ranks = sorted((tmp_path / "out").glob("rank*.safetensors"))
    assert [path.name for path in ranks] == [f"rank{rank}.safetensors" for rank in range(4)]
    (header_bytes,) = struct.unpack("<Q", ranks[0].read_bytes()[:8])
    header = json.loads(ranks[0].read_bytes()[8 : 8 + header_bytes])
    assert header["transformer.ln_f.weight"]["dtype"] == "BF16"
    assert (config["architecture"], config["dtype"], config["head_size"]) == ("LlamaForCausalLM", "bfloat16", 16)
    assert (config["mapping"]["world_size"], config["mapping"]["tp_size"], config["mapping"]["pp_size"]) == (4, 2, 2)
    assert config["quantization"]["quant_algo"] == config["quantization"]["kv_cache_quant_algo"] == "FP8"


def test_float32_becomes_float16(standins: Standins, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({**LLAMA, "torch_dtype": "float32"}))

    assert convert(standins, tmp_path / "model", tmp_path / "out")["dtype"] == "float16"


def test_tensor_parallel_must_divide_the_heads(standins: Standins, model: Path, tmp_path: Path) -> None:
    path = script(standins, ConvertScript.LLAMA)

    done = run(path, "--model_dir", model, "--output_dir", tmp_path / "out", "--tp_size", 3, cwd=tmp_path)

    assert done.returncode == 1
    assert done.stderr.endswith("AssertionError: num_attention_heads must be divisible by tp_size\n")


def test_engine_echoes_its_flags(standins: Standins, model: Path, tmp_path: Path) -> None:
    convert(standins, model, tmp_path / "checkpoint", "--tp_size", 2)
    arguments = ("--max_batch_size", 4, "--max_seq_len", 200, "--max_input_len", 100, "--max_num_tokens", 512)
    flags = ("--gemm_plugin", "bfloat16", "--use_paged_context_fmha", "enable", "--kv_cache_type", "paged")

    engine = build(standins, tmp_path / "checkpoint", tmp_path / "engine", *arguments, *flags)

    assert sorted(path.name for path in (tmp_path / "engine").iterdir()) == [
        "config.json",
        "rank0.engine",
        "rank1.engine",
    ]
    assert (tmp_path / "model.cache").exists()  # the timing cache lands in the working folder
    assert engine["version"] == VERSION
    assert engine["pretrained_config"]["mapping"]["world_size"] == 2
    built = engine["build_config"]
    names = ("max_batch_size", "max_seq_len", "max_input_len", "max_num_tokens", "max_draft_len")
    assert [built[name] for name in names] == [4, 200, 100, 512, 0]
    assert (built["speculative_decoding_mode"], built["kv_cache_type"]) == (DECODING_MODES[None], "PAGED")
    plugins = built["plugin_config"]
    assert plugins["gemm_plugin"] == "bfloat16"
    assert (plugins["use_paged_context_fmha"], plugins["paged_kv_cache"], plugins["use_fp8_context_fmha"]) == (
        True,
        True,
        False,
    )


@pytest.mark.parametrize(
    ("which", "head", "flags", "built"),
    [
        # mode, max_draft_len, max_seq_len, max_num_tokens of --max_batch_size 4 --max_seq_len 100 --max_num_tokens 64
        ("llama", (), ("draft_tokens_external", "--max_draft_len", 5), (2, 5, 105, 64)),
        ("llama", (), ("lookahead_decoding", "--max_draft_len", 83), (8, 83, 183, 336)),
        ("medusa", ("--medusa_model_dir", "head"), ("medusa",), (4, 63, 163, 256)),
        ("eagle", ("--eagle_model_dir", "head", "--num_eagle_layers", 5), ("eagle",), (32, 63, 168, 256)),
        ("redrafter", ("--drafter_model_dir", "head"), ("explicit_draft_tokens",), (16, 25, 125, 104)),
    ],
)
def test_engine_makes_room_for_drafts(
    standins: Standins,
    model: Path,
    tmp_path: Path,
    which: str,
    head: tuple[object, ...],
    flags: tuple[object, ...],
    built: tuple[int, ...],
) -> None:
    """Upstream adds the draft length to max_seq_len and raises max_num_tokens to a full batch of drafts."""
    write_checkpoint(tmp_path / "head", {}, eagle1_tensors(SMALL, bias=True))
    convert(standins, model, tmp_path / "checkpoint", *head, which=which)
    limits = ("--max_batch_size", 4, "--max_seq_len", 100, "--max_num_tokens", 64)

    engine = build(
        standins, tmp_path / "checkpoint", tmp_path / "engine", *limits, "--speculative_decoding_mode", *flags
    )

    names = ("speculative_decoding_mode", "max_draft_len", "max_seq_len", "max_num_tokens")
    assert tuple(engine["build_config"][name] for name in names) == built


@pytest.mark.parametrize(("bias", "embedding", "missing"), [(False, True, "fc.bias"), (True, False, "embed_tokens")])
def test_eagle_head_without_a_tensor_that_upstream_reads(
    standins: Standins, model: Path, tmp_path: Path, bias: bool, embedding: bool, missing: str
) -> None:
    write_checkpoint(tmp_path / "head", {}, eagle1_tensors(SMALL, bias=bias, embedding=embedding))
    program = script(standins, ConvertScript.EAGLE)

    done = run(program, "--model_dir", model, "--output_dir", "out", "--eagle_model_dir", "head", cwd=tmp_path)

    assert done.returncode == 1
    assert f"KeyError: '{missing}" in done.stderr


def test_decoding_modes_are_those_of_the_flag() -> None:
    flag = build_flags(Version(VERSION))["--speculative_decoding_mode"]

    assert set(flag.choices or ()) == set(DECODING_MODES) - {None}


def test_build_refuses_context_logits_with_drafts(standins: Standins, model: Path, tmp_path: Path) -> None:
    convert(standins, model, tmp_path / "checkpoint")
    arguments = ("--checkpoint_dir", tmp_path / "checkpoint", "--gather_context_logits", "--max_draft_len", 4)

    done = run(standins.trtllm_build, *arguments, cwd=tmp_path)

    assert done.returncode == 1
    assert "RuntimeError: Gather context logits is not support with draft len > 0" in done.stderr


def test_quantize_writes_a_checkpoint(standins: Standins, model: Path, tmp_path: Path) -> None:
    path = standins.examples_root / "quantization" / "quantize.py"
    flags = ("--qformat", "fp8", "--kv_cache_dtype", "fp8", "--tp_size", 2, "--dtype", "bfloat16")

    done = run(path, "--model_dir", model, "--output_dir", tmp_path / "out", *flags, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization"]["quant_algo"] == config["quantization"]["kv_cache_quant_algo"] == "FP8"
    engine = build(standins, tmp_path / "out", tmp_path / "engine", "--use_fp8_context_fmha", "enable")
    assert engine["build_config"]["plugin_config"]["use_fp8_context_fmha"] is True


# --- misbehaviour ---------------------------------------------------------------------------------------------------


def test_events_tell_what_ran(standins: Standins, model: Path, tmp_path: Path) -> None:
    path = script(standins, ConvertScript.LLAMA)
    output = tmp_path / "out"

    run(path, "--model_dir", model, "--output_dir", output, cwd=tmp_path, STANDIN_EVENTS=str(standins.events))

    assert standins.started() == ["convert_checkpoint:llama"]
    assert [re.sub(r" \d+ ", " PID ", line) for line in standins.lines()] == [
        f"start convert_checkpoint:llama PID {output}",
        f"end convert_checkpoint:llama PID {output}",
    ]
    standins.events.unlink()


@pytest.mark.parametrize("only", ["trtllm-build", "no such text"])
def test_misbehaviour_may_be_meant_for_others(standins: Standins, model: Path, tmp_path: Path, only: str) -> None:
    path = script(standins, ConvertScript.LLAMA)
    variables = {"STANDIN_FAIL": "oom", "STANDIN_ONLY": only}

    done = run(path, "--model_dir", model, "--output_dir", tmp_path / "out", cwd=tmp_path, **variables)

    assert done.returncode == 0


@pytest.mark.parametrize(
    ("variable", "value", "return_code", "written"),
    [
        ("STANDIN_FAIL", "oom", 1, []),
        ("STANDIN_FAIL", "host_oom", -9, []),
        ("STANDIN_FAIL", "silent", 3, []),
        ("STANDIN_PARTIAL", "1", -9, ["config.json", "rank0.safetensors"]),
        ("STANDIN_FILL_DISK", "1", 1, ["config.json", "rank0.safetensors"]),
        ("STANDIN_SKIP", "rank0", 0, ["config.json"]),
    ],
)
def test_ways_to_fail(
    standins: Standins, model: Path, tmp_path: Path, variable: str, value: str, return_code: int, written: list[str]
) -> None:
    path = script(standins, ConvertScript.LLAMA)

    done = run(path, "--model_dir", model, "--output_dir", tmp_path / "out", cwd=tmp_path, **{variable: value})

    assert done.returncode == return_code
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == written
