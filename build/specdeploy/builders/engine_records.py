"""What the engines of a deployment must be, before any command is written: one `EngineRecord` each."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from specdeploy.builders.step_graph import ToolPath
from specdeploy.checkpoint_contract import CheckpointInfo
from specdeploy.config.schema import DeploymentConfig, PlainInstance, TensorRtLlmConfig
from specdeploy.contract import Dtype, EngineModel, EngineRecord, Method
from specdeploy.trtllm.parallel_rules import engine_step_tokens, tokens_per_step
from specdeploy.trtllm.rule import METHODS_WITH_HEAD

MODE_OF_METHOD: Mapping[Method, str] = {
    Method.DRAFT_MODEL: "draft_tokens_external",
    Method.MEDUSA: "medusa",
    Method.EAGLE: "eagle",
    Method.REDRAFTER: "explicit_draft_tokens",
    Method.LOOKAHEAD: "lookahead_decoding",
}


@dataclass(frozen=True, slots=True)
class EngineTools:
    """Programs and scripts of the installation, or where they are in NVIDIA's containers when it is not here."""

    python: Path = Path("python3")
    trtllm_build: Path = Path("trtllm-build")
    examples_root: Path = Path("/app/examples")

    def script(self, place: str) -> tuple[ToolPath, ToolPath]:
        """Interpreter and `examples/<place>` as the first two arguments of a command."""
        return ToolPath("python", self.python), ToolPath(f"examples/{place}", self.examples_root / place)


@dataclass(frozen=True, slots=True)
class EngineInputs:
    """What decides the commands. `target` and `draft` are None where the checkpoint is not on this machine (then the
    commands hold placeholders in angle brackets), `draft` also where the method needs none."""

    config: DeploymentConfig
    section: TensorRtLlmConfig
    version: Version
    target: CheckpointInfo | None
    draft: CheckpointInfo | None
    tools: EngineTools

    @property
    def method(self) -> Method:
        return self.config.speculation.method

    @property
    def dtype(self) -> Dtype:
        return self.config.dtype

    def info_of(self, model: EngineModel) -> CheckpointInfo | None:
        """The checkpoint whose weights an engine runs; a head is beside it."""
        return self.draft if model is EngineModel.DRAFT else self.target


def plan_engines(inputs: EngineInputs) -> tuple[EngineRecord, ...]:
    """The engines of a deployment, as they must come out; key/value tokens are filled in by the memory budget."""
    models = [EngineModel.TARGET]
    if inputs.method is Method.DRAFT_MODEL:
        models.append(EngineModel.DRAFT)
    if inputs.method in METHODS_WITH_HEAD and inputs.section.plain_instance is PlainInstance.BESIDE:
        models.append(EngineModel.TARGET_PLAIN)
    return tuple(_record(inputs, model) for model in models)


def _record(inputs: EngineInputs, model: EngineModel) -> EngineRecord:
    section, serving = inputs.section, inputs.config.serving
    is_draft, is_drafting = model is EngineModel.DRAFT, model is EngineModel.TARGET
    tensor, pipeline, nodes = section.tensor_parallel, section.pipeline_parallel, section.num_nodes
    if is_draft:  # small: it is spread over one node at most
        tensor, pipeline, nodes = section.draft_tensor_parallel or section.tensor_parallel, 1, 1
    draft_len = tokens_per_step(inputs.config.speculation) if is_drafting else 0
    return EngineRecord(
        model=model,
        folder=f"{model}_engine",
        decoding=MODE_OF_METHOD[inputs.method] if is_drafting else None,
        max_draft_len=draft_len,
        max_batch_size=serving.max_rows,
        max_seq_len=serving.max_seq_len,
        max_num_tokens=engine_step_tokens(section.max_num_tokens, serving.max_rows, serving.max_seq_len, draft_len),
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        dtype=inputs.dtype,
        quantization=_quantization(inputs, model),
        kv_cache_dtype="fp8" if has_fp8_cache(inputs, model) else "auto",
        gpu_ids=tuple(range(max(1, tensor * pipeline // nodes))),
    )


def is_quantized_here(inputs: EngineInputs, model: EngineModel) -> bool:
    """Whether the build itself quantises the weights of an engine: the target's, never the draft's."""
    return model is not EngineModel.DRAFT and inputs.section.quantization == "fp8"


def _quantization(inputs: EngineInputs, model: EngineModel) -> str | None:
    if is_quantized_here(inputs, model):
        return "fp8"
    info = inputs.info_of(model)
    stored = info.quantization if info is not None else None
    if stored is None or stored.method.lower() == "none":
        return None
    return "fp8" if "fp8" in stored.method.lower() else stored.method


def has_fp8_cache(inputs: EngineInputs, model: EngineModel) -> bool:
    """Whether an engine keeps keys and values in fp8: asked for where it is quantised here, or the checkpoint's own."""
    if is_quantized_here(inputs, model):
        return inputs.section.kv_cache_dtype == "fp8"
    info = inputs.info_of(model)
    stored = info.quantization if info is not None else None
    return stored is not None and (stored.kv_cache_dtype or "").lower() == "fp8"
