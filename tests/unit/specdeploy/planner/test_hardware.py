"""The GPUs of the TensorRT-LLM lanes."""

from specdeploy.config.schema import Gpu
from specdeploy.planner.hardware import HARDWARE


def test_every_gpu_of_the_config_is_known() -> None:
    assert set(HARDWARE) == set(Gpu)
    assert {hardware.architecture for hardware in HARDWARE.values()} == {"sm90"}


def test_memory_in_bytes() -> None:
    assert HARDWARE[Gpu.H100].memory_bytes == 85_899_345_920
    assert HARDWARE[Gpu.H200].memory_bytes == 141_000_000_000
    assert all(hardware.source for hardware in HARDWARE.values())
