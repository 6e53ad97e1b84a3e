"""Texts of the command line -> values. A parser raises `RequestError` with its option, what is wrong and a remedy.

`OptionProblems` runs several of them and keeps what each complains about, so that a command shows all of it at once.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from specdeploy.errors import ConfigError, RequestError, Violation
from specdeploy.run_contract import MetricName, Objective, Percentile

T = TypeVar("T")
D = TypeVar("D")
_METRIC_ALIASES = {
    **{metric.value: metric for metric in MetricName},
    "e2el": MetricName.E2E,  # vLLM's name
    "request_latency": MetricName.E2E,  # AIPerf's names
    "time_to_first_token": MetricName.TTFT,
    "inter_token_latency": MetricName.TPOT,
}


class OptionProblems:
    """What is wrong with a command line, gathered before anything is done."""

    def __init__(self) -> None:
        self._violations: list[Violation] = []

    def add(self, option: str, reason: str, remedy: str) -> None:
        """Note one problem."""
        self._violations.append(Violation(option, "", reason, remedy))

    def collect(self, parse: Callable[[str], T], text: str, default: D) -> T | D:
        """What `parse` makes of `text`; `default` for an empty text and for one that it refuses."""
        if not text:
            return default
        try:
            return parse(text)
        except RequestError as error:
            self.add(error.field, error.reason, error.remedy)
            return default

    def raise_if_any(self) -> None:
        """Raise `ConfigError` with everything that was noted."""
        if self._violations:
            raise ConfigError(self._violations)


def parse_levels(text: str) -> tuple[int, ...]:
    """`1,2,4` -> (1, 2, 4), each once."""
    parts = _parts(text)
    if not parts or not all(part.isascii() and part.isdigit() and int(part) >= 1 for part in parts):
        raise RequestError("--concurrency", f"{text!r} is not a list of whole numbers", "Write for example 1,2,4,8")
    return tuple(dict.fromkeys(int(part) for part in parts))


def parse_rates(text: str) -> tuple[float, ...]:
    """`0.5,2` -> (0.5, 2.0), requests per second, each once."""
    rates = tuple(dict.fromkeys(_positive_number(part) for part in _parts(text)))
    if not rates or None in rates:
        raise RequestError(
            "--request-rate", f"{text!r} is not a list of requests per second", "Write for example 0.5,1,2"
        )
    return tuple(rate for rate in rates if rate is not None)


def parse_goodput(text: str) -> tuple[Objective, ...]:
    """`ttft:200 tpot:30 e2el:4000` (milliseconds) -> objectives, at most one per metric."""
    remedy = 'Write for example "ttft:200 tpot:30 e2el:4000", in milliseconds'
    objectives: dict[MetricName, Objective] = {}
    for part in text.replace(",", " ").split():
        name, _, limit = part.partition(":")
        metric, max_ms = _METRIC_ALIASES.get(name.lower()), _positive_number(limit)
        if metric is None:
            raise RequestError("--goodput", f"{name!r} is not a metric of {', '.join(_METRIC_ALIASES)}", remedy)
        if max_ms is None:
            raise RequestError("--goodput", f"{part!r} has no limit above 0", remedy)
        if metric in objectives:
            raise RequestError("--goodput", f"{metric} has two limits", remedy)
        objectives[metric] = Objective(metric=metric, max_ms=max_ms)
    if not objectives:
        raise RequestError("--goodput", f"{text!r} names no objective", remedy)
    return tuple(objectives.values())


def parse_percentiles(text: str) -> tuple[Percentile, ...]:
    """`50,99` -> (p50, p99); only those that a summary holds."""
    known = {percentile.value[1:]: percentile for percentile in Percentile}
    parts = [part.removeprefix("p") for part in _parts(text)]
    if not parts or any(part not in known for part in parts):
        raise RequestError("--metric-percentiles", f"{text!r} is not a list of {', '.join(known)}", "Write 50,99")
    return tuple(dict.fromkeys(known[part] for part in parts))


def _parts(text: str) -> Sequence[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _positive_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number < float("inf") else None
