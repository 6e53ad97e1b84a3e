from pathlib import Path

import numpy as np
import pytest

from helpers.simulator_standins import traffic_of_lists
from specdeploy.errors import ConfigError
from specdeploy.planner.simulated_traffic import SimulatedTraffic
from specdeploy.planner.traffic import load_mix, mix_path, traffic_of
from specdeploy.planner_contract import Arrivals, LengthShape, MixSegment, TrafficMix

CONFIGS = Path(__file__).parents[4] / "configs"
SHIPPED = (
    "azure-conversation",
    "azure-code",
    "mooncake-conversation",
    "arxiv-summarisation",
    "chat-code-summarisation",
)


def mix_of(*segments: MixSegment, **arrivals: object) -> TrafficMix:
    entries = {"kind": "random", "request_rate": 5.0, **arrivals}
    return TrafficMix(schema_version=1, name="mix", segments=segments, arrivals=Arrivals.model_validate(entries))


def shaped(name: str, mean: float, cv: float, share: float = 1.0) -> MixSegment:
    shape = LengthShape(mean=mean, cv=cv)
    return MixSegment(name=name, share=share, input_tokens=shape, output_tokens=shape)


def columns(traffic: SimulatedTraffic) -> list[object]:
    arrivals = [] if traffic.arrival_s is None else traffic.arrival_s.tolist()
    return [arrivals, traffic.input_tokens.tolist(), traffic.output_tokens.tolist(), traffic.segment.tolist()]


def errors_of(path: Path, text: str) -> list[str]:
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_mix(path)
    return [str(violation) for violation in raised.value.violations]


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_mixes_load_and_give_traffic(name: str) -> None:
    mix = load_mix(name, CONFIGS)
    assert mix.name == name
    traffic = traffic_of(mix, 50, 1, mix_path(name, CONFIGS).parent)
    assert traffic.num_requests == 50
    assert traffic.segment_names == tuple(segment.name for segment in mix.segments)


def test_a_recorded_mix_is_its_trace() -> None:
    traffic = traffic_of(load_mix("azure-conversation", CONFIGS), None, 1, CONFIGS / "traffic")
    assert traffic.num_requests == 19_366
    assert traffic.arrival_s is not None
    assert traffic.arrival_s[1] == 4.314579


def test_recorded_traces_are_merged_by_time(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("arrival_s,input_tokens,output_tokens\n0,1,1\n4,2,2\n")
    (tmp_path / "b.csv").write_text("arrival_s,input_tokens,output_tokens\n0,3,3\n1,4,4\n")
    mix = mix_of(MixSegment(name="a", trace="a.csv"), MixSegment(name="b", trace="b.csv"), kind="trace")
    assert columns(traffic_of(mix, 3, 0, tmp_path)) == [[0.0, 0.0, 1.0], [1, 3, 4], [1, 3, 4], [0, 1, 1]]


def test_lengths_without_arrivals_cannot_be_replayed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("input_tokens,output_tokens\n1,1\n")
    with pytest.raises(ConfigError, match=r"a\.csv: has no arrivals to replay"):
        traffic_of(mix_of(MixSegment(name="a", trace="a.csv"), kind="trace"), None, 0, tmp_path)


def test_shapes_have_their_mean_and_spread() -> None:
    traffic = traffic_of(mix_of(shaped("chat", 300, 1.5)), 40_000, 3, CONFIGS)
    lengths = traffic.input_tokens
    assert float(lengths.mean()) == pytest.approx(300, rel=0.04)
    assert float(lengths.std() / lengths.mean()) == pytest.approx(1.5, rel=0.1)
    assert set(traffic_of(mix_of(shaped("chat", 300, 0)), 100, 3, CONFIGS).output_tokens.tolist()) == {300}


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_arrivals_have_their_rate_and_burstiness(cv: float) -> None:
    traffic = traffic_of(mix_of(shaped("chat", 3, 0), request_rate=5.0, cv=cv), 40_000, 3, CONFIGS)
    assert traffic.arrival_s is not None
    gaps = np.diff(traffic.arrival_s)
    assert traffic.request_rate == pytest.approx(5.0, rel=0.06)
    assert float(gaps.std() / gaps.mean()) == pytest.approx(cv, rel=0.05)


def test_segments_have_their_shares_and_lengths() -> None:
    traffic = traffic_of(mix_of(shaped("a", 10, 0, 0.25), shaped("b", 20, 0, 0.75)), 20_000, 3, CONFIGS)
    assert float(traffic.segment.mean()) == pytest.approx(0.75, abs=0.015)
    assert set(traffic.input_tokens[traffic.segment == 1].tolist()) == {20}


def test_a_closed_loop_has_no_arrivals() -> None:
    mix = mix_of(shaped("chat", 3, 0), kind="closed", concurrency=4)
    assert traffic_of(mix, 10, 0, CONFIGS).arrival_s is None


def test_a_seed_gives_the_same_requests_again() -> None:
    mix = mix_of(shaped("chat", 300, 1))
    first, again, other = (columns(traffic_of(mix, 100, seed, CONFIGS)) for seed in (1, 1, 2))
    assert first == again != other


def test_an_unknown_name_lists_those_that_exist() -> None:
    with pytest.raises(ConfigError, match="Did you mean azure-code"):
        load_mix("azure-cod", CONFIGS)


def test_everything_wrong_with_a_mix_is_named(tmp_path: Path) -> None:
    text = """
schema_version: 1
name: mix
segments:
  - {name: a, share: 0.5, trace: none.csv}
  - {name: a, share: 0.2, input_tokens: {mean: 5}, output_tokens: {mean: 5}}
arrivals: {kind: random, request_rate: 1.0}
"""
    errors = errors_of(tmp_path / "mix.yaml", text)
    assert [error.split(": ", 2)[1] for error in errors] == ["segments", "segments", "segments[0].trace"]
    assert "add up to 0.7" in errors[1]
    replayed = text.replace("kind: random", "kind: trace").replace("name: a, share: 0.2", "name: b")
    assert "segments[1]" in errors_of(tmp_path / "mix.yaml", replayed)[1]


def test_columns_that_contradict_each_other_are_no_traffic() -> None:
    with pytest.raises(ValueError, match="no requests"):
        traffic_of_lists([], [], [])
    with pytest.raises(ValueError, match="never falling"):
        traffic_of_lists([1.0, 0.0], [1, 1], [1, 1])
    with pytest.raises(ValueError, match="at least 1"):
        traffic_of_lists([1.0], [1], [0])
    with pytest.raises(ValueError, match="segment_names"):
        traffic_of_lists([1.0], [1], [1], [1])
