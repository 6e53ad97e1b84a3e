"""EAGLE-3 heads (Li et al. 2025, arXiv:2503.01840): states of several target layers, fused, predict tokens directly.

    feature   = fc([state_low ; state_middle ; state_high])           of a target position; in a draft the own output
    attended  = attention([input_layernorm(embedding) ; hidden_norm(feature)])
    hidden    = feature + attended, then the MLP; further layers are plain
    logits    = lm_head(norm(hidden));  output = hidden

Switches: `norm_before_residual` adds attention to the normed feature; `norm_before_fc` norms the states side by side,
`fc_norm` each by itself (EAGLE-3.1, arXiv:2605.09992); `norm_output` makes norm(hidden) the output. Read in
SafeAILab/EAGLE eagle/model/cnets.py, vLLM's llama_eagle3.py, and SpecForge's llama3_eagle.py.
"""

from pathlib import Path

import torch

from specdeploy.errors import CheckpointError
from specdeploy.runtime.drafters.feature_head import FeatureHead, HeadStep
from specdeploy.runtime.head_files import HeadFolder, open_head, take_embedding, take_lm_head
from specdeploy.runtime.linear import Linear
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.rotary import rotary_tables
from specdeploy.runtime.weights import CheckpointWeights

_EITHER = (False, True)
_SWITCHES = {
    "norm_before_residual": _EITHER,
    "norm_before_fc": _EITHER,
    "fc_norm": _EITHER,
    "norm_output": _EITHER,
    "use_input_layernorm_in_first_layer": (True,),
    "use_last_layernorm": (True,),
    "use_mtp_layernorm": (False,),
}


class Eagle3Head(FeatureHead):
    """A canonical EAGLE-3 head beside its target."""

    def __init__(self, folder: Path, target: DecoderModel) -> None:
        """Raises CheckpointError for a head that is not whole, has switches this one lacks, or fits another target."""
        files = open_head(folder, "v3", dtype=target.dtype, device=target.device)
        _check_supported(files)
        self.hidden_layers = _aux_layers(files, target)
        files.check_shapes(_expected_shapes(files, target, len(self.hidden_layers)))
        weights, switches = files.weights, files.facts.norm_switches
        max_positions = min(files.max_positions, target.max_seq_len)
        cos, sin = rotary_tables(files.config, files.shape.head_dim, max_positions, folder)
        embedding = take_embedding(files, target)
        super().__init__(shape=files.shape, num_layers=files.num_layers, embedding=embedding, cos=cos, sin=sin)
        self._norms_residual = switches.get("norm_before_residual", False)
        self._norms_output = switches.get("norm_output", False)
        self._states_norm = weights.take("input_norm.weight") if switches.get("norm_before_fc") else None
        self._state_norms = _state_norms(weights, len(self.hidden_layers)) if switches.get("fc_norm") else None
        self._fc = Linear(weights.take("fc.weight"), weights.take_optional("fc.bias"))
        self._embedding_norm = weights.take("layers.0.input_layernorm.weight")
        self._feature_norm = weights.take("layers.0.hidden_norm.weight")
        self._first = weights.take_layer("layers.0", files.shape, has_input_norm=False)
        self._others = [weights.take_layer(f"layers.{index}", files.shape) for index in range(1, files.num_layers)]
        self._final_norm = weights.take("norm.weight")
        self.target_ids = weights.take_target_ids(target.vocab_size)
        self._lm_head = take_lm_head(files, target, embedding, self.target_ids) or target.head
        weights.check_all_taken("an EAGLE-3 head")

    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        """states [n, A*H'] of the target, H' its hidden size, -> features [n, H]."""
        if self._states_norm is not None:
            states = self._norm(states, self._states_norm)
        if self._state_norms is not None:
            # One norm per layer's state: [n, A, H'] normed along H', then scaled by [A, H'].
            apart = states.unflatten(1, self._state_norms.shape)
            normed = torch.nn.functional.rms_norm(apart, (apart.shape[-1],), eps=self.shape.eps)
            states = (normed * self._state_norms).flatten(1)
        return self._fc(states)

    def logits(self, outputs: torch.Tensor) -> torch.Tensor:
        """Logits [P, n]."""
        return self._lm_head(outputs if self._norms_output else self._norm(outputs, self._final_norm))

    def _run(self, embedded: torch.Tensor, features: torch.Tensor, step: HeadStep) -> torch.Tensor:
        normed = self._norm(features, self._feature_norm)
        residual = normed if self._norms_residual else features
        both = torch.cat((self._norm(embedded, self._embedding_norm), normed), dim=1)  # [N, 2H]
        keys, values = step.cache.keys[0], step.cache.values[0]
        attended = self._first.attend(both, step.cos, step.sin, step.attention, keys, values)
        hidden = step.apply(self._others, self._first.finish(residual, attended), first=1)
        return self._norm(hidden, self._final_norm) if self._norms_output else hidden


def _check_supported(files: HeadFolder) -> None:
    files.refuse_switches(_SWITCHES)
    switches = files.facts.norm_switches
    if switches.get("norm_before_fc") and switches.get("fc_norm"):
        raise CheckpointError(
            f"{files.folder}/head.json: norm_switches: norm_before_fc and fc_norm are both on, which norms twice. "
            "A head was trained with one of them: correct its config.json"
        )
    if "fc.weight" not in files.weights:
        raise CheckpointError(
            f"{files.folder}: tensor fc.weight is missing: heads that read the target's last state alone "
            "(use_aux_hidden_state false) are not supported"
        )


def _aux_layers(files: HeadFolder, target: DecoderModel) -> tuple[int, ...]:
    """After how many layers of the target each state is read: those named, else low, middle and high as EAGLE does."""
    num_layers = target.num_layers
    named = files.facts.aux_states
    layers = (2, num_layers // 2, num_layers - 3) if named is None else named
    wrong = [layer for layer in layers if not 0 <= layer <= num_layers]
    if wrong:
        source = files.facts.aux_layer_ids_source or "no key names them, so the usual ones are taken"
        raise CheckpointError(
            f"{files.folder}/head.json: aux_layer_ids: {list(files.facts.aux_layer_ids or layers)} ({source}): states "
            f"after {', '.join(map(str, layers))} layers, but the target has {num_layers} layers. Use the target that "
            "the head was trained for"
        )
    return layers


def _expected_shapes(files: HeadFolder, target: DecoderModel, num_states: int) -> dict[str, tuple[int, ...]]:
    hidden, state = files.config.hidden_size, target.config.hidden_size
    expected = {
        "fc.weight": (hidden, num_states * state),
        "fc.bias": (hidden,),
        "input_norm.weight": (num_states * state,),
        "norm.weight": (hidden,),
        "layers.0.hidden_norm.weight": (hidden,),
    }
    expected |= {f"fc_norm.{index}.weight": (state,) for index in range(num_states)}
    for index in range(files.num_layers):
        expected |= files.layer_shapes(index, attention_inputs=1 if index else 2)
    return expected


def _state_norms(weights: CheckpointWeights, num_states: int) -> torch.Tensor:
    return torch.stack([weights.take(f"fc_norm.{index}.weight") for index in range(num_states)])  # [A, H']
