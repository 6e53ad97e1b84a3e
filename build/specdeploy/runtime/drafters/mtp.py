"""Multi-token prediction layers that a target brings along: those of MiMo (arXiv:2505.07608), `model.mtp_layers.0.*`.

    hidden = input_proj([hidden_layernorm(feature) ; token_layernorm(embedding)]), then one decoder layer
    output = final_layernorm(hidden);  logits = target's lm_head(output)

The feature is the target's state before its final norm, in a draft the layer's own output: there is one layer, and
deeper drafts use it again. Read in MiMo's modeling_mimo.py (order of the concatenation, norms) and vLLM's mimo.py and
mimo_mtp.py (which state it reads).
"""

from pathlib import Path

import torch

from specdeploy.errors import CheckpointError
from specdeploy.runtime.decoder_layer import LayerShape
from specdeploy.runtime.drafters.feature_head import FeatureHead, HeadStep
from specdeploy.runtime.model import MTP_PREFIXES, DecoderModel
from specdeploy.runtime.rotary import rotary_tables
from specdeploy.runtime.weights import CheckpointWeights


class MtpHead(FeatureHead):
    """The MTP layer in the target's own checkpoint folder."""

    target_ids: torch.Tensor | None = None

    def __init__(self, target_folder: Path, target: DecoderModel) -> None:
        """Raises CheckpointError for a target without MTP layers of this kind, or with more than one."""
        config = target.config
        prefix = MTP_PREFIXES.get(config.architectures[0])
        if prefix is None:
            raise CheckpointError(
                f"{target_folder}/config.json: architectures: {config.architectures[0]} has no MTP layers that are "
                f"known here; {', '.join(MTP_PREFIXES)} has. Choose another speculation.method"
            )
        weights = CheckpointWeights(target_folder, dtype=target.dtype, device=target.device, prefix=prefix)
        shape = LayerShape(target.num_heads, target.num_kv_heads, target.head_dim, config.rms_norm_eps)
        cos, sin = rotary_tables(config, target.head_dim, target.max_seq_len, target_folder)
        super().__init__(shape=shape, num_layers=1, embedding=target.embedding, cos=cos, sin=sin)
        self.hidden_layers = (target.num_layers,)
        self._target = target
        base = f"{prefix}0"
        self._token_norm = weights.take(f"{base}.token_layernorm.weight")
        self._feature_norm = weights.take(f"{base}.hidden_layernorm.weight")
        self._input = weights.take_linear(base, ("input_proj",))
        self._layer = weights.take_layer(base, shape)
        self._final_norm = weights.take(f"{base}.final_layernorm.weight")
        weights.check_all_taken("one MTP layer")

    def logits(self, outputs: torch.Tensor) -> torch.Tensor:
        """Logits [P, V]."""
        return self._target.head(outputs)

    def _run(self, embedded: torch.Tensor, features: torch.Tensor, step: HeadStep) -> torch.Tensor:
        both = torch.cat((self._norm(features, self._feature_norm), self._norm(embedded, self._token_norm)), dim=1)
        return self._norm(step.apply((self._layer,), self._input(both)), self._final_norm)
