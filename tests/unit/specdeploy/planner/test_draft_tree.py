"""A tree is drafted whole: wherever steps are timed, all its nodes are verified."""

from dataclasses import dataclass, field
from pathlib import Path

from helpers.planner_standins import StandInTimes, deployment, plan_inputs, profile, segment
from specdeploy.config.load import load_deployment
from specdeploy.contract import Method
from specdeploy.planner.decide import decide
from specdeploy.planner.draft_tree import TreeStepTimes, tree_nodes_of
from specdeploy.planner.step_times import StepLoad, StepTime
from specdeploy.planner_contract import ArithmeticLine, DraftForm

CONFIGS = Path(__file__).parents[4] / "configs"
DEPTH, NODES = 4, 63


@dataclass(frozen=True)
class Recorder:
    """Step times that remember what they were asked for."""

    inner: StandInTimes = field(default_factory=StandInTimes)
    loads: list[StepLoad] = field(default_factory=list)

    def time(self, load: StepLoad) -> StepTime:
        self.loads.append(load)
        return self.inner.time(load)

    def range_problem(self, num_rows: int, draft_len: int) -> str | None:
        return self.inner.range_problem(num_rows, draft_len)

    def explain(self, num_rows: int, draft_len: int, kv_tokens: float) -> tuple[ArithmeticLine, ...]:
        return self.inner.explain(num_rows, draft_len, kv_tokens)

    @property
    def ridge_tokens(self) -> float:
        return self.inner.ridge_tokens


def test_levels_traffic_and_what_ifs_verify_every_node(tmp_path: Path) -> None:
    recorder = Recorder()
    tree = profile(form=DraftForm.TREE, method=Method.MEDUSA, depth=DEPTH)
    config = deployment(tmp_path, speculation={"method": "ngram", "max_draft_len": DEPTH})
    times = TreeStepTimes(recorder, DEPTH, NODES, max_step_tokens=32 * (1 + NODES))

    report = decide(
        plan_inputs(tmp_path, config=config, times=times, segments=(segment(acceptance=tree),), tree_nodes=NODES)
    )

    drafting = [load for load in recorder.loads if load.depth]
    assert {load.depth for load in drafting} == {DEPTH}
    # Every load of a level, of the traffic and of the what-ifs: whole trees, one for each row that drafts.
    assert all(load.num_draft_tokens % NODES == 0 for load in drafting)
    assert all(0 < load.num_draft_tokens <= NODES * load.num_rows for load in drafting)
    assert {load.num_rows * NODES for load in drafting if load.num_rows <= 32} <= {
        load.num_draft_tokens for load in drafting
    }
    levels = {level.concurrency: level for level in report.segments[0].levels}
    assert levels[8].verified_tokens == 8 * (1 + NODES)
    assert levels[32].range_problem is None
    assert "4096 tokens in a step (63 per tree)" in str(levels[64].range_problem)
    assert len(report.sensitivities) == 3


def test_the_tree_of_the_shipped_medusa_deployment_has_63_nodes() -> None:
    assert tree_nodes_of(load_deployment("vicuna-13b-medusa", CONFIGS).config) == NODES
