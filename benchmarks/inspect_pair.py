"""Seconds and peak memory of inspecting a pair: 405B target and 8B draft, true headers over sparse files.

    python benchmarks/inspect_pair.py [--shards 191] [--tokens 262144]

Fabricates the files under a temporary folder, then starts one fresh process per question, so that each peak is its
own. Prints a Markdown table.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "build"), str(ROOT / "tests")]


def main() -> None:
    """Fabricate, measure, print; with `--child` answer one question."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=191)
    parser.add_argument("--tokens", type=int, default=262_144)
    parser.add_argument("--child", nargs=3, metavar=("QUESTION", "TARGET", "DRAFT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        answer(arguments.child[0], Path(arguments.child[1]), Path(arguments.child[2]))
        return
    with tempfile.TemporaryDirectory(prefix="specdeploy-inspect-") as name:
        print("| question | seconds | peak RSS, MB |")
        print("|---|---|---|")
        for question, target, draft in fabricate(Path(name), arguments.shards, arguments.tokens):
            command = [sys.executable, __file__, "--child", question, str(target), str(draft)]
            for _ in range(3):
                print(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


def fabricate(folder: Path, num_shards: int, num_tokens: int) -> list[tuple[str, Path, Path]]:
    """The pairs to ask about."""
    from helpers import fabricated_checkpoints as fabricated

    tokenizer = fabricated.byte_level_tokenizer(128_256, num_merges=280_147)
    big, small = fabricated.LLAMA_405B, fabricated.LLAMA_8B
    target = fabricated.write_checkpoint(
        folder / "405b",
        fabricated.llama_config(big),
        fabricated.llama_tensors(big),
        num_shards=num_shards,
        tokenizer=tokenizer,
    )
    draft = fabricated.write_checkpoint(
        folder / "8b",
        fabricated.llama_config(small),
        fabricated.llama_tensors(small),
        num_shards=4,
        tokenizer=tokenizer,
    )
    for name in ("first", "second"):
        (folder / name).mkdir()
        large = fabricated.byte_level_tokenizer(num_tokens, num_merges=515_000)
        (folder / name / "tokenizer.json").write_text(json.dumps(large, ensure_ascii=False))
    return [("pair", target, draft), ("tokenizers", folder / "first", folder / "second")]


def answer(question: str, target: Path, draft: Path) -> None:
    """One row of the table. Imports are part of the peak, not of the seconds."""
    from specdeploy.checkpoint.info import describe_checkpoint, read_checkpoint_files
    from specdeploy.checkpoint.tokenizer import differing_ids, load_token_map

    start = time.perf_counter()
    if question == "pair":
        both = [read_checkpoint_files(folder) for folder in (target, draft)]
        infos = [describe_checkpoint(files) for files in both]
        maps = [files.tokens for files in both if files.tokens is not None]
        detail = " + ".join(f"{(info.num_parameters or 0) / 1e9:.1f}B" for info in infos)
    else:
        maps = [load_token_map(folder) for folder in (target, draft)]
        detail = " and ".join(f"{tokens.length} tokens" for tokens in maps)
    differing = differing_ids(*maps)
    seconds = time.perf_counter() - start
    # getrusage would count the parent's pages too: they are inherited until exec.
    status = Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) / 1024
    print(f"| {question}: {detail}, {len(differing)} ids differ | {seconds:.2f} | {peak:.0f} |")


if __name__ == "__main__":
    main()
