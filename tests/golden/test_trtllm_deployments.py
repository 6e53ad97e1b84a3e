"""What is generated for every shipped TensorRT-LLM deployment, per upstream version; `make golden` rewrites it.

tests/golden/trtllm/<deployment>/<version>[-<spelling>]/: commands, arguments files and, for the version that the
deployment itself names, Triton configs and launch script. The checkpoints are fabricated at their true shapes.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.llmapi_deployment import PROBES_121
from helpers.shipped_checkpoints import use_hub_cache
from specdeploy.builders.dry_run import write_dry_run
from specdeploy.builders.pair import Consent
from specdeploy.config.load import LoadedDeployment, list_deployments, load_deployment
from specdeploy.contract import Lane
from specdeploy.trtllm.probe_record import ProbeRecord

GOLDEN = Path(__file__).parent / "trtllm"
CONFIGS = Path(__file__).parents[2] / "configs"
REWRITE = "SPECDEPLOY_REWRITE_GOLDEN"
CONSENT = Consent(allow=("aux-layers-guessed",))  # the published EAGLE-3 head names no auxiliary layers
OWN_VERSION = "1.2.1"

SHIPPED = [
    name
    for name in list_deployments(CONFIGS)
    if load_deployment(name, CONFIGS).config.lane in (Lane.TRTLLM_ENGINE, Lane.TRTLLM_LLMAPI)
]
# Folder name -> version, and for 1.2.1 in the LLM API the outcome of the probe.
ENGINE_VARIANTS: Mapping[str, tuple[str, ProbeRecord | None]] = {"1.0.0": ("1.0.0", None), "1.2.1": ("1.2.1", None)}
LLMAPI_VARIANTS: Mapping[str, tuple[str, ProbeRecord | None]] = {
    "1.0.0": ("1.0.0", None),
    "1.2.1-unprobed": ("1.2.1", None),
    **{f"1.2.1-{record.spellings['eagle3']}": ("1.2.1", record) for record in (PROBES_121[0], PROBES_121[-1])},
    "1.3.0rc27": ("1.3.0rc27", None),
}


def variants_of(name: str) -> Mapping[str, tuple[str, ProbeRecord | None]]:
    is_engine = load_deployment(name, CONFIGS).config.lane is Lane.TRTLLM_ENGINE
    return ENGINE_VARIANTS if is_engine else LLMAPI_VARIANTS


CASES = [(name, variant) for name in SHIPPED for variant in variants_of(name)]


def with_version(loaded: LoadedDeployment, version: str) -> LoadedDeployment:
    assert loaded.config.tensorrt_llm is not None
    section = loaded.config.tensorrt_llm.model_copy(update={"version": version})
    return replace(loaded, config=loaded.config.model_copy(update={"tensorrt_llm": section}))


def generated(name: str, variant: str, engines: Path) -> dict[str, str]:
    """The files worth reading: relative path -> text."""
    version, probe = variants_of(name)[variant]
    run = write_dry_run(with_version(load_deployment(name, CONFIGS), version), engines, consent=CONSENT, probe=probe)
    wanted = ["commands.sh", "llm_args.yaml", "llm_args_plain.yaml", "UNCHECKED.md"]
    if variant == OWN_VERSION or variant.endswith("unprobed"):
        models = ("target", "draft", "target_plain")
        wanted += [f"triton_repo/{model}/config.pbtxt" for model in ("llm", *models)]
        wanted += [f"triton_repo/{name}" for name in ("launch.sh", "launch.slurm", "docker-run.sh")]
    return {file: (run.folder / file).read_text() for file in wanted if file in run.files}


def checked_in(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_generated_files_are_those_checked_in(
    name: str, variant: str, shipped_hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_hub_cache(monkeypatch, shipped_hub)
    found, folder = generated(name, variant, tmp_path), GOLDEN / name / variant
    if os.environ.get(REWRITE):
        shutil.rmtree(folder, ignore_errors=True)
        for file, text in found.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text)
    assert found == checked_in(folder), "read the difference, then run `make golden`"


def test_every_file_of_a_version_names_it() -> None:
    for name, variant in CASES:
        version = variants_of(name)[variant][0]
        for file, text in checked_in(GOLDEN / name / variant).items():
            if Path(file).name in ("launch.slurm", "docker-run.sh") or file == "triton_repo/llm/config.pbtxt":
                continue  # the first two name the image of the version, the last is the same in every lane
            assert f"TensorRT-LLM {version}" in text, (name, variant, file)


def test_nothing_else_is_checked_in() -> None:
    folders = {path.relative_to(GOLDEN).as_posix() for path in GOLDEN.glob("*/*")}
    assert folders == {f"{name}/{variant}" for name, variant in CASES}


def test_what_a_version_spells_differs_where_it_must() -> None:
    """The traps of the versions, read off the checked-in files."""

    def arguments(variant: str, name: str = "llama-3-1-8b-eagle3") -> str:
        return (GOLDEN / name / variant / "llm_args.yaml").read_text()

    assert "decoding_type: Eagle\n" in arguments("1.0.0")
    assert "decoding_type: unresolved:Eagle|Eagle3\n" in arguments("1.2.1-unprobed")
    assert "decoding_type: Eagle\n" in arguments("1.2.1-Eagle")
    assert "decoding_type: Eagle3\n" in arguments("1.2.1-Eagle3")
    assert "decoding_type: Eagle3\n" in arguments("1.3.0rc27")
    assert "num_nextn_predict_layers: " in arguments("1.0.0", "deepseek-v3-mtp")
