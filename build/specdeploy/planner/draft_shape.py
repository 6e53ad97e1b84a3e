"""What a drafter runs for each token it drafts, by method."""

from dataclasses import dataclass, replace

from specdeploy.checkpoint_contract import CheckpointInfo
from specdeploy.contract import Dtype, Method
from specdeploy.planner.model_shape import ModelShape, shape_of
from specdeploy.planner_contract import DraftForm

# Methods that copy their drafts from the text, or draft and verify in one pass of the target: no pass of their own.
LOOKUPS = frozenset({Method.NGRAM, Method.SUFFIX, Method.LOOKAHEAD})
# Heads on the target's states: their first pass reads all tokens that the step before verified.
_READS_VERIFIED = frozenset({Method.EAGLE, Method.EAGLE3, Method.MTP})


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear layer of `features_in` -> `features_out` that is not part of a decoder layer."""

    features_out: int
    features_in: int


@dataclass(frozen=True, slots=True)
class DraftShape:
    """One pass of a drafter: `linears`, the layers of `model` (None = none), the output layer of `lm_head_rows`.

    `form` chain: as many passes as the draft is deep, one after the other, a token of every row each. Block: one pass,
    all tokens at once. Lookup: none. `first_linears` run once, before the first pass. `reads_verified`: the first pass
    reads every token the last step verified. `reads_prompts`: it keeps a cache that prompts must fill.
    """

    method: Method
    form: DraftForm
    model: ModelShape | None
    hidden_size: int
    lm_head_rows: int
    linears: tuple[Linear, ...] = ()
    first_linears: tuple[Linear, ...] = ()
    reads_verified: bool = False
    reads_prompts: bool = False

    @property
    def num_layers(self) -> int:
        return 0 if self.model is None else self.model.num_layers

    def num_passes(self, depth: int) -> int:
        """Passes one after the other that draft `depth` tokens."""
        if depth <= 0 or self.form is DraftForm.LOOKUP:
            return 0
        return 1 if self.form is DraftForm.BLOCK else depth

    def with_lm_head_rows(self, rows: int) -> "DraftShape":
        """The same drafter with its output layer trimmed to `rows` tokens."""
        return replace(self, lm_head_rows=rows)


def draft_shape_of(
    method: Method,
    draft_info: CheckpointInfo | None,
    target: ModelShape,
    *,
    dtype: Dtype | None = None,
    exit_layer: int | None = None,
    form: DraftForm | None = None,
) -> DraftShape:
    """The drafter of `method` for `target`.

    `draft_info` of the draft's checkpoint where it has one; without it an EAGLE head has one layer like the target's.
    `exit_layer` of layer_skip. `form` BLOCK for a head that drafts all its tokens in one pass. Raises
    `CheckpointError` where a size is missing.
    """
    if method in LOOKUPS:
        return _shape(method, DraftForm.LOOKUP, None, target)
    if method is Method.LAYER_SKIP:
        layers = exit_layer or max(target.num_layers // 4, 1)
        return _shape(method, DraftForm.CHAIN, _first_layers(target, layers), target)
    if method is Method.MEDUSA:
        return _medusa(draft_info, target)
    if method is Method.REDRAFTER:
        square = Linear(target.hidden_size, target.hidden_size)
        return replace(_shape(method, DraftForm.CHAIN, None, target), linears=(square, square))
    if method is Method.MTP:
        merge = Linear(target.hidden_size, 2 * target.hidden_size)
        return _head(method, _one_layer(target), target, form, linears=(merge,))
    if method in (Method.EAGLE, Method.EAGLE3):
        return _eagle(method, draft_info, target, form)
    if draft_info is None:
        raise ValueError(f"method {method} has a draft checkpoint")
    if draft_info.head is not None:  # `auto` asks a head where the text does not repeat itself
        kind = {"v1": Method.EAGLE, "v3": Method.EAGLE3, "medusa": Method.MEDUSA}[draft_info.head.generation]
        return replace(draft_shape_of(kind, draft_info, target, form=form), method=method)
    model = shape_of(draft_info, dtype=dtype)
    own = _shape(method, form or DraftForm.CHAIN, model, model)
    return replace(own, reads_prompts=True)


def _shape(method: Method, form: DraftForm, model: ModelShape | None, reader: ModelShape) -> DraftShape:
    """A drafter whose states `reader`'s output layer reads."""
    return DraftShape(method, form, model, reader.hidden_size, reader.lm_head_rows)


def _head(
    method: Method, layer: ModelShape, target: ModelShape, form: DraftForm | None, linears: tuple[Linear, ...]
) -> DraftShape:
    shape = _shape(method, form or DraftForm.CHAIN, layer, target)
    return replace(shape, linears=linears, reads_verified=True, reads_prompts=True)


def _eagle(method: Method, info: CheckpointInfo | None, target: ModelShape, form: DraftForm | None) -> DraftShape:
    """EAGLE-1: fc reads token and state in every pass. EAGLE-3: fc fuses three states of the target once, and the
    first layer's attention reads token and state side by side (arXiv:2503.01840)."""
    head = info.head if info is not None else None
    layer = _eagle_layer(info, target)
    hidden = layer.hidden_size
    if method is Method.EAGLE:
        fused = Linear(hidden, (head.fc_in_features if head else None) or 2 * hidden)
        return _head(method, layer, target, form, linears=(fused,))
    num_aux = (head.num_aux_layers if head else None) or 3
    columns = (head.fc_in_features if head else None) or num_aux * target.hidden_size
    shape = _head(method, replace(layer, attention_input=2 * hidden), target, form, linears=())
    rows = (head.draft_vocab_size if head else None) or target.lm_head_rows
    return replace(shape, first_linears=(Linear(hidden, columns),), hidden_size=hidden, lm_head_rows=rows)


def _eagle_layer(info: CheckpointInfo | None, target: ModelShape) -> ModelShape:
    """The head's decoder layers; sizes that its files leave out are the target's."""
    plain = replace(_one_layer(target, is_dense=True), weights=target.lm_head, experts=target.lm_head)
    if info is None:
        return plain
    layers = info.num_layers or 1
    heads, head_dim = info.num_heads or plain.num_heads, info.head_dim or plain.head_dim
    kv_heads = info.num_kv_heads or info.num_heads or plain.num_kv_heads
    hidden = info.hidden_size or plain.hidden_size
    return replace(
        plain,
        num_layers=layers,
        hidden_size=hidden,
        attention_input=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        kv_elements_per_token=2 * layers * kv_heads * head_dim,
        intermediate_size=info.intermediate_size or plain.intermediate_size,
        latent_in=None,
    )


def _medusa(info: CheckpointInfo | None, target: ModelShape) -> DraftShape:
    """Heads side by side, each with residual blocks of hidden x hidden and an output layer of its own."""
    blocks = (info.head.num_layers if info is not None and info.head is not None else None) or 1
    square = Linear(target.hidden_size, target.hidden_size)
    return replace(_shape(Method.MEDUSA, DraftForm.BLOCK, None, target), linears=(square,) * blocks)


def _one_layer(target: ModelShape, *, is_dense: bool = False) -> ModelShape:
    """A decoder layer like the target's last: of a mixture a mixture, unless `is_dense`."""
    moe = target.moe
    if moe is not None:
        moe = None if is_dense else moe.model_copy(update={"num_moe_layers": 1, "num_dense_layers": 0})
    kv_elements = target.kv_elements_per_token // target.num_caching_layers
    return replace(target, num_layers=1, moe=moe, kv_elements_per_token=kv_elements)


def _first_layers(target: ModelShape, layers: int) -> ModelShape:
    """The target's first `layers` layers; of a mixture the dense ones come first."""
    moe = target.moe
    if moe is not None:
        dense = min(moe.num_dense_layers, layers)
        sparse = layers - dense
        moe = moe.model_copy(update={"num_moe_layers": sparse, "num_dense_layers": dense}) if sparse else None
    kv_elements = target.kv_elements_per_token * layers // target.num_layers
    return replace(target, num_layers=layers, moe=moe, kv_elements_per_token=kv_elements)
