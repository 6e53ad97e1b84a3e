"""What is gathered of an arm for an export, and where it goes."""

from pathlib import Path

import numpy as np
import pytest

from helpers.exported_runs import exported_record, failed_record
from specdeploy.run_contract import Arm, FailureKind, Load
from specdeploy_client.interchange.imported import ImportLabels
from specdeploy_client.interchange.samples import ArmSamples, export_name, open_atomically

LABELS = ImportLabels(segment="chat")


def test_a_broken_export_leaves_the_older_file(tmp_path: Path) -> None:
    path = tmp_path / "profile_export.jsonl"
    path.write_text("older")

    def write() -> None:
        with open_atomically(path) as file:
            file.write("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write()
    assert [one.read_text() for one in tmp_path.iterdir()] == ["older"]


@pytest.mark.parametrize(
    ("segment", "name"),
    [("chat", "chat-concurrency4-on"), ("../a b/ü", "_a_b__-concurrency4-on"), ("..", "segment-concurrency4-on")],
)
def test_names_of_files_stay_in_their_folder(segment: str, name: str) -> None:
    assert export_name((segment, Load(4), Arm.ON)) == name


def test_samples_are_of_answered_requests() -> None:
    samples = ArmSamples()
    for record in (exported_record(0), failed_record(1), exported_record(2, failure=FailureKind.CANCELLED)):
        samples.add(record)
    assert (samples.num_answered, samples.num_failed, samples.num_cancelled) == (1, 1, 1)
    assert np.asarray(samples.icl_ms).tolist() == [20.0, 30.0]
