"""Arguments without which a version ignores or refuses how a request wants its tokens chosen.

    enable_mixed_sampler     up to 1.1: without it the PyTorch sampler does not look at the sampling of each request
        (tensorrt_llm/llmapi/llm_args.py, stored blob 1520735490). Its price is a loop over the requests of a step.
    allow_advanced_sampling  candidates of 1.3.0 before rc27: sampling on the one-model paths; later a no-op that warns.
        NVIDIA's own recipe for MTP on 1.3.0rc12 sets it.
    enable_penalty           from 1.3.0rc27 on: without it a one-model path refuses penalties. A prototype that maps
        linear drafts only, no trees (tensorrt_llm/_torch/speculative/utils.py, stored blob 57358327182), and no page
        says what it costs: it is set only where no plain instance could take such requests.

Per-request metrics need no argument here: `return_perf_metrics` of the LLM arguments only forces them on for every
request (SamplingParams has it since 1.0, and the server asks for it in each).
"""

from collections.abc import Mapping

from packaging.version import Version

from specdeploy.contract import Method
from specdeploy.trtllm.argument_draft import ArgumentDraft
from specdeploy.trtllm.columns import Field

AUTOMATIC_SAMPLING = Version("1.3.0rc27")  # drafting honours temperature, top_k and top_p by itself (PR 14745)
TORCH_SAMPLER_FEATURES = Version("1.3.0rc27")  # penalties, bad words, min_tokens; log probabilities of the raw logits
# Methods that draft inside the target's step, in every version.
ONE_MODEL_METHODS = frozenset({Method.EAGLE3, Method.MTP})


def samples_while_drafting(version: Version, speculative: Mapping[str, object]) -> bool:
    """Whether an instance with this `speculative_config` is known to honour temperature, top_k and top_p."""
    return version >= AUTOMATIC_SAMPLING or bool(speculative.get("allow_advanced_sampling"))


def put_plain_sampling(draft: ArgumentDraft, names: Mapping[str, Field]) -> None:
    """What the plain instance needs to sample; nothing where its version has no such switch."""
    if "enable_mixed_sampler" in names:
        draft.arguments["enable_mixed_sampler"] = True


def put_drafting_sampling(
    draft: ArgumentDraft, rendered: dict[str, object], method: Method, names: Mapping[str, Field], *, has_plain: bool
) -> None:
    """What `speculative_config` needs for sampled and penalised requests, and a note where the first are refused.

    `rendered` is the `speculative_config`, `names` what its class accepts; `has_plain`: a plain instance is beside.
    """
    is_one_model = method in ONE_MODEL_METHODS
    if is_one_model and draft.version < AUTOMATIC_SAMPLING and "allow_advanced_sampling" in names:
        rendered["allow_advanced_sampling"] = True
    if has_plain:
        return
    if is_one_model and draft.version >= TORCH_SAMPLER_FEATURES and "enable_penalty" in names:
        rendered["enable_penalty"] = True
    if not samples_while_drafting(draft.version, rendered):
        draft.notes.append(
            f"requests that sample (temperature above 0) are refused: TensorRT-LLM {draft.version} is not known to"
            f" sample while it drafts with {method}, and plain_instance: swap leaves no other instance. Send"
            f" temperature 0, or write plain_instance: beside, or version {AUTOMATIC_SAMPLING} or later"
        )
