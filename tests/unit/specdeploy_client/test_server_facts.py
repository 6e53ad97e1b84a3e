"""A metrics page as Triton writes it becomes facts and counters."""

import asyncio

import pytest

from specdeploy_client.server_facts import (
    SegmentCounters,
    ServerFacts,
    parse_server_facts,
    read_server_facts,
    require_ready,
)
from specdeploy_client.summary import describe_positions
from specdeploy_client.transport import ServerUnreachableError

# Triton adds labels of its own and gives no order.
PAGE = """\
# HELP nv_inference_count Number of inferences
# TYPE nv_inference_count counter
nv_inference_count{model="llm",version="1"} 12
# HELP specdeploy_info What is served
# TYPE specdeploy_info gauge
specdeploy_info{INFO_LABELS} 1
# HELP spec_decode_num_drafts Drafts
# TYPE spec_decode_num_drafts counter
spec_decode_num_drafts{model="llm",segment="chat",version="1"} 10
spec_decode_num_drafts{segment="code_edit",version="1"} 2
# HELP spec_decode_num_draft_tokens Draft tokens
# TYPE spec_decode_num_draft_tokens counter
spec_decode_num_draft_tokens{segment="chat"} 40
# HELP spec_decode_num_accepted_tokens Accepted
# TYPE spec_decode_num_accepted_tokens counter
spec_decode_num_accepted_tokens{segment="chat"} 15
# HELP spec_decode_num_accepted_tokens_per_pos By position
# TYPE spec_decode_num_accepted_tokens_per_pos counter
spec_decode_num_accepted_tokens_per_pos{segment="chat",position="1"} 5
spec_decode_num_accepted_tokens_per_pos{segment="chat",position="0"} 10
""".replace(
    "INFO_LABELS",
    'build_id="b1",deployment="demo",dtype="float32",lane="torch",max_draft_len="4",method="ngram",model="llm",'
    'threads="1",version="1"',
)


def test_page() -> None:
    facts = parse_server_facts(PAGE)
    assert (facts.deployment, facts.build_id, facts.lane, facts.method) == ("demo", "b1", "torch", "ngram")
    assert (facts.dtype, facts.threads, facts.max_draft_len) == ("float32", 1, 4)
    assert facts.counters["chat"] == SegmentCounters(10, 40, 15, (10, 5))
    assert facts.counters["code_edit"] == SegmentCounters(2)


def test_names_with_total_are_the_same_counters() -> None:
    page = '# TYPE spec_decode_num_drafts counter\nspec_decode_num_drafts_total{segment="chat"} 3\n'
    assert parse_server_facts(page).counters == {"chat": SegmentCounters(3)}


def test_a_page_without_our_metrics_knows_nothing() -> None:
    assert parse_server_facts("") == ServerFacts()


def test_increase_since_a_snapshot() -> None:
    before = ServerFacts(counters={"chat": SegmentCounters(10, 40, 15, (10, 5))})
    after = ServerFacts(counters={"chat": SegmentCounters(12, 48, 20, (12, 6, 1)), "other": SegmentCounters(1)})
    assert after.counters_since(before) == {"chat": SegmentCounters(2, 8, 5, (2, 1, 1)), "other": SegmentCounters(1)}


def test_acceptance_by_position() -> None:
    assert (
        describe_positions(SegmentCounters(10, 40, 15, (10, 5, 0)))
        == "marginal 1.00 0.50 0.00; conditional 1.00 0.50 0.00"
    )
    assert describe_positions(SegmentCounters(10, 40, 0, (0, 0))) == "marginal 0.00 0.00; conditional 0.00 -"
    assert describe_positions(SegmentCounters()) is None


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/metrics", "127.0.0.1:1", "http://[bad"])
def test_no_metrics_names_the_address(url: str) -> None:
    with pytest.raises(ServerUnreachableError, match="--metrics-url") as caught:
        asyncio.run(read_server_facts(url))
    assert url in str(caught.value)


def test_a_model_that_is_not_ready_is_said() -> None:
    class Probe:
        url = "host:1"

        async def is_ready(self) -> bool:
            return False

    with pytest.raises(ServerUnreachableError, match="not ready"):
        asyncio.run(require_ready(Probe()))
