"""EAGLE-3 heads of every producer and with every switch against their oracle, and whole texts."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from helpers.head_oracles import Eagle3Oracle
from helpers.head_runs import (
    CYCLE,
    GREEDY,
    OWN_RANDOM,
    SEEDED,
    edit_head,
    edit_json,
    generate,
    looking_back,
)
from helpers.observed_rows import ObservedRow, draft_paths, read_prompts, walk
from helpers.tiny_checkpoint import make_checkpoint
from helpers.toy_heads import canonicalise, write_eagle3_head
from specdeploy.errors import CheckpointError
from specdeploy.runtime.drafters.base import Draft
from specdeploy.runtime.drafters.draft_tree import DraftTree
from specdeploy.runtime.drafters.eagle3 import Eagle3Head
from specdeploy.runtime.drafters.feature_draft import FeatureDrafter
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.request import SamplingParams
from unit.specdeploy.runtime.conftest import load

Plain = Callable[[Sequence[SamplingParams]], list[list[int]]]
VOCAB = 320
CHOICES = [[0], [1], [0, 0], [1, 0], [0, 1], [0, 0, 0]]

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "trimmed": {"draft_vocab": 90},
    "two layers": {"num_layers": 2, "own_embedding": True},
    "target's lm_head": {"own_lm_head": False},
    "residual": {"switches": {"norm_before_residual": True}},
    "norm_before_fc": {"switches": {"norm_before_fc": True}, "aux_layer_ids": (1, 4)},
    "fc_norm": {"switches": {"fc_norm": True, "norm_output": True}, "draft_vocab": 90},
    "all": {"switches": {"norm_before_residual": True, "norm_before_fc": True, "norm_output": True}},
}


@pytest.mark.parametrize("layout", ["safeailab", "specforge", "speculators", "modelopt"])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_drafts_as_the_definition_says(
    layout: str, shape: str, tmp_path: Path, deep: DecoderModel, deep_folder: Path
) -> None:
    own = write_eagle3_head(tmp_path / "own", deep_folder, layout=layout, **SHAPES[shape])
    folder = canonicalise(own, tmp_path / "head")
    head, oracle = Eagle3Head(folder, deep), Eagle3Oracle(folder, deep_folder)
    row = ObservedRow(deep, 0, [(7 * place) % 300 for place in range(30)], 17, head.hidden_layers)
    for tree in (None, DraftTree(CHOICES)):
        drafter = FeatureDrafter(head, num_slots=1, vocab_size=VOCAB, tree=tree)
        row.num_read = 0
        read_prompts(drafter, [row], 9)
        draft = drafter.propose([row.draft_row(4)])[0]
        text = row.text[: row.length]
        if tree is None:
            assert draft.token_ids == oracle.chain(text, row.seen, 4)
        else:
            assert draft_paths(draft) == oracle.tree(text, row.seen, CHOICES)


def test_rows_in_company_draft_as_alone(tmp_path: Path, deep: DecoderModel, deep_folder: Path) -> None:
    folder = write_eagle3_head(tmp_path / "head", deep_folder, draft_vocab=90)
    head, oracle = Eagle3Head(folder, deep), Eagle3Oracle(folder, deep_folder)
    drafter = FeatureDrafter(head, num_slots=3, vocab_size=300, prefill_chunk=8)
    texts = [[(place * step) % 300 for place in range(60)] for step in (7, 11, 13)]
    rows = [
        ObservedRow(deep, slot, text, prompt_len, head.hidden_layers)
        for slot, (text, prompt_len) in enumerate(zip(texts, (4, 17, 9), strict=True))
    ]
    read_prompts(drafter, rows, 6)

    def check(row: ObservedRow, depth: int, draft: Draft) -> None:
        assert draft.token_ids == oracle.chain(row.text[: row.length], row.seen, depth, vocab=300)

    walk(
        drafter,
        rows,
        num_steps=5,
        draft_len=lambda step, index: 1 + (step + index) % 5,
        num_accepted=lambda step, index: (step + 2 * index) % 4,
        check=check,
    )


@pytest.mark.parametrize("choices", [None, CHOICES], ids=["chain", "tree"])
def test_texts_are_those_of_plain_decoding(
    choices: list[list[int]] | None, tmp_path: Path, deep: DecoderModel, deep_folder: Path, plain: Plain
) -> None:
    folder = write_eagle3_head(tmp_path / "head", deep_folder, draft_vocab=200, max_positions=60)
    head = Eagle3Head(folder, deep)
    tree = None if choices is None else DraftTree(choices)
    for draft_len, samplings in [(1, [GREEDY] * 5), (3, [GREEDY] * 5), (5, [GREEDY, SEEDED, GREEDY, SEEDED, SEEDED])]:
        drafter = FeatureDrafter(head, num_slots=3, vocab_size=VOCAB, tree=tree, prefill_chunk=8)
        run = generate(deep, drafter, draft_len, samplings)
        assert run.outputs == plain(samplings)
        assert run.num_drafted > 0


def test_sampled_drafts_of_a_trimmed_vocabulary_spread_over_the_targets(
    tmp_path: Path, deep: DecoderModel, deep_folder: Path, plain: Plain
) -> None:
    head = Eagle3Head(write_eagle3_head(tmp_path / "head", deep_folder, draft_vocab=90), deep)
    assert head.target_ids is not None
    drafter = FeatureDrafter(head, num_slots=1, vocab_size=VOCAB)
    row = ObservedRow(deep, 0, list(range(40)), 17, head.hidden_layers)
    read_prompts(drafter, [row], 20)
    probs = drafter.propose([row.draft_row(3, OWN_RANDOM)])[0].probs
    assert probs is not None
    torch.testing.assert_close(probs.sum(dim=1), torch.ones(3))
    others = torch.ones(VOCAB, dtype=torch.bool)
    others[head.target_ids] = False
    assert not probs[:, others].any()
    samplings = [OWN_RANDOM, GREEDY, OWN_RANDOM, SEEDED, GREEDY]
    run = generate(deep, FeatureDrafter(head, num_slots=3, vocab_size=VOCAB), 3, samplings)
    alone = plain(samplings)
    assert [run.outputs[index] for index in (1, 3, 4)] == [alone[index] for index in (1, 3, 4)]


def test_the_right_state_goes_with_the_right_position(tmp_path: Path, cycle: DecoderModel, cycle_folder: Path) -> None:
    """A head that sees nothing but one state of the target knows the token two places on, and no other."""
    folder = write_eagle3_head(tmp_path / "head", cycle_folder, aux_layer_ids=(0, 2, 4))
    size = cycle.config.hidden_size
    reads_the_middle = torch.cat((torch.zeros(size, size), torch.eye(size), torch.zeros(size, size)), dim=1)
    edit_head(folder, {"fc.weight": reads_the_middle, "lm_head.weight": looking_back(2, (VOCAB, size))})
    drafter = FeatureDrafter(Eagle3Head(folder, cycle), num_slots=3, vocab_size=VOCAB, prefill_chunk=8)
    prompts = [[3], [1 + place % CYCLE for place in range(40)]]
    run = generate(cycle, drafter, 1, prompts=prompts, max_tokens=12)
    assert run.outputs == [[1 + (prompt[-1] + place) % CYCLE for place in range(12)] for prompt in prompts]
    assert run.num_accepted == run.num_drafted == 10


@pytest.mark.parametrize(
    ("layout", "keys", "after"),
    [
        ("specforge", {"eagle_aux_hidden_state_layer_ids": [0, 2, 4]}, (0, 2, 4)),
        ("specforge", {"target_layer_ids": [0, 1, 3]}, (1, 2, 4)),
        ("modelopt", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 0, 1]}}, (1, 2, 4)),
    ],
)
def test_ids_count_layers_as_their_key_does(
    layout: str, keys: dict[str, Any], after: tuple[int, ...], tmp_path: Path, deep: DecoderModel, deep_folder: Path
) -> None:
    own = write_eagle3_head(tmp_path / "own", deep_folder, layout=layout, aux_layer_ids=None)
    edit_json(own / "config.json", **keys)
    assert Eagle3Head(canonicalise(own, tmp_path / "head"), deep).hidden_layers == after


def test_states_are_those_that_a_trainers_hooks_see(tmp_path: Path, deep: DecoderModel, deep_folder: Path) -> None:
    """ModelOpt collects what the layers with these numbers put out, in the order the layers run."""
    own = write_eagle3_head(tmp_path / "own", deep_folder, layout="modelopt", aux_layer_ids=None)
    hooked = [3, 0, 1]
    edit_json(own / "config.json", eagle_config={"eagle_aux_hidden_state_layer_ids": hooked})
    head = Eagle3Head(canonicalise(own, tmp_path / "head"), deep)
    reference = LlamaForCausalLM.from_pretrained(deep_folder, dtype=torch.float32)
    seen: list[torch.Tensor] = []
    for index, layer in enumerate(reference.model.layers):
        if index in hooked:
            layer.register_forward_hook(lambda module, args, out: seen.append(out))
    tokens = list(range(3, 20))
    with torch.no_grad():
        reference(torch.tensor([tokens]))
    row = ObservedRow(deep, 0, tokens, 17, head.hidden_layers)
    expected = torch.cat([state.reshape(17, -1) for state in seen], dim=1)
    torch.testing.assert_close(row.states, expected, atol=1e-3, rtol=1e-3)


def test_an_output_of_a_layer_the_target_lacks(tmp_path: Path, deep: DecoderModel, deep_folder: Path) -> None:
    folder = write_eagle3_head(tmp_path / "head", deep_folder, aux_layer_ids=(1, 2, 4))
    edit_json(folder / "head.json", aux_ids_name_outputs=True)
    with pytest.raises(CheckpointError, match=r"aux_layer_ids: \[1, 2, 4\] .*after 2, 3, 5 layers.*has 4 layers"):
        Eagle3Head(folder, deep)


def test_layers_that_no_key_names_are_the_usual_ones(tmp_path: Path, deep: DecoderModel, deep_folder: Path) -> None:
    folder = write_eagle3_head(tmp_path / "head", deep_folder, aux_layer_ids=None)
    assert Eagle3Head(folder, deep).hidden_layers == (2, 2, 1)
    shallow = load(make_checkpoint(tmp_path / "shallow", num_layers=2))
    with pytest.raises(CheckpointError, match=r"aux_layer_ids: \[2, 1, -1\] .*the target has 2 layers"):
        Eagle3Head(folder, shallow)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"norm_switches": {"use_mtp_layernorm": True}}, "use_mtp_layernorm true is not supported"),
        ({"norm_switches": {"use_last_layernorm": False}}, "use_last_layernorm false is not supported"),
        ({"norm_switches": {"norm_before_fc": True, "fc_norm": True}}, "norms twice"),
        ({"norm_switches": {"fc_norm": True}}, r"tensor fc_norm.0.weight is missing"),
        ({"aux_layer_ids": [1, 5, 2]}, r"\[1, 5, 2\]"),
        ({"aux_layer_ids": [1, 2]}, r"fc.weight: shape \[32, 96\], but .* \[32, 64\]"),
        ({"generation": "v1"}, "generation: v1 where v3 is expected"),
        ({"num_layers": 2}, "layers.1.input_layernorm.weight is missing"),
    ],
)
def test_heads_that_are_not_whole_or_not_known_are_refused(
    facts: dict[str, Any], message: str, tmp_path: Path, deep: DecoderModel, deep_folder: Path
) -> None:
    folder = write_eagle3_head(tmp_path / "head", deep_folder)
    edit_json(folder / "head.json", **facts)
    with pytest.raises(CheckpointError, match=message):
        Eagle3Head(folder, deep)


def test_a_head_of_the_last_state_alone_is_refused_by_name(
    tmp_path: Path, deep: DecoderModel, deep_folder: Path
) -> None:
    folder = write_eagle3_head(tmp_path / "head", deep_folder)
    edit_head(folder, {}, remove=("fc.weight",))
    with pytest.raises(CheckpointError, match="use_aux_hidden_state false"):
        Eagle3Head(folder, deep)
