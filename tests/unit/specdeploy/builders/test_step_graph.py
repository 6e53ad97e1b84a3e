"""Order, content addresses and texts of a build graph."""

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from specdeploy.builders.step_graph import (
    Argument,
    GraphSource,
    GraphStep,
    OutputPath,
    SourcePath,
    StepGraph,
    StepOutput,
    ToolPath,
)
from specdeploy.errors import BuildError

CONVERT = ToolPath("convert llama", Path("/app/examples/models/core/llama/convert_checkpoint.py"))
BUILD = ToolPath("trtllm-build", Path("trtllm-build"))


def convert(name: str = "convert target", role: str = "target", dtype: str = "bfloat16") -> GraphStep:
    argv = (CONVERT, "--model_dir", SourcePath(role), "--output_dir", OutputPath("checkpoint"), "--dtype", dtype)
    return GraphStep(name, argv, ("checkpoint",), num_bytes=3 << 30)


def build(name: str = "build target", needs: str = "convert target") -> GraphStep:
    argv = (BUILD, "--checkpoint_dir", StepOutput(needs, "checkpoint"), "--output_dir", OutputPath("engine"))
    return GraphStep(name, argv, ("engine",), ("engine/rank*.engine",), needs_gpu=True, note="takes minutes")


def graph(*steps: GraphStep, digest: str = "ab" * 32, versions: dict[str, str] | None = None) -> StepGraph:
    sources = {role: GraphSource(Path("/models/my target"), digest) for role in ("target", "draft")}
    return StepGraph(steps, sources, versions or {"tensorrt_llm": "1.2.1"})


def step(*argv: Argument, name: str = "odd", outputs: tuple[str, ...] = ("out",)) -> GraphStep:
    return GraphStep(name, argv, outputs)


def test_steps_come_after_what_they_need_else_as_listed() -> None:
    steps = (build(), convert("convert draft", "draft"), convert(), build("build draft", "convert draft"))

    assert [each.name for each in graph(*steps).order()] == [
        "convert draft",
        "convert target",
        "build target",
        "build draft",
    ]


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ((), "it has no step"),
        ((convert(), convert()), "two steps are called 'convert target'"),
        ((convert("a b"), convert("a-b")), "two steps are called 'a-b' and 'a b', one folder name"),
        ((convert("///"),), "a step is called '///'"),
        ((build(),), "step build target: there is no step 'convert target'"),
        ((convert(), step(StepOutput("convert target", "x"))), "step odd: step convert target has no output 'x'"),
        ((step(OutputPath("x")),), "step odd: output 'x' is used but not listed"),
        ((step(SourcePath("head")),), "step odd: there is no source 'head'"),
        ((step("/bin/ls"),), "step odd: '/bin/ls' is a path of this machine: pass it as ToolPath or SourcePath"),
        ((step(),), "step odd: it has no command"),
        ((step("x", outputs=()),), "step odd: it names no output"),
        ((step("x", outputs=("../x",)),), "step odd: output '../x' is not a plain name"),
        ((step("x", outputs=("step.json",)),), "step odd: output 'step.json' is not a plain name"),
        ((replace(step("x"), required_files=("../x",)),), "step odd: required file '../x' lies outside"),
        ((build("a", "b"), replace(build("b", "a"), name="b")), "step a: step b has no output 'checkpoint'"),
    ],
)
def test_wrong_graphs_are_refused(steps: tuple[GraphStep, ...], problem: str) -> None:
    with pytest.raises(BuildError) as caught:
        graph(*steps).order()

    assert str(caught.value).startswith("the build graph is wrong: ")
    assert problem in str(caught.value)


def test_all_problems_at_once() -> None:
    with pytest.raises(BuildError) as caught:
        graph(convert(), convert(), step("/x", SourcePath("head"))).keys()

    assert str(caught.value).count(";") == 2


def test_cycle_names_its_steps() -> None:
    first = step(StepOutput("second", "out"), name="first")
    second = step(StepOutput("first", "out"), name="second")

    with pytest.raises(BuildError, match=r"wait for each other: first, second$"):
        graph(convert(), first, second).order()


def test_keys_do_not_depend_on_names_paths_or_order() -> None:
    steps = (convert(), build())
    keys = graph(*steps).keys()
    moved = replace(BUILD, path=Path("/opt/bin/trtllm-build"))
    renamed = replace(build("make it", "get it"), argv=(moved, *build("make it", "get it").argv[1:]))
    other = StepGraph(
        (renamed, convert("get it")), {"target": GraphSource(Path("/elsewhere"), "ab" * 32)}, {"tensorrt_llm": "1.2.1"}
    )

    assert other.keys() == {"get it": keys["convert target"], "make it": keys["build target"]}
    assert all(len(key) == 32 for key in keys.values())


@pytest.mark.parametrize(
    ("changed", "differing"),
    [
        (graph(convert(dtype="float16"), build()), {"convert target", "build target"}),
        (graph(convert(), build(), digest="cd" * 32), {"convert target", "build target"}),
        (graph(convert(), build(), versions={"tensorrt_llm": "1.2.0"}), {"convert target", "build target"}),
        (graph(convert(), replace(build(), environment={"X": "1"})), {"build target"}),
        (graph(convert(), replace(build(), required_files=())), {"build target"}),
        (graph(convert(), replace(build(), argv=(*build().argv, "--workers", "2"))), {"build target"}),
        (graph(convert(), replace(build(), num_bytes=1, needs_gpu=False, note="")), set()),
    ],
)
def test_keys_follow_everything_that_decides_the_bytes(changed: StepGraph, differing: set[str]) -> None:
    keys = graph(convert(), build()).keys()

    assert {name for name, key in changed.keys().items() if keys[name] != key} == differing


def test_text_cannot_pass_for_a_reference() -> None:
    reference = graph(step("x", OutputPath("out"))).keys()
    text = graph(step("x", '{"output":"out"}')).keys()

    assert reference != text


def test_describe_says_inputs_outputs_and_sizes() -> None:
    assert graph(build(), convert()).describe() == [
        "[1/2] convert target: target (abababababab) -> checkpoint (about 3.0 GiB)",
        "[2/2] build target: convert target/checkpoint -> engine (needs a GPU; takes minutes)",
    ]


def test_shell_lines_can_be_pasted() -> None:
    steps = (convert(), replace(build(), environment={"NAME": "two words"}))

    lines = [graph(*steps).shell_line(each, work="/srv/my work") for each in steps]

    assert lines[0] == (
        "mkdir -p '/srv/my work/convert-target' && /app/examples/models/core/llama/convert_checkpoint.py "
        "--model_dir '/models/my target' --output_dir '/srv/my work/convert-target/checkpoint' --dtype bfloat16"
    )
    assert lines[1] == (
        "mkdir -p '/srv/my work/build-target' && NAME='two words' trtllm-build --checkpoint_dir "
        "'/srv/my work/convert-target/checkpoint' --output_dir '/srv/my work/build-target/engine'"
    )
    assert shlex.split(lines[1])[-1] == "/srv/my work/build-target/engine"


def test_shell_lines_run(tmp_path: Path) -> None:
    copy = ToolPath("cp", Path("cp"))
    (tmp_path / "model file").write_text("weights")
    steps = (
        GraphStep("copy it", (copy, SourcePath("model"), OutputPath("a")), ("a",)),
        GraphStep("again", (copy, StepOutput("copy it", "a"), OutputPath("b")), ("b",)),
    )
    pasted = StepGraph(steps, {"model": GraphSource(tmp_path / "model file", "d")}, {})

    for each in pasted.order():
        subprocess.run(["sh", "-c", pasted.shell_line(each, work=f"{tmp_path}/my work")], check=True)

    assert (tmp_path / "my work" / "again" / "b").read_text() == "weights"
