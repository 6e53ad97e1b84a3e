"""YAML in, frozen config or every violation out."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.deployment_files import write_deployment
from specdeploy.config.load import list_deployments, load_deployment, load_yaml_model
from specdeploy.config.yaml_text import parse_yaml
from specdeploy.contract import ConstrainedPolicy, Method
from specdeploy.errors import ConfigError, Violation
from specdeploy.verdict_contract import GateConfig

REPO = Path(__file__).parents[4]


def violations_of(reference: str | Path, configs_root: Path = Path("configs")) -> list[Violation]:
    with pytest.raises(ConfigError) as caught:
        load_deployment(reference, configs_root)
    assert "Traceback" not in str(caught.value)
    return caught.value.violations


def write_text(tmp_path: Path, text: str | bytes, name: str = "tiny") -> Path:
    path = write_deployment(tmp_path, name)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_loads_by_name_and_by_path(tmp_path: Path) -> None:
    path = write_deployment(tmp_path)
    by_name = load_deployment("tiny", tmp_path)
    assert by_name == load_deployment(path) == load_deployment(str(path))
    assert by_name.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert by_name.text == path.read_text()
    assert by_name.config.speculation.method is Method.NGRAM


@pytest.mark.parametrize(
    ("name", "segments"),
    [
        ("demo", ["code_edit", "chat", "summarisation"]),
        ("demo-bf16", ["code_edit", "chat"]),
        ("demo-eagle3", ["chat", "code_edit"]),
        ("demo-draft-model", ["chat", "code_edit"]),
    ],
)
def test_checked_in_deployments_load(name: str, segments: list[str]) -> None:
    config = load_deployment(name, REPO / "configs").config
    assert [segment.name for segment in config.traffic.segments] == segments
    assert config.speculation.constrained is ConstrainedPolicy.OFF


def test_checked_in_demos_can_be_compared_and_served_at_once() -> None:
    names = ("demo", "demo-bf16", "demo-eagle3", "demo-draft-model")
    demo, bf16, *others = configs = [load_deployment(name, REPO / "configs").config for name in names]
    ports = {"http_port", "grpc_port", "metrics_port"}
    assert len({getattr(config.serving, port) for config in configs for port in ports}) == len(configs) * len(ports)
    assert {config.target.checkpoint for config in others} == {demo.target.checkpoint}
    same = ("lane", "target", "speculation", "runtime")
    assert [getattr(bf16, field) for field in same] == [getattr(demo, field) for field in same]
    assert bf16.serving.model_copy(update={port: getattr(demo.serving, port) for port in ports}) == demo.serving


def test_missing_deployment_lists_what_exists(tmp_path: Path) -> None:
    write_deployment(tmp_path, "tiny")
    (violation,) = violations_of("tinny", tmp_path)
    assert violation.file == str(tmp_path / "deployments" / "tinny.yaml")
    assert violation.remedy == "Did you mean tiny? Deployments that exist: tiny."
    assert list_deployments(tmp_path) == ["tiny"]


def test_no_deployment_at_all(tmp_path: Path) -> None:
    (violation,) = violations_of("demo", tmp_path)
    assert "holds no deployment yet" in violation.remedy


@pytest.mark.parametrize("reference", ["../demo.yaml", "missing/demo.yaml", "."])
def test_unreadable_paths(reference: str, tmp_path: Path) -> None:
    (violation,) = violations_of(tmp_path / reference)
    assert "cannot be read" in violation.reason


def test_a_name_that_is_no_name(tmp_path: Path) -> None:
    (violation,) = violations_of("De mo", tmp_path)
    assert "not a deployment name" in violation.reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file is empty"),
        ("# nothing\n", "the file is empty"),
        ("- a\n", "the file holds a list"),
        ("word\n", "the file holds a str"),
        ("a: [1\nb: 2\n", "line 2, column 2"),
        ("a:\n\t- 1\n", "line 2, column 1"),
        ("a: &x 1\nb: *x\n", "line 2, column 4: anchors and aliases are not supported"),
        ("a: &x [*x]\n", "anchors and aliases are not supported"),
        ("? [a, b]\n: 1\n", "a key must be a word"),
        ("a: !!python/object:os.system {}\n", "line 1"),
        ("a: .inf\n", ".inf is not a finite number"),
        ("a: .nan\n", ".nan is not a finite number"),
        (f"a: {'9' * 5000}\n", "this number is too long"),
        ("a: 1\n---\nb: 2\n", "line 2"),
        ("a: \x00\n", "special characters are not allowed"),
        (b"a: \xff\n", "byte 3 is not valid UTF-8"),
        (r'a: "\ud800"', "half of a character"),
        ("[" * 3000, "nested too deeply"),
    ],
)
def test_text_that_is_no_config(text: str | bytes, reason: str, tmp_path: Path) -> None:
    violations = violations_of(write_text(tmp_path, text))
    assert any(reason in violation.reason for violation in violations), violations


def test_repeated_keys_are_refused_with_both_lines(tmp_path: Path) -> None:
    path = write_deployment(tmp_path)
    path.write_text(path.read_text() + "dtype: bfloat16\n")
    (violation,) = violations_of(path)
    assert violation.key == "dtype"
    assert re.fullmatch(r"repeated on line \d+, first given on line \d+", violation.reason)


def test_everything_wrong_is_reported_at_once(tmp_path: Path) -> None:
    path = write_deployment(
        tmp_path,
        overrides={
            "dtyp": "float32",
            "schema_version": 2,
            "name": "other-name",
            "speculation": {
                "method": "ngram",
                "max_draft_len": 4,
                "draft": {"checkpoint": "x"},
                "draft_len_by_in_flight": [{"min_in_flight": 1, "max_in_flight": None, "draft_len": 9}],
            },
            "serving": {"http_port": 8000, "grpc_port": 8000, "max_rows": "8", "max_seq_len": 16},
            "traffic": {
                "expected_concurrency": 0,
                "segments": [
                    {"name": "chat", "prompts": "nowhere.jsonl"},
                    {"name": "chat", "prompts": "prompts.jsonl", "speculate": False},
                    {"name": "other", "prompts": "prompts.jsonl"},
                ],
            },
            "slos": [{"segment": "chat", "metric": "tftt", "percentile": "p50", "max_ms": -1}],
        },
    )
    by_key: dict[str, Violation] = {violation.key: violation for violation in violations_of(path)}
    assert set(by_key) == {
        "dtyp",
        "schema_version",
        "name",
        "speculation.draft",
        "speculation.draft_len_by_in_flight[0].draft_len",
        "serving.max_rows",
        "traffic.expected_concurrency",
        "traffic.segments[0].prompts",
        "traffic.segments[1].off_reason",
        "traffic.segments[2].name",
        "slos[0].metric",
        "slos[0].max_ms",
    }
    assert all(violation.file == str(path) and violation.remedy for violation in by_key.values())
    assert "Did you mean dtype?" in by_key["dtyp"].remedy
    assert by_key["slos[0].metric"].remedy == "Did you mean ttft? Use one of: ttft, tpot, e2e."
    assert by_key["serving.max_rows"].reason == '"8" has the wrong type'


@pytest.mark.parametrize(
    ("overrides", "key", "reason"),
    [
        (
            {"lane": "trtllm_engine", "tensorrt_llm": {"version": "1.2.1", "gpu": "h100"}},
            "speculation.method",
            "lane trtllm_engine has no method ngram",
        ),
        ({"speculation": {"method": "eagle3", "max_draft_len": 4}}, "speculation.draft", "eagle3 needs a draft"),
        (
            {"speculation": {"method": "suffix", "max_draft_len": 4, "draft": {"checkpoint": "x"}}},
            "speculation.draft",
            "suffix needs no checkpoint",
        ),
        ({"speculation": {"method": "lookahead", "max_draft_len": 83}}, "speculation.method", "has no method"),
        ({"speculation": {"method": "lookahead", "max_draft_len": 4}}, "speculation.max_draft_len", "is not the 83"),
        ({"speculation": {"method": "draft_model", "max_draft_len": 4}}, "speculation.draft", "needs a draft"),
        ({"speculation": {"method": "ngram", "max_draft_len": 0}}, "speculation.max_draft_len", "out of range"),
        ({"speculation": {"max_draft_len": 4}}, "speculation.method", "required key is missing"),
        ({"serving": {"http_port": 9000, "grpc_port": 9000}}, "serving.grpc_port", "port 9000 is already http_port"),
        ({"serving": {"http_port": True}}, "serving.http_port", "wrong type"),
        ({"serving": {"http_port": 8000.0}}, "serving.http_port", "wrong type"),
        ({"serving": {"max_seq_len": 64}}, "traffic.segments[0].max_tokens", "leaves no room for a prompt"),
        ({"serving": []}, "serving", "wrong type"),
        ({"target": {"checkpoint": "wheel:foo"}}, "target.checkpoint", "does not pin one version"),
        ({"target": {"checkpoint": "wheel:f==1", "revision": "x"}}, "target.revision", "not to a wheel"),
        (
            {"slos": [{"segment": "chatt", "metric": "ttft", "percentile": "p50", "max_ms": 1}]},
            "slos[0].segment",
            "no 'chatt'",
        ),
        (
            {"slos": [{"segment": "chat", "metric": "ttft", "percentile": "p50", "max_ms": n} for n in (1, 2)]},
            "slos[1]",
            "has an objective already",
        ),
        (
            {"speculation": {"method": "ngram", "max_draft_len": 4, "ngram": {"min_matching_ngram_size": 4}}},
            "speculation.ngram.min_matching_ngram_size",
            "exceeds",
        ),
        (
            {"traffic": {"expected_concurrency": 1, "segments": []}},
            "traffic.segments",
            "it is empty",
        ),
    ],
)
def test_single_violations(overrides: dict[str, Any], key: str, reason: str, tmp_path: Path) -> None:
    (violation,) = violations_of(write_deployment(tmp_path, overrides=overrides))
    assert (violation.key, reason in violation.reason) == (key, True), violation


def test_rules_between_sections_are_reported_although_another_section_is_broken(tmp_path: Path) -> None:
    overrides: dict[str, Any] = {
        "dtype": "int4",
        "speculation": {"method": "lookahead", "max_draft_len": 83},
        "slos": [{"segment": "nobody", "metric": "ttft", "percentile": "p50", "max_ms": 1}],
    }
    keys = [violation.key for violation in violations_of(write_deployment(tmp_path, overrides=overrides))]
    assert sorted(keys) == ["dtype", "slos[0].segment", "speculation.method"]


@pytest.mark.parametrize(
    ("ranges", "reason"),
    [
        ([(1, 4, 4), (4, 8, 2)], "is not above 4"),
        ([(5, 8, 2), (1, 4, 4)], "is not above 8"),
        ([(4, 1, 4)], "is below min_in_flight"),
        ([(1, None, 4), (9, None, 0)], "has no upper end"),
    ],
)
def test_ranges_out_of_order(ranges: list[tuple[int, int | None, int]], reason: str, tmp_path: Path) -> None:
    keys = ("min_in_flight", "max_in_flight", "draft_len")
    listed = [dict(zip(keys, entry, strict=True)) for entry in ranges]
    speculation = {"method": "ngram", "max_draft_len": 4, "draft_len_by_in_flight": listed}
    (violation,) = violations_of(write_deployment(tmp_path, overrides={"speculation": speculation}))
    assert violation.key.startswith("speculation.draft_len_by_in_flight[")
    assert reason in violation.reason


@pytest.mark.parametrize(("word", "value"), [("off", "off"), ("no", "no"), ("yes", "yes"), ("on", "on")])
def test_only_true_and_false_are_booleans(word: str, value: str) -> None:
    assert parse_yaml(f"key: {word}", "f") == ({"key": value}, [])


@pytest.mark.parametrize(
    ("text", "value"),
    [("1:30", "1:30"), ("2026-01-01", "2026-01-01"), ("010", "010"), ("0x1F", "0x1F"), ("1_000", "1_000")],
)
def test_yaml_1_1_surprises_stay_text(text: str, value: str) -> None:
    assert parse_yaml(f"key: {text}", "f") == ({"key": value}, [])


@pytest.mark.parametrize(
    ("text", "value"), [("7", 7), ("-3", -3), ("1e3", 1000.0), ("0.5", 0.5), ("true", True), ("~", None), ("", None)]
)
def test_scalars(text: str, value: object) -> None:
    assert parse_yaml(f"key: {text}", "f") == ({"key": value}, [])


scalars = st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.text(max_size=8)
trees = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner))


@settings(max_examples=50)
@given(trees)
def test_json_is_read_as_it_stands(data: object) -> None:
    assert parse_yaml(json.dumps(data), "f") == (data, [])


@given(st.text(max_size=60))
def test_any_text_is_data_or_violations(text: str) -> None:
    _, violations = parse_yaml(text, "f")
    assert all(violation.reason and violation.remedy for violation in violations)


def test_gate_files_share_the_loader(tmp_path: Path) -> None:
    path = tmp_path / "strict.yaml"
    path.write_text("schema_version: 1\nname: strict\nmax_ratio: 0.9\n")
    assert load_yaml_model(path, GateConfig).max_ratio == 0.9
    path.write_text("schema_version: 1\nname: strict\nmax_ration: 0.9\n")
    with pytest.raises(ConfigError, match=r"max_ration: unknown key\. Did you mean max_ratio\?"):
        load_yaml_model(path, GateConfig)
