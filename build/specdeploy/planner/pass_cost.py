"""Kernel time of one forward pass of one model on one GPU of its group, part by part, from tables or from peaks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from specdeploy.planner.kernel_tables import KernelTables, all_reduce_seconds
from specdeploy.planner.linear_table import LinearTimes, NarrowWeights, RooflineLinear, TokenSeconds
from specdeploy.planner.model_shape import BFLOAT16, ModelShape, WeightFormat
from specdeploy.planner.moe import experts_touched
from specdeploy.planner_contract import HardwareRecord, Precision

# Bytes that weights of a precision's own tables have.
_OWN_BYTES = {Precision.FLOAT32: 4.0, Precision.BFLOAT16: 2.0, Precision.FP8: 1.0, Precision.FP4: 0.5}
# Weights whose arithmetic a device lacks are widened as they are read and multiplied in bfloat16, as engines do
# (vLLM's Marlin kernels for fp8 and fp4 weights).
_NARROW = (Precision.FP4, Precision.FP8)
# Latent attention over a prompt: mean width of queries and values over that of a value (DeepSeek-V3: 192 and 128).
_EXPANDED_WIDTH = 1.25


@dataclass(frozen=True, slots=True)
class Device:
    """A device and its measured kernels."""

    record: HardwareRecord
    tables: KernelTables

    def peak_flops(self, precision: Precision) -> float:
        """Dense peak. Unstated for float32: half of bfloat16's (TF32)."""
        peaks = self.record.peak_flops
        if precision in peaks:
            return peaks[precision]
        return peaks[Precision.BFLOAT16] / (2 if precision is Precision.FLOAT32 else 1)

    def precision_of(self, weights: WeightFormat) -> Precision:
        """What weights of this format are multiplied in here."""
        is_missing = weights.precision in _NARROW and weights.precision not in self.record.peak_flops
        return Precision.BFLOAT16 if is_missing else weights.precision

    def reach_flops(self, precision: Precision) -> float:
        """FLOP/s that kernels which were not measured are taken to reach."""
        return self.peak_flops(precision) * self.record.compute_efficiency

    @property
    def reach_bandwidth(self) -> float:
        """Bytes/s that kernels which were not measured are taken to reach."""
        return self.record.bandwidth * self.record.memory_efficiency

    def linear(self, weights: WeightFormat) -> LinearTimes:
        """Times of linear layers with such weights."""
        precision = self.precision_of(weights)
        table = self.tables.linear.get(precision)
        if table is None:
            return RooflineLinear(weights.bytes_per_element, self.reach_bandwidth, self.reach_flops(precision))
        share = weights.bytes_per_element / _OWN_BYTES[precision]
        return NarrowWeights(table, share, table.tokens[-1]) if self._is_narrow(weights) else table

    def problem(self, weights: WeightFormat) -> str | None:
        """Why times of such weights are not from measured kernels; None where they are."""
        precision = self.precision_of(weights)
        if precision not in self.tables.linear:
            return f"kernels of {self.record.name} in {precision} were not measured: shares of its peaks are assumed"
        if self._is_narrow(weights):
            bits = round(8 * weights.bytes_per_element)
            return f"kernels of {self.record.name} for weights of {bits} bits in {precision} were not measured"
        return None

    def _is_narrow(self, weights: WeightFormat) -> bool:
        return weights.bytes_per_element < 0.9 * _OWN_BYTES[self.precision_of(weights)]


class PassCost:
    """Seconds of the parts of one pass of `shape`, its layers and heads shared by `num_gpus`.

    Tensor parallelism: every GPU holds n/g of the query, gate and output-layer rows and k/g of the columns that
    follow, then two all-reduces a layer. Fewer kv heads than GPUs are copied; a latent cache is whole on each.
    Norms, activations, sampling and the gathering of logits are not here: an engine's overheads contain them.
    """

    def __init__(self, shape: ModelShape, device: Device, num_gpus: int) -> None:
        self.shape = shape
        self.device = device
        self.num_gpus = num_gpus
        self._heads = -(-shape.num_heads // num_gpus)
        self._kv_heads = -(-shape.num_kv_heads // num_gpus)
        weights, self._experts = device.linear(shape.weights), device.linear(shape.experts)
        router = device.linear(BFLOAT16 if shape.weights.bytes_per_element < 2 else shape.weights)
        self._projections = [weights.layer(n, k) for n, k in self.attention_linears()]
        self._ffn = [weights.layer(n, k) for n, k in self.ffn_linears(shape.intermediate_size)]
        self._shared = [self._experts.layer(n, k) for n, k in self.ffn_linears(shape.shared_size)]
        self._router = router.layer(shape.moe.num_experts, shape.hidden_size) if shape.moe is not None else None
        outer = device.linear(shape.lm_head)
        self._outer_layer = cache(lambda n, k: cache(outer.layer(n, k)))
        attention = device.tables.attention.get(kv_precision(shape))
        self._attention_fit = attention.fit(self._heads, self._kv_heads) if attention is not None else None
        self._caching_layers = shape.num_caching_layers
        self._token_s = self._cached_token_s()
        self._query_s, self._prompt_s = self._query_seconds()
        # The loads of a simulation differ in far fewer tokens and rows than in all.
        self._dense_s, self._decode_s = cache(self._dense_seconds), cache(self._decode_seconds)

    def problem(self) -> str | None:
        """What of this pass was not measured on this device, in one line; None where everything was.

        The attention of a latent cache has no tables anywhere: it is left to calibrations.
        """
        shape, record, tables = self.shape, self.device.record, self.device.tables
        for weights in (shape.weights, shape.experts if shape.moe else shape.weights, shape.lm_head):
            if problem := self.device.problem(weights):
                return problem
        if shape.latent_in is None and kv_precision(shape) not in tables.attention:
            return f"attention of {record.name} over a cache in {kv_precision(shape)} was not measured"
        if self.num_gpus > 1:
            most = max(tables.all_reduce.lines) if tables.all_reduce is not None else 1
            if self.num_gpus > most:
                return f"all-reduces of {record.name} were measured for {most} GPUs at most, not for {self.num_gpus}"
        return None

    def ridge_tokens(self) -> float:
        """Tokens of a step at which multiplying the layers' weights takes as long as reading them, both at the peaks.

        Of a mixture all experts are read and a token multiplies few of them, so it has more tokens to go.
        """
        shape, device, moe = self.shape, self.device, self.shape.moe
        layers = [
            (shape.weights, self.attention_linears(), shape.num_layers, shape.num_layers),
            (shape.weights, self.ffn_linears(shape.intermediate_size), shape.num_dense_layers, shape.num_dense_layers),
        ]
        if moe is not None:
            read, used = moe.num_moe_layers * moe.num_experts, moe.num_moe_layers * moe.num_experts_per_token
            layers.append((shape.experts, self.ffn_linears(shape.expert_size), read, used))
            layers.append((shape.experts, self.ffn_linears(shape.shared_size), moe.num_moe_layers, moe.num_moe_layers))
        reading_s = multiplying_s = 0.0
        for weights, linears, num_read, num_used in layers:
            elements = sum(n * k for n, k in linears)
            reading_s += num_read * elements * weights.bytes_per_element / device.record.bandwidth
            multiplying_s += num_used * elements * 2 / device.peak_flops(device.precision_of(weights))
        return reading_s / multiplying_s

    def attention_linears(self) -> tuple[tuple[float, float], ...]:
        """(n, k) of one layer's projections on one GPU."""
        shape = self.shape
        inputs = shape.attention_input or shape.hidden_size
        if shape.latent_in is not None:
            first = shape.latent_in / self.num_gpus
        else:
            first = float((self._heads + 2 * self._kv_heads) * shape.head_dim)
        return (first, inputs), (shape.hidden_size, self._heads * shape.head_dim)

    def ffn_linears(self, inner: float) -> tuple[tuple[float, float], ...]:
        """(n, k) of one feed-forward part of inner width `inner`, on one GPU."""
        inner /= self.num_gpus
        return (2 * inner, self.shape.hidden_size), (self.shape.hidden_size, inner)

    def dense_s(self, tokens: float) -> tuple[float, float]:
        """Seconds of all layers' projections around attention, and of the feed-forward parts that are no mixtures."""
        return self._dense_s(tokens)

    def _dense_seconds(self, tokens: float) -> tuple[float, float]:
        num_layers, num_dense = self.shape.num_layers, self.shape.num_dense_layers
        return num_layers * _sum(self._projections, tokens), num_dense * (_sum(self._ffn, tokens) if num_dense else 0.0)

    def experts_s(self, tokens: float, random_tokens: float) -> float:
        """Routers, routed and shared experts of the mixture layers.

        The experts touched are one wide layer: their weights are read once, and each multiplies its part of `tokens`.
        `random_tokens` touch as many experts, routed on their own (`moe.random_tokens`).
        """
        moe, shape = self.shape.moe, self.shape
        if moe is None or self._router is None or not moe.num_moe_layers or tokens <= 0:
            return 0.0
        touched = self.num_touched(random_tokens)
        tokens_each = tokens * moe.num_experts_per_token / touched
        (wide_n, wide_k), (down_n, down_k) = self.ffn_linears(shape.expert_size)
        layer = self._experts.seconds(touched * wide_n, wide_k, tokens_each)
        layer += self._experts.seconds(touched * down_n, down_k, tokens_each)
        layer += self._router(tokens) + (_sum(self._shared, tokens) if shape.shared_size else 0.0)
        return moe.num_moe_layers * layer

    def num_touched(self, random_tokens: float) -> float:
        """Experts of one layer that a step touches."""
        moe = self.shape.moe
        return 0.0 if moe is None else experts_touched(moe.num_experts, moe.num_experts_per_token, random_tokens)

    def all_reduce_s(self, tokens: float) -> float:
        """Two all-reduces a layer."""
        record, elements = self.device.record, tokens * self.shape.hidden_size
        one = all_reduce_seconds(self.device.tables, record.link_bandwidth, self.num_gpus, elements)
        return 2 * self.shape.num_layers * one

    def linear_s(self, features_out: float, features_in: float, tokens: float) -> float:
        """A layer of its own (16 bit), split by outputs."""
        return self._outer_layer(features_out / self.num_gpus, features_in)(tokens)

    def decode_attention(self, rows: float, queries: float) -> tuple[float, float]:
        """Seconds fixed, and per token cached by all rows: the cache is read once whatever `queries` a row has,
        unless their products take longer."""
        return self._decode_s(rows, queries) if rows > 0 else (0.0, 0.0)

    def _decode_seconds(self, rows: float, queries: float) -> tuple[float, float]:
        layers = self._caching_layers
        fixed = self._attention_fit.fixed(rows) if self._attention_fit is not None else 0.0
        return layers * fixed, layers * max(self._token_s, queries * self._query_s)

    def prompt_attention(self, tokens: float) -> tuple[float, float]:
        """Seconds of `tokens` prompt tokens among themselves (causal), and per token that lies before them."""
        if tokens <= 0:
            return 0.0, 0.0
        layers, products = self._caching_layers, tokens * self._prompt_s
        return layers * products * tokens / 2, layers * max(self._token_s, products)

    def _cached_token_s(self) -> float:
        """Seconds to read one cached token in one layer."""
        shape, table = self.shape, self.device.tables.attention.get(kv_precision(self.shape))
        if table is not None and shape.latent_in is None:
            return table.token_s(self._heads, self._kv_heads, shape.head_dim)
        elements = 2 * self._kv_heads * shape.head_dim
        if shape.latent_in is not None:
            elements = shape.kv_elements_per_token // shape.num_layers
        return elements * shape.kv_element_bytes / self.device.reach_bandwidth

    def _query_seconds(self) -> tuple[float, float]:
        """Seconds of the products of one query with one cached token in one layer, when decoding and in a prompt: 4
        FLOP per element of every head. With a latent cache a decoding head multiplies the whole latent, while prompts
        expand it into keys and values once."""
        width = prompt_width = float(self.shape.head_dim)
        if self.shape.latent_in is not None:
            width = self.shape.kv_elements_per_token // self.shape.num_layers
            prompt_width *= _EXPANDED_WIDTH
        one = 4 * self._heads / self.device.reach_flops(Precision.BFLOAT16)
        return one * width, one * prompt_width


def _sum(layers: Sequence[TokenSeconds], tokens: float) -> float:
    seconds = 0.0
    for layer in layers:
        seconds += layer(tokens)
    return seconds


def kv_precision(shape: ModelShape) -> Precision:
    """Whose attention kernels read the cache of `shape`."""
    return Precision.FP8 if shape.kv_element_bytes <= 1 else Precision.BFLOAT16
