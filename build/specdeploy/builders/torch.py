"""Lane `torch`: the checkpoint as a Hugging Face folder, in its source precision, that the runtime loads and casts.

A folder or hub snapshot is taken over as it is. A GGUF file is converted once: de-quantised, saved as safetensors with
its tokenizer and chat template, loaded again and compared. No weights are fetched from anywhere in here.
"""

import contextlib
import gc
import importlib.metadata
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from specdeploy.builders.base import BuildRecipe, BuildResult, BuildStep, Report, link_or_copy, run_build
from specdeploy.builders.pair import Consent, check_pair
from specdeploy.checkpoint.hf_config import inspect_architecture
from specdeploy.checkpoint.json_text import load_json_object
from specdeploy.checkpoint.pair import PairSettings, check_allowed_codes, digest_of_pair, inspect_pair
from specdeploy.checkpoint.source import CheckpointReference, resolve_checkpoint
from specdeploy.checkpoint_contract import PairReport
from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import BuildCheck, CheckpointSource, Lane
from specdeploy.errors import BuildError, CheckpointError

if TYPE_CHECKING:
    import torch

# Raise it when the conversion below writes other bytes than before.
CONVERTER_VERSION = "1"
# Their versions decide what a conversion writes; a folder that is copied depends on none of them.
_CONVERSION_LIBRARIES = ("transformers", "gguf", "tokenizers", "safetensors")
_PROMPT_TOKENS = 12

Role = Literal["target", "draft"]


@dataclass(frozen=True, slots=True)
class _Source:
    role: Role
    checkpoint: CheckpointReference


def build_torch(
    config: DeploymentConfig, engines_root: Path, base: Path, *, report: Report, consent: Consent | None = None
) -> BuildResult:
    """Build target and, for method draft_model, draft. `base` is where relative checkpoint folders start from.

    `report` is told the findings of now, also where the build is reused and its manifest keeps those of its first time.
    """
    recipe = plan_torch_build(config, base, consent)
    for check in recipe.checks:
        report(f"{check.name}: {check.detail}")
    return run_build(recipe, engines_root, report)


def plan_torch_build(config: DeploymentConfig, base: Path, consent: Consent | None = None) -> BuildRecipe:
    """Find and check the sources; nothing is written. Raises `CheckpointError` when draft and target do not fit,
    or when `consent` lacks a warning that needs it or names a code that no finding has."""
    consent = consent or Consent()
    check_allowed_codes(consent.allow)
    target = config.target
    sources = [_Source("target", resolve_checkpoint(target.checkpoint, target.revision, base=base))]
    if (draft := config.speculation.draft) is not None:
        sources.append(_Source("draft", resolve_checkpoint(draft.checkpoint, draft.revision, base=base)))
    checks: tuple[BuildCheck, ...] = ()
    if len(sources) > 1 or sources[0].checkpoint.gguf is None:  # a lone GGUF has nothing to be compared with
        checks = check_pair(_compare(config, [source.checkpoint for source in sources]), consent)
    converts = any(source.checkpoint.gguf is not None for source in sources)
    versions = {name: importlib.metadata.version(name) for name in _CONVERSION_LIBRARIES} if converts else {}
    versions = {"converter": CONVERTER_VERSION, **versions}
    checkpoints = tuple(
        CheckpointSource(
            role=source.role,
            reference=source.checkpoint.reference,
            digest=source.checkpoint.digest(),
            folder=source.role,
        )
        for source in sources
    )
    return BuildRecipe(
        lane=Lane.TORCH,
        checkpoints=checkpoints,
        versions=versions,
        steps=tuple(step for source in sources for step in _steps(source)),
        checks=checks,
        pair_digest=lambda staging: digest_of_pair(
            staging / "target",
            target_digest=checkpoints[0].digest,
            draft_digest=checkpoints[1].digest if len(checkpoints) > 1 else None,
            lane=Lane.TORCH,
            versions=versions,
        ),
    )


def _steps(source: _Source) -> tuple[BuildStep, ...]:
    role, files, gguf = source.role, source.checkpoint.files, source.checkpoint.gguf
    config, tokenizer = f"{role}/config.json", f"{role}/tokenizer.json"
    if gguf is None:
        origin = (str(source.checkpoint.folder),)
        return (
            BuildStep(f"copy {role}", origin, (config, tokenizer), lambda staging: _copy(files, staging / role)),
            BuildStep(f"load {role}", (role,), (), lambda staging: _check_loads(role, staging / role)),
        )
    return (
        BuildStep(
            f"convert {role} tokenizer",
            (gguf.name,),
            (tokenizer,),
            lambda staging: _save_tokenizer(gguf, staging / role),
        ),
        BuildStep(
            f"convert {role} weights",
            (gguf.name, tokenizer),
            (config, f"{role}/generation_config.json"),
            lambda staging: _convert_weights(role, gguf, staging / role),
        ),
    )


def _compare(config: DeploymentConfig, checkpoints: list[CheckpointReference]) -> PairReport:
    """The pair as it lies on disk; of a GGUF file its config and tokenizer, written out for the comparison alone."""
    settings = PairSettings(method=config.speculation.method, lane=config.lane, max_seq_len=config.serving.max_seq_len)
    with tempfile.TemporaryDirectory(prefix="specdeploy-pair-") as temporary:
        folders = []
        for index, checkpoint in enumerate(checkpoints):
            folders.append(checkpoint.folder)
            if checkpoint.gguf is not None:
                folders[-1] = Path(temporary) / str(index)
                _save_tokenizer(checkpoint.gguf, folders[-1])
                _save_config(checkpoint.gguf, folders[-1])
        return inspect_pair(
            folders[0],
            folders[1] if len(folders) > 1 else None,
            settings,
            target_reference=checkpoints[0].reference,
            draft_reference=checkpoints[1].reference if len(folders) > 1 else None,
        )


# --- copying --------------------------------------------------------------------------------------------------------


def _copy(files: tuple[Path, ...], folder: Path) -> tuple[BuildCheck, ...]:
    folder.mkdir(parents=True)
    for path in files:
        # Weights are replaced as a whole when they change; small text files get edited in place, so they are copied.
        place = link_or_copy if path.suffix == ".safetensors" else shutil.copyfile
        place(path, folder / path.name)
    return ()


def _check_loads(role: str, folder: Path) -> tuple[BuildCheck, ...]:
    import torch

    if role == "draft" and "draft_vocab_size" in load_json_object(folder / "config.json"):
        return _check_trimmed_loads(folder)
    with _quiet_offline():
        model = _load_model(folder)
        if model.dtype is torch.float16:
            model.bfloat16()  # the question is whether the weights are sane, not whether fp16 has the range
        logits = _probe_logits(model)
    if not torch.isfinite(logits).all():
        raise BuildError(f"step load {role}: logits are not finite: the weights are damaged or of another architecture")
    count = sum(parameter.numel() for parameter in model.parameters())
    return (BuildCheck(name=f"{role} loads", detail=f"{count} parameters, logits finite over {_PROMPT_TOKENS} tokens"),)


def _check_trimmed_loads(folder: Path) -> tuple[BuildCheck, ...]:
    """transformers has no model with fewer logits than tokens: the runtime that will serve it loads it instead."""
    import torch

    from specdeploy.runtime.attention import Span
    from specdeploy.runtime.model import DecoderModel

    model = DecoderModel(folder, dtype=torch.bfloat16, device=torch.device("cpu"), max_seq_len=_PROMPT_TOKENS)
    if model.target_ids is None:
        raise BuildError(f"step load draft: {folder} states draft_vocab_size but holds no d2t. Trim the draft again")
    ids = [index * model.vocab_size // _PROMPT_TOKENS for index in range(_PROMPT_TOKENS)]
    logits = model.forward(ids, [Span(0, len(ids), 0, 0)], list(range(len(ids))), model.new_cache(1)).logits  # [T, n]
    if not torch.isfinite(logits).all():
        raise BuildError("step load draft: logits are not finite: the weights are damaged or of another architecture")
    detail = f"{logits.shape[1]} of {model.vocab_size} tokens, logits finite over {len(ids)} tokens"
    return (BuildCheck(name="draft loads", detail=detail),)


# --- converting -----------------------------------------------------------------------------------------------------


def _save_tokenizer(gguf: Path, folder: Path) -> tuple[BuildCheck, ...]:
    folder.mkdir(parents=True, exist_ok=True)
    with _quiet_offline():
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name, local_files_only=True)
        tokenizer.save_pretrained(str(folder))
    return ()


def _save_config(gguf: Path, folder: Path) -> None:
    with _quiet_offline():
        from transformers import AutoConfig
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        config = AutoConfig.from_pretrained(str(gguf.parent), gguf_file=gguf.name, local_files_only=True)
        architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)  # a GGUF names the family only
        config.architectures = None if architecture is None else [architecture]
        config.save_pretrained(str(folder))


def _convert_weights(role: str, gguf: Path, folder: Path) -> tuple[BuildCheck, ...]:
    with _quiet_offline():
        converted = _dequantize(gguf, folder)
        before = _probe_logits(converted)
        converted.save_pretrained(str(folder))
        del converted
        gc.collect()
        inspect_architecture(folder)
        after = _probe_logits(_load_model(folder))
    difference = float((before - after).abs().max())
    if not difference == 0.0:  # also true for NaN
        raise BuildError(
            f"step convert {role} weights: logits differ by {difference:g} after saving and loading again. "
            f"The conversion of {gguf.name} by the installed transformers cannot be trusted"
        )
    detail = f"logits over {_PROMPT_TOKENS} tokens: largest absolute difference {difference:g} after saving and loading"
    return (BuildCheck(name=f"{role} reload", detail=detail),)


def _dequantize(gguf: Path, tokenizer_folder: Path) -> Any:
    """The GGUF's model in float32, with the end-of-sequence id of its tokenizer."""
    import torch
    from transformers import AutoTokenizer, GgufConfig

    with contextlib.redirect_stderr(io.StringIO()):  # one progress bar does not obey the library's own switch
        model = _from_pretrained(
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


# --- loading --------------------------------------------------------------------------------------------------------


def _load_model(folder: Path) -> Any:
    return _from_pretrained(folder, dtype="auto", use_safetensors=True)


def _from_pretrained(folder: Path, **options: Any) -> Any:
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


def _probe_logits(model: Any) -> "torch.Tensor":
    """Logits over a short prompt of ids spread over the vocabulary, in float32."""
    import torch

    vocab_size = int(model.config.vocab_size)
    ids = torch.arange(_PROMPT_TOKENS) * vocab_size // _PROMPT_TOKENS
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=ids[None]).logits[0].float()  # [T, V]
    return logits


@contextlib.contextmanager
def _quiet_offline() -> Iterator[None]:
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
