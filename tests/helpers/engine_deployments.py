"""Deployments of lane trtllm_engine over fabricated checkpoints, and a machine on which TensorRT-LLM seems installed.

deployment = EngineDeployment(tmp_path).write("medusa")
machine = install_standins(tmp_path / "machine", monkeypatch)
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from helpers.deployment_files import write_deployment
from helpers.fabricated_checkpoints import (
    SMALL,
    LlamaSize,
    Shapes,
    byte_level_tokenizer,
    eagle1_tensors,
    llama_config,
    llama_tensors,
    medusa_tensors,
    write_checkpoint,
    write_sparse,
)
from helpers.trtllm_standins import Standins, write_standins
from specdeploy.builders.trtllm_installation import EXAMPLES_VARIABLE
from specdeploy.config.load import LoadedDeployment, load_deployment
from specdeploy.trtllm.versions import CONTAINERS, LAST_WITH_ENGINE_FLOW, container_of, engine_flow_refusal

TARGET_SIZE = replace(SMALL, num_layers=16)  # large enough beside its draft that drafting pays
DRAFT_SIZE = replace(SMALL, num_layers=1)
CHOICES = [[0], [1], [0, 0], [0, 1], [0, 0, 0]]
EAGLE_CHOICES = [[0], [0, 0], [0, 0, 0], [1], [1, 0], [1, 0, 0]]
NUM_ROWS, SEQ_LEN = 4, 256
SPECULATION: Mapping[str, dict[str, Any]] = {
    "draft_model": {"max_draft_len": 4},
    "medusa": {"max_draft_len": 3, "medusa": {"num_heads": 4, "num_layers": 1, "choices": CHOICES}},
    "eagle": {
        "max_draft_len": 3,
        "eagle": {"num_layers": 3, "max_non_leaves_per_layer": 5, "choices": EAGLE_CHOICES},
    },
    "redrafter": {"max_draft_len": 5, "redrafter": {"num_beams": 4, "draft_len_per_beam": 5}},
    "lookahead": {
        "max_draft_len": 83,
        "lookahead": {"window_size": 7, "ngram_size": 7, "verification_set_size": 7},
    },
}
METHODS = tuple(SPECULATION)
# Tokens that one step of the target's engine verifies besides its own.
TREE_TOKENS = {"draft_model": 4, "medusa": 5, "eagle": 6, "redrafter": 20, "lookahead": 83}
ENGINES = {
    "draft_model": ["target", "draft"],
    "medusa": ["target", "target_plain"],
    "eagle": ["target", "target_plain"],
    "redrafter": ["target", "target_plain"],
    "lookahead": ["target"],
}


@dataclass(frozen=True, slots=True)
class EngineDeployment:
    """Writes checkpoints and YAML below `root`."""

    root: Path

    @property
    def engines_root(self) -> Path:
        return self.root / "engines"

    def write(
        self,
        method: str,
        *,
        section: Mapping[str, Any] | None = None,
        speculation: Mapping[str, Any] | None = None,
        with_checkpoints: bool = True,
        **overrides: Any,
    ) -> LoadedDeployment:
        """A deployment of `method`; `section` and `speculation` change keys of tensorrt_llm and speculation."""
        if with_checkpoints:
            self.write_target()
            self.write_draft(method)
        drafting: dict[str, Any] = {"method": method, **SPECULATION[method], **(speculation or {})}
        if method != "lookahead":
            drafting["draft"] = {"checkpoint": str(self.root / "draft")}
        settings: dict[str, Any] = {
            "lane": "trtllm_engine",
            "dtype": "bfloat16",
            "target": {"checkpoint": str(self.root / "target")},
            "speculation": drafting,
            "serving": {"max_rows": NUM_ROWS, "max_seq_len": SEQ_LEN},
            "tensorrt_llm": {"version": "1.2.1", "gpu": "h100", **(section or {})},
            **overrides,
        }
        write_deployment(self.root / "configs", "engine", settings)
        return load_deployment("engine", self.root / "configs")

    def write_target(self, size: LlamaSize = TARGET_SIZE, **overrides: Any) -> Path:
        """The target, unless it is there already."""
        return self._write_model("target", size, **overrides)

    def write_draft(self, method: str) -> None:
        """The draft that `method` needs, unless it is there already."""
        folder = self.root / "draft"
        if folder.exists() or method == "lookahead":
            return
        if method == "draft_model":
            self._write_model("draft", DRAFT_SIZE)
        elif method == "medusa":
            write_checkpoint(folder, {"medusa_num_heads": 4, "medusa_num_layers": 1})
            write_sparse(folder / "medusa_lm_head.safetensors", medusa_tensors(SMALL.hidden, SMALL.vocab))
        elif method == "eagle":
            config = llama_config(SMALL, num_hidden_layers=1)
            write_checkpoint(folder, config, eagle1_tensors(SMALL, bias=True))
        else:
            config = {"hidden_size": 64, "exit_dim": 128, "num_draft_layers": 2, "rnn": True}
            shapes: Shapes = {"lm_head.0.linear.weight": ("F16", (128, 128)), "rnn_u.weight": ("F16", (64, 64))}
            write_checkpoint(folder, config, shapes)

    def _write_model(self, name: str, size: LlamaSize, **overrides: Any) -> Path:
        folder = self.root / name
        if not folder.exists():
            write_checkpoint(
                folder,
                llama_config(size, **overrides),
                llama_tensors(size),
                tokenizer=byte_level_tokenizer(size.vocab),
                generation_config={"eos_token_id": size.vocab - 1},
            )
        return folder


def install_standins(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, version: str = "1.2.1", gpu: str = "NVIDIA H100 80GB HBM3"
) -> Standins:
    """This machine with TensorRT-LLM `version`: package metadata, stand-in programs in PATH, examples, a GPU.

    TensorRT and CUDA are those of the container that carries the version. Programs of a version that has none are those
    of the last that had them.
    """
    has_flow = engine_flow_refusal(Version(version)) is None
    standins = write_standins(folder, version if has_flow else str(LAST_WITH_ENGINE_FLOW))
    container = container_of(Version(version)) or CONTAINERS[0]
    site = folder / "site"
    for name, number in (("tensorrt_llm", version), ("tensorrt", container.tensorrt)):
        info = site / f"{name}-{number}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    query = standins.trtllm_build.parent / "nvidia-smi"
    query.write_text(f"#!/bin/sh\necho '9.0, {gpu}, 81559'\n")  # MiB
    query.chmod(0o755)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PATH", f"{standins.trtllm_build.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv(EXAMPLES_VARIABLE, str(standins.examples_root))
    monkeypatch.setenv("CUDA_VERSION", container.cuda)
    for name, value in standins.environment.items():
        monkeypatch.setenv(name, value)
    return standins
