"""What a decoder would draft, by definition: the whole text is read again for every token."""

from collections.abc import Sequence

import torch

from specdeploy.runtime.attention import Span
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.request import SamplingParams
from specdeploy.runtime.sampling import draw_index, target_probs, uniform_at


def next_logits(model: DecoderModel, token_ids: Sequence[int], num_layers: int | None = None) -> torch.Tensor:
    """Logits [V] of the token after the text."""
    span = Span(0, len(token_ids), 0, 0)
    output = model.forward(token_ids, [span], [len(token_ids) - 1], model.new_cache(1), num_layers=num_layers)
    return output.logits[0]


def greedy(
    model: DecoderModel, token_ids: Sequence[int], num_tokens: int, num_layers: int | None = None
) -> tuple[int, ...]:
    """The most likely tokens, one after the other."""
    text = list(token_ids)
    for _ in range(num_tokens):
        text.append(int(next_logits(model, text, num_layers).argmax()))
    return tuple(text[len(token_ids) :])


def sampled(
    model: DecoderModel,
    token_ids: Sequence[int],
    num_tokens: int,
    sampling: SamplingParams,
    num_output: int,
    num_layers: int | None = None,
) -> tuple[tuple[int, ...], torch.Tensor]:
    """Tokens drawn with the random numbers of the stream `draft`, and the distributions [n, V] they came from."""
    text = list(token_ids)
    probs = []
    for offset in range(num_tokens):
        probs.append(target_probs(next_logits(model, text, num_layers), sampling))
        text.append(draw_index(probs[-1], uniform_at(sampling.seed, num_output + offset, "draft")))
    return tuple(text[len(token_ids) :]), torch.stack(probs)
