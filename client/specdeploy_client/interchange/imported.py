"""What another tool measured, in our types, and what the readers of its files share."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specdeploy.errors import ConfigError, RequestError, Violation
from specdeploy.run_contract import (
    Acceptance,
    Arm,
    CellSummary,
    FailureKind,
    Load,
    Percentile,
    Percentiles,
    RequestRecord,
)
from specdeploy.units import NS_PER_MS, NS_PER_S
from specdeploy_client.artifacts import violations_of
from specdeploy_client.metrics import acceptance_rate, mean_acceptance_length, samples_needed
from specdeploy_client.workloads import line_files
from specdeploy_client.workloads.line_files import MAX_NS, MAX_TOKENS

ModelT = TypeVar("ModelT", bound=BaseModel)
ParsedT = TypeVar("ParsedT")
# What a foreign file may hold: finite, and short enough that sums of nanoseconds fit into 64 bits.
EpochNs = Annotated[int, Field(ge=0, le=MAX_NS)]
Seconds = Annotated[float, Field(ge=0, le=MAX_NS / NS_PER_S)]
Milliseconds = Annotated[float, Field(ge=0, le=MAX_NS / NS_PER_MS)]
TokenCount = Annotated[int, Field(ge=0, le=MAX_TOKENS)]


class ForeignModel(BaseModel):
    """Part of another tool's file: what we need of it is checked, the rest of it is its own business."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class ImportLabels:
    """What a foreign file does not say. `arm` and `load` None: as the file says, else an error asks for them."""

    segment: str = "imported"
    arm: Arm | None = None
    load: Load | None = None


@dataclass(frozen=True, slots=True)
class StatedRates:
    """What a file says of its whole run, per second; None where it does not say it.

    Over the time that its tool counts, which the times of requests do not tell: between them it may have measured
    something else, or nothing.
    """

    output_throughput: float | None = None
    request_throughput: float | None = None
    goodput: float | None = None


@dataclass(frozen=True, slots=True)
class ImportedRun:
    """One file of another tool.

    `records` where it holds the times of every message of every request; else `cells`, from the tool's own statistics
    (then nothing is known beyond what it computed). `acceptance` is of the server over the whole run, where the tool
    read it; `rates` go before what records add up to. `notes` say what was left out and what is defined otherwise.
    """

    tool: str
    model: str | None
    started_at: str
    duration_s: float
    records: tuple[RequestRecord, ...] = ()
    cells: tuple[CellSummary, ...] = ()
    acceptance: Acceptance | None = None
    rates: StatedRates = StatedRates()
    notes: tuple[str, ...] = ()


def read_text(path: Path) -> str:
    """The text of a foreign file. Raises `ConfigError` naming it."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        remedy = "Give a result file of AIPerf, GuideLLM or `vllm bench serve`"
        raise ConfigError([Violation(str(path), "", reason, remedy)]) from error


def parse_json(text: str, place: str) -> object:
    """JSON of one file or line. Raises `ConfigError` saying where it breaks off."""
    try:
        content: object = line_files.parse_json(text, takes_constants=True)
    except ValueError as error:
        remedy = "The file is damaged or cut off: export it again"
        raise ConfigError([Violation(place, "", f"is not JSON ({error})", remedy)]) from error
    return content


def validate(data: object, model: type[ModelT], place: str, tool: str) -> ModelT:
    """`data` as `model`. Raises `ConfigError` with every key that is missing or not of the type `tool` gives it."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(violations_of(error, place, f"Expected as {tool} writes it")) from error


def parse_lines(
    text: str, place: str, parse: Callable[[object, str], ParsedT], note: Callable[[str], None]
) -> list[ParsedT]:
    """Every line of JSONL by `parse(data, place)`. Raises `ConfigError` with the problems of all lines.

    A last line that breaks off (the tool was killed while it wrote) is left out with a note.
    """
    parsed: list[ParsedT] = []
    violations: list[Violation] = []
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{place}:{number}"
        try:
            parsed.append(parse(parse_json(line, where), where))
        except ConfigError as error:
            if number == len(lines) and isinstance(error.__cause__, json.JSONDecodeError) and parsed:
                note(f"line {number} breaks off and was left out")
            else:
                violations += error.violations
    if violations:
        raise ConfigError(violations)
    return parsed


def known_load(labels: ImportLabels, from_file: Load | None, place: str) -> Load:
    """The load the user gave, else the file's. Raises `RequestError` where neither says it: it is never guessed."""
    load = labels.load or from_file
    if load is None:
        reason = f"{place} does not say under which load it was measured"
        raise RequestError("--concurrency", reason, "Give --concurrency or --request-rate")
    return load


def supported_percentiles(
    num_samples: int, values_ms: dict[Percentile, float | None], mean_ms: float | None = None
) -> Percentiles:
    """Another tool's percentiles; those its sample does not support are dropped, as they are for our own."""
    kept = {
        percentile: values_ms.get(percentile) if num_samples >= samples_needed(percentile) else None
        for percentile in Percentile
    }
    return Percentiles(
        p50=kept[Percentile.P50],
        p90=kept[Percentile.P90],
        p95=kept[Percentile.P95],
        p99=kept[Percentile.P99],
        mean=mean_ms,
        num_samples=num_samples,
    )


def finite_number(value: object, place: str) -> float | None:
    """A number, None for anything that is none. Raises `ConfigError` for one that is not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ConfigError([Violation(place, "", f"{number} is no finite number", "Measure again")])
    return number


def arrivals_ns(first_ns: int, gaps_ns: Iterable[float], place: str) -> tuple[int, ...]:
    """Times of messages from the first one and the gaps after it. Raises `ConfigError` where they are no times.

    Gaps are summed before they are rounded, so that a long answer does not drift.
    """
    times, passed = [first_ns], 0.0
    for gap in gaps_ns:
        passed += gap
        times.append(first_ns + round(passed))
    if times[-1] > 2 * MAX_NS - 1:
        raise ConfigError([Violation(place, "", "lasts longer than 64 bits hold of nanoseconds", "Correct its times")])
    return tuple(times)


def failure_kind(words: str) -> FailureKind:
    """What kind of failure the words of an error describe.

    Tools name the exception or the HTTP reason; anything else was an answer that could not be used.
    """
    text = words.lower()
    kinds = {  # the order matters: "server disconnected" is no failure to connect
        FailureKind.TIMEOUT: ("timeout", "timed out", "deadline"),
        FailureKind.STREAM_CLOSED: ("closed", "reset", "disconnected", "payload", "incomplete"),
        FailureKind.UNREACHABLE: ("connect", "unreachable", "refused", "resolve"),
        FailureKind.REFUSED: ("bad request", "not found", "unprocessable", "too many", "internal server", "http"),
    }
    return next((kind for kind, signs in kinds.items() if any(sign in text for sign in signs)), FailureKind.PROTOCOL)


def summed_acceptance(num_steps: int, num_draft_tokens: int, num_accepted_tokens: int) -> Acceptance:
    """Acceptance from the totals that another tool took over from the server."""
    return Acceptance(
        num_steps=num_steps,
        num_draft_tokens=num_draft_tokens,
        num_accepted_tokens=num_accepted_tokens,
        acceptance_rate=acceptance_rate(num_draft_tokens, num_accepted_tokens),
        mean_acceptance_length=mean_acceptance_length(num_steps, num_draft_tokens, num_accepted_tokens),
    )


def arm_by_drafting(labels: ImportLabels, num_draft_tokens: Sequence[int | None]) -> Arm:
    """The arm the user gave, else `on` where the file counts draft tokens, else `off`."""
    if labels.arm is not None:
        return labels.arm
    return Arm.ON if any(num_draft_tokens) else Arm.OFF
