"""EAGLE-1 heads (Li et al. 2024, arXiv:2401.15077; EAGLE-2 has the same weights): the target's last state, one step on.

    hidden = fc([embedding ; feature])      then decoder layers, the first of which has no norm before its attention
    logits = target's lm_head(output)       the output stands for the target's state after its final norm

Read in SafeAILab/EAGLE eagle/model/cnets1.py (order of the concatenation, missing norms, lm_head on the raw output) and
vLLM's llama_eagle.py.
"""

from pathlib import Path

import torch

from specdeploy.errors import CheckpointError
from specdeploy.runtime.drafters.feature_head import FeatureHead, HeadStep
from specdeploy.runtime.head_files import open_head, take_embedding, take_lm_head
from specdeploy.runtime.linear import Linear
from specdeploy.runtime.model import FINAL_NORM, DecoderModel
from specdeploy.runtime.rotary import rotary_tables


class EagleHead(FeatureHead):
    """A canonical EAGLE-1 head beside its target."""

    hidden_layers = (FINAL_NORM,)
    target_ids: torch.Tensor | None = None

    def __init__(self, folder: Path, target: DecoderModel) -> None:
        """Raises CheckpointError for a head that is not whole, has switches this one lacks, or fits another target."""
        files = open_head(folder, "v1", dtype=target.dtype, device=target.device)
        files.refuse_switches({})
        hidden: int = files.config.hidden_size
        if hidden != target.config.hidden_size:
            raise CheckpointError(
                f"{folder}/config.json: hidden_size: {hidden}, the target's is {target.config.hidden_size}. "
                "Use the target that the head was trained for"
            )
        if files.facts.norm_tensors:
            # Producers disagree whether the second of these norms acts before or behind the layers.
            raise CheckpointError(
                f"{folder}: {files.facts.norm_tensors[0]}: EAGLE-1 heads with norms of their own are not supported. "
                "Use a head without them"
            )
        expected = {"fc.weight": (hidden, 2 * hidden), "fc.bias": (hidden,)}
        for index in range(files.num_layers):
            expected |= files.layer_shapes(index)
        files.check_shapes(expected)
        weights = files.weights
        max_positions = min(files.max_positions, target.max_seq_len)
        cos, sin = rotary_tables(files.config, files.shape.head_dim, max_positions, folder)
        embedding = take_embedding(files, target)
        super().__init__(shape=files.shape, num_layers=files.num_layers, embedding=embedding, cos=cos, sin=sin)
        self._fc = Linear(weights.take("fc.weight"), weights.take_optional("fc.bias"))
        self._layers = [
            weights.take_layer(f"layers.{index}", files.shape, has_input_norm=index > 0)
            for index in range(files.num_layers)
        ]
        self._lm_head = take_lm_head(files, target, embedding, None) or target.head
        weights.check_all_taken("an EAGLE-1 head")

    def logits(self, outputs: torch.Tensor) -> torch.Tensor:
        """Logits [P, V]."""
        return self._lm_head(outputs)

    def _run(self, embedded: torch.Tensor, features: torch.Tensor, step: HeadStep) -> torch.Tensor:
        return step.apply(self._layers, self._fc(torch.cat((embedded, features), dim=1)))
