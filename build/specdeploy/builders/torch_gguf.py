"""A GGUF file as a Hugging Face folder: de-quantised, saved as safetensors, loaded again and compared."""

import contextlib
import gc
import io
from pathlib import Path
from typing import Any

from specdeploy.builders.torch_transformers import (
    PROMPT_TOKENS,
    from_pretrained,
    load_model,
    probe_logits,
    quiet_offline,
)
from specdeploy.checkpoint.hf_config import inspect_architecture
from specdeploy.contract import BuildCheck
from specdeploy.errors import BuildError, CheckpointError


def save_tokenizer(gguf: Path, folder: Path) -> tuple[BuildCheck, ...]:
    """Write the tokenizer of `gguf` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with quiet_offline():
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name, local_files_only=True)
        tokenizer.save_pretrained(str(folder))
    return ()


def save_config(gguf: Path, folder: Path) -> None:
    """Write the config.json of `gguf` into `folder`, weights left out."""
    with quiet_offline():
        from transformers import AutoConfig
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        config = AutoConfig.from_pretrained(str(gguf.parent), gguf_file=gguf.name, local_files_only=True)
        architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)  # a GGUF names the family only
        config.architectures = None if architecture is None else [architecture]
        config.save_pretrained(str(folder))


def convert_weights(role: str, gguf: Path, folder: Path) -> tuple[BuildCheck, ...]:
    """Write the weights of `gguf` beside its tokenizer, load them again and compare. `BuildError` where they differ."""
    with quiet_offline():
        converted = _dequantize(gguf, folder)
        before = probe_logits(converted)
        converted.save_pretrained(str(folder))
        del converted
        gc.collect()
        inspect_architecture(folder)
        after = probe_logits(load_model(folder))
    difference = float((before - after).abs().max())
    if not difference == 0.0:  # also true for NaN
        raise BuildError(
            f"step convert {role} weights: logits differ by {difference:g} after saving and loading again. "
            f"The conversion of {gguf.name} by the installed transformers cannot be trusted"
        )
    detail = f"logits over {PROMPT_TOKENS} tokens: largest absolute difference {difference:g} after saving and loading"
    return (BuildCheck(name=f"{role} reload", detail=detail),)


def _dequantize(gguf: Path, tokenizer_folder: Path) -> Any:
    """The GGUF's model in float32, with the end-of-sequence id of its tokenizer."""
    import torch
    from transformers import AutoTokenizer, GgufConfig

    with contextlib.redirect_stderr(io.StringIO()):  # one progress bar does not obey the library's own switch
        model = from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            # Without `dequantize` the model counts as quantised and refuses to be saved.
            quantization_config=GgufConfig(gguf_file=gguf.name, dequantize=True),
            dtype=torch.float32,
        )
    tokenizer = AutoTokenizer.from_pretrained(str(tokenizer_folder), local_files_only=True)
    if tokenizer.eos_token_id is None:
        raise CheckpointError(f"{gguf}: names no end-of-sequence token, so no answer would ever end")
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model
