"""Checkpoints as transformers loads them: whole or not at all, and without asking the network."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdeploy.checkpoint.json_text import load_json_object
from specdeploy.errors import CheckpointError

if TYPE_CHECKING:
    import torch

PROMPT_TOKENS = 12


def is_known_to_transformers(folder: Path) -> bool:
    """Whether the installed transformers has a class for the model in `folder`, without code from elsewhere."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return load_json_object(folder / "config.json").get("model_type") in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def load_model(folder: Path) -> Any:
    """The model in `folder`, in its stored precision. Raises `CheckpointError` unless every weight of it is there."""
    return from_pretrained(folder, dtype="auto", use_safetensors=True)


def from_pretrained(folder: Path, **options: Any) -> Any:
    """A model for inference, every weight of it read from `folder`."""
    from transformers import AutoModelForCausalLM

    # `Any`: the published type leaves out the pair that `output_loading_info` asks for.
    load: Any = AutoModelForCausalLM.from_pretrained
    model, info = load(str(folder), local_files_only=True, output_loading_info=True, **options)
    _check_complete(folder, info)
    return model.eval()


def _check_complete(place: Path, info: dict[str, Any]) -> None:
    """transformers fills missing weights with random numbers and only warns; here that is an error."""
    problems = []
    for kind, what in (("missing_keys", "lacks"), ("mismatched_keys", "has wrong shapes for")):
        if keys := sorted(str(key) for key in info[kind]):
            more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
            problems.append(f"{place}: {what} weights {', '.join(keys[:3])}{more}. Fetch the checkpoint again")
    if problems:
        raise CheckpointError("\n".join(problems))


def probe_logits(model: Any) -> "torch.Tensor":
    """Logits over a short prompt of ids spread over the vocabulary, in float32."""
    import torch

    vocab_size = int(model.config.vocab_size)
    ids = torch.arange(PROMPT_TOKENS) * vocab_size // PROMPT_TOKENS
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=ids[None]).logits[0].float()  # [T, V]
    return logits


@contextlib.contextmanager
def quiet_offline() -> Iterator[None]:
    """No look at a model hub, no progress bars of transformers, no chatter below an error."""
    previous = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers.utils import logging

    verbosity, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()
        if previous is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = previous
