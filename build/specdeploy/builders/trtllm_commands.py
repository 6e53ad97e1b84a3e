"""The commands of the engine lane, per method: convert or quantise a checkpoint, then build an engine from it.

Nothing runs here. Flags follow TensorRT-LLM's own scripts (facts of `specdeploy.trtllm`); every command is compared
with the flags of its version before it becomes a step, and a difference is an error of this program, not of the user.
Where scripts lie: examples/models/core/<family>/ for plain models, examples/<method>/ for heads (TensorRT-LLM >= 0.18).

    draft_model                 target: plain convert, build draft_tokens_external; draft: plain convert, plain build
    medusa, eagle, redrafter    convert target and head together, build the mode; plain instance beside: plain as well
    lookahead                   plain convert, build lookahead_decoding
"""

from collections.abc import Mapping, Sequence

from packaging.version import Version

from specdeploy.builders.engine_limits import (
    FAMILY_OF_ARCHITECTURE,
    MEDUSA_TYPE_OF_ARCHITECTURE,
    find_unconvertible,
)
from specdeploy.builders.engine_records import EngineInputs, is_quantized_here
from specdeploy.builders.step_graph import Argument, GraphStep, OutputPath, SourcePath, StepOutput, ToolPath
from specdeploy.config.schema import TensorRtLlmConfig
from specdeploy.contract import EngineModel, EngineRecord, Method
from specdeploy.errors import BuildError, ConfigError
from specdeploy.planner.hardware import HARDWARE
from specdeploy.planner.weight_bytes import estimate_weight_bytes
from specdeploy.trtllm.facts import ConvertScript, Flag, build_flags, command_problems, convert_flags
from specdeploy.trtllm.rule import METHODS_WITH_HEAD

CHECKPOINT, ENGINE = "checkpoint", "engine"

_UNKNOWN_FAMILY = "<family>"
_UNKNOWN_TYPE = "<model type>"
UNKNOWN_FAMILY_NOTE = "the family is known once the checkpoint is on this machine"
PLACEHOLDERS = (_UNKNOWN_FAMILY, _UNKNOWN_TYPE)  # what a command holds whose checkpoint is not on this machine
QUANTIZE_SCRIPT = "examples/quantization/quantize.py"
QUANTIZE_NOTE = (
    "calibrates on 512 samples of cnn_dailymail, fetched from the model hub; the flags of quantize.py were read at "
    "c8c6df08 and may differ in this version"
)


def _quantize_flag(name: str, kind: str = "str", choices: tuple[str, ...] | None = None) -> Flag:
    return Flag(name, kind, None, choices, (), is_required=False, note="")


# NVIDIA/TensorRT-LLM examples/quantization/quantize.py@c8c6df08, only what is used here.
_QUANTIZE_FLAGS: Mapping[str, Flag] = {
    flag.name: flag
    for flag in (
        _quantize_flag("--model_dir"),
        _quantize_flag("--output_dir"),
        _quantize_flag("--dtype", choices=("auto", "float16", "bfloat16", "float32")),
        _quantize_flag("--qformat", choices=("nvfp4", "fp8", "int8_sq", "int4_awq", "w4a8_awq", "full_prec")),
        _quantize_flag("--kv_cache_dtype", choices=("int8", "fp8")),
        _quantize_flag("--calib_size", "int"),
        _quantize_flag("--tp_size", "int"),
        _quantize_flag("--pp_size", "int"),
    )
}


def plan_commands(inputs: EngineInputs, engines: tuple[EngineRecord, ...]) -> tuple[GraphStep, ...]:
    """Two steps per engine, every command compared with its flags.

    Raises `ConfigError` for an architecture that no known script converts, and `BuildError` naming flag and version
    where a command does not match the facts.
    """
    if violations := list(find_unconvertible(inputs, "")):
        raise ConfigError(violations)
    steps = []
    for engine in engines:
        convert = _convert(inputs, engine)
        steps += [convert, _build(inputs, engine, convert)]
    return tuple(steps)


def _convert(inputs: EngineInputs, engine: EngineRecord) -> GraphStep:
    if is_quantized_here(inputs, engine.model):
        return _quantize(inputs, engine)
    if engine.model is EngineModel.TARGET and inputs.method is Method.MEDUSA:
        return _convert_medusa(inputs, engine)
    if engine.model is EngineModel.TARGET and inputs.method is Method.EAGLE:
        return _convert_eagle(inputs, engine)
    if engine.model is EngineModel.TARGET and inputs.method is Method.REDRAFTER:
        return _convert_redrafter(inputs, engine)
    return _convert_plain(inputs, engine)


def _convert_plain(inputs: EngineInputs, engine: EngineRecord) -> GraphStep:
    """The family's own script. Llama's must be told that weights are fp8; it finds awq and gptq in config.json."""
    info = inputs.info_of(engine.model)
    family = None if info is None else FAMILY_OF_ARCHITECTURE[info.architecture or ""]
    script = f"models/core/{family or _UNKNOWN_FAMILY}/convert_checkpoint.py"
    argv: list[Argument] = ["--model_dir", SourcePath(_role(engine)), *_common_flags(engine)]
    argv += ["--pp_size", str(engine.pipeline_parallel)]
    argv += _expert_flags(inputs, engine)
    if family is ConvertScript.LLAMA and info is not None and info.quantization is not None:
        argv += _llama_fp8_flags(info.quantization.method.lower(), with_cache=engine.kv_cache_dtype == "fp8")
    note = "" if info is not None else UNKNOWN_FAMILY_NOTE
    flags = convert_flags(family or ConvertScript.LLAMA)
    return _convert_step(inputs, engine, script, argv, flags, note=note, needs_gpu=False)


def _expert_flags(inputs: EngineInputs, engine: EngineRecord) -> list[str]:
    """How a model with experts shares them out; the flags of Llama's, Qwen's and Medusa's script."""
    info = inputs.info_of(engine.model)
    if info is None or info.moe is None:
        return []
    experts = (inputs.section.expert_parallel or 1) if engine.model is not EngineModel.DRAFT else 1
    return ["--moe_tp_size", str(engine.tensor_parallel // experts), "--moe_ep_size", str(experts)]


def _llama_fp8_flags(method: str, *, with_cache: bool) -> list[str]:
    """Of examples/models/core/llama/convert_checkpoint.py@368f8f2a: fbgemm's scales are per row, others per tensor."""
    flags = []
    if "fbgemm_fp8" in method:
        flags.append("--use_fp8_rowwise")
    elif "fp8" in method:
        flags.append("--use_fp8")
    return [*flags, "--fp8_kv_cache"] if with_cache else flags


def _convert_medusa(inputs: EngineInputs, engine: EngineRecord) -> GraphStep:
    medusa = inputs.config.speculation.medusa
    kind = _UNKNOWN_TYPE
    if inputs.target is not None:
        kind = MEDUSA_TYPE_OF_ARCHITECTURE[inputs.target.architecture or ""]
    argv: list[Argument] = ["--model_dir", SourcePath("target"), "--medusa_model_dir", SourcePath("draft")]
    argv += [*_common_flags(engine), "--pp_size", str(engine.pipeline_parallel), "--model_type", kind]
    argv += ["--num_medusa_heads", str(medusa.num_heads), "--num_medusa_layers", str(medusa.num_layers)]
    argv += ["--max_medusa_token_len", str(engine.max_draft_len), *_expert_flags(inputs, engine)]
    script = "medusa/convert_checkpoint.py"
    return _convert_step(inputs, engine, script, argv, convert_flags(ConvertScript.MEDUSA), needs_gpu=True)


def _convert_eagle(inputs: EngineInputs, engine: EngineRecord) -> GraphStep:
    eagle = inputs.config.speculation.eagle
    argv: list[Argument] = ["--model_dir", SourcePath("target"), "--eagle_model_dir", SourcePath("draft")]
    argv += [*_common_flags(engine), "--pp_size", str(engine.pipeline_parallel)]
    argv += ["--max_draft_len", str(engine.max_draft_len), "--num_eagle_layers", str(eagle.num_layers)]
    argv += ["--max_non_leaves_per_layer", str(eagle.max_non_leaves_per_layer)]
    script = "eagle/convert_checkpoint.py"
    return _convert_step(inputs, engine, script, argv, convert_flags(ConvertScript.EAGLE), needs_gpu=True)


def _convert_redrafter(inputs: EngineInputs, engine: EngineRecord) -> GraphStep:
    redrafter = inputs.config.speculation.redrafter
    argv: list[Argument] = ["--model_dir", SourcePath("target"), "--drafter_model_dir", SourcePath("draft")]
    argv += [*_common_flags(engine), "--redrafter_num_beams", str(redrafter.num_beams)]
    argv += ["--redrafter_draft_len_per_beam", str(redrafter.draft_len_per_beam)]
    script = "redrafter/convert_checkpoint.py"
    return _convert_step(inputs, engine, script, argv, convert_flags(ConvertScript.REDRAFTER), needs_gpu=False)


def _quantize(inputs: EngineInputs, engine: EngineRecord) -> GraphStep:
    argv: list[Argument] = ["--model_dir", SourcePath(_role(engine)), "--output_dir", OutputPath(CHECKPOINT)]
    argv += ["--dtype", engine.dtype, "--qformat", "fp8", "--calib_size", "512"]
    argv += ["--tp_size", str(engine.tensor_parallel), "--pp_size", str(engine.pipeline_parallel)]
    if engine.kv_cache_dtype == "fp8":
        argv += ["--kv_cache_dtype", "fp8"]
    script = QUANTIZE_SCRIPT.removeprefix("examples/")
    return _convert_step(inputs, engine, script, argv, _QUANTIZE_FLAGS, note=QUANTIZE_NOTE, needs_gpu=True)


def _build(inputs: EngineInputs, engine: EngineRecord, convert: GraphStep) -> GraphStep:
    """`trtllm-build`. Heads carry their draft length in the converted checkpoint; it is written for the others only.

    The longest input is the whole context: a later round of drafting reads the output so far as its prompt, and the
    backend cuts drafts off silently where prompt and draft exceed it.
    """
    ranks = engine.tensor_parallel * engine.pipeline_parallel
    argv: list[Argument] = [
        "--checkpoint_dir",
        StepOutput(convert.name, CHECKPOINT),
        "--output_dir",
        OutputPath(ENGINE),
    ]
    argv += ["--max_batch_size", str(engine.max_batch_size), "--max_input_len", str(engine.max_seq_len)]
    argv += ["--max_seq_len", str(engine.max_seq_len), "--max_num_tokens", str(engine.max_num_tokens)]
    argv += ["--max_beam_width", "1", "--kv_cache_type", "paged", "--use_paged_context_fmha", "enable"]
    argv += ["--gemm_plugin", "fp8" if engine.quantization == "fp8" else engine.dtype, "--workers", str(ranks)]
    if engine.decoding is not None:
        argv += ["--speculative_decoding_mode", engine.decoding]
        if inputs.method in (Method.DRAFT_MODEL, Method.LOOKAHEAD):
            argv += ["--max_draft_len", str(engine.max_draft_len)]
    name = f"build {engine.model}"
    check_command(name, argv, build_flags(inputs.version), inputs.version)
    return GraphStep(
        name=name,
        argv=(ToolPath("trtllm-build", inputs.tools.trtllm_build), *argv),
        outputs=(ENGINE,),
        required_files=(f"{ENGINE}/config.json", *(f"{ENGINE}/rank{rank}.engine" for rank in range(ranks))),
        num_bytes=_weight_bytes(inputs, engine),
        needs_gpu=True,
        versions={"gpu": gpu_version(inputs.section)},  # converted weights are the same for every GPU
    )


def gpu_version(section: TensorRtLlmConfig) -> str:
    """The GPU that engines are compiled for, such as `h100 sm90`."""
    return f"{section.gpu} {HARDWARE[section.gpu].architecture}"


def _convert_step(
    inputs: EngineInputs,
    engine: EngineRecord,
    script: str,
    argv: list[Argument],
    flags: Mapping[str, Flag],
    *,
    needs_gpu: bool,
    note: str = "",
) -> GraphStep:
    ranks = engine.tensor_parallel * engine.pipeline_parallel
    name = f"{'quantize' if flags is _QUANTIZE_FLAGS else 'convert'} {engine.model}"
    check_command(name, argv, flags, inputs.version)
    return GraphStep(
        name=name,
        argv=(*inputs.tools.script(script), *argv),
        outputs=(CHECKPOINT,),
        required_files=(
            f"{CHECKPOINT}/config.json",
            *(f"{CHECKPOINT}/rank{rank}.safetensors" for rank in range(ranks)),
        ),
        num_bytes=_weight_bytes(inputs, engine),
        needs_gpu=needs_gpu,
        note=note,
    )


def _common_flags(engine: EngineRecord) -> list[Argument]:
    ranks = str(engine.tensor_parallel * engine.pipeline_parallel)
    tensor = str(engine.tensor_parallel)
    return ["--output_dir", OutputPath(CHECKPOINT), "--dtype", engine.dtype, "--tp_size", tensor, "--workers", ranks]


def _role(engine: EngineRecord) -> str:
    return "draft" if engine.model is EngineModel.DRAFT else "target"


def _weight_bytes(inputs: EngineInputs, engine: EngineRecord) -> int | None:
    """Bytes of all weights of an engine over its ranks, its head included; None where the files do not say."""
    info = inputs.info_of(engine.model)
    if info is None:
        return None
    is_quantized = is_quantized_here(inputs, engine.model)
    num_bytes = estimate_weight_bytes(info, inputs.dtype, is_fp8_quantized=is_quantized)
    if engine.model is EngineModel.TARGET and inputs.method in METHODS_WITH_HEAD:
        head = None if inputs.draft is None else inputs.draft.num_bytes
        return None if num_bytes is None or head is None else num_bytes + head
    return num_bytes


def check_command(name: str, argv: Sequence[Argument], flags: Mapping[str, Flag], version: Version) -> None:
    """Compare the arguments of a command with its flags: references count as a value, placeholders as any.

    Raises `BuildError` naming step, flag and version with everything that differs.
    """
    texts = [argument if isinstance(argument, str) else "path" for argument in argv]
    for index, text in enumerate(texts):
        flag = flags.get(texts[index - 1]) if index and text.startswith("<") else None
        if flag is not None and flag.choices:
            texts[index] = flag.choices[0]
    if problems := command_problems(texts, flags):
        raise BuildError(f"step {name}: the command does not match TensorRT-LLM {version}: {'; '.join(problems)}")
