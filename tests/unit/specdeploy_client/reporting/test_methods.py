"""Which method pays and why: the arithmetic, its words, and the table of several runs."""

from collections.abc import Sequence

import pytest
from rich.console import Console

from specdeploy.run_contract import Acceptance, Arm, CellConditions, Load, RequestRecord
from specdeploy_client.records.table import RecordTable
from specdeploy_client.reporting.console import methods_table
from specdeploy_client.reporting.methods import (
    MeasuredRun,
    MethodRow,
    Outcome,
    StepCosts,
    compare_methods,
    describe_costs,
    marginal_acceptance,
    measure_steps,
    run_names,
)
from unit.specdeploy_client.fabricate import make_cell, make_columns, make_record, make_summary

LOSES = "accepts 0.31 tokens per step; a step takes 1.40 times a plain one, so it would need 0.40"


def _answer(arm: Arm, ttft: float, step: float, accepted: Sequence[int], **changes: object) -> RequestRecord:
    """First token after `ttft`; then the i-th step takes `step` and accepts `accepted[i]` draft tokens."""
    arrivals = [ttft + step * i for i in range(len(accepted) + 1)]
    return make_record(
        arrivals,
        [1, *(1 + n for n in accepted)],
        arm=arm,
        steps=len(arrivals),
        drafted=4 * len(accepted),
        accepted=sum(accepted),
        **changes,  # type: ignore[arg-type]
    )


def _costs(
    *, plain: float = 40.0, step: float = 56.0, accepted: float = 0.31, plain_ttft: float = 90.0, ttft: float = 90.0
) -> StepCosts:
    return StepCosts(plain, step, accepted, plain_ttft, ttft)


def _run(
    method: str = "ngram", speedup: float = 1.5, *, cells: Sequence[tuple[str, int]] = (("chat", 1),), **changes: object
) -> MeasuredRun:
    records = [record for cell in cells for record in make_cell(*cell, speedup=speedup)]
    summary = make_summary(records, **changes)  # type: ignore[arg-type]
    told = tuple(_conditions(segment, level, 100, (40, 15, 5)) for segment, level in cells if segment == "chat")
    changed = summary.model_copy(update={"method": method, "conditions": told})
    return MeasuredRun(changed, RecordTable.from_records(records))


def _conditions(segment: str, level: int, num_drafts: int | None, accepted: tuple[int, ...] | None) -> CellConditions:
    return CellConditions(segment=segment, concurrency=level, num_drafts=num_drafts, accepted_per_pos=accepted)


def _measure(pairs: Sequence[tuple[RequestRecord, RequestRecord]]) -> StepCosts | None:
    """`measure_steps` of pairs, numbered in their order."""
    off, on = (
        make_columns([pair[side].model_copy(update={"index": i}) for i, pair in enumerate(pairs)]) for side in (0, 1)
    )
    return measure_steps(off, on)


def test_steps_are_counted_after_the_first_token() -> None:
    """Off: 12 steps of 40 ms. On: 8 steps of 50 ms that accept 4 tokens. The first token's step counts for neither."""
    off = _answer(Arm.OFF, 100.0, 40.0, [0] * 12)
    on = _answer(Arm.ON, 130.0, 50.0, [1, 0, 2, 0, 0, 1, 0, 0])
    costs = _measure([(off, on)])
    assert costs == StepCosts(40.0, 50.0, 0.5, 100.0, 130.0)
    assert (costs.step_ratio, costs.break_even, costs.tokens_per_step) == (1.25, 0.25, 1.5)


@pytest.mark.parametrize("accepted", [[0, 0, 0, 1], [1, 1, 0, 0], [0, 2, 0, 3], [3, 3, 3, 3]])
@pytest.mark.parametrize("step", [44.0, 50.0, 60.0, 100.0])
def test_break_even_is_where_decoding_takes_as_long_as_without(accepted: list[int], step: float) -> None:
    """a > r - 1 exactly when the same tokens took less time after the first."""
    on = _answer(Arm.ON, 100.0, step, accepted)
    off = _answer(Arm.OFF, 100.0, 40.0, [0] * (len(accepted) + sum(accepted)))
    costs = _measure([(off, on)])
    assert costs is not None
    on_time, off_time = step * len(accepted), 40.0 * (len(accepted) + sum(accepted))
    if on_time != off_time:
        assert (costs.accepted_per_step > costs.break_even) == (on_time < off_time)


def test_one_slow_request_does_not_move_the_step_times() -> None:
    pairs = [(_answer(Arm.OFF, 100.0, 40.0, [0] * 4), _answer(Arm.ON, 100.0, 50.0, [1, 0])) for _ in range(4)]
    pairs.append((_answer(Arm.OFF, 100.0, 4000.0, [0] * 4), _answer(Arm.ON, 900.0, 9000.0, [1, 0])))
    costs = _measure(pairs)
    assert costs is not None
    assert (costs.plain_step_ms, costs.step_ms, costs.ttft_ms) == (40.0, 50.0, 100.0)


@pytest.mark.parametrize(
    "on",
    [
        make_record((50, 60), (1, 2), arm=Arm.ON, steps=None, accepted=1),
        make_record((50, 60), (1, 2), arm=Arm.ON, steps=2, accepted=None),
        make_record((50,), (1,), arm=Arm.ON, steps=1, accepted=0),  # one step: nothing after the first token
        make_record((), (), arm=Arm.ON, steps=0, accepted=0),
    ],
)
def test_records_without_step_counts_tell_nothing(on: RequestRecord) -> None:
    assert _measure([(_answer(Arm.OFF, 100.0, 40.0, [0] * 4), on)]) is None


def test_without_a_pair_there_are_no_costs() -> None:
    off = make_columns([_answer(Arm.OFF, 100.0, 40.0, [0] * 4)])
    on = make_columns([_answer(Arm.ON, 100.0, 40.0, [1] * 4, index=1)])
    assert measure_steps(off, on) is None


@pytest.mark.parametrize(
    ("outcome", "costs", "words"),
    [
        ("does not pay", _costs(), LOSES),
        ("not decided", _costs(), LOSES),
        (
            "pays",
            _costs(accepted=1.37),
            ("accepts 1.37 tokens per step; a step takes 1.40 times a plain one, so 0.40 would be enough"),
        ),
        (
            "pays",
            _costs(step=39.0, accepted=0.05),
            ("accepts 0.05 tokens per step; a step takes no longer than a plain one, so any accepted token is a gain"),
        ),
        ("pays", _costs(), LOSES + "; steps alone do not explain the result"),
        (
            "does not pay",
            _costs(accepted=0.5, ttft=130.0),
            (
                "accepts 0.50 tokens per step; a step takes 1.40 times a plain one, so 0.40 would be "
                "enough, but the first token comes after 130 ms instead of 90"
            ),
        ),
        (
            "does not pay",
            _costs(accepted=0.5, ttft=80.0),
            (
                "accepts 0.50 tokens per step; a step takes 1.40 times a plain one, so 0.40 would be "
                "enough; steps alone do not explain the result"
            ),
        ),
        ("pays", None, "what a step costs is not known: no records, or no step counts in them"),
    ],
)
def test_the_reason_is_the_arithmetic(outcome: Outcome, costs: StepCosts | None, words: str) -> None:
    assert describe_costs(costs, outcome) == words


def _only(run: MeasuredRun) -> MethodRow:
    (row,) = compare_methods([run])
    return row


def test_a_method_that_wins_loses_or_is_undecided_says_so() -> None:
    wins, loses, unsure = (_only(_run(speedup=speedup)) for speedup in (1.9, 0.6, 1.0))
    assert wins.sentence.startswith("pays: accepts 1.00 tokens per step; a step takes 1.0")
    assert wins.sentence.endswith("would be enough")
    assert loses.sentence.startswith("does not pay: accepts 1.00 tokens per step; a step takes 3.3")
    assert "so it would need 2.3" in loses.sentence
    assert unsure.sentence.startswith("not decided: the interval [0.9")
    assert " contains 1; accepts 1.00 tokens per step" in unsure.sentence
    assert wins.acceptance_per_position == (0.4, 0.15, 0.05)


def test_what_was_not_measured_is_not_judged() -> None:
    void = make_cell(num_pairs=3)
    row = _only(MeasuredRun(make_summary(void), RecordTable.from_records(void)))
    assert row.sentence.startswith("not decided: the measurement is void: too few pairs: 3 ")
    only_on = [record for record in make_cell() if record.arm is Arm.ON]
    row = _only(MeasuredRun(make_summary(only_on), RecordTable.from_records(only_on)))
    assert row.sentence == "not decided: speculation on and off were not both measured"
    assert row.costs is None
    row = _only(_run(cells=[("chat", 4)], effective_concurrency=2))
    assert row.sentence == "not decided: the server decodes 2 requests at once, the rest waits"


def test_without_records_the_ratio_still_decides() -> None:
    row = _only(MeasuredRun(make_summary(make_cell("chat", 1, speedup=1.9))))
    assert row.sentence == "pays: what a step costs is not known: no records, or no step counts in them"
    assert row.acceptance_per_position == ()
    assert row.acceptance_rate is not None


def test_runs_meet_in_the_cells_that_all_of_them_measured() -> None:
    many = _run(cells=[("code_edit", 1), ("code_edit", 4), ("chat", 1), ("chat", 4)])
    few = _run("eagle3", cells=[("chat", 1), ("code_edit", 1)])
    assert [(row.segment, row.load.concurrency, row.name) for row in compare_methods([many, few])] == [
        ("code_edit", 1, "ngram"),
        ("code_edit", 1, "eagle3"),
        ("chat", 1, "ngram"),
        ("chat", 1, "eagle3"),
    ]
    strangers = compare_methods([_run(cells=[("chat", 1)]), _run("eagle3", cells=[("chat", 8)])])
    assert [(row.load.concurrency, row.name) for row in strangers] == [(1, "ngram"), (8, "eagle3")]
    assert compare_methods([]) == compare_methods([MeasuredRun(make_summary([]))]) == ()


def test_names_tell_runs_apart() -> None:
    demo, bf16, head = (
        _run(method, deployment=deployment, dtype=dtype).summary
        for method, deployment, dtype in (
            ("ngram", "demo", "float32"),
            ("ngram", "demo-bf16", "bfloat16"),
            ("eagle3", "demo-eagle3", "bfloat16"),
        )
    )
    assert run_names([demo, bf16, head]) == ("ngram, float32", "ngram, bfloat16", "eagle3, bfloat16")
    assert run_names([bf16, head]) == ("ngram", "eagle3")
    assert run_names([demo, demo.model_copy(update={"deployment": "other"})]) == ("ngram, demo", "ngram, other")


def test_the_costs_of_a_row_are_those_of_its_own_cell() -> None:
    run = _run(cells=[("chat", 1), ("chat", 4)])
    assert run.table is not None
    own = run.table.cells["chat", Load(1)]
    costs = measure_steps(own[Arm.OFF], own[Arm.ON])
    assert costs is not None
    assert compare_methods([run])[0].costs == costs


def test_acceptance_by_position_is_pooled_over_the_cells_of_a_segment() -> None:
    """100 drafts with (60, 20) and 300 with (90, 30, 12), which got one position further; other segments are apart."""
    summary = make_summary([]).model_copy(
        update={
            "conditions": (
                _conditions("chat", 1, 100, (60, 20)),
                _conditions("chat", 4, 300, (90, 30, 12)),
                _conditions("code_edit", 1, 10, (10, 10)),
                _conditions("chat", 8, None, None),
            )
        }
    )
    assert marginal_acceptance(summary, "chat") == (0.375, 0.125, 0.03)
    assert marginal_acceptance(summary, "chat", Load(1)) == (0.6, 0.2)
    assert marginal_acceptance(summary, "chat", Load(8)) == marginal_acceptance(summary, "rag") == ()


def test_acceptance_by_position_falls_back_to_what_the_answers_told() -> None:
    summary = make_summary(make_cell("chat", 1))
    told = Acceptance(
        num_steps=10,
        num_draft_tokens=20,
        num_accepted_tokens=9,
        acceptance_rate=0.45,
        mean_acceptance_length=1.9,
        rate_per_pos=(0.5, 0.25),
    )
    cells = tuple(
        cell.model_copy(update={"acceptance": told}) if cell.arm is Arm.ON else cell for cell in summary.cells
    )
    assert marginal_acceptance(summary, "chat") == ()
    assert marginal_acceptance(summary.model_copy(update={"cells": cells}), "chat") == (0.5, 0.25)


def test_the_terminal_table_holds_every_method_and_reason() -> None:
    runs = [
        _run(speedup=1.9),
        _run("draft_model", speedup=1.0, deployment="b"),
        _run("eagle3", speedup=0.6, deployment="c"),
    ]
    console = Console(width=120, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(methods_table(compare_methods(runs)))
    shown = capture.get()
    assert max(map(len, shown.splitlines())) <= 120
    text = " ".join(shown.split())
    assert text.count("chat, 1 at once") == 1
    for expected in ("ngram", "draft_model", "eagle3", "pays: accepts", "not decided: the", "does not pay: accepts"):
        assert expected in text, expected
