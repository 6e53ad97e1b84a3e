"""LLM arguments as the classes of an installed TensorRT-LLM want them, given its module of argument classes.

Up to 1.2.1 a class of `speculative_config` does not know its own `decoding_type`: a dictionary that names it must go
through the table lookup `DecodingBaseConfig.from_dict`, as trtllm-serve does before it makes an LLM
(tensorrt_llm/llmapi/llm_args.py, update_llm_args_with_extra_dict, stored blob 1090804222 of late 2025). From 1.3 on the
dictionary itself is accepted: `decoding_type` chooses the class. The other nested sections this project writes
(`kv_cache_config`) are taken as dictionaries by every version.
"""

from collections.abc import Mapping
from typing import Any


def class_arguments(arguments: Mapping[str, object], llm_args_module: Any) -> dict[str, Any]:
    """`arguments` for `LLM(**...)` or the class of its arguments; `llm_args_module` is tensorrt_llm.llmapi.llm_args.

    Raises what the package raises for a spelling or a field it does not accept (ValueError, pydantic's included).
    """
    converted: dict[str, Any] = dict(arguments)
    speculative = arguments.get("speculative_config")
    from_dict = getattr(llm_args_module.DecodingBaseConfig, "from_dict", None)
    if isinstance(speculative, Mapping) and from_dict is not None:
        converted["speculative_config"] = from_dict(dict(speculative))  # it removes decoding_type from what it is given
    return converted
