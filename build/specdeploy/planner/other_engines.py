"""The plan in the words of vLLM and SGLang, for the commits of their main branches that were read.

vLLM (github.com/vllm-project/vllm): names of methods, `model`, `num_speculative_tokens` (at least 1),
`prompt_lookup_min`, `prompt_lookup_max` and `num_speculative_tokens_per_batch_size`, a list of [first, last, K], are
fields of `SpeculativeConfig` in vllm/config/speculative.py at 002e77c1. The ranges begin at 1, never overlap, and K may
be 0 (vllm/v1/spec_decode/dynamic/utils.py at 14b450ca). It was tested with EAGLE, EAGLE-3 and DFlash, and data
parallelism switches it off (docs/features/speculative_decoding/dynamic_speculative_decoding.md at 015a47e1).

SGLang (github.com/sgl-project/sglang): algorithms and flags as in docs/advanced_features/speculative_decoding.md at
067ad4d3; with a chain (`--speculative-eagle-topk 1`) the draft tokens are num_steps + 1, the token that is verified
anyway included. With n-grams the verified positions of a row are exactly the draft tokens
(python/sglang/srt/speculative/ngram_worker.py at 0037c142). K by batch size is a file of `candidate_steps` by first
batch size, for EAGLE and EAGLE3 with chains; its page wants positive numbers
(docs_new/docs/advanced_features/adaptive_speculative_decoding.mdx at 32c764af). Later code takes 0 as well
(python/sglang/srt/speculative/adaptive_spec_params.py at 015c8726), which older servers refuse: it is not written.
"""

import json
from collections.abc import Mapping, Sequence

from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import DraftLenRange, Method, SegmentPlan
from specdeploy.planner_contract import EmittedSchedule

VLLM_VERSION = "main at 002e77c1"
SGLANG_VERSION = "main at 067ad4d3"

_VLLM_METHODS: Mapping[Method, str] = {
    Method.EAGLE: "eagle",
    Method.EAGLE3: "eagle3",
    Method.MTP: "mtp",
    Method.NGRAM: "ngram",
    Method.DRAFT_MODEL: "draft_model",
    Method.MEDUSA: "medusa",
    Method.SUFFIX: "suffix",
}
_VLLM_SCHEDULED = (Method.EAGLE, Method.EAGLE3)
_SGLANG_ALGORITHMS: Mapping[Method, str] = {
    Method.EAGLE: "EAGLE",
    Method.EAGLE3: "EAGLE3",
    Method.MTP: "EAGLE",
    Method.NGRAM: "NGRAM",
    Method.DRAFT_MODEL: "STANDALONE",
}
_SGLANG_SCHEDULED = (Method.EAGLE, Method.EAGLE3)


def emit_vllm(
    config: DeploymentConfig, plan: SegmentPlan, expected_concurrency: int, lost: tuple[str, ...]
) -> EmittedSchedule | None:
    """`--speculative-config`; None for a method that vLLM does not have."""
    method = config.speculation.method
    if method not in _VLLM_METHODS:
        return None
    losses = list(lost)
    most = max(entry.draft_len for entry in plan.ranges)
    if most == 0:
        text = "# no --speculative-config: the plan drafts at no load\n"
        return EmittedSchedule(dialect="vllm", version=VLLM_VERSION, text=text, lost=lost)
    values: dict[str, object] = {"method": _VLLM_METHODS[method]}
    if config.speculation.draft is not None:
        values["model"] = config.speculation.draft.checkpoint
    if method is Method.NGRAM:
        values["prompt_lookup_min"] = config.speculation.ngram.min_matching_ngram_size
        values["prompt_lookup_max"] = config.speculation.ngram.max_matching_ngram_size
    values["num_speculative_tokens"] = most
    bounded = _bounded(plan.ranges, config.serving.max_rows)
    if len({entry.draft_len for entry in plan.ranges}) > 1:
        if method in _VLLM_SCHEDULED:
            values["num_speculative_tokens_per_batch_size"] = bounded
        else:
            values["num_speculative_tokens"] = _at(
                plan, expected_concurrency, most, losses, "its schedule is tested with EAGLE only"
            )
    text = f"--speculative-config '{json.dumps(values)}'\n"
    return EmittedSchedule(dialect="vllm", version=VLLM_VERSION, text=text, lost=tuple(losses))


def emit_sglang(
    config: DeploymentConfig, plan: SegmentPlan, expected_concurrency: int, lost: tuple[str, ...]
) -> EmittedSchedule | None:
    """Flags of its server, and the file of `--speculative-adaptive-config`; None for a method it does not have."""
    method = config.speculation.method
    if method not in _SGLANG_ALGORITHMS:
        return None
    losses = list(lost)
    most = max(entry.draft_len for entry in plan.ranges)
    if most == 0:
        text = "# no --speculative-algorithm: the plan drafts at no load\n"
        return EmittedSchedule(dialect="sglang", version=SGLANG_VERSION, text=text, lost=lost)
    is_scheduled = method in _SGLANG_SCHEDULED and len({entry.draft_len for entry in plan.ranges}) > 1
    draft_len = most
    if not is_scheduled and len({entry.draft_len for entry in plan.ranges}) > 1:
        draft_len = _at(plan, expected_concurrency, most, losses, "K by batch size exists for EAGLE and EAGLE3 only")
    flags = [f"--speculative-algorithm {_SGLANG_ALGORITHMS[method]}"]
    if config.speculation.draft is not None:
        flags.append(f"--speculative-draft-model-path {config.speculation.draft.checkpoint}")
    if method is not Method.NGRAM:
        flags += [f"--speculative-num-steps {draft_len}", "--speculative-eagle-topk 1"]
    flags.append(f"--speculative-num-draft-tokens {draft_len + 1}")
    text = " \\\n  ".join(flags)
    if is_scheduled:
        slots = ",\n".join(
            f'  "{entry.min_in_flight}": {{"candidate_steps": [{max(1, entry.draft_len)}]}}' for entry in plan.ranges
        )
        text += " \\\n  --speculative-adaptive --speculative-adaptive-config adaptive_spec.json"
        text += f"\n# adaptive_spec.json:\n{{\n{slots}\n}}"
        losses += [
            f"off from {entry.min_in_flight} at once on: it drafts at least 1 token"
            for entry in plan.ranges
            if entry.draft_len == 0
        ]
    return EmittedSchedule(dialect="sglang", version=SGLANG_VERSION, text=text + "\n", lost=tuple(losses))


def _at(plan: SegmentPlan, concurrency: int, most: int, losses: list[str], cause: str) -> int:
    """The K of the expected load where only one can be said; at least 1, because 0 would be no speculation at all."""
    draft_len = plan.draft_len(concurrency) or most
    losses.append(f"K by load: {draft_len} at every load, as planned for {concurrency} at once ({cause})")
    return draft_len


def _bounded(ranges: Sequence[DraftLenRange], max_rows: int) -> list[list[int]]:
    """[first, last, K] up to `max_rows`: more are never in one batch."""
    return [
        [entry.min_in_flight, min(max_rows, entry.max_in_flight or max_rows), entry.draft_len]
        for entry in ranges
        if entry.min_in_flight <= max_rows
    ]
