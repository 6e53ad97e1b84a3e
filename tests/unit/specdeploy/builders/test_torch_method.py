"""Numbers of a drafting method against what its checkpoints hold."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from specdeploy.builders.torch_method import check_method
from specdeploy.checkpoint_contract import (
    CheckpointInfo,
    CheckpointKind,
    HeadFacts,
    HeadLayout,
    PairReport,
    PairVerdict,
    VocabularySizes,
)
from specdeploy.config.schema import DeploymentConfig, SpeculationConfig
from specdeploy.errors import ConfigError

KINDS = {"v1": CheckpointKind.EAGLE, "v3": CheckpointKind.EAGLE3, "medusa": CheckpointKind.MEDUSA}
TARGET = CheckpointInfo(
    reference="target",
    folder="target",
    kind=CheckpointKind.CAUSAL_LM,
    vocabulary=VocabularySizes(tokenizer_length=100, config_vocab_size=128),
)


def check(method: str, generation: str, paths: list[list[int]], of: str | None = None, **facts: Any) -> None:
    settings: dict[str, Any] = {"layout": HeadLayout.SPECFORGE, "generation": generation, **facts}
    draft = CheckpointInfo(reference="head", folder="head", kind=KINDS[generation], head=HeadFacts(**settings))
    sections: dict[str, Any] = {of or method: {"choices": paths}, "draft": {"checkpoint": "head"}}
    speculation = SpeculationConfig.model_validate({"method": method, "max_draft_len": 3, **sections})
    config = cast("DeploymentConfig", SimpleNamespace(name="tiny", speculation=speculation))
    check_method(config, PairReport(target=TARGET, draft=draft, verdict=PairVerdict.COMPATIBLE))


@pytest.mark.parametrize(
    ("method", "generation", "facts", "most"),
    [
        ("eagle", "v1", {}, 100),
        ("eagle3", "v3", {"draft_vocab_size": 40, "has_d2t": True}, 40),
        ("eagle3", "v3", {"draft_vocab_size": 128}, 100),
        ("medusa", "medusa", {"num_heads": 4}, 100),
    ],
)
def test_a_tree_asks_for_no_more_guesses_than_there_are_tokens(
    method: str, generation: str, facts: dict[str, Any], most: int
) -> None:
    check(method, generation, [[most - 1]], **facts)
    for used in (method, "auto"):
        with pytest.raises(ConfigError) as caught:
            check(used, generation, [[0], [0, most]], method, **facts)
        assert (
            f"speculation.{method}.choices: rank {most} of path [0, {most}], and head guesses among {most} tokens"
            in (str(caught.value))
        )


def test_sizes_that_no_file_states_forbid_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "TARGET", TARGET.model_copy(update={"vocabulary": VocabularySizes()}))
    check("eagle", "v1", [[200]])
