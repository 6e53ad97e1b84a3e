"""A machine for the LLM API lane: a fake tensorrt_llm that also has LLM objects, GPUs as a fake nvidia-smi names them,
and small checkpoints to deploy."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.deployment_files import write_deployment
from helpers.fabricated_checkpoints import (
    LlamaSize,
    byte_level_tokenizer,
    layer_tensors,
    llama_config,
    llama_tensors,
    write_checkpoint,
)
from helpers.fake_tensorrt_llm import on_import_path, write_fake_tensorrt_llm
from helpers.pair_files import write_eagle3, write_model
from specdeploy.config.load import LoadedDeployment, load_deployment

TARGET = LlamaSize(8, 256, 512, 8, 4, 512, head_dim=32)
DRAFT = LlamaSize(1, 64, 128, 4, 2, 512, head_dim=16)
H100 = "9.0, NVIDIA H100 80GB HBM3\n"

# Strict about its arguments like the real one; what it generates is enough to tell two instances apart.
_LLM_SOURCE = """
import os
import sys
import time

from tensorrt_llm.llmapi import llm_args


class SamplingParams:
    def __init__(self, max_tokens, temperature):
        self.max_tokens = max_tokens


class _Completion:
    def __init__(self, token_ids):
        self.token_ids = token_ids


class _Answer:
    def __init__(self, token_ids):
        self.outputs = [_Completion(token_ids)]


class LLM:
    def __init__(self, **arguments):
        self.arguments = llm_args.TorchLlmArgs(**arguments)
        print("[TRT-LLM] [I] loading", self.arguments.model, flush=True)
        if words := os.environ.get("FAKE_LLM_RAISES"):
            raise RuntimeError(words)
        time.sleep(float(os.environ.get("FAKE_LLM_SLEEPS", "0")))

    def generate(self, prompts, sampling_params):
        drafts = self.arguments.speculative_config is not None
        first = 7 if drafts and "FAKE_LLM_DIFFERS" in os.environ else 0
        length = 0 if "FAKE_LLM_SILENT" in os.environ else sampling_params.max_tokens
        return [_Answer([first + index for index in range(length)]) for _ in prompts]

    def shutdown(self):
        pass
"""


@contextlib.contextmanager
def installed(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    version: str,
    *,
    spellings: Mapping[str, str] | None = None,
    gpus: str = "",
) -> Iterator[Path]:
    """tensorrt_llm `version` on the import path of this process and its children; `gpus` what nvidia-smi prints."""
    package = write_fake_tensorrt_llm(folder / f"site-{version}", version, spellings)
    with (package / "tensorrt_llm" / "__init__.py").open("a") as file:
        file.write(_LLM_SOURCE)
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    smi = programs / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\nprintf '%s' '{gpus}'\n" if gpus else "#!/bin/sh\nexit 9\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    monkeypatch.setenv("PYTHONPATH", str(package))
    with on_import_path(package):
        yield package


def load_llmapi(
    folder: Path, method: str, *, version: str = "1.2.1", name: str = "tiny", **tensorrt_llm: Any
) -> LoadedDeployment:
    """A deployment of lane trtllm_llmapi with its checkpoints below `folder`, written when they are missing."""
    speculation: dict[str, Any] = {"method": method, "max_draft_len": 3}
    target = folder / "target"
    if not target.exists() and method == "mtp":
        _write_mtp_model(target)
    elif not target.exists():
        write_model(target, TARGET, tokenizer=byte_level_tokenizer(TARGET.vocab))
    if method in ("eagle3", "draft_model"):
        speculation["draft"] = {"checkpoint": str(folder / method)}
    if method == "eagle3" and not (folder / method).exists():
        write_eagle3(folder / method, TARGET, draft_vocab=128)
    if method == "draft_model" and not (folder / method).exists():
        write_model(folder / method, DRAFT, tokenizer=byte_level_tokenizer(DRAFT.vocab))
    overrides = {
        "lane": "trtllm_llmapi",
        "dtype": "bfloat16",
        "target": {"checkpoint": str(target)},
        "speculation": speculation,
        "tensorrt_llm": {"version": version, "gpu": "h100", "max_num_tokens": 1024, **tensorrt_llm},
    }
    return load_deployment(write_deployment(folder / "configs", name, overrides))


def _write_mtp_model(folder: Path) -> None:
    """A model that holds an MTP module, as DeepSeek stores it: one layer after the last."""
    config = llama_config(
        TARGET, model_type="deepseek_v3", architectures=["DeepseekV3ForCausalLM"], num_nextn_predict_layers=1
    )
    shapes = llama_tensors(TARGET) | layer_tensors(TARGET, f"model.layers.{TARGET.num_layers}.")
    write_checkpoint(folder, config, shapes, tokenizer=byte_level_tokenizer(TARGET.vocab))


def read_arguments(folder: Path, name: str = "llm_args.yaml") -> dict[str, Any]:
    """Arguments of one instance as a server reads them."""
    loaded: dict[str, Any] = yaml.safe_load((folder / name).read_text())
    return loaded
