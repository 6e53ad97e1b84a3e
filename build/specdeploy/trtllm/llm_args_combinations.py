"""Keys of the LLM arguments that forbid or need each other, whatever each may be by itself."""

from collections.abc import Iterator, Mapping
from typing import TypeGuard

from packaging.version import Version

from specdeploy.contract import Method

_PARALLEL_KEYS = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "context_parallel_size",
    "moe_cluster_parallel_size",
    "moe_tensor_parallel_size",
    "moe_expert_parallel_size",
    "gpus_per_node",
)
# Spelled by nothing that this project renders, and as little with the overlap scheduler as n-grams.
_USER_TYPES = frozenset({"UserProvided", "User_Provided"})


def needs_plain_scheduler(method: Method, version: Version) -> bool:
    """Whether the overlap scheduler must be off: never with NGram; with a draft model known to work from 1.3.0rc27 on.

    TensorRT-LLM docs/source/features/feature-combination-matrix.md@01edceae; samples up to 1.2.1 switch it off.
    """
    return method is Method.NGRAM or (method is Method.DRAFT_MODEL and version < Version("1.3.0rc27"))


def guides_exclude_drafting(version: Version) -> bool:
    """Whether an instance that drafts must have no guided decoding: ValueError up to 1.0.

    TensorRT-LLM docs/source/release-notes.md@001eaece: the two go together from 1.1 on.
    """
    return version.release[:2] <= (1, 0)


def combination_problems(
    arguments: Mapping[str, object], version: Version, decoding_type: str, method: Method | None
) -> Iterator[str]:
    """Problems between keys; `decoding_type` '' = no drafting, `method` None = a type this project does not render."""
    for key in _PARALLEL_KEYS:
        value = arguments.get(key)
        if _is_number(value) and value < 1:
            yield f"{key}: {value} where a number of GPUs, 1 or more, is needed"
    graphs = arguments.get("cuda_graph_config")
    if isinstance(graphs, Mapping) and graphs.get("batch_sizes") and graphs.get("max_batch_size"):
        yield "cuda_graph_config: batch_sizes and max_batch_size exclude each other. Keep one of them"
    if decoding_type:
        yield from _drafting_problems(arguments, version, decoding_type, method)


def _drafting_problems(
    arguments: Mapping[str, object], version: Version, decoding_type: str, method: Method | None
) -> Iterator[str]:
    stages = arguments.get("pipeline_parallel_size")
    if _is_number(stages) and stages > 1:
        yield f"pipeline_parallel_size: {stages}: speculation does not run with pipeline parallelism. Write 1"
    is_guided = arguments.get("guided_decoding_backend") is not None
    if is_guided and guides_exclude_drafting(version):
        yield f"guided_decoding_backend: TensorRT-LLM {version} refuses it with speculation. Remove it"
    speculative = arguments.get("speculative_config")
    if isinstance(speculative, Mapping) and speculative.get("use_rejection_sampling"):
        if method is Method.NGRAM:
            yield f"speculative_config.use_rejection_sampling: {decoding_type} has no such sampling. Remove it"
        if is_guided:
            yield "speculative_config.use_rejection_sampling: it and guided_decoding_backend exclude each other"
    needs_off = decoding_type in _USER_TYPES or (method is not None and needs_plain_scheduler(method, version))
    if needs_off and arguments.get("disable_overlap_scheduler") is not True:
        name = f"{decoding_type} of TensorRT-LLM {version}"
        yield f"disable_overlap_scheduler: {name} does not run with the overlap scheduler. Write true"


def _is_number(value: object) -> TypeGuard[int]:
    """Other types are reported where values are compared with the types of their fields."""
    return isinstance(value, int) and not isinstance(value, bool)
