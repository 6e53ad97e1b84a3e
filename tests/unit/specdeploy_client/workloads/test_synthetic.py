"""Lengths are as asked, segments share no prompts, impossible lengths are refused."""

import numpy as np
import pytest

from helpers.trained_tokenizers import rendering_of, small_words
from specdeploy.errors import RequestError
from specdeploy_client.workloads.base import Workload, derive_rng
from specdeploy_client.workloads.corpus import TextKind
from specdeploy_client.workloads.prompt_writer import PromptWriter
from specdeploy_client.workloads.synthetic import Lengths, SyntheticWorkload

WRITER = PromptWriter(rendering_of("gpt2"), TextKind.PROSE, 0, small_words())


def _workload(isl: Lengths, osl: Lengths | None = None, seed: int = 0, most: int | None = None) -> Workload:
    return SyntheticWorkload(("chat", "code"), WRITER, isl, osl, seed, most)


def _count(text: str) -> int:
    return len(WRITER.rendering.require_counter("x").tokenizer.encode(WRITER.rendering.prompt(text)).ids)


def test_requests_say_what_they_are() -> None:
    workload = _workload(Lengths(100), Lengths(20))
    requests = workload.requests("code", 3, 4)
    assert [request.prompt_id for request in requests] == [f"synthetic-{n}" for n in (7, 9, 11, 13)]
    for request in requests:
        assert request.segment == "code"
        assert (request.max_tokens, request.ignore_eos) == (20, True)
        assert request.expected_input_tokens == _count(request.user_turn) == 100
        assert not request.follows_previous
    assert workload.requests("code", 5, 1)[0] == requests[2]
    assert not workload.shares_prefixes
    assert "prompts of 100 tokens, answers of 20; prose of the Python library (sha256 " in workload.description


def test_without_an_output_length_answers_end_by_themselves() -> None:
    (request,) = _workload(Lengths(50)).requests("chat", 0, 1)
    assert (request.max_tokens, request.ignore_eos) == (None, False)


def test_segments_and_numbers_share_no_prompts() -> None:
    workload = _workload(Lengths(60))
    texts = [request.user_turn for segment in workload.segments for request in workload.requests(segment, 0, 30)]
    assert len({text[:20] for text in texts}) == 60
    assert workload.num_distinct("chat") == WRITER.num_distinct(60) // 2


def test_spread_lengths_have_their_mean_and_are_still_exact() -> None:
    workload = _workload(Lengths(200, 40.0), Lengths(30, 5.0))
    requests = workload.requests("chat", 0, 60)
    lengths = [request.expected_input_tokens or 0 for request in requests]
    assert lengths == [_count(request.user_turn) for request in requests]
    assert len(set(lengths)) > 30
    assert abs(np.mean(lengths) - 200) < 20
    assert 25 < np.mean([request.max_tokens or 0 for request in requests]) < 35
    assert lengths != [r.expected_input_tokens for r in _workload(Lengths(200, 40.0), seed=1).requests("chat", 0, 60)]


def test_draws_stay_within_bounds_without_piling_up_there() -> None:
    rng = derive_rng(0)
    drawn = [Lengths(100, 50.0).draw(rng, 80, 120) for _ in range(2000)]
    assert min(drawn) >= 80
    assert max(drawn) <= 120
    assert drawn.count(80) < 100  # evenly about 50; clipping would give about 700
    assert Lengths(7).draw(rng, 80, 120) == 7
    assert Lengths(7, 1e-9).draw(rng, 80, 120) == 7


def test_prompt_and_answer_together_fit_the_server() -> None:
    requests = _workload(Lengths(180, 60.0), Lengths(30, 20.0), most=220).requests("chat", 0, 60)
    totals = [(request.expected_input_tokens or 0) + (request.max_tokens or 0) for request in requests]
    assert max(totals) <= 220


@pytest.mark.parametrize(
    ("isl", "most", "message"),
    [
        (6, None, r"--isl: a prompt of 6 tokens.*alone takes 6\. The shortest has 7\. Ask for at least 7"),
        (100, 110, r"--isl: 100 tokens and an answer of 20 exceed the server's 110\. Ask for at most 90"),
    ],
)
def test_impossible_lengths_are_refused(isl: int, most: int | None, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        _workload(Lengths(isl), Lengths(20), most=most)
