"""The warm-up of an LLM API build: child processes that load what will be served, watched and never left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.llmapi_machine import installed
from specdeploy.builders import trtllm_warmup
from specdeploy.builders.trtllm_warmup import load_arguments, main, run_warmup
from specdeploy.contract import EngineModel
from specdeploy.errors import BuildError
from specdeploy.manifest import MANIFEST_NAME

TARGET = "model: somewhere\nspeculative_config: {decoding_type: NGram, max_draft_len: 3, max_matching_ngram_size: 2}\n"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One that has TensorRT-LLM."""
    with installed(monkeypatch, tmp_path, "1.2.1"):
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A build as far as the warm-up reads it, both instances beside each other."""
    made = tmp_path / "engines" / "build"
    made.mkdir(parents=True)
    (made / "llm_args.yaml").write_text(TARGET)
    (made / "llm_args_plain.yaml").write_text("model: somewhere\n")
    return made


def find_children(folder: Path) -> list[int]:
    """Processes that load the instances of `folder`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"--load" in words and str(folder.resolve()).encode() in words:
            found.append(int(path.parent.name))
    return found


def wait_for(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.usefixtures("machine")
class TestRun:
    def test_both_instances_answer(self, folder: Path, tmp_path: Path) -> None:
        record = run_warmup(folder, tmp_path / "logs", lambda _: None)

        assert record.is_beside
        assert [one.instance for one in record.instances] == [EngineModel.TARGET, EngineModel.TARGET_PLAIN]
        assert all(one.token_ids == tuple(range(8)) for one in record.instances)
        assert "the same 8 tokens with and without drafting" in record.checks[-1].detail
        (log,) = (tmp_path / "logs").iterdir()  # one process held both, as the server will
        assert log.name == "warmup-build-target-target_plain.log"

    def test_without_plain_arguments_the_target_is_loaded_again_without_drafting(
        self, folder: Path, tmp_path: Path
    ) -> None:
        (folder / "llm_args_plain.yaml").unlink()

        record = run_warmup(folder, tmp_path / "logs", lambda _: None, label="other")

        assert not record.is_beside
        assert [one.instance for one in record.instances] == [EngineModel.TARGET, EngineModel.TARGET_PLAIN]
        names = {path.name for path in (tmp_path / "logs").iterdir()}
        assert names == {"warmup-other-target.log", "warmup-other-target_plain.log"}

    def test_other_tokens_are_told_not_refused(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FAKE_LLM_DIFFERS", "1")

        record = run_warmup(folder, tmp_path / "logs", lambda _: None)

        assert record.checks[-1].detail.startswith("they differ from token 1 on")

    def test_no_answer_is_a_failure(self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FAKE_LLM_SILENT", "1")

        with pytest.raises(BuildError, match="target answered without a token"):
            run_warmup(folder, tmp_path / "logs", lambda _: None)

    def test_cause_and_remedy_of_a_crash(self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FAKE_LLM_RAISES", "CUDA out of memory. Tried to allocate 18.50 GiB")

        with pytest.raises(BuildError, match=r"the GPU ran out of memory.*max_num_tokens.*Log: .*warmup-build"):
            run_warmup(folder, tmp_path / "logs", lambda _: None)

    def test_arguments_that_the_package_refuses(self, folder: Path, tmp_path: Path) -> None:
        (folder / "llm_args.yaml").write_text("model: somewhere\nmax_batch_sise: 8\n")

        with pytest.raises(BuildError, match="TorchLlmArgs refuses max_batch_sise: Extra inputs are not permitted"):
            run_warmup(folder, tmp_path / "logs", lambda _: None)

    def test_progress_is_told_with_the_last_line_of_the_log(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(trtllm_warmup, "REPORT_EVERY_S", 0.3)
        monkeypatch.setenv("FAKE_LLM_SLEEPS", "1")
        told: list[str] = []

        run_warmup(folder, tmp_path / "logs", told.append)

        assert any(line.startswith("warm-up of target and target_plain: ") and "loading" in line for line in told)

    def test_interrupt_ends_the_child(self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(trtllm_warmup, "REPORT_EVERY_S", 0.3)
        monkeypatch.setenv("FAKE_LLM_SLEEPS", "60")

        def interrupt(_: str) -> None:
            assert find_children(folder)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_warmup(folder, tmp_path / "logs", interrupt)

        wait_for(lambda: not find_children(folder))

    def test_child_of_a_killed_build_ends_itself(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FAKE_LLM_SLEEPS", "60")
        command = [sys.executable, "-m", "specdeploy.builders.trtllm_warmup", str(folder)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as parent:
            try:
                wait_for(lambda: bool(find_children(folder)))
                log = folder.parent / ".steps" / "logs" / "warmup-build-target-target_plain.log"
                wait_for(lambda: log.is_file() and "loading" in log.read_text())
            finally:
                os.kill(parent.pid, signal.SIGKILL)

        wait_for(lambda: not find_children(folder))


@pytest.mark.usefixtures("machine")
class TestMain:
    def test_writes_the_record(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([str(folder)]) == 0

        assert json.loads((folder / "warmup.json").read_text())["prompt"] == trtllm_warmup.PROMPT
        assert "the same 8 tokens" in capsys.readouterr().out

    def test_finished_build_is_not_changed(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (folder / MANIFEST_NAME).write_text("{}")

        assert main([str(folder)]) == 0

        assert not (folder / "warmup.json").exists()
        assert '"token_ids"' in capsys.readouterr().out

    def test_folder_without_a_build_is_named_and_left_alone(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([str(tmp_path / "nothing")]) == 1

        assert "no build of lane trtllm_llmapi is here: llm_args.yaml is missing" in capsys.readouterr().err
        assert not (tmp_path / "nothing").exists()
        assert not (tmp_path / ".steps").exists()

    def test_failure_is_one_message(
        self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FAKE_LLM_RAISES", "CUDA out of memory")

        assert main([str(folder)]) == 1

        error = capsys.readouterr().err
        assert error.startswith("error: warm-up of target and target_plain: ")
        assert "Traceback" not in error


class TestArguments:
    def test_plain_without_a_file_of_its_own(self, folder: Path) -> None:
        (folder / "llm_args_plain.yaml").unlink()

        assert load_arguments(folder, EngineModel.TARGET_PLAIN) == {"model": "somewhere"}

    @pytest.mark.parametrize("text", ["- a list\n", "{broken", "\udcff"])
    def test_broken_file_names_itself(self, folder: Path, text: str) -> None:
        (folder / "llm_args.yaml").write_bytes(text.encode(errors="surrogateescape"))

        with pytest.raises(BuildError, match=r"llm_args\.yaml: .* Run `make engines` again"):
            load_arguments(folder, EngineModel.TARGET)

    def test_missing_file_names_itself(self, tmp_path: Path) -> None:
        with pytest.raises(BuildError, match=r"llm_args\.yaml: cannot be read"):
            load_arguments(tmp_path, EngineModel.TARGET)
