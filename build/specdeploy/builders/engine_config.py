"""A finished engine against what it was to be: its own config.json, written by `trtllm-build`, is the witness.

Layout, from tensorrt_llm/builder.py@008b2b8d (`EngineConfig.to_dict`, `Engine.save`):

    config.json     version, pretrained_config {dtype, mapping {tp_size, pp_size}, quantization {quant_algo, ...}},
                    build_config {max_batch_size, max_draft_len, speculative_decoding_mode, plugin_config {...}, ...}
    rank<i>.engine  one per GPU
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from specdeploy.checkpoint.json_text import load_json_object
from specdeploy.contract import EngineRecord
from specdeploy.errors import CheckpointError

# `SpeculativeDecodingMode` of tensorrt_llm/models/modeling_utils.py is written as the number of its flag.
MODE_NUMBERS: Mapping[str | None, int] = {
    None: 1,
    "draft_tokens_external": 2,
    "medusa": 4,
    "lookahead_decoding": 8,
    "explicit_draft_tokens": 16,
    "eagle": 32,
}
# EAGLE engines are lengthened by their layers beside the draft tokens; no tree is deeper.
_MAX_EAGLE_LAYERS = 64


def engine_config_problems(
    folder: Path, record: EngineRecord, *, version: str | None = None, expert_parallel: int | None = None
) -> list[str]:
    """Everything in which the engine in `folder` is not the one of `record`, one sentence each; empty = it is.

    `version` is the TensorRT-LLM that must have built it, `expert_parallel` the GPUs that share out its experts, None
    = any.
    """
    path = folder / "config.json"
    try:
        config = load_json_object(path)
    except CheckpointError:  # its remedy is that of a checkpoint: to fetch it again
        return [f"{path}: {'damaged: it holds no JSON object' if path.exists() else 'missing'}"]
    found = [*_config_problems(config, record, version), *_expert_problems(config, record, expert_parallel)]
    problems = [f"{path}: {problem}" for problem in found]
    for rank in range(record.tensor_parallel * record.pipeline_parallel):
        engine = folder / f"rank{rank}.engine"
        if not engine.is_file() or engine.stat().st_size == 0:
            problems.append(f"{engine}: missing or empty")
    return problems


def _config_problems(config: Mapping[str, object], record: EngineRecord, version: str | None) -> Iterator[str]:
    build, model = _section(config, "build_config"), _section(config, "pretrained_config")
    if not build or not model:
        yield "holds no build_config and pretrained_config: it is not the config.json of an engine"
        return
    if version is not None and config.get("version") != version:
        yield f"built by TensorRT-LLM {config.get('version')}, expected {version}"
    mapping = _section(model, "mapping")
    expected: dict[str, tuple[object, object]] = {
        "build_config.max_batch_size": (build.get("max_batch_size"), record.max_batch_size),
        "build_config.max_draft_len": (build.get("max_draft_len"), record.max_draft_len),
        "build_config.max_num_tokens": (build.get("max_num_tokens"), record.max_num_tokens),
        "build_config.max_beam_width": (build.get("max_beam_width"), 1),
        "pretrained_config.dtype": (model.get("dtype"), record.dtype),
        "pretrained_config.mapping.tp_size": (mapping.get("tp_size"), record.tensor_parallel),
        "pretrained_config.mapping.pp_size": (mapping.get("pp_size"), record.pipeline_parallel),
    }
    for key, (found, due) in expected.items():
        if found != due:
            yield f"{key} is {found}, expected {due}"
    yield from _mode_problems(build, record)
    yield from _length_problems(build, record)
    yield from _quantization_problems(_section(model, "quantization"), record)
    yield from _cache_problems(build)


def _expert_problems(config: Mapping[str, object], record: EngineRecord, experts: int | None) -> Iterator[str]:
    """How experts were shared out, where the config says it (`Mapping.to_dict`, tensorrt_llm/mapping.py@05ebebb2)."""
    mapping = _section(_section(config, "pretrained_config"), "mapping")
    if experts is None:
        return
    for key, due in (("moe_tp_size", record.tensor_parallel // experts), ("moe_ep_size", experts)):
        if mapping.get(key) not in (None, due):
            yield f"pretrained_config.mapping.{key} is {mapping.get(key)}, expected {due}"


def _mode_problems(build: Mapping[str, object], record: EngineRecord) -> Iterator[str]:
    """The mode is a number, or its name in some versions."""
    found, due = build.get("speculative_decoding_mode"), record.decoding
    name = due or "none"
    if found == MODE_NUMBERS.get(due) or (isinstance(found, str) and found.lower().rsplit(".", 1)[-1] == name):
        return
    yield f"build_config.speculative_decoding_mode is {found}, expected {MODE_NUMBERS.get(due)} ({name})"


def _length_problems(build: Mapping[str, object], record: EngineRecord) -> Iterator[str]:
    """trtllm-build lengthens a drafting engine by its draft tokens, EAGLE by its layers too."""
    found = build.get("max_seq_len")
    extra = record.max_draft_len + (_MAX_EAGLE_LAYERS if record.decoding == "eagle" else 0)
    if not isinstance(found, int) or not record.max_seq_len <= found <= record.max_seq_len + extra:
        upper = f" to {record.max_seq_len + extra}" if extra else ""
        yield f"build_config.max_seq_len is {found}, expected {record.max_seq_len}{upper}"


def _quantization_problems(quantization: Mapping[str, object], record: EngineRecord) -> Iterator[str]:
    algorithm, cache = (str(quantization.get(key) or "").lower() for key in ("quant_algo", "kv_cache_quant_algo"))
    is_plain, is_fp8 = record.quantization is None, record.quantization == "fp8"
    if (is_plain and algorithm) or (is_fp8 and "fp8" not in algorithm) or (not is_plain and not algorithm):
        due = record.quantization or "none"
        yield f"pretrained_config.quantization.quant_algo is {algorithm or 'none'}, expected {due}"
    if (cache == "fp8") != (record.kv_cache_dtype == "fp8"):
        due = record.kv_cache_dtype
        yield f"pretrained_config.quantization.kv_cache_quant_algo is {cache or 'none'}, expected {due}"


def _cache_problems(build: Mapping[str, object]) -> Iterator[str]:
    """Paged caches with paged context attention are what drafting and reuse of the cache stand on."""
    kind, plugins = build.get("kv_cache_type"), _section(build, "plugin_config")
    if str(kind or "").lower() != "paged":
        yield f"build_config.kv_cache_type is {kind}, expected PAGED"
    if plugins.get("use_paged_context_fmha") is not True:
        found = plugins.get("use_paged_context_fmha")
        yield f"build_config.plugin_config.use_paged_context_fmha is {found}, expected true"


def _section(config: Mapping[str, object], key: str) -> dict[str, object]:
    value = config.get(key)
    return value if isinstance(value, dict) else {}
