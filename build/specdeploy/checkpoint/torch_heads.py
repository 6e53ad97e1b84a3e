"""Which heads the torch lane can run: what its forward pass of a head does not know is refused, never skipped."""

from collections.abc import Iterator, Mapping

from specdeploy.checkpoint.hf_config import SUPPORTED_ARCHITECTURES
from specdeploy.checkpoint_contract import CheckpointInfo, HeadFacts

_EITHER = (False, True)
# Values of norm switches that the runtime follows, by generation; a switch that is not here must be off. The runtime
# keeps its own table (it imports nothing of this package); a test compares the two.
SUPPORTED_SWITCHES: Mapping[str, Mapping[str, tuple[bool, ...]]] = {
    "v1": {},
    "v3": {
        "norm_before_residual": _EITHER,
        "norm_before_fc": _EITHER,
        "fc_norm": _EITHER,
        "norm_output": _EITHER,
        "use_input_layernorm_in_first_layer": (True,),
        "use_last_layernorm": (True,),
        "use_mtp_layernorm": (False,),
    },
}
# Norm tensors that the runtime has a place for, and the switch that makes it look there.
_SWITCH_OF_NORM = {"input_norm": "norm_before_fc", "fc_norm": "fc_norm"}
_MODEL_TYPES = frozenset(name.removesuffix("ForCausalLM").lower() for name in SUPPORTED_ARCHITECTURES)


def head_refusals(info: CheckpointInfo, head: HeadFacts) -> list[str]:
    """Every reason why the torch lane cannot run a head; none = it can."""
    if head.generation == "medusa":
        return []
    return [*_layer_refusals(info, head), *_map_refusals(head), *_switch_refusals(head), *_norm_refusals(head)]


def _layer_refusals(info: CheckpointInfo, head: HeadFacts) -> Iterator[str]:
    if any(".kv_a_proj_with_mqa." in name for name in head.tensors):
        yield "the head's layers have multi-head latent attention, the runtime's group their queries"
    elif info.moe is not None:
        yield "the head's layers hold experts, the runtime's are dense"
    elif info.model_type is not None and info.model_type not in _MODEL_TYPES:
        yield f"the head's layers are of {info.model_type}; the runtime has those of {', '.join(sorted(_MODEL_TYPES))}"
    if "fc.weight" not in head.tensors:
        yield "the head reads the target's last state alone (use_aux_hidden_state: false), the runtime several of them"


def _map_refusals(head: HeadFacts) -> Iterator[str]:
    maps = [name for name, is_there in (("d2t", head.has_d2t), ("t2d", head.has_t2d)) if is_there]
    if head.generation == "v1" and maps:
        yield f"the head holds {' and '.join(maps)}, and the runtime trims no vocabulary of EAGLE-1 heads"


def _switch_refusals(head: HeadFacts) -> Iterator[str]:
    supported = SUPPORTED_SWITCHES[head.generation]
    for switch, value in head.norm_switches.items():
        if value not in supported.get(switch, (False,)):
            yield f"the head's {switch} is {str(value).lower()}, which the runtime does not do"
    if head.norm_switches.get("norm_before_fc") and head.norm_switches.get("fc_norm"):
        yield "the head's norm_before_fc and fc_norm are both on, which norms twice"


def _norm_refusals(head: HeadFacts) -> Iterator[str]:
    for name in head.norm_tensors:
        switch = _SWITCH_OF_NORM.get(name.split(".", 1)[0])
        if head.generation == "v1" or switch is None:
            yield f"the runtime has no place for the head's {name}"
        elif not head.norm_switches.get(switch):
            yield f"the head holds {name}, but its {switch} is not on"
