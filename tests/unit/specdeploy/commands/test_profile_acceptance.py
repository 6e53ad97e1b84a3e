"""`specdeploy profile` through the command line, on a tiny build."""

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.deployment_files import write_deployment
from helpers.tiny_checkpoint import make_checkpoint
from specdeploy import cli
from specdeploy.builders.dispatch import build_deployment
from specdeploy.commands.profile_prompts import PromptTemplate, read_prompts
from specdeploy.config.load import load_deployment
from specdeploy.contract import Method
from specdeploy.errors import ConfigError, SpecDeployError
from specdeploy.planner.acceptance_files import load_acceptance
from specdeploy.planner_contract import AcceptanceOrigin

SEGMENTS: dict[str, Any] = {
    "expected_concurrency": 1,
    "segments": [
        {"name": "chat", "prompts": "chat.jsonl", "max_tokens": 24},
        {"name": "edit", "prompts": "edit.jsonl", "max_tokens": 24},
        {"name": "never", "prompts": "edit.jsonl", "speculate": False, "off_reason": "by choice"},
    ],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a built deployment `tiny`."""
    root = tmp_path_factory.mktemp("place")
    checkpoint = make_checkpoint(root / "checkpoint")
    folder = root / "configs" / "deployments"
    folder.mkdir(parents=True)
    for name in ("chat", "edit"):
        lines = [
            json.dumps({"id": str(i), "prompt": f"{name} {i}: the river rose in the night. " * 2}) for i in range(4)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    target = {"target": {"checkpoint": str(checkpoint)}, "traffic": SEGMENTS, "runtime": {"threads": 1}}
    write_deployment(root / "configs", "tiny", target)
    build_deployment(load_deployment("tiny", root / "configs"), root / "engines", report=lambda _: None)
    return root


def run(place: Path, *arguments: str, deployment: str = "tiny") -> int:
    roots = ("--configs-root", str(place / "configs"), "--engines-root", str(place / "engines"))
    return cli.run(["profile", deployment, *roots, *arguments])


def test_a_profile_is_written_for_the_planner(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(place, "--requests", "3") == 0

    profiles = load_acceptance(place / "engines" / "acceptance" / "tiny.acceptance.json").profiles
    assert [one.segment for one in profiles] == ["chat", "edit", None]
    for one in profiles:
        assert one.origin is AcceptanceOrigin.PROFILE
        assert one.method is Method.NGRAM
        assert len(one.survivals) == 4
        assert one.num_requests == (3 if one.segment else 6)
        assert one.temperature == 0.0
        assert one.target == str(place / "checkpoint")
    said = capsys.readouterr()
    assert "tokens/step" in said.out
    assert "tiny.acceptance.json" in said.out
    assert "chat: 3 prompts" in said.err


def test_one_segment_as_json_elsewhere(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "mine.json"

    assert run(place, "--segment", "edit", "--requests", "2", "--output", str(output), "--json") == 0

    said = capsys.readouterr()
    assert json.loads(said.out) == json.loads(output.read_text())
    assert [one.segment for one in load_acceptance(output).profiles] == ["edit"]
    assert said.err == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--segment", "nope"), "there is no segment nope"),
        (("--segment", "never"), "none of these segments drafts"),
        (("--requests", "1"), "Invalid value for '--requests'"),
    ],
)
def test_wrong_options_are_named(
    place: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert run(place, *arguments) != 0

    assert said in " ".join(capsys.readouterr().err.split())


def test_without_a_build_it_says_how_to_make_one(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_deployment(place / "configs", "unbuilt")

    assert run(place, deployment="unbuilt") == cli.EXIT_FAIL

    assert "was never built. Run `make engines DEPLOYMENT=unbuilt`" in capsys.readouterr().err


def test_other_lanes_are_told_what_to_do_instead(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_deployment(
        place / "configs",
        "gpu",
        {"lane": "trtllm_llmapi", "tensorrt_llm": {"version": "1.2.1", "gpu": "h100"}, "dtype": "bfloat16"},
    )

    assert run(place, deployment="gpu") != 0

    said = capsys.readouterr().err
    assert "specdeploy-client bench gpu" in said
    assert "lane torch" in said


# --- prompts --------------------------------------------------------------------------------------------------------


def test_prompts_are_first_turns_without_constraints(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    lines: list[dict[str, Any]] = [
        {"id": "a", "prompt": "first", "max_tokens": 5},
        {"id": "b", "prompt": "json", "constraint": {"type": "json"}},
        {"id": "c", "turns": ["second", "later"]},
        {"id": "d", "turns": [{"prompt": "third", "max_tokens": 7}]},
        {"id": "e", "prompt": "fourth"},
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")

    assert [(one.text, one.max_tokens) for one in read_prompts(path, 3)] == [
        ("first", 5),
        ("second", None),
        ("third", 7),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "line 1: is not JSON"),
        ('{"id": "a"}', "line 1: has no prompt"),
        ("[1]", "line 1: has no prompt"),
        ("", "holds no prompt"),
        ('{"id": "b", "prompt": "x", "constraint": {"type": "json"}}', "holds no prompt without a constraint"),
    ],
)
def test_faulty_prompt_files(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)

    with pytest.raises(ConfigError, match=said):
        read_prompts(path, 3)


def test_the_template_is_the_checkpoints_own(tmp_path: Path) -> None:
    assert PromptTemplate(tmp_path).render("as it is") == "as it is"
    config = {"chat_template": "{{ bos_token }}[{{ messages[0].content }}]", "bos_token": {"content": "<s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert PromptTemplate(tmp_path).render("hello") == "<s>[hello]"
    (tmp_path / "chat_template.jinja").write_text(
        "{% if add_generation_prompt %}<{{ messages[0]['content'] }}>{% endif %}"
    )
    assert PromptTemplate(tmp_path).render("hello") == "<hello>"


@pytest.mark.parametrize("template", ["{{ raise_exception('no') }}", "{% broken"])
def test_a_template_that_fails_names_itself(tmp_path: Path, template: str) -> None:
    (tmp_path / "chat_template.jinja").write_text(template)

    with pytest.raises(SpecDeployError, match=r"chat_template\.jinja"):
        PromptTemplate(tmp_path).render("hello")
