"""How many tokens to draft for a request: a pure function of the request, the plan and the load."""

from collections.abc import Callable
from dataclasses import dataclass

from specdeploy.contract import ConstrainedPolicy, DeploymentPlan

CONSTRAINED = "constrained"


@dataclass(frozen=True, slots=True)
class Route:
    """`draft_len` gives K at a load; `off_reason` is why K is 0, wherever it is."""

    draft_len: Callable[[int], int]
    off_reason: str


def route(
    plan: DeploymentPlan,
    *,
    segment: str,
    num_draft_tokens: int | None,
    is_constrained: bool = False,
    is_canary: bool = False,
) -> Route:
    """K by load for one request.

    An explicit `num_draft_tokens` decides alone (0 = off, capped at the plan's `max_draft_len`); without one the
    plan of the segment decides at every step, so K follows the load while the request runs. What `plan.constrained`
    does not let draft is off before all that.
    """
    asks = num_draft_tokens is not None and num_draft_tokens > 0
    if is_constrained and num_draft_tokens != 0 and not _may_draft_constrained(plan, asks=asks, is_canary=is_canary):
        return Route(lambda in_flight: 0, CONSTRAINED)  # noqa: ARG005 - off whatever the load
    if num_draft_tokens is not None:
        pinned = min(num_draft_tokens, plan.max_draft_len)
        return Route(lambda in_flight: pinned, "requested")  # noqa: ARG005 - pinned whatever the load
    segment_plan = plan.segment(segment)
    return Route(segment_plan.draft_len, segment_plan.off_reason or "load")


def _may_draft_constrained(plan: DeploymentPlan, *, asks: bool, is_canary: bool) -> bool:
    """Whether a request with a guide may be drafted for: see `ConstrainedPolicy`."""
    if plan.constrained is ConstrainedPolicy.CANARY:
        return asks and is_canary
    return plan.constrained is ConstrainedPolicy.ON
