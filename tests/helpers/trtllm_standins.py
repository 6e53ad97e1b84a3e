"""Programs that stand in for TensorRT-LLM's: same flags, same kind of output, no GPU.

standins = write_standins(tmp_path / "trtllm", "1.2.1")
subprocess.run([standins.trtllm_build, "--checkpoint_dir", ...], env={**os.environ, "STANDIN_FAIL": "oom"})

Their flags come from the contracts (`specdeploy.trtllm.facts`), so a command they accept is one the contracts allow:
anything else exits with code 2 and argparse's message. Environment variables make them misbehave:

    STANDIN_ONLY        only commands holding this text misbehave (program name or arguments)
    STANDIN_EVENTS      file that gets a line `start|end <program> <pid> <output_dir>`, `hang <pid> <worker pids>`
    STANDIN_GATE        wait until this file exists
    STANDIN_SLEEP_S     wait that long
    STANDIN_HANG        never end, deaf to SIGTERM, with a worker of the group and one in a session of its own
    STANDIN_FAIL        oom, keyerror, quantization, tp, module, host_oom (killed), silent (exit code 3)
    STANDIN_PARTIAL     killed half-way through its outputs
    STANDIN_FILL_DISK   the disk is full half-way through its outputs
    STANDIN_SKIP        leave out files whose name holds this text, and exit 0
"""

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from packaging.version import Version

from specdeploy.trtllm.facts import ConvertScript, Flag, build_flags, convert_flags

# Flags of examples/quantization/quantize.py as read at TensorRT-LLM @059c97c10c12e948e91676c8db3c9f137b0a2389; the
# contracts do not hold them. Those for NeMo checkpoints are left out.
QUANTIZE_FLAGS: tuple[Flag, ...] = tuple(
    Flag(f"--{name}", type_name, default, choices, (), False, "")
    for name, type_name, default, choices in (
        ("model_dir", "str", None, None),
        ("device", "str", "cuda", ("cuda", "cpu")),
        ("device_map", "str", "auto", ("auto", "sequential", "cpu", "gpu")),
        ("calib_dataset", "str", "cnn_dailymail", None),
        ("dtype", "str", "auto", ("auto", "float16", "bfloat16", "float32")),
        (
            "qformat",
            "str",
            "full_prec",
            ("nvfp4", "fp8", "int8_sq", "int4_awq", "w4a8_awq", "int8_wo", "int4_wo", "full_prec"),
        ),
        ("seed", "int", 1234, None),
        ("tokenizer_max_seq_length", "int", 2048, None),
        ("batch_size", "int", 1, None),
        ("calib_size", "int", 512, None),
        ("calib_max_seq_length", "int", 512, None),
        ("output_dir", "str", "exported_model", None),
        ("tp_size", "int", 1, None),
        ("pp_size", "int", 1, None),
        ("cp_size", "int", 1, None),
        ("awq_block_size", "int", 128, None),
        ("kv_cache_dtype", "str", None, ("int8", "fp8")),
        ("quantize_lm_head", "flag", False, None),
        ("num_medusa_heads", "int", 4, None),
        ("num_medusa_layers", "int", 1, None),
        ("max_draft_len", "int", 63, None),
        ("medusa_hidden_act", "str", "silu", None),
        ("medusa_model_dir", "str", None, None),
        ("quant_medusa_head", "flag", False, None),
        ("autoq_format", "str", None, None),
        ("auto_quantize_bits", "float", None, None),
        ("export_format", "str", "tensorrt_llm", ("tensorrt_llm", "hf")),
    )
)
# Folders below the examples from about 0.18 on; those of the heads never moved.
SCRIPT_FOLDERS = {
    ConvertScript.LLAMA: "models/core/llama",
    ConvertScript.QWEN: "models/core/qwen",
    ConvertScript.MEDUSA: "medusa",
    ConvertScript.EAGLE: "eagle",
    ConvertScript.REDRAFTER: "redrafter",
}


@dataclass(frozen=True, slots=True)
class Standins:
    """Where the programs are. `examples_root` is laid out as the container's /app/examples; `environment` holds what
    they need in theirs (nothing besides the event file)."""

    trtllm_build: Path
    examples_root: Path
    events: Path
    environment: dict[str, str] = field(default_factory=dict)

    def started(self) -> list[str]:
        """Programs that were started, in order: `trtllm-build`, `convert_checkpoint:llama`, `quantize`."""
        return [line.split()[1] for line in self.lines() if line.startswith("start ")]

    def lines(self) -> list[str]:
        """All events so far."""
        return self.events.read_text().splitlines() if self.events.exists() else []


def write_standins(folder: Path, version: str) -> Standins:
    """Write all programs below `folder`, as TensorRT-LLM `version` has them."""
    trtllm_build = folder / "bin" / "trtllm-build"
    examples_root = folder / "examples"
    _write_program(trtllm_build, "trtllm-build", version, build_flags(Version(version)).values())
    for script, place in SCRIPT_FOLDERS.items():
        path = examples_root / place / "convert_checkpoint.py"
        _write_program(path, f"convert_checkpoint:{script.value}", version, convert_flags(script).values())
    _write_program(examples_root / "quantization" / "quantize.py", "quantize", version, QUANTIZE_FLAGS)
    events = folder / "events.txt"
    return Standins(trtllm_build, examples_root, events, {"STANDIN_EVENTS": str(events)})


def _write_program(path: Path, program: str, version: str, flags: Iterable[Flag]) -> None:
    unique = {flag.name: asdict(flag) for flag in flags if flag.type != "absent"}
    # -I and -S: without site-packages, which take most of the time of so small a program.
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"#!{sys.executable} -IS\n"
        "import json, sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from trtllm_standin_program import main\n"
        f"sys.exit(main({program!r}, {version!r}, json.loads({json.dumps(list(unique.values()))!r})))\n"
    )
    path.chmod(0o755)
