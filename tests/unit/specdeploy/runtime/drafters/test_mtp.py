"""The MTP layer of a target, against its oracle, and whole texts."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.head_oracles import MtpOracle
from helpers.head_runs import CYCLE, GREEDY, SEEDED, edit_head, generate, write_cycle_target
from helpers.observed_rows import ObservedRow, read_prompts
from helpers.tiny_checkpoint import make_checkpoint
from helpers.toy_heads import add_mtp_layer, target_size
from specdeploy.errors import CheckpointError
from specdeploy.runtime.drafters.feature_draft import FeatureDrafter
from specdeploy.runtime.drafters.mtp import MtpHead
from specdeploy.runtime.model import DecoderModel
from unit.specdeploy.runtime.conftest import load

VOCAB = 320
BASE = "model.mtp_layers.0."


@pytest.fixture(scope="module")
def qwen_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("qwen"), architecture="qwen2", seed=4)


@pytest.fixture(scope="module")
def mimo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_checkpoint(tmp_path_factory.mktemp("mimo"), architecture="qwen2", seed=4)
    return add_mtp_layer(folder)


@pytest.fixture(scope="module")
def mimo(mimo_folder: Path) -> DecoderModel:
    return load(mimo_folder)


def test_the_decoder_is_qwen2s(mimo: DecoderModel, qwen_folder: Path) -> None:
    assert generate(mimo, None, 0).outputs == generate(load(qwen_folder), None, 0).outputs


def test_it_drafts_as_the_definition_says(mimo: DecoderModel, mimo_folder: Path) -> None:
    head, oracle = MtpHead(mimo_folder, mimo), MtpOracle(mimo_folder)
    assert head.hidden_layers == (2,)
    drafter = FeatureDrafter(head, num_slots=1, vocab_size=VOCAB)
    row = ObservedRow(mimo, 0, [(7 * place) % 300 for place in range(30)], 17, head.hidden_layers)
    read_prompts(drafter, [row], 9)
    assert drafter.propose([row.draft_row(4)])[0].token_ids == oracle.chain(row.text[: row.length], row.seen, 4)


def test_texts_are_those_of_plain_decoding(mimo: DecoderModel, mimo_folder: Path) -> None:
    head = MtpHead(mimo_folder, mimo)
    for draft_len, samplings in [(1, [GREEDY] * 5), (3, [GREEDY, SEEDED, GREEDY, SEEDED, SEEDED])]:
        run = generate(mimo, FeatureDrafter(head, num_slots=3, vocab_size=VOCAB), draft_len, samplings)
        assert run.outputs == generate(mimo, None, 0, samplings).outputs
        assert run.num_drafted > 0


def test_a_layer_that_passes_the_embedding_on_is_always_right(tmp_path: Path, qwen_folder: Path) -> None:
    folder = add_mtp_layer(write_cycle_target(tmp_path / "cycle", qwen_folder))
    size = target_size(folder).hidden
    edit_head(folder, {f"{BASE}input_proj.weight": torch.cat((torch.zeros(size, size), torch.eye(size)), dim=1)})
    cycle = load(folder)
    prompts = [[3, 1, 7, 7, 2], [5], [1 + place % CYCLE for place in range(40)]]
    drafter = FeatureDrafter(MtpHead(folder, cycle), num_slots=3, vocab_size=VOCAB)
    run = generate(cycle, drafter, 3, prompts=prompts, max_tokens=13)
    assert run.outputs == [[1 + (prompt[-1] + place) % CYCLE for place in range(13)] for prompt in prompts]
    assert run.num_accepted == run.num_drafted >= 24


def test_targets_without_such_a_layer_are_refused(tmp_path: Path, deep: DecoderModel, deep_folder: Path) -> None:
    with pytest.raises(CheckpointError, match="LlamaForCausalLM has no MTP layers"):
        MtpHead(deep_folder, deep)
    folder = add_mtp_layer(make_checkpoint(tmp_path / "two", architecture="qwen2"))
    weights = load_file(folder / "model.safetensors")
    second = {name.replace("layers.0", "layers.1"): weights[name].clone() for name in weights if name.startswith(BASE)}
    save_file(weights | second, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="tensors are not part of one MTP layer"):
        MtpHead(folder, load(folder))
    save_file(
        {name: tensor for name, tensor in weights.items() if not name.startswith(BASE)}, folder / "model.safetensors"
    )
    with pytest.raises(CheckpointError, match=r"mtp_layers\.0\.token_layernorm\.weight is missing"):
        MtpHead(folder, load(folder))
