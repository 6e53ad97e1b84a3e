"""What a drafting method's numbers in the YAML demand of the checkpoints it is built from, in lane torch."""

from collections.abc import Iterator

from specdeploy.checkpoint.pair import method_of
from specdeploy.checkpoint_contract import CheckpointInfo, PairReport
from specdeploy.config.method_rules import tree_of
from specdeploy.config.schema import DeploymentConfig, SpeculationConfig
from specdeploy.contract import Method
from specdeploy.errors import ConfigError, Violation


def check_method(config: DeploymentConfig, pair: PairReport) -> None:
    """Raise `ConfigError` with every number that the checkpoints cannot follow."""
    speculation = config.speculation
    found = [
        *_layer_skip(speculation, pair.target),
        *_medusa(speculation, pair.draft),
        *_auto(speculation, pair.draft),
        *_tree_width(speculation, pair.target, pair.draft),
    ]
    if found:
        place = f"deployment {config.name}"
        raise ConfigError([Violation(place, f"speculation.{key}", *rest) for key, *rest in found])


def _layer_skip(speculation: SpeculationConfig, target: CheckpointInfo) -> Iterator[tuple[str, str, str]]:
    drafting, there = speculation.layer_skip.num_layers, target.num_layers
    if speculation.method is Method.LAYER_SKIP and drafting is not None and there is not None and drafting >= there:
        reason = f"{drafting} of the target's {there} layers: none is skipped"
        yield "layer_skip.num_layers", reason, f"Write at most {there - 1}"


def _medusa(speculation: SpeculationConfig, draft: CheckpointInfo | None) -> Iterator[tuple[str, str, str]]:
    there = draft.head.num_heads if draft is not None and draft.head is not None else None
    if draft is None or method_of(draft) is not Method.MEDUSA or there is None:
        return
    key, asked = "medusa.num_heads", speculation.medusa.num_heads
    if speculation.method is Method.AUTO:  # K alone says how many are used
        key, asked = "max_draft_len", speculation.max_draft_len
    if asked > there:
        yield key, f"{asked}, and {draft.reference} holds {there} heads", f"Write at most {there}"


def _auto(speculation: SpeculationConfig, draft: CheckpointInfo | None) -> Iterator[tuple[str, str, str]]:
    """Paths of a head that the draft is not."""
    if speculation.method is not Method.AUTO or draft is None:
        return
    used = method_of(draft)
    for method in (Method.MEDUSA, Method.EAGLE, Method.EAGLE3):
        tree = tree_of(speculation, method)
        if method is not used and tree is not None and tree.choices is not None:
            yield f"{method}.choices", f"{draft.reference} drafts by method {used} and reads no such paths", "Remove it"


def _tree_width(
    speculation: SpeculationConfig, target: CheckpointInfo, draft: CheckpointInfo | None
) -> Iterator[tuple[str, str, str]]:
    """A path by a rank that is beyond all tokens the head can guess."""
    if draft is None or draft.head is None:
        return
    method, there = method_of(draft), _num_guesses(target, draft)
    tree = tree_of(speculation, method) if speculation.method in (method, Method.AUTO) else None
    if there is None or tree is None or tree.choices is None:
        return
    widest = max(tree.choices, key=max)
    if max(widest) >= there:
        reason = f"rank {max(widest)} of path {list(widest)}, and {draft.reference} guesses among {there} tokens"
        yield f"{method}.choices", reason, f"Write ranks up to {there - 1}"


def _num_guesses(target: CheckpointInfo, draft: CheckpointInfo) -> int | None:
    """Tokens that a head proposes: rows of its trimmed lm_head, else the target's tokens that have rows."""
    sizes = [target.vocabulary.tokenizer_length, target.vocabulary.config_vocab_size]
    if draft.head is not None and draft.head.has_d2t:
        sizes += [draft.head.draft_vocab_size, draft.vocabulary.lm_head_rows]
    return min((size for size in sizes if size is not None), default=None)
