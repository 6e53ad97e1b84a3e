"""From folders to an engine: which drafter, how much memory, which policy, and what cannot be put together."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.tiny_checkpoint import make_checkpoint
from helpers.toy_heads import write_eagle3_head, write_eagle_head, write_medusa_heads
from specdeploy.contract import Method
from specdeploy.errors import CheckpointError
from specdeploy.runtime.assemble import (
    EngineSettings,
    extra_tokens,
    load_draft_model,
    load_drafter,
    load_engine,
    load_target,
    method_of_folder,
)
from specdeploy.runtime.draft_length import AdaptiveDraftLength, FixedDraftLength
from specdeploy.runtime.drafters import AutoDrafter, DraftModelDrafter, NgramDrafter, SuffixDrafter
from specdeploy.runtime.drafters.feature_draft import FeatureDrafter
from specdeploy.runtime.drafters.medusa import MedusaDrafter
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.request import GenerationRequest

SETTINGS = EngineSettings(
    method=None,
    dtype=torch.float32,
    device=torch.device("cpu"),
    max_draft_len=3,
    max_rows=2,
    max_seq_len=64,
    num_token_ids=320,
)
TREE = ((0,), (1,), (0, 0), (0, 1), (0, 0, 0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("assemble") / "target", num_layers=3)


@pytest.fixture(scope="module")
def target(folder: Path) -> DecoderModel:
    return load_target(folder, SETTINGS)


@pytest.fixture(scope="module")
def drafts(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Method, Path]:
    root = tmp_path_factory.mktemp("drafts")
    return {
        Method.DRAFT_MODEL: make_checkpoint(root / "draft", num_layers=1, seed=1, max_positions=40),
        Method.EAGLE: write_eagle_head(root / "eagle", folder),
        Method.EAGLE3: write_eagle3_head(root / "eagle3", folder, aux_layer_ids=(0, 1, 3)),
        Method.MEDUSA: write_medusa_heads(root / "medusa", folder, num_heads=3),
    }


def test_a_draft_says_what_it_is(drafts: dict[Method, Path]) -> None:
    assert {method: method_of_folder(folder) for method, folder in drafts.items()} == {one: one for one in drafts}


@pytest.mark.parametrize("content", ["{", "[]", '{"generation": "v7"}'])
def test_a_draft_whose_facts_are_damaged(content: str, tmp_path: Path) -> None:
    (tmp_path / "head.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"head\.json: .*Build the deployment again"):
        method_of_folder(tmp_path)


def test_every_method_has_its_drafter(target: DecoderModel, drafts: dict[Method, Path]) -> None:
    expected = {
        Method.DRAFT_MODEL: DraftModelDrafter,
        Method.EAGLE: FeatureDrafter,
        Method.EAGLE3: FeatureDrafter,
        Method.MEDUSA: MedusaDrafter,
    }
    for method, kind in expected.items():
        assert isinstance(load_drafter(target, drafts[method], replace(SETTINGS, method=method)), kind)
        auto = load_drafter(target, drafts[method], replace(SETTINGS, method=Method.AUTO))
        assert isinstance(auto, AutoDrafter)
        assert isinstance(auto._model, kind)
    assert isinstance(load_drafter(target, None, replace(SETTINGS, method=Method.NGRAM)), NgramDrafter)
    assert isinstance(load_drafter(target, None, replace(SETTINGS, method=Method.SUFFIX)), SuffixDrafter)
    assert load_drafter(target, None, SETTINGS) is None


@pytest.mark.parametrize("method", [Method.EAGLE, Method.EAGLE3, Method.MEDUSA])
def test_a_tree_gets_room_beside_its_deepest_path(
    method: Method, target: DecoderModel, drafts: dict[Method, Path]
) -> None:
    chain = replace(SETTINGS, method=method)
    tree = replace(chain, trees={method: TREE})

    assert extra_tokens(load_drafter(target, drafts[method], chain), chain) == 0
    drafter = load_drafter(target, drafts[method], tree)
    assert drafter is not None
    assert drafter.max_draft_tokens(3) == len(TREE)
    assert extra_tokens(drafter, tree) == len(TREE) - 3


def test_a_tree_of_another_method_is_not_read(target: DecoderModel, drafts: dict[Method, Path]) -> None:
    settings = replace(SETTINGS, method=Method.AUTO, trees={Method.EAGLE: TREE})
    drafter = load_drafter(target, drafts[Method.EAGLE3], settings)
    assert drafter is not None
    assert drafter.max_draft_tokens(3) == 3


def test_the_draft_model_ends_where_its_own_context_does(target: DecoderModel, drafts: dict[Method, Path]) -> None:
    folder = drafts[Method.DRAFT_MODEL]
    assert load_draft_model(folder, target, SETTINGS).max_seq_len == 40
    assert load_draft_model(folder, target, replace(SETTINGS, max_seq_len=20)).max_seq_len == 20


def test_key_value_memory_and_policy_follow_the_settings(folder: Path) -> None:
    plain = load_engine(folder, None, replace(SETTINGS, method=Method.NGRAM))
    bounded = load_engine(
        folder,
        None,
        replace(SETTINGS, method=Method.LAYER_SKIP, num_skip_layers=1, kv_cache_tokens=50, is_draft_len_dynamic=True),
    )

    assert plain._cache.num_positions == 2 * 64
    assert isinstance(plain._policy, FixedDraftLength)
    assert bounded._cache.num_positions == 50
    assert isinstance(bounded._policy, AdaptiveDraftLength)


def test_layer_skip_drafts_into_the_engines_own_memory(folder: Path) -> None:
    engine = load_engine(folder, None, replace(SETTINGS, method=Method.LAYER_SKIP, num_skip_layers=2))
    engine.submit(GenerationRequest("a", tuple(range(20)), max_tokens=12, draft_len=lambda in_flight: 3))
    updates = [update for _ in range(14) for update in engine.step()]

    assert updates[-1].finish_reason == "length"
    assert updates[-1].stats.num_draft_tokens > 0


@pytest.mark.parametrize("num_layers", [None, 0, 3, 9])
def test_layers_that_cannot_draft(folder: Path, num_layers: int | None) -> None:
    with pytest.raises(CheckpointError, match=r"layer_skip\.num_layers: .* Write a number from 1 to 2"):
        load_engine(folder, None, replace(SETTINGS, method=Method.LAYER_SKIP, num_skip_layers=num_layers))


def test_a_method_that_lacks_its_draft(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="eagle3 drafts with a checkpoint, and there is none"):
        load_engine(folder, None, replace(SETTINGS, method=Method.EAGLE3))


def test_a_method_of_another_lane(folder: Path, drafts: dict[Method, Path]) -> None:
    with pytest.raises(CheckpointError, match="redrafter is not served by the torch lane"):
        load_engine(folder, drafts[Method.EAGLE], replace(SETTINGS, method=Method.REDRAFTER))
