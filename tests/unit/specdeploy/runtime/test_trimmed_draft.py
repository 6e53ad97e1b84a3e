"""A draft whose lm_head was trimmed proposes kept tokens only, and the output stays what it was."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.tiny_checkpoint import EOS_ID
from specdeploy.checkpoint.trim import trim_vocabulary
from specdeploy.errors import CheckpointError
from specdeploy.runtime.attention import Span
from specdeploy.runtime.drafters import DraftModelDrafter, DraftRow
from specdeploy.runtime.engine import Engine
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.request import GenerationRequest, SamplingParams

MAX_SEQ_LEN = 96
PROMPTS = [[5, 17, 200, 31], [9], list(range(30, 60))]


@pytest.fixture(scope="module")
def trimmed_folder(target_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target itself, trimmed: what it proposes is accepted wherever the token was kept."""
    folder = tmp_path_factory.mktemp("trimmed")
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(f'{{"token_ids": {list(range(start, 320, 3))}}}\n' for start in (0, 0, 1)))
    trim_vocabulary(target_folder, [corpus], 160, folder / "draft")
    return folder / "draft"


def load(folder: Path) -> DecoderModel:
    return DecoderModel(folder, dtype=torch.float32, device=torch.device("cpu"), max_seq_len=MAX_SEQ_LEN)


@pytest.fixture(scope="module")
def trimmed(trimmed_folder: Path) -> DecoderModel:
    return load(trimmed_folder)


def kept_ids(model: DecoderModel) -> set[int]:
    assert model.target_ids is not None
    return set(model.target_ids.tolist())


def generate(target: DecoderModel, drafter: DraftModelDrafter | None) -> tuple[list[list[int]], int]:
    """Greedy output of every prompt, and how many draft tokens were accepted."""
    engine = Engine(target, drafter, max_rows=4, max_queue=4, prefill_chunk=16)
    for index, prompt in enumerate(PROMPTS):
        engine.submit(
            GenerationRequest(
                request_id=str(index),
                prompt_ids=tuple(prompt),
                max_tokens=10,
                stop_ids=frozenset({EOS_ID}),
                draft_len=lambda _in_flight: 4,
            )
        )
    outputs: dict[str, list[int]] = {}
    accepted: dict[str, int] = {}
    while engine.num_in_flight:
        for update in engine.step():
            outputs.setdefault(update.request_id, []).extend(update.token_ids)
            accepted[update.request_id] = update.stats.num_accepted_tokens
    return [outputs[str(index)] for index in range(len(PROMPTS))], sum(accepted.values())


def test_logits_are_the_kept_rows_of_the_whole_head(target: DecoderModel, trimmed: DecoderModel) -> None:
    prompt = PROMPTS[0]
    whole = target.forward(prompt, [Span(0, 4, 0, 0)], [3], target.new_cache(1)).logits  # [1, V]
    some = trimmed.forward(prompt, [Span(0, 4, 0, 0)], [3], trimmed.new_cache(1)).logits  # [1, n]

    assert trimmed.target_ids is not None
    torch.testing.assert_close(some, whole[:, trimmed.target_ids])


def test_greedy_output_is_unchanged_and_drafts_are_accepted(target: DecoderModel, trimmed: DecoderModel) -> None:
    plain, _ = generate(target, None)

    speculative, num_accepted = generate(target, DraftModelDrafter(trimmed, num_slots=4))

    assert speculative == plain
    assert num_accepted > 0


def test_drafted_ids_are_kept_ids_only(target: DecoderModel, trimmed: DecoderModel) -> None:
    drafter = DraftModelDrafter(trimmed, num_slots=4)
    drafts = drafter.propose([DraftRow(index, prompt, 12) for index, prompt in enumerate(PROMPTS)])

    proposed = {token for draft in drafts for token in draft.token_ids}
    assert proposed <= kept_ids(trimmed)
    whole = DraftModelDrafter(target, num_slots=4).propose([DraftRow(0, PROMPTS[0], 12)])[0]
    assert not set(whole.token_ids) <= kept_ids(trimmed)  # the whole head would have proposed others


def test_probabilities_of_sampled_drafts_lie_on_the_kept_ids(target: DecoderModel, trimmed: DecoderModel) -> None:
    """They span the engine's vocabulary, so that the target's can be compared with them token by token."""
    sampling = SamplingParams(temperature=1.5, seed=7, has_own_seed=False)
    drafter = DraftModelDrafter(trimmed, num_slots=1, vocab_size=target.vocab_size)
    draft = drafter.propose([DraftRow(0, PROMPTS[0], 1, sampling=sampling)])[0]
    logits = target.forward(PROMPTS[0], [Span(0, 4, 0, 0)], [3], target.new_cache(1)).logits[0]

    expected = torch.zeros(target.vocab_size)
    ids = sorted(kept_ids(trimmed))
    expected[ids] = torch.softmax(logits[ids] / 1.5, dim=-1)
    torch.testing.assert_close(draft.probs, expected.unsqueeze(0))
    assert set(draft.token_ids) <= kept_ids(trimmed)


@pytest.mark.parametrize("samples", [False, True])
def test_kept_ids_beyond_the_engines_vocabulary_are_not_drafted(trimmed: DecoderModel, *, samples: bool) -> None:
    limit = sorted(kept_ids(trimmed))[-40]
    sampling = SamplingParams(temperature=3.0, seed=7, has_own_seed=False) if samples else None
    drafter = DraftModelDrafter(trimmed, num_slots=1, vocab_size=limit)
    draft = drafter.propose([DraftRow(0, PROMPTS[0], 30, sampling=sampling)])[0]

    assert len(draft.token_ids) == 30
    assert max(draft.token_ids) < limit
    if draft.probs is not None:
        assert draft.probs.shape == (30, limit)


def test_ids_beyond_the_tokenizer_are_never_drafted(target: DecoderModel) -> None:
    row = DraftRow(0, PROMPTS[0], 12)
    limit = max(DraftModelDrafter(target, num_slots=1).propose([row])[0].token_ids)

    drafted = DraftModelDrafter(target, num_slots=1, vocab_size=limit).propose([row])[0]

    assert max(drafted.token_ids) < limit


@pytest.mark.parametrize(
    ("d2t", "words"),
    [
        (torch.zeros(5, dtype=torch.long), "lm_head has"),
        (torch.full((160,), 400), "d2t is no rising map"),
        (-torch.arange(160), "d2t is no rising map"),
    ],
)
def test_maps_that_do_not_fit_are_refused(d2t: torch.Tensor, words: str, trimmed_folder: Path, tmp_path: Path) -> None:
    for path in trimmed_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tensors = {**load_file(trimmed_folder / "model.safetensors"), "d2t": d2t}
    save_file(tensors, tmp_path / "model.safetensors")

    with pytest.raises(CheckpointError, match=words):
        load(tmp_path)
