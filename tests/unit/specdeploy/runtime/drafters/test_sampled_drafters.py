"""Random texts have the target's distribution whichever drafter samples ahead of them.

Many requests with seeds of their own are served by a target of eight tokens. How often each pair of neighbouring
tokens occurs is compared with the exact distribution, from plain forward passes. Seeds are fixed: it cannot flake.
"""

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy import stats

from helpers.naive_rollout import next_logits
from helpers.tiny_checkpoint import make_checkpoint
from specdeploy.runtime.drafters import AutoDrafter, Drafter, DraftModelDrafter, LayerSkipDrafter, SuffixDrafter
from specdeploy.runtime.engine import Engine
from specdeploy.runtime.kv_cache import KvCache
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.request import GenerationRequest, SamplingParams
from specdeploy.runtime.sampling import target_probs

Table = npt.NDArray[np.float64]

VOCAB = 8
KEPT = [0, 2, 3, 6]  # tokens of the trimmed draft
PROMPT = (3, 1, 4, 1)
LENGTH = 4
NUM_REQUESTS = 600
NUM_ROWS = 50
SAMPLING = SamplingParams(temperature=1.1, top_k=6)


def tiny_model(folder: Path, *, seed: int, num_layers: int, is_trimmed: bool = False) -> DecoderModel:
    make_checkpoint(folder, seed=seed, num_layers=num_layers, hidden_size=16, vocab_size=VOCAB, initializer_range=0.5)
    if is_trimmed:
        path = folder / "model.safetensors"
        tensors = load_file(path)
        d2t = torch.tensor(KEPT) - torch.arange(len(KEPT))
        save_file({**tensors, "lm_head.weight": tensors["lm_head.weight"][KEPT].contiguous(), "d2t": d2t}, path)
    return DecoderModel(folder, dtype=torch.float32, device=torch.device("cpu"), max_seq_len=32)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> DecoderModel:
    return tiny_model(tmp_path_factory.mktemp("target"), seed=2, num_layers=2)


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> DecoderModel:
    return tiny_model(tmp_path_factory.mktemp("draft"), seed=4, num_layers=1)


@pytest.fixture(scope="module")
def trimmed(tmp_path_factory: pytest.TempPathFactory) -> DecoderModel:
    return tiny_model(tmp_path_factory.mktemp("trimmed"), seed=4, num_layers=1, is_trimmed=True)


@pytest.fixture(scope="module")
def exact(target: DecoderModel) -> Table:
    """[LENGTH - 1, V, V]: how likely each pair of tokens is at each two neighbouring output positions."""
    cells = np.zeros((LENGTH - 1, VOCAB, VOCAB))
    probs: dict[tuple[int, ...], list[float]] = {}
    for length in range(LENGTH):
        for text in itertools.product(range(VOCAB), repeat=length):
            probs[text] = target_probs(next_logits(target, [*PROMPT, *text]), SAMPLING).tolist()
    for text in itertools.product(range(VOCAB), repeat=LENGTH):
        weight = float(np.prod([probs[text[:place]][token] for place, token in enumerate(text)]))
        for place in range(LENGTH - 1):
            cells[place, text[place], text[place + 1]] += weight
    return cells


def served(target: DecoderModel, drafter: Drafter, cache: KvCache) -> tuple[Table, int, int]:
    """Counts of pairs as in `exact`, and how many draft tokens were proposed and accepted."""
    engine = Engine(target, drafter, max_rows=NUM_ROWS, max_queue=NUM_REQUESTS, prefill_chunk=200, cache=cache)
    for seed in range(NUM_REQUESTS):
        sampling = SamplingParams(temperature=1.1, top_k=6, seed=seed, has_own_seed=False)
        engine.submit(GenerationRequest(str(seed), PROMPT, LENGTH, sampling=sampling, draft_len=lambda _load: 2))
    texts: dict[str, tuple[int, ...]] = {}
    num_drafted = num_accepted = 0
    while engine.num_in_flight:
        for update in engine.step():
            texts[update.request_id] = texts.get(update.request_id, ()) + update.token_ids
            if update.finish_reason is not None:
                num_drafted += update.stats.num_draft_tokens
                num_accepted += update.stats.num_accepted_tokens
    cells = np.zeros((LENGTH - 1, VOCAB, VOCAB))
    for text in texts.values():
        for place in range(LENGTH - 1):
            cells[place, text[place], text[place + 1]] += 1
    return cells, num_drafted, num_accepted


def p_value(observed: Table, probs: Table) -> float:
    """Chi-square over the cells of a table; rare ones are pooled. 0 if something impossible occurred."""
    observed, expected = observed.ravel(), probs.ravel() * observed.sum()
    if observed[expected < 1e-9].any():
        return 0.0
    is_common = expected >= 5
    pooled = np.array([observed[~is_common].sum()]), np.array([expected[~is_common].sum()])
    cells = np.concatenate([observed[is_common], pooled[0]]), np.concatenate([expected[is_common], pooled[1]])
    return float(stats.chisquare(cells[0], cells[1] / cells[1].sum() * cells[0].sum()).pvalue)


MAKERS: dict[str, Callable[[DecoderModel, DecoderModel, DecoderModel, KvCache], Drafter]] = {
    "draft_model": lambda target, draft, trimmed, cache: DraftModelDrafter(draft, num_slots=NUM_ROWS),
    "trimmed": lambda target, draft, trimmed, cache: DraftModelDrafter(trimmed, num_slots=NUM_ROWS, vocab_size=VOCAB),
    "layer_skip": lambda target, draft, trimmed, cache: LayerSkipDrafter(target, cache, num_layers=1),
    "auto": lambda target, draft, trimmed, cache: AutoDrafter(
        SuffixDrafter(min_matching_size=1), DraftModelDrafter(draft, num_slots=NUM_ROWS)
    ),
}


@pytest.mark.parametrize("name", MAKERS)
def test_the_texts_have_the_targets_distribution(
    name: str, target: DecoderModel, draft: DecoderModel, trimmed: DecoderModel, exact: Table
) -> None:
    cache = target.new_cache(NUM_ROWS)
    counts, num_drafted, num_accepted = served(target, MAKERS[name](target, draft, trimmed, cache), cache)
    for place in range(LENGTH - 1):
        assert p_value(counts[place], exact[place]) > 1e-3
    assert 0 < num_accepted < num_drafted  # both sides of the rule were taken


def test_the_comparison_notices_another_distribution(target: DecoderModel, draft: DecoderModel, exact: Table) -> None:
    counts, _, _ = served(draft, DraftModelDrafter(draft, num_slots=NUM_ROWS), draft.new_cache(NUM_ROWS))
    assert p_value(counts[1], exact[1]) < 1e-6
