"""Asking arms for generations, in turns, and keeping what they say."""

import json
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arm_process import Answer, ArmProcess, ArmSpec
from machine import machine_facts
from records import Record, RecordFile, read_records, read_settings
from traffic import TokenPrompt, read_traffic

_MIN_TOKENS = 16  # an answer shorter than this says little about decoding


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt and the number of tokens every arm generates for it."""

    prompt: TokenPrompt
    num_tokens: int


class Session:
    """One run: its output folder, its settings, what it was measured on and which arms could not run."""

    def __init__(self, output: Path, num_threads: int, settings: dict[str, Any]) -> None:
        self.output, self.num_threads = output, num_threads
        self.facts: dict[str, Any] = machine_facts(num_threads)
        self.skipped: dict[str, str] = {}
        self.settings = {**settings, "threads": num_threads, "processor": self.facts["processor"]}
        self._takes_any = False
        output.mkdir(parents=True, exist_ok=True)

    def file(self, name: str) -> RecordFile:
        """The measurements called `name`."""
        return RecordFile(self.output, name, self.settings)

    def recorded(self, name: str) -> list[Record]:
        """What was measured under `name` with these settings; with any settings after `recall`."""
        path = self.output / f"{name}.jsonl"
        if not path.is_file() or not (self._takes_any or read_settings(path) == self.settings):
            return []
        return read_records(path)

    def start(self, stack: ExitStack, specs: Mapping[str, ArmSpec]) -> dict[str, ArmProcess]:
        """The arms that can run here, loaded one after another. Raises ArmError."""
        arms: dict[str, ArmProcess] = {}
        for name, spec in specs.items():
            say(f"loading {name}, {spec.options['dtype']}")
            arm = ArmProcess(spec, num_threads=self.num_threads, log_folder=self.output / "logs")
            stack.enter_context(arm)
            if arm.skipped is None:
                arms[name] = arm
            else:
                say(f"  skipped: {arm.skipped}")
                self.skipped[name] = arm.skipped
        return arms

    def save(self) -> None:
        """Keep the facts beside the measurements, for a report that is made later."""
        content = {"machine": self.facts, "skipped": self.skipped}
        (self.output / "machine.json").write_text(json.dumps(content), encoding="utf-8")

    def recall(self) -> None:
        """Report an earlier run: its facts, and measurements of any settings."""
        self._takes_any = True
        path = self.output / "machine.json"
        if path.is_file():
            content = json.loads(path.read_text(encoding="utf-8"))
            self.facts, self.skipped = content["machine"], content["skipped"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Which prompts a run asks, and how often all of a segment at once; of the arms `batch_arms` do that."""

    segments: Sequence[str]
    num_prompts: int
    max_tokens: int
    seed: int
    batch_arms: Sequence[str] = ()
    batch_repeats: int = 0


def measure(session: Session, file: RecordFile, specs: Mapping[str, ArmSpec], target: Path, plan: Plan) -> None:
    """Load the arms and fill the file. Raises ArmError when an arm fails."""
    prompts = read_traffic(target, plan.segments)
    with ExitStack() as stack:
        arms = session.start(stack, specs)
        session.save()
        for segment in plan.segments:
            choice = [prompt for prompt in prompts if prompt.segment == segment]
            jobs = choose_jobs(
                arms["ours-plain"], choice, target, num_prompts=plan.num_prompts, max_tokens=plan.max_tokens
            )
            measure_segment(file, arms, jobs, random.Random(plan.seed))  # noqa: S311 - an order, no secret
            at_once = {name: arms[name] for name in plan.batch_arms if name in arms}
            for repeat in range(plan.batch_repeats if at_once else 0):
                measure_batch(file, at_once, jobs, repeat)


def choose_jobs(
    plain: ArmProcess, prompts: Iterable[TokenPrompt], target: Path, *, num_prompts: int, max_tokens: int
) -> list[Job]:
    """The first prompts of a segment whose answer is long enough, with its length up to the end token."""
    end_ids = end_token_ids(target)
    jobs: list[Job] = []
    for prompt in prompts:
        if len(jobs) == num_prompts:
            break
        answer = plain.generate([prompt.token_ids], [max_tokens], stop_ids=end_ids)
        num_tokens = len(answer.token_ids[0])
        if num_tokens >= min(_MIN_TOKENS, max_tokens):
            jobs.append(Job(prompt, num_tokens))
    return jobs


def measure_segment(file: RecordFile, arms: Mapping[str, ArmProcess], jobs: list[Job], order: random.Random) -> None:
    """Every prompt by every arm, in a new order each time."""
    for job in jobs:
        names = list(arms)
        order.shuffle(names)
        if file.has(job.prompt.prompt_id, names):
            continue
        say(f"{job.prompt.prompt_id}: {len(job.prompt.token_ids)} + {job.num_tokens} tokens")
        records = []
        for name in names:
            answer = arms[name].generate([job.prompt.token_ids], [job.num_tokens])
            records.append(record_of("single", job.prompt.prompt_id, job.prompt.segment, name, answer))
        file.add(records)


def measure_batch(file: RecordFile, arms: Mapping[str, ArmProcess], jobs: list[Job], repeat: int) -> None:
    """All prompts of a segment at once."""
    if not jobs:
        return
    segment = jobs[0].prompt.segment
    block = f"{segment}-batch-{repeat}"
    if file.has(block, arms):
        return
    say(block)
    lengths = [job.num_tokens for job in jobs]
    prompts = [job.prompt.token_ids for job in jobs]
    names = list(arms) if repeat % 2 == 0 else list(arms)[::-1]
    file.add([record_of("batch", block, segment, name, arms[name].generate(prompts, lengths)) for name in names])


def record_of(kind: str, block: str, segment: str, arm: str, answer: Answer) -> Record:
    """What is kept of an answer."""
    return Record(
        kind=kind,
        block=block,
        segment=segment,
        arm=arm,
        seconds=answer.seconds,
        first_token_seconds=answer.first_token_seconds,
        num_tokens=sum(map(len, answer.token_ids)),
        num_steps=answer.num_steps,
        num_draft_tokens=answer.num_draft_tokens,
        num_accepted_tokens=answer.num_accepted_tokens,
        token_ids=answer.token_ids,
    )


def end_token_ids(target: Path) -> tuple[int, ...]:
    """The ids that end an answer."""
    config = json.loads((target / "config.json").read_text())
    ids = config.get("eos_token_id")
    return () if ids is None else tuple(ids) if isinstance(ids, list) else (ids,)


def say(text: str) -> None:
    """Progress, apart from the result."""
    print(text, file=sys.stderr, flush=True)
