"""How the arms of a comparison are told apart: by a field of each request, by another server, by loading another model.

Whatever it takes to switch happens between blocks and is never measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import httpx

from specdeploy.run_contract import Arm
from specdeploy_client.load.arrivals import MAX_BLOCKS
from specdeploy_client.load.model_control import ModelControl
from specdeploy_client.transport import GenerationRequest, Transport

# Loading a model can take minutes: in alternating order four blocks of two arms take six swaps, warm-up included.
MAX_SWAPPED_BLOCKS = 4
SWAP_TIMEOUT_S = 600.0


class ArmSwitch(Protocol):
    """The two (or three) sides of a run."""

    @property
    def max_blocks(self) -> int:
        """Into how many blocks a cell may be cut: fewer than `MAX_BLOCKS` where changing arms is dear."""
        ...

    async def activate(self, arm: Arm) -> bool:
        """Make ready to send with `arm`, outside of measured time; whether the server is fresh and must warm up again.

        Raises `ClientError` where the arm cannot be had.
        """
        ...

    def transport_of(self, arm: Arm) -> Transport:
        """Where the requests of `arm` go."""
        ...

    def request_for(self, arm: Arm, request: GenerationRequest) -> GenerationRequest:
        """`request` as it is sent with `arm`; its `num_draft_tokens` is what the cell gives the arm."""
        ...

    def describe(self) -> str:
        """For the record of the run."""
        ...


@dataclass(frozen=True, slots=True)
class PerRequestSwitch:
    """One server that takes the number of draft tokens with each request, 0 for none."""

    transport: Transport
    max_blocks: int = MAX_BLOCKS

    async def activate(self, arm: Arm) -> bool:
        """Nothing to do."""
        del arm
        return False

    def transport_of(self, arm: Arm) -> Transport:
        """The one server."""
        del arm
        return self.transport

    def request_for(self, arm: Arm, request: GenerationRequest) -> GenerationRequest:
        """The request as it is."""
        del arm
        return request

    def describe(self) -> str:
        """For the record of the run."""
        return "per request"


class AsServed(PerRequestSwitch):
    """One server whose speculation cannot be turned off: it is measured as it is, and compared with nothing."""

    __slots__ = ()

    def request_for(self, arm: Arm, request: GenerationRequest) -> GenerationRequest:
        """Without a number of draft tokens, which not every server knows."""
        del arm
        return replace(request, num_draft_tokens=None)

    def describe(self) -> str:
        """For the record of the run."""
        return "none: the server as it is"


@dataclass(frozen=True, slots=True)
class TwoEndpoints:
    """Servers, or models of one server, of which one drafts and the other does not; both are up all the time."""

    off: Transport
    on: Transport
    off_name: str
    on_name: str
    max_blocks: int = MAX_BLOCKS

    async def activate(self, arm: Arm) -> bool:
        """Nothing to do."""
        del arm
        return False

    def transport_of(self, arm: Arm) -> Transport:
        """The server that drafts for the on arm, the other one for all others."""
        return self.on if arm is Arm.ON else self.off

    def request_for(self, arm: Arm, request: GenerationRequest) -> GenerationRequest:
        """Without a number of draft tokens: the server decides, and a foreign one need not know the field."""
        del arm
        return replace(request, num_draft_tokens=None)

    def describe(self) -> str:
        """For the record of the run."""
        return f"two endpoints: off {self.off_name}, on {self.on_name}"


class ModelControlSwitch:
    """Triton server in explicit model control mode: one arm's models are loaded, the other's are not.

    `models`: by arm, in the order in which they are loaded (those that others call first); a model of both arms stays.
    The floor arm is off at another load: it has the same models and transport. The rest is what `ModelControl` takes.
    """

    max_blocks = MAX_SWAPPED_BLOCKS

    def __init__(
        self,
        transports: Mapping[Arm, Transport],
        models: Mapping[Arm, Sequence[str]],
        control_url: str,
        *,
        metrics_url: str | None = None,
        timeout_s: float = SWAP_TIMEOUT_S,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        self._transports = dict(transports)
        self._models = {arm: tuple(names) for arm, names in models.items()}
        self._control = ModelControl(control_url, metrics_url, timeout_s, http=http)
        self._active: Arm | None = None

    async def activate(self, arm: Arm) -> bool:
        """Unload the other arm's models, load this arm's; true where anything was done.

        What an earlier run left loaded counts as fresh too: nobody knows what it has served.
        """
        wanted = _served_by(arm)
        if self._active is wanted:
            return False
        self._active = None  # until all of it has worked
        mine = self._models[wanted]
        others = [name for names in self._models.values() for name in reversed(names) if name not in mine]
        await self._control.swap(unload=tuple(dict.fromkeys(others)), load=mine)
        self._active = wanted
        return True

    def transport_of(self, arm: Arm) -> Transport:
        """To the models of `arm`."""
        return self._transports[_served_by(arm)]

    def request_for(self, arm: Arm, request: GenerationRequest) -> GenerationRequest:
        """Without a number of draft tokens: what is loaded decides."""
        del arm
        return replace(request, num_draft_tokens=None)

    def describe(self) -> str:
        """For the record of the run."""
        sides = "; ".join(f"{arm} {', '.join(names)}" for arm, names in self._models.items())
        return f"model control: {sides}"


def _served_by(arm: Arm) -> Arm:
    """The floor arm is the off arm at another load."""
    return Arm.ON if arm is Arm.ON else Arm.OFF
