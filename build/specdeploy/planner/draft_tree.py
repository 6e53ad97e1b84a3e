"""Trees of drafts: a step verifies all nodes, of which one path can be accepted. A tree is frozen in its engine or its
config: it is drafted whole, or nothing is."""

from dataclasses import dataclass, replace

from specdeploy.config.method_rules import tree_of
from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import Lane, Method
from specdeploy.planner.step_times import StepLoad, StepTime, StepTimes
from specdeploy.planner_contract import ArithmeticLine
from specdeploy.trtllm.parallel_rules import tokens_per_step


def tree_nodes_of(config: DeploymentConfig) -> int | None:
    """Draft tokens of the whole tree that a deployment drafts; None for a chain."""
    speculation = config.speculation
    if config.lane is Lane.TRTLLM_ENGINE and speculation.method in (Method.MEDUSA, Method.EAGLE, Method.REDRAFTER):
        return tokens_per_step(speculation)
    tree = tree_of(speculation, speculation.method)
    return None if tree is None or tree.choices is None else len(tree.choices)


@dataclass(frozen=True, slots=True)
class TreeStepTimes:
    """Step times of an engine that drafts trees of `nodes` tokens, `depth` deep, asked as if it drafted chains.
    `max_step_tokens` that were calibrated."""

    times: StepTimes
    depth: int
    nodes: int
    max_step_tokens: int

    def time(self, load: StepLoad) -> StepTime:
        drafted = round(load.num_draft_tokens * self.nodes / self.depth)
        return self.times.time(replace(load, num_draft_tokens=drafted))

    def range_problem(self, num_rows: int, draft_len: int) -> str | None:
        tokens = num_rows * (1 + (self.nodes if draft_len else 0))
        if tokens > self.max_step_tokens:
            return f"{tokens} tokens in a step ({self.nodes} per tree): the calibration ends at {self.max_step_tokens}"
        return self.times.range_problem(num_rows, draft_len)

    def explain(self, num_rows: int, draft_len: int, kv_tokens: float) -> tuple[ArithmeticLine, ...]:
        if draft_len == 0:
            return self.times.explain(num_rows, 0, kv_tokens)
        seconds = self.time(StepLoad(num_rows, num_rows * draft_len, draft_len)).seconds(kv_tokens)
        formula = f"{num_rows} rows x (1 + {self.nodes} nodes of the tree), {draft_len} deep"
        return (ArithmeticLine(subject="step with trees", formula=formula, value=seconds, unit="s"),)

    @property
    def ridge_tokens(self) -> float:
        return self.times.ridge_tokens
