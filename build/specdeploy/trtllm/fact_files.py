"""The four files in facts/, each parsed once (facts/README.md says what they are and where they come from)."""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

BUILD_FLAGS_FILE = "trtllm_build_flags.json"
LLM_ARGS_FILE = "llm_args.json"
SPECULATIVE_FILE = "speculative_config.json"
TRITON_FILE = "triton_tensorrt_llm_config.json"


@cache
def load_facts(file_name: str) -> Mapping[str, Any]:
    """One of the four files; callers must not change what is inside."""
    text = resources.files("specdeploy.trtllm").joinpath("facts", file_name).read_text(encoding="utf-8")
    facts: dict[str, Any] = json.loads(text)
    return MappingProxyType(facts)
