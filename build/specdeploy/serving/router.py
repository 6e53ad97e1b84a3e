"""How many tokens to draft for a request: a pure function of the request, the plan and the load."""

from collections.abc import Callable
from dataclasses import dataclass

from specdeploy.contract import DeploymentPlan


@dataclass(frozen=True, slots=True)
class Route:
    """`draft_len` gives K at a load; `off_reason` is why K is 0, wherever it is."""

    draft_len: Callable[[int], int]
    off_reason: str


def route(plan: DeploymentPlan, *, segment: str, num_draft_tokens: int | None) -> Route:
    """K by load for one request.

    An explicit `num_draft_tokens` decides alone (0 = off, capped at the plan's `max_draft_len`); without one the
    plan of the segment decides at every step, so K follows the load while the request runs.
    """
    if num_draft_tokens is not None:
        pinned = min(num_draft_tokens, plan.max_draft_len)
        return Route(lambda in_flight: pinned, "requested")  # noqa: ARG005 - pinned whatever the load
    segment_plan = plan.segment(segment)
    return Route(segment_plan.draft_len, segment_plan.off_reason or "load")
