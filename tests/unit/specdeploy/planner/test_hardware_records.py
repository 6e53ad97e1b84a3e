"""Records and tables of devices: what is shipped, and what is said about files that are wrong."""

import shutil
from pathlib import Path

import pytest

from helpers.cost_models import CONFIGS
from specdeploy.config.schema import Gpu
from specdeploy.errors import ConfigError
from specdeploy.planner.hardware import HARDWARE
from specdeploy.planner.hardware_records import list_hardware, load_hardware, load_kernel_tables
from specdeploy.planner_contract import Precision

FOLDER = CONFIGS / "hardware"


def test_the_devices_that_are_shipped() -> None:
    names = {"a100-sxm-80gb", "b200-sxm", "h100-pcie", "h100-sxm", "h200-sxm", "l40s", "trainium2"}
    assert names <= set(list_hardware(CONFIGS))


@pytest.mark.parametrize("name", list_hardware(CONFIGS))
def test_a_record_is_called_as_its_file_and_its_tables_can_be_read(name: str) -> None:
    record = load_hardware(name, CONFIGS)
    assert record.name == name
    tables = load_kernel_tables(record, FOLDER)
    assert set(tables.linear) == set(record.linear_tables)
    assert set(record.linear_tables) <= set(record.peak_flops)
    assert (tables.all_reduce is not None) == (record.all_reduce_table is not None)


@pytest.mark.parametrize("gpu", list(Gpu))
def test_a_deployments_gpu_is_an_alias_with_the_memory_of_the_builders(gpu: Gpu) -> None:
    record = load_hardware(gpu, CONFIGS)
    assert record.name == f"{gpu}-sxm"
    assert record.memory_bytes == HARDWARE[gpu].memory_bytes


def test_tables_are_small_and_name_their_source_and_licence() -> None:
    files = sorted((FOLDER / "tables").glob("*.csv"))
    assert sum(file.stat().st_size for file in files) < 1.5e6
    for file in files:
        head = file.read_text().splitlines()[0]
        assert "aiconfigurator@095f58a51c4ca8e61b66ec108d86f223f8d559ce" in head
        assert "Apache-2.0" in head


def test_an_unknown_device_gets_the_known_ones_named() -> None:
    with pytest.raises(ConfigError, match=r"no device 'h300'.*a100-sxm-80gb, b200-sxm, h100-pcie"):
        load_hardware("h300", CONFIGS)


def test_a_record_may_lie_anywhere(tmp_path: Path) -> None:
    copy = shutil.copy(FOLDER / "l40s.yaml", tmp_path / "mine.yaml")
    assert load_hardware(str(copy), CONFIGS).name == "l40s"


def broken(tmp_path: Path, text: str | None) -> str:
    """The message about an L40S whose bfloat16 table holds `text`."""
    tables = tmp_path / "tables"
    shutil.copytree(FOLDER / "tables", tables)
    file = tables / "l40s.linear.bfloat16.csv"
    file.unlink()
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError) as refusal:
        load_kernel_tables(load_hardware("l40s", CONFIGS), tmp_path)
    return str(refusal.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("", "no table of kernels"),
        ("n,k,1,2\n512,512,4\n", "1 cells where the head line has 2 sizes"),
        ("n,k,1,2\n512,512,4,fast\n", "could not convert"),
        ("n,k,1,2\n512,512,4,0\n", "not above 0"),
        ("n,k,one\n", "invalid literal"),
    ],
)
def test_a_broken_table_is_named(tmp_path: Path, text: str | None, said: str) -> None:
    message = broken(tmp_path, text)
    assert "l40s.linear.bfloat16.csv" in message
    assert said in message


def test_fp8_tables_leave_out_sizes_that_engines_pad_away() -> None:
    tables = load_kernel_tables(load_hardware("h100-sxm", CONFIGS), FOLDER)
    assert 257 in tables.linear[Precision.BFLOAT16].tokens
    assert not {17, 33, 257} & set(tables.linear[Precision.FP8].tokens)
