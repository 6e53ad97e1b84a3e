"""Which arms there are, and what each is started with."""

import os
from pathlib import Path

from arm_process import ArmSpec
from folders import Folders

OUR_METHODS = {
    "ours-plain": "plain",
    "ours-ngram": "ngram",
    "ours-suffix": "suffix",
    "ours-draft-model": "draft_model",
    "ours-eagle3": "eagle3",
    "ours-auto": "auto",
}
LOOKUP_ARMS = ("transformers-lookup-4", "transformers-lookup-10")
ASSISTANT_ARMS = ("transformers-assistant-4", "transformers-assistant-default")
NAMES = {
    **{arm: f"ours, {method}" for arm, method in OUR_METHODS.items()},
    "transformers-plain": "transformers",
    "transformers-lookup-4": "transformers, prompt_lookup_num_tokens=4",
    "transformers-lookup-10": "transformers, prompt_lookup_num_tokens=10",
    "transformers-assistant-4": "transformers, assistant_model, 4 tokens",
    "transformers-assistant-default": "transformers, assistant_model, default (20, stops below 0.4)",
    "vllm-plain": "vLLM",
    "vllm-ngram": "vLLM, ngram, K 4",
}


def arm_specs(
    folders: Folders, dtype: str, *, draft_len: int, model_draft_len: int, policy: str, max_rows: int
) -> dict[str, ArmSpec]:
    """Every arm that runs in this environment, by name. K of ours: `draft_len` where drafts cost nothing,
    `model_draft_len` where a model makes them; `policy` says whether it is always that."""
    depths = {"plain": 0, "ngram": draft_len, "suffix": draft_len}
    common = {"target": str(folders.target), "dtype": dtype, "max-rows": str(max_rows)}
    specs = {
        name: ArmSpec(
            name,
            "ours",
            {
                **common,
                "method": method,
                "draft-len": str(depths.get(method, model_draft_len)),
                "policy": policy,
                "draft-model": str(folders.draft_model),
                "eagle3": str(folders.eagle3),
            },
        )
        for name, method in OUR_METHODS.items()
    }
    theirs: dict[str, dict[str, str]] = {
        "transformers-plain": {},
        "transformers-lookup-4": {"prompt-lookup": "4"},
        "transformers-lookup-10": {"prompt-lookup": "10"},
        "transformers-assistant-4": {"assistant": str(folders.assistant), "draft-len": "4"},
        "transformers-assistant-default": {"assistant": str(folders.assistant)},
    }
    for name, options in theirs.items():
        specs[name] = ArmSpec(name, "transformers", {**common, **options})
    return specs


def vllm_specs(target: Path, python: Path, max_rows: int, cores: list[int]) -> dict[str, ArmSpec]:
    """vLLM's arms, run by the interpreter of its own environment, on the same cores as ours."""
    common = {"target": str(target), "dtype": "bfloat16", "max-rows": str(max_rows)}
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; 8 rows of this model need a fifth of it
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "PATH": f"{python.parent}:{os.environ.get('PATH', '')}",  # it compiles with the tools of its environment
    }
    options = {"vllm-plain": common, "vllm-ngram": {**common, "prompt-lookup": "4"}}
    return {name: ArmSpec(name, "vllm", opts, str(python), environment) for name, opts in options.items()}
