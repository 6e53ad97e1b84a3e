"""Exit codes and words of the command line; what the commands do is tested where it is done."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from helpers.deployment_files import write_deployment
from specdeploy import cli
from specdeploy.errors import ServerError


def run(*arguments: str) -> int:
    return cli.run(arguments)


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0

    out = capsys.readouterr().out
    assert all(f" {command} " in out for command in ("build", "repo", "serve", "stop", "status"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve"],
        ["serve", "demo", "--no-such-option"],
        ["nothing"],
        [],
        ["build", "demo", "--probe", "probe.json"],  # it would not be read
        ["build", "demo", "--dry-run", "--prune"],
    ],
)
def test_usage_errors(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(arguments) == cli.EXIT_USAGE


def test_config_errors_are_usage_errors_and_all_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_deployment(tmp_path, "tiny", {"dtype": "int3", "surprise": 1})

    assert run("build", "tiny", "--configs-root", str(tmp_path)) == cli.EXIT_USAGE

    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "dtype" in error
    assert "surprise" in error
    assert "Traceback" not in error


def test_failure_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_deployment(tmp_path / "configs")

    code = run(
        "build", "tiny", "--configs-root", str(tmp_path / "configs"), "--engines-root", str(tmp_path / "engines")
    )

    assert code == cli.EXIT_FAIL
    assert "checkpoint: no such folder" in capsys.readouterr().err
    assert not (tmp_path / "engines" / "tiny.json").exists()


def test_serve_before_build_names_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_deployment(tmp_path / "configs")
    roots = [f"--{name}-root={tmp_path / name}" for name in ("configs", "engines", "repo", "state")]

    assert run("serve", "tiny", *roots) == cli.EXIT_FAIL

    error = capsys.readouterr().err
    assert "make engines DEPLOYMENT=tiny" in error
    assert "make repo DEPLOYMENT=tiny" in error
    assert not (tmp_path / "state").exists()


def test_status_and_stop_of_a_server_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("stop", "tiny", "--state-root", str(tmp_path)) == 0
    assert capsys.readouterr().out == "tiny: not running\n"
    assert run("status", "tiny", "--state-root", str(tmp_path)) == cli.EXIT_FAIL
    assert capsys.readouterr().out == "tiny: not running\n"
    assert run("status", "tiny", "--state-root", str(tmp_path), "--json") == cli.EXIT_FAIL
    assert json.loads(capsys.readouterr().out)["running"] is False


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({}, "docker stop specdeploy-big\n"),
        ({"num_nodes": 2, "tensor_parallel": 8, "pipeline_parallel": 2}, "scancel --name=specdeploy-big\n"),
    ],
)
def test_servers_that_serve_did_not_start_are_not_denied(
    section: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sections = {
        "lane": "trtllm_engine",
        "dtype": "bfloat16",
        "speculation": {"method": "lookahead", "max_draft_len": 83},
        "tensorrt_llm": {"version": "1.2.1", "gpu": "h100", **section},
    }
    write_deployment(tmp_path / "configs", "big", sections)
    roots = [f"--{name}-root={tmp_path / name}" for name in ("configs", "state")]

    assert run("stop", "big", *roots) == 0
    stopped = capsys.readouterr().out
    assert run("status", "big", *roots) == cli.EXIT_FAIL

    assert stopped == capsys.readouterr().out
    assert stopped.startswith("big: not running by `serve`; ")
    assert "is not seen here" in stopped
    assert stopped.endswith(words)


def test_serve_without_the_container_says_all_at_once_also_for_a_dry_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sections = {
        "lane": "trtllm_engine",
        "dtype": "bfloat16",
        "speculation": {"method": "lookahead", "max_draft_len": 83},
        "tensorrt_llm": {"version": "1.2.1", "gpu": "h100"},
    }
    write_deployment(tmp_path / "configs", "big", sections)
    roots = [f"--{name}-root={tmp_path / name}" for name in ("configs", "engines", "repo", "state")]

    for extra in ([], ["--dry-run"]):
        assert run("serve", "big", *roots, *extra) == cli.EXIT_FAIL
        error = capsys.readouterr().err
        for word in ("big: ", "nvcr.io/nvidia/tritonserver:", "make engines", "make repo", "docker-run.sh"):
            assert word in error


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ServerError("port [x] taken"), cli.EXIT_FAIL, "error: port [x] taken\n"),
        (KeyboardInterrupt(), cli.EXIT_INTERRUPTED, ""),
        (ZeroDivisionError("oh"), cli.EXIT_INTERNAL, "internal error: ZeroDivisionError: oh. This is a defect"),
        (ModuleNotFoundError("x", name="psutil"), cli.EXIT_FAIL, 'pip install "specdeploy[serve]"'),
    ],
)
def test_errors_become_exit_codes(
    error: BaseException,
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_arguments: Any, **_options: Any) -> None:
        raise error

    monkeypatch.setattr(cli, "load_deployment", fail)

    assert run("build", "tiny") == code

    shown = capsys.readouterr().err
    assert words in shown
    assert "Traceback" not in shown


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "load_deployment", lambda *_: 1 / 0)

    assert run("--debug", "build", "tiny") == cli.EXIT_INTERNAL
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_starting_up_imports_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "httpx", "scipy")
    code = f"import sys, specdeploy.cli; print([name for name in {heavy} if name in sys.modules])"

    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)

    assert shown.stdout.strip() == "[]"
