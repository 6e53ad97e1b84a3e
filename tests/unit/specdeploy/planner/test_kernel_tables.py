"""All-reduces, measured and not."""

import pytest

from helpers.cost_models import CONFIGS
from specdeploy.planner.hardware_records import load_hardware, load_kernel_tables
from specdeploy.planner.kernel_tables import NO_TABLES, AllReduceTable, KernelTables, all_reduce_seconds


def tables(engine: str) -> KernelTables:
    return load_kernel_tables(load_hardware("h200-sxm", CONFIGS), CONFIGS / "hardware", engine)


def table_of(engine: str) -> AllReduceTable:
    found = tables(engine).all_reduce
    assert found is not None
    return found


@pytest.mark.parametrize(("gpus", "measured_us"), [(2, 4.6), (4, 4.8), (8, 5.2)])
def test_one_token_of_hidden_8192(gpus: int, measured_us: float) -> None:
    assert table_of("vllm").seconds(gpus, 8192) * 1e6 == pytest.approx(measured_us, rel=0.02)


def test_every_engine_has_its_own_and_unknown_ones_take_vllms() -> None:
    assert table_of("tensorrt_llm").seconds(4, 8192) < table_of("vllm").seconds(4, 8192)
    assert table_of("sglang").implementation == "sglang"
    assert table_of("another").implementation == "vllm"


def test_it_rises_with_elements_and_gpus_and_one_gpu_needs_none() -> None:
    table = table_of("vllm")
    sizes = [2**power for power in range(6, 27)]
    for gpus in (2, 3, 4, 8, 16):
        seconds = [table.seconds(gpus, size) for size in sizes]
        assert seconds == sorted(seconds)
    assert table.seconds(1, 8192) == 0
    assert table.seconds(3, 8192) == table.seconds(4, 8192)
    assert table.seconds(64, 8192) == pytest.approx(2 * table.seconds(8, 8192))


def test_unmeasured_it_is_a_latency_and_the_bytes_on_the_link() -> None:
    assert all_reduce_seconds(NO_TABLES, 1e11, 4, 1e6) == pytest.approx(10e-6 + 3e6 / 1e11)
    assert all_reduce_seconds(NO_TABLES, None, 4, 1e6) == pytest.approx(10e-6)
    assert all_reduce_seconds(NO_TABLES, None, 1, 1e6) == 0
    assert all_reduce_seconds(tables("vllm"), 1e11, 4, 8192) == table_of("vllm").seconds(4, 8192)
