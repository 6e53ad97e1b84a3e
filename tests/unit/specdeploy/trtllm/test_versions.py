"""Versions: parsing, the engine flow's window, the container matrix."""

import re

import pytest
from packaging.version import Version

from specdeploy.errors import BuildError
from specdeploy.trtllm.facts import build_flags_notes
from specdeploy.trtllm.versions import CONTAINERS, container_of, engine_flow_refusal, image_of, parse_version


def test_parses_releases_and_candidates_in_order() -> None:
    spelled = ["1.0.0", "1.0.3.2510", "1.2.0rc6", "1.2.0", "1.2.1", "1.3.0rc27", "1.4.0rc4"]
    parsed = [parse_version(text) for text in spelled]
    assert parsed == sorted(parsed)


@pytest.mark.parametrize("text", ["", "latest", "1.2.x", "v one"])
def test_nonsense_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(BuildError, match=r"tensorrt_llm\.version: .* is no version.*such as 1\.2\.1"):
        parse_version(text)


@pytest.mark.parametrize("text", ["1.0.0", "1.0.3.2510", "1.1.0", "1.2.0rc6", "1.2.0", "1.2.1", "1.2.1.post1"])
def test_the_engine_flow_is_there(text: str) -> None:
    assert engine_flow_refusal(Version(text)) is None


@pytest.mark.parametrize("text", ["1.2.2", "1.3.0rc1", "1.3.0rc27", "1.3.0", "2.0"])
def test_the_engine_flow_is_gone(text: str) -> None:
    reason = engine_flow_refusal(Version(text))
    assert reason is not None
    assert "removed after 1.2.1" in reason


@pytest.mark.parametrize("text", ["0.10.0", "0.21.0", "1.0.0rc4"])
def test_the_engine_flow_of_old_versions_is_not_known(text: str) -> None:
    assert "older than 1.0.0" in (engine_flow_refusal(Version(text)) or "")


def test_the_newest_container_of_a_version_is_chosen() -> None:
    container = container_of(Version("1.2.1"))
    assert container is not None
    assert container.tag == "26.07"
    assert container.tensorrt == "10.14.1.48"
    assert image_of(container) == "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"


@pytest.mark.parametrize("text", ["1.2.0rc6", "1.3.0rc27", "1.2.2", "0.17.0"])
def test_no_container_is_guessed(text: str) -> None:
    assert container_of(Version(text)) is None


def test_the_matrix_is_ordered_and_complete() -> None:
    tags = [container.tag for container in CONTAINERS]
    assert tags == sorted(tags, reverse=True)
    assert len(set(tags)) == len(tags)
    assert (tags[0], tags[-1]) == ("26.07", "25.03")
    for container in CONTAINERS:
        assert re.fullmatch(r"2[56]\.\d\d", container.tag)
        assert all([container.tensorrt, container.cuda, container.pytorch, container.python, container.driver])
        assert Version(container.tensorrt_llm) >= Version("0.18.0")


def test_borrowed_build_flags_are_told() -> None:
    assert build_flags_notes(Version("1.2.1")) == ()
    assert len(build_flags_notes(Version("1.0.0"))) == 1
    assert "plugin flags" in build_flags_notes(Version("1.0.0"))[0]
    assert len(build_flags_notes(Version("1.0.3.2510"))) == 2
    assert "those of 1.2.1 are taken" in build_flags_notes(Version("1.1.0"))[0]
