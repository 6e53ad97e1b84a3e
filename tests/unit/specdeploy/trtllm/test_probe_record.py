"""The file a probe leaves behind."""

from pathlib import Path

import pytest

from helpers.llmapi_deployment import make_probe
from specdeploy.errors import BuildError
from specdeploy.manifest import write_json_atomically
from specdeploy.trtllm.probe_record import load_probe, probe_path


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    record = make_probe("1.2.1", {"eagle3": None})
    path = probe_path(tmp_path, "1.2.1")
    assert path == tmp_path / "probes" / "tensorrt_llm-1.2.1.json"
    write_json_atomically(path, record)
    assert load_probe(path) == record


def test_a_missing_record_names_the_file_and_the_command(tmp_path: Path) -> None:
    path = probe_path(tmp_path, "1.2.1")
    with pytest.raises(BuildError, match=r"tensorrt_llm-1\.2\.1\.json: cannot be read.*Run `python -m specdeploy"):
        load_probe(path)


@pytest.mark.parametrize(
    ("text", "place"),
    [('{"version": "1.2.1"}', "spellings"), ("not json", "the file as a whole")],
)
def test_a_broken_record_names_what_is_broken(tmp_path: Path, text: str, place: str) -> None:
    path = tmp_path / "probe.json"
    path.write_text(text)
    with pytest.raises(BuildError, match=rf"probe\.json: {place}: .*Run `python -m"):
        load_probe(path)


def test_a_record_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "probe.json"
    record = make_probe("1.2.1").model_dump_json().replace('"how"', '"haw"')
    path.write_text(record)
    with pytest.raises(BuildError, match="how"):
        load_probe(path)
