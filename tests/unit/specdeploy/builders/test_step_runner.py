"""Steps run once, are kept, survive kills, never leave anything half there: all with real child processes."""

import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from helpers.step_graphs import (
    BUILD_TARGET,
    CONVERT_DRAFT,
    CONVERT_TARGET,
    STEPS,
    TELLS,
    contents,
    start_runner,
    three_steps,
    wait_for,
    wait_until_ended,
    write_models,
)
from helpers.trtllm_standins import Standins, write_standins
from specdeploy.builders import step_process, step_runner
from specdeploy.builders.step_graph import GraphSource, GraphStep, OutputPath, StepGraph, ToolPath
from specdeploy.builders.step_runner import Host, prune_steps, run_graph
from specdeploy.builders.step_store import GPU_LOCK, StepRecord, StepStore
from specdeploy.errors import BuildError


def ignore(_line: str) -> None:
    """Reports of a build that nobody reads."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Standins:
    """Written once: they are only run."""
    return write_standins(tmp_path_factory.mktemp("trtllm"), "1.2.1")


@pytest.fixture
def standins(programs: Standins, monkeypatch: pytest.MonkeyPatch) -> Iterator[Standins]:
    """The programs with an event file of this test's own, and little patience."""
    programs.events.unlink(missing_ok=True)
    monkeypatch.setenv("STANDIN_EVENTS", str(programs.events))
    monkeypatch.setattr(step_process, "GRACE_S", 0.1)
    yield programs
    for pid in hanging(programs):
        if psutil.pid_exists(pid):  # a failing test must not leave them to others
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    write_models(tmp_path / "models")
    return tmp_path / "models"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return tmp_path / "engines" / ".steps"


def hanging(standins: Standins) -> list[int]:
    """Processes of stand-ins that hang: the command and its two workers."""
    return [int(pid) for line in standins.lines() if line.startswith("hang ") for pid in line.split()[1:]]


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def leftovers(work: Path) -> list[str]:
    return sorted(path.name for path in work.glob("*.partial-*"))


def failing_run(graph: StepGraph, work: Path) -> str:
    with pytest.raises(BuildError) as caught:
        run_graph(graph, work, report=ignore)
    assert leftovers(work) == []
    return str(caught.value)


# --- results and reuse ----------------------------------------------------------------------------------------------


def test_every_step_ends_in_its_own_folder(standins: Standins, models: Path, work: Path) -> None:
    lines: list[str] = []
    graph = three_steps(standins, models)

    folders = run_graph(graph, work, report=lines.append)

    assert folders == {name: work / key for name, key in graph.keys().items()}
    assert standins.started() == ["convert_checkpoint:llama", "convert_checkpoint:llama", "trtllm-build"]
    engine = folders[BUILD_TARGET] / "engine"
    assert sorted(path.name for path in engine.iterdir()) == ["config.json", "rank0.engine", "rank1.engine"]
    assert json.loads((engine / "config.json").read_text())["build_config"]["max_batch_size"] == 8
    record = StepRecord.model_validate_json((folders[BUILD_TARGET] / "step.json").read_text())
    assert (record.name, record.key) == (BUILD_TARGET, graph.keys()[BUILD_TARGET])
    assert [file.path for file in record.files] == ["engine/config.json", "engine/rank0.engine", "engine/rank1.engine"]
    assert record.command[1:3] == ("--checkpoint_dir", str(folders[CONVERT_TARGET] / "checkpoint"))
    assert lines[0] == "[1/3] convert target ..."
    assert lines[1].startswith("[1/3] convert target: done in ")
    assert leftovers(work) == []


def test_second_run_starts_no_process(standins: Standins, models: Path, work: Path) -> None:
    first = run_graph(three_steps(standins, models), work, report=ignore)
    num_started = len(standins.started())
    lines: list[str] = []

    second = run_graph(three_steps(standins, models), work, report=lines.append)

    assert second == first
    assert len(standins.started()) == num_started
    assert lines == [f"[{number}/3] {name}: kept from an earlier run" for number, name in enumerate(STEPS, start=1)]


def test_changed_flag_reruns_only_what_depends_on_it(standins: Standins, models: Path, work: Path) -> None:
    first = run_graph(three_steps(standins, models), work, report=ignore)

    second = run_graph(three_steps(standins, models, max_batch_size=16), work, report=ignore)

    assert standins.started()[3:] == ["trtllm-build"]
    assert {name for name in STEPS if first[name] != second[name]} == {BUILD_TARGET}


def test_changed_source_reruns_what_is_made_from_it(standins: Standins, models: Path, work: Path) -> None:
    graph = three_steps(standins, models)
    first = run_graph(graph, work, report=ignore)
    sources = {**graph.sources, "draft": GraphSource(models / "draft_model", "another digest")}

    second = run_graph(replace(graph, sources=sources), work, report=ignore)

    assert {name for name in STEPS if first[name] != second[name]} == {CONVERT_DRAFT}


@pytest.mark.parametrize("damage", ["cut", "gone", "no record"])
def test_damaged_step_is_run_again(standins: Standins, models: Path, work: Path, damage: str) -> None:
    graph = three_steps(standins, models)
    folders = run_graph(graph, work, report=ignore)
    whole = contents(folders)
    victim = folders[CONVERT_DRAFT] / "checkpoint" / "rank0.safetensors"
    if damage == "cut":
        victim.write_bytes(b"1")
    elif damage == "gone":
        victim.unlink()
    else:
        (folders[CONVERT_DRAFT] / "step.json").unlink()
    lines: list[str] = []

    again = run_graph(graph, work, report=lines.append)

    assert contents(again) == whole
    assert len(standins.started()) == 4
    assert any(line.startswith("[2/3] convert draft: damaged (") for line in lines)
    assert leftovers(work) == []


def test_independent_steps_run_beside_each_other(
    standins: Standins, models: Path, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    monkeypatch.setenv("STANDIN_GATE", str(gate))
    monkeypatch.setenv("STANDIN_ONLY", "convert_checkpoint")

    def open_gate() -> None:
        wait_for(lambda: len(standins.started()) == 2)  # both conversions have begun and neither can have ended
        gate.touch()

    opener = threading.Thread(target=open_gate)
    opener.start()
    run_graph(three_steps(standins, models), work, report=ignore, jobs=2)
    opener.join()

    assert standins.lines()[0].startswith("start convert")
    assert standins.lines()[1].startswith("start convert")


def test_lost_conversion_of_a_finished_engine_is_not_made_again(standins: Standins, models: Path, work: Path) -> None:
    graph = three_steps(standins, models, num_bytes=1 << 30)
    folders = run_graph(graph, work, report=ignore, host=Host(free_bytes=lambda _path: 4 << 30))
    shutil.rmtree(folders[CONVERT_TARGET])
    shutil.rmtree(models)
    lines: list[str] = []

    again = run_graph(graph, work, report=lines.append, host=Host(free_bytes=lambda _path: 0))

    assert again == {name: folders[name] for name in (CONVERT_DRAFT, BUILD_TARGET)}
    assert len(standins.started()) == 3
    assert lines[0] == "[1/3] convert target: not needed, what is made from it is finished"


def test_lost_engine_needs_its_lost_conversion(standins: Standins, models: Path, work: Path) -> None:
    graph = three_steps(standins, models)
    folders = run_graph(graph, work, report=ignore)
    shutil.rmtree(folders[CONVERT_TARGET])
    shutil.rmtree(folders[BUILD_TARGET])

    assert run_graph(graph, work, report=ignore) == folders
    assert standins.started()[3:] == ["convert_checkpoint:llama", "trtllm-build"]


def test_gpu_is_used_by_one_build_at_a_time(standins: Standins, models: Path, work: Path) -> None:
    gpu = StepStore(work).try_lock(GPU_LOCK)
    assert gpu is not None
    lines: list[str] = []

    def report(line: str) -> None:
        lines.append(line)
        if "another build uses the GPU" in line:
            assert "trtllm-build" not in standins.started()
            gpu.release()

    run_graph(three_steps(standins, models), work, report=report)

    assert lines.count("[3/3] build target: another build uses the GPU, waiting for it") == 1
    assert standins.started()[-1] == "trtllm-build"
    again = StepStore(work).try_lock(GPU_LOCK)
    assert again is not None
    again.release()


# --- kills and interruptions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("killed_in", STEPS)
def test_killed_runner_resumes(standins: Standins, models: Path, work: Path, tmp_path: Path, killed_in: str) -> None:
    undisturbed = run_graph(three_steps(standins, models), tmp_path / "other", report=ignore)
    standins.events.unlink()
    runner = start_runner(standins, models, work, {"STANDIN_HANG": "1", "STANDIN_ONLY": TELLS[killed_in]})
    wait_for(lambda: hanging(standins))
    runner.kill()
    wait_until_ended(runner)
    assert all(is_running(pid) for pid in hanging(standins))  # nobody could end them
    assert len(leftovers(work)) == 1
    num_finished = STEPS.index(killed_in)
    num_started = len(standins.started())

    folders = run_graph(three_steps(standins, models), work, report=ignore)

    assert num_started == num_finished + 1
    assert len(standins.started()) - num_started == len(STEPS) - num_finished
    assert contents(folders) == contents(undisturbed)
    assert not any(is_running(pid) for pid in hanging(standins))
    assert leftovers(work) == []


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, -2), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_interrupted_runner_ends_all_its_children(
    standins: Standins, models: Path, work: Path, number: signal.Signals, exit_code: int
) -> None:
    runner = start_runner(standins, models, work, {"STANDIN_HANG": "1", "STANDIN_ONLY": TELLS[BUILD_TARGET]})
    wait_for(lambda: hanging(standins))
    children = hanging(standins)
    assert len(children) == 3
    assert all(is_running(pid) for pid in children)

    runner.send_signal(number)
    wait_until_ended(runner)

    assert runner.returncode == exit_code
    assert not any(is_running(pid) for pid in children)
    assert leftovers(work) == []
    assert len(list(work.glob("*/step.json"))) == 2  # the steps before it are kept


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, -2), (signal.SIGHUP, 129)])
def test_runner_of_tests_in_the_background_can_be_interrupted(
    standins: Standins, models: Path, work: Path, number: signal.Signals, exit_code: int
) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        runner = start_runner(standins, models, work, {"STANDIN_HANG": "1"})
    finally:
        signal.signal(number, before)
    wait_for(lambda: hanging(standins))

    runner.send_signal(number)
    wait_until_ended(runner, timeout_s=20.0)

    assert runner.returncode == exit_code


def test_ignored_signals_stay_ignored_and_handlers_come_back() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    try:
        with step_process.interruptible() as interruption:
            os.kill(os.getpid(), signal.SIGHUP)
            assert (interruption.count, signal.getsignal(signal.SIGHUP)) == (0, signal.SIG_IGN)
            with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
                os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before[signal.SIGHUP])

    assert {number: signal.getsignal(number) for number in before} == before


def test_second_signal_takes_away_the_grace(
    standins: Standins, models: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_HANG", "1")
    monkeypatch.setattr(step_process, "GRACE_S", 3600.0)

    def pause(_seconds: float) -> None:
        if hanging(standins):
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_graph(three_steps(standins, models), work, report=ignore, host=Host(pause=pause))

    assert not any(is_running(pid) for pid in hanging(standins))


def test_error_of_the_program_itself_ends_all_children(
    standins: Standins, models: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_HANG", "1")

    def pause(_seconds: float) -> None:
        if hanging(standins):
            raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        run_graph(three_steps(standins, models), work, report=ignore, host=Host(pause=pause))

    assert len(hanging(standins)) == 3
    assert not any(is_running(pid) for pid in hanging(standins))
    assert leftovers(work) == []


def test_workers_of_a_finished_step_are_ended(tmp_path: Path, work: Path) -> None:
    script = tmp_path / "leave_worker.sh"
    script.write_text(f'#!/bin/sh\nmkdir "$1" && echo x > "$1/file"\nsleep 600 &\necho $! > {tmp_path}/pid\n')
    script.chmod(0o755)
    step = GraphStep("leave", (ToolPath("script", script), OutputPath("out")), ("out",))

    run_graph(StepGraph((step,), {}, {}), work, report=ignore)

    assert not is_running(int((tmp_path / "pid").read_text()))


def test_two_builds_at_once_run_every_step_once(
    standins: Standins, models: Path, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    variables = {"STANDIN_GATE": str(gate), "STANDIN_ONLY": TELLS[CONVERT_TARGET]}
    runner = start_runner(standins, models, work, variables)
    wait_for(standins.started)  # the other build holds the first step and cannot end it
    lines: list[str] = []

    def report(line: str) -> None:
        lines.append(line)
        if "another build runs this step" in line:
            gate.touch()

    folders = run_graph(three_steps(standins, models), work, report=report)
    output, errors = wait_until_ended(runner)

    assert errors == ""
    assert json.loads(output) == {name: str(folder) for name, folder in folders.items()}
    assert sorted(standins.started()) == ["convert_checkpoint:llama", "convert_checkpoint:llama", "trtllm-build"]
    assert "[1/3] convert target: another build runs this step, waiting for it" in lines
    assert "[1/3] convert target: made by the other build" in lines


def test_build_that_waits_takes_over_when_the_other_is_killed(standins: Standins, models: Path, work: Path) -> None:
    runner = start_runner(standins, models, work, {"STANDIN_HANG": "1", "STANDIN_ONLY": TELLS[CONVERT_TARGET]})
    wait_for(lambda: hanging(standins))

    def report(line: str) -> None:
        if "another build runs this step" in line:
            runner.kill()
            wait_until_ended(runner)

    folders = run_graph(three_steps(standins, models), work, report=report)

    assert runner.returncode == -signal.SIGKILL
    assert (folders[CONVERT_TARGET] / "checkpoint" / "rank1.safetensors").exists()
    assert not any(is_running(pid) for pid in hanging(standins))
    assert leftovers(work) == []


# --- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "cause", "line"),
    [
        ("oom", "the GPU ran out of memory (exit code 1 after ", "RuntimeError: CUDA out of memory. Tried to allocate"),
        ("keyerror", "the checkpoint has no tensor fc.bias (exit code 1", "KeyError: 'fc.bias'"),
        ("tp", "tensor_parallel does not divide the attention heads", "RuntimeError: num_attention_heads must be"),
        ("host_oom", "it was killed, as the system does when the machine ran out of main memory (signal 9", None),
        ("silent", "it failed without an error line (exit code 3", "[TensorRT-LLM] TensorRT-LLM version: 1.2.1"),
    ],
)
def test_failure_names_cause_remedy_lines_and_log(
    standins: Standins,
    models: Path,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    cause: str,
    line: str | None,
) -> None:
    monkeypatch.setenv("STANDIN_FAIL", kind)
    monkeypatch.setenv("STANDIN_ONLY", TELLS[BUILD_TARGET])
    graph = three_steps(standins, models)

    message = failing_run(graph, work)

    log = work / "logs" / f"{graph.keys()[BUILD_TARGET]}.log"
    assert message.startswith(f"step build target: {cause}")
    assert message.splitlines()[-1] == f"  log: {log}"
    assert line is None or f"  | {line}" in message
    assert log.read_text().splitlines()[1].startswith(f"$ {standins.trtllm_build} --checkpoint_dir ")
    assert not (work / graph.keys()[BUILD_TARGET]).exists()


def test_failed_step_runs_again_and_its_log_is_kept(
    standins: Standins, models: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_FAIL", "keyerror")
    monkeypatch.setenv("STANDIN_ONLY", TELLS[CONVERT_DRAFT])
    graph = three_steps(standins, models)
    failing_run(graph, work)
    assert len(standins.started()) == 2  # nothing is started after a failure
    monkeypatch.delenv("STANDIN_FAIL")

    run_graph(graph, work, report=ignore)

    assert standins.started()[2:] == ["convert_checkpoint:llama", "trtllm-build"]
    log = StepStore(work).log(graph.keys()[CONVERT_DRAFT])
    assert "KeyError: 'fc.bias'" in log.with_name(f"{log.name}.1").read_text()
    assert "KeyError" not in log.read_text()


def test_failures_beside_each_other_are_all_reported(
    standins: Standins, models: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_FAIL", "silent")

    with pytest.raises(BuildError) as caught:
        run_graph(three_steps(standins, models), work, report=ignore, jobs=2)

    assert "step convert target: " in str(caught.value)
    assert "step convert draft: " in str(caught.value)


def test_step_killed_half_way_leaves_nothing(
    standins: Standins, models: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_PARTIAL", "1")
    monkeypatch.setenv("STANDIN_ONLY", TELLS[CONVERT_TARGET])
    graph = three_steps(standins, models)

    message = failing_run(graph, work)

    assert "(signal 9" in message
    assert not (work / graph.keys()[CONVERT_TARGET]).exists()


def test_partial_outputs_are_never_picked_up(standins: Standins, models: Path, work: Path) -> None:
    graph = three_steps(standins, models)
    key = graph.keys()[CONVERT_TARGET]
    for name in (f"{key}.partial-1", key):  # of a killed build, and one that claims to be finished
        (work / name / "checkpoint").mkdir(parents=True)
        (work / name / "checkpoint" / "rank0.safetensors").write_bytes(b"half")

    folders = run_graph(graph, work, report=ignore)

    assert (folders[CONVERT_TARGET] / "checkpoint" / "rank0.safetensors").read_bytes() != b"half"
    assert (folders[CONVERT_TARGET] / "checkpoint" / "rank1.safetensors").exists()
    assert leftovers(work) == []


@pytest.mark.parametrize(
    ("skipped", "missing"), [("rank1", "engine/rank1.engine"), ("", "engine, engine/rank1.engine")]
)
def test_missing_output_is_a_failure_though_the_exit_code_is_zero(
    standins: Standins, models: Path, work: Path, monkeypatch: pytest.MonkeyPatch, skipped: str, missing: str
) -> None:
    monkeypatch.setenv("STANDIN_SKIP", skipped)
    monkeypatch.setenv("STANDIN_ONLY", TELLS[BUILD_TARGET])

    message = failing_run(three_steps(standins, models), work)

    assert message.startswith(f"step build target: it ended without an error but did not write {missing}. ")


def test_program_that_is_not_there(models: Path, work: Path, standins: Standins) -> None:
    graph = three_steps(replace(standins, trtllm_build=Path("no-such-trtllm-build")), models)

    message = failing_run(graph, work)

    assert message.startswith("step build target: no-such-trtllm-build: No such file or directory. Run the build where")


def test_checkpoint_that_is_not_there_is_found_before_anything_starts(
    standins: Standins, tmp_path: Path, work: Path
) -> None:
    message = failing_run(three_steps(standins, tmp_path / "nowhere"), work)

    assert message == (
        f"{tmp_path}/nowhere/draft_model: the checkpoint of draft is not there\n"
        f"{tmp_path}/nowhere/target_model: the checkpoint of target is not there"
    )
    assert standins.started() == []


# --- disk -----------------------------------------------------------------------------------------------------------


def test_disk_too_small_is_found_before_anything_starts(standins: Standins, models: Path, work: Path) -> None:
    graph = three_steps(standins, models, num_bytes=2 << 30)

    with pytest.raises(BuildError, match=r"needs about 6\.0 GiB, the disk has 5\.0 GiB\. Free space"):
        run_graph(graph, work, report=ignore, host=Host(free_bytes=lambda path: 5 << 30))

    assert standins.started() == []


def test_finished_steps_need_no_space(standins: Standins, models: Path, work: Path) -> None:
    run_graph(three_steps(standins, models, num_bytes=1 << 30), work, report=ignore, host=roomy())
    graph = three_steps(standins, models, num_bytes=2 << 30, max_batch_size=16)

    run_graph(graph, work, report=ignore, host=Host(free_bytes=lambda path: 3 << 30))

    assert len(standins.started()) == 4


def roomy() -> Host:
    return Host(free_bytes=lambda path: 1 << 40)


def test_disk_full_in_the_middle_of_a_step(
    standins: Standins, models: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_FILL_DISK", "1")
    monkeypatch.setenv("STANDIN_ONLY", TELLS[CONVERT_DRAFT])

    message = failing_run(three_steps(standins, models), work)

    assert message.startswith("step convert draft: the disk is full (exit code 1 after ")
    assert "  | OSError: [Errno 28] No space left on device" in message


def test_disk_that_was_full_explains_a_silent_failure(
    standins: Standins, models: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_FAIL", "silent")

    with pytest.raises(BuildError, match=r"^step convert target: the disk is full \(exit code 3"):
        run_graph(three_steps(standins, models), work, report=ignore, host=Host(free_bytes=lambda path: 4096))


def test_unwritable_work_folder_is_one_message(standins: Standins, models: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(BuildError, match=r"file/steps: Not a directory\. Make the folder writable"):
        run_graph(three_steps(standins, models), tmp_path / "file" / "steps", report=ignore)


# --- progress -------------------------------------------------------------------------------------------------------


def test_progress_is_reported_with_the_last_log_line(
    standins: Standins, models: Path, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    monkeypatch.setenv("STANDIN_GATE", str(gate))
    monkeypatch.setenv("STANDIN_ONLY", TELLS[CONVERT_TARGET])
    lines: list[str] = []
    now = [100.0]

    def pause(_seconds: float) -> None:
        """While the first step waits at the gate, its time flies."""
        if not gate.exists():
            wait_for(standins.started)
            log = next((work / "logs").glob("*.log"))
            wait_for(lambda: "TensorRT-LLM version" in log.read_text())
            if sum("version" in line for line in lines) == 2:
                gate.touch()
            else:
                now[0] += step_runner.PROGRESS_S * 4.0 + 0.5

    run_graph(three_steps(standins, models), work, report=lines.append, host=Host(now=lambda: now[0], pause=pause))

    said = "[TensorRT-LLM] TensorRT-LLM version: 1.2.1"
    assert lines[1:3] == [f"[1/3] convert target: 40.5 s, {said}", f"[1/3] convert target: 1 min 21 s, {said}"]
    assert lines[3].startswith("[1/3] convert target: done in 1 min 21 s, ")


# --- pruning --------------------------------------------------------------------------------------------------------


def test_prune_removes_what_is_not_kept(standins: Standins, models: Path, work: Path) -> None:
    graph = three_steps(standins, models)
    folders = run_graph(graph, work, report=ignore)
    keep = graph.keys()[BUILD_TARGET]
    (work / f"{'0' * 32}.partial-1").mkdir()

    freed = prune_steps(work, [keep])

    assert freed > 0
    assert [path.exists() for path in folders.values()] == [False, False, True]
    assert [path.name for path in (work / "logs").iterdir()] == [f"{keep}.log"]
    assert leftovers(work) == []
    assert prune_steps(work, [keep]) == 0
    assert prune_steps(work / "nowhere", []) == 0


def test_prune_keeps_what_a_build_shares(standins: Standins, models: Path, work: Path, tmp_path: Path) -> None:
    folders = run_graph(three_steps(standins, models), work, report=ignore)
    os.link(folders[BUILD_TARGET] / "engine" / "rank0.engine", tmp_path / "rank0.engine")

    prune_steps(work, [])

    assert [path.exists() for path in folders.values()] == [False, False, True]


def test_prune_waits_for_no_running_build(standins: Standins, models: Path, work: Path) -> None:
    run_graph(three_steps(standins, models), work, report=ignore)

    with StepStore(work).in_use(), pytest.raises(BuildError, match="a build is running here"):
        prune_steps(work, [])

    assert len(list(work.glob("*/step.json"))) == 3
