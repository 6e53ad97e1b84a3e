"""transformers' own drafting as an oracle: greedy text is theirs, plain and drafted, whichever of us drafts."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from specdeploy.runtime.drafters import Drafter, DraftModelDrafter, NgramDrafter
from specdeploy.runtime.engine import Engine
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.request import GenerationRequest

NUM_TOKENS = 40
PROMPTS = [[7, 8, 9, 7, 8, 9, 7, 8], [5, 17, 200, 31, 5, 17], list(range(30, 60))]


@pytest.fixture(scope="module")
def theirs(target_folder: Path) -> Any:
    return _load(target_folder)


@pytest.fixture(scope="module")
def assistant(draft_folder: Path) -> Any:
    model = _load(draft_folder)
    model.generation_config.num_assistant_tokens = 4
    model.generation_config.num_assistant_tokens_schedule = "constant"
    return model


def _load(folder: Path) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)  # it comes in eval mode
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def their_text(model: Any, prompt: list[int], **options: Any) -> list[int]:
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_TOKENS, do_sample=False, **options
        )
    return [int(token) for token in out[0, len(prompt) :]]


def our_texts(target: DecoderModel, drafter: Drafter | None) -> list[list[int]]:
    engine = Engine(target, drafter, max_rows=3, max_queue=8, prefill_chunk=16)
    for index, prompt in enumerate(PROMPTS):
        engine.submit(GenerationRequest(str(index), tuple(prompt), NUM_TOKENS, draft_len=lambda _: 4 if drafter else 0))
    texts: list[list[int]] = [[] for _ in PROMPTS]
    accepted = 0
    while engine.num_in_flight:
        for update in engine.step():
            texts[int(update.request_id)].extend(update.token_ids)
            accepted = max(accepted, update.stats.num_accepted_tokens)
    assert drafter is None or isinstance(drafter, DraftModelDrafter) or accepted > 0
    return texts


def test_plain_text_is_theirs(theirs: Any, target: DecoderModel) -> None:
    assert our_texts(target, None) == [their_text(theirs, prompt) for prompt in PROMPTS]


def test_n_gram_drafts_give_the_text_of_their_prompt_lookup(theirs: Any, target: DecoderModel) -> None:
    ours = our_texts(target, NgramDrafter(min_matching_ngram_size=1, max_matching_ngram_size=2))
    assert ours == [their_text(theirs, prompt, prompt_lookup_num_tokens=4) for prompt in PROMPTS]


def test_a_draft_model_gives_the_text_of_their_assisted_generation(
    theirs: Any, assistant: Any, target: DecoderModel, draft: DecoderModel
) -> None:
    ours = our_texts(target, DraftModelDrafter(draft, num_slots=3))
    assert ours == [their_text(theirs, prompt, assistant_model=assistant) for prompt in PROMPTS]
