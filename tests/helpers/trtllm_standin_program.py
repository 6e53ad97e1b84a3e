"""What the stand-ins of `trtllm-build`, `convert_checkpoint.py` and `quantize.py` do when they run.

Standard library only: the stand-ins are started by the dozen, without site-packages. The layout of what they write was
read upstream: an engine folder at TensorRT-LLM tensorrt_llm/builder.py@008b2b8d23af95e4e19fa6f354f9c5f6349b2bfc
(EngineConfig.to_dict, Engine.save, BuildConfig, build), a checkpoint folder at tensorrt_llm/models/modeling_utils.py
@01ea6d79d454bb3ab10c7510a6f706ba039090c2 (PretrainedConfig.to_dict, from_checkpoint), the head's keys at
examples/eagle/convert_checkpoint.py@04a2cacbfd3b9ac76191bd8498ad871607b63a04 and
examples/redrafter/convert_checkpoint.py@0e8b9484c7e4866a4091e5939c7e14ce53dffa88.
"""

import argparse
import errno
import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

Flags = list[dict[str, Any]]
POLL_S = 0.005

# IntFlag of tensorrt_llm/models/modeling_utils.py@01ea6d79d454bb3ab10c7510a6f706ba039090c2: written as a number.
DECODING_MODES = {
    None: 1,
    "draft_tokens_external": 2,
    "medusa": 4,
    "lookahead_decoding": 8,
    "explicit_draft_tokens": 16,
    "eagle": 32,
}
DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
FAILURES = {
    "oom": "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB.",
    "quantization": "Unsupported quantization algo NVFP4 for SM90",
    "tp": "num_attention_heads must be divisible by tp_size",
}


def main(program: str, version: str, flags: Flags) -> int:
    """Parse the command line as `program` would, misbehave if the environment says so, else write the outputs."""
    parser = make_parser(program, flags)
    options = parser.parse_args()
    output = Path(options.output_dir)
    note(f"start {program} {os.getpid()} {output}")
    say(f"[TensorRT-LLM] TensorRT-LLM version: {version}")
    output.mkdir(parents=True, exist_ok=True)
    if is_meant(program):
        misbehave_before()
    if program == "trtllm-build":
        files = plan_engine(options, version)
    elif program == "quantize":
        files = plan_checkpoint(options, "quantize")
    else:
        files = plan_checkpoint(options, program.partition(":")[2])
    write_files(output, files, is_bad=is_meant(program))
    note(f"end {program} {os.getpid()} {output}")
    return 0


def make_parser(program: str, flags: Flags) -> argparse.ArgumentParser:
    """argparse as upstream sets it up: unknown flags, wrong types and wrong choices exit with code 2.

    Abbreviated flags are refused here, though upstream lets them through: a generator must write whole names.
    """
    script = program if program == "trtllm-build" else f"{program.partition(':')[0]}.py"
    parser = argparse.ArgumentParser(prog=script, allow_abbrev=False)
    for flag in flags:
        names = [flag["name"], *flag["aliases"]]
        if flag["type"] == "flag":
            parser.add_argument(*names, action="store_true")
            continue
        keywords: dict[str, Any] = {
            "type": {"int": int, "float": float}.get(flag["type"], str),
            "default": flag["default"],
            "required": flag["is_required"],
        }
        if flag["type"] == "list[str]":
            keywords["nargs"] = "+"
        if flag["choices"] is not None:
            keywords["choices"] = [keywords["type"](choice) for choice in flag["choices"]]
        parser.add_argument(*names, **keywords)
    return parser


# --- misbehaviour, by environment variables -------------------------------------------------------------------------


def is_meant(program: str) -> bool:
    """Whether this command is to misbehave: STANDIN_ONLY, if set, must occur in its program name or arguments."""
    return os.environ.get("STANDIN_ONLY", "") in " ".join([program, *sys.argv[1:]])


def note(line: str) -> None:
    """Append one line to the file STANDIN_EVENTS, for tests to count and wait for."""
    if path := os.environ.get("STANDIN_EVENTS"):
        with open(path, "a") as stream:
            stream.write(f"{line}\n")


def say(line: str) -> None:
    """One line of output, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def misbehave_before() -> None:
    """Everything that happens before an output is written."""
    if gate := os.environ.get("STANDIN_GATE"):
        while not Path(gate).exists():
            time.sleep(POLL_S)
    time.sleep(float(os.environ.get("STANDIN_SLEEP_S", "0")))
    if os.environ.get("STANDIN_HANG"):
        hang()
    kind = os.environ.get("STANDIN_FAIL")
    if kind == "keyerror":
        raise KeyError("fc.bias")
    if kind == "module":
        __import__("tensorrt_llm_is_not_here")
    if kind == "host_oom":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "silent":
        sys.exit(3)
    if kind is not None:
        raise RuntimeError(FAILURES[kind])


def hang() -> None:
    """Stay forever, deaf to SIGTERM, with a worker that is deaf too and one in a session of its own."""
    code = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: time.sleep(60)"
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    workers = [subprocess.Popen([sys.executable, "-IS", "-c", code], start_new_session=own) for own in (False, True)]
    say("[TensorRT-LLM] [I] Building engine, layer 1 of 32")
    note(f"hang {os.getpid()} " + " ".join(str(worker.pid) for worker in workers))
    while True:
        time.sleep(60)


def write_files(output: Path, files: dict[str, bytes], *, is_bad: bool) -> None:
    """Write `files` in order, half of them when told to break; names holding STANDIN_SKIP are left out."""
    skipped = os.environ.get("STANDIN_SKIP") if is_bad else None
    breaks_at = len(files) // 2 if is_bad and (is_killed() or fills_disk()) else len(files)
    for number, (name, content) in enumerate(files.items()):
        if number == breaks_at:
            (output / name).write_bytes(content[: len(content) // 2])
            if is_killed():
                os.kill(os.getpid(), signal.SIGKILL)
            write_to_full_disk(output / name)
        if skipped is None or skipped not in name:
            (output / name).write_bytes(content)


def is_killed() -> bool:
    """STANDIN_PARTIAL: killed from outside half-way."""
    return bool(os.environ.get("STANDIN_PARTIAL"))


def fills_disk() -> bool:
    """STANDIN_FILL_DISK: the disk is full half-way."""
    return bool(os.environ.get("STANDIN_FILL_DISK"))


def write_to_full_disk(path: Path) -> None:
    """Fail as a write to a full disk does: /dev/full where there is one, else the same error made by hand."""
    if Path("/dev/full").exists():
        with open("/dev/full", "wb", buffering=0) as stream:
            stream.write(b"\0")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


# --- outputs --------------------------------------------------------------------------------------------------------


def plan_checkpoint(options: argparse.Namespace, script: str) -> dict[str, bytes]:
    """Files of a converted checkpoint: one safetensors file per rank of tp x pp, and `config.json`."""
    source = json.loads((Path(options.model_dir) / "config.json").read_text())
    tensor_parallel, pipeline_parallel = options.tp_size, getattr(options, "pp_size", 1)
    if source["num_attention_heads"] % tensor_parallel:
        raise AssertionError("num_attention_heads must be divisible by tp_size")
    if script == "eagle" and pipeline_parallel != 1:
        raise AssertionError("EAGLE does not support pipeline parallelism")
    if script == "eagle":
        require_eagle_tensors(Path(options.eagle_model_dir))
    config = pretrained_config(source, options, tensor_parallel, pipeline_parallel)
    config.update(head_config(config, options, script))
    world_size = tensor_parallel * pipeline_parallel
    files = {f"rank{rank}.safetensors": tiny_safetensors(config["dtype"], rank) for rank in range(world_size)}
    return {"config.json": json_bytes(config), **files}


def require_eagle_tensors(folder: Path) -> None:
    """Fail over tensors of the head that upstream reads unconditionally: tensorrt_llm/models/eagle/weight.py@535c9cc6
    (convert_hf_llama, load_eagle_hf; there from a pickle, here from safetensors files)."""
    names: set[str] = set()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as stream:
            (size,) = struct.unpack("<Q", stream.read(8))
            names |= json.loads(stream.read(size)).keys()
    bare = {name.removeprefix("model.") for name in names}
    for name in ("embed_tokens.weight", "fc.weight", "fc.bias"):
        if name not in bare:
            raise KeyError(name)


def pretrained_config(
    source: dict[str, Any], options: argparse.Namespace, tensor_parallel: int, pipeline_parallel: int
) -> dict[str, Any]:
    """`PretrainedConfig.to_dict` of a Hugging Face config; `--dtype auto` turns float32 into float16."""
    dtype = options.dtype
    if dtype == "auto":
        dtype = source.get("torch_dtype") or source.get("dtype") or "float16"
        dtype = "float16" if dtype == "float32" else dtype
    heads = source["num_attention_heads"]
    return {
        "architecture": source["architectures"][0],
        "dtype": dtype,
        "vocab_size": source["vocab_size"],
        "hidden_size": source["hidden_size"],
        "num_hidden_layers": source["num_hidden_layers"],
        "num_attention_heads": heads,
        "hidden_act": source.get("hidden_act", "silu"),
        "logits_dtype": "float32",
        "norm_epsilon": source.get("rms_norm_eps", 1e-5),
        "runtime_defaults": None,
        "position_embedding_type": "rope_gpt_neox",
        "num_key_value_heads": source.get("num_key_value_heads", heads),
        "intermediate_size": source["intermediate_size"],
        "max_position_embeddings": source.get("max_position_embeddings"),
        "mapping": mapping(tensor_parallel, pipeline_parallel, options),
        "quantization": quantization(source, options),
        "use_parallel_embedding": getattr(options, "use_parallel_embedding", False),
        "embedding_sharding_dim": getattr(options, "embedding_sharding_dim", 0),
        "head_size": source.get("head_dim") or source["hidden_size"] // heads,
        "qk_layernorm": False,
        "rotary_base": source.get("rope_theta", 10000.0),
    }


def mapping(tensor_parallel: int, pipeline_parallel: int, options: argparse.Namespace) -> dict[str, Any]:
    """`Mapping.to_dict` without the rank: tensorrt_llm/mapping.py@05ebebb2c1d34320db9019f2b7ace6009a67e997.

    -1, the default of both expert flags, means all of the layer's GPUs for the tensors and none for the experts.
    """
    moe_tensor, moe_expert = getattr(options, "moe_tp_size", -1), getattr(options, "moe_ep_size", -1)
    return {
        "world_size": tensor_parallel * pipeline_parallel,
        "gpus_per_node": 8,
        "cp_size": 1,
        "tp_size": tensor_parallel,
        "pp_size": pipeline_parallel,
        "moe_tp_size": tensor_parallel // max(moe_expert, 1) if moe_tensor == -1 else moe_tensor,
        "moe_cluster_size": 1,
        "moe_ep_size": max(moe_expert, 1),
        "attn_tp_size": tensor_parallel,
        "attn_cp_size": 1,
        "auto_parallel": False,
    }


def quantization(source: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """`QuantConfig.to_dict`, its two names upper case."""
    given = vars(options)
    is_fp8 = given.get("use_fp8") or given.get("qformat") == "fp8"
    is_fp8 = is_fp8 or source.get("quantization_config", {}).get("quant_method") in ("fp8", "modelopt")
    is_fp8_cache = given.get("fp8_kv_cache") or given.get("kv_cache_dtype") == "fp8"
    return {
        "quant_algo": "FP8" if is_fp8 else None,
        "kv_cache_quant_algo": "FP8" if is_fp8_cache else None,
        "group_size": 128,
        "smoothquant_val": 0.5,
        "clamp_val": None,
        "use_meta_recipe": False,
        "has_zero_point": False,
        "pre_quant_scale": False,
        "exclude_modules": None,
    }


def head_config(config: dict[str, Any], options: argparse.Namespace, script: str) -> dict[str, Any]:
    """What a speculation head adds to the config of its target."""
    if script == "medusa":
        return {
            "architecture": "MedusaForCausalLM",
            "num_medusa_heads": options.num_medusa_heads,
            "num_medusa_layers": options.num_medusa_layers,
            "max_draft_len": options.max_medusa_token_len,
        }
    if script == "eagle":
        return {
            "architecture": "EagleForCausalLM",
            "max_draft_len": options.max_draft_len,
            "num_eagle_layers": options.num_eagle_layers,
            "max_non_leaves_per_layer": options.max_non_leaves_per_layer,
            "eagle_net_config": {**config, "num_hidden_layers": 1},
        }
    if script == "redrafter":
        return {
            "architecture": "ReDrafterForCausalLM",
            "base_model_architecture": config["architecture"],
            "redrafter_num_beams": options.redrafter_num_beams,
            "redrafter_draft_len_per_beam": options.redrafter_draft_len_per_beam,
            "redrafter_greedy_search": not options.redrafter_no_greedy_search,
        }
    return {}


def plan_engine(options: argparse.Namespace, version: str) -> dict[str, bytes]:
    """Files of an engine: one per rank, and `config.json` with what was built; the timing cache lands where it runs."""
    if options.gather_context_logits and options.max_draft_len > 0:
        raise RuntimeError("Gather context logits is not support with draft len > 0. ")
    if options.multiple_profiles == "enable" and options.opt_num_tokens is not None:
        raise RuntimeError("multiple_profiles is enabled, while opt_num_tokens is set. ")
    checkpoint = Path(options.checkpoint_dir)
    config = json.loads((checkpoint / "config.json").read_text())
    ranks = range(config["mapping"]["world_size"])
    for rank in ranks:
        if not (checkpoint / f"rank{rank}.safetensors").is_file():
            raise AssertionError
    Path(options.output_timing_cache).write_bytes(b"timing cache")
    engine = {"version": version, "pretrained_config": config, "build_config": build_config(options, config)}
    files = {f"rank{rank}.engine": f"engine of rank {rank}".encode() for rank in ranks}
    return {"config.json": json_bytes(engine), **files}


def build_config(options: argparse.Namespace, config: dict[str, Any]) -> dict[str, Any]:
    """`BuildConfig.to_dict` after `build` has changed it: the head's draft length is taken over, and room for drafts is
    added to `max_seq_len` and, where needed, to `max_num_tokens`."""
    mode = options.speculative_decoding_mode
    max_draft_len = options.max_draft_len or config.get("max_draft_len", 0)
    if "redrafter_num_beams" in config:
        max_draft_len = config["redrafter_num_beams"] * config["redrafter_draft_len_per_beam"]
        mode = "explicit_draft_tokens"
    max_seq_len = options.max_seq_len or config["max_position_embeddings"] or 2048
    max_input_len = min(options.max_input_len, max_seq_len)
    max_num_tokens = options.max_num_tokens
    if mode is not None:
        max_seq_len += max_draft_len
        max_num_tokens = max(max_num_tokens, options.max_batch_size * (max_draft_len + 1))
    if mode == "eagle":
        max_seq_len += config["num_eagle_layers"]
    cache_type = options.kv_cache_type or "paged"
    return {
        "max_input_len": max_input_len,
        "max_seq_len": max_seq_len,
        "opt_batch_size": 8,
        "max_batch_size": options.max_batch_size,
        "max_beam_width": options.max_beam_width,
        "max_num_tokens": max_num_tokens,
        "opt_num_tokens": options.opt_num_tokens or options.max_batch_size * options.max_beam_width,
        "max_prompt_embedding_table_size": options.max_prompt_embedding_table_size,
        "kv_cache_type": cache_type.upper(),
        "gather_context_logits": options.gather_context_logits,
        "gather_generation_logits": options.gather_generation_logits,
        "strongly_typed": True,
        "profiling_verbosity": options.profiling_verbosity,
        "max_draft_len": max_draft_len,
        "speculative_decoding_mode": DECODING_MODES[mode],
        "input_timing_cache": options.input_timing_cache,
        "output_timing_cache": options.output_timing_cache,
        "lora_config": {"lora_dir": [], "lora_ckpt_source": options.lora_ckpt_source},
        "plugin_config": plugin_config(options, config, is_paged=cache_type == "paged"),
        "max_encoder_input_len": options.max_encoder_input_len,
    }


def plugin_config(options: argparse.Namespace, config: dict[str, Any], *, is_paged: bool) -> dict[str, Any]:
    """Plugin flags as `PluginConfig` keeps them: enable and disable become booleans, `disable` of a dtype None."""
    given = vars(options)
    plugins = {name: value for name, value in given.items() if name.endswith("_plugin")}
    values = {name: None if value == "disable" else value for name, value in plugins.items()}
    switches = ("context_fmha", "remove_input_padding", "use_paged_context_fmha", "use_fp8_context_fmha")
    is_fp8 = config["quantization"]["quant_algo"] == "FP8"
    booleans = {name: given[name] == "enable" for name in switches}
    booleans["use_fp8_context_fmha"] &= is_fp8  # without FP8 `build` switches it off
    return {
        "dtype": config["dtype"],
        **values,
        **booleans,
        "paged_kv_cache": is_paged,
        "tokens_per_block": options.tokens_per_block,
        "multiple_profiles": options.multiple_profiles == "enable",
    }


def tiny_safetensors(dtype: str, rank: int) -> bytes:
    """A true safetensors file with one tensor of four values."""
    num_bytes = 16 if dtype == "float32" else 8
    entry = {"dtype": DTYPES[dtype], "shape": [4], "data_offsets": [0, num_bytes]}
    header = json.dumps({"transformer.ln_f.weight": entry}).encode()
    return struct.pack("<Q", len(header)) + header + bytes([rank]) * num_bytes


def json_bytes(value: object) -> bytes:
    """Indented as upstream writes its configs."""
    return json.dumps(value, indent=4).encode()
