"""What a condition that the acceptance was not measured under does to it: sampling temperature, guided decoding.

An effect multiplies accepted tokens per step (tokens per step - 1). It is an interval over published measurements, and
it widens the bounds of a profile; under the measured condition it is exactly 1.
"""

from dataclasses import dataclass

from scipy.optimize import brentq

from specdeploy.contract import Method
from specdeploy.planner.acceptance import AcceptanceModel
from specdeploy.planner.closed_form import conditional_acceptances
from specdeploy.planner_contract import AcceptanceProfile

_MAX_EXPONENT = 1e3


@dataclass(frozen=True, slots=True)
class Effect:
    """Factor on accepted tokens per step: the median and the range of what was seen. `source` says where."""

    value: float
    low: float
    high: float
    source: str

    @property
    def is_none(self) -> bool:
        """Whether it changes nothing."""
        return self.low == self.value == self.high == 1.0


NO_EFFECT = Effect(1.0, 1.0, 1.0, "measured under this condition")

# (tau at T 1 - 1) / (tau at T 0 - 1): minimum, median, maximum over all pairs and tasks of the tables.
_AT_TEMPERATURE_1: dict[Method, Effect] = {
    Method.EAGLE3: Effect(
        0.83,
        0.63,
        0.97,
        "EAGLE-3 paper (arXiv:2503.01840v3) Table 1, 4 targets, T 1 against T 0; 8B on MT-bench 4.24/6.13",
    ),
    Method.EAGLE: Effect(
        0.86, 0.74, 0.90, "EAGLE papers (arXiv:2401.15077v3, 2503.01840v3), 6 targets, T 1 against T 0"
    ),
    Method.DRAFT_MODEL: Effect(
        0.67, 0.62, 0.76, "EAGLE-3 paper (arXiv:2503.01840v3) Table 1, Vicuna-13B with a 68M draft, T 1 against T 0"
    ),
}
# No table of its own: the widest range of the methods that have one.
_OTHERS_AT_TEMPERATURE_1 = Effect(
    0.80, 0.62, 0.97, "range over EAGLE-3, EAGLE and a draft model (arXiv:2503.01840v3 Table 1), T 1 against T 0"
)

# TensorRT-LLM blog12 (9e3cd3f5): EAGLE-3 with K 3 on Llama-3.1-8B, JSON-Mode-Eval and JSON-Schema-Bench, against the
# 2.79 tokens per step of the same pair and K on MT-bench (vLLM issue #20780): other tasks, another engine.
_GUIDED_TARGET = Effect(
    0.83,
    0.74,
    0.92,
    "TensorRT-LLM blog12, grammar on the target only, 2.33-2.65 tokens per step, against 2.79 in free text",
)
_GUIDED_BOTH = Effect(
    0.95,
    0.87,
    1.04,
    "TensorRT-LLM blog12, grammar on draft and target, 2.55-2.86 tokens per step, against 2.79 in free text",
)
_GUIDABLE = (Method.EAGLE3, Method.EAGLE, Method.MTP, Method.DRAFT_MODEL)


def temperature_effect(method: Method | None, measured: float | None, temperature: float) -> Effect:
    """From the temperature a profile was measured at (None = greedy, as published tables are unless they say so) to the
    one that is served. Linear between 0 and 1. Raises ValueError outside them: nothing was published there.
    """
    start = measured or 0.0
    if temperature == start:
        return NO_EFFECT
    for value in (start, temperature):
        if not 0 <= value <= 1:
            raise ValueError(f"temperature {value:g}: acceptance was published for 0 to 1 only; measure it")
    full = _OTHERS_AT_TEMPERATURE_1 if method is None else _AT_TEMPERATURE_1.get(method, _OTHERS_AT_TEMPERATURE_1)
    ratios = [
        (1 - temperature * (1 - factor)) / (1 - start * (1 - factor)) for factor in (full.value, full.low, full.high)
    ]
    return Effect(ratios[0], min(ratios), max(ratios), full.source)


def constraint_effect(
    method: Method | None, *, measured: bool, is_constrained: bool, guides_draft: bool = False
) -> Effect | None:
    """From free to guided output, or back. `guides_draft`: the drafter knows the grammar too, instead of having its
    illegal tokens removed. None where nothing was published (lookups, Medusa): measure it.
    """
    if measured == is_constrained:
        return NO_EFFECT
    if method not in _GUIDABLE:
        return None
    effect = _GUIDED_BOTH if guides_draft else _GUIDED_TARGET
    if is_constrained:
        return effect
    return Effect(1 / effect.value, 1 / effect.high, 1 / effect.low, f"inverse of: {effect.source}")


def with_effect(profile: AcceptanceProfile, effect: Effect) -> AcceptanceProfile:
    """The profile under another condition: its value, and bounds that are wider by the effect's own range.

    Every conditional acceptance is raised to one power, so that accepted tokens at the profile's K change by the factor
    and no chance leaves 0..1; a factor beyond what can be reached is cut there.
    """
    if effect.is_none:
        return profile
    model = AcceptanceModel.from_profile(profile)
    low, high = model.at("low").profile.survivals, model.at("high").profile.survivals
    return profile.model_copy(
        update={
            "survivals": scaled(profile.survivals, effect.value),
            "survivals_low": scaled(low, effect.low),
            "survivals_high": scaled(high, effect.high),
            "source": f"{profile.source}; x {effect.value:.2f} ({effect.low:.2f}-{effect.high:.2f}): {effect.source}",
        }
    )


def scaled(survivals: tuple[float, ...], factor: float) -> tuple[float, ...]:
    """Survivals whose sum is `factor` times as large, by one power on all conditional acceptances."""
    conditionals, wanted = conditional_acceptances(survivals), factor * sum(survivals)
    reachable = sum(_powered(conditionals, 0.0))
    if wanted >= reachable:
        return _powered(conditionals, 0.0)
    if wanted <= 0 or sum(_powered(conditionals, _MAX_EXPONENT)) >= wanted:
        return _powered(conditionals, _MAX_EXPONENT)
    exponent: float = brentq(lambda power: sum(_powered(conditionals, power)) - wanted, 0.0, _MAX_EXPONENT, xtol=1e-12)
    return _powered(conditionals, exponent)


def _powered(conditionals: tuple[float, ...], exponent: float) -> tuple[float, ...]:
    survivals, survival = [], 1.0
    for conditional in conditionals:
        survival *= conditional**exponent if conditional > 0 else 0.0
        survivals.append(survival)
    return tuple(survivals)
