"""Acceptance from every kind of file, and one clear error for every kind of fault."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.run_summaries import cell, comparison, run_summary, void
from specdeploy.contract import Method
from specdeploy.errors import ConfigError
from specdeploy.planner.acceptance_files import acceptance_for, load_acceptance, unknown_acceptance
from specdeploy.planner_contract import AcceptanceOrigin, DraftForm
from specdeploy.run_contract import Acceptance, Arm, CellConditions, Load, RunSummary, VoidCode

OURS: dict[str, Any] = {
    "schema_version": 1,
    "profiles": [
        {
            "segment": "chat",
            "method": "eagle3",
            "form": "chain",
            "survivals": [0.7, 0.5, 0.3],
            "origin": "stated",
            "source": "by hand",
        }
    ],
}
# As NVIDIA Model Optimizer writes it, for 100 steps of 1, 2 and 3 tokens: 40, 30 and 30.
MODEL_OPTIMIZER: dict[str, Any] = {
    "schema_version": "1.0",
    "measured": True,
    "method": "eagle3",
    "draft_checkpoint": {"id": "org/head"},
    "target_model": {"id": "org/target"},
    "num_speculative_tokens": 3,
    "block_size": None,
    "max_supported_k": 3,
    "verification_method": "longest_prefix",
    "conditional_accept_rates": [0.6, 0.5, 0.0],
    "marginal_accept_rates": [0.6, 0.3, 0.0],
    "mean_accept_length": 1.9,
    "mean_accept_length_per_request": 1.95,
    "accept_length_model": "chain_analytic",
    "accept_length_by_k": {"3": 1.9},
    "acceptance_length_histogram": {"1": 40, "2": 30, "3": 30},
    "per_category": None,
    "measurement_conditions": {"dataset": "mt_bench", "temperature": 0.0},
    "validation": {},
}
SPECULATORS = (
    "subset,num_drafts,num_draft_tokens,num_accepted_tokens,acceptance_length,acceptance_at_pos_0,acceptance_at_pos_1\n"
    "HumanEval,1000.0,2000.0,900.0,1.9,0.6,0.3\n"
    "qa,500.0,1000.0,300.0,1.6,0.45,0.15\n"
)


def write(folder: Path, content: object, name: str = "some.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def changed(original: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**original, **changes}


def ours(**changes: Any) -> dict[str, Any]:
    return changed(OURS, profiles=[changed(OURS["profiles"][0], **changes)])


# --- ours -----------------------------------------------------------------------------------------------------------


def test_our_own_file(tmp_path: Path) -> None:
    loaded = load_acceptance(write(tmp_path, OURS))

    assert loaded.profiles[0].survivals == (0.7, 0.5, 0.3)
    assert acceptance_for(loaded, "chat") is loaded.profiles[0]
    assert acceptance_for(loaded, "other") is None


def test_a_profile_of_any_segment_stands_in(tmp_path: Path) -> None:
    loaded = load_acceptance(write(tmp_path, ours(segment=None)))

    assert acceptance_for(loaded, "whatever") is loaded.profiles[0]


@pytest.mark.parametrize(
    ("content", "key", "reason"),
    [
        (ours(survivals=[1.2, 0.5]), "profiles[0].survivals[0]", "less than or equal to 1 (given 1.2)"),
        (ours(survivals=[-0.1]), "profiles[0].survivals[0]", "greater than or equal to 0 (given -0.1)"),
        (ours(survivals=[float("nan")]), "profiles[0].survivals[0]", "nan is no number"),
        (ours(survivals=[0.3, 0.5]), "profiles[0]", "cannot survive more often than the one before it"),
        (ours(survivals=[]), "profiles[0].survivals", "at least 1 item"),
        (ours(survivals=["0.5"]), "profiles[0].survivals[0]", "valid number (given 0.5)"),
        (ours(method="eagle9"), "profiles[0].method", "given eagle9"),
        (ours(extra=1), "profiles[0].extra", "not permitted"),
        (changed(OURS, schema_version=9), "schema_version", "given 9"),
        (changed(OURS, profiles=[]), "profiles", "at least 1 item"),
        ({}, "", "no file with an acceptance"),
        ([1, 2], "", "holds a list"),
        ("{", "", "is not JSON"),
        ("[" * 100_000, "", "nested too deeply"),
    ],
)
def test_a_faulty_file_is_one_error(tmp_path: Path, content: object, key: str, reason: str) -> None:
    path = write(tmp_path, content)

    with pytest.raises(ConfigError) as error:
        load_acceptance(path)

    violation = error.value.violations[0]
    assert (violation.file, violation.key) == (str(path), key)
    assert reason in violation.reason
    assert violation.remedy


@pytest.mark.parametrize("name", ["missing.json", "."])
def test_nothing_to_read_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read|holds neither"):
        load_acceptance(tmp_path / name)


def test_bytes_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "weights.json").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(ConfigError, match="not valid UTF-8"):
        load_acceptance(tmp_path / "weights.json")


def test_a_missing_published_file_names_itself(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"published\.json"):
        unknown_acceptance(Method.NGRAM, configs_root=tmp_path)


# --- other tools ----------------------------------------------------------------------------------------------------


def test_a_speculation_profile_of_model_optimizer(tmp_path: Path) -> None:
    write(tmp_path, MODEL_OPTIMIZER, "speculation_profile.json")

    found = load_acceptance(tmp_path).profiles[0]

    assert found.survivals == (0.6, 0.3, 0.0)
    assert found.method is Method.EAGLE3
    assert found.form is DraftForm.CHAIN
    assert (found.num_steps, found.temperature) == (100, 0.0)
    assert (found.target, found.draft) == ("org/target", "org/head")
    assert found.origin is AcceptanceOrigin.IMPORTED
    assert 1 + sum(found.survivals) == pytest.approx(1.9)  # its mean counts the target's own token, as ours


def test_a_block_of_model_optimizer_is_for_its_own_k(tmp_path: Path) -> None:
    content = changed(MODEL_OPTIMIZER, method="dflash", accept_length_model="measured_per_k")

    found = load_acceptance(write(tmp_path, content)).profiles[0]

    assert found.form is DraftForm.BLOCK
    assert found.method is None
    assert "dflash" in found.source


def test_the_method_may_be_said_by_who_imports(tmp_path: Path) -> None:
    content = changed(MODEL_OPTIMIZER, method="none-of-ours")

    assert load_acceptance(write(tmp_path, content), method=Method.MTP).profiles[0].method is Method.MTP


@pytest.mark.parametrize(
    ("changes", "key", "reason"),
    [
        ({"schema_version": "2.0"}, "schema_version", "'2.0' is not known"),
        ({"measured": False}, "measured", "placeholder"),
        ({"verification_method": "block"}, "verification_method", "longest prefix"),
        ({"marginal_accept_rates": [0.3, 0.6, 0.0]}, "marginal_accept_rates[1]", "cannot survive more often"),
        ({"marginal_accept_rates": [1.6, 0.3]}, "marginal_accept_rates[0]", "no rate from 0 to 1"),
        ({"marginal_accept_rates": [None]}, "marginal_accept_rates[0]", "None is no rate"),
        ({"marginal_accept_rates": "0.6"}, "marginal_accept_rates", "no list of rates"),
        ({"conditional_accept_rates": [0.6, 0.9, 0.0]}, "conditional_accept_rates[1]", "is not marginal_accept_rates"),
        ({"mean_accept_length": 2.9}, "mean_accept_length", "cut short"),
        ({"mean_accept_length": 0.9}, "mean_accept_length", "cut short"),  # a mean without the target's own token
    ],
)
def test_a_faulty_speculation_profile(tmp_path: Path, changes: dict[str, Any], key: str, reason: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_acceptance(write(tmp_path, changed(MODEL_OPTIMIZER, **changes)))

    assert any(found.key == key and reason in found.reason for found in error.value.violations)


def test_an_acceptance_csv_of_speculators(tmp_path: Path) -> None:
    found = load_acceptance(write(tmp_path, SPECULATORS, "eagle3_acceptance.csv"), method=Method.EAGLE3).profiles

    assert [(one.segment, one.survivals, one.num_steps) for one in found] == [
        ("HumanEval", (0.6, 0.3), 1000),
        ("qa", (0.45, 0.15), 500),
    ]


@pytest.mark.parametrize(
    ("text", "method", "reason"),
    [
        (SPECULATORS, None, "names no method"),
        ("a,b\n1,2\n", Method.EAGLE3, "no columns subset"),
        (SPECULATORS.replace("0.45", "1.45"), Method.EAGLE3, "1.45 is no rate"),
        (SPECULATORS.replace("0.45", "nan"), Method.EAGLE3, "nan is no rate"),
        (SPECULATORS.replace("500.0", "x"), Method.EAGLE3, "num_drafts is 'x'"),
        (SPECULATORS.split("\n")[0], Method.EAGLE3, "holds no rows"),
    ],
)
def test_a_faulty_csv(tmp_path: Path, text: str, method: Method | None, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        load_acceptance(write(tmp_path, text, "acceptance.csv"), method=method)


# --- a run ----------------------------------------------------------------------------------------------------------

ACCEPTANCE = Acceptance(
    num_steps=100,
    num_draft_tokens=200,
    num_accepted_tokens=60,
    acceptance_rate=0.3,
    mean_acceptance_length=1.6,
    mean_acceptance_length_per_request=1.9,
)


def run(
    *cells: tuple[int, Acceptance], conditions: Callable[[int], dict[str, Any]] | None = None, **changes: Any
) -> RunSummary:
    loads = [Load(concurrency) for concurrency, _ in cells]
    return run_summary(
        comparisons=[comparison(load=load) for load in loads],
        cells=[
            cell(arm, load, acceptance=acceptance if arm is Arm.ON else None)
            for load, (_, acceptance) in zip(loads, cells, strict=True)
            for arm in (Arm.OFF, Arm.ON)
        ],
        conditions=tuple(
            CellConditions(segment="chat", concurrency=load.concurrency, **conditions(load.concurrency or 0))
            for load in loads
            if conditions is not None
        ),
        **changes,
    )


def counters(_: int) -> dict[str, Any]:
    return {"num_drafts": 50, "accepted_per_pos": (30, 15, 10, 5)}


def test_a_run_pools_its_cells(tmp_path: Path) -> None:
    summary = run((1, ACCEPTANCE), (4, ACCEPTANCE), conditions=counters)
    write(tmp_path, summary.model_dump_json(), "run_summary.json")

    found = load_acceptance(tmp_path).profiles[0]

    assert found.origin is AcceptanceOrigin.RUN
    assert found.segment == "chat"
    assert found.method is Method.NGRAM
    assert found.survivals == pytest.approx((0.6, 0.3, 0.2, 0.1))
    assert found.draft_share == pytest.approx(0.5)
    assert (found.num_steps, found.num_requests) == (200, 80)
    assert 1 + found.draft_share * sum(found.survivals) == pytest.approx(1.6)


def test_a_void_cell_is_left_out(tmp_path: Path) -> None:
    summary = run((1, ACCEPTANCE), (4, ACCEPTANCE), conditions=counters)
    voids = (void(VoidCode.DEGENERATE_OUTPUT),)
    comparisons = (comparison(load=Load(1), voids=voids), comparison(load=Load(4)))
    path = write(tmp_path, summary.model_copy(update={"comparisons": comparisons}).model_dump_json())

    assert load_acceptance(path).profiles[0].num_steps == 100

    all_void = tuple(comparison(load=Load(level), voids=voids) for level in (1, 4))
    path = write(tmp_path, summary.model_copy(update={"comparisons": all_void}).model_dump_json())
    with pytest.raises(ConfigError, match="void, degenerate output"):
        load_acceptance(path)


def test_shortened_drafts_are_said_to_be_lower_bounds(tmp_path: Path) -> None:
    few = ACCEPTANCE.model_copy(update={"num_draft_tokens": 120})
    found = load_acceptance(write(tmp_path, run((1, few), conditions=counters).model_dump_json())).profiles[0]

    assert "lower bounds" in found.source
    assert "specdeploy profile" in found.source


def test_a_chain_that_was_told_not_to_draft_would_have_drafted(tmp_path: Path) -> None:
    summary = run((1, ACCEPTANCE), conditions=counters, method="eagle3")

    found = load_acceptance(write(tmp_path, summary.model_dump_json())).profiles[0]

    assert found.draft_share == 1.0
    assert found.num_steps == 50


def test_without_counters_one_alpha_stands_in(tmp_path: Path) -> None:
    found = load_acceptance(write(tmp_path, run((1, ACCEPTANCE)).model_dump_json())).profiles[0]

    assert 1 + sum(found.survivals) == pytest.approx(1.6)
    assert "one alpha" in found.source


def test_counters_that_disagree_with_the_answers_are_not_used(tmp_path: Path) -> None:
    def wrong(level: int) -> dict[str, Any]:
        return {**counters(level), "counter_mismatch": "drafts: 50 counted, 90 answered"}

    found = load_acceptance(write(tmp_path, run((1, ACCEPTANCE), conditions=wrong).model_dump_json())).profiles[0]

    assert "one alpha" in found.source


def test_a_run_that_drafted_nothing_has_no_acceptance(tmp_path: Path) -> None:
    none = ACCEPTANCE.model_copy(update={"num_draft_tokens": 0, "num_accepted_tokens": 0})

    with pytest.raises(ConfigError, match="chat: nothing was drafted"):
        load_acceptance(write(tmp_path, run((1, none)).model_dump_json()))
