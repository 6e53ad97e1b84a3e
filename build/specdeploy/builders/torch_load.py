"""Does what was built load, with finite numbers? Models by transformers; what only our runtime can run, by the runtime.

A draft that borrows from its target is loaded beside it, as it will be served.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from specdeploy.builders.torch_transformers import (
    PROMPT_TOKENS,
    is_known_to_transformers,
    load_model,
    probe_logits,
    quiet_offline,
)
from specdeploy.checkpoint.canonical_head import HEAD_FILE
from specdeploy.checkpoint.info import inspect_checkpoint
from specdeploy.checkpoint.json_text import load_json_object
from specdeploy.checkpoint.pair_embeddings import borrows_embedding
from specdeploy.contract import BuildCheck, Method
from specdeploy.errors import BuildError

if TYPE_CHECKING:
    import torch

    from specdeploy.runtime.drafters.feature_head import FeatureHead
    from specdeploy.runtime.drafters.medusa import MedusaHeads
    from specdeploy.runtime.model import DecoderModel, StepOutput


def check_loads(role: str, staging: Path) -> tuple[BuildCheck, ...]:
    """Load `staging/<role>` and run it over a short prompt. Raises `BuildError` for numbers that are not finite."""
    folder = staging / role
    if role == "draft" and (folder / HEAD_FILE).is_file():
        return _check_head_loads(folder, staging / "target")
    is_trimmed = "draft_vocab_size" in load_json_object(folder / "config.json")
    if role == "draft" and (is_trimmed or borrows_embedding(inspect_checkpoint(folder))):
        return _check_draft_loads(folder, staging / "target", is_trimmed=is_trimmed)
    if not is_known_to_transformers(folder):
        return _check_target_loads(folder)
    with quiet_offline():
        import torch

        model = load_model(folder)
        if model.dtype is torch.float16:
            model.bfloat16()  # the question is whether the weights are sane, not whether fp16 has the range
        logits = probe_logits(model)
    _check_finite(role, logits)
    count = sum(parameter.numel() for parameter in model.parameters())
    return (BuildCheck(name=f"{role} loads", detail=f"{count} parameters, logits finite over {PROMPT_TOKENS} tokens"),)


def _check_draft_loads(folder: Path, target_folder: Path, *, is_trimmed: bool) -> tuple[BuildCheck, ...]:
    """A draft model that transformers has no class for: fewer logits than tokens, or no embeddings of its own."""
    target = _load(target_folder) if borrows_embedding(inspect_checkpoint(folder)) else None
    model = _load(folder, borrow_from=target)
    if is_trimmed and model.target_ids is None:
        raise BuildError(f"step load draft: {folder} states draft_vocab_size but holds no d2t. Trim the draft again")
    logits = _run(model).logits
    _check_finite("draft", logits)
    detail = f"{logits.shape[1]} of {model.vocab_size} tokens, logits finite over {PROMPT_TOKENS} tokens"
    if target is not None:
        detail += ", embeddings borrowed from the target"
    return (BuildCheck(name="draft loads", detail=detail),)


def _check_target_loads(folder: Path) -> tuple[BuildCheck, ...]:
    """A model that transformers has no class for, and the MTP layer that it brings along."""
    from specdeploy.runtime.assemble import load_feature_head
    from specdeploy.runtime.model import MTP_PREFIXES

    target = _load(folder)
    logits = _run(target).logits
    _check_finite("target", logits)
    detail = f"logits of {logits.shape[1]} tokens finite over {PROMPT_TOKENS} tokens"
    if target.config.architectures[0] in MTP_PREFIXES and inspect_checkpoint(folder).num_mtp_layers == 1:
        _check_finite("target", _feature_logits(load_feature_head(Method.MTP, folder, target), target))
        detail += ", those of its MTP layer too"
    return (BuildCheck(name="target loads", detail=detail),)


def _check_head_loads(folder: Path, target_folder: Path) -> tuple[BuildCheck, ...]:
    """A head beside its target, over the target's own states of the prompt."""
    from specdeploy.runtime.assemble import load_feature_head, method_of_folder
    from specdeploy.runtime.drafters.medusa import MedusaHeads

    method, target = method_of_folder(folder), _load(target_folder)
    if method is Method.MEDUSA:
        logits = _medusa_logits(MedusaHeads(folder, target), target)
    else:
        logits = _feature_logits(load_feature_head(method, folder, target), target)
    _check_finite("draft", logits)
    num_tokens = f"{logits.shape[-1]} of {target.vocab_size} tokens"
    detail = f"{method} head, {num_tokens}, logits finite over {logits.shape[-2]} tokens"
    return (BuildCheck(name="draft loads", detail=detail),)


def _medusa_logits(heads: "MedusaHeads", target: "DecoderModel") -> "torch.Tensor":
    """Logits [heads, T, V]."""
    import torch

    from specdeploy.runtime.model import FINAL_NORM

    states = _run(target, (FINAL_NORM,)).hidden
    assert states is not None  # noqa: S101 - they were asked for
    with torch.inference_mode():
        return torch.stack([heads.logits(index, states) for index in range(heads.num_heads)])


def _feature_logits(head: "FeatureHead", target: "DecoderModel") -> "torch.Tensor":
    """Logits [T - 1, n]: every state goes with the token after it."""
    import torch

    from specdeploy.runtime.attention import Span

    ids, states = _prompt(target), _run(target, head.hidden_layers).hidden
    assert states is not None  # noqa: S101 - a head reads states
    num_pairs = min(len(ids) - 1, head.max_positions)
    with torch.inference_mode():
        outputs = head.forward(
            torch.tensor(ids[1 : num_pairs + 1]),
            head.fuse(states[:num_pairs]),
            [Span(0, num_pairs, 0, 0)],
            range(num_pairs),
            head.new_cache(1, extra_tokens=0),
        )
        return head.logits(outputs)


def _load(folder: Path, *, borrow_from: "DecoderModel | None" = None) -> "DecoderModel":
    import torch

    from specdeploy.runtime.model import DecoderModel

    device = torch.device("cpu")
    return DecoderModel(folder, dtype=torch.bfloat16, device=device, max_seq_len=PROMPT_TOKENS, borrow_from=borrow_from)


def _prompt(model: "DecoderModel") -> list[int]:
    """Ids spread over the vocabulary."""
    return [index * model.vocab_size // PROMPT_TOKENS for index in range(PROMPT_TOKENS)]


def _run(model: "DecoderModel", hidden_layers: tuple[int, ...] = ()) -> "StepOutput":
    """Logits and asked states over the prompt."""
    from specdeploy.runtime.attention import Span

    ids = _prompt(model)
    span, cache = Span(0, len(ids), 0, 0), model.new_cache(1)
    return model.forward(ids, [span], list(range(len(ids))), cache, hidden_layers=hidden_layers)


def _check_finite(role: str, numbers: "torch.Tensor") -> None:
    import torch

    if not torch.isfinite(numbers).all():
        raise BuildError(f"step load {role}: logits are not finite: the weights are damaged or of another architecture")
