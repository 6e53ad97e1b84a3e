"""Flags, fields and tensors of TensorRT-LLM: the one door to what facts/*.json holds.

fact_files    -> the files, parsed
flags         -> flags of trtllm-build, convert_checkpoint.py, launch_triton_server.py
columns       -> fields of speculative_config and LlmArgs by version
triton_facts  -> tensors and parameters of the stock Triton models
"""

from specdeploy.trtllm.columns import (
    JULY_MAIN,
    LLM_ARGS_GROUPS,
    UNREAD_REMEDY,
    Column,
    Field,
    llm_args_column,
    llm_args_fields,
    pytorch_types,
    speculative_column,
    speculative_types,
    type_sources,
    unread_reason,
)
from specdeploy.trtllm.fact_files import (
    BUILD_FLAGS_FILE,
    LLM_ARGS_FILE,
    SPECULATIVE_FILE,
    TRITON_FILE,
    load_facts,
)
from specdeploy.trtllm.flags import (
    ConvertScript,
    Flag,
    build_flags,
    build_flags_notes,
    command_problems,
    convert_flags,
    launch_script_flags,
)
from specdeploy.trtllm.triton_facts import TritonModelFacts, TritonTensor, triton_model

__all__ = [
    "BUILD_FLAGS_FILE",
    "JULY_MAIN",
    "LLM_ARGS_FILE",
    "LLM_ARGS_GROUPS",
    "SPECULATIVE_FILE",
    "TRITON_FILE",
    "UNREAD_REMEDY",
    "Column",
    "ConvertScript",
    "Field",
    "Flag",
    "TritonModelFacts",
    "TritonTensor",
    "build_flags",
    "build_flags_notes",
    "command_problems",
    "convert_flags",
    "launch_script_flags",
    "llm_args_column",
    "llm_args_fields",
    "load_facts",
    "pytorch_types",
    "speculative_column",
    "speculative_types",
    "triton_model",
    "type_sources",
    "unread_reason",
]
