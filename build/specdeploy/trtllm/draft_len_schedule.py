"""K by load in the words of the LLM API: `draft_len_schedule` and `max_concurrency`.

The same dictionary means two things, depending on the version. "From key on": {1: 4, 4: 2, 8: 0} drafts 4 tokens for 1
to 3 requests, 2 for 4 to 7, none from 8 on (1.2.1 and main of early 2026). "Up to key": {3: 4, 7: 2} says the same
from mid 2026 on; above its largest key nothing is drafted. A schedule is therefore always made from the plan, for one
meaning, and never carried from one version to another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from packaging.version import Version

from specdeploy.contract import DraftLenRange, Method, SegmentPlan


class ScheduleMeaning(StrEnum):
    """What a key of `draft_len_schedule` is: the first or the last batch size of its draft length."""

    FROM_KEY = "from key on"
    UP_TO_KEY = "up to key"


# Who reads the schedule. "From key on": the drafter object, which only draft models and n-grams have (TensorRT-LLM pull
# request 8194); one-model EAGLE-3 drafts inside the target's step and learnt to read it together with the other meaning
# (pull request 10860). The fact sheet (combinations.dynamic_draft_len, "earlier") names one-model EAGLE-3 alone for the
# versions before: it disagrees, and the two pull requests win, because a schedule that nobody reads would be believed
# where leaving it out is noted. "Up to key": docs/source/features/feature-combination-matrix.md@01edceae and
# tensorrt_llm/_torch/speculative/interface.py@00b6d5a2.
SCHEDULED_METHODS: Mapping[ScheduleMeaning, frozenset[Method]] = {
    ScheduleMeaning.FROM_KEY: frozenset({Method.DRAFT_MODEL, Method.NGRAM}),
    ScheduleMeaning.UP_TO_KEY: frozenset({Method.EAGLE3, Method.MTP, Method.DRAFT_MODEL}),
}


@dataclass(frozen=True, slots=True)
class LoadStep:
    """K for batch sizes `first` to `last`, both inclusive."""

    first: int
    last: int
    draft_len: int


def schedule_meaning(version: Version) -> ScheduleMeaning | None:
    """What a schedule means in `version`; None where there is none or where its meaning is not known.

    1.2.1 as its own comment says; 1.3.0rc27 to 1.4.0rc4 as their reference pages say. The candidates between were cut
    from a main that changed the meaning in between.
    """
    if Version("1.2.0") <= version and version.release[:3] <= (1, 2, 1):
        return ScheduleMeaning.FROM_KEY
    if Version("1.3.0rc27") <= version <= Version("1.4.0rc4"):
        return ScheduleMeaning.UP_TO_KEY
    return None


def obeys_max_concurrency(method: Method, version: Version) -> bool:
    """Whether `method` stops drafting above `max_concurrency` in `version`, where the field exists.

    Up to 1.2.1 the drafter object enforces it, which one-model EAGLE-3 and MTP do not have; from 1.3.0rc27 on it is
    translated to a schedule for those that read one, and n-grams keep their drafter. Between and after, what a draft
    model does is not known. Source: tensorrt_llm/_torch/speculative/drafter.py and utils.py (stored blobs 1398586113,
    13542650405), and the field's own text.
    """
    if version.release[:3] <= (1, 2, 1):
        return method in SCHEDULED_METHODS[ScheduleMeaning.FROM_KEY]
    if schedule_meaning(version) is ScheduleMeaning.UP_TO_KEY:
        return method is Method.NGRAM or method in SCHEDULED_METHODS[ScheduleMeaning.UP_TO_KEY]
    return method is Method.NGRAM


def drafts_inside_target(method: Method, version: Version) -> bool:
    """Whether `method` in `version` loses its draft state where the schedule says 0 (one-model paths of 2026).

    TensorRT-LLM pull request 16888: after such a pause acceptance is low for requests that were in flight; once fixed,
    one token is drafted there instead of none. Which candidates have the fix is not known.
    """
    return schedule_meaning(version) is ScheduleMeaning.UP_TO_KEY and method is not Method.NGRAM


def load_steps(ranges: Sequence[DraftLenRange], max_draft_len: int, max_load: int) -> tuple[LoadStep, ...]:
    """K for every batch size 1 to `max_load`, as steps in order. No ranges: `max_draft_len` everywhere; a load outside
    all ranges: 0."""
    plan = SegmentPlan(segment="", ranges=tuple(ranges))
    steps: list[LoadStep] = []
    for load in range(1, max_load + 1):
        draft_len = plan.draft_len(load) if ranges else max_draft_len
        if steps and steps[-1].draft_len == draft_len:
            steps[-1] = LoadStep(steps[-1].first, load, draft_len)
        else:
            steps.append(LoadStep(load, load, draft_len))
    return tuple(steps)


def render_schedule(steps: Sequence[LoadStep], meaning: ScheduleMeaning, max_draft_len: int) -> dict[int, int] | None:
    """The schedule that says `steps` in `meaning`; None when it cannot: both meanings want `max_draft_len` first."""
    if not steps or steps[0].draft_len != max_draft_len:
        return None
    if meaning is ScheduleMeaning.FROM_KEY:
        return {step.first: step.draft_len for step in steps}
    return {step.last: step.draft_len for step in steps if step is not steps[-1] or step.draft_len > 0}


def single_cut(steps: Sequence[LoadStep], max_draft_len: int) -> int | None:
    """The largest batch size that drafts, when `steps` are "max_draft_len up to it, nothing above"; else None."""
    if [step.draft_len for step in steps] != [max_draft_len, 0]:
        return None
    return steps[0].last


def interpret_schedule(schedule: Mapping[int, int], meaning: ScheduleMeaning, load: int) -> int:
    """K at batch size `load` (>= 1) as a version with this `meaning` reads `schedule`."""
    if meaning is ScheduleMeaning.FROM_KEY:
        started = [key for key in schedule if key <= load]
        return schedule[max(started)] if started else 0
    not_passed = [key for key in schedule if key >= load]
    return schedule[min(not_passed)] if not_passed else 0


def schedule_problems(schedule: Mapping[int, int], meaning: ScheduleMeaning, max_draft_len: int | None) -> list[str]:
    """What a version with this `meaning` would refuse or read otherwise than it was written."""
    if not schedule:
        return ["it is empty"]
    problems = [f"key {key} is below 1" for key in schedule if key < 1]
    highest = max_draft_len if max_draft_len is not None else max(schedule.values())
    problems += [
        f"{length} at key {key} is not in 0..{highest}"
        for key, length in schedule.items()
        if not 0 <= length <= highest
    ]
    if meaning is ScheduleMeaning.FROM_KEY and 1 not in schedule:
        problems.append("key 1 is missing; here a key is the first batch size of its draft length")
    first = schedule[min(schedule)]
    if max_draft_len is not None and first != max_draft_len:
        problems.append(f"its smallest key maps to {first}, not to max_draft_len {max_draft_len}")
    if meaning is ScheduleMeaning.UP_TO_KEY and schedule[max(schedule)] == 0:
        problems.append(
            "its largest key maps to 0; here a key is the last batch size of its draft length, and nothing"
            " is drafted above the largest: it was written for the other meaning"
        )
    return problems
