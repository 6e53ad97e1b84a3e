"""Parameters of a draft head by its config alone: what its file would hold, without tables it borrows from its target.

EAGLE-1    fc [H, 2H], layers; embedding and output layer are the target's
EAGLE-3    fc [H, A x T] of A states of the target's width T, a first layer that reads two states at once, further
           layers, an output layer of its own where its vocabulary is smaller
Medusa     per head: residual blocks [H, H] with their biases, an output layer [V, H]
"""

from specdeploy.checkpoint.model_facts import DecoderShape
from specdeploy.checkpoint_contract import HeadFacts

_NUM_AUX_LAYERS = 3  # of every published EAGLE-3 head


def count_head(head: HeadFacts, shape: DecoderShape) -> int | None:
    """Elements of all its matrices and norms; None where a size is missing. `shape` is of its decoder layers."""
    hidden = head.hidden_size
    if hidden is None:
        return None
    if head.generation == "medusa":
        if head.num_heads is None or head.target_vocab_size is None:
            return None
        blocks = (1 if head.num_layers is None else head.num_layers) * (hidden * hidden + hidden)
        return head.num_heads * (blocks + head.target_vocab_size * hidden)
    layer = _layer_elements(hidden, shape)
    if layer is None:
        return None
    layers = max(head.num_layers or 1, 1) * layer
    if head.generation == "v1":
        return 2 * hidden * hidden + layers
    return layers + _fusion_elements(head, hidden, shape)


def _layer_elements(hidden: int, shape: DecoderShape) -> int | None:
    """A decoder layer: attention, gated MLP, two norms."""
    heads, kv_heads, head_dim, inner = shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.intermediate_size
    if heads is None or kv_heads is None or head_dim is None or inner is None:
        return None
    return 2 * hidden * head_dim * (heads + kv_heads) + 3 * hidden * inner + 2 * hidden


def _fusion_elements(head: HeadFacts, hidden: int, shape: DecoderShape) -> int:
    """What EAGLE-3 has beside plain layers: fc, the wider first layer, two more norms, tables of its own."""
    target_hidden = head.target_hidden_size or hidden
    fc = hidden * (head.num_aux_layers or _NUM_AUX_LAYERS) * target_hidden
    wider = hidden * (shape.head_dim or 0) * ((shape.num_heads or 0) + 2 * (shape.num_kv_heads or 0))
    vocab, own_vocab = head.target_vocab_size or 0, head.draft_vocab_size
    lm_head = own_vocab * hidden if own_vocab is not None and own_vocab != vocab else 0
    embedding = vocab * hidden if target_hidden != hidden else 0
    return fc + wider + 2 * hidden + lm_head + embedding
