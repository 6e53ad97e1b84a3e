"""What a running server says of itself: readiness over gRPC, identity and counters from its metrics page."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Protocol

import httpx
from prometheus_client.parser import text_string_to_metric_families

from specdeploy_client.transport import ServerUnreachableError

INFO_METRIC = "specdeploy_info"


@dataclass(frozen=True, slots=True)
class SegmentCounters:
    """Monotonic counters of one segment since the server started. `accepted_per_pos[i]`: drafts accepted up to i."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_pos: tuple[int, ...] = ()

    def since(self, before: "SegmentCounters") -> "SegmentCounters":
        """The increase from `before` to this snapshot."""
        earlier = before.accepted_per_pos + (0,) * (len(self.accepted_per_pos) - len(before.accepted_per_pos))
        return SegmentCounters(
            num_drafts=self.num_drafts - before.num_drafts,
            num_draft_tokens=self.num_draft_tokens - before.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens - before.num_accepted_tokens,
            accepted_per_pos=tuple(now - then for now, then in zip(self.accepted_per_pos, earlier, strict=False)),
        )


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Identity of the server, as its metric `specdeploy_info` tells it. None: the server does not say."""

    deployment: str | None = None
    build_id: str | None = None
    lane: str | None = None
    method: str | None = None
    dtype: str | None = None
    threads: int | None = None
    max_draft_len: int | None = None
    counters: dict[str, SegmentCounters] = field(default_factory=dict)
    effective_concurrency: int | None = None
    concurrency_limit: str | None = None

    def counters_since(self, before: "ServerFacts") -> dict[str, SegmentCounters]:
        """The increase of every segment's counters since the snapshot `before`."""
        return {
            segment: counters.since(before.counters.get(segment, SegmentCounters()))
            for segment, counters in self.counters.items()
        }


class ReadinessProbe(Protocol):
    """The part of a transport that knows whether the model is ready."""

    url: str

    async def is_ready(self) -> bool:
        """Whether the model answers."""
        ...


async def require_ready(probe: ReadinessProbe) -> None:
    """Raise `ServerUnreachableError` unless the model `llm` behind `probe` is ready."""
    if not await probe.is_ready():
        raise ServerUnreachableError(
            f"the server at {probe.url} is up but its model is not ready. Wait for it, or read why in the server's log "
            "(`make status` prints its path)"
        )


async def read_server_facts(metrics_url: str) -> ServerFacts:
    """Scrape `metrics_url`. Raises `ServerUnreachableError` naming the address."""
    try:
        async with httpx.AsyncClient(timeout=10.0, trust_env=False) as http:
            response = await http.get(metrics_url)
            response.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerUnreachableError(
            f"no metrics at {metrics_url} ({error or type(error).__name__}). Give the address of the server's metrics "
            "page with --metrics-url"
        ) from error
    return parse_server_facts(response.text)


def parse_server_facts(exposition: str) -> ServerFacts:
    """Facts from a Prometheus text page. Labels that Triton adds (model, version) are ignored."""
    totals: dict[tuple[str, str, str], int] = defaultdict(int)
    info: dict[str, str] = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            name = sample.name.removesuffix("_total")
            if name == INFO_METRIC and sample.value == 1:
                info = dict(sample.labels)
            elif name.startswith("spec_decode_") and "segment" in sample.labels:
                totals[name, sample.labels["segment"], sample.labels.get("position", "")] += int(sample.value)
    return ServerFacts(
        deployment=info.get("deployment"),
        build_id=info.get("build_id"),
        lane=info.get("lane"),
        method=info.get("method"),
        dtype=info.get("dtype"),
        threads=_optional_int(info.get("threads")),
        max_draft_len=_optional_int(info.get("max_draft_len")),
        effective_concurrency=_optional_int(info.get("effective_concurrency")) or None,
        concurrency_limit=info.get("concurrency_limit") or None,
        counters=_counters_by_segment(totals),
    )


def _counters_by_segment(totals: dict[tuple[str, str, str], int]) -> dict[str, SegmentCounters]:
    per_position = "spec_decode_num_accepted_tokens_per_pos"
    counters: dict[str, SegmentCounters] = {}
    for segment in sorted({key[1] for key in totals}):
        positions = sorted(int(key[2]) for key in totals if key[0] == per_position and key[1] == segment and key[2])
        counters[segment] = SegmentCounters(
            num_drafts=totals.get(("spec_decode_num_drafts", segment, ""), 0),
            num_draft_tokens=totals.get(("spec_decode_num_draft_tokens", segment, ""), 0),
            num_accepted_tokens=totals.get(("spec_decode_num_accepted_tokens", segment, ""), 0),
            accepted_per_pos=tuple(totals[per_position, segment, str(position)] for position in positions),
        )
    return counters


def _optional_int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
