"""Rules of the drafting methods in lane torch, whose trees and chains are bounded by K alone."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from helpers.deployment_files import write_deployment
from specdeploy.config.load import load_deployment
from specdeploy.config.methods import MAX_TREE_NODES, TreePaths
from specdeploy.config.schema import SpeculationConfig
from specdeploy.errors import ConfigError

HEAD = {"draft": {"checkpoint": "head"}}
DEEP = [[0], [0, 0], [0, 0, 0], [1]]
ENGINE = {"version": "1.2.1", "gpu": "h100"}


def keys_of(tmp_path: Path, speculation: dict[str, Any], **overrides: Any) -> dict[str, str]:
    """Key -> reason of every violation; none when the file loads."""
    try:
        load_deployment(write_deployment(tmp_path, overrides={"speculation": speculation, **overrides}))
    except ConfigError as error:
        violations = error.violations
    else:
        violations = []
    assert all(one.remedy for one in violations)
    return {one.key: one.reason for one in violations}


@pytest.mark.parametrize(
    "speculation",
    [
        {"method": "suffix", "max_draft_len": 16, "suffix": {"min_matching_size": 3}},
        {"method": "layer_skip", "max_draft_len": 3, "layer_skip": {"num_layers": 7}},
        {"method": "eagle", "max_draft_len": 2, **HEAD},
        {"method": "eagle", "max_draft_len": 7, "eagle": {"choices": DEEP}, **HEAD},
        {"method": "eagle3", "max_draft_len": 3, "eagle3": {"choices": DEEP}, **HEAD},
        {"method": "medusa", "max_draft_len": 5, "medusa": {"num_heads": 5, "choices": DEEP}, **HEAD},
        {"method": "auto", "max_draft_len": 4, "ngram": {"max_matching_ngram_size": 5}, **HEAD},
        {"method": "auto", "max_draft_len": 4, "eagle3": {"choices": DEEP}, **HEAD},
    ],
)
def test_what_the_torch_lane_takes(speculation: dict[str, Any], tmp_path: Path) -> None:
    assert keys_of(tmp_path, speculation) == {}


@pytest.mark.parametrize(
    ("speculation", "key", "reason"),
    [
        ({"method": "layer_skip", "max_draft_len": 3}, "layer_skip.num_layers", "method layer_skip needs it"),
        ({"method": "auto", "max_draft_len": 3}, "draft", "method auto needs a draft"),
        (
            {"method": "eagle3", "max_draft_len": 2, "eagle3": {"choices": DEEP}, **HEAD},
            "eagle3.choices",
            "3 tokens deep and max_draft_len is 2",
        ),
        (
            {"method": "auto", "max_draft_len": 2, "eagle": {"choices": DEEP}, **HEAD},
            "eagle.choices",
            "3 tokens deep and max_draft_len is 2",
        ),
        (
            {"method": "medusa", "max_draft_len": 2, "medusa": {"choices": DEEP}, **HEAD},
            "medusa.choices",
            "3 tokens deep and max_draft_len is 2",
        ),
        ({"method": "medusa", "max_draft_len": 5, **HEAD}, "max_draft_len", "5 exceeds the 4 Medusa heads"),
        (
            {"method": "eagle", "max_draft_len": 2, "eagle": {"num_layers": 2}, **HEAD},
            "eagle.num_layers",
            "lane torch does not read it",
        ),
        (
            {"method": "ngram", "max_draft_len": 2, "suffix": {"min_matching_size": 3}},
            "suffix",
            "only method suffix reads it, not ngram",
        ),
        (
            {"method": "eagle3", "max_draft_len": 2, "eagle": {"choices": [[0]]}, **HEAD},
            "eagle",
            "only methods eagle and auto read it, not eagle3",
        ),
    ],
)
def test_what_the_torch_lane_refuses(speculation: dict[str, Any], key: str, reason: str, tmp_path: Path) -> None:
    found = keys_of(tmp_path, speculation)
    assert list(found) == [f"speculation.{key}"]
    assert reason in found[f"speculation.{key}"]


def test_auto_without_a_draft_names_the_method_that_needs_none(tmp_path: Path) -> None:
    path = write_deployment(tmp_path, overrides={"speculation": {"method": "auto", "max_draft_len": 3}})
    with pytest.raises(ConfigError, match="or use ngram"):
        load_deployment(path)


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    speculation = {
        "method": "eagle",
        "max_draft_len": 2,
        "eagle": {"num_layers": 3, "max_non_leaves_per_layer": 4, "choices": DEEP},
        **HEAD,
    }
    assert list(keys_of(tmp_path, speculation)) == [
        "speculation.eagle.num_layers",
        "speculation.eagle.max_non_leaves_per_layer",
        "speculation.eagle.choices",
    ]


def test_the_llm_api_reads_no_paths(tmp_path: Path) -> None:
    speculation = {"method": "eagle3", "max_draft_len": 3, "eagle3": {"choices": DEEP}, **HEAD}
    found = keys_of(tmp_path, speculation, lane="trtllm_llmapi", tensorrt_llm=ENGINE)
    assert found == {"speculation.eagle3.choices": "lane trtllm_llmapi drafts a chain and reads no paths"}


def test_a_tree_is_bounded() -> None:
    widest = tuple((rank,) for rank in range(MAX_TREE_NODES))
    assert TreePaths(choices=widest).depth == 1
    with pytest.raises(ValidationError, match=f"{MAX_TREE_NODES + 1} paths exceed"):
        TreePaths(choices=(*widest, (0, 0)))
    with pytest.raises(ValidationError, match="less than or equal to"):
        TreePaths(choices=((MAX_TREE_NODES,),))


def test_a_method_without_heads_refuses_a_checkpoint() -> None:
    with pytest.raises(ValidationError, match="method suffix needs no checkpoint"):
        SpeculationConfig.model_validate({"method": "suffix", "max_draft_len": 4, **HEAD})
