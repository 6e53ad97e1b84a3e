"""Draft models that leave their embeddings out and read the target's: they were trained on them and never changed them.

Heads say the same tensor by tensor (`HeadFacts.tensors`).
"""

from collections.abc import Iterator

from specdeploy.checkpoint.pair_findings import finding
from specdeploy.checkpoint_contract import CheckpointInfo, CheckpointKind, PairFinding, Severity, TensorOrigin

_EMBEDDING = "model.embed_tokens.weight"


def borrows_embedding(draft: CheckpointInfo | None) -> bool:
    """Whether the weights of a draft model are there, but for its embeddings."""
    return (
        draft is not None
        and draft.kind is CheckpointKind.CAUSAL_LM
        and draft.parameters_from == "headers"
        and draft.vocabulary.embedding_rows is None
    )


def borrows_some_rows(draft: CheckpointInfo | None) -> bool:
    """Whether a draft takes rows of the target's embedding, those that its d2t names, for its lm_head."""
    if draft is None or (head := draft.head) is None:
        return False
    is_reduced = head.has_d2t and head.draft_vocab_size not in (None, head.target_vocab_size)
    return is_reduced and head.tensors.get("lm_head.weight") is TensorOrigin.BORROWED_FROM_TARGET


def find_borrowed_embeddings(target: CheckpointInfo, draft: CheckpointInfo) -> Iterator[PairFinding]:
    """The target's embeddings [V, H] stand in where the draft reads as many tokens by vectors of the same width."""
    if not borrows_embedding(draft):
        return
    subject = f"draft {draft.reference}"
    shapes = [(info.vocabulary.config_vocab_size, info.hidden_size) for info in (target, draft)]
    if shapes[0] == shapes[1] and None not in shapes[0]:
        detail = f"embeddings borrowed from the target: {_EMBEDDING} is not among its tensors"
        yield finding("embeddings-borrowed", Severity.INFO, subject, detail, "Nothing to do in lane torch")
        return
    ours, theirs = (f"[{_said(rows)}, {_said(width)}]" for rows, width in shapes)
    detail = f"{_EMBEDDING} is not among its tensors, and the target's {ours} cannot stand in for {theirs}"
    remedy = "Use the draft with the target it was trained for, or export it with its embeddings"
    yield finding("embeddings-missing", Severity.FAILURE, subject, detail, remedy)


def _said(size: int | None) -> str:
    return "not stated" if size is None else str(size)
