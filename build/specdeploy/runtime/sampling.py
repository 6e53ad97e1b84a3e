"""The target's choice of a token, as a pure function of logits, parameters, seed and position.

Order: repetition penalty, presence and frequency penalties, logit bias, bans (bad words, stop ids before
`min_tokens`), temperature, top-k, top-p, min-p. The random number of a position depends on the seed and the
position alone, so a seed gives the same text whatever was drafted, at any load and beside any neighbours.
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from specdeploy.runtime.request import SamplingParams

# top-p sorts, and sorting a whole vocabulary costs more than a small model's step. First guess: tokens of less than
# this share of what may be left out are left out.
_TOP_P_TAIL_SHARE = 1 / 256
# Longer weights are summed in blocks first: a running sum is slow, and only one block of it is looked at.
_DRAW_BLOCK = 256
# Parameters act as if they were within these bounds: beyond them float32 overflows and inf - inf is no number. No logit
# of a model comes near, so nothing else changes.
_SMALLEST_SCALE, _LARGEST = 1e-30, 1e30

Stream = Literal["target", "draft", "accept"]
_STREAM_KEYS: dict[Stream, int] = {"target": 0, "draft": 1 << 64, "accept": 2 << 64}


class NonFiniteLogitsError(ArithmeticError):
    """Nothing can be chosen: the largest logit, or the sum of the weights, is no positive finite number."""


def uniform_at(seed: int, position: int, stream: Stream = "target") -> float:
    """The random number in [0, 1) that belongs to one output position (Philox, counter-based: Salmon et al. 2011).

    The streams are independent: `target` for what the target draws, `draft` for what a drafter draws, `accept` for
    whether a drawn draft token is accepted. They are the upper half of the key, the seed is the lower.
    """
    return float(np.random.Generator(np.random.Philox(key=_STREAM_KEYS[stream] + seed, counter=position)).random())


class TokenCounts:
    """How often each token of one text occurs in its output, kept up to date token by token for the penalties."""

    def __init__(self, prompt_ids: Sequence[int], max_output: int) -> None:
        self._places: dict[int, int] = {}
        self._ids = np.zeros(len(prompt_ids) + max_output, dtype=np.int64)
        self._counts = np.zeros(len(prompt_ids) + max_output, dtype=np.float32)
        for token in prompt_ids:
            self._place_of(token)

    @property
    def token_ids(self) -> torch.Tensor:
        """Every token of prompt and output once [n]; valid until the next `add`."""
        return torch.from_numpy(self._ids[: len(self._places)])

    @property
    def num_in_output(self) -> torch.Tensor:
        """Occurrences in the output [n] float32, in the order of `token_ids`; valid until the next `add`."""
        return torch.from_numpy(self._counts[: len(self._places)])

    def add(self, token: int) -> None:
        """One more output token."""
        self._counts[self._place_of(token)] += 1

    def _place_of(self, token: int) -> int:
        place = self._places.setdefault(token, len(self._places))
        self._ids[place] = token
        return place


def adjusted_logits(
    logits: torch.Tensor,
    params: SamplingParams,
    *,
    token_ids: Sequence[int],
    num_output: int,
    stop_ids: frozenset[int],
    counts: TokenCounts | None,
) -> torch.Tensor:
    """Logits [V] after penalties, bias and bans, float32 and a copy, for the position after `token_ids`.

    The last `num_output` of `token_ids` are output. `counts` are those of the same text; only `params.has_penalties`
    needs them.
    """
    adjusted = logits.to(torch.float32, copy=True)
    if params.has_penalties and counts is not None:
        _apply_penalties(adjusted, params, counts)
    if params.logit_bias:
        biased = torch.tensor(list(params.logit_bias), dtype=torch.long, device=logits.device)
        weights = [_bounded(weight) for weight in params.logit_bias.values()]
        adjusted[biased] += torch.tensor(weights, dtype=torch.float32, device=logits.device)
    banned = _banned_ids(params, token_ids, num_output, stop_ids)
    if banned:
        adjusted[torch.tensor(banned, dtype=torch.long, device=logits.device)] = float("-inf")
    return adjusted


def _banned_ids(
    params: SamplingParams, token_ids: Sequence[int], num_output: int, stop_ids: frozenset[int]
) -> list[int]:
    banned = list(stop_ids) if num_output < params.min_tokens else []
    for word in params.bad_words:
        prefix_len = len(word) - 1
        if prefix_len == 0 or (
            num_output >= prefix_len and tuple(token_ids[len(token_ids) - prefix_len :]) == word[:-1]
        ):
            banned.append(word[-1])
    return banned


def _apply_penalties(logits: torch.Tensor, params: SamplingParams, counts: TokenCounts) -> None:
    seen = counts.token_ids.to(logits.device)
    values = logits[seen]
    if params.repetition_penalty != 1.0:
        factor = max(_bounded(params.repetition_penalty), _SMALLEST_SCALE)
        values = torch.where(values > 0, values / factor, values * factor)
    if params.presence_penalty or params.frequency_penalty:
        times = counts.num_in_output.to(logits.device)
        values = values - _bounded(params.presence_penalty) * (times > 0) - _bounded(params.frequency_penalty) * times
    logits[seen] = values


def _bounded(parameter: float) -> float:
    return min(max(parameter, -_LARGEST), _LARGEST)


def target_probs(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """The distribution [V] a random choice is drawn from: temperature, then top-k, top-p and min-p, renormalised.

    Raises NonFiniteLogitsError where the logits have no finite largest one.
    """
    kept, token_ids = _kept_probs(logits, params)
    kept = kept / kept.sum()
    if token_ids is None:
        return kept
    return torch.zeros_like(logits, dtype=torch.float32).scatter_(0, token_ids, kept)


def choose_token(logits: torch.Tensor, params: SamplingParams, position: int) -> int:
    """The target's token at output position `position` (0-based) from adjusted logits [V].

    Raises NonFiniteLogitsError where the logits have no finite largest one.
    """
    if params.is_greedy:
        token = int(logits.argmax())
        check_finite(float(logits[token]))
        return token
    kept, token_ids = _kept_probs(logits, params)
    index = draw_index(kept, uniform_at(params.seed, position))
    return index if token_ids is None else int(token_ids[index])


def check_finite(largest: float) -> None:
    """Raises NonFiniteLogitsError if the largest logit says that there is nothing to choose from."""
    if not math.isfinite(largest):
        raise NonFiniteLogitsError(f"the largest logit is {largest}: the model computed no finite logits")


def draw_index(weights: torch.Tensor, uniform: float) -> int:
    """Index drawn in proportion to `weights` [n] (none negative, not all 0) by the number `uniform` in [0, 1).

    Raises NonFiniteLogitsError if their sum is not positive and finite.
    """
    num_blocks = weights.shape[0] // _DRAW_BLOCK
    if num_blocks < 4:
        return _draw(weights, uniform)[0]
    sums = weights[: num_blocks * _DRAW_BLOCK].view(num_blocks, _DRAW_BLOCK).sum(dim=1)
    rest = weights[num_blocks * _DRAW_BLOCK :].sum().unsqueeze(0)
    block, uniform_in_block = _draw(torch.cat((sums, rest)), uniform)
    start = block * _DRAW_BLOCK
    return start + _draw(weights[start : start + _DRAW_BLOCK], uniform_in_block)[0]


def _draw(weights: torch.Tensor, uniform: float) -> tuple[int, float]:
    """The index drawn, and how far into its share of [0, 1) the number fell: again uniform, and unused so far."""
    cumulative = weights.cumsum(0, dtype=torch.float64)
    total = float(cumulative[-1])
    if not 0.0 < total < math.inf:
        raise NonFiniteLogitsError(f"the weights to draw from sum to {total}")
    point = min(uniform * total, math.nextafter(total, 0.0))  # below the total: an index of weight 0 is never drawn
    index = int(torch.searchsorted(cumulative, point, right=True))
    before = float(cumulative[index - 1]) if index else 0.0
    return index, (point - before) / float(weights[index])


def _kept_probs(logits: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weights of the tokens that survive truncation, and which tokens they are (None: all, in order).

    Few tokens survive top-k and min-p, and most often top-p: what comes after is done on those few.
    """
    scaled, token_ids = logits.float(), None
    if 0 < params.top_k < scaled.shape[0]:
        scaled, token_ids = torch.topk(scaled, params.top_k)
    largest = scaled.max()
    check_finite(float(largest))
    # Taking the largest off first: no temperature is too small, as long as float32 can tell it from 0.
    scaled = (scaled - largest).div_(max(params.temperature, _SMALLEST_SCALE))
    if params.top_p < 1.0:
        probs = torch.softmax(scaled, dim=-1)
        if token_ids is None:
            probs, token_ids = _largest_reaching(probs, params.top_p)
        # The smallest set of largest probabilities whose sum reaches top_p (Holtzman et al. 2020).
        is_kept = probs.cumsum(0) - probs < params.top_p
        if params.min_p > 0.0:
            is_kept &= probs >= params.min_p * probs[0]
        return torch.where(is_kept, probs, 0.0), token_ids
    if params.min_p > 0.0:
        places = (scaled >= math.log(params.min_p)).nonzero().squeeze(1)  # the largest of `scaled` is 0
        scaled, token_ids = scaled[places], places if token_ids is None else token_ids[places]
    return torch.softmax(scaled, dim=-1), token_ids


def _largest_reaching(probs: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Enough of the largest probabilities, in order, to reach `top_p`, and their indices.

    Those above any threshold are the largest ones; if they reach `top_p` the others are not needed. V tokens below
    (1 - top_p) / V have less than 1 - top_p together, so the second threshold always does.
    """
    for share in (_TOP_P_TAIL_SHARE, _TOP_P_TAIL_SHARE / 16, 1 / (2 * probs.shape[0])):
        indices = (probs >= (1.0 - top_p) * share).nonzero().squeeze(1)
        if float(probs[indices].sum()) >= top_p:
            break
    ordered, order = torch.sort(probs[indices], descending=True, stable=True)
    return ordered, indices[order]
