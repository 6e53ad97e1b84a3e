"""The trap: one dictionary, two meanings. Every schedule is read back in its meaning and compared with the plan."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from specdeploy.contract import DraftLenRange, Method
from specdeploy.trtllm.draft_len_schedule import (
    SCHEDULED_METHODS,
    LoadStep,
    ScheduleMeaning,
    interpret_schedule,
    load_steps,
    obeys_max_concurrency,
    render_schedule,
    schedule_meaning,
    schedule_problems,
    single_cut,
)
from specdeploy.trtllm.facts import SPECULATIVE_FILE, load_facts, speculative_column, speculative_types, type_sources

FROM_KEY, UP_TO_KEY = ScheduleMeaning.FROM_KEY, ScheduleMeaning.UP_TO_KEY
MAX_LOAD = 64
STEPS = load_steps(
    [
        DraftLenRange(min_in_flight=1, max_in_flight=3, draft_len=4),
        DraftLenRange(min_in_flight=4, max_in_flight=7, draft_len=2),
    ],
    4,
    MAX_LOAD,
)


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[DraftLenRange], int]:
    """Ranges in rising order, with gaps, and a max_draft_len that none exceeds."""
    max_draft_len = draw(st.integers(1, 8))
    cuts = sorted(draw(st.sets(st.integers(1, MAX_LOAD + 8), min_size=2, max_size=7)))
    ranges = [
        DraftLenRange(min_in_flight=first, max_in_flight=last - 1, draft_len=draw(st.integers(0, max_draft_len)))
        for first, last in pairwise(cuts)
        if draw(st.integers(0, 3)) > 0
    ]
    if draw(st.booleans()):
        k = draw(st.integers(0, max_draft_len))
        ranges.append(DraftLenRange(min_in_flight=cuts[-1], max_in_flight=None, draft_len=k))
    return ranges, max_draft_len


def planned(ranges: list[DraftLenRange], max_draft_len: int, load: int) -> int:
    """K of the plan, by its definition and not by the code under test."""
    if not ranges:
        return max_draft_len
    for entry in ranges:
        if entry.min_in_flight <= load <= (entry.max_in_flight or MAX_LOAD):
            return entry.draft_len
    return 0


@given(plans(), st.sampled_from([FROM_KEY, UP_TO_KEY]))
def test_a_rendered_schedule_drafts_what_the_plan_says_at_every_load(
    plan: tuple[list[DraftLenRange], int], meaning: ScheduleMeaning
) -> None:
    ranges, max_draft_len = plan
    steps = load_steps(ranges, max_draft_len, MAX_LOAD)
    schedule = render_schedule(steps, meaning, max_draft_len)
    expected = [planned(ranges, max_draft_len, load) for load in range(1, MAX_LOAD + 1)]
    assert [step.draft_len for step in steps for _ in range(step.first, step.last + 1)] == expected
    if expected[0] != max_draft_len:
        assert schedule is None
        return
    assert schedule is not None
    assert [interpret_schedule(schedule, meaning, load) for load in range(1, MAX_LOAD + 1)] == expected
    assert schedule_problems(schedule, meaning, max_draft_len) == []


@given(plans())
def test_a_single_cut_says_all_of_the_plan(plan: tuple[list[DraftLenRange], int]) -> None:
    ranges, max_draft_len = plan
    cut = single_cut(load_steps(ranges, max_draft_len, MAX_LOAD), max_draft_len)
    expected = [planned(ranges, max_draft_len, load) for load in range(1, MAX_LOAD + 1)]
    representable = [[max_draft_len] * k + [0] * (MAX_LOAD - k) for k in range(1, MAX_LOAD)]
    assert (cut is not None) is (expected in representable)
    if cut is not None:
        assert expected == [max_draft_len if load <= cut else 0 for load in range(1, MAX_LOAD + 1)]


def test_the_same_ranges_are_written_differently_in_the_two_meanings() -> None:
    assert render_schedule(STEPS, FROM_KEY, 4) == {1: 4, 4: 2, 8: 0}
    assert render_schedule(STEPS, UP_TO_KEY, 4) == {3: 4, 7: 2}


def test_a_schedule_read_in_the_other_meaning_drafts_otherwise() -> None:
    written = {1: 4, 4: 2, 8: 0}
    assert [interpret_schedule(written, FROM_KEY, load) for load in (1, 3, 4, 7, 8, 64)] == [4, 4, 2, 2, 0, 0]
    assert [interpret_schedule(written, UP_TO_KEY, load) for load in (1, 3, 4, 7, 8, 64)] == [4, 2, 2, 0, 0, 0]


def test_drafting_at_every_load_ends_at_the_batch_limit() -> None:
    steps = load_steps(
        [
            DraftLenRange(min_in_flight=1, max_in_flight=8, draft_len=4),
            DraftLenRange(min_in_flight=9, max_in_flight=None, draft_len=1),
        ],
        4,
        32,
    )
    assert steps == (LoadStep(1, 8, 4), LoadStep(9, 32, 1))
    assert render_schedule(steps, UP_TO_KEY, 4) == {8: 4, 32: 1}
    assert render_schedule(steps, FROM_KEY, 4) == {1: 4, 9: 1}


@pytest.mark.parametrize(
    ("schedule", "meaning", "problem"),
    [
        ({4: 4, 8: 2}, FROM_KEY, "key 1 is missing"),
        ({1: 3, 4: 2}, FROM_KEY, "smallest key maps to 3"),
        ({3: 3, 7: 2}, UP_TO_KEY, "smallest key maps to 3"),
        ({1: 4, 4: 2, 8: 0}, UP_TO_KEY, "written for the other meaning"),
        ({1: 4, 4: 5}, FROM_KEY, "5 at key 4 is not in 0..4"),
        ({0: 4, 1: 4}, FROM_KEY, "key 0 is below 1"),
        ({}, UP_TO_KEY, "it is empty"),
    ],
)
def test_a_planted_fault_of_a_schedule_is_found(
    schedule: dict[int, int], meaning: ScheduleMeaning, problem: str
) -> None:
    assert any(problem in found for found in schedule_problems(schedule, meaning, 4))


@pytest.mark.parametrize("version", ["1.2.1", "1.3.0rc27", "1.4.0rc1", "1.4.0rc4"])
def test_the_meaning_of_a_version_is_what_its_column_says(version: str) -> None:
    words = {FROM_KEY: "batch size at or above key", UP_TO_KEY: "up to and including key"}
    meaning = schedule_meaning(Version(version))
    assert meaning is not None
    column = speculative_column(Version(version))
    versions = load_facts(SPECULATIVE_FILE)["versions"]
    for decoding_type in speculative_types(column):
        for key in type_sources(column, decoding_type):
            field = versions[key]["types"][decoding_type]["fields"].get("draft_len_schedule")
            assert field is None or words[meaning] in field["meaning"], (decoding_type, key)


@pytest.mark.parametrize("version", ["1.0.0", "1.1.0", "1.2.0rc6", "1.3.0rc5", "1.3.0rc26", "1.4.0", "2.0"])
def test_no_meaning_is_guessed(version: str) -> None:
    assert schedule_meaning(Version(version)) is None


def test_the_methods_that_may_vary_from_mid_2026_are_those_of_the_facts() -> None:
    names = {Method.EAGLE3: "Eagle3", Method.MTP: "MTP", Method.DRAFT_MODEL: "Draft_Target", Method.NGRAM: "NGram"}
    facts = load_facts(SPECULATIVE_FILE)["combinations"]["dynamic_draft_len"]["main"]
    for method, name in names.items():
        assert (method in SCHEDULED_METHODS[UP_TO_KEY]) is (name in facts)


@pytest.mark.parametrize(
    ("version", "methods"),
    [
        ("1.2.0rc6", {Method.DRAFT_MODEL, Method.NGRAM}),
        ("1.2.1", {Method.DRAFT_MODEL, Method.NGRAM}),
        ("1.3.0rc5", {Method.NGRAM}),
        ("1.3.0rc27", {Method.EAGLE3, Method.MTP, Method.DRAFT_MODEL, Method.NGRAM}),
        ("1.4.0rc4", {Method.EAGLE3, Method.MTP, Method.DRAFT_MODEL, Method.NGRAM}),
        ("1.5.0", {Method.NGRAM}),
    ],
)
def test_a_limit_is_only_believed_where_something_enforces_it(version: str, methods: set[Method]) -> None:
    every = (Method.EAGLE3, Method.MTP, Method.DRAFT_MODEL, Method.NGRAM)
    assert {method for method in every if obeys_max_concurrency(method, Version(version))} == methods
