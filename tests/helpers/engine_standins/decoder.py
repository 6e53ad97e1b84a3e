"""How a stand-in engine chooses a token: the rules of TensorRT-LLM's decoding layers, written anew.

Nothing here is shared with the torch runtime's sampling, which has rules of its own: what a deployment gets from these
engines is measured against theirs. Upstream files are NVIDIA/TensorRT-LLM's at the commit named.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Decoder:
    """What the decoder of one decoding mode acts on (class DecodingMode, cpp/include/tensorrt_llm/executor/types.h
    @a98a9061). The rest of a request is passed over without a word, as there."""

    samples: bool = True
    penalises: bool = True
    bans_words: bool = True
    biases: bool = True
    holds_back: bool = True  # min_tokens
    has_log_probs: bool = True


# By trtllm-build's --speculative_decoding_mode.
DECODERS: Mapping[str | None, Decoder] = {
    None: Decoder(),
    "draft_tokens_external": Decoder(has_log_probs=False),
    "medusa": Decoder(samples=False, penalises=False, bans_words=False, has_log_probs=False),
    "lookahead_decoding": Decoder(samples=False, penalises=False, bans_words=False, has_log_probs=False),
    "eagle": Decoder(False, False, False, False, False, False),
    "explicit_draft_tokens": Decoder(False, False, False, False, False, False),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """The sampling tensors of one request, with the backend's defaults."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    end_id: int | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    bias: Array | None = None
    seed: int = 0


def adjusted(logits: Array, choice: Choice, decoder: Decoder, prompt: Sequence[int], output: Sequence[int]) -> Array:
    """Logits [V] as they come out of the layers before the choice, in their order: bias, temperature, the three
    penalties over prompt AND output (batchApplyPenalty in cpp/tensorrt_llm/kernels/penaltyKernels.cu@249d93d5), the end
    id that is held back, banned words."""
    values = np.array(logits, dtype=np.float64)
    if decoder.biases and choice.bias is not None:
        values += choice.bias
    if decoder.samples:
        values /= choice.temperature
    if decoder.penalises:
        for token, times in Counter([*prompt, *output]).items():
            value = values[token]
            value = value * choice.repetition_penalty if value < 0 else value / choice.repetition_penalty
            values[token] = value - choice.presence_penalty - choice.frequency_penalty * times
    if decoder.holds_back and choice.end_id is not None and len(output) < choice.min_tokens:
        values[choice.end_id] = -np.inf
    for word in choice.bad_words if decoder.bans_words else ():
        *before, last = word
        # Token 0 is never banned (cpp/tensorrt_llm/kernels/banBadWords.cu@23bc5b7c).
        if last != 0 and [*prompt, *output][len(prompt) + len(output) - len(before) :] == before:
            values[last] = -np.inf
    return values


def choose(values: Array, choice: Choice, decoder: Decoder, position: int) -> int:
    """The token at output position `position` of a call, from adjusted logits [V]."""
    if not decoder.samples or choice.top_k == 1 or (choice.top_k == 0 and choice.top_p == 0.0):
        return int(values.argmax())
    order = np.argsort(-values)[: choice.top_k or None]
    probs = np.exp(values[order] - values[order[0]])
    probs /= probs.sum()
    if 0.0 < choice.top_p < 1.0:
        probs = np.where(np.cumsum(probs) - probs < choice.top_p, probs, 0.0)
    random = np.random.default_rng([choice.seed, position])
    return int(random.choice(order, p=probs / probs.sum()))
