"""What both exports need of the records of one arm of one cell, gathered in one pass, and how their files are named.

Other tools measure from the actual send, so the latencies gathered here do too: `send_ns`, not `scheduled_ns`. What a
request waited before it was sent is exported beside them.
"""

import os
import re
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import numpy as np
import numpy.typing as npt

from specdeploy.run_contract import Arm, Load, RequestRecord
from specdeploy.units import NS_PER_MS, NS_PER_S
from specdeploy_client.metrics import icl_ns, is_answered, is_cancelled, num_tokens, token_arrivals_ns, tpot_ns

ArmKey = tuple[str, Load, Arm]


@dataclass(frozen=True, slots=True)
class Latencies:
    """One answered request, in ms from its send. `tpot_ms` is None for a single token, `icl_ms` [M - 1]."""

    ttft_ms: float
    e2e_ms: float
    tpot_ms: float | None
    icl_ms: tuple[float, ...]


@dataclass(slots=True)
class ArmSamples:
    """All requests of one arm of one cell; times in ms, one value per answered request (icl: per gap). Token counts
    are of those that say them."""

    ttft_ms: "array[float]" = field(default_factory=lambda: array("d"))
    tpot_ms: "array[float]" = field(default_factory=lambda: array("d"))
    e2e_ms: "array[float]" = field(default_factory=lambda: array("d"))
    icl_ms: "array[float]" = field(default_factory=lambda: array("d"))
    input_tokens: "array[int]" = field(default_factory=lambda: array("q"))
    output_tokens: "array[int]" = field(default_factory=lambda: array("q"))
    num_answered: int = 0
    num_failed: int = 0
    num_cancelled: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    first_send_ns: int | None = None
    last_end_ns: int | None = None
    _blocks: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def duration_s(self) -> float:
        """Time during which blocks of this arm ran; the other arm's blocks lie between them."""
        return sum(last - first for first, last in self._blocks.values()) / NS_PER_S

    def add(self, record: RequestRecord) -> Latencies | None:
        """Count one request; its latencies, None where it has none."""
        self.first_send_ns = record.send_ns if self.first_send_ns is None else min(self.first_send_ns, record.send_ns)
        self.last_end_ns = record.end_ns if self.last_end_ns is None else max(self.last_end_ns, record.end_ns)
        if is_cancelled(record):
            self.num_cancelled += 1
            return None
        first, last = self._blocks.get(record.block, (record.send_ns, record.end_ns))
        self._blocks[record.block] = (min(first, record.send_ns), max(last, record.end_ns))
        if not is_answered(record):
            self.num_failed += 1
            words = record.error or str(record.failure)
            self.errors[words] = self.errors.get(words, 0) + 1
            return None
        self.num_answered += 1
        if (tokens := num_tokens(record)) is not None:
            self.output_tokens.append(tokens)
        if record.input_token_count is not None:
            self.input_tokens.append(record.input_token_count)
        latencies = latencies_of(record)
        if latencies is not None:
            self.ttft_ms.append(latencies.ttft_ms)
            self.e2e_ms.append(latencies.e2e_ms)
            self.icl_ms.extend(latencies.icl_ms)
            if latencies.tpot_ms is not None:
                self.tpot_ms.append(latencies.tpot_ms)
        return latencies


def latencies_of(record: RequestRecord) -> Latencies | None:
    """Latencies of an answered request from its send; None where it has no message with a token."""
    arrivals = token_arrivals_ns(record)
    if not arrivals:
        return None
    tpot = tpot_ns(record)
    return Latencies(
        ttft_ms=(arrivals[0] - record.send_ns) / NS_PER_MS,
        e2e_ms=(record.message_ns[-1] - record.send_ns) / NS_PER_MS,
        tpot_ms=None if tpot is None else tpot / NS_PER_MS,
        icl_ms=tuple(gap / NS_PER_MS for gap in icl_ns(record)),
    )


def as_floats(values: "array[float] | array[int]") -> npt.NDArray[np.float64]:
    """[n] the values as numpy sees them, without a copy for floats."""
    return np.asarray(values, dtype=np.float64)


def export_name(key: ArmKey) -> str:
    """`chat-concurrency4-on`, `chat-rate2.5-off`: fit for a file, whatever the segment is called."""
    segment, load, arm = key
    place = f"rate{load.request_rate:g}" if load.request_rate is not None else f"concurrency{load.concurrency}"
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', segment).lstrip('.') or 'segment'}-{place}-{arm}"


@contextmanager
def open_atomically(path: Path) -> Iterator[TextIO]:
    """A text file that takes its name when all of it was written, and never when something failed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            yield file
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
