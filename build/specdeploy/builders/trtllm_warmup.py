"""Warm-up of an LLM API build: do its arguments load on this machine, and does it answer with and without drafting?

    python -m specdeploy.builders.trtllm_warmup <build folder>

The LLM objects live in child processes: what the vendor's library prints goes into a log, a crash of it ends no build,
and the memory of the GPU is free again afterwards. Instances that serve beside each other are loaded beside each other,
so that a pair that does not fit is found here; with `swap` they are loaded one after the other.
"""

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from pydantic import NonNegativeFloat, NonNegativeInt, ValidationError

from specdeploy.builders.base import Report
from specdeploy.builders.step_failures import explain_failure
from specdeploy.builders.step_process import StepProcess
from specdeploy.config.schema import TensorRtLlmConfig
from specdeploy.contract import BuildCheck, ContractModel, EngineModel
from specdeploy.errors import BuildError, SpecDeployError
from specdeploy.manifest import MANIFEST_NAME, write_json_atomically
from specdeploy.trtllm.class_arguments import class_arguments

ARGUMENT_FILES: Mapping[EngineModel, str] = {
    EngineModel.TARGET: "llm_args.yaml",
    EngineModel.TARGET_PLAIN: "llm_args_plain.yaml",
}
WARMUP_NAME = "warmup.json"
PROMPT = "One, two, three, four,"
NUM_TOKENS = 8
REPORT_EVERY_S = 10.0
_POLL_S = 0.2
_LOG_TAIL_BYTES = 64 << 10
_LOGS = ".steps/logs"


class InstanceWarmup(ContractModel):
    """What one LLM object did: seconds to load it and to answer, ids of the first tokens."""

    instance: EngineModel
    load_s: NonNegativeFloat
    generate_s: NonNegativeFloat
    token_ids: tuple[NonNegativeInt, ...]


class LoadedInstances(ContractModel):
    """What one child process writes: the instances it held at the same time."""

    instances: tuple[InstanceWarmup, ...]


class WarmupRecord(ContractModel):
    """`warmup.json`: greedy answers to one prompt, with drafting (target) and without (target_plain)."""

    schema_version: int = 1
    prompt: str = PROMPT
    max_tokens: int = NUM_TOKENS
    is_beside: bool
    instances: tuple[InstanceWarmup, ...]
    checks: tuple[BuildCheck, ...]


def reason_without_warmup(section: TensorRtLlmConfig) -> str | None:
    """Why no single machine can load what this deployment serves, or None when one can."""
    if section.num_nodes > 1:
        return f"not run: the deployment spans {section.num_nodes} nodes and a build runs on one"
    return None


def run_warmup(folder: Path, log_folder: Path, report: Report, *, label: str | None = None) -> WarmupRecord:
    """Load what `folder` serves, in child processes, and let each instance answer.

    Logs go to `log_folder`, named after `label` (default: the folder's name). Raises `BuildError` with the cause, what
    to do and the name of the log.
    """
    if not (folder / ARGUMENT_FILES[EngineModel.TARGET]).is_file():
        raise BuildError(
            f"{folder}: no build of lane trtllm_llmapi is here: {ARGUMENT_FILES[EngineModel.TARGET]} is missing. "
            "Give the folder of one, or make it: make engines DEPLOYMENT=<name>"
        )
    is_beside = (folder / ARGUMENT_FILES[EngineModel.TARGET_PLAIN]).is_file()
    both = (EngineModel.TARGET, EngineModel.TARGET_PLAIN)
    groups: Sequence[tuple[EngineModel, ...]] = (both,) if is_beside else tuple((one,) for one in both)
    loaded: list[InstanceWarmup] = []
    for group in groups:
        log = log_folder / f"warmup-{label or folder.name}-{'-'.join(group)}.log"
        loaded += _load_in_child(folder, group, log, report)
    return WarmupRecord(is_beside=is_beside, instances=tuple(loaded), checks=tuple(_judge(loaded)))


def load_arguments(folder: Path, instance: EngineModel) -> dict[str, Any]:
    """Arguments of one LLM object. Without a file of its own the plain one is the target without drafting."""
    path = folder / ARGUMENT_FILES[instance]
    if instance is EngineModel.TARGET_PLAIN and not path.is_file():
        target = load_arguments(folder, EngineModel.TARGET)
        return {name: value for name, value in target.items() if name != "speculative_config"}
    try:
        arguments = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = str(error).splitlines()[0]
        raise BuildError(f"{path}: cannot be read ({reason}). Run `make engines` again") from error
    if not isinstance(arguments, dict):
        raise BuildError(f"{path}: holds no keys and values. Run `make engines` again")
    return arguments


def _judge(instances: Sequence[InstanceWarmup]) -> list[BuildCheck]:
    """What the answers show. Different tokens are no failure here: 16-bit arithmetic may break a tie either way."""
    checks = [
        BuildCheck(
            name=f"warm-up {one.instance}",
            detail=(
                f"loaded in {one.load_s:.1f} s, {len(one.token_ids)} tokens in {one.generate_s:.2f} s: "
                f"{' '.join(map(str, one.token_ids))}"
            ),
        )
        for one in instances
    ]
    answers = {one.instance: one.token_ids for one in instances}
    drafted, plain = answers[EngineModel.TARGET], answers[EngineModel.TARGET_PLAIN]
    if drafted == plain:
        detail = f"the same {len(plain)} tokens with and without drafting"
    else:
        pairs = enumerate(zip(drafted, plain, strict=False))
        first = next((index for index, (ours, theirs) in pairs if ours != theirs), min(len(drafted), len(plain)))
        detail = (
            f"they differ from token {first + 1} on, which 16-bit arithmetic may cause; "
            "`specdeploy-client verify` judges it"
        )
    return [*checks, BuildCheck(name="warm-up with and without drafting", detail=detail)]


# --- parent side ----------------------------------------------------------------------------------------------------


def _load_in_child(
    folder: Path, instances: Sequence[EngineModel], log: Path, report: Report
) -> tuple[InstanceWarmup, ...]:
    names = " and ".join(instances)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    with tempfile.TemporaryDirectory(prefix="specdeploy-warmup-") as temporary:
        result = Path(temporary) / "result.json"
        argv = [sys.executable, "-m", "specdeploy.builders.trtllm_warmup", str(folder.resolve())]
        argv += ["--result", str(result), "--load", *instances]
        code = _watch(StepProcess(argv, {}, Path(temporary), log), names, log, report)
        if code != 0:
            raise _failure(names, code, log)
        try:
            return LoadedInstances.model_validate_json(result.read_bytes()).instances
        except (OSError, ValidationError) as error:
            raise BuildError(f"warm-up of {names}: it ended without a result ({error}). Log: {log}") from error


def _watch(process: StepProcess, names: str, log: Path, report: Report) -> int:
    """Wait for the child, reporting what it does; it is ended with its group whatever happens here."""
    started = time.monotonic()
    next_report = started + REPORT_EVERY_S
    try:
        while (code := process.poll()) is None:
            if time.monotonic() >= next_report:
                next_report += REPORT_EVERY_S
                report(f"warm-up of {names}: {time.monotonic() - started:.0f} s, {_last_line(log)}")
            time.sleep(_POLL_S)
    except BaseException:
        process.end()
        raise
    return code


def _failure(names: str, code: int, log: Path) -> BuildError:
    failure = explain_failure(_tail(log), code)
    shown = "".join(f"\n  {line}" for line in failure.lines)
    return BuildError(f"warm-up of {names}: {failure.cause}. {failure.remedy}. Log: {log}{shown}")


def _tail(log: Path) -> str:
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        return stream.read().decode("utf-8", errors="replace")


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in _tail(log).splitlines() if line.strip()]
    return lines[-1][:120] if lines else "no output yet"


# --- child side -----------------------------------------------------------------------------------------------------


def load_and_generate(folder: Path, instances: Sequence[EngineModel]) -> tuple[InstanceWarmup, ...]:
    """Load all `instances` in this process, then let each answer greedily. Imports tensorrt_llm."""
    from tensorrt_llm import LLM, SamplingParams
    from tensorrt_llm.llmapi import llm_args

    loaded: list[tuple[EngineModel, Any, float]] = []
    try:
        for instance in instances:
            started = time.monotonic()
            llm = LLM(**class_arguments(load_arguments(folder, instance), llm_args))
            loaded.append((instance, llm, time.monotonic() - started))
        return tuple(_generate(instance, llm, load_s, SamplingParams) for instance, llm, load_s in loaded)
    finally:
        for _, llm, _ in loaded:
            with suppress(Exception):  # the result counts; the process ends anyway
                llm.shutdown()


def _generate(instance: EngineModel, llm: Any, load_s: float, sampling_params: Any) -> InstanceWarmup:
    started = time.monotonic()
    # Temperature 0 is greedy in every version; no seed, no penalties: one-model drafting refuses some of them.
    answers = llm.generate([PROMPT], sampling_params(max_tokens=NUM_TOKENS, temperature=0.0))
    token_ids = tuple(int(token_id) for token_id in answers[0].outputs[0].token_ids)
    if not token_ids:
        raise BuildError(f"{instance} answered without a token")
    return InstanceWarmup(
        instance=instance, load_s=load_s, generate_s=time.monotonic() - started, token_ids=token_ids[:NUM_TOKENS]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Parent without `--load`: warm up a folder and say what was seen. Child with it: write the result file."""
    parser = argparse.ArgumentParser(prog="python -m specdeploy.builders.trtllm_warmup", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of the build, with its llm_args.yaml")
    parser.add_argument("--load", nargs="+", type=EngineModel, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.load is not None:
        return _run_child(given.folder, tuple(given.load), given.result)
    try:
        record = run_warmup(given.folder, given.folder.resolve().parent / _LOGS, _say)
    except SpecDeployError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    if not (given.folder / MANIFEST_NAME).is_file():  # a finished build never changes
        write_json_atomically(given.folder / WARMUP_NAME, record)
    _say(record.model_dump_json(indent=2))
    return 0


def _run_child(folder: Path, instances: Sequence[EngineModel], result: Path) -> int:
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        write_json_atomically(result, LoadedInstances(instances=load_and_generate(folder, instances)))
    except ValidationError as error:  # of the package's argument classes: one line for the parent to quote
        found = [f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}" for entry in error.errors()]
        sys.stderr.write(f"ValueError: {error.title} refuses {'; '.join(found)}\n")
        return 1
    return 0


def _end_with_parent(parent: int) -> None:
    """A build that was killed cannot end its child: the child ends itself and every process it started."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
