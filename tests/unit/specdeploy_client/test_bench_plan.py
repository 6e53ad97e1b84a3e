"""Budgets, options and a workload become cells."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from specdeploy.config.schema import DeploymentConfig
from specdeploy.errors import RequestError
from specdeploy.run_contract import Arm, Load
from specdeploy_client.bench_plan import (
    BUDGETS,
    UNPLANNED_DRAFT_LEN,
    VERIFY_BUDGET,
    BenchOptions,
    BenchPlan,
    plan_bench,
)
from specdeploy_client.comparison.stats import MIN_PAIRS
from specdeploy_client.load.arrivals import ArrivalPattern, Arrivals
from specdeploy_client.workloads.base import WorkRequest

SEGMENTS = ("chat", "code_edit", "summarisation")


def _plain(segment: str, index: int) -> WorkRequest:
    return WorkRequest(f"{segment}-{index}", segment, f"prompt {index}")


@dataclass
class _Prompts:
    """As many different prompts a segment as `distinct` says; request `index` is made by `make`."""

    distinct: int = 24
    make: Callable[[str, int], WorkRequest] = _plain
    name: str = "prompts"
    segments: tuple[str, ...] = SEGMENTS
    description: str = "made up"
    shares_prefixes: bool = False
    asked: list[tuple[str, int, int]] = field(default_factory=list)

    def requests(self, segment: str, first: int, count: int) -> tuple[WorkRequest, ...]:
        self.asked.append((segment, first, count))
        return tuple(self.make(segment, index % self.distinct) for index in range(first, first + count))

    def num_distinct(self, segment: str) -> int:
        assert segment in self.segments
        return self.distinct


def make_config(**changes: object) -> DeploymentConfig:
    config = {
        "schema_version": 1,
        "name": "demo",
        "lane": "torch",
        "dtype": "float32",
        "target": {"checkpoint": "folder"},
        "speculation": {"method": "ngram", "max_draft_len": 4},
        "traffic": {
            "expected_concurrency": 4,
            "segments": [{"name": name, "prompts": f"{name}.jsonl", "max_tokens": 32} for name in SEGMENTS],
        },
    }
    return DeploymentConfig.model_validate({**config, **changes})


def _render(turns: tuple[str, ...]) -> str:
    return "|".join(turns).upper()


def _plan(options: BenchOptions, workload: _Prompts | None = None, config: DeploymentConfig | None = None) -> BenchPlan:
    return plan_bench(workload or _Prompts(), options, _render, config or make_config())


def _shape(plan: BenchPlan) -> list[tuple[str, Load, tuple[Arm, ...], int, int]]:
    return [(c.segment, c.load, tuple(c.draft_lens), len(c.requests), len(c.warmup)) for c in plan.cells]


def test_quick_takes_two_segments_at_one_and_four() -> None:
    plan = _plan(BenchOptions(BUDGETS["quick"]))
    both = (Arm.OFF, Arm.ON)
    assert _shape(plan) == [
        ("chat", Load(1), both, 20, 1),
        ("chat", Load(4), both, 20, 4),
        ("code_edit", Load(1), both, 20, 1),
        ("code_edit", Load(4), both, 20, 4),
    ]
    assert plan.num_requests == 160
    assert plan.load_kind == "closed loop"
    assert plan.notes == {
        "workload": "made up",
        "answers": "at most 16 tokens in budget quick",
        "segments not measured": "summarisation",
    }
    assert {request.max_tokens for cell in plan.cells for request in cell.requests} == {16}
    assert plan.cells[0].requests[3].prompt == "PROMPT 3"


def test_full_supports_p90_and_says_that_prompts_repeat() -> None:
    plan = _plan(BenchOptions(BUDGETS["full"]))
    assert len(plan.cells) == 12
    assert {len(cell.requests) for cell in plan.cells} == {100}
    assert plan.notes["prompts of chat"] == "24 prompts for 100 requests per arm: prompts repeat"
    assert {request.max_tokens for cell in plan.cells for request in cell.requests} == {32}


def test_cells_take_fresh_prompts_where_there_are_enough_and_the_same_where_not() -> None:
    def prompts(distinct: int) -> list[set[str]]:
        options = BenchOptions(BUDGETS["quick"], segments=("chat",))
        plan = _plan(options, _Prompts(distinct))
        return [{request.prompt_id for request in (*cell.requests, *cell.warmup)} for cell in plan.cells]

    first, second = prompts(45)
    assert not first & second
    first, second = prompts(44)
    assert first <= second


def test_verify_asks_the_same_prompts_at_every_level() -> None:
    first, second, *_ = _plan(BenchOptions(VERIFY_BUDGET), _Prompts(1000)).cells
    assert (first.load, second.load) == (Load(1), Load(4))
    assert first.requests == second.requests


def test_row_adds_the_floor_arm_over_the_same_prompts() -> None:
    plan = _plan(BenchOptions(BUDGETS["row"]))
    assert [cell.segment for cell in plan.cells] == ["chat", "chat", "code_edit", "code_edit"]
    for pair, floor in (plan.cells[:2], plan.cells[2:]):
        assert (pair.load, floor.load) == (Load(1), Load(4))
        assert (pair.draft_lens, floor.draft_lens) == ({Arm.OFF: 0, Arm.ON: 4}, {Arm.FLOOR: 0})
        assert pair.requests == floor.requests
        assert len(pair.requests) >= MIN_PAIRS


@pytest.mark.parametrize(("dtype", "has_floor"), [("float32", False), ("bfloat16", True)])
def test_fresh_prompts_get_a_floor_where_answers_round(dtype: str, has_floor: bool) -> None:
    options = BenchOptions(BUDGETS["quick"], segments=("chat",))
    plan = _plan(options, _Prompts(1000), make_config(dtype=dtype))
    floors = [cell for cell in plan.cells if Arm.FLOOR in cell.draft_lens]
    assert bool(floors) is has_floor
    for floor in floors:
        assert floor.load == Load(4)
        assert floor.requests == plan.cells[0].requests


def test_the_on_arm_sends_the_plans_k_and_the_most_where_the_plan_is_off() -> None:
    """A verdict on K = 1 must come from K = 1; what an off plan misses is measured with all of it."""
    ranges = [
        {"min_in_flight": 1, "max_in_flight": 1, "draft_len": 4},
        {"min_in_flight": 2, "max_in_flight": 4, "draft_len": 1},
    ]
    speculation = {"method": "ngram", "max_draft_len": 4, "draft_len_by_in_flight": ranges}
    config = make_config(speculation=speculation)
    plan = _plan(BenchOptions(BUDGETS["quick"], segments=("chat",), concurrencies=(1, 4, 8)), config=config)
    assert [(cell.load.concurrency, cell.draft_lens[Arm.ON]) for cell in plan.cells] == [(1, 4), (4, 1), (8, 4)]
    assert plan.notes["K of the on arm, by the plan"] == "chat at 4: 1"
    plan = _plan(BenchOptions(BUDGETS["quick"], segments=("chat",), draft_len=3), config=config)
    assert [cell.draft_lens[Arm.ON] for cell in plan.cells] == [3, 3]


def test_the_command_line_overrides_the_budget() -> None:
    options = BenchOptions(
        BUDGETS["quick"], segments=("summarisation",), concurrencies=(2,), request_count=9, max_tokens=7
    )
    (cell,) = _plan(replace(options, warmup_request_count=5, ignore_eos=True)).cells
    assert {request.ignore_eos for request in cell.requests} == {True}
    assert (cell.segment, cell.load, len(cell.requests), len(cell.warmup)) == ("summarisation", Load(2), 9, 5)
    assert {request.max_tokens for request in cell.requests} == {7}


def test_a_workload_of_ones_own_is_asked_as_it_is() -> None:
    def make(segment: str, index: int) -> WorkRequest:
        return WorkRequest(
            f"p{index}", segment, "done", max_tokens=300, is_rendered=True, expected_input_tokens=5, ignore_eos=True,
            guide_type="regex", guide="a+",
        )  # fmt: skip

    options = BenchOptions(BUDGETS["quick"], concurrencies=(1,), arms=(Arm.ON,))
    plan = plan_bench(_Prompts(make=make, segments=("mine",)), options, _render, None, is_own_workload=False)
    (cell,) = plan.cells
    request = cell.requests[0]
    assert (request.prompt, request.turns, request.max_tokens) == ("done", (), 300)
    assert (request.expected_input_tokens, request.ignore_eos) == (5, True)
    assert (request.guide_type, request.guide) == ("regex", "a+")
    assert cell.draft_lens == {Arm.ON: UNPLANNED_DRAFT_LEN}
    assert "answers" not in plan.notes


def test_rates_make_open_loops() -> None:
    options = BenchOptions(
        BUDGETS["quick"],
        random_seed=7,
        segments=("chat",),
        request_rates=(0.5, 2.0),
        pattern=ArrivalPattern.GAMMA,
        smoothness=2.0,
        request_rate_ramp_s=3.0,
        max_in_flight=9,
    )
    plan = _plan(options)
    assert plan.load_kind == "open loop, gamma arrivals of smoothness 2"
    assert [cell.load for cell in plan.cells] == [Load(None, 0.5), Load(None, 2.0)]
    assert {cell.arrivals for cell in plan.cells} == {Arrivals(ArrivalPattern.GAMMA, 7, 2.0, 3.0)}
    assert {cell.max_in_flight for cell in plan.cells} == {9}


def test_a_trace_has_its_own_rate_times_and_length() -> None:
    def make(segment: str, index: int) -> WorkRequest:
        return WorkRequest(f"p{index}", segment, "x", arrival_ns=index * 500_000_000)

    options = BenchOptions(BUDGETS["quick"], pattern=ArrivalPattern.TRACE)
    plan = _plan(options, _Prompts(5, make, segments=("trace",)))
    (cell,) = plan.cells
    assert plan.load_kind == "open loop, arrivals of a trace"
    assert cell.load == Load(None, 2.0)  # four gaps in two seconds
    assert [request.due_ns for request in cell.requests] == [index * 500_000_000 for index in range(5)]
    assert cell.arrivals is None
    later = _plan(
        options, _Prompts(4, lambda s, i: replace(make(s, i), arrival_ns=10**9 + i * 700_000_000), segments=("trace",))
    )
    assert later.cells[0].load == Load(None, 1.43)
    with pytest.raises(RequestError, match=r"--arrival-pattern: prompts has no arrival times for chat"):
        _plan(options)


def test_sessions_follow_their_turns() -> None:
    def make(segment: str, index: int) -> WorkRequest:
        turn = index % 3
        history = ((), None, ("a", "recorded"))[turn]
        return WorkRequest(
            f"s{index // 3}", segment, f"turn {turn}", session_id="s", turn=turn, think_ns=turn, history=history
        )

    options = BenchOptions(BUDGETS["quick"], segments=("chat",), concurrencies=(1,), request_count=3)
    plan = _plan(replace(options, warmup_request_count=2), _Prompts(6, make, shares_prefixes=True))
    (cell,) = plan.cells
    assert plan.expects_reuse
    assert [request.follows for request in cell.requests] == [None, 0, 1]
    assert [request.turns for request in cell.requests] == [("turn 0",), ("turn 1",), ("a", "recorded", "turn 2")]
    assert cell.requests[2].prompt == "A|RECORDED|TURN 2"
    assert [(request.follows, request.turns) for request in cell.warmup] == [(None, ("turn 0",)), (None, ("turn 1",))]


def test_requests_that_wait_for_each_other_and_know_nothing_of_each_other_stay_as_they_are() -> None:
    def make(segment: str, index: int) -> WorkRequest:
        return WorkRequest(f"s/{index}", segment, f"row {index}", session_id="s", turn=index, think_ns=7)

    options = BenchOptions(BUDGETS["quick"], segments=("chat",), concurrencies=(1,), request_count=2)
    (cell,) = _plan(options, _Prompts(6, make)).cells
    assert [(request.follows, request.think_ns) for request in cell.requests] == [(None, 7), (0, 7)]
    assert [(request.prompt, request.turns) for request in cell.requests] == [
        ("ROW 0", ("row 0",)),
        ("ROW 1", ("row 1",)),
    ]
    assert not any(request.continues_own_answer for request in cell.requests)


def test_unknown_segments_are_refused_with_the_known_ones() -> None:
    with pytest.raises(RequestError, match=r"no segment poetry\. It has chat, code_edit, summarisation"):
        _plan(BenchOptions(BUDGETS["quick"], segments=("poetry",)))
