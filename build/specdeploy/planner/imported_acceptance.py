"""Acceptance in the files of other tools.

**NVIDIA Model Optimizer**, `speculation_profile.json` schema 1.0. Source: examples/specdec_bench/specdec_bench/
speculation_profile.py of NVIDIA/Model-Optimizer at commit edf879d3 (a proposed change there, so another version may
differ; every field read here is checked). Its mean accept length counts the target's own token, as ours does;
`marginal_accept_rates` are our survivals, `conditional_accept_rates` their ratios. `accept_length_model` says whether
other K follow: `chain_analytic`, or `measured_per_k`, which is a block to us.

**speculators**, `*acceptance.csv` (docs/fp8_ablation of vllm-project/speculators at commit a910cec7): one row per
subset of prompts, `num_drafts`, `acceptance_length` and marginal `acceptance_at_pos_0`, `_1`, .. of vLLM's counters. It
names no method.
"""

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

from specdeploy.contract import Method
from specdeploy.errors import ConfigError, Violation
from specdeploy.planner.published_acceptance import form_of
from specdeploy.planner_contract import AcceptanceOrigin, AcceptanceProfile, DraftForm

_SCHEMA_VERSION = "1.0"
_SAME_LENGTH = 0.02  # the tolerance of the tool's own check
_SAME_RATE = 1e-4  # rates are rounded to six digits
_METHODS = {"eagle1": Method.EAGLE, "draft_target": Method.DRAFT_MODEL, "prompt_lookup": Method.NGRAM}
_LOOKUP_WORDS = ("ngram", "suffix", "prompt_lookup")
_MEASURE_AGAIN = "Measure it again with that tool, or with `specdeploy profile`"
_POSITION = "acceptance_at_pos_"


def profile_of_model_optimizer(data: dict[str, Any], file: str, method: Method | None) -> AcceptanceProfile:
    """The profile in a speculation_profile.json; `method` where the file's own word is none of ours. Raises
    ConfigError."""
    found = _Findings(file)
    if data.get("schema_version") != _SCHEMA_VERSION:
        found.add("schema_version", f"{data.get('schema_version')!r} is not known", f"Known is {_SCHEMA_VERSION}")
    if data.get("measured") is not True:
        found.add("measured", "is not true: the file is a placeholder", _MEASURE_AGAIN)
    if (verification := data.get("verification_method", "longest_prefix")) != "longest_prefix":
        reason = f"{verification!r}: with another rule than the longest prefix positions do not follow each other"
        found.add("verification_method", reason, "Measure with longest-prefix verification")
    survivals = found.rates("marginal_accept_rates", data.get("marginal_accept_rates"))
    conditionals = data.get("conditional_accept_rates")
    if conditionals is not None and survivals:
        _check_conditionals(survivals, found.rates("conditional_accept_rates", conditionals, may_rise=True), found)
    if survivals:
        _check_mean(survivals, data, found)
    found.raise_if_any()
    word = str(data.get("method") or "").lower()
    conditions = data.get("measurement_conditions")
    return AcceptanceProfile(
        method=method or _method_of(word),
        form=_form(word, data.get("accept_length_model")),
        survivals=survivals,
        num_steps=_num_steps(data.get("acceptance_length_histogram")),
        temperature=_temperature(conditions),
        target=_name(data.get("target_model")),
        draft=_name(data.get("draft_checkpoint")),
        origin=AcceptanceOrigin.IMPORTED,
        source=f"{file} (Model Optimizer, method {word or 'not said'})",
    )


def profiles_of_speculators(text: str, file: str, method: Method | None) -> tuple[AcceptanceProfile, ...]:
    """One profile per row; the segment is its subset. Raises ConfigError, also where `method` is not said."""
    found = _Findings(file)
    if method is None:
        found.add("", "names no method of drafting", "Say which one it was measured with")
        found.raise_if_any()
    reader = csv.DictReader(io.StringIO(text))
    columns = reader.fieldnames or []
    positions = [name for name in columns if name.startswith(_POSITION)]
    if not positions or "subset" not in columns or "num_drafts" not in columns:
        reason = "has no columns subset, num_drafts and acceptance_at_pos_0"
        found.add("", reason, "Give an acceptance.csv of speculators' evaluation")
        found.raise_if_any()
    profiles = []
    for number, row in enumerate(reader, start=2):
        survivals = found.rates(f"line {number}", [_number(row[name]) for name in positions])
        num_drafts = _number(row["num_drafts"])
        if not isinstance(num_drafts, float) or not num_drafts >= 1 or not math.isfinite(num_drafts):
            found.add(f"line {number}", f"num_drafts is {row['num_drafts']!r}", _MEASURE_AGAIN)
        elif survivals and method is not None:
            profiles.append(
                AcceptanceProfile(
                    segment=row["subset"],
                    method=method,
                    form=form_of(method),
                    survivals=survivals,
                    num_steps=round(num_drafts),
                    origin=AcceptanceOrigin.IMPORTED,
                    source=f"{file} (speculators, {row['subset']})",
                )
            )
    if not profiles:
        found.add("", "holds no rows", _MEASURE_AGAIN)
    found.raise_if_any()
    return tuple(profiles)


class _Findings:
    """What is wrong with one file, all of it."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._violations: list[Violation] = []

    def add(self, key: str, reason: str, remedy: str) -> None:
        self._violations.append(Violation(self._file, key, reason, remedy))

    def raise_if_any(self) -> None:
        if self._violations:
            raise ConfigError(self._violations)

    def rates(self, key: str, values: object, *, may_rise: bool = False) -> tuple[float, ...]:
        """Numbers from 0 to 1, not rising unless they may; () after adding what is wrong."""
        if not isinstance(values, list) or not values:
            self.add(key, "is no list of rates", _MEASURE_AGAIN)
            return ()
        before = 1.0
        for index, value in enumerate(values):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
                self.add(f"{key}[{index}]", f"{value!r} is no rate from 0 to 1", _MEASURE_AGAIN)
                return ()
            if not may_rise and value > before + 1e-9:
                reason = f"{value:g} is above {before:g}: a deeper position cannot survive more often"
                self.add(f"{key}[{index}]", reason, _MEASURE_AGAIN)
                return ()
            before = value
        return tuple(float(value) for value in values)


def _check_conditionals(survivals: Sequence[float], conditionals: Sequence[float], found: _Findings) -> None:
    product = 1.0
    for index, (survival, conditional) in enumerate(zip(survivals, conditionals, strict=False)):
        product *= conditional
        if abs(product - survival) > _SAME_RATE:
            reason = f"their product {product:.4f} is not marginal_accept_rates[{index}] {survival:.4f}"
            found.add(f"conditional_accept_rates[{index}]", reason, _MEASURE_AGAIN)
            return
        product = survival  # rounding does not pile up


def _check_mean(survivals: Sequence[float], data: dict[str, Any], found: _Findings) -> None:
    mean, implied = data.get("mean_accept_length"), 1 + sum(survivals)
    if not isinstance(mean, int | float) or abs(implied - mean) > _SAME_LENGTH:
        reason = (
            f"{mean} is not 1 + the sum of the marginal rates, {implied:.3f}: the rates are cut short, or of another K"
        )
        found.add("mean_accept_length", reason, "Measure again with num_speculative_tokens as the run used it")


def _form(word: str, accept_length_model: object) -> DraftForm:
    if any(lookup in word for lookup in _LOOKUP_WORDS):
        return DraftForm.LOOKUP
    return DraftForm.CHAIN if accept_length_model == "chain_analytic" else DraftForm.BLOCK


def _method_of(word: str) -> Method | None:
    return _METHODS.get(word) or next((method for method in Method if method.value == word), None)


def _num_steps(histogram: object) -> int | None:
    if not isinstance(histogram, dict):
        return None
    counts = [value for value in histogram.values() if isinstance(value, int | float) and value >= 0]
    return round(sum(counts)) if counts and len(counts) == len(histogram) and sum(counts) < math.inf else None


def _temperature(conditions: object) -> float | None:
    value = conditions.get("temperature") if isinstance(conditions, dict) else None
    return float(value) if isinstance(value, int | float) and 0 <= value < math.inf else None


def _name(described: object) -> str | None:
    """A checkpoint as the file describes it: a name, or an object that holds one."""
    if isinstance(described, dict):
        described = described.get("id") or described.get("name") or described.get("path")
    return described if isinstance(described, str) and described else None


def _number(text: str | None) -> float | str | None:
    try:
        return float(text or "")
    except ValueError:
        return text
