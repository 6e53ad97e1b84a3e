"""`specdeploy plan` and `build --plan` through the command line: answers, exit codes, files, and bad input by name."""

import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from helpers.deployment_files import write_deployment
from helpers.planner_standins import QUICK
from helpers.shipped_checkpoints import use_hub_cache
from specdeploy import cli
from specdeploy.builders.planned import load_plan, with_plan
from specdeploy.commands.plan_traffic import read_traffic
from specdeploy.config.load import load_deployment
from specdeploy.contract import Lane
from specdeploy.errors import ConfigError
from specdeploy.planner.decide import decide
from specdeploy.planner_contract import PlanReport

CONFIGS = Path(__file__).parents[4] / "configs"
CALIBRATION = CONFIGS / "calibrations" / "sglang-h100-eagle3.calibration.json"
EAGLE3: dict[str, Any] = {
    "lane": "trtllm_llmapi",
    "dtype": "bfloat16",
    "target": {"checkpoint": "meta-llama/Llama-3.1-8B-Instruct"},
    "speculation": {
        "method": "eagle3",
        "max_draft_len": 3,
        "draft": {"checkpoint": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"},
    },
    "serving": {"max_seq_len": 4096, "max_rows": 16},
    "tensorrt_llm": {"version": "1.2.1", "gpu": "h100", "plain_instance": "swap"},
    "traffic": {
        "expected_concurrency": 4,
        "segments": [{"name": "chat", "prompts": "prompts.jsonl", "max_tokens": 128}],
    },
}
Run = Callable[..., int]


@dataclass(frozen=True)
class Planned:
    """One plan of the calibrated pair, made once: exit code, screen with the arithmetic, folder of files."""

    code: int
    shown: str
    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / "plan.json"

    @property
    def report(self) -> PlanReport:
        return PlanReport.model_validate_json(self.path.read_bytes())


def plan_quickly(patch: pytest.MonkeyPatch) -> None:
    """Few requests are simulated: what is said of them is looked at elsewhere."""
    patch.setattr("specdeploy.planner.decide.decide", lambda inputs: decide(replace(inputs, effort=QUICK)))


def write_configs(folder: Path) -> Path:
    """A configs folder of its own over the shipped devices, calibrations, acceptance and shapes."""
    root = folder / "configs"
    root.mkdir()
    for name in ("hardware", "calibrations", "acceptance", "models", "traffic"):
        (root / name).symlink_to(CONFIGS / name)
    write_deployment(root, "pair", EAGLE3)
    return root


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    folder, shown = tmp_path_factory.mktemp("planned"), io.StringIO()
    root = write_configs(folder)
    files = folder / "plans"
    arguments = ["--calibration", str(CALIBRATION), "--hardware", "h100-sxm", "--output-dir", str(files), "--explain"]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(shown):
        use_hub_cache(patch, folder / "hub")
        plan_quickly(patch)
        patch.chdir(folder)
        code = cli.run(["plan", "pair", "--configs-root", str(root), *arguments])
    return Planned(code, shown.getvalue(), files)


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Configs with an empty hub cache."""
    use_hub_cache(monkeypatch, tmp_path / "hub")
    plan_quickly(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return write_configs(tmp_path)


@pytest.fixture
def plan(configs: Path) -> Run:
    def run(*arguments: str, deployment: str = "pair") -> int:
        return cli.run(["plan", deployment, "--configs-root", str(configs), *arguments])

    return run


def test_a_plan_on_one_screen_with_its_files(planned: Planned) -> None:
    screen = planned.shown.split("\n\n")[0]

    assert planned.code == {"go": 0, "no-go": 1, "measure first": 2}[planned.report.verdict.value]
    assert screen.startswith("pair: Speculate with K 3 at any load")
    assert len(screen.splitlines()) <= 40
    assert max(map(len, screen.splitlines())) <= 100
    for words in ("roofline", "crossover", "why", "plan", "memory", "assumed"):
        assert words in screen
    files = {path.name for path in planned.folder.iterdir()}
    assert {"plan.json", "plan.html", "schedule.specdeploy.yaml", "schedule.vllm.txt"} <= files


def test_the_arithmetic(planned: Planned) -> None:
    arithmetic = planned.shown.split("\n\n")[1]

    assert "chat: tokens per step" in arithmetic
    assert "chat: K 3: target: linear layers" in arithmetic


def test_json_and_the_same_bytes_again(
    plan: Run, planned: Planned, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan("--calibration", str(CALIBRATION), "--json")

    assert PlanReport.model_validate_json(capsys.readouterr().out) == planned.report
    assert (tmp_path / "plans" / "pair" / "plan.json").read_bytes() == planned.path.read_bytes()


def test_an_engine_nobody_calibrated_promises_nothing_and_says_what_to_expect(
    plan: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan() == 2

    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("pair: Measure first: this engine was not calibrated for 4 requests at once (indicative: ")
    assert "no verdict: nobody calibrated TensorRT-LLM with eagle3 on h100-sxm; with SGLang's overheads" in shown
    assert "(calibration sglang-h100-eagle3) e2e would be about" in shown
    assert "--run artifacts/pair" in shown
    report = PlanReport.model_validate_json((tmp_path / "plans" / "pair" / "plan.json").read_bytes())
    assert all(level.is_indicative and level.draft_len == 0 for level in report.segments[0].levels)
    assert report.segments[0].crossover.is_indicative
    assert report.traffic is None


def test_without_tables_of_the_device_nothing_can_be_borrowed(plan: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--hardware", "h100-pcie") == 2

    shown = " ".join(capsys.readouterr().out.split())
    assert "no calibration can be borrowed for it either" in shown
    assert "~" not in shown.split("try ")[0]


def test_a_mixture_with_a_heavy_draft_is_a_no_go_by_active_parameters(
    configs: Path, plan: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reported for a target of 397B with 17B active and a dense draft of 9B; here 30B with 3B and one of 1.7B."""
    sections = {
        **EAGLE3,
        "target": {"checkpoint": "Qwen/Qwen3-30B-A3B"},
        "speculation": {
            "method": "draft_model",
            "max_draft_len": 3,
            "draft": {"checkpoint": "Qwen/Qwen3-1.7B"},
        },
    }
    write_deployment(configs, "mixture", sections)

    assert plan(deployment="mixture") == 1

    shown = capsys.readouterr().out
    assert "Switch speculation off" in shown
    assert "of the parameters that a token of this mixture of experts uses" in shown
    assert plan("--max-draft-cost-ratio", "0.9", deployment="mixture") == 2


def test_memory_that_cannot_hold_the_weights_is_a_no_go(
    configs: Path, plan: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    sections = {
        **EAGLE3,
        "target": {"checkpoint": "meta-llama/Llama-3.3-70B-Instruct"},
        "speculation": {"method": "ngram", "max_draft_len": 3},
    }
    write_deployment(configs, "large", sections)

    assert plan(deployment="large") == 1

    shown = capsys.readouterr().out
    assert "does not fit: weights of target" in shown
    assert "DOES NOT FIT" in shown


# --- bad input ------------------------------------------------------------------------------------------------------


def acceptance_file(folder: Path, **changes: Any) -> str:
    profile = {
        "segment": None,
        "method": "eagle3",
        "form": "chain",
        "survivals": [0.7, 0.5, 0.3],
        "origin": "stated",
        "source": "a test",
        **changes,
    }
    path = folder / "given.acceptance.json"
    path.write_text(json.dumps({"schema_version": 1, "profiles": [profile]}))
    return str(path)


def trace(folder: Path, text: str, name: str = "trace.csv") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def mix(folder: Path, text: str) -> str:
    (folder / "mix.yaml").write_text(text)
    return str(folder / "mix.yaml")


BAD_RATE = """schema_version: 1
name: mix
segments: [{name: chat, input_tokens: {mean: 100}, output_tokens: {mean: 100}}]
arrivals: {kind: random, request_rate: %s}
"""


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda f: ["--hardware", "h900"], "no device 'h900'"),
        (lambda f: ["--calibration", str(f / "none.json")], "none.json"),
        (lambda f: ["--acceptance", acceptance_file(f, survivals=[1.4, 0.5, 0.3])], "survivals"),
        (lambda f: ["--acceptance", acceptance_file(f, survivals=[0.5, 0.7, 0.3])], "survive"),
        (lambda f: ["--acceptance", acceptance_file(f, method="ngram")], "the deployment drafts with eagle3"),
        (lambda f: ["--traffic", trace(f, "")], "is empty"),
        (lambda f: ["--traffic", trace(f, "arrival_s,input_tokens,output_tokens\n")], "holds no requests"),
        (lambda f: ["--traffic", trace(f, "arrival_s,input_tokens,output_tokens\n2,5,5\n1,5,5\n")], "Sort the file"),
        (lambda f: ["--traffic", trace(f, "input_tokens,output_tokens\n5,0\n")], "at least 1"),
        (lambda f: ["--traffic", trace(f, "input_tokens,output_tokens\n10000000,5\n")], "10000000 tokens"),
        (lambda f: ["--traffic", trace(f, "input_tokens,output_tokens\n5000,5\n")], "serving.max_seq_len"),
        (lambda f: ["--traffic", mix(f, BAD_RATE % "-1")], "request_rate"),
        (lambda f: ["--traffic", mix(f, BAD_RATE % ".nan")], "not a finite number"),
        (lambda f: ["--traffic", "no-such-mix"], "no-such-mix"),
        (lambda f: ["--concurrency", "0"], "concurrency"),
        (lambda f: ["--max-draft-cost-ratio", "nan"], "max-draft-cost-ratio"),
        (lambda f: ["--max-draft-cost-ratio", "-1"], "max-draft-cost-ratio"),
    ],
)
def test_bad_input_is_named_and_never_a_traceback(
    make: Callable[[Path], list[str]], words: str, plan: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(*make(tmp_path)) == cli.EXIT_USAGE

    error = " ".join(capsys.readouterr().err.split())
    assert words in error
    assert "Traceback" not in error
    assert not (tmp_path / "plans").exists()


def test_prompts_that_do_not_fit_are_named_by_line(
    configs: Path, plan: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = configs / "deployments" / "prompts.jsonl"
    prompts.write_text(json.dumps({"id": "a", "prompt": "word " * 10_000}) + "\n")

    assert plan() == cli.EXIT_USAGE
    assert "prompts.jsonl:1" in capsys.readouterr().err


def test_an_unknown_target_is_an_error_that_says_what_to_do(
    configs: Path, plan: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    write_deployment(configs, "unknown", {**EAGLE3, "target": {"checkpoint": "nobody/Nothing-1B"}})

    assert plan(deployment="unknown") == cli.EXIT_FAIL
    assert "nobody/Nothing-1B" in capsys.readouterr().err


def test_lane_torch_without_a_calibration_names_the_command(
    configs: Path, plan: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    sections = {"target": {"checkpoint": "Qwen/Qwen3-0.6B"}, "serving": {"max_seq_len": 512}}
    write_deployment(configs, "here", sections)

    assert plan(deployment="here") == cli.EXIT_USAGE
    assert "specdeploy calibrate here" in capsys.readouterr().err


# --- traffic --------------------------------------------------------------------------------------------------------


def test_a_trace_gives_lengths_arrivals_and_latencies(plan: Run, tmp_path: Path) -> None:
    rows = "\n".join(f"{index * 0.5},{100 + index},{50 + index}" for index in range(200))
    given = trace(tmp_path, f"arrival_s,input_tokens,output_tokens\n{rows}\n")

    plan("--calibration", str(CALIBRATION), "--traffic", given)

    report = PlanReport.model_validate_json((tmp_path / "plans" / "pair" / "plan.json").read_bytes())
    assert report.segments[0].mean_input_tokens == pytest.approx(199.5)
    assert report.traffic is not None
    assert report.traffic.traffic.startswith("trace.csv, 200 requests")
    assert sum(report.traffic.on.histogram_counts) == 200


def test_requests_of_segments_that_the_deployment_lacks_are_named(configs: Path, tmp_path: Path) -> None:
    lengths = "input_tokens: {mean: 100}, output_tokens: {mean: 50}"
    given = mix(
        tmp_path,
        "schema_version: 1\nname: mix\narrivals: {kind: closed, concurrency: 4}\nsegments:\n"
        f"  - {{name: chat, share: 0.5, {lengths}}}\n  - {{name: code, share: 0.5, {lengths}}}\n",
    )

    found = read_traffic(load_deployment("pair", configs), None, given, configs, 0)

    assert "requests of code belong to no segment here: drafts are accepted as for chat" in found.assumptions


# --- build --plan ---------------------------------------------------------------------------------------------------


def test_a_build_takes_over_the_k_of_the_plan(configs: Path, planned: Planned) -> None:
    path = planned.path
    decided = load_plan(path).plan
    loaded = load_deployment("pair", configs)

    changed = with_plan(loaded, decided, path)

    assert changed.digest == loaded.digest
    assert changed.config.lane is Lane.TRTLLM_LLMAPI
    ranges = changed.config.traffic.segments[0].draft_len_by_in_flight
    assert ranges == tuple(entry for entry in decided.segments[0].ranges if entry.draft_len)
    assert changed.config.speculation.draft_len_by_in_flight


def test_a_plan_of_something_else_is_refused_with_every_reason(configs: Path, planned: Planned) -> None:
    path = planned.path
    decided = load_plan(path).plan
    other = {
        **EAGLE3,
        "speculation": {"method": "ngram", "max_draft_len": 1},
        "traffic": {"expected_concurrency": 1, "segments": [{"name": "code", "prompts": "prompts.jsonl"}]},
    }
    write_deployment(configs, "other", other)

    with pytest.raises(ConfigError) as error:
        with_plan(load_deployment("other", configs), decided, path)

    keys = [violation.key for violation in error.value.violations]
    assert keys == ["plan.deployment", "plan.method", "plan.segments", "plan.segments"]
    assert "exceeds speculation.max_draft_len 1" in str(error.value)


@pytest.mark.parametrize("content", ["", "{}", '{"schema_version": 7}'])
def test_what_is_no_plan_is_refused(
    content: str, configs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(content)

    code = cli.run(["build", "pair", "--configs-root", str(configs), "--plan", str(path)])

    assert code == cli.EXIT_USAGE
    assert "is no plan" in capsys.readouterr().err
