"""Published acceptance: of a pair where there is one, else a range over the method's pairs, else nothing."""

import json
from pathlib import Path

import pytest

from specdeploy.contract import Method
from specdeploy.planner.acceptance import AcceptanceModel, single_alpha_of
from specdeploy.planner.acceptance_files import (
    PUBLISHED_FILE,
    load_acceptance,
    published_acceptance,
    unknown_acceptance,
)
from specdeploy.planner.published_acceptance import form_of, task_group
from specdeploy.planner_contract import AcceptanceOrigin, AcceptanceProfile, DraftForm

CONFIGS = Path(__file__).parents[4] / "configs"


def published() -> tuple[AcceptanceProfile, ...]:
    return load_acceptance(CONFIGS / PUBLISHED_FILE).profiles


def tokens(profile: AcceptanceProfile, draft_len: int) -> float:
    return 1 + sum(profile.survivals[:draft_len])


def test_every_published_profile_names_its_source_and_target() -> None:
    for profile in published():
        assert profile.origin is AcceptanceOrigin.PUBLISHED
        assert profile.source
        assert profile.target
        assert "/work" not in profile.source


@pytest.mark.parametrize(
    ("target", "method", "source", "means"),
    [
        (
            "Llama-3.1-8B-Instruct",
            Method.EAGLE3,
            "#20780",
            {2: 2.36, 3: 2.79, 4: 3.08, 5: 3.32, 6: 3.46, 7: 3.54},
        ),
        ("Llama-3.1-8B-Instruct", Method.EAGLE, "#20780", {2: 2.10, 3: 2.29, 4: 2.39, 7: 2.47}),
        ("DeepSeek-R1", Method.MTP, "blog01", {1: 1.92, 2: 2.58, 3: 2.82, 4: 2.99, 5: 3.01}),
        ("gpt-oss-120b", Method.EAGLE3, "Red Hat", {2: 1.91, 3: 2.07, 4: 2.13}),
        ("Llama-3.1-8B-Instruct", Method.NGRAM, "blazedit", {5: 4.59}),
        ("Llama-4-Scout", Method.NGRAM, "translation-like", {7: 3.62, 9: 3.925, 15: 4.36, 23: 4.73}),
        ("Llama-3.1-8B-Instruct", Method.EAGLE3, "MT-bench, dynamic tree", {8: 6.13}),
    ],
)
def test_profiles_give_the_tokens_per_step_that_were_printed(
    target: str, method: Method, source: str, means: dict[int, float]
) -> None:
    found = [p for p in published() if p.target == target and p.method is method and source in p.source]

    assert len(found) == 1
    for draft_len, mean in means.items():
        assert tokens(found[0], draft_len) == pytest.approx(mean, abs=0.002)


@pytest.mark.parametrize(
    ("target", "task", "conditionals"),
    [
        ("Kimi-K3", "coding", (0.87, 0.84, 0.82, 0.83, 0.84, 0.84, 0.83)),
        ("Kimi-K3", "MT-bench", (0.68, 0.64, 0.63, 0.66, 0.71, 0.72, 0.75)),
        ("Gemma-4-31B-it", "HumanEval", (0.86, 0.84, 0.84, 0.84, 0.83, 0.82, 0.78, 0.73)),
    ],
)
def test_blocks_keep_their_shape(target: str, task: str, conditionals: tuple[float, ...]) -> None:
    found = next(p for p in published() if p.target == target and p.source.endswith(task))
    before = (1.0, *found.survivals[:-1])

    assert found.method is None
    assert found.form is DraftForm.BLOCK
    assert [now / last for now, last in zip(found.survivals, before, strict=True)] == pytest.approx(
        conditionals, abs=0.006
    )


def test_tasks_of_one_drafter_differ_as_published() -> None:
    kimi = [sum(p.survivals) + 1 for p in published() if p.target == "Kimi-K3"]
    gemma = [sum(p.survivals) + 1 for p in published() if p.target == "Gemma-4-31B-it"]

    assert (min(kimi), max(kimi)) == pytest.approx((2.37, 4.73), abs=0.02)
    assert (min(gemma), max(gemma)) == pytest.approx((2.53, 5.17), abs=0.02)


def test_one_alpha_is_good_for_eagle3_and_poor_for_mtp() -> None:
    eagle3 = next(p for p in published() if p.method is Method.EAGLE3 and "#20780" in p.source)
    mtp = next(p for p in published() if p.target == "DeepSeek-R1")

    assert abs(single_alpha_of(eagle3).largest_error) < 0.03
    assert abs(single_alpha_of(mtp).largest_error) > 0.1


@pytest.mark.parametrize("method", [Method.EAGLE3, Method.EAGLE, Method.MTP, Method.DRAFT_MODEL, Method.NGRAM])
@pytest.mark.parametrize("task", [None, "chat", "code_edit", "summarisation"])
def test_an_unknown_pair_is_a_range_and_never_a_point(method: Method, task: str | None) -> None:
    found = unknown_acceptance(method, task, configs_root=CONFIGS)

    assert found is not None
    assert found.origin is AcceptanceOrigin.UNKNOWN
    assert "published pairs" in found.source
    model = AcceptanceModel.from_profile(found)
    low, value, high = (model.at(bound).mean_tokens(2) for bound in ("low", "value", "high"))
    assert low < value <= high
    assert low < high - 0.1


def test_the_range_is_of_the_task_where_enough_pairs_were_measured_on_it() -> None:
    edits = unknown_acceptance(Method.NGRAM, "code_edit", configs_root=CONFIGS)
    chat = unknown_acceptance(Method.NGRAM, "support-chat", configs_root=CONFIGS)
    summaries = unknown_acceptance(Method.EAGLE3, "summarisation", configs_root=CONFIGS)

    assert edits is not None
    assert chat is not None
    assert summaries is not None
    assert tokens(edits, 3) > tokens(chat, 3) + 0.5
    assert "on chat" in chat.source
    assert "on all tasks" in summaries.source


@pytest.mark.parametrize("method", [Method.SUFFIX, Method.LAYER_SKIP, Method.AUTO, Method.REDRAFTER, Method.LOOKAHEAD])
def test_a_method_that_nobody_published_is_unknown_altogether(method: Method) -> None:
    assert unknown_acceptance(method, "chat", configs_root=CONFIGS) is None


def test_trees_are_no_evidence_for_chains() -> None:
    assert unknown_acceptance(Method.MEDUSA, configs_root=CONFIGS) is None
    tree = unknown_acceptance(Method.MEDUSA, form=DraftForm.TREE, configs_root=CONFIGS)
    assert tree is not None
    assert len(tree.survivals) == 4


@pytest.mark.parametrize(
    ("method", "target", "draft", "form", "found"),
    [
        (
            Method.EAGLE3,
            "meta-llama/Llama-3.1-8B-Instruct",
            "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
            None,
            "vLLM issue #20780",
        ),
        (Method.EAGLE3, "nvidia/Llama-3.1-8B-Instruct-FP8", "someone/head", None, "vLLM issue #20780"),
        (Method.MTP, "deepseek-ai/DeepSeek-V3", None, None, "technical report"),
        (
            Method.MEDUSA,
            "lmsys/vicuna-13b-v1.3",
            "FasterDecoding/medusa-vicuna-13b-v1.3",
            DraftForm.TREE,
            "Medusa",
        ),
        (Method.DRAFT_MODEL, "Qwen/Qwen2-57B-A14B-Instruct", "Qwen/Qwen2-0.5B-Instruct", None, "MoESD"),
        (Method.DRAFT_MODEL, "Qwen/Qwen2-57B-A14B-Instruct", "Qwen/Qwen2-1.5B-Instruct", None, None),
        (Method.MTP, "deepseek-ai/DeepSeek-V2.5", None, None, None),
        (Method.NGRAM, "Qwen/Qwen3-8B", None, None, None),
    ],
)
def test_a_pair_is_found_by_its_names(
    method: Method, target: str, draft: str | None, form: DraftForm | None, found: str | None
) -> None:
    profile = published_acceptance(method, target, draft, "chat", form=form, configs_root=CONFIGS)

    if found is None:
        assert profile is None
    else:
        assert profile is not None
        assert found in profile.source
        assert profile.origin is AcceptanceOrigin.PUBLISHED
        assert profile.segment == "chat"


def test_a_head_that_a_table_does_not_name_is_said_to_be_so() -> None:
    profile = published_acceptance(Method.EAGLE3, "meta-llama/Llama-3.1-8B-Instruct", "a/head", configs_root=CONFIGS)

    assert profile is not None
    assert "whose head is not said" in profile.source


@pytest.mark.parametrize(
    ("segment", "group"),
    [
        ("code_edit", "code_edit"),
        ("coding", "code"),
        ("summarisation", "summarisation"),
        ("doc-summaries", None),
        ("support-chat", "chat"),
        ("json_extraction", "structured"),
        ("gsm8k-math", "maths"),
        ("faq", None),
        (None, None),
    ],
)
def test_segments_are_matched_by_their_words(segment: str | None, group: str | None) -> None:
    assert task_group(segment) == group


def test_forms_of_methods() -> None:
    assert form_of(Method.EAGLE3) is DraftForm.CHAIN
    assert form_of(Method.MEDUSA, has_tree=True) is DraftForm.TREE
    assert form_of(Method.NGRAM) is DraftForm.LOOKUP
    assert form_of(Method.REDRAFTER) is DraftForm.TREE


def test_the_shipped_file_has_one_profile_a_line() -> None:
    lines = (CONFIGS / PUBLISHED_FILE).read_text().splitlines()

    assert all(json.loads(line.rstrip(",")) for line in lines[1:-1])
