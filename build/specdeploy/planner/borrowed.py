"""Whose overheads to borrow where nobody calibrated a deployment's own engine and device for its load.

What comes out is indicative: it says what to expect of a measurement and never decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specdeploy.contract import Method
from specdeploy.planner.published_acceptance import form_of
from specdeploy.planner_contract import Calibration, DraftForm

# Held-out transfers of fitted overheads to another device or target are off by 13 and 15 % in the median, single cells
# by 30 % (benchmarks/planner/published.py): most of them lie within a quarter.
TRANSFER_ERROR = 0.25
ENGINE_NAMES = {"tensorrt_llm": "TensorRT-LLM", "torch": "the embedded engine", "sglang": "SGLang", "vllm": "vLLM"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a calibration should be of: the deployment's own engine, device (name of its record), method, and load."""

    engine: str
    hardware: str
    method: Method
    rows: int
    draft_len: int


def nearest(known: Sequence[Calibration], wanted: Wanted) -> Calibration | None:
    """The calibration of overheads to borrow: one that covers the load before one that does not, then the same method,
    the same form of draft, engine, device; of equals the first by name. None where there is none at all."""

    def distance(one: Calibration) -> tuple[bool, bool, bool, bool, bool, bool, str]:
        limits = one.range
        return (
            wanted.rows > limits.max_rows,
            wanted.draft_len > limits.max_draft_len,
            one.method is not wanted.method,
            one.method is None or form_of(one.method) is not form_of(wanted.method),
            one.engine != wanted.engine,
            one.hardware != wanted.hardware,
            one.name,
        )

    return min((one for one in known if one.overheads is not None), key=distance, default=None)


def lent(calibration: Calibration, hardware: str, *, draft_len: int, is_chained: bool) -> Calibration:
    """`calibration` as if it were of `hardware`, up to the rows and tokens that it covers itself.

    Its K limits drafters that run pass after pass (`is_chained`), whose host work grows with it; of others, up to
    `draft_len`, only the tokens to verify count.
    """
    limits = calibration.range
    if not is_chained:
        limits = limits.model_copy(update={"max_draft_len": max(limits.max_draft_len, draft_len)})
    return calibration.model_copy(update={"hardware": hardware, "range": limits})


def borrowed_error(calibration: Calibration) -> float:
    """Relative error of what is predicted with overheads of another engine or device."""
    return max(TRANSFER_ERROR, calibration.p90_relative_error)


def describe_source(calibration: Calibration) -> str:
    """`SGLang's overheads of eagle3 on h100-sxm (calibration sglang-h100-eagle3)`."""
    engine = ENGINE_NAMES.get(calibration.engine, calibration.engine)
    of_method = f" of {calibration.method}" if calibration.method is not None else ""
    return f"{engine}'s overheads{of_method} on {calibration.hardware} (calibration {calibration.name})"


def host_work_notes(calibration: Calibration, method: Method) -> tuple[str, ...]:
    """What another method's overheads get wrong."""
    if calibration.method in (None, method):
        return ()
    taken = f"indicative ratios charge {method} the host work that {calibration.method} takes in {calibration.name}"
    is_lookup = form_of(method) is DraftForm.LOOKUP
    return (taken + (": a lookup in the text takes less, above all at low load" if is_lookup else ""),)
