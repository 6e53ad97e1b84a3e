"""Output tensors of `llm`, shape [1, n] each (max_batch_size 1). A count that was not measured is left out."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from specdeploy.runtime.request import RowUpdate
from specdeploy.serving.request import ServingRequest

Array = np.ndarray[Any, Any]


def message_tensors(
    text: str, token_ids: Sequence[int], log_probs: Sequence[float], request: ServingRequest
) -> dict[str, Array]:
    """What every message carries: the text and ids since the last one."""
    tensors = {
        "text_output": _strings(text),
        "output_ids": _int32(*token_ids),
        "batch_index": _int32(0),
        "sequence_index": _int32(0),
    }
    if request.wants_log_probs:
        tensors["output_log_probs"] = np.array([[list(log_probs)]], dtype=np.float32)
    return tensors


def final_tensors(
    update: RowUpdate,
    request: ServingRequest,
    *,
    num_output: int,
    cum_log_prob: float,
    off_reason: str,
    times_ns: tuple[int, int | None, int],
) -> dict[str, Array]:
    """What the last message adds: why it ended, and the counts over the whole request."""
    stats = update.stats
    tensors = {
        "finish_reason": _strings(update.finish_reason or ""),
        "input_token_count": _int32(len(request.prompt_ids)),
        "output_token_count": _int32(num_output),
        "speculation": _strings("on" if stats.was_allowed_to_draft else f"off:{stats.off_reason or off_reason}"),
        "speculation_stats": _strings(stats.source),
    }
    if stats.num_steps is not None:
        tensors["num_steps"] = _int32(stats.num_steps)
    if stats.is_available:
        tensors["total_draft_tokens"] = _int32(stats.num_draft_tokens)
        tensors["total_accepted_draft_tokens"] = _int32(stats.num_accepted_tokens)
    if stats.is_available and stats.num_draft_tokens:
        rate = stats.num_accepted_tokens / stats.num_draft_tokens
        tensors["acceptance_rate"] = np.array([[rate]], dtype=np.float32)
    if request.wants_log_probs:
        tensors["cum_log_probs"] = np.array([[cum_log_prob]], dtype=np.float32)
    if request.wants_perf_metrics:
        arrival, first_token, last_token = times_ns
        tensors["arrival_time_ns"] = _int64(arrival)
        tensors["last_token_time_ns"] = _int64(last_token)
        if first_token is not None:
            tensors["first_token_time_ns"] = _int64(first_token)
    if request.wants_input_count:
        tensors["num_input_tokens"] = _int32(len(request.prompt_ids))
    if request.wants_output_count:
        tensors["num_output_tokens"] = _int32(num_output)
    return tensors


def _strings(*values: str) -> Array:
    return np.array([[value.encode() for value in values]], dtype=object)


def _int32(*values: int) -> Array:
    return np.array([list(values)], dtype=np.int32)


def _int64(*values: int) -> Array:
    return np.array([list(values)], dtype=np.int64)
