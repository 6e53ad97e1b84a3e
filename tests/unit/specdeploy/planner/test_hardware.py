"""The GPUs of the TensorRT-LLM lanes."""

import pytest

from specdeploy.config.schema import Gpu
from specdeploy.planner.hardware import HARDWARE


def test_every_gpu_of_the_config_is_known() -> None:
    assert set(HARDWARE) == set(Gpu)
    assert {hardware.architecture for hardware in HARDWARE.values()} == {"sm90"}


# Total memory in MiB as nvidia-smi prints it for H100 80GB HBM3 and H200.
REPORTED_MIB = {Gpu.H100: 81_559, Gpu.H200: 143_771}


def test_memory_in_bytes() -> None:
    assert HARDWARE[Gpu.H100].memory_bytes == 84_825_604_096
    assert HARDWARE[Gpu.H200].memory_bytes == 141_000_000_000


@pytest.mark.parametrize("gpu", list(Gpu))
def test_a_budget_never_has_more_than_a_driver_reports(gpu: Gpu) -> None:
    reported = REPORTED_MIB[gpu] * 2**20
    assert 0.93 * reported < HARDWARE[gpu].memory_bytes < reported - 2**28
    assert "drivers report" in HARDWARE[gpu].source
