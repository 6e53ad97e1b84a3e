"""The checkpoints of an engine build, looked at before anything runs: facts, fit of the pair, files that a script reads
by name."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specdeploy.builders.engine_limits import FAMILY_OF_ARCHITECTURE
from specdeploy.builders.pair import Consent, check_pair
from specdeploy.builders.trtllm_snapshot import Snapshot
from specdeploy.checkpoint.info import CheckpointFiles, describe_checkpoint, read_checkpoint_files
from specdeploy.checkpoint.json_text import load_json_object
from specdeploy.checkpoint.pair import PairSettings, compare_pair, read_contents
from specdeploy.checkpoint.pair_serving import find_parallelism_problems
from specdeploy.checkpoint.source import tokenizer_problems
from specdeploy.checkpoint_contract import CheckpointInfo, PairFinding, PairReport
from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import BuildCheck, EngineModel, EngineRecord, Lane, Method
from specdeploy.errors import CheckpointError, Violation
from specdeploy.trtllm.facts import ConvertScript
from specdeploy.trtllm.rule import METHODS_WITH_HEAD, DeploymentFacts

_WEIGHT_GLOBS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
MEDUSA_WEIGHTS = "medusa_lm_head.safetensors"
MEDUSA_PICKLE = "medusa_lm_head.pt"
EAGLE_PICKLE = "pytorch_model.bin"
REDRAFTER_WEIGHTS = "model.safetensors"
# What examples/redrafter/convert_checkpoint.py@0e8b9484 reads from the drafter's config.json.
REDRAFTER_KEYS = ("hidden_size", "exit_dim", "num_draft_layers", "rnn")
HEADS_CODE = "tensor-parallel"  # the pair's finding that heads do not divide
# A pair without a second tokenizer and without a lane's opinion: what remains is said of the target alone.
_TARGET_ALONE = Method.NGRAM


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """One checkpoint that is on this machine, read once."""

    snapshot: Snapshot
    folder: Path
    files: CheckpointFiles
    info: CheckpointInfo


def read_sources(snapshots: tuple[Snapshot, ...], problems: list[str]) -> dict[str, SourceFiles]:
    """Role -> what was read of every checkpoint that is here; what cannot be read is added to `problems`."""
    read = {}
    for snapshot in snapshots:
        if snapshot.folder is None:
            continue
        try:
            files = read_checkpoint_files(snapshot.folder)
            info = describe_checkpoint(files, reference=snapshot.source.checkpoint)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        read[str(snapshot.role)] = SourceFiles(snapshot, snapshot.folder, files, info)
    return read


def without_bare_snapshots(snapshots: tuple[Snapshot, ...], not_checked: list[str]) -> tuple[Snapshot, ...]:
    """For a dry run: a folder with texts but without any weights (`hf download --exclude '*.safetensors'`) counts as
    not here, since hardly a fact of a checkpoint can be read without them; `not_checked` gets a sentence for each."""
    kept = []
    for one in snapshots:
        is_bare = one.folder is not None and not any(any(one.folder.glob(glob)) for glob in _WEIGHT_GLOBS)
        if is_bare:
            not_checked.append(
                f"{one.role} {one.source.checkpoint}: its folder on this machine holds no weights, so it was treated "
                "as not here"
            )
        kept.append(replace(one, folder=None) if is_bare else one)
    return tuple(kept)


def find_block_scales(facts: DeploymentFacts, read: Mapping[str, SourceFiles]) -> Iterator[Violation]:
    """FP8 weights with one scale per block, which Llama's converter would take for weights with one per tensor.

    Source: examples/models/core/llama/convert_checkpoint.py@368f8f2a knows --use_fp8 (per tensor) and
    --use_fp8_rowwise only. What other converters read is `weights-not-read`'s subject.
    """
    for role, key, info in facts.checkpoints():
        family = FAMILY_OF_ARCHITECTURE.get(info.architecture or "")
        if role not in read or facts.method in METHODS_WITH_HEAD or family is not ConvertScript.LLAMA:
            continue
        if (block := _block_of(read[role].files.config)) is None:
            continue
        other = facts.other_lane(Lane.TRTLLM_LLMAPI)
        reason = f"{role} {info.reference} has fp8 weights with a scale per {block}; the converter reads one per tensor"
        remedy = (
            f"{f'Use {other}, or' if other else 'Use'} an FP8 checkpoint with a scale per tensor, such as ModelOpt's."
        )
        yield facts.violation(key, reason, remedy)


def _block_of(config: Mapping[str, Any]) -> str | None:
    """`block of 128 x 128` where quantization_config says that scales are per block, in any of its spellings."""
    stated = config.get("quantization_config")
    if not isinstance(stated, dict):
        return None
    if (size := stated.get("weight_block_size")) is not None:
        return _describe_block(size)
    groups = stated.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict) and weights.get("strategy") == "block":
            return _describe_block(weights.get("block_structure"))
    return None


def _describe_block(size: object) -> str:
    return f"block of {' x '.join(map(str, size))}" if isinstance(size, list) else "block"


def find_file_problems(config: DeploymentConfig, read: dict[str, SourceFiles]) -> Iterator[str]:
    """Files that a script or the serving front reads by their name, and that are not there."""
    if (target := read.get("target")) is not None:
        yield from tokenizer_problems(target.folder)
    for role, source in read.items():
        if not source.files.weights.files:
            yield f"{source.folder}: {role} holds no *.safetensors file. Fetch the checkpoint again"
    draft = read.get("draft")
    if draft is not None and config.speculation.method is Method.MEDUSA:
        yield from _find_medusa_problems(draft.folder)
    if draft is not None and config.speculation.method is Method.REDRAFTER:
        yield from _find_redrafter_problems(draft.folder)


def _find_medusa_problems(folder: Path) -> Iterator[str]:
    """The converter takes the pickle where there is one, else the safetensors file; both by name (load_medusa_hf in
    tensorrt_llm/models/medusa/weight.py)."""
    if (folder / MEDUSA_PICKLE).exists():
        yield (
            f"{folder / MEDUSA_PICKLE}: the converter would read it instead of {MEDUSA_WEIGHTS}, and such a file can "
            "run code. Move it out of the folder"
        )
    if not (folder / MEDUSA_WEIGHTS).is_file():
        yield f"{folder / MEDUSA_WEIGHTS}: missing; the converter reads the heads from there. Rename the weight file"


def _find_redrafter_problems(folder: Path) -> Iterator[str]:
    if not (folder / REDRAFTER_WEIGHTS).is_file():
        yield f"{folder / REDRAFTER_WEIGHTS}: missing; the converter reads the drafter from this one file"
    try:
        config = load_json_object(folder / "config.json")
    except CheckpointError:
        return  # reported already
    if missing := [key for key in REDRAFTER_KEYS if key not in config]:
        yield f"{folder / 'config.json'}: lacks {', '.join(missing)}, which the converter reads. Is it a ReDrafter?"


def judge_pair(
    config: DeploymentConfig, read: dict[str, SourceFiles], engines: tuple[EngineRecord, ...], consent: Consent
) -> tuple[BuildCheck, ...]:
    """What the manifest records of the pair. Raises `CheckpointError` with everything that forbids it.

    Tensor parallelism is judged per engine, since a draft may run on fewer GPUs than its target.
    """
    target = read["target"]
    draft = read.get("draft") if config.speculation.method is not Method.REDRAFTER else None
    settings = PairSettings(
        method=config.speculation.method, lane=Lane.TRTLLM_ENGINE, max_seq_len=config.serving.max_seq_len
    )
    if config.speculation.method is Method.REDRAFTER:
        settings = PairSettings(method=_TARGET_ALONE, max_seq_len=config.serving.max_seq_len)
    draft_files, draft_info = (None, None) if draft is None else (draft.files, draft.info)
    contents = read_contents(target.files, draft_files, draft_info)
    report = compare_pair(target.info, draft_info, contents, settings)
    padding = tuple(_find_padding(report, engines))
    return check_pair(report.model_copy(update={"findings": (*report.findings, *padding)}), consent)


def _find_padding(report: PairReport, engines: tuple[EngineRecord, ...]) -> Iterator[PairFinding]:
    for engine in engines:
        info = report.draft if engine.model is EngineModel.DRAFT else report.target
        if info is None or engine.model is EngineModel.TARGET_PLAIN:
            continue
        role = "draft" if engine.model is EngineModel.DRAFT else "target"
        for found in find_parallelism_problems(info, None, engine.tensor_parallel):
            if found.code == HEADS_CODE:
                continue  # the rules target-heads and draft-heads say it, with the key
            yield found.model_copy(update={"subject": f"{role} {info.reference}"})


def _has_pickle(draft: CheckpointInfo) -> bool:
    return (Path(draft.folder) / EAGLE_PICKLE).is_file()


def find_lost_settings(
    config: DeploymentConfig, target: CheckpointInfo | None, draft: CheckpointInfo | None
) -> Iterator[BuildCheck]:
    """What a converter drops without a word, or may not find: recorded, since a short text does not show it."""
    has_head = config.speculation.method in (Method.MEDUSA, Method.EAGLE)
    rope = None if target is None else target.rope
    if has_head and rope is not None and rope.type != "default":
        detail = (
            f"the {config.speculation.method} converter keeps only the type ({rope.type}) of the target's stretched "
            "rotary embedding; its factors become TensorRT-LLM's defaults, so long prompts may differ from the model. "
            "Compare answers to long prompts with and without drafting"
        )
        yield BuildCheck(name="warning rope-scaling", detail=detail)
    head = None if draft is None else draft.head
    if config.speculation.method is Method.EAGLE and head is not None and not head.has_fc_bias:
        # tensorrt_llm/models/eagle/weight.py@535c9cc6
        detail = (
            "the head has no fc.bias, which the EAGLE converter of some versions reads; then the conversion fails. "
        )
        detail += "Use a head that holds it, or another version"
        yield BuildCheck(name="warning eagle-fc-bias", detail=detail)
    if config.speculation.method is Method.EAGLE and draft is not None and not _has_pickle(draft):
        # The same place.
        detail = f"the EAGLE converter of some versions reads fc from {EAGLE_PICKLE}; then the conversion fails. "
        detail += "Keep that file in the folder of a head you trust"
        yield BuildCheck(name="warning eagle-pickle", detail=detail)
    if config.speculation.method is Method.REDRAFTER:
        detail = "nothing in a drafter's files shows which target it was trained for; acceptance must be measured"
        yield BuildCheck(name="warning drafter-unproven", detail=detail)
