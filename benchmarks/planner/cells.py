"""Published measurements as cells: what ran, what came out, and whether the planner may be fitted to it."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DATA = Path(__file__).parent / "data"

Split = Literal["fit", "held_out", "excluded"]
Metric = Literal["step_s", "tpot_s", "tok_s", "tok_s_user", "ratio"]

# What the CSV files call a metric, and what one of theirs is in seconds or tokens per second.
_METRICS: dict[str, tuple[Metric, float]] = {
    "step_ms": ("step_s", 1e-3),
    "draft_ms": ("step_s", 1e-3),
    "tpot_ms": ("tpot_s", 1e-3),
    "tok_s": ("tok_s", 1.0),
    "tok_s_user": ("tok_s_user", 1.0),
    "tok_s_gpu": ("tok_s", 1.0),
    "ratio": ("ratio", 1.0),
}
_SPLITS: dict[str, Split] = {"fit": "fit", "held_out": "held_out", "excluded": "excluded"}


@dataclass(frozen=True, slots=True)
class Cell:
    """One published number.

    `rows` requests at once (a mean, where the source gives throughput and speed of one user), `draft_len` drafted
    tokens a row, drafted in `depth` passes; 0 = plain. `draft_lens` where the source took the best of several, with
    as many `taus`. `tau` tokens per step with the bonus token, None where the source has none. `context` tokens
    cached per row. `value` of `metric`: seconds, tokens per second, or time off / time on (above 1 = faster).
    """

    series: str
    source: str
    arm: str
    target: str
    draft: str
    hardware: str
    num_gpus: int
    task: str
    rows: float
    draft_lens: tuple[int, ...]
    depth: int | None
    taus: tuple[float, ...]
    context: int
    metric: Metric
    value: float
    split: Split

    @property
    def draft_len(self) -> int:
        """The only K."""
        return self.draft_lens[0]

    @property
    def tau(self) -> float | None:
        """The only tau."""
        return self.taus[0] if self.taus else None

    def depth_of(self, draft_len: int) -> int:
        """Passes of the drafter: one per token of a chain."""
        return min(draft_len, self.depth) if self.depth is not None else draft_len


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Published rows that are not predicted, and why."""

    series: str
    reason: str
    num_rows: int


def read_cells(folder: Path = DATA) -> tuple[Cell, ...]:
    """Every cell of the CSV files that is fitted to or held out, in the files' order."""
    return tuple(_cell(row) for row in _rows(folder) if row["split"] != "excluded")


def read_drafts_of_unknown_length(folder: Path = DATA) -> tuple[Cell, ...]:
    """Excluded speeds of drafters whose K and tau were not published: series trtllm-405b."""
    rows = (row for row in _rows(folder) if row["series"] == "trtllm-405b" and row["metric"] == "tok_s")
    return tuple(_cell(row) for row in rows if row["split"] == "excluded")


def read_exclusions(folder: Path = DATA) -> tuple[Exclusion, ...]:
    """Every excluded row, counted by series and reason."""
    counts: dict[tuple[str, str], int] = {}
    for row in _rows(folder):
        if row["split"] == "excluded":
            key = (row["series"], row["reason"])
            counts[key] = counts.get(key, 0) + 1
    return tuple(Exclusion(series, reason, number) for (series, reason), number in counts.items())


def _rows(folder: Path) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = []
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            rows += csv.DictReader(file)
    return rows


def _cell(row: dict[str, str]) -> Cell:
    metric, unit = _METRICS[row["metric"]]
    gpus = int(row["gpus"] or 1)
    per_gpu = gpus if row["metric"] == "tok_s_gpu" else 1
    return Cell(
        series=row["series"],
        source=row["source"],
        arm="plain" if row["method"] == "none" else row["method"],
        target=row["target"],
        draft=row["draft"],
        hardware=row["hardware"],
        num_gpus=gpus,
        task=row["task"],
        rows=float(row["rows"]),
        draft_lens=tuple(int(text) for text in row["draft_len"].removeprefix("best of ").split()),
        depth=int(row["depth"]) if row["depth"] else None,
        taus=tuple(float(text) for text in row["tau"].split()),
        context=int(row["context"]),
        metric=metric,
        value=float(row["value"]) * unit * per_gpu,
        split=_SPLITS[row["split"]],
    )
