"""The other pure parts: the draft made plain, the soak's workload, the profile of a step."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file, save_file

Script = Callable[[str], ModuleType]


def write_pair(folder: Path, width: int) -> tuple[Path, Path]:
    target, draft = folder / "target", folder / "draft"
    for path, tensors, config in (
        (target, {"model.embed_tokens.weight": torch.arange(24.0).view(6, 4)}, {"hidden_size": 4, "vocab_size": 6}),
        (
            draft,
            {"model.norm.weight": torch.ones(width).bfloat16(), "d2t": torch.zeros(3, dtype=torch.long)},
            {"hidden_size": width, "vocab_size": 6, "draft_vocab_size": 3, "tie_word_embeddings": True},
        ),
    ):
        path.mkdir()
        save_file(tensors, path / "model.safetensors")
        (path / "config.json").write_text(json.dumps(config))
    return target, draft


def test_a_plain_draft_has_the_targets_embeddings_and_nothing_that_is_not_standard(
    script: Script, tmp_path: Path
) -> None:
    target, draft = write_pair(tmp_path, 4)
    script("draft_folder").write_plain_draft(draft, target, tmp_path / "plain")
    tensors = load_file(tmp_path / "plain" / "model.safetensors")
    assert sorted(tensors) == ["model.embed_tokens.weight", "model.norm.weight"]
    assert torch.equal(tensors["model.embed_tokens.weight"], torch.arange(24.0).view(6, 4).bfloat16())
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert config == {"hidden_size": 4, "vocab_size": 6, "tie_word_embeddings": True}


def test_a_draft_of_another_width_cannot_borrow(script: Script, tmp_path: Path) -> None:
    target, draft = write_pair(tmp_path, 8)
    with pytest.raises(ValueError, match="8 wide"):
        script("draft_folder").write_plain_draft(draft, target, tmp_path / "plain")


def test_the_soak_begins_with_its_longest_requests_and_cancels_none_of_them(script: Script) -> None:
    prompts = [tuple(range(5)), tuple(range(40))]
    planned = script("soak").plan_requests(prompts, 200, max_tokens=8, draft_len=4, seed=1)
    again = script("soak").plan_requests(prompts, 200, max_tokens=8, draft_len=4, seed=1)
    first, others = planned[:16], planned[16:]
    assert all(len(item.request.prompt_ids) == 40 and item.request.max_tokens == 8 for item in first)
    assert all(item.cancel_after is None for item in first)
    assert 10 < sum(item.cancel_after is not None for item in others) < 50
    assert len({item.request.max_tokens for item in others}) == 8
    assert [item.cancel_after for item in again] == [item.cancel_after for item in planned]


def test_the_slope_of_memory_is_that_of_the_second_half(script: Script) -> None:
    slope = script("soak").memory_slope
    assert slope([(100, 0.0), (200, 40.0), (300, 50.0), (400, 50.0), (500, 50.0)]) == pytest.approx(0.0, abs=1e-9)
    assert slope([(100, 50.0), (200, 50.0), (300, 51.0), (400, 52.0), (500, 53.0)]) == pytest.approx(10.0)
    assert slope([(100, 50.0), (200, 51.0), (300, 52.0)]) is None


def test_a_profile_counts_inner_parts_once(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    module = script("step_cost")
    clock = iter([0.0, 1.0, 4.0, 10.0])  # outer starts, inner starts, inner ends, outer ends
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))
    profile = module.StepProfile()
    inner = profile.timed(lambda: None, lambda _: "inner")
    profile.timed(inner, lambda _: "outer")()
    assert dict(profile.seconds) == {"inner": 3.0, "outer": 7.0}


def test_tied_weights_are_read_once(script: Script, tmp_path: Path) -> None:
    weights = {"model.embed_tokens.weight": torch.zeros(6, 4), "lm_head.weight": torch.zeros(6, 4)}
    save_file(weights | {"model.norm.weight": torch.zeros(4)}, tmp_path / "model.safetensors")
    for is_tied in (True, False):
        (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": is_tied}))
        assert script("step_cost").weight_bytes(tmp_path, torch.bfloat16) == 2 * (6 * 4 + 4)
