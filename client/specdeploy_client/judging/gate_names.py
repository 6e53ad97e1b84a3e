"""Does a gate speak of things that exist? A misspelt segment or check would otherwise never be judged."""

from collections import Counter
from collections.abc import Collection, Iterator
from difflib import get_close_matches

from specdeploy.errors import ConfigError, Violation
from specdeploy.verdict_contract import GateConfig

# Names of the checks that `verify` makes (integrity.py; a test holds the two together).
CHECK_NAMES = (
    "requests finished",
    "output tokens on = off",
    "text on = off",
    "delivered = reported tokens",
    "arms are what they claim",
    "server counters = client sums",
)


def check_gate_names(gate: GateConfig, segments: Collection[str], checks: Collection[str] = CHECK_NAMES) -> None:
    """Raise `ConfigError` with every segment and integrity check that `gate` names and nobody knows."""
    file = f"gate '{gate.name}'"
    violations = [
        *_unknown_segments(gate, segments, file),
        *_repeated_segments(gate, file),
        *(
            _unknown(file, f"required_checks[{index}]", "integrity check", name, checks)
            for index, name in enumerate(gate.required_checks)
            if name not in checks
        ),
    ]
    if violations:
        raise ConfigError(violations)


def _unknown_segments(gate: GateConfig, segments: Collection[str], file: str) -> Iterator[Violation]:
    named = [(f"segments[{index}].name", segment.name) for index, segment in enumerate(gate.segments)]
    named += [(f"slos[{index}].segment", slo.segment) for index, slo in enumerate(gate.slos)]
    return (_unknown(file, key, "segment", name, segments) for key, name in named if name not in segments)


def _repeated_segments(gate: GateConfig, file: str) -> Iterator[Violation]:
    counts = Counter(segment.name for segment in gate.segments)
    for index, segment in enumerate(gate.segments):
        if counts[segment.name] > 1:
            reason = f"segment '{segment.name}' has {counts[segment.name]} entries"
            yield Violation(file, f"segments[{index}].name", reason, "Give every segment one entry")


def _unknown(file: str, key: str, kind: str, name: str, known: Collection[str]) -> Violation:
    close = get_close_matches(name, list(known), n=1)
    suggestion = f"Did you mean '{close[0]}'? " if close else ""
    listed = ", ".join(f"'{one}'" for one in known) or "none"
    return Violation(file, key, f"there is no {kind} '{name}'", f"{suggestion}Known: {listed}")
