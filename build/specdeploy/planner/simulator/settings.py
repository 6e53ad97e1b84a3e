"""Limits of the simulated engine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """`max_rows` requests at once; up to `prefill_chunk` prompt tokens join a step; `kv_tokens` of key/value memory
    (None: as much as the rows ask for); `concurrency` clients of a closed loop (None: requests come as their arrivals
    say); `max_queue` requests wait for a row at most, further ones are refused (None: any number waits).

    The same `seed` gives the same result. Raises ValueError for limits below 1 (`max_queue`, `seed`: below 0).
    """

    max_rows: int
    prefill_chunk: int
    kv_tokens: int | None = None
    concurrency: int | None = None
    seed: int = 0
    max_queue: int | None = None

    def __post_init__(self) -> None:
        for name, least in (
            ("max_rows", 1),
            ("prefill_chunk", 1),
            ("kv_tokens", 1),
            ("concurrency", 1),
            ("max_queue", 0),
        ):
            value: int | None = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}: {value} is below {least}")
        if self.seed < 0:
            raise ValueError(f"seed: {self.seed} is below 0")
