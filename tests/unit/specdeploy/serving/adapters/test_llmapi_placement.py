"""The routing table: which instance, which reason, which refusal."""

from dataclasses import replace
from typing import Any

import pytest
from packaging.version import Version

from helpers import serving_requests
from specdeploy.contract import DeploymentPlan, DraftLenRange, Method, SegmentPlan
from specdeploy.errors import RequestError
from specdeploy.runtime.request import SamplingParams
from specdeploy.serving.adapters.llmapi_placement import FEATURES, Instance, Placement, Setup, place_request
from specdeploy.serving.request import Guide, ServingRequest

K = 4


def segment(name: str, *draft_lens: int, off_reason: str | None = None) -> SegmentPlan:
    """K at loads 1, 2, ...; the last one has no upper end."""
    ranges = tuple(
        DraftLenRange(min_in_flight=load, max_in_flight=None if load == len(draft_lens) else load, draft_len=draft_len)
        for load, draft_len in enumerate(draft_lens, start=1)
    )
    return SegmentPlan(segment=name, ranges=ranges, off_reason=off_reason)


PLAN = DeploymentPlan(
    deployment="d",
    source="config",
    method=Method.EAGLE3,
    max_draft_len=K,
    segments=(segment("chat", 0, off_reason="measured slower"), segment("code", K)),
    default=segment("other", K, K, 0, off_reason="load"),
)


def setup(version: str, *, guided: str | None = "xgrammar", speculation: dict[str, Any] | None = None) -> Setup:
    arguments: dict[str, Any] = {"guided_decoding_backend": guided}
    if speculation is not None:
        arguments["speculative_config"] = speculation
    return Setup(Version(version), arguments)


def make_request(**changes: Any) -> ServingRequest:
    """A streaming request; `sampling` are fields of SamplingParams."""
    sampling = SamplingParams(**changes.pop("sampling", {}))
    values: dict[str, Any] = {"prompt": "abc", "stream": True, "sampling": sampling, "stop_ids": frozenset({0})}
    return replace(serving_requests.make_request((1, 2, 3), 10), **(values | changes))


def place(
    request: ServingRequest,
    version: str = "1.2.1",
    *,
    in_flight: int = 1,
    has_plain: bool = True,
    plain: Setup | None = None,
    **speculation: Any,
) -> Placement:
    return place_request(
        request,
        PLAN,
        in_flight,
        speculative=setup(version, speculation={"decoding_type": "Eagle"} | speculation),
        plain=(plain or setup(version)) if has_plain else None,
    )


DRAFTED = Placement(Instance.SPECULATIVE, None)


def plain_for(reason: str) -> Placement:
    return Placement(Instance.PLAIN, reason)


SAMPLED = {"sampling": {"temperature": 0.8}}
GUIDED = {"guide": Guide("regex", "a")}
NEW = "1.4.0rc4"

# request, version, load -> where it runs with a plain instance beside; None without one = refused, by the field given
TABLE: list[tuple[dict[str, Any], str, int, Placement, Placement | str]] = [
    ({}, "1.2.1", 1, DRAFTED, DRAFTED),
    ({"num_draft_tokens": K}, "1.2.1", 9, DRAFTED, DRAFTED),
    ({"num_draft_tokens": K + 3}, "1.2.1", 9, DRAFTED, DRAFTED),
    ({"num_draft_tokens": 0}, "1.2.1", 1, plain_for("requested"), "num_draft_tokens"),
    ({"segment": "chat"}, "1.2.1", 1, plain_for("measured slower"), "segment"),
    ({}, "1.2.1", 3, plain_for("load"), DRAFTED),  # nothing in its arguments follows the load
    ({"segment": "code"}, "1.2.1", 30, DRAFTED, DRAFTED),
    (GUIDED, "1.2.1", 1, plain_for("constrained"), "guided_decoding_guide_type"),
    (GUIDED | {"num_draft_tokens": 0}, "1.2.1", 1, plain_for("constrained"), "guided_decoding_guide_type"),
    (GUIDED, NEW, 1, plain_for("constrained"), "guided_decoding_guide_type"),
    (SAMPLED, "1.2.1", 1, plain_for("sampling"), "temperature"),
    (SAMPLED, "1.2.0rc2", 1, plain_for("sampling"), "temperature"),
    (SAMPLED, "1.3.0rc20", 1, plain_for("sampling"), "temperature"),
    (SAMPLED, "1.3.0rc27", 1, DRAFTED, DRAFTED),
    (SAMPLED, NEW, 1, DRAFTED, DRAFTED),
    (SAMPLED | {"num_draft_tokens": 0}, "1.2.1", 1, plain_for("requested"), "temperature"),
    ({"sampling": {"temperature": 0.8, "top_k": 1}}, "1.2.1", 1, DRAFTED, DRAFTED),
    ({"sampling": {"temperature": 0.8, "top_k": 1}, "is_seed_given": True}, "1.2.1", 1, DRAFTED, DRAFTED),
    (SAMPLED | {"is_seed_given": True}, NEW, 1, DRAFTED, DRAFTED),
    ({"sampling": {"temperature": 0.8, "min_p": 0.1}}, NEW, 1, plain_for("min_p"), "min_p"),
    ({"sampling": {"repetition_penalty": 1.1}}, NEW, 1, plain_for("penalties"), "repetition_penalty"),
    ({"sampling": {"presence_penalty": 1.1}}, NEW, 1, plain_for("penalties"), "presence_penalty"),
    ({"sampling": {"frequency_penalty": 1.1}}, NEW, 1, plain_for("penalties"), "frequency_penalty"),
    ({"sampling": {"bad_words": ((3,),)}}, NEW, 1, plain_for("bad_words"), "bad_words"),
    ({"sampling": {"logit_bias": {1: 1.0}}}, "1.2.1", 1, plain_for("embedding_bias"), "embedding_bias_words"),
    ({"sampling": {"min_tokens": 3}}, NEW, 1, plain_for("min_tokens"), "min_tokens"),
    ({"sampling": {"min_tokens": 3}, "stop_ids": frozenset()}, "1.2.1", 1, DRAFTED, DRAFTED),
    ({"wants_log_probs": True}, "1.2.1", 1, plain_for("log_probs"), "return_log_probs"),
    ({"wants_log_probs": True}, NEW, 1, plain_for("log_probs"), "return_log_probs"),
]


@pytest.mark.parametrize(("changes", "version", "in_flight", "beside", "alone"), TABLE)
def test_the_table(
    changes: dict[str, Any], version: str, in_flight: int, beside: Placement, alone: Placement | str
) -> None:
    request = make_request(**changes)
    assert place(request, version, in_flight=in_flight) == beside
    if isinstance(alone, Placement):
        assert place(request, version, in_flight=in_flight, has_plain=False) == alone
        return
    with pytest.raises(RequestError, match=r"tensorrt_llm\.plain_instance: beside") as caught:
        place(request, version, in_flight=in_flight, has_plain=False)
    assert caught.value.field == alone


@pytest.mark.parametrize("argument", [{"max_concurrency": 2}, {"draft_len_schedule": {1: 4, 3: 0}}])
def test_an_instance_that_follows_the_load_itself_is_off_by_load(argument: dict[str, Any]) -> None:
    placement = place(make_request(), in_flight=3, has_plain=False, **argument)
    assert placement == Placement(Instance.SPECULATIVE, "load")


def test_the_table_covers_every_feature() -> None:
    asked = {
        feature.field for changes, *_ in TABLE for feature in FEATURES if feature.is_asked(make_request(**changes))
    }
    assert asked == {feature.field for feature in FEATURES}


@pytest.mark.parametrize(
    ("changes", "version", "field"),
    [
        (SAMPLED, "1.0.0", "temperature"),
        (SAMPLED, "1.1.0", "temperature"),
        ({"sampling": {"temperature": 0.8, "min_p": 0.1}}, "1.2.1", "min_p"),
        ({"sampling": {"temperature": 0.8, "min_p": 0.1}}, "1.3.0rc27", "min_p"),
        ({"sampling": {"repetition_penalty": 1.1}}, "1.2.1", "repetition_penalty"),
        ({"sampling": {"presence_penalty": 0.1}}, "1.2.1", "presence_penalty"),
        ({"sampling": {"frequency_penalty": 0.1}}, "1.2.1", "frequency_penalty"),
        ({"sampling": {"bad_words": ((3,),)}}, "1.2.1", "bad_words"),
        ({"sampling": {"logit_bias": {1: 1.0}}}, "1.0.0", "embedding_bias_words"),
        ({"sampling": {"min_tokens": 3}}, "1.2.1", "min_tokens"),
        (SAMPLED | {"wants_log_probs": True}, "1.2.1", "return_log_probs"),
        (SAMPLED | {"is_seed_given": True}, "1.2.1", "seed"),
        (SAMPLED | {"is_seed_given": True}, "1.3.0rc27", "seed"),
    ],
)
def test_what_a_version_ignores_is_refused_also_on_the_plain_instance(
    changes: dict[str, Any], version: str, field: str
) -> None:
    for number in (None, 0):
        with pytest.raises(RequestError) as caught:
            place(make_request(**changes, num_draft_tokens=number), version)
        assert caught.value.field == field
        assert version in caught.value.reason


def test_settings_of_the_instance_decide_where_the_version_does_not() -> None:
    mixed = Setup(Version("1.0.0"), {"enable_mixed_sampler": True})
    assert place(make_request(**SAMPLED), "1.0.0", plain=mixed) == plain_for("sampling")
    assert place(make_request(**SAMPLED), "1.3.0rc20", allow_advanced_sampling=True) == DRAFTED
    penalised = make_request(sampling={"presence_penalty": 0.5})
    assert place(penalised, NEW, enable_penalty=True) == DRAFTED
    assert place(penalised, NEW, enable_penalty=True, use_dynamic_tree=True) == plain_for("penalties")
    with pytest.raises(RequestError, match="ignores penalties"):
        place(penalised, "1.2.1", enable_penalty=True)


def test_a_guide_needs_a_backend() -> None:
    with pytest.raises(RequestError, match="name no guided_decoding_backend"):
        place(make_request(**GUIDED), plain=setup("1.2.1", guided=None))


@pytest.mark.parametrize("number", [1, 3])
def test_a_shorter_draft_is_refused(number: int) -> None:
    with pytest.raises(RequestError, match=rf"num_draft_tokens: {number} is shorter than the 4") as caught:
        place(make_request(num_draft_tokens=number))
    assert caught.value.remedy == "Send 0 or 4, or leave it out"
