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


VLLM_PAGE = """\
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0"} 1.0
# TYPE vllm:spec_decode_num_drafts counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 5.0
# TYPE vllm:spec_decode_num_draft_tokens counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 45.0
# TYPE vllm:spec_decode_num_accepted_tokens counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 20.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 8.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 12.0
# TYPE vllm:prefix_cache_queries counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
# TYPE vllm:prefix_cache_hits counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 600.0
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
"""
SGLANG_PAGE = """\
# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length{model_name="m",tp_rank="0"} 3.2
sglang:spec_accept_length{model_name="m",tp_rank="1"} 9.9
# TYPE sglang:spec_verify_calls counter
sglang:spec_verify_calls_total{model_name="m",tp_rank="0"} 50.0
sglang:spec_verify_calls_total{model_name="m",tp_rank="1"} 50.0
# TYPE sglang:prompt_tokens counter
sglang:prompt_tokens_total{model_name="m"} 1000.0
# TYPE sglang:cached_tokens counter
sglang:cached_tokens_total{cache_source="device",model_name="m"} 300.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 100.0
sglang:cached_tokens_total{cache_source="total",model_name="m"} 400.0
"""
TRTLLM_PAGE = """\
# TYPE trtllm_spec_decode_num_draft_tokens counter
trtllm_spec_decode_num_draft_tokens_total{engine_type="trtllm",model_name="m"} 40.0
# TYPE trtllm_spec_decode_num_accepted_tokens counter
trtllm_spec_decode_num_accepted_tokens_total{engine_type="trtllm",model_name="m"} 15.0
# TYPE trtllm_spec_decode_acceptance_length gauge
trtllm_spec_decode_acceptance_length{engine_type="trtllm",model_name="m"} 2.5
"""


def test_a_page_of_vllm() -> None:
    facts = parse_server_facts(VLLM_PAGE)
    assert facts.server == "vLLM"
    assert facts.counters == {}
    assert facts.whole_server == {"num_drafts": 15, "num_draft_tokens": 45, "num_accepted_tokens": 20}
    assert facts.whole_server_per_pos == (12, 8)
    assert (facts.num_prompt_tokens, facts.num_cached_tokens, facts.prefix_cache) == (1000, 600, True)


def test_a_page_of_sglang_counts_one_rank_and_no_source_twice() -> None:
    facts = parse_server_facts(SGLANG_PAGE)
    assert facts.server == "SGLang"
    assert facts.whole_server == {"num_drafts": 50}
    assert facts.mean_acceptance_length == 3.2
    assert (facts.num_prompt_tokens, facts.num_cached_tokens, facts.prefix_cache) == (1000, 400, None)


def test_a_page_of_trtllm_serve() -> None:
    facts = parse_server_facts(TRTLLM_PAGE)
    assert facts.server == "trtllm-serve"
    assert facts.whole_server == {"num_draft_tokens": 40, "num_accepted_tokens": 15}
    assert facts.whole_server_per_pos == ()
    assert facts.mean_acceptance_length == 2.5


@pytest.mark.parametrize("page", ["<html><body>404</body></html>", "# TYPE up gauge\nup 1\n", "{}", "a b c d e"])
def test_any_other_page_knows_nothing(page: str) -> None:
    assert parse_server_facts(page) == ServerFacts()


@pytest.mark.parametrize(("word", "expected"), [("on", True), ("off", False), ("", None), ("who knows", None)])
def test_our_server_may_say_whether_it_caches_prefixes(word: str, expected: bool | None) -> None:
    assert parse_server_facts(f'specdeploy_info{{prefix_cache="{word}"}} 1\n').prefix_cache is expected


def test_share_of_prompt_tokens_from_the_cache() -> None:
    before = ServerFacts(num_prompt_tokens=1000, num_cached_tokens=600)
    after = ServerFacts(num_prompt_tokens=1400, num_cached_tokens=610)
    assert after.cached_share_since(before) == pytest.approx(10 / 400)
    assert before.cached_share_since(before) is None
    assert after.cached_share_since(ServerFacts()) is None


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
