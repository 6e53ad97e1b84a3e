"""The embedded engine against transformers and against itself, on the shipped traffic: tables, verdicts, plots.

    python benchmarks/engine/bench_engine.py                      # everything: `make bench-engine`
    python benchmarks/engine/bench_engine.py --only a             # parts: a, b, c; see below
    python benchmarks/engine/bench_engine.py --report-only        # tables from what was measured before

a  plain decoding against transformers' `generate`, the step by parts, the cost of verifying
b  drafting against transformers' own drafting at batch 1; all prompts at once against one after another
c  every drafting method against plain decoding at batch 1

Each arm is a process of its own that stays loaded; for every prompt the arms take turns in a random order, and only one
computes at a time. Every arm generates the same number of tokens for a prompt: as many as our plain decoding does up to
its end, at most --max-tokens. Measurements are kept in artifacts/bench-engine and a run that was interrupted goes on.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arm_process import ArmError, ArmSpec
from arms import ASSISTANT_ARMS, LOOKUP_ARMS, NAMES, OUR_METHODS, arm_specs
from draft_folder import write_plain_draft
from folders import REPOSITORY, Folders, built_draft, built_target
from measuring import Plan, Session, measure, say
from records import digest_of
from report import (
    BATCH_GOAL,
    DRAFTED_GOAL,
    Measurements,
    Verdict,
    against_table,
    batch_table,
    machine_text,
    method_table,
    plain_table,
    speedup_plot,
    step_table,
    verdict_table,
    verdicts_as_json,
)
from traffic import SEGMENTS

PARTS = ("a", "b", "c")


def main() -> None:
    """Measure what is missing, then report."""
    arguments = parse_arguments()
    parts = set(arguments.only.split(","))
    if not parts <= set(PARTS):
        raise SystemExit(f"--only: {arguments.only}: parts are {', '.join(PARTS)}")
    target = arguments.target or built_target(arguments.deployment)
    run = Run(arguments, Folders(target, arguments.draft_model, arguments.eagle3, arguments.output / "assistant"))
    if arguments.report_only:
        run.session.recall()
    else:
        run.measure(parts)
    write_report(run)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, comma-separated")
    parser.add_argument("--deployment", default="demo", help="whose built target is measured")
    parser.add_argument("--target", type=Path, help="a checkpoint folder instead")
    parser.add_argument("--draft-model", type=Path, default=built_draft("demo-draft-model"))
    parser.add_argument("--eagle3", type=Path, default=built_draft("demo-eagle3"))
    parser.add_argument("--output", type=Path, default=REPOSITORY / "artifacts" / "bench-engine")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--segments", nargs="+", default=list(SEGMENTS))
    parser.add_argument("--prompts", type=int, default=8, help="prompts per segment, and rows of the batch")
    parser.add_argument("--plain-prompts", type=int, default=2, help="prompts per segment of part a")
    parser.add_argument("--max-tokens", type=int, default=40)
    parser.add_argument("--draft-len", type=int, default=7, help="K of n-gram and suffix drafts")
    parser.add_argument("--model-draft-len", type=int, default=3, help="K of drafts that a model or head makes")
    parser.add_argument("--policy", choices=("dynamic", "fixed"), default="dynamic", help="K by step, or always K")
    parser.add_argument("--batch-repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the order of the arms")
    parser.add_argument("--report-only", action="store_true")
    return parser.parse_args()


class Run:
    """The arms of one run and its measurements."""

    def __init__(self, arguments: argparse.Namespace, folders: Folders) -> None:
        self.arguments, self.folders = arguments, folders
        runtime = REPOSITORY / "build" / "specdeploy" / "runtime"
        drafts = [path for folder in (folders.draft_model, folders.eagle3) for path in folder.glob("*.*")]
        kept = ("max_tokens", "draft_len", "model_draft_len", "policy", "prompts", "plain_prompts", "segments")
        settings = {name: getattr(arguments, name) for name in kept}
        settings |= {"target": str(folders.target), "sources": digest_of([*runtime.rglob("*.py"), *drafts])}
        self.session = Session(arguments.output, arguments.threads, settings)

    @property
    def dtypes(self) -> list[str]:
        """bfloat16; where the processor has no matrix unit for it (AMX), float32 is shown beside it."""
        return ["bfloat16"] if self.session.facts["has_amx"] else ["bfloat16", "float32"]

    def measure(self, parts: set[str]) -> None:
        """What the parts need and is not there yet. Parts b and c share arms and prompts, so they are one."""
        if "a" in parts:
            for dtype in self.dtypes:
                self._measure_step(dtype)
                arms = {name: self._specs(dtype)[name] for name in ("ours-plain", "transformers-plain")}
                file, plan = self.session.file(f"plain-{dtype}"), self._plan(self.arguments.plain_prompts)
                measure(self.session, file, arms, self.folders.target, plan)
        if parts & {"b", "c"}:
            wanted = [*OUR_METHODS]
            if "b" in parts:
                wanted += ["transformers-plain", *LOOKUP_ARMS, *ASSISTANT_ARMS]
                self._write_assistant()
            arms = {name: self._specs("bfloat16")[name] for name in wanted}
            batch_arms = ("ours-plain", "ours-ngram") if "b" in parts else ()
            plan = self._plan(self.arguments.prompts, batch_arms)
            measure(self.session, self.session.file("methods"), arms, self.folders.target, plan)

    def step_costs(self) -> list[dict[str, Any]]:
        """What part a found about a step, one per dtype."""
        paths = [self._step_path(dtype) for dtype in self.dtypes]
        return [json.loads(path.read_text())["cost"] for path in paths if path.is_file()]

    def _plan(self, num_prompts: int, batch_arms: tuple[str, ...] = ()) -> Plan:
        options = self.arguments
        return Plan(options.segments, num_prompts, options.max_tokens, options.seed, batch_arms, options.batch_repeats)

    def _specs(self, dtype: str) -> dict[str, ArmSpec]:
        return arm_specs(
            self.folders,
            dtype,
            draft_len=self.arguments.draft_len,
            model_draft_len=self.arguments.model_draft_len,
            policy=self.arguments.policy,
            max_rows=max(8, self.arguments.prompts),
        )

    def _write_assistant(self) -> None:
        """A draft that transformers can load; without a draft model its arms say so and are skipped."""
        if any(self.folders.draft_model.glob("*.safetensors")):
            write_plain_draft(self.folders.draft_model, self.folders.target, self.folders.assistant)

    def _measure_step(self, dtype: str) -> None:
        path = self._step_path(dtype)
        settings = self.session.settings
        if path.is_file() and json.loads(path.read_text())["settings"] == settings:
            return
        say(f"one step by parts, {dtype}")
        program = Path(__file__).with_name("step_cost.py")
        command = [sys.executable, str(program), str(self.folders.target), "--dtype", dtype]
        command += ["--threads", str(self.arguments.threads)]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        path.write_text(json.dumps({"settings": settings, "cost": json.loads(answer)}))

    def _step_path(self, dtype: str) -> Path:
        return self.session.output / f"step-{dtype}.json"


def write_report(run: Run) -> None:
    """results.md, results.json and the plots, from whatever was measured."""
    session = run.session
    sections: list[str] = [machine_text(session.facts, session.skipped)]
    verdicts: list[Verdict] = []
    if costs := run.step_costs():
        table, found = step_table(costs)
        verdicts += found
        sections.append(f"## One step at batch 1, context 256, milliseconds\n\n{table}")
    plain = {dtype: Measurements(session.recorded(f"plain-{dtype}")) for dtype in run.dtypes}
    if any(measured.segments for measured in plain.values()):
        table, found = plain_table(plain, "ours-plain", "transformers-plain")
        verdicts += found
        sections.append(f"## Plain decoding against transformers' `generate`, batch 1\n\n{table}")
    methods = Measurements(session.recorded("methods"))
    if methods.segments:
        more, found = method_sections(methods)
        sections += more
        verdicts += found
        write_plots(methods, session.output)
    sections.append(f"## Goals\n\n{verdict_table(verdicts)}")
    text = "\n".join(sections)
    (session.output / "results.md").write_text(text, encoding="utf-8")
    content = {"machine": session.facts, "skipped": session.skipped, "goals": verdicts_as_json(verdicts)}
    (session.output / "results.json").write_text(json.dumps(content, indent=2), encoding="utf-8")
    print(text)
    say(f"written: {session.output / 'results.md'}")


def method_sections(methods: Measurements) -> tuple[list[str], list[Verdict]]:
    """Tables of parts b and c."""
    table = method_table(methods, _drafted(), "ours-plain")
    sections = [f"## Drafting methods against plain decoding, batch 1, bfloat16\n\n{table}"]
    pairs = {"ours-ngram": LOOKUP_ARMS, "ours-draft-model": ASSISTANT_ARMS}
    table, verdicts = against_table(methods, pairs, NAMES, DRAFTED_GOAL)
    sections.append(f"## Drafting against transformers' own, batch 1, bfloat16\n\n{table}")
    at_once = [(ours, other, False) for ours in ("ours-plain", "ours-ngram") for other in (ours, "transformers-plain")]
    table, found = batch_table(methods, at_once, NAMES, BATCH_GOAL)
    sections.append(f"## All prompts of a segment at once, bfloat16\n\n{table}")
    return sections, verdicts + found


def write_plots(methods: Measurements, output: Path) -> None:
    """Every method over plain decoding, and everything over transformers' plain decoding."""
    plots: dict[str, tuple[str, Mapping[str, str], str]] = {
        "methods.svg": ("ours-plain", _drafted(), "Times faster than plain decoding of the same engine, batch 1"),
        "transformers.svg": ("transformers-plain", NAMES, "Times faster than transformers' plain generate, batch 1"),
    }
    for name, (slower, arms, title) in plots.items():
        if any(methods.has(segment, slower) for segment in methods.segments):
            shown = {arm: arm for arm in arms if arm != slower}
            (output / name).write_text(speedup_plot(methods, shown, slower, title), encoding="utf-8")


def _drafted() -> dict[str, str]:
    return {arm: NAMES[arm] for arm in OUR_METHODS if arm != "ours-plain"}


if __name__ == "__main__":
    try:
        main()
    except ArmError as error:
        raise SystemExit(str(error)) from error
