"""What `llm` shows on Triton's metrics port.

Counters of acceptance per segment, in vLLM's shapes so that existing dashboards read them; a gauge of requests and
key/value rows in use; and what is being served, as labels of a gauge that is always 1.
"""

import threading
from typing import Any

from specdeploy.contract import OTHER_SEGMENT
from specdeploy.manifest import CurrentBuild
from specdeploy.runtime.request import RequestStats


class ServingMetrics:
    """Owns the metric families. `family` is Triton's MetricFamily class (a seam for tests).

    One thread at a time touches a metric: requests begin on Triton's thread and end on the adapter's, and a server
    whose metrics are changed from two threads at once dies (ModelInstanceState::ProcessMessage<Metric> of the Python
    backend reads the other's shared memory).
    """

    def __init__(self, build: CurrentBuild, num_threads: int | None, family: Any) -> None:
        segments = [plan.segment for plan in build.plan.segments] + [OTHER_SEGMENT]
        self._lock = threading.Lock()
        self._max_draft_len = build.plan.max_draft_len
        self._families: list[Any] = []  # Triton drops families and metrics when Python does

        def counters(name: str, description: str, *keys: str) -> dict[tuple[str, ...], Any]:
            created = family(name=name, description=description, kind=family.COUNTER)
            self._families.append(created)
            labels = [(segment, *rest) for segment in segments for rest in _positions(keys, self._max_draft_len)]
            return {label: created.Metric(labels=dict(zip(("segment", *keys), label, strict=True))) for label in labels}

        def gauge(name: str, description: str, labels: dict[str, str]) -> Any:
            created = family(name=name, description=description, kind=family.GAUGE)
            self._families.append(created)
            return created.Metric(labels=labels)

        self._drafts = counters("spec_decode_num_drafts", "Steps with at least one draft token")
        self._draft_tokens = counters("spec_decode_num_draft_tokens", "Draft tokens proposed")
        self._accepted = counters("spec_decode_num_accepted_tokens", "Draft tokens emitted")
        self._accepted_per_pos = counters(
            "spec_decode_num_accepted_tokens_per_pos", "Draft tokens emitted, by position in the draft", "position"
        )
        deployment = {"deployment": build.deployment}
        self._in_flight = gauge("specdeploy_requests_in_flight", "Requests accepted and not finished", deployment)
        self._rows = gauge("specdeploy_kv_rows_in_use", "Rows of key/value memory owned by requests", deployment)
        self._info = gauge("specdeploy_info", "What is being served", _info(build, num_threads))
        self._info.set(1)

    def count(self, segment: str, stats: RequestStats) -> None:
        """Add one finished request."""
        with self._lock:
            self._drafts[(segment,)].increment(stats.num_drafts)
            self._draft_tokens[(segment,)].increment(stats.num_draft_tokens)
            self._accepted[(segment,)].increment(stats.num_accepted_tokens)
            for position, count in enumerate(stats.num_accepted_tokens_per_pos):
                self._accepted_per_pos[(segment, str(position))].increment(count)

    def observe_load(self, num_in_flight: int, num_rows: int) -> None:
        """Set the gauges."""
        with self._lock:
            self._in_flight.set(num_in_flight)
            self._rows.set(num_rows)


def _positions(keys: tuple[str, ...], max_draft_len: int) -> list[tuple[str, ...]]:
    return [(str(position),) for position in range(max_draft_len)] if keys else [()]


def _info(build: CurrentBuild, num_threads: int | None) -> dict[str, str]:
    config = build.config
    return {
        "deployment": build.deployment,
        "build_id": build.build_id,
        "lane": config.lane.value,
        "method": config.speculation.method.value,
        "dtype": config.dtype.value,
        "threads": "" if num_threads is None else str(num_threads),
        "max_draft_len": str(build.plan.max_draft_len),
        "effective_concurrency": "" if build.effective_concurrency is None else str(build.effective_concurrency),
        "concurrency_limit": build.concurrency_limit or "",
        # Lane torch keeps nothing of a request that has ended; engines keep blocks of its prompt if told to.
        "prefix_cache": "on" if config.tensorrt_llm is not None and config.tensorrt_llm.kv_cache_reuse else "off",
    }
