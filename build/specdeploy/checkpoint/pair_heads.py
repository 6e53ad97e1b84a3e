"""Findings about EAGLE, EAGLE-3 and Medusa heads: what they read, what they bring, what they expect to borrow."""

from collections.abc import Iterator, Mapping

from specdeploy.checkpoint.embedding_sample import EmbeddingSample, Likeness
from specdeploy.checkpoint.pair_findings import finding
from specdeploy.checkpoint_contract import (
    CheckpointInfo,
    CheckpointKind,
    HeadFacts,
    PairFinding,
    Severity,
    TensorOrigin,
)
from specdeploy.contract import METHODS_WITH_DRAFT, Method

_KIND_OF_METHOD: Mapping[Method, CheckpointKind] = {
    Method.DRAFT_MODEL: CheckpointKind.CAUSAL_LM,
    Method.EAGLE: CheckpointKind.EAGLE,
    Method.EAGLE3: CheckpointKind.EAGLE3,
    Method.MEDUSA: CheckpointKind.MEDUSA,
}
# Switches that come with weights of their own, and how those tensors are spelled. The others only move a norm.
_TENSOR_OF_SWITCH: Mapping[str, str] = {"fc_norm": "fc_norm", "norm_before_fc": "input_norm"}
_NUM_DEFAULT_AUX_LAYERS = 3


def find_draft_presence(target: CheckpointInfo, draft: CheckpointInfo | None, method: Method) -> Iterator[PairFinding]:
    """A method that needs a draft and has none, or one that drafts without and was given one."""
    if draft is None and method in METHODS_WITH_DRAFT:
        detail = f"method {method} drafts with a checkpoint of its own, and none is named"
        remedy = f"Name the draft of {target.reference}, or choose a method that needs none, such as ngram"
        yield finding("draft-missing", Severity.FAILURE, f"method {method}", detail, remedy)
    if draft is not None and method not in METHODS_WITH_DRAFT and method is not Method.AUTO:
        detail = f"method {method} drafts without a checkpoint of its own, but one is named"
        remedy = "Leave the draft out, or choose the method that it was made for"
        yield finding("draft-unused", Severity.WARNING, f"draft {draft.reference}", detail, remedy)


def find_kind_mismatch(draft: CheckpointInfo, method: Method) -> Iterator[PairFinding]:
    """A draft that is not what the method needs; v1/v2 heads passed off as v3 by name."""
    subject = f"draft {draft.reference}"
    head = draft.head
    if head is not None and head.declared_generation not in (None, head.generation):
        detail = f"config.json calls it {head.declared_generation}, its tensors are those of {head.generation}"
        remedy = "Fetch config.json and weights again, from one place"
        yield finding("head-generation", Severity.FAILURE, subject, detail, remedy)
    expected = _KIND_OF_METHOD.get(method)
    if expected is None or draft.kind is expected:
        return
    if head is not None and {draft.kind, expected} == {CheckpointKind.EAGLE, CheckpointKind.EAGLE3}:
        generation = "v3" if head.generation == "v3" else "v1/v2"
        detail = (
            f"method {method} needs {'v3' if method is Method.EAGLE3 else 'v1/v2'}, this head is {generation}: "
            f"its fc reads {head.fc_in_features} values per position"
        )
        remedy = f"Use method {'eagle3' if generation == 'v3' else 'eagle'}, or a head of the other generation"
        yield finding("head-generation", Severity.FAILURE, subject, detail, remedy)
        return
    detail = f"method {method} needs a {expected} checkpoint, this is {draft.kind}"
    remedy = "Name the right checkpoint or the right method"
    yield finding("draft-kind", Severity.FAILURE, subject, detail, remedy)


def find_head_problems(
    target: CheckpointInfo, draft: CheckpointInfo, sample: EmbeddingSample | None
) -> Iterator[PairFinding]:
    """Everything a head's files show against its target."""
    head = draft.head
    if head is None:
        return
    subject = f"draft {draft.reference}"
    yield from _find_shapes(target, head, subject)
    yield from _find_tensors(head, subject)
    if head.generation == "v3":
        yield from _find_aux_layers(target, head, subject)
    yield from _find_norm_switches(head, subject)
    if sample is not None:
        yield from _find_embeddings(sample, subject)


def _find_shapes(target: CheckpointInfo, head: HeadFacts, subject: str) -> Iterator[PairFinding]:
    wide = target.hidden_size
    if wide is None:
        return
    remedy = "Use a head that was trained for this target"
    stated = head.target_hidden_size
    if stated is not None and stated != wide:
        detail = f"made for a target with hidden size {stated}, this target has {wide}"
        yield finding("hidden-size-differs", Severity.FAILURE, subject, detail, remedy)
        return
    expected = _expected_fc_input(head, wide)
    if expected is not None and head.fc_in_features is not None and head.fc_in_features != expected[0]:
        detail = f"fc reads {head.fc_in_features} values per position, expected {expected[1]} = {expected[0]}"
        yield finding("head-shape", Severity.FAILURE, subject, detail, remedy)
    borrowed = [name for name, origin in head.tensors.items() if origin is TensorOrigin.BORROWED_FROM_TARGET]
    if borrowed and head.hidden_size is not None and head.hidden_size != wide:
        detail = f"borrows {', '.join(borrowed)} of width {wide}, its own hidden size is {head.hidden_size}"
        yield finding("head-shape", Severity.FAILURE, subject, detail, remedy)


def _expected_fc_input(head: HeadFacts, wide: int) -> tuple[int, str] | None:
    """(columns of fc.weight, how they are counted); None where the head has no such layer or does not say."""
    if head.generation == "v1":
        return 2 * wide, f"2 x hidden size {wide}"
    if head.generation == "v3":
        count = len(head.aux_layer_ids) if head.aux_layer_ids is not None else head.num_aux_layers
        count = count if count is not None else _NUM_DEFAULT_AUX_LAYERS
        return count * wide, f"{count} layers x hidden size {wide}"
    return None


def _find_tensors(head: HeadFacts, subject: str) -> Iterator[PairFinding]:
    missing = [name for name, origin in head.tensors.items() if origin is TensorOrigin.MISSING]
    if missing:
        detail = f"needed and not there: {', '.join(missing)}"
        remedy = "Take a complete head, or have its author export these tensors"
        yield finding("tensors-missing", Severity.FAILURE, subject, detail, remedy)
    if unexpected := head.unexpected_tensors:
        more = f" and {len(unexpected) - 5} more" if len(unexpected) > 5 else ""
        detail = f"in the file, but no part of a {head.generation} head: {', '.join(unexpected[:5])}{more}"
        remedy = "Ask the head's author which architecture it is"
        yield finding("tensors-unexpected", Severity.WARNING, subject, detail, remedy)


def default_aux_layers(num_layers: int) -> tuple[int, int, int]:
    """The rule several engines apply to a head that names no layers: 2, n // 2, n - 3."""
    return (2, num_layers // 2, num_layers - 3)


def _find_aux_layers(target: CheckpointInfo, head: HeadFacts, subject: str) -> Iterator[PairFinding]:
    ids, states = head.aux_layer_ids, head.aux_states
    if ids is None or states is None:
        guess = "cannot be applied: the target does not state its layers"
        if target.num_layers is not None:
            guess = f"gives {default_aux_layers(target.num_layers)}"
        detail = f"unverified: names no auxiliary layers; the default rule (2, n // 2, n - 3) {guess}"
        remedy = "Take the layers from the head's author; else measure acceptance (`make smoke`) before it sees traffic"
        yield finding("aux-layers-guessed", Severity.WARNING, subject, detail, remedy)
        return
    faults = []
    if target.num_layers is not None and (beyond := [layer for layer in states if layer > target.num_layers]):
        faults.append(f"{beyond[0]} lies beyond the target's {target.num_layers} layers")
    if head.num_aux_layers is not None and len(ids) != head.num_aux_layers:
        faults.append(f"{len(ids)} layers named, fc reads {head.num_aux_layers}")
    if list(ids) != sorted(set(ids)):
        faults.append("they do not rise")
    shown = f"{list(ids)} from {head.aux_layer_ids_source}: after {', '.join(map(str, states))} layers"
    if faults:
        detail = f"{shown}; {'; '.join(faults)}"
        yield finding("aux-layers-wrong", Severity.FAILURE, subject, detail, "Use a head trained for this target")
        return
    yield finding("aux-layers", Severity.INFO, subject, shown, "Nothing to do where the engine reads this key")
    if not head.aux_ids_name_outputs and target.num_layers is not None:
        yield from _find_unshifted(ids, target.num_layers, subject)


def _find_unshifted(ids: tuple[int, ...], num_layers: int, subject: str) -> Iterator[PairFinding]:
    """Ids that trainers take by default and count by outputs, under a key that engines count by states before."""
    if ids != (1, num_layers // 2 - 1, num_layers - 4):
        return
    detail = (
        f"{list(ids)} of {num_layers} layers are the outputs that ModelOpt and SpecForge train on (1, n // 2 - 1, "
        "n - 4), but the key they stand under means the states before these layers"
    )
    remedy = (
        f"If its author trained on these outputs, write eagle_aux_hidden_state_layer_ids "
        f"{[layer + 1 for layer in ids]} in its config.json, or move the ids under eagle_config"
    )
    yield finding("aux-layers-unshifted", Severity.WARNING, subject, detail, remedy)


def _find_norm_switches(head: HeadFacts, subject: str) -> Iterator[PairFinding]:
    author = "Ask the head's author; do not serve it before its acceptance was measured"
    for switch, spelling in _TENSOR_OF_SWITCH.items():
        found = [name for name in head.norm_tensors if spelling in name]
        is_on = head.norm_switches.get(switch, False)
        if found and not is_on:
            said = "is false" if switch in head.norm_switches else "is not in the config"
            detail = f"holds {', '.join(found)}, but {switch} {said}"
            yield finding("norm-tensor-without-switch", Severity.WARNING, subject, detail, author)
        if is_on and not found:
            detail = f"{switch} is true, but there is no tensor {spelling}"
            yield finding("norm-switch-without-tensor", Severity.WARNING, subject, detail, author)
    for key in head.unknown_config_keys:
        detail = f"config key {key} may change the forward pass and is not understood"
        yield finding("head-key-unknown", Severity.WARNING, subject, detail, author)
    if head.defaults_applied:
        detail = ", ".join(f"{key}: {value}" for key, value in head.defaults_applied.items())
        remedy = "Compare with the defaults of the tool that trained the head"
        yield finding("head-defaults", Severity.INFO, subject, detail, remedy)


def _find_embeddings(sample: EmbeddingSample, subject: str) -> Iterator[PairFinding]:
    code, severity, remedy = {
        Likeness.SAME: ("embeddings-same", Severity.INFO, "Nothing to do"),
        Likeness.DIFFERENT: (
            "embeddings-differ",
            Severity.WARNING,
            "Serve it with an engine that keeps the head's own embeddings, and check acceptance after launch",
        ),
        Likeness.BROKEN: ("embeddings-broken", Severity.FAILURE, "Fetch both checkpoints again"),
        Likeness.RANDOM: (
            "embeddings-random",
            Severity.WARNING,
            "Have the head exported again, or borrow the target's embeddings where the engine can",
        ),
    }[sample.likeness]
    yield finding(code, severity, f"{subject}: embeddings", sample.describe(), remedy)
