"""Dry runs of every shipped deployment: complete, consistent, checked against the facts, the same on every machine."""

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.deployment_files import write_deployment
from helpers.shipped_checkpoints import use_hub_cache
from specdeploy.builders.dry_run import DryRun, PlannedBuild, write_dry_run
from specdeploy.builders.pair import Consent
from specdeploy.config.load import LoadedDeployment, load_deployment
from specdeploy.contract import EngineModel, Lane
from specdeploy.errors import BuildError, ConfigError
from specdeploy.manifest import write_json_atomically
from specdeploy.packager.pbtxt import parse_pbtxt
from specdeploy.trtllm.facts import ConvertScript, build_flags, command_problems, convert_flags
from specdeploy.trtllm.llm_args import validate_llm_args
from specdeploy.trtllm.probe_record import ProbeRecord, probe_path
from specdeploy.trtllm.versions import parse_version

DEPLOYMENTS = Path(__file__).parents[4] / "configs" / "deployments"
LLMAPI = ("deepseek-v3-mtp", "llama-3-1-8b-eagle3", "mixtral-8x7b-ngram", "qwen3-8b-ngram")
ENGINE = ("llama-3-1-405b-draft-3b", "llama-3-3-70b-draft-1b", "vicuna-13b-medusa")
SHIPPED = (*LLMAPI, *ENGINE)
# What a person must say yes to: the published EAGLE-3 head names no auxiliary layers.
CONSENT = Consent(allow=("aux-layers-guessed",))
VERSION = parse_version("1.2.1")


@pytest.fixture(scope="session")
def hub(shipped_hub: Path) -> Path:
    """A short name for it."""
    return shipped_hub


@pytest.fixture(scope="session")
def written(hub: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, DryRun]:
    """The dry run of every shipped deployment, with all checkpoints on this machine."""
    engines = tmp_path_factory.mktemp("engines")
    with pytest.MonkeyPatch.context() as patch:
        use_hub_cache(patch, hub)
        return {name: write(load(name), engines) for name in SHIPPED}


def load(name: str) -> LoadedDeployment:
    return load_deployment(DEPLOYMENTS / f"{name}.yaml")


def write(loaded: LoadedDeployment, engines: Path, probe: ProbeRecord | None = None) -> DryRun:
    return write_dry_run(loaded, engines, consent=CONSENT, probe=probe)


def texts_of(run: DryRun) -> dict[str, str]:
    return {name: (run.folder / name).read_text() for name in run.files}


def planned(run: DryRun) -> PlannedBuild:
    return PlannedBuild.model_validate_json((run.folder / "manifest.json").read_text())


def changed(tmp_path: Path, name: str, old: str, new: str) -> LoadedDeployment:
    """A shipped deployment with one line changed; its prompts stay where they are."""
    text = (DEPLOYMENTS / f"{name}.yaml").read_text()
    assert text.count(old) == 1
    traffic = DEPLOYMENTS.parent / "traffic"
    path = tmp_path / f"{name}.yaml"
    path.write_text(text.replace(old, new).replace("../traffic/", f"{traffic}/"))
    return load_deployment(path)


def test_every_shipped_gpu_deployment_is_tested_here() -> None:
    found = {path.stem for path in DEPLOYMENTS.glob("*.yaml")}
    assert found == {*SHIPPED, "demo", "demo-bf16", "demo-eagle3", "demo-draft-model"}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_file_says_that_no_gpu_saw_it(name: str) -> None:
    assert "# Not run on a GPU yet" in (DEPLOYMENTS / f"{name}.yaml").read_text()


class TestEveryDeployment:
    @pytest.mark.parametrize("name", SHIPPED)
    def test_is_complete(self, written: dict[str, DryRun], name: str) -> None:
        run = written[name]
        on_disk = {path.relative_to(run.folder).as_posix() for path in run.folder.rglob("*") if path.is_file()}
        assert on_disk == set(run.files)
        expected = {"commands.sh", "steps.json", "manifest.json", "UNCHECKED.md", "triton_repo/llm/config.pbtxt"}
        expected |= {"triton_repo/launch.sh", "triton_repo/docker-run.sh"}
        if name in LLMAPI:
            expected.add("llm_args.yaml")
        assert expected <= on_disk
        assert ("llm_args_plain.yaml" in on_disk) == (name in ("llama-3-1-8b-eagle3", "qwen3-8b-ngram"))

    @pytest.mark.parametrize("name", ["llama-3-1-8b-eagle3", "mixtral-8x7b-ngram", "vicuna-13b-medusa"])
    def test_is_the_same_in_another_place(
        self, written: dict[str, DryRun], hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        use_hub_cache(monkeypatch, hub)

        again = write(load(name), tmp_path / "elsewhere")

        assert texts_of(again) == texts_of(written[name])

    @pytest.mark.parametrize("name", SHIPPED)
    def test_holds_no_path_of_this_machine_no_date_and_no_template(
        self, written: dict[str, DryRun], hub: Path, name: str
    ) -> None:
        for file, text in texts_of(written[name]).items():
            for word in (str(hub), str(written[name].folder), str(DEPLOYMENTS), "${", "/tmp/"):  # noqa: S108 - looked for
                assert word not in text, (file, word)
            assert re.search(r"20\d\d-\d\d-\d\d", text) is None, file

    @pytest.mark.parametrize("name", SHIPPED)
    def test_scripts_are_bash(self, written: dict[str, DryRun], name: str) -> None:
        for script in written[name].folder.rglob("*.sh"):
            assert script.stat().st_mode & 0o100
            subprocess.run(["bash", "-n", str(script)], check=True)

    @pytest.mark.parametrize("name", SHIPPED)
    def test_steps_are_those_of_the_script(self, written: dict[str, DryRun], name: str) -> None:
        script = (written[name].folder / "commands.sh").read_text()
        steps = json.loads((written[name].folder / "steps.json").read_text())["steps"]
        position = 0
        for number, step in enumerate(steps, start=1):
            position = script.index(f"# {number}. {step['name']}", position)
            for line in step["lines"]:
                position = script.index(line, position)

    @pytest.mark.parametrize("name", SHIPPED)
    def test_nothing_claims_to_be_packed(self, written: dict[str, DryRun], name: str) -> None:
        for file, text in texts_of(written[name]).items():
            assert "Written by" not in text, file
        assert f"Planned by a dry run of {name}, not to be served" in texts_of(written[name])["triton_repo/launch.sh"]

    @pytest.mark.parametrize("name", SHIPPED)
    def test_header_says_what_to_do_instead_and_how_to_get_there(self, written: dict[str, DryRun], name: str) -> None:
        header, _, rest = texts_of(written[name])["commands.sh"].partition("set -euo pipefail")
        assert "What these commands make cannot be served" in header
        assert f"specdeploy build {name}" in header
        assert "docker run -it --gpus all" in header
        assert "specdeploy build" not in rest
        assert written[name].blocker is None

    @pytest.mark.parametrize("name", SHIPPED)
    def test_told_warnings_are_printed(self, written: dict[str, DryRun], name: str) -> None:
        lines = written[name].describe()
        assert all(f"{check.name}: {check.detail}" in lines for check in written[name].told)

    @pytest.mark.parametrize("name", SHIPPED)
    def test_sizes_and_memory_are_counted(self, written: dict[str, DryRun], name: str) -> None:
        build = planned(written[name])
        assert build.memory is not None
        assert build.memory.max_sequences >= 1
        lines = sum(line.num_bytes for line in build.memory.lines)
        assert lines + build.memory.kv_bytes == build.memory.num_bytes
        assert all(checkpoint.num_bytes for checkpoint in build.checkpoints)
        assert all(engine.kv_tokens == build.memory.kv_tokens[engine.model] for engine in build.engines)
        script = (written[name].folder / "commands.sh").read_text()
        assert "= key/value caches" in script

    @pytest.mark.parametrize("name", SHIPPED)
    def test_only_the_spelling_of_eagle3_is_unresolved(self, written: dict[str, DryRun], name: str) -> None:
        unresolved = written[name].unresolved
        assert planned(written[name]).unresolved == unresolved
        document = (written[name].folder / "UNCHECKED.md").read_text()
        assert ("## Unresolved" in document) == (name == "llama-3-1-8b-eagle3") == bool(unresolved)
        assert all(sentence in document for sentence in (*unresolved, *written[name].not_checked))
        assert not any("not on this machine" in sentence for sentence in written[name].not_checked)

    @pytest.mark.parametrize("name", SHIPPED)
    def test_expected_requests_find_room(self, written: dict[str, DryRun], name: str) -> None:
        """At the concurrency the decision is made for, full-length requests fit."""
        memory = planned(written[name]).memory
        assert memory is not None
        assert memory.max_sequences >= load(name).config.traffic.expected_concurrency


class TestLlmApi:
    @pytest.mark.parametrize("name", LLMAPI)
    def test_arguments_are_those_of_the_version(self, written: dict[str, DryRun], name: str) -> None:
        run = written[name]
        config = load(name).config
        for file in [file for file in run.files if file.startswith("llm_args")]:
            arguments = yaml.safe_load((run.folder / file).read_text())
            problems = validate_llm_args(arguments, version=VERSION, probe=None, config=config)
            assert problems == (list(run.unresolved) if file == "llm_args.yaml" else [])
            planted = {**arguments, "max_batch_sise": 1}
            assert len(validate_llm_args(planted, version=VERSION, probe=None, config=config)) == len(problems) + 1

    def test_paths_are_those_of_the_container(self, written: dict[str, DryRun]) -> None:
        arguments = yaml.safe_load((written["llama-3-1-8b-eagle3"].folder / "llm_args.yaml").read_text())
        assert arguments["model"] == "/workspace/checkpoints/meta-llama--Llama-3.1-8B-Instruct/main"
        draft = arguments["speculative_config"]["speculative_model_dir"]
        assert draft == "/workspace/checkpoints/yuhuili--EAGLE3-LLaMA3.1-Instruct-8B/main"

    def test_containers_see_the_checkpoints(self, written: dict[str, DryRun]) -> None:
        script = (written["llama-3-1-8b-eagle3"].folder / "triton_repo" / "docker-run.sh").read_text()
        for checkpoint in planned(written["llama-3-1-8b-eagle3"]).checkpoints:
            assert f"--volume={checkpoint.folder}:{checkpoint.folder}:ro" in script

    def test_swap_leaves_the_load_to_the_engine(self, written: dict[str, DryRun]) -> None:
        swap = yaml.safe_load((written["mixtral-8x7b-ngram"].folder / "llm_args.yaml").read_text())
        assert swap["speculative_config"]["draft_len_schedule"] == {1: 2, 17: 0}
        beside = yaml.safe_load((written["qwen3-8b-ngram"].folder / "llm_args.yaml").read_text())
        assert "draft_len_schedule" not in beside["speculative_config"]

    @pytest.mark.parametrize("name", LLMAPI)
    def test_refused_sampling_is_told(self, written: dict[str, DryRun], name: str) -> None:
        document = (written[name].folder / "UNCHECKED.md").read_text()
        is_swap = name in ("deepseek-v3-mtp", "mixtral-8x7b-ngram")
        assert ("requests that sample (temperature above 0) are refused" in document) is is_swap
        text = " ".join((DEPLOYMENTS / f"{name}.yaml").read_text().replace("#", "").split())
        assert ("temperature above 0 are refused" in text) is is_swap

    @pytest.mark.parametrize("name", LLMAPI)
    def test_no_plan_is_lost(self, written: dict[str, DryRun], name: str) -> None:
        """K by load is kept by the router or by the engine in every shipped file."""
        assert not any("is not kept" in check.detail for check in planned(written[name]).checks)

    def test_recorded_probe_resolves(self, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        use_hub_cache(monkeypatch, hub)
        names = yaml.safe_load((write(load("llama-3-1-8b-eagle3"), tmp_path).folder / "llm_args.yaml").read_text())
        speculative = tuple(names["speculative_config"])
        probe = ProbeRecord(
            version="1.2.1",
            spellings={"eagle3": "Eagle3"},
            speculative_fields={"Eagle3": speculative},
            llm_args_fields=tuple(names),
            kv_cache_fields=tuple(names["kv_cache_config"]),
            how="by hand",
            created_at="",
        )

        run = write(load("llama-3-1-8b-eagle3"), tmp_path, probe)

        assert run.unresolved == ()
        assert planned(run).engines[0].decoding == "Eagle3"
        assert "unresolved" not in (run.folder / "llm_args.yaml").read_text()
        write_json_atomically(probe_path(tmp_path, "1.2.1"), probe)
        assert write(load("llama-3-1-8b-eagle3"), tmp_path) == run


class TestRunAgain:
    """What a person changed, and what an earlier run made, is not lost by running the script again."""

    def test_edited_arguments_are_not_written_over(self, written: dict[str, DryRun], tmp_path: Path) -> None:
        steps = json.loads(texts_of(written["qwen3-8b-ngram"])["steps.json"])["steps"]
        (place,) = [step for step in steps if step["kind"] == "place"]
        built, here = tmp_path / "built", tmp_path / "here"
        built.mkdir()
        here.mkdir()
        for name in ("llm_args.yaml", "llm_args_plain.yaml"):
            (here / name).write_text("planned")
        lines = [line for line in place["lines"] if "llm_args" in line]
        script = "\n".join(["set -e", f"here={here}", *lines]).replace("/workspace/engines/qwen3-8b-ngram", str(built))

        def run() -> "subprocess.CompletedProcess[str]":
            return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)

        assert run().returncode == run().returncode == 0
        (built / "llm_args.yaml").write_text("edited")
        refused = run()
        assert refused.returncode == 1
        assert "edit that one" in refused.stderr
        assert (built / "llm_args.yaml").read_text() == "edited"

    def test_engines_of_an_earlier_run_stop_it_at_once(self, written: dict[str, DryRun], tmp_path: Path) -> None:
        steps = json.loads(texts_of(written["vicuna-13b-medusa"])["steps.json"])["steps"]
        (line,) = steps[0]["lines"]
        script = line.replace("/workspace/engines/vicuna-13b-medusa", str(tmp_path))
        assert subprocess.run(["bash", "-c", script], check=False).returncode == 0
        (tmp_path / "target_plain_engine").mkdir()
        refused = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
        assert refused.returncode == 1
        assert "target_plain_engine is there already" in refused.stderr


class TestSeveralNodes:
    """A build runs on one: neither it nor its script tries what needs the others."""

    def test_script_does_not_warm_up(self, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        use_hub_cache(monkeypatch, hub)
        loaded = changed(tmp_path, "deepseek-v3-mtp", "tensor_parallel: 8 #", "num_nodes: 2\n  tensor_parallel: 16 #")

        run = write(loaded, tmp_path / "engines")

        script = (run.folder / "commands.sh").read_text()
        assert "trtllm_warmup" not in script
        assert "# not run: the deployment spans 2 nodes and a build runs on one" in script
        last = json.loads((run.folder / "steps.json").read_text())["steps"][-1]
        assert (last["name"], last["lines"], last["outputs"], last["needs_gpu"]) == ("warm-up", [], [], False)

    def test_script_still_asks_for_an_open_spelling(
        self, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use_hub_cache(monkeypatch, hub)
        nodes = "  gpu: h200\n  num_nodes: 2\n  tensor_parallel: 2"
        loaded = changed(tmp_path, "llama-3-1-8b-eagle3", "  gpu: h200", nodes)

        script = (write(loaded, tmp_path / "engines").folder / "commands.sh").read_text()

        assert "trtllm_warmup" not in script
        assert "if grep -n ' unresolved:'" in script


def engine_commands(run: DryRun) -> list[tuple[str, list[str]]]:
    """(program or script, arguments) of every command that makes something."""
    found = []
    for step in json.loads((run.folder / "steps.json").read_text())["steps"]:
        if step["kind"] != "command":
            continue
        words = shlex.split(step["lines"][0].partition(" && ")[2])
        found.append((words[1], words[2:]) if words[0] == "python3" else (words[0], words[1:]))
    return found


class TestEngines:
    @pytest.mark.parametrize("name", ENGINE)
    def test_every_flag_is_in_the_facts(self, written: dict[str, DryRun], name: str) -> None:
        scripts = {"medusa": ConvertScript.MEDUSA, "llama": ConvertScript.LLAMA}
        commands = engine_commands(written[name])
        assert sum(program == "trtllm-build" for program, _ in commands) == 2
        for program, arguments in commands:
            if program == "trtllm-build":
                flags = build_flags(VERSION)
            else:
                flags = convert_flags(scripts[Path(program).parent.name])
            assert command_problems(arguments, flags) == []
            assert command_problems([*arguments, "--no_such_flag"], flags)

    def test_engines_are_built_for_their_part(self, written: dict[str, DryRun]) -> None:
        target, draft = [
            words for program, words in engine_commands(written["llama-3-3-70b-draft-1b"]) if program == "trtllm-build"
        ]
        assert target[target.index("--speculative_decoding_mode") + 1] == "draft_tokens_external"
        assert target[target.index("--max_draft_len") + 1] == "10"
        assert "--speculative_decoding_mode" not in draft

    @pytest.mark.parametrize("name", ENGINE)
    def test_repository_names_what_the_script_puts_together(self, written: dict[str, DryRun], name: str) -> None:
        run = written[name]
        script = (run.folder / "commands.sh").read_text()
        for engine in planned(run).engines:
            path = run.folder / "triton_repo" / engine.model / "config.pbtxt"
            model = parse_pbtxt(path.read_text(), str(path))
            parameters = {key: entry.string_value for key, entry in model.parameters.items()}
            assert parameters["gpt_model_path"] == f"/workspace/engines/{name}/{engine.folder}"
            assert f"/workspace/engines/{name}/{engine.folder}" in script
            assert parameters["max_tokens_in_paged_kv_cache"] == str(engine.kv_tokens)
            assert engine.max_batch_size == model.max_batch_size

    def test_ranks_of_four_gpus(self, written: dict[str, DryRun]) -> None:
        build = planned(written["llama-3-1-405b-draft-3b"])
        assert {engine.model: engine.gpu_ids for engine in build.engines} == {
            EngineModel.TARGET: (0, 1, 2, 3),
            EngineModel.DRAFT: (0, 1, 2, 3),
        }
        assert "rank3.engine" in (written["llama-3-1-405b-draft-3b"].folder / "commands.sh").read_text()


class TestWhatDoesNotFit:
    """The number of GPUs and instances that each file chose is the smallest, or largest, that works."""

    @pytest.mark.parametrize(
        ("name", "old", "new"),
        [
            ("deepseek-v3-mtp", "plain_instance: swap", "plain_instance: beside"),
            ("mixtral-8x7b-ngram", "plain_instance: swap", "plain_instance: beside"),
            ("mixtral-8x7b-ngram", "tensor_parallel: 2", "tensor_parallel: 1"),
            ("llama-3-1-405b-draft-3b", "  tensor_parallel: 4 ", "  tensor_parallel: 2 "),
        ],
    )
    def test_is_refused_with_the_arithmetic(
        self, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str
    ) -> None:
        use_hub_cache(monkeypatch, hub)

        with pytest.raises(ConfigError, match="weights of target"):
            write(changed(tmp_path, name, old, new), tmp_path / "engines")

        assert not (tmp_path / "engines" / "dry-run").exists()


class TestWithoutCheckpoints:
    @pytest.mark.parametrize("name", SHIPPED)
    def test_is_written_and_says_what_is_open(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        use_hub_cache(monkeypatch, tmp_path / "empty")

        run = write_dry_run(load(name), tmp_path / "engines", consent=Consent(), probe=None)

        build = planned(run)
        assert build.memory is None
        assert all(engine.kv_tokens is None for engine in build.engines)
        assert {checkpoint.num_bytes for checkpoint in build.checkpoints} == {None}
        for checkpoint in build.checkpoints:
            assert any(checkpoint.reference in sentence for sentence in run.not_checked)
        assert any(sentence.startswith("memory: ") for sentence in run.not_checked)
        assert "triton_repo/llm/config.pbtxt" in run.files

    def test_script_with_placeholders_ends_before_it_fetches_anything(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use_hub_cache(monkeypatch, tmp_path / "empty")

        run = write(load("llama-3-3-70b-draft-1b"), tmp_path / "engines")

        assert run.blocker is not None
        assert "<family>" in run.blocker
        script = run.folder / "commands.sh"
        done = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=False, env={"PATH": "/bin"})
        assert done.returncode == 1
        assert done.stderr.strip() == run.blocker
        document = (run.folder / "UNCHECKED.md").read_text()
        assert document.splitlines()[2] == f"{run.blocker}."
        assert document.count("max_tokens_in_paged_kv_cache") == 1
        assert run.describe()[0] == run.describe()[-1]
        assert run.describe()[1] == run.blocker
        assert run.not_checked[0].startswith("target nvidia/Llama-3.3-70B-Instruct-FP8 is not on this machine")
        assert run.not_checked[-1].startswith("Whether drafting is faster")

    @pytest.mark.parametrize("lane", ["trtllm_engine", "trtllm_llmapi"])
    def test_folder_without_weights_counts_as_not_here(self, tmp_path: Path, lane: str) -> None:
        settings: dict[str, Any] = {
            "lane": lane,
            "dtype": "bfloat16",
            "target": {"checkpoint": "../models/mine"},
            "speculation": {"method": "lookahead", "max_draft_len": 83}
            if lane == "trtllm_engine"
            else {"method": "ngram", "max_draft_len": 2},
            "tensorrt_llm": {"version": "1.2.1", "gpu": "h100"},
        }
        path = write_deployment(tmp_path / "configs", "mine", settings)
        folder = (path.parent / "../models/mine").resolve()
        folder.mkdir(parents=True)
        (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
        (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')

        run = write(load_deployment(path), tmp_path / "engines")

        sentences = [one for one in run.not_checked if one.startswith("target ../models/mine")]
        assert "target ../models/mine: its folder on this machine holds no weights, so it was treated as not here" in (
            sentences
        )
        assert planned(run).memory is None

    def test_revision_is_downloaded_and_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        use_hub_cache(monkeypatch, tmp_path / "empty")
        loaded = changed(
            tmp_path, "qwen3-8b-ngram", "checkpoint: Qwen/Qwen3-8B #", "checkpoint: Qwen/Qwen3-8B\n  revision: abc123 #"
        )

        run = write(loaded, tmp_path / "engines")

        script = (run.folder / "commands.sh").read_text()
        assert "hf download Qwen/Qwen3-8B --revision abc123" in script
        assert "--local-dir /workspace/checkpoints/Qwen--Qwen3-8B/abc123" in script
        assert planned(run).checkpoints[0].revision == "abc123"


class TestFolder:
    def test_is_replaced_whole(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        use_hub_cache(monkeypatch, tmp_path / "empty")
        first = write(load("qwen3-8b-ngram"), tmp_path / "engines")
        (first.folder / "left over").write_text("")
        (first.folder.parent / ".qwen3-8b-ngram.1.partial").mkdir()

        again = write(load("qwen3-8b-ngram"), tmp_path / "engines")

        assert again == first
        assert not (first.folder / "left over").exists()
        assert [path.name for path in first.folder.parent.iterdir()] == ["qwen3-8b-ngram"]

    def test_folder_checkpoint_is_copied_by_the_reader(self, tmp_path: Path) -> None:
        settings: dict[str, Any] = {
            "lane": "trtllm_llmapi",
            "dtype": "bfloat16",
            "target": {"checkpoint": "../models/mine"},
            "speculation": {"method": "ngram", "max_draft_len": 2},
            "tensorrt_llm": {"version": "1.2.1", "gpu": "h100"},
        }
        path = write_deployment(tmp_path / "configs", "mine", settings)

        run = write(load_deployment(path), tmp_path / "engines")

        script = (run.folder / "commands.sh").read_text()
        assert "hf download" not in script
        assert "copy or mount the folder ../models/mine to /workspace/checkpoints/mine/main" in script

    def test_lane_torch_has_none(self, tmp_path: Path) -> None:
        with pytest.raises(BuildError, match="builds on any machine"):
            write(load("demo"), tmp_path)

    def test_lanes(self) -> None:
        lanes = {name: load(name).config.lane for name in SHIPPED}
        assert {name for name, lane in lanes.items() if lane is Lane.TRTLLM_LLMAPI} == set(LLMAPI)
