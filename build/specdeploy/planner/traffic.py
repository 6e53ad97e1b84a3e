"""Traffic mixes: `configs/traffic/<name>.yaml` -> requests to simulate."""

from difflib import get_close_matches
from math import log
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specdeploy.config.load import load_yaml_model
from specdeploy.errors import ConfigError, Violation
from specdeploy.planner.simulated_traffic import MAX_REQUEST_TOKENS, SimulatedTraffic
from specdeploy.planner.traces import load_trace
from specdeploy.planner_contract import Arrivals, LengthShape, MixSegment, TrafficMix

__all__ = ["SimulatedTraffic", "load_mix", "mix_path", "traffic_of"]

_SHARE_TOLERANCE = 1e-3  # thirds are written 0.333


def mix_path(reference: str | Path, configs_root: Path = Path("configs")) -> Path:
    """The file of a mix: `reference` is its path, or a name in `configs_root`/traffic. ConfigError for no such name."""
    if isinstance(reference, Path) or "/" in reference or reference.endswith((".yaml", ".yml")):
        return Path(reference)
    folder = configs_root / "traffic"
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if reference in known:
        return folder / f"{reference}.yaml"
    close = get_close_matches(reference, known, n=1)
    remedy = (f"Did you mean {close[0]}? " if close else "") + f"Traffic mixes there: {', '.join(known) or 'none'}."
    raise ConfigError([Violation(str(folder), "", f"no traffic mix {reference!r}", remedy)])


def load_mix(reference: str | Path, configs_root: Path = Path("configs")) -> TrafficMix:
    """The mix behind a name or path. Raises ConfigError with everything wrong with it, missing traces included."""
    path = mix_path(reference, configs_root)
    mix = load_yaml_model(path, TrafficMix)
    violations = [Violation(str(path), key, reason, remedy) for key, reason, remedy in _problems(mix, path.parent)]
    if violations:
        raise ConfigError(violations)
    return mix


def _problems(mix: TrafficMix, folder: Path) -> list[tuple[str, str, str]]:
    """Key, reason and remedy of every rule between the keys that does not hold."""
    problems = []
    names = [segment.name for segment in mix.segments]
    if len(set(names)) < len(names):
        problems.append(("segments", "two segments share a name", "Give each its own."))
    replays = mix.arrivals.kind == "trace"
    total = sum(segment.share for segment in mix.segments)
    if not replays and abs(total - 1) > _SHARE_TOLERANCE:
        problems.append(("segments", f"the shares add up to {total:g}", "Make them add up to 1."))
    for number, segment in enumerate(mix.segments):
        if segment.trace is None:
            if replays:
                remedy = "Give every segment a trace, or arrivals of kind random or closed."
                problems.append((f"segments[{number}]", "has no trace, and arrivals are those of the traces", remedy))
        elif not (folder / segment.trace).is_file():
            remedy = "Give a path relative to this file."
            problems.append((f"segments[{number}].trace", f"no file {segment.trace} in {folder}", remedy))
    return problems


def traffic_of(mix: TrafficMix, num_requests: int | None, seed: int, base: Path) -> SimulatedTraffic:
    """Requests of `mix`; `base` is the folder that its traces are relative to. The same seed gives the same requests.

    Arrivals of kind trace: the traces as recorded, merged by time, the first `num_requests` of them (None: all); shares
    are not used and nothing is drawn. Else `num_requests` >= 1 (None: as many as the traces hold, at least 1000) drawn
    by the shares, pairs of lengths from a segment's trace with replacement or from its log-normal shapes, and gaps
    between arrivals from a gamma distribution (cv 1: Poisson). Raises ConfigError for traces that cannot be used.
    """
    traces = [None if segment.trace is None else load_trace(base / segment.trace) for segment in mix.segments]
    if mix.arrivals.kind == "trace":
        merged = _merged(mix, traces, base)
        return merged if num_requests is None else merged.first(num_requests)
    if num_requests is None:
        num_requests = max(1000, sum(trace.num_requests for trace in traces if trace is not None))
    segment_rng, arrival_rng, *length_rngs = np.random.default_rng(seed).spawn(2 + len(traces))
    shares = np.array([segment.share for segment in mix.segments])
    segment = segment_rng.choice(len(shares), num_requests, p=shares / shares.sum()).astype(np.int64)
    lengths = np.ones((2, num_requests), np.int64)
    for number, (entry, trace, rng) in enumerate(zip(mix.segments, traces, length_rngs, strict=True)):
        places = np.flatnonzero(segment == number)
        lengths[:, places] = _lengths(entry, trace, len(places), rng)
    arrival_s = _arrivals(mix.arrivals, num_requests, arrival_rng)
    return SimulatedTraffic(arrival_s, lengths[0], lengths[1], segment, tuple(entry.name for entry in mix.segments))


def _merged(mix: TrafficMix, traces: list[SimulatedTraffic | None], base: Path) -> SimulatedTraffic:
    violations = [
        Violation(str(base / (segment.trace or "")), "", "has no arrivals to replay", "Use arrivals of kind random.")
        for segment, trace in zip(mix.segments, traces, strict=True)
        if trace is None or trace.arrival_s is None
    ]
    if violations:
        raise ConfigError(violations)
    present = [trace for trace in traces if trace is not None]
    arrival_s = np.concatenate([trace.arrival_s for trace in present if trace.arrival_s is not None])
    order = np.argsort(arrival_s, kind="stable")
    segment = np.repeat(np.arange(len(present)), [trace.num_requests for trace in present])
    return SimulatedTraffic(
        arrival_s[order],
        np.concatenate([trace.input_tokens for trace in present])[order],
        np.concatenate([trace.output_tokens for trace in present])[order],
        segment[order].astype(np.int64),
        tuple(entry.name for entry in mix.segments),
    )


def _lengths(
    segment: MixSegment, trace: SimulatedTraffic | None, num_requests: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Input and output tokens, [2, N]."""
    if trace is not None:
        pairs = np.stack([trace.input_tokens, trace.output_tokens])
        picked: NDArray[np.int64] = pairs[:, rng.integers(trace.num_requests, size=num_requests)]
        return picked
    shapes = (segment.input_tokens, segment.output_tokens)
    return np.stack([_shaped(shape, num_requests, rng) for shape in shapes if shape is not None])


def _shaped(shape: LengthShape, num_requests: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Log-normal lengths of this mean and coefficient of variation, rounded to whole tokens of at least 1."""
    variance = log(1 + shape.cv**2)  # of the logarithm
    lengths = rng.lognormal(log(shape.mean) - variance / 2, variance**0.5, num_requests)
    whole: NDArray[np.int64] = np.clip(np.rint(lengths), 1, MAX_REQUEST_TOKENS).astype(np.int64)
    return whole


def _arrivals(arrivals: Arrivals, num_requests: int, rng: np.random.Generator) -> NDArray[np.float64] | None:
    """Seconds [N]; None for a closed loop."""
    if arrivals.kind == "closed" or arrivals.request_rate is None:
        return None
    shape = arrivals.cv**-2
    gaps = rng.gamma(shape, 1 / (shape * arrivals.request_rate), num_requests)
    return np.asarray(np.cumsum(gaps))
