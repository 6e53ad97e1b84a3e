"""A graph of three steps over the stand-ins, and a process that runs it and may be killed.

process = start_runner(standins, checkpoints, work_root); process.kill()
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path

from helpers.trtllm_standins import Standins
from specdeploy.builders import step_process
from specdeploy.builders.step_graph import (
    Argument,
    GraphSource,
    GraphStep,
    OutputPath,
    SourcePath,
    StepGraph,
    StepOutput,
    ToolPath,
)
from specdeploy.builders.step_runner import run_graph

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "torch_dtype": "bfloat16",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
CONVERT_TARGET, CONVERT_DRAFT, BUILD_TARGET = "convert target", "convert draft", "build target"
STEPS = (CONVERT_TARGET, CONVERT_DRAFT, BUILD_TARGET)
# What only the command of each step holds (STANDIN_ONLY).
TELLS = {CONVERT_TARGET: "target_model", CONVERT_DRAFT: "draft_model", BUILD_TARGET: "trtllm-build"}


def write_models(folder: Path) -> None:
    """`folder`/target_model and draft_model with a config each."""
    for name in ("target_model", "draft_model"):
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(json.dumps(LLAMA))


def three_steps(
    standins: Standins,
    models: Path,
    *,
    max_batch_size: int = 8,
    versions: Mapping[str, str] | None = None,
    num_bytes: int | None = None,
) -> StepGraph:
    """Two conversions and, from the first of them, an engine of two ranks."""
    build: tuple[Argument, ...] = (
        ToolPath("trtllm-build", standins.trtllm_build),
        *("--checkpoint_dir", StepOutput(CONVERT_TARGET, "checkpoint")),
        *("--output_dir", OutputPath("engine")),
        *("--max_batch_size", str(max_batch_size)),
    )
    steps = (
        _convert(CONVERT_TARGET, standins, "target", num_bytes),
        _convert(CONVERT_DRAFT, standins, "draft", num_bytes),
        GraphStep(BUILD_TARGET, build, ("engine",), ("engine/rank1.engine",), num_bytes=num_bytes, needs_gpu=True),
    )
    sources = {role: GraphSource(models / f"{role}_model", f"digest of {role}") for role in ("target", "draft")}
    return StepGraph(steps, sources, versions or {"tensorrt_llm": "1.2.1"})


def _convert(name: str, standins: Standins, role: str, num_bytes: int | None) -> GraphStep:
    argv: tuple[Argument, ...] = (
        ToolPath("convert llama", standins.examples_root / "models/core/llama/convert_checkpoint.py"),
        *("--model_dir", SourcePath(role)),
        *("--output_dir", OutputPath("checkpoint")),
        *("--tp_size", "2"),
    )
    return GraphStep(name, argv, ("checkpoint",), ("checkpoint/rank*.safetensors",), num_bytes=num_bytes)


def start_runner(
    standins: Standins, models: Path, work_root: Path, variables: Mapping[str, str]
) -> subprocess.Popen[str]:
    """A process that runs the three steps and prints the finished folders; errors go to its standard error.

    It can be interrupted even where this process cannot: a shell starts what runs in the background deaf to SIGINT.
    """
    # The two source roots first: the process is no pytest, which would have set them.
    roots = [str(Path(__file__).parents[1]), str(Path(step_process.__file__).parents[2])]
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        f"sys.path[:0] = {roots!r}\n"
        "from pathlib import Path\n"
        "from helpers.step_graphs import run_three_steps\n"
        f"run_three_steps(Path({str(standins.trtllm_build)!r}), Path({str(models)!r}), Path({str(work_root)!r}))\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **standins.environment, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until_ended(runner: subprocess.Popen[str], timeout_s: float = 60.0) -> tuple[str, str]:
    """Output and errors of a runner that is about to end; one that does not is killed and fails the test."""
    try:
        return runner.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        runner.kill()
        runner.communicate()
        raise


def run_three_steps(trtllm_build: Path, models: Path, work_root: Path) -> None:
    """What the runner process does."""
    root = trtllm_build.parents[1]
    standins = Standins(trtllm_build, root / "examples", root / "events.txt")
    step_process.GRACE_S = 0.1
    folders = run_graph(three_steps(standins, models), work_root, report=lambda line: None)
    sys.stdout.write(json.dumps({name: str(folder) for name, folder in folders.items()}))


def wait_for(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Return once `condition` holds; the timeout only bounds a broken test."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(condition)
        time.sleep(0.005)


def contents(folders: Mapping[str, Path]) -> dict[str, str]:
    """SHA-256 of every output file by step and path; `step.json` holds times and paths and is left out."""
    return {
        f"{name}/{path.relative_to(folder)}": sha256(path.read_bytes()).hexdigest()
        for name, folder in folders.items()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "step.json"
    }
