"""What is installed is found from metadata and nvidia-smi; what does not fit the config is said with its remedy."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.engine_deployments import EngineDeployment, install_standins
from helpers.trtllm_standins import Standins
from specdeploy.builders.trtllm_installation import (
    EXAMPLES_VARIABLE,
    TrtllmInstallation,
    check_installation,
    find_installation,
)
from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import Lane
from specdeploy.errors import BuildError


def no_gpu(_command: Sequence[str]) -> str:
    raise FileNotFoundError("nvidia-smi")


def config_of(tmp_path: Path, **options: Any) -> DeploymentConfig:
    return EngineDeployment(tmp_path).write("lookahead", with_checkpoints=False, **options).config


@pytest.fixture
def standins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Standins:
    return install_standins(tmp_path / "machine", monkeypatch)


def environment_of(standins: Standins) -> dict[str, str]:
    return {
        "PATH": str(standins.trtllm_build.parent),
        EXAMPLES_VARIABLE: str(standins.examples_root),
        "CUDA_VERSION": "13.1.0.036",
    }


def complete(version: str = "1.2.1") -> TrtllmInstallation:
    return TrtllmInstallation(
        version=version,
        tensorrt="10.14.1.48",
        cuda="13.1.0.036",
        gpu_architecture="sm90",
        trtllm_build=Path("/usr/local/bin/trtllm-build"),
        examples_root=Path("/app/examples"),
        python=Path(sys.executable),
        gpu_names=("NVIDIA H100 80GB HBM3",),
    )


class TestFind:
    def test_nothing_installed(self) -> None:
        assert find_installation({}, run=no_gpu) is None

    def test_everything_is_found_without_an_import(self, standins: Standins) -> None:
        lines = "9.0, NVIDIA H100 80GB HBM3\n9.0, NVIDIA H100 80GB HBM3\n"

        found = find_installation(environment_of(standins), run=lambda _command: lines)

        assert found == TrtllmInstallation(
            version="1.2.1",
            tensorrt="10.14.1.48",
            cuda="13.1.0.036",
            gpu_architecture="sm90",
            trtllm_build=standins.trtllm_build,
            examples_root=standins.examples_root,
            python=Path(sys.executable),
            gpu_names=("NVIDIA H100 80GB HBM3",) * 2,
        )
        assert "tensorrt_llm" not in sys.modules

    @pytest.mark.parametrize("failure", [FileNotFoundError("x"), subprocess.TimeoutExpired("nvidia-smi", 1.0)])
    def test_without_driver(self, failure: Exception, standins: Standins) -> None:
        def fail(_command: Sequence[str]) -> str:
            raise failure

        found = find_installation(environment_of(standins), run=fail)

        assert found is not None
        assert (found.gpu_architecture, found.gpu_names) == (None, ())

    def test_mixed_gpus_have_no_one_architecture(self, standins: Standins) -> None:
        found = find_installation(environment_of(standins), run=lambda _command: "9.0, H100\n8.0, A100\nnoise\n")

        assert found is not None
        assert found.gpu_architecture is None
        assert found.gpu_names == ("H100", "A100")

    def test_wrong_examples_folder_is_an_error(self, standins: Standins) -> None:
        with pytest.raises(BuildError, match=r"SPECDEPLOY_TRTLLM_EXAMPLES: /no/such is no folder"):
            find_installation({EXAMPLES_VARIABLE: "/no/such"}, run=no_gpu)

    def test_program_out_of_path(self, standins: Standins) -> None:
        found = find_installation({"PATH": "/no/such"}, run=no_gpu)

        assert found is not None
        assert found.trtllm_build is None

    def test_memory_where_the_driver_says_it(self, standins: Standins) -> None:
        lines = "9.0, NVIDIA H100 80GB HBM3, 81559\n9.0, NVIDIA H100 80GB HBM3, [N/A]\n"

        found = find_installation(environment_of(standins), run=lambda _command: lines)

        assert found is not None
        assert found.gpu_names == ("NVIDIA H100 80GB HBM3",) * 2
        assert found.gpu_memory_bytes == (81559 << 20,)

    def test_cuda_of_the_container_goes_before_the_package(
        self, standins: Standins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        info = tmp_path / "cuda" / "nvidia_cuda_runtime-13.0.96.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-cuda-runtime\nVersion: 13.0.96\n")
        monkeypatch.syspath_prepend(str(tmp_path / "cuda"))

        stated = find_installation(environment_of(standins), run=no_gpu)
        silent = find_installation({**environment_of(standins), "CUDA_VERSION": ""}, run=no_gpu)

        assert stated is not None
        assert silent is not None
        assert (stated.cuda, silent.cuda) == ("13.1.0.036", "13.0.96")


class TestCheck:
    def test_complete_one_has_no_problem(self, tmp_path: Path) -> None:
        assert check_installation(config_of(tmp_path), complete()) == []

    def test_missing_names_the_container(self, tmp_path: Path) -> None:
        (violation,) = check_installation(config_of(tmp_path), None, file="engine.yaml")

        assert str(violation).startswith("engine.yaml: tensorrt_llm.version: TensorRT-LLM is not installed")
        assert "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3" in violation.remedy

    def test_missing_without_a_known_container(self, tmp_path: Path) -> None:
        (violation,) = check_installation(config_of(tmp_path, section={"version": "1.2.0rc3"}), None)

        assert "no Triton container is known to carry it" in violation.remedy

    def test_other_version(self, tmp_path: Path) -> None:
        (violation,) = check_installation(config_of(tmp_path), complete("1.1.0"))

        assert violation.reason == "1.2.1 is not the installed version, 1.1.0"
        assert violation.remedy.startswith("Write 1.1.0, or build inside nvcr.io")

    @pytest.mark.parametrize("wanted", ["1.3.0rc27", "0.21.0"])
    @pytest.mark.parametrize("installed", [None, "1.2.1", "1.3.0rc27"])
    def test_no_machine_is_sent_for_that_could_not_build_either(
        self, wanted: str, installed: str | None, tmp_path: Path
    ) -> None:
        config = config_of(tmp_path, section={"version": wanted})

        assert check_installation(config, complete(installed) if installed else None) == []

    def test_programs_that_were_removed_are_not_missing(self, tmp_path: Path) -> None:
        bare = replace(complete("1.3.0rc27"), trtllm_build=None, examples_root=None)

        (violation,) = check_installation(config_of(tmp_path), bare)

        assert "installed: TensorRT-LLM 1.3.0rc27 has no engine flow" in violation.reason
        assert violation.remedy.startswith("Use lane trtllm_llmapi with version 1.3.0rc27, or build inside nvcr.io")

    def test_llm_api_may_be_looked_for_elsewhere(self, tmp_path: Path) -> None:
        config = config_of(tmp_path, section={"version": "1.3.0rc27"}).model_copy(update={"lane": Lane.TRTLLM_LLMAPI})

        (violation,) = check_installation(config, None)

        assert "Build on a machine that has TensorRT-LLM 1.3.0rc27" in violation.remedy

    @pytest.mark.parametrize("version", ["1.3.0rc27", "1.4.0rc1"])
    def test_engine_flow_is_gone(self, version: str, tmp_path: Path) -> None:
        (violation,) = check_installation(config_of(tmp_path), complete(version))

        assert "no engine flow" in violation.reason
        assert "trtllm_llmapi" in violation.remedy

    def test_nonsense_version(self, tmp_path: Path) -> None:
        (violation,) = check_installation(config_of(tmp_path), complete("unknown"))

        assert "'unknown', which is no version" in violation.reason

    def test_all_at_once(self, tmp_path: Path) -> None:
        bare = TrtllmInstallation("1.1.0", None, None, None, None, None, Path("python"), ("NVIDIA A100",))

        reasons = " ".join(violation.reason for violation in check_installation(config_of(tmp_path), bare))

        for part in ("not the installed version", "trtllm-build is not in PATH", "convert scripts", "NVIDIA A100"):
            assert part in reasons

    def test_llm_api_needs_no_build_program(self, tmp_path: Path) -> None:
        config = config_of(tmp_path).model_copy(update={"lane": Lane.TRTLLM_LLMAPI})
        bare = TrtllmInstallation("1.2.1", None, None, None, None, None, Path("python"))

        assert check_installation(config, bare) == []

    @pytest.mark.parametrize(
        ("gpu", "name", "mebibytes", "words"),
        [
            ("h200", "NVIDIA H200", 143771, None),
            ("h100", "NVIDIA H100 80GB HBM3", 81559, None),
            ("h100", "NVIDIA H100 SXM5 80GB", 81559, None),
            ("h200", "NVIDIA GH200 480GB", 97871, "is not what this machine has: NVIDIA GH200 480GB"),
            ("h100", "NVIDIA H100 PCIe", 81559, "is not what this machine has: NVIDIA H100 PCIe"),
            ("h100", "NVIDIA H100 NVL", 95830, "is not what this machine has: NVIDIA H100 NVL"),
            ("h100", "NVIDIA H100 96GB HBM3", 97871, "has 79.0 GiB, and this machine's NVIDIA H100 96GB HBM3 has 95.6"),
        ],
    )
    def test_model_of_the_gpu(self, gpu: str, name: str, mebibytes: int, words: str | None, tmp_path: Path) -> None:
        config = config_of(tmp_path, section={"gpu": gpu})
        machine = replace(complete(), gpu_names=(name,), gpu_memory_bytes=(mebibytes << 20,))

        found = check_installation(config, machine)

        assert [violation.key for violation in found] == ([] if words is None else ["tensorrt_llm.gpu"])
        assert words is None or words in found[0].reason

    def test_no_gpu_in_sight(self, tmp_path: Path) -> None:
        blind = replace(complete(), gpu_names=(), gpu_architecture=None)

        (violation,) = check_installation(config_of(tmp_path), blind)

        assert violation.key == "tensorrt_llm.gpu"
        assert "no GPU is visible (nvidia-smi shows none)" in violation.reason
        assert "--gpus all" in violation.remedy

    def test_h200_is_not_h100(self, tmp_path: Path) -> None:
        (violation,) = check_installation(config_of(tmp_path, section={"gpu": "h200"}), complete())

        assert violation.key == "tensorrt_llm.gpu"
        assert "NVIDIA H100 80GB HBM3" in violation.reason
