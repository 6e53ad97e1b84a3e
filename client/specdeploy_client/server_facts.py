"""What a running server says of itself: readiness, identity and counters from its metrics page.

Our own server labels its counters by segment. Others have one set for everything they serve:

    vLLM         vllm:spec_decode_num_{drafts,draft_tokens,accepted_tokens}_total and, from position "0" on,
                 vllm:spec_decode_num_accepted_tokens_per_pos_total; vllm:prefix_cache_{queries,hits}_total in tokens,
                 vllm:cache_config_info{enable_prefix_caching}
    SGLang       sglang:spec_verify_calls_total, gauge sglang:spec_accept_length, sglang:prompt_tokens_total,
                 sglang:cached_tokens_total{cache_source}
    trtllm-serve trtllm_spec_decode_num_{draft,accepted}_tokens_total, gauge trtllm_spec_decode_acceptance_length
    llama.cpp    llamacpp:spec_decode_num_{drafts,draft_tokens,accepted_tokens}_total

What a page does not hold is None; a page of something else gives facts that know nothing.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import httpx
from prometheus_client.parser import text_string_to_metric_families

from specdeploy_client.transport import ServerUnreachableError

INFO_METRIC = "specdeploy_info"
_PER_POSITION = "num_accepted_tokens_per_pos"
_COUNTER_NAME = re.compile(
    r"(?:(?:vllm|llamacpp|trtllm)[:_])?spec_decode_(num_drafts|num_draft_tokens|num_accepted_tokens(?:_per_pos)?)"
)
# Other servers' names for what we call otherwise.
_ALIASES = {"sglang:spec_verify_calls": "num_drafts"}
_ACCEPTANCE_LENGTHS = ("sglang:spec_accept_length", "trtllm_spec_decode_acceptance_length")
_CACHED_TOKENS = ("vllm:prefix_cache_hits", "sglang:cached_tokens")
_PROMPT_TOKENS = ("vllm:prefix_cache_queries", "sglang:prompt_tokens")
_SERVERS = {
    "specdeploy_": "specdeploy",
    "vllm:": "vLLM",
    "sglang:": "SGLang",
    "trtllm_": "trtllm-serve",
    "llamacpp:": "llama.cpp",
}
# Every rank of a model that is spread over several GPUs reports the same requests; one of them is enough.
_RANK_LABELS = ("tp_rank", "pp_rank", "moe_ep_rank")


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
    """Identity of the server and its counters. None: the server does not say.

    `counters`: by segment, of our own servers. `whole_server`: names of the counters of a server without segments ->
    total (`num_drafts`, `num_draft_tokens`, `num_accepted_tokens`), and `whole_server_per_pos` those per position.
    `mean_acceptance_length`: a gauge over a window of the server's own, so only a diagnostic. `num_prompt_tokens` and
    `num_cached_tokens`: since the server started, those looked up in and found in its prefix cache.
    """

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
    server: str | None = None
    prefix_cache: bool | None = None
    whole_server: dict[str, int] = field(default_factory=dict)
    whole_server_per_pos: tuple[int, ...] = ()
    mean_acceptance_length: float | None = None
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None

    def counters_since(self, before: "ServerFacts") -> dict[str, SegmentCounters]:
        """The increase of every segment's counters since the snapshot `before`."""
        return {
            segment: counters.since(before.counters.get(segment, SegmentCounters()))
            for segment, counters in self.counters.items()
        }

    def cached_share_since(self, before: "ServerFacts") -> float | None:
        """Share of prompt tokens since the snapshot `before` that came from the prefix cache; None where unknown."""
        now, then = (
            (self.num_cached_tokens, self.num_prompt_tokens),
            (before.num_cached_tokens, before.num_prompt_tokens),
        )
        if now[0] is None or now[1] is None or then[0] is None or then[1] is None:
            return None
        if now[1] <= then[1] or now[0] < then[0]:  # nothing was looked up, or the server began to count anew
            return None
        return (now[0] - then[0]) / (now[1] - then[1])


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
    page = _Page()
    try:
        for family in text_string_to_metric_families(exposition):
            for sample in family.samples:
                page.read(sample.name.removesuffix("_total"), sample.labels, sample.value)
    except ValueError:  # no metrics page at all
        return ServerFacts()
    return page.facts()


class _Page:
    """What was read of a page so far."""

    def __init__(self) -> None:
        self._info: dict[str, str] = {}
        self._by_segment: dict[tuple[str, str, str], int] = defaultdict(int)
        self._totals: dict[tuple[str, str], int] = defaultdict(int)
        self._gauges: dict[str, float] = {}
        self._server: str | None = None
        self._prefix_cache: bool | None = None

    def read(self, name: str, labels: dict[str, str], value: float) -> None:
        """Keep one sample if it tells something. `name` is without `_total`."""
        self._server = self._server or next((kind for start, kind in _SERVERS.items() if name.startswith(start)), None)
        if any(labels.get(rank, "0") != "0" for rank in _RANK_LABELS):
            return
        counter = _counter_of(name)
        if name == INFO_METRIC and value == 1:
            self._info = dict(labels)
            self._prefix_cache = _flag(labels.get("prefix_cache"))
        elif name == "vllm:cache_config_info":
            self._prefix_cache = _flag(labels.get("enable_prefix_caching"))
        elif counter is not None and "segment" in labels:
            self._by_segment[counter, labels["segment"], labels.get("position", "")] += int(value)
        elif counter is not None:
            self._totals[counter, labels.get("position", "")] += int(value)
        elif name in _ACCEPTANCE_LENGTHS:
            self._gauges[name] = value
        elif name in (*_CACHED_TOKENS, *_PROMPT_TOKENS) and labels.get("cache_source") != "total":
            self._totals[name, ""] += int(value)

    def facts(self) -> ServerFacts:
        """All of it."""
        info = self._info
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
            counters=_counters_by_segment(self._by_segment),
            server=self._server,
            prefix_cache=self._prefix_cache,
            whole_server={
                name: value
                for (name, position), value in self._totals.items()
                if not position and name.startswith("num_") and name != _PER_POSITION
            },
            whole_server_per_pos=tuple(self._totals[_PER_POSITION, str(position)] for position in self._positions()),
            mean_acceptance_length=next(iter(self._gauges.values()), None),
            num_prompt_tokens=self._first_total(_PROMPT_TOKENS),
            num_cached_tokens=self._first_total(_CACHED_TOKENS),
        )

    def _positions(self) -> Iterator[int]:
        return iter(sorted(int(position) for name, position in self._totals if name == _PER_POSITION and position))

    def _first_total(self, names: tuple[str, ...]) -> int | None:
        return next((self._totals[name, ""] for name in names if (name, "") in self._totals), None)


def _counter_of(name: str) -> str | None:
    """Our name of a counter of drafts, or None for any other metric."""
    match = _COUNTER_NAME.fullmatch(name)
    return _ALIASES.get(name) if match is None else match.group(1)


def _counters_by_segment(totals: dict[tuple[str, str, str], int]) -> dict[str, SegmentCounters]:
    counters: dict[str, SegmentCounters] = {}
    for segment in sorted({key[1] for key in totals}):
        positions = sorted(int(key[2]) for key in totals if key[0] == _PER_POSITION and key[1] == segment and key[2])
        counters[segment] = SegmentCounters(
            num_drafts=totals.get(("num_drafts", segment, ""), 0),
            num_draft_tokens=totals.get(("num_draft_tokens", segment, ""), 0),
            num_accepted_tokens=totals.get(("num_accepted_tokens", segment, ""), 0),
            accepted_per_pos=tuple(totals[_PER_POSITION, segment, str(position)] for position in positions),
        )
    return counters


def _flag(text: str | None) -> bool | None:
    return {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}.get((text or "").lower())


def _optional_int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
