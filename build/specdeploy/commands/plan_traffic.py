"""Lengths of a deployment's requests: from its prompt files, or from a mix or trace that the user names."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdeploy.config.load import LoadedDeployment
from specdeploy.config.schema import SegmentConfig
from specdeploy.errors import ConfigError, Violation
from specdeploy.planner.plan_inputs import OfferedTraffic
from specdeploy.planner.simulated_traffic import SimulatedTraffic
from specdeploy.planner.traces import load_trace
from specdeploy.planner.traffic import load_mix, mix_path, traffic_of

CHARACTERS_PER_TOKEN = 4.0  # of English text with the tokenizers of today's models: an assumption, always named
_TRACE_SUFFIXES = (".csv", ".jsonl", ".csv.gz", ".jsonl.gz")
_MAX_REQUESTS = 4000  # of a mix or trace, from its beginning: percentiles up to p99 are settled by then


@dataclass(frozen=True, slots=True)
class SegmentLengths:
    """Tokens of requests [N] of one segment, and where they were read. `share` of all requests."""

    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    share: float
    source: str
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class ReadTraffic:
    """Per segment of the deployment its lengths; `offered` where the user named a mix or trace."""

    segments: dict[str, SegmentLengths]
    offered: OfferedTraffic | None
    assumptions: tuple[str, ...]


def read_traffic(
    loaded: LoadedDeployment, tokenizer: Path | None, reference: str | None, configs_root: Path, seed: int
) -> ReadTraffic:
    """Lengths of every segment. Raises `ConfigError` naming file, line and reason."""
    if reference is None:
        return _from_prompts(loaded, tokenizer)
    offered, temperatures, assumptions = _read_offered(loaded, reference, configs_root, seed)
    names = [segment.name for segment in loaded.config.traffic.segments]
    traffic = offered.traffic
    assumptions = [*_strangers(_renamed(offered, names).traffic, names), *assumptions]
    common = [name for name in names if name in traffic.segment_names]
    if not common:
        warmest = max(temperatures.values(), default=0.0)
        everything = SegmentLengths(traffic.input_tokens, traffic.output_tokens, 1.0, offered.name, warmest)
        if len(names) > 1:
            assumptions.append(f"every segment has the lengths of {offered.name}, which names none of them")
        offered = _renamed(offered, names)
        return ReadTraffic(dict.fromkeys(names, everything), offered, tuple(assumptions))
    prompts = _from_prompts(loaded, tokenizer) if len(common) < len(names) else None
    segments = {}
    for name in names:
        if prompts is not None and name not in common:
            segments[name] = prompts.segments[name]
            continue
        mine = traffic.segment == traffic.segment_names.index(name)
        if mine.any():
            segments[name] = SegmentLengths(
                traffic.input_tokens[mine],
                traffic.output_tokens[mine],
                float(mine.mean()),
                offered.name,
                temperatures.get(name, 0.0),
            )
    if missing := [name for name in names if name not in segments]:
        reason = f"{offered.name} holds no request of {', '.join(missing)}"
        raise ConfigError([Violation(reference, "segments", reason, "Give it a larger share, or more requests.")])
    return ReadTraffic(segments, offered, (*assumptions, *(prompts.assumptions if prompts is not None else ())))


def _strangers(traffic: SimulatedTraffic, names: list[str]) -> list[str]:
    """What is taken for requests of segments that the deployment does not have."""
    unknown = [
        name
        for index, name in enumerate(traffic.segment_names)
        if name not in names and bool((traffic.segment == index).any())
    ]
    if not unknown:
        return []
    return [f"requests of {', '.join(unknown)} belong to no segment here: drafts are accepted as for {names[0]}"]


def _renamed(offered: OfferedTraffic, names: list[str]) -> OfferedTraffic:
    """One nameless kind of request in a deployment of one segment is that segment."""
    traffic = offered.traffic
    if len(names) != 1 or len(traffic.segment_names) != 1:
        return offered
    columns = (traffic.arrival_s, traffic.input_tokens, traffic.output_tokens, traffic.segment)
    return OfferedTraffic(offered.name, SimulatedTraffic(*columns, (names[0],)), offered.concurrency)


# --- a mix or trace -------------------------------------------------------------------------------------------------


def _read_offered(
    loaded: LoadedDeployment, reference: str, configs_root: Path, seed: int
) -> tuple[OfferedTraffic, dict[str, float], list[str]]:
    """The requests, the temperature of each of their segments, and what is assumed."""
    temperatures: dict[str, float] = {}
    if reference.endswith(_TRACE_SUFFIXES):
        path = Path(reference)
        traffic, name, concurrency = load_trace(path), path.name, None
    else:
        mix = load_mix(reference, configs_root)
        temperatures = {segment.name: segment.temperature for segment in mix.segments}
        base = mix_path(reference, configs_root).parent
        traffic = traffic_of(mix, None, seed, base)
        name, concurrency = mix.name, mix.arrivals.concurrency if mix.arrivals.kind == "closed" else None
    assumptions = []
    if traffic.num_requests > _MAX_REQUESTS:
        assumptions.append(f"of the {traffic.num_requests} requests of {name} the first {_MAX_REQUESTS} are simulated")
        traffic = traffic.first(_MAX_REQUESTS)
    traffic, num_long = _without_long(loaded, traffic, name)
    if num_long:
        limit = loaded.config.serving.max_seq_len
        assumptions.append(f"{num_long} requests of {name} exceed serving.max_seq_len {limit} and are left out")
    if traffic.arrival_s is None and concurrency is None:
        concurrency = loaded.config.traffic.expected_concurrency
        assumptions.append(f"{name} has no arrivals: {concurrency} clients wait for their answers")
    return OfferedTraffic(f"{name}, {traffic.num_requests} requests", traffic, concurrency), temperatures, assumptions


def _without_long(loaded: LoadedDeployment, traffic: SimulatedTraffic, name: str) -> tuple[SimulatedTraffic, int]:
    """Only what the server would accept, and how many it would not."""
    limit = loaded.config.serving.max_seq_len
    fits = traffic.input_tokens + traffic.output_tokens <= limit
    if fits.all():
        return traffic, 0
    if not fits.any():
        shortest = int((traffic.input_tokens + traffic.output_tokens).min())
        reason = f"every request of {name} exceeds serving.max_seq_len {limit}; the shortest has {shortest} tokens"
        raise ConfigError(
            [Violation(str(loaded.path), "serving.max_seq_len", reason, "Raise it, or give other traffic.")]
        )
    arrival_s = None if traffic.arrival_s is None else traffic.arrival_s[fits]
    columns = (traffic.input_tokens[fits], traffic.output_tokens[fits], traffic.segment[fits])
    return SimulatedTraffic(arrival_s, *columns, traffic.segment_names), int((~fits).sum())


# --- prompt files ---------------------------------------------------------------------------------------------------


def _from_prompts(loaded: LoadedDeployment, tokenizer: Path | None) -> ReadTraffic:
    """Prompts by the target's tokenizer, or by their characters; outputs as long as `max_tokens` allows."""
    count = _counter(tokenizer)
    total = sum(segment.share for segment in loaded.config.traffic.segments)
    segments = {
        segment.name: _prompt_lengths(loaded, segment, count, segment.share / total)
        for segment in loaded.config.traffic.segments
    }
    assumptions = ["outputs are as long as max_tokens allows: shorter ones gain less"]
    if tokenizer is None:
        assumptions.append(f"prompts have a token per {CHARACTERS_PER_TOKEN:g} characters: the tokenizer is not here")
    return ReadTraffic(segments, None, tuple(assumptions))


def _counter(tokenizer: Path | None) -> Callable[[str], int]:
    """Text of a prompt -> its tokens, those of the chat template included where the tokenizer is here."""
    if tokenizer is None:
        return lambda text: max(1, round(len(text) / CHARACTERS_PER_TOKEN))
    from specdeploy.commands.profile_prompts import PromptTemplate
    from specdeploy.serving.request import encode_prompt
    from specdeploy.serving.tokenizer import load_tokenizer

    try:
        loaded = load_tokenizer(tokenizer.parent)
    except Exception as error:  # the library raises bare `Exception`
        reason = f"cannot be read as a tokenizer ({error})"
        raise ConfigError([Violation(str(tokenizer), "", reason, "Fetch the checkpoint again.")]) from error
    template = PromptTemplate(tokenizer.parent)
    return lambda text: max(1, len(encode_prompt(template.render(text), loaded)))


def _prompt_lengths(
    loaded: LoadedDeployment, segment: SegmentConfig, count: Callable[[str], int], share: float
) -> SegmentLengths:
    path = loaded.path.parent / segment.prompts
    limit = loaded.config.serving.max_seq_len
    inputs, outputs, violations = [], [], []
    for number, row in _rows(path):
        texts = _texts(row)
        if not texts:
            violations.append(Violation(f"{path}:{number}", "", "has no prompt", 'Write {"id": .., "prompt": ".."}.'))
            continue
        tokens, output = sum(count(text) for text in texts), _max_tokens(row, segment)
        if tokens + output > limit:
            reason = f"{tokens} prompt and {output} output tokens exceed serving.max_seq_len {limit}"
            violations.append(Violation(f"{path}:{number}", "prompt", reason, "Shorten it or raise max_seq_len."))
        inputs.append(tokens)
        outputs.append(output)
    if not inputs and not violations:
        violations.append(Violation(str(path), "", "holds no prompts", "Write one JSON object a line."))
    if violations:
        raise ConfigError(violations)
    return SegmentLengths(np.array(inputs, np.int64), np.array(outputs, np.int64), share, f"{path.name}")


def _max_tokens(row: dict[str, Any], segment: SegmentConfig) -> int:
    own = row.get("max_tokens")
    return own if isinstance(own, int) and not isinstance(own, bool) and own > 0 else segment.max_tokens


def _texts(row: dict[str, Any]) -> list[str]:
    """The prompt, or the turns of a conversation."""
    if isinstance(row.get("prompt"), str) and row["prompt"]:
        return [row["prompt"]]
    turns = row.get("turns")
    texts = (
        [turn.get("prompt") if isinstance(turn, dict) else turn for turn in turns] if isinstance(turns, list) else []
    )
    return [text for text in texts if isinstance(text, str) and text]


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each line that is not empty."""
    remedy = 'Write one JSON object a line: {"id": .., "prompt": ".."}.'
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([Violation(str(path), "", f"cannot be read: {error}", remedy)]) from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError([Violation(f"{path}:{number}", "", f"is not JSON ({error})", remedy)]) from error
        if not isinstance(row, dict):
            raise ConfigError([Violation(f"{path}:{number}", "", "is no object", remedy)])
        yield number, row
