"""Every drafting method of lane torch on a real Triton server: answers equal undrafted ones, and drafts are counted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.tiny_checkpoint import make_checkpoint
from helpers.toy_heads import write_eagle3_head, write_medusa_heads
from integration.conftest import deploy
from integration.test_llm import PROMPTS, answer_all, assert_idle, completion, ids, request
from specdeploy.serving.server import stop_server

pytestmark = pytest.mark.integration

TREE = [[0], [1], [0, 0], [0, 1], [0, 0, 0]]
WriteDraft = Callable[[Path, Path], Path]  # its folder, the target


def write_eagle3(folder: Path, target: Path) -> Path:
    return write_eagle3_head(folder, target, layout="safeailab", draft_vocab=100, aux_layer_ids=(0, 1, 2))


def write_medusa(folder: Path, target: Path) -> Path:
    return write_medusa_heads(folder, target, layout="original", num_heads=3)


def write_draft_model(folder: Path, target: Path) -> Path:
    return make_checkpoint(folder, num_layers=1, seed=1)


@pytest.mark.parametrize(
    ("method", "sections", "write_draft"),
    [
        ("eagle3", {"eagle3": {"choices": TREE}}, write_eagle3),
        ("medusa", {"medusa": {"num_heads": 3, "choices": TREE}}, write_medusa),
        ("layer_skip", {"layer_skip": {"num_layers": 1}}, None),
        ("suffix", {}, None),
        ("auto", {"ngram": {"min_matching_ngram_size": 2}}, write_draft_model),
    ],
)
def test_answers_are_the_undrafted_ones(
    method: str, sections: dict[str, Any], write_draft: WriteDraft | None, tmp_path: Path
) -> None:
    speculation: dict[str, Any] = {"method": method, "max_draft_len": 3, **sections}
    if write_draft is not None:
        # The target that `deploy` makes has the same sizes.
        draft = write_draft(tmp_path / "draft", make_checkpoint(tmp_path / "target"))
        speculation["draft"] = {"checkpoint": str(draft)}
    try:
        deployed = deploy(tmp_path, "tiny", {"speculation": speculation})
        plain, drafted = (
            answer_all(deployed, [request(prompt, num_draft_tokens=depth) for prompt in PROMPTS[:4]])
            for depth in (0, 3)
        )
        assert_idle(deployed)
        facts = deployed.facts
    finally:
        stop_server(tmp_path / "state", "tiny")

    assert [ids(messages) for messages in drafted] == [ids(messages) for messages in plain]
    assert {completion(messages).speculation for messages in plain} == {"off:requested"}
    assert {completion(messages).speculation for messages in drafted} == {"on"}
    counted = sum(completion(messages).total_draft_tokens or 0 for messages in drafted)
    assert counted > 0
    assert sum(counts.num_draft_tokens for counts in facts.counters.values()) == counted
    assert facts.method == method
