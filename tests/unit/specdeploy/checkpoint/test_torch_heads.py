"""What `inspect` says the torch lane runs is what its runtime runs."""

from typing import Any

from specdeploy.checkpoint.hf_config import MTP_ARCHITECTURES, SUPPORTED_ARCHITECTURES
from specdeploy.checkpoint.lane_fit import PairShape, fit_lanes
from specdeploy.checkpoint.torch_heads import SUPPORTED_SWITCHES
from specdeploy.checkpoint_contract import (
    CheckpointInfo,
    CheckpointKind,
    HeadFacts,
    HeadLayout,
    MoeShape,
    TensorOrigin,
    VocabularySizes,
)
from specdeploy.contract import Lane, Method
from specdeploy.runtime.drafters import eagle3
from specdeploy.runtime.model import MTP_PREFIXES
from specdeploy.runtime.model import SUPPORTED_ARCHITECTURES as RUN

KINDS = {"v1": CheckpointKind.EAGLE, "v3": CheckpointKind.EAGLE3, "medusa": CheckpointKind.MEDUSA}


def test_both_tables_agree() -> None:
    assert SUPPORTED_SWITCHES["v3"] == eagle3._SWITCHES
    assert SUPPORTED_SWITCHES["v1"] == {}  # `EagleHead` refuses every switch that is on
    assert SUPPORTED_ARCHITECTURES == RUN
    assert tuple(MTP_PREFIXES) == MTP_ARCHITECTURES


def model(**facts: Any) -> CheckpointInfo:
    settings: dict[str, Any] = {"kind": CheckpointKind.CAUSAL_LM, "architecture": "LlamaForCausalLM", **facts}
    return CheckpointInfo(reference="m", folder="m", **settings)


def head(
    generation: str = "v3", *, model_type: str = "llama", moe: MoeShape | None = None, **facts: Any
) -> CheckpointInfo:
    settings: dict[str, Any] = {"tensors": {"fc.weight": TensorOrigin.IN_HEAD}, "generation": generation, **facts}
    return model(
        kind=KINDS[generation],
        architecture="LlamaForCausalLMEagle3",
        model_type=model_type,
        moe=moe,
        head=HeadFacts(layout=HeadLayout.SPECFORGE, **settings),
    )


def torch_says(target: CheckpointInfo, draft: CheckpointInfo | None, method: Method) -> str:
    """Yes, or why not."""
    (fit,) = [fit for fit in fit_lanes(PairShape(target, draft), method) if fit.lane is Lane.TORCH]
    return "yes" if fit.can_serve else fit.reason


def test_heads_that_run() -> None:
    followed: list[dict[str, bool]] = [{}, {"fc_norm": True, "norm_output": True}, {"use_last_layernorm": True}]
    for switches in followed:
        assert torch_says(model(), head(norm_switches=switches), Method.EAGLE3) == "yes"
    assert torch_says(model(), head("v1", norm_switches={"norm_output": False}), Method.EAGLE) == "yes"
    assert torch_says(model(), head("medusa", norm_switches={}), Method.MEDUSA) == "yes"
    assert torch_says(model(), head(), Method.AUTO) == "yes"


def test_heads_that_do_not() -> None:
    experts = MoeShape(num_experts=4, num_experts_per_token=1, num_moe_layers=1, num_dense_layers=0)
    latent = {"layers.0.self_attn.kv_a_proj_with_mqa.weight": TensorOrigin.IN_HEAD, "fc.weight": TensorOrigin.IN_HEAD}
    refused = {
        "use_mtp_layernorm is true": head(norm_switches={"use_mtp_layernorm": True}),
        "norm_output is true": head("v1", norm_switches={"norm_output": True}),
        "which norms twice": head(norm_switches={"fc_norm": True, "norm_before_fc": True}),
        "no place for the head's enorm.weight": head(norm_tensors=("enorm.weight",)),
        "holds fc_norm.0.weight, but its fc_norm is not on": head(norm_tensors=("fc_norm.0.weight",)),
        "multi-head latent attention": head(tensors=latent),
        "hold experts": head(moe=experts),
        "layers are of gpt_oss": head(model_type="gpt_oss"),
        "last state alone": head(tensors={}),
    }
    for reason, draft in refused.items():
        assert reason in torch_says(model(), draft, Method.EAGLE3), reason
    for name, draft in (("d2t", head("v1", has_d2t=True)), ("t2d", head("v1", has_t2d=True))):
        assert f"the head holds {name}" in torch_says(model(), draft, Method.EAGLE)
    assert torch_says(model(), head(has_d2t=True, has_t2d=True), Method.EAGLE3) == "yes"


def test_mtp_of_the_one_family_that_is_known() -> None:
    target = model(architecture="MiMoForCausalLM", num_mtp_layers=1)
    assert torch_says(target, None, Method.MTP) == "yes"
    assert "2 MTP layers" in torch_says(target.model_copy(update={"num_mtp_layers": 2}), None, Method.MTP)
    assert "holds no MTP module" in torch_says(model(), None, Method.MTP)
    assert "not of LlamaForCausalLM" in torch_says(model(num_mtp_layers=1), None, Method.MTP)


def test_what_borrows_from_its_target_is_for_the_torch_lane_alone() -> None:
    bare = model(parameters_from="headers", vocabulary=VocabularySizes(config_vocab_size=320))
    rows = {"lm_head.weight": TensorOrigin.BORROWED_FROM_TARGET, "fc.weight": TensorOrigin.IN_HEAD}
    reduced = head(tensors=rows, has_d2t=True, draft_vocab_size=100, target_vocab_size=320)
    for draft, method in ((bare, Method.DRAFT_MODEL), (reduced, Method.EAGLE3)):
        fits = fit_lanes(PairShape(model(), draft), method)
        assert [fit.lane for fit in fits if fit.can_serve] == [Lane.TORCH]
        assert all("no TensorRT-LLM version" in fit.reason for fit in fits if fit.lane is not Lane.TORCH)
