"""The adapter protocol between the Triton model and a lane."""

from typing import Protocol

from specdeploy.contract import DeploymentPlan
from specdeploy.runtime.request import RowUpdate
from specdeploy.serving.request import ServingRequest


class Sink(Protocol):
    """Where the updates of one request go. Called on the adapter's thread."""

    def is_cancelled(self) -> bool:
        """Whether the client is gone; asked once per step."""

    def accept(self, token_id: int) -> bool:
        """Take one output token; True when it completes a stop string."""

    def deliver(self, update: RowUpdate) -> None:
        """Send what one step did."""

    def fail(self, message: str) -> None:
        """End the request with an error."""


class Adapter(Protocol):
    """One lane's engine."""

    @property
    def plan(self) -> DeploymentPlan:
        """K by segment and load."""

    @property
    def num_in_flight(self) -> int:
        """Requests accepted and not finished."""

    @property
    def num_slots_in_use(self) -> int:
        """Rows of key/value memory owned by requests."""

    def submit(self, request: ServingRequest, sink: Sink) -> None:
        """Start a request; everything about it, refusals included, reaches its sink."""

    def close(self) -> None:
        """Fail what is in flight and stop."""
