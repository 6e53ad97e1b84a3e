"""The tensors of the public Triton model `llm`, the same in every lane.

Stock tensors are those of TensorRT-LLM's `tensorrt_llm_bls`, a superset of `ensemble`'s, with their names, types and
shapes (without the batch dimension); `stock_tensors.json` holds the facts they are tested against. Inputs that no lane
supports (images, LoRA, prompt tables) are declared as well: a request that uses one then reaches the model, which
refuses it by name, where Triton would only say that it got an unexpected input.
"""

from dataclasses import dataclass
from enum import StrEnum


class DataType(StrEnum):
    """Triton's data types, as `TYPE_<value>` in a config.pbtxt."""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    INT32 = "INT32"
    INT64 = "INT64"
    UINT64 = "UINT64"
    FP16 = "FP16"
    FP32 = "FP32"
    STRING = "STRING"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output. `dims` are per request, -1 = any; `reshape_to_scalar` hides them from the model.

    `allow_ragged_batch`: requests of different lengths may join one batch without padding (C++ backend only).
    """

    name: str
    data_type: DataType
    dims: tuple[int, ...]
    optional: bool = False
    reshape_to_scalar: bool = False
    allow_ragged_batch: bool = False


STOCK_INPUTS: tuple[Tensor, ...] = (
    Tensor("text_input", DataType.STRING, (1,)),
    Tensor("decoder_text_input", DataType.STRING, (1,), optional=True),
    Tensor("image_input", DataType.FP16, (-1, 3, -1, -1), optional=True),
    Tensor("image_bytes_input", DataType.UINT8, (-1, -1, -1, -1), optional=True),
    Tensor("image_url_input", DataType.STRING, (1,), optional=True),
    Tensor("video_bytes_input", DataType.UINT8, (-1, -1, -1, -1), optional=True),
    Tensor("max_tokens", DataType.INT32, (1,)),
    Tensor("bad_words", DataType.STRING, (-1,), optional=True),
    Tensor("stop_words", DataType.STRING, (-1,), optional=True),
    Tensor("exclude_input_in_output", DataType.BOOL, (1,), optional=True),
    Tensor("end_id", DataType.INT32, (1,), optional=True),
    Tensor("pad_id", DataType.INT32, (1,), optional=True),
    Tensor("top_k", DataType.INT32, (1,), optional=True),
    Tensor("top_p", DataType.FP32, (1,), optional=True),
    Tensor("temperature", DataType.FP32, (1,), optional=True),
    Tensor("length_penalty", DataType.FP32, (1,), optional=True),
    Tensor("repetition_penalty", DataType.FP32, (1,), optional=True),
    Tensor("min_tokens", DataType.INT32, (1,), optional=True),
    Tensor("presence_penalty", DataType.FP32, (1,), optional=True),
    Tensor("frequency_penalty", DataType.FP32, (1,), optional=True),
    Tensor("seed", DataType.UINT64, (1,), optional=True),
    Tensor("return_log_probs", DataType.BOOL, (1,), optional=True, reshape_to_scalar=True),
    Tensor("return_context_logits", DataType.BOOL, (1,), optional=True, reshape_to_scalar=True),
    Tensor("return_generation_logits", DataType.BOOL, (1,), optional=True, reshape_to_scalar=True),
    Tensor("num_return_sequences", DataType.INT32, (1,), optional=True, reshape_to_scalar=True),
    Tensor("beam_width", DataType.INT32, (1,), optional=True),
    Tensor("stream", DataType.BOOL, (1,), optional=True),
    Tensor("prompt_embedding_table", DataType.FP16, (-1, -1), optional=True),
    Tensor("prompt_vocab_size", DataType.INT32, (1,), optional=True),
    Tensor("prompt_table_extra_id", DataType.UINT64, (1,), optional=True),
    Tensor("embedding_bias_words", DataType.STRING, (-1,), optional=True),
    Tensor("embedding_bias_weights", DataType.FP32, (-1,), optional=True),
    Tensor("num_draft_tokens", DataType.INT32, (1,), optional=True),
    Tensor("use_draft_logits", DataType.BOOL, (1,), optional=True, reshape_to_scalar=True),
    Tensor("lora_task_id", DataType.UINT64, (1,), optional=True, reshape_to_scalar=True),
    Tensor("lora_weights", DataType.FP16, (-1, -1), optional=True),
    Tensor("lora_config", DataType.INT32, (-1, 3), optional=True),
    Tensor("return_perf_metrics", DataType.BOOL, (1,), optional=True, reshape_to_scalar=True),
    Tensor("guided_decoding_guide_type", DataType.STRING, (1,), optional=True),
    Tensor("guided_decoding_guide", DataType.STRING, (1,), optional=True),
    Tensor("image_sizes_input", DataType.INT64, (-1, 2), optional=True),
    Tensor("return_num_input_tokens", DataType.BOOL, (1,), optional=True, reshape_to_scalar=True),
    Tensor("return_num_output_tokens", DataType.BOOL, (1,), optional=True, reshape_to_scalar=True),
)

OWN_INPUTS: tuple[Tensor, ...] = (
    Tensor("ignore_eos", DataType.BOOL, (1,), optional=True),
    Tensor("min_p", DataType.FP32, (1,), optional=True),
    Tensor("segment", DataType.STRING, (1,), optional=True),  # traffic label; an unknown one counts as `other`
)

STOCK_OUTPUTS: tuple[Tensor, ...] = (
    Tensor("text_output", DataType.STRING, (-1,)),
    Tensor("cum_log_probs", DataType.FP32, (-1,)),
    Tensor("output_log_probs", DataType.FP32, (-1, -1)),
    Tensor("context_logits", DataType.FP32, (-1, -1)),
    Tensor("generation_logits", DataType.FP32, (-1, -1, -1)),
    Tensor("batch_index", DataType.INT32, (1,)),
    Tensor("sequence_index", DataType.INT32, (1,)),
    Tensor("kv_cache_alloc_new_blocks", DataType.INT32, (1,)),
    Tensor("kv_cache_reused_blocks", DataType.INT32, (1,)),
    Tensor("kv_cache_alloc_total_blocks", DataType.INT32, (1,)),
    Tensor("arrival_time_ns", DataType.INT64, (1,)),
    Tensor("first_scheduled_time_ns", DataType.INT64, (1,)),
    Tensor("first_token_time_ns", DataType.INT64, (1,)),
    Tensor("last_token_time_ns", DataType.INT64, (1,)),
    Tensor("acceptance_rate", DataType.FP32, (1,)),
    Tensor("total_accepted_draft_tokens", DataType.INT32, (1,)),
    Tensor("total_draft_tokens", DataType.INT32, (1,)),
    Tensor("num_input_tokens", DataType.INT32, (1,)),
    Tensor("num_output_tokens", DataType.INT32, (1,)),
)

OWN_OUTPUTS: tuple[Tensor, ...] = (
    Tensor("output_ids", DataType.INT32, (-1,)),
    Tensor("finish_reason", DataType.STRING, (1,)),
    Tensor("input_token_count", DataType.INT32, (1,)),
    Tensor("output_token_count", DataType.INT32, (1,)),
    Tensor("num_steps", DataType.INT32, (1,)),
    Tensor("speculation", DataType.STRING, (1,)),  # `on` or `off:<reason>`
    Tensor("speculation_stats", DataType.STRING, (1,)),  # `measured`, `derived:<how>` or `unavailable:<why>`
)

INPUTS = STOCK_INPUTS + OWN_INPUTS
OUTPUTS = STOCK_OUTPUTS + OWN_OUTPUTS
