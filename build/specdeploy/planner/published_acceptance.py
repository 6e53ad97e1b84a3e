"""Acceptance that somebody else measured: of a like pair where there is one, else a range over the method's pairs.

Published profiles (`configs/acceptance/published.json`) name what they were measured on by a group of tasks; a
deployment's segments are matched to these groups by the words of their names.
"""

import re
from collections.abc import Iterable, Sequence

import numpy as np

from specdeploy.contract import Method
from specdeploy.planner_contract import AcceptanceOrigin, AcceptanceProfile, DraftForm

# First match of a segment's name wins; code_edit before code, because edits repeat their input.
_GROUP_OF_WORDS: tuple[tuple[str, str], ...] = (
    (r"edit|refactor|rewrite|apply", "code_edit"),
    (r"code|coding|program|sql", "code"),
    (r"summ?ari[sz]", "summarisation"),
    (r"translat", "translation"),
    (r"math|reason", "maths"),
    (r"json|tool|schema|extract|struct|function", "structured"),
    (r"rag|retriev|document", "rag"),
    (r"qa|question", "question_answering"),
    (r"chat|talk|assist|dialog|conversation|writ", "chat"),
)
# Groups that stand in for each other where the first has too few pairs.
_LIKE_GROUPS = {"code_edit": ("code",), "code": ("code_edit",)}
_TUTORIAL = "tutorial"  # an under-trained head: useful as a case, no pair that anybody deploys
# One pair says nothing about the next one.
_MIN_PAIRS = 2
_MAX_DRAFT_LEN = 8  # of a range: deeper survivals were hardly published
_LOOKUPS = frozenset({Method.NGRAM, Method.SUFFIX, Method.LOOKAHEAD, Method.AUTO})
_UNNAMED_DRAFTS = ("head", "heads")
# Of a name: how it was tuned, stored or versioned by its publisher.
_EMPTY_WORDS = frozenset(
    {"instruct", "it", "hf", "meta", "fp4", "nvfp4", "fp8", "fp16", "bf16", "awq", "gptq", "v1.3", "v1.5"}
)


def form_of(method: Method, *, has_tree: bool = False) -> DraftForm:
    """How a method drafts: from the text, a tree, else one token after the other. Medusa's heads count as a chain: head
    i proposes token i whatever K is."""
    if method in _LOOKUPS:
        return DraftForm.LOOKUP
    return DraftForm.TREE if has_tree or method is Method.REDRAFTER else DraftForm.CHAIN


def task_group(segment: str | None) -> str | None:
    """The group of published tasks that a segment's name belongs to; None where its words say nothing."""
    words = (segment or "").lower()
    return next((group for pattern, group in _GROUP_OF_WORDS if re.search(pattern, words)), None)


def acceptance_of_pair(
    published: Sequence[AcceptanceProfile],
    *,
    method: Method,
    target: str,
    draft: str | None,
    task: str | None = None,
    form: DraftForm | None = None,
) -> AcceptanceProfile | None:
    """What was published of this target with this draft, on this segment's tasks if there are any, else on others.

    Names are compared without owner, case, punctuation and words such as Instruct or FP8. Tables that only say "EAGLE-3
    head" are taken to mean the target's usual one, which `source` says. Several sources of one pair
    give a range between them.
    """
    candidates = [
        profile
        for profile in _of_method(published, method, form)
        if _same_name(profile.target, target) and _is_same_draft(profile.draft, draft)
    ]
    group = task_group(task)
    chosen = [profile for profile in candidates if profile.segment == group] if group else []
    chosen = chosen or candidates
    if not chosen:
        return None
    caution = "" if any(_same_name(profile.draft, draft) for profile in chosen) else " (whose head is not said)"
    if len(chosen) == 1:
        only = chosen[0]
        return only.model_copy(update={"segment": task, "source": only.source + caution})
    names = "; ".join(dict.fromkeys(profile.source for profile in chosen))
    return _range_over(chosen, chosen, AcceptanceOrigin.PUBLISHED, task, f"{names}{caution}")


def acceptance_range(
    published: Sequence[AcceptanceProfile], method: Method, task: str | None, form: DraftForm | None = None
) -> AcceptanceProfile | None:
    """The range over published pairs of `method`: median, lowest and highest, position by position, among those that
    were measured so deep. It ends where fewer than two were.

    Over the pairs measured on the segment's own group of tasks where there are two, else over all; in the median a pair
    counts once, however many tasks it was measured on. None where fewer than two pairs were published at all: then
    nothing is known, and it is to be measured.
    """
    candidates = [profile for profile in _of_method(published, method, form) if profile.segment != _TUTORIAL]
    group = task_group(task)
    chosen, about = candidates, "all tasks"
    for groups in ((group,), (group, *_LIKE_GROUPS.get(group or "", ()))):
        of_group = [profile for profile in candidates if group is not None and profile.segment in groups]
        if len(_pairs(of_group)) >= _MIN_PAIRS:
            chosen, about = of_group, " and ".join(str(name) for name in groups)
            break
    pairs = _pairs(chosen)
    if len(pairs) < _MIN_PAIRS:
        return None
    names = ", ".join(sorted({str(profile.target) for profile in chosen}))
    source = f"range over {len(pairs)} published pairs of {method} on {about} (targets {names}); measure your own"
    middles = [_middle(profiles) for profiles in pairs.values()]
    return _range_over(chosen, middles, AcceptanceOrigin.UNKNOWN, task, source)


def _of_method(
    published: Iterable[AcceptanceProfile], method: Method, form: DraftForm | None
) -> list[AcceptanceProfile]:
    """Unconstrained and, as far as it is said, greedy profiles: the other conditions are effects on top."""
    return [
        profile
        for profile in published
        if profile.method is method
        and profile.form is (form or form_of(method))
        and not profile.is_constrained
        and not profile.temperature
    ]


def _pairs(profiles: Iterable[AcceptanceProfile]) -> dict[tuple[str | None, str | None], list[AcceptanceProfile]]:
    pairs: dict[tuple[str | None, str | None], list[AcceptanceProfile]] = {}
    for profile in profiles:
        pairs.setdefault((profile.target, profile.draft), []).append(profile)
    return pairs


def _middle(profiles: Sequence[AcceptanceProfile]) -> AcceptanceProfile:
    """The one of median acceptance of one pair."""
    ranked = sorted(profiles, key=lambda profile: sum(profile.survivals[:_MAX_DRAFT_LEN]))
    return ranked[len(ranked) // 2]


def _range_over(
    profiles: Sequence[AcceptanceProfile],
    middles: Sequence[AcceptanceProfile],
    origin: AcceptanceOrigin,
    segment: str | None,
    source: str,
) -> AcceptanceProfile:
    """Median of `middles`, lowest and highest of `profiles`; of a tree only profiles of one depth are alike."""
    like = profiles[0]
    lengths = sorted((len(profile.survivals) for profile in profiles), reverse=True)
    depth = min(lengths) if like.form is DraftForm.TREE else min(_MAX_DRAFT_LEN, lengths[1])
    columns = [_column(profiles, position) for position in range(depth)]
    centre = [float(np.median(_column(middles, position) or column)) for position, column in enumerate(columns)]
    return AcceptanceProfile(
        segment=segment,
        method=like.method,
        form=like.form,
        survivals=_falling(centre),
        survivals_low=_falling([min(column) for column in columns]),
        survivals_high=_falling([max(column) for column in columns]),
        target=like.target if origin is AcceptanceOrigin.PUBLISHED else None,
        draft=like.draft if origin is AcceptanceOrigin.PUBLISHED else None,
        origin=origin,
        source=source,
    )


def _column(profiles: Iterable[AcceptanceProfile], position: int) -> list[float]:
    return [profile.survivals[position] for profile in profiles if position < len(profile.survivals)]


def _falling(values: Sequence[float]) -> tuple[float, ...]:
    """Other profiles reach deep positions than shallow ones, so that a median might rise."""
    return tuple(round(float(value), 4) for value in np.minimum.accumulate(values))


def _name_of(reference: str | None) -> frozenset[str]:
    """The words of a checkpoint's name that tell models apart: `owner/Name-1B-Instruct-FP8` -> name, 1b."""
    words = re.split(r"[^a-z0-9.]+", (reference or "").rstrip("/").split("/")[-1].lower())
    return frozenset(word for word in words if word and word not in _EMPTY_WORDS)


def _same_name(one: str | None, other: str | None) -> bool:
    return bool(_name_of(one)) and _name_of(one) == _name_of(other)


def _is_same_draft(published: str | None, draft: str | None) -> bool:
    """Tables that only say "EAGLE-3 head" do not tell heads apart."""
    if published is None:
        return draft is None
    is_unnamed = published.lower().split(" (")[0].split()[-1] in _UNNAMED_DRAFTS
    return _same_name(published, draft) or is_unnamed
