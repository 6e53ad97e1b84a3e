"""One arm of a comparison: loads one configuration, then generates what it is asked for, one JSON line each way.

    python benchmarks/engine/arm.py ours --target FOLDER --method ngram --draft-len 4 --threads 2
    python benchmarks/engine/arm.py transformers --target FOLDER --prompt-lookup 10
    .venv-peers/bin/python benchmarks/engine/arm.py vllm --target FOLDER --prompt-lookup 4

First line out: {"facts": {...}}, or {"skip": "why"} and the end. Then per line in, {"prompts": [[ids]], "max_tokens":
[n], "stop_ids": []}, a line with the fields of arm_process.Answer. The peers' environments lack this project, so
every arm imports what it needs itself.
"""

import argparse
import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import TextIO

import torch
from arm_protocol import DTYPES, Arm, Skip

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent() -> None:
    """Die when the benchmark dies: a stopped arm would not notice that its pipe is closed."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == 1:
        raise SystemExit("the benchmark that started this arm is gone")


def load(arguments: argparse.Namespace) -> Arm:
    """The arm named on the command line. Raises Skip."""
    if arguments.kind == "ours":
        from arm_ours import OurArm

        return OurArm(arguments)
    if arguments.kind == "transformers":
        from arm_transformers import TransformersArm

        return TransformersArm(arguments)
    from arm_vllm import VllmArm

    return VllmArm(arguments)


def serve(arm: Arm, out: TextIO) -> None:
    """Answer until the parent closes the pipe."""
    for line in sys.stdin:
        question = json.loads(line)
        answer = arm.generate(question["prompts"], question["max_tokens"], frozenset(question["stop_ids"]))
        print(json.dumps(answer), file=out, flush=True)


def main() -> None:
    """Load, say so, serve."""
    end_with_parent()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("ours", "transformers", "vllm"))
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="bfloat16")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--max-rows", type=int, default=8)
    parser.add_argument("--max-seq-len", type=int, default=1024)
    parser.add_argument("--method", default="plain", help="ours: the drafting method")
    parser.add_argument("--draft-model", type=Path, help="ours: folder of the draft model")
    parser.add_argument("--eagle3", type=Path, help="ours: folder of the EAGLE-3 head")
    parser.add_argument(
        "--policy", choices=("dynamic", "fixed"), default="dynamic", help="ours: K by step, or always K"
    )
    parser.add_argument("--assistant", type=Path, help="transformers: folder of a draft model with embeddings and head")
    parser.add_argument(
        "--draft-len", type=int, default=0, help="K; 0: do not draft (ours), the default (transformers)"
    )
    parser.add_argument("--prompt-lookup", type=int, default=0, help="transformers, vLLM: n-gram drafts of this many")
    arguments = parser.parse_args()
    # What libraries print must not get between the lines.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(arguments.threads)
    try:
        arm = load(arguments)
    except Skip as reason:
        print(json.dumps({"skip": str(reason)}), file=out, flush=True)
        return
    print(json.dumps({"facts": arm.facts()}), file=out, flush=True)
    try:
        serve(arm, out)
    except Exception as error:
        print(json.dumps({"error": repr(error)}), file=out, flush=True)
        raise


if __name__ == "__main__":
    main()
