"""The target's choice of a token, as a pure function of logits, parameters, seed and position.

Order: repetition penalty, presence and frequency penalties, logit bias, bans (bad words, stop ids before
`min_tokens`), temperature, top-k, top-p, min-p. The random number of a position depends on the seed and the
position alone, so a seed gives the same text whatever was drafted, at any load and beside any neighbours.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from specdeploy.runtime.request import SamplingParams

# top-p needs the largest probabilities in order; a full sort of a 50k vocabulary costs more than a small model's step.
_TOP_P_HEAD = 1024


def uniform_at(seed: int, position: int) -> float:
    """The random number in [0, 1) that belongs to one output position (Philox, counter-based: Salmon et al. 2011)."""
    return float(np.random.Generator(np.random.Philox(key=seed, counter=position)).random())


def adjusted_logits(
    logits: torch.Tensor,
    params: SamplingParams,
    *,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    stop_ids: frozenset[int],
) -> torch.Tensor:
    """Logits [V] after penalties, bias and bans, float32, given everything before this position."""
    adjusted = logits.float().clone()
    _apply_penalties(adjusted, params, prompt_ids, output_ids)
    for token, bias in params.logit_bias.items():
        adjusted[token] += bias
    if len(output_ids) < params.min_tokens and stop_ids:
        adjusted[list(stop_ids)] = float("-inf")
    for word in params.bad_words:
        prefix_len = len(word) - 1
        if prefix_len == 0 or (
            len(output_ids) >= prefix_len and tuple(output_ids[len(output_ids) - prefix_len :]) == word[:-1]
        ):
            adjusted[word[-1]] = float("-inf")
    return adjusted


def _apply_penalties(
    logits: torch.Tensor, params: SamplingParams, prompt_ids: Sequence[int], output_ids: Sequence[int]
) -> None:
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted({*prompt_ids, *output_ids}), dtype=torch.long, device=logits.device)
        values = logits[seen]
        logits[seen] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if (params.presence_penalty or params.frequency_penalty) and output_ids:
        counts = Counter(output_ids)
        tokens = torch.tensor(list(counts), dtype=torch.long, device=logits.device)
        times = torch.tensor(list(counts.values()), dtype=torch.float32, device=logits.device)
        logits[tokens] -= params.presence_penalty + params.frequency_penalty * times


def target_probs(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """The distribution [V] a random choice is drawn from: temperature, then top-k, top-p and min-p, renormalised."""
    logits = logits.float()
    scaled = (logits - logits.max()) / params.temperature  # the largest is 0: no temperature is too small
    if 0 < params.top_k < scaled.shape[0]:
        scaled = scaled.masked_fill(scaled < torch.topk(scaled, params.top_k).values[-1], float("-inf"))
    probs = torch.softmax(scaled, dim=-1)
    if params.top_p < 1.0:
        probs = _keep_top_p(probs, params.top_p)
    if params.min_p > 0.0:
        probs = torch.where(probs >= params.min_p * probs.max(), probs, 0.0)
    return probs / probs.sum()


def _keep_top_p(probs: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the smallest set of largest probabilities whose sum reaches `top_p` (Holtzman et al. 2020)."""
    ordered, indices = torch.topk(probs, min(_TOP_P_HEAD, probs.shape[0]))
    if ordered.shape[0] < probs.shape[0] and float(ordered.sum()) < top_p:
        ordered, indices = torch.sort(probs, descending=True)
    before = ordered.cumsum(0) - ordered
    kept = indices[before < top_p]
    truncated = torch.zeros_like(probs)
    truncated[kept] = probs[kept]
    return truncated


def choose_token(logits: torch.Tensor, params: SamplingParams, position: int) -> int:
    """The target's token at output position `position` (0-based) from adjusted logits [V]."""
    if params.is_greedy:
        return int(logits.argmax())
    cumulative = target_probs(logits, params).double().cumsum(0)
    point = uniform_at(params.seed, position) * float(cumulative[-1])
    index = int(torch.searchsorted(cumulative, point, right=True))
    return min(index, logits.shape[0] - 1)
