"""The parts of a pass as lines of arithmetic: seconds, and the formula with its numbers filled in when it is asked."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from specdeploy.planner.moe import random_tokens
from specdeploy.planner.pass_cost import PassCost


class CostPart(NamedTuple):
    """Seconds of one part of a step: fixed, per cached token, and per token before the prompt tokens joining.

    `formula` gives the text of the fixed part of one pass; `passes` and `scale` say what it was multiplied by. It is a
    function because a simulation asks for the seconds of thousands of loads, and a reader for the text of a few.
    """

    subject: str
    fixed_s: float
    formula: Callable[[], str]
    kv_token_s: float = 0.0
    prefill_context_s: float = 0.0
    passes: int = 1
    scale: float = 1.0

    def repeated(self, passes: int) -> "CostPart":
        """The part of `passes` equal passes."""
        return self if passes == 1 else self._times(passes, self.passes * passes, self.scale)

    def scaled(self, factor: float) -> "CostPart":
        """The part, `factor` times as long."""
        return self if factor == 1 else self._times(factor, self.passes, self.scale * factor)

    def formula_with(self, kv_tokens: float) -> str:
        """The formula over `kv_tokens` cached tokens."""
        text = self.formula() if self.passes == 1 else f"{self.passes} x ({self.formula()})"
        if self.kv_token_s:
            text = f"{text} + {kv_tokens:g} cached tokens x {self.kv_token_s / self.scale * 1e9:.3g} ns"
        return text if self.scale == 1 else f"{self.scale:g} x ({text})"

    def _times(self, factor: float, passes: int, scale: float) -> "CostPart":
        kv_token_s, prefill_context_s = self.kv_token_s * factor, self.prefill_context_s * factor
        return CostPart(self.subject, self.fixed_s * factor, self.formula, kv_token_s, prefill_context_s, passes, scale)


@dataclass(slots=True)
class PassLoad:
    """What one pass reads: `tokens` with padding, `real_tokens` without, of `rows` decoding with `queries` together,
    and `prompt_tokens` of prompts. `kv_share` of all cached tokens belongs to these rows."""

    tokens: float
    real_tokens: float
    rows: float
    queries: float
    prompt_tokens: float = 0.0
    kv_share: float = 1.0


def model_parts(cost: PassCost, load: PassLoad, name: str) -> Iterator[CostPart]:
    """Layers of one pass: projections, feed-forward parts, attention, all-reduces."""
    if load.tokens <= 0:
        return
    yield _linear_part(cost, load, name)
    if cost.shape.num_moe_layers:
        yield _experts_part(cost, load, name)
    yield _attention_part(cost, load, name)
    if cost.num_gpus > 1:
        yield CostPart(
            f"{name}: all-reduce",
            cost.all_reduce_s(load.tokens),
            lambda: f"{2 * cost.shape.num_layers} all-reduces of {load.tokens:g} x {cost.shape.hidden_size} elements",
        )


def readout_part(cost: PassCost, hidden: int, lm_head_rows: int, tokens: float, name: str) -> CostPart:
    """The output layer over `tokens` tokens."""
    seconds = cost.linear_s(lm_head_rows, hidden, tokens) if tokens > 0 else 0.0
    return CostPart(
        f"{name}: output layer",
        seconds,
        lambda: f"{hidden} -> {lm_head_rows} for {tokens:g} tokens{_on_gpus(cost)}",
    )


def layer_part(cost: PassCost, features_out: int, features_in: int, tokens: float, subject: str) -> CostPart:
    """A layer outside the decoder layers over `tokens` tokens."""
    seconds = cost.linear_s(features_out, features_in, tokens) if tokens > 0 else 0.0
    return CostPart(subject, seconds, lambda: f"{features_in} -> {features_out} for {tokens:g} tokens{_on_gpus(cost)}")


def _linear_part(cost: PassCost, load: PassLoad, name: str) -> CostPart:
    projections, ffn = cost.dense_s(load.tokens)

    def formula() -> str:
        layers, dense = cost.shape.num_layers, cost.shape.num_dense_layers
        text = f"{layers} layers x {projections / layers * 1e6:.1f} us of attention projections"
        if dense:
            text += f" + {dense} x {ffn / dense * 1e6:.1f} us of feed-forward"
        return f"{text} at {load.tokens:g} tokens{_on_gpus(cost)}"

    return CostPart(f"{name}: linear layers", projections + ffn, formula)


def _experts_part(cost: PassCost, load: PassLoad, name: str) -> CostPart:
    routed = random_tokens(load.rows, load.queries / load.rows if load.rows else 0.0)
    routed += random_tokens(1, load.prompt_tokens)
    seconds = cost.experts_s(load.real_tokens, routed)

    def formula() -> str:
        moe, layers = cost.shape.moe, cost.shape.num_moe_layers
        num_experts = moe.num_experts if moe is not None else 0
        touched = f"{cost.num_touched(routed):.1f} of {num_experts} experts touched by {load.real_tokens:g} tokens"
        return f"{layers} layers x {seconds / layers * 1e6:.1f} us: {touched}{_on_gpus(cost)}"

    return CostPart(f"{name}: experts", seconds, formula)


def _attention_part(cost: PassCost, load: PassLoad, name: str) -> CostPart:
    fixed, token = cost.decode_attention(load.rows, load.queries / load.rows if load.rows else 0.0)
    prompt, context = cost.prompt_attention(load.prompt_tokens)

    def formula() -> str:
        layers = cost.shape.num_caching_layers
        text = f"{layers} layers x {fixed / layers * 1e6:.1f} us for {load.rows:g} rows"
        if prompt:
            text += f" + {layers} x {prompt / layers * 1e6:.1f} us for {load.prompt_tokens:g} prompt tokens"
        return text

    return CostPart(f"{name}: attention", fixed + prompt, formula, token * load.kv_share, context)


def _on_gpus(cost: PassCost) -> str:
    return f", split over {cost.num_gpus} GPUs" if cost.num_gpus > 1 else ""
