"""What published speeds of a target with three drafts say about acceptance, where neither K nor tau was published."""

from collections.abc import Mapping

from cells import read_drafts_of_unknown_length
from fitting import kernel_times
from plain_series import TRTLLM_H200
from setups import Setup, TauRule
from shapes import LLAMA_3_1B, LLAMA_3_3B, LLAMA_3_8B, LLAMA_3_405B, draft_model, in_fp8

from specdeploy.planner.closed_form import alpha_of
from specdeploy.planner.model_shape import ModelShape
from specdeploy.planner.step_times import uniform_load
from specdeploy.planner_contract import Calibration

_DRAFTS: Mapping[str, ModelShape] = {
    "Llama-3.2-1B": LLAMA_3_1B,
    "Llama-3.2-3B": LLAMA_3_3B,
    "Llama-3.1-8B": LLAMA_3_8B,
}


def implied_acceptances(calibration: Calibration, draft_lens: tuple[int, ...] = (5, 7, 10)) -> dict[str, list[float]]:
    """By draft: the acceptance per token at each K that gives its published speed; nan where none does."""
    setup = Setup(
        series="trtllm-405b",
        title="",
        kind="tpot",
        engine=TRTLLM_H200.engine,
        hardware=TRTLLM_H200.hardware,
        tau=TauRule.PUBLISHED,
        target=in_fp8(LLAMA_3_405B),
        tensor_parallel=4,
    )
    found: dict[str, list[float]] = {}
    for cell in read_drafts_of_unknown_length():
        times = kernel_times(setup, draft_model(in_fp8(_DRAFTS[cell.draft])), calibration)
        found[cell.draft] = []
        for draft_len in draft_lens:
            tau = cell.value * times.time(uniform_load(1, draft_len)).seconds(cell.context)
            found[cell.draft].append(alpha_of(tau, draft_len) if 1 <= tau <= draft_len + 1 else float("nan"))
    return found
