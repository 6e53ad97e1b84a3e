"""Do two tokenizers give every id the same token? A draft's ids are handed to the target as they are."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specdeploy.errors import CheckpointError

MAX_SHOWN = 10


@dataclass(frozen=True, slots=True)
class TokenDifference:
    """One id on which the two vocabularies disagree; None means the id is not in that vocabulary."""

    token_id: int
    target: str | None
    draft: str | None

    def __str__(self) -> str:
        return f"{self.token_id}: target {_shown(self.target)}, draft {_shown(self.draft)}"


def load_vocabulary(tokenizer_json: Path) -> dict[str, int]:
    """Token -> id, added tokens included."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(tokenizer_json)).get_vocab(with_added_tokens=True)


def compare_vocabularies(target: Mapping[str, int], draft: Mapping[str, int]) -> tuple[TokenDifference, ...]:
    """Every id whose token differs, lowest first. Embedding rows beyond the vocabulary are not part of it."""
    target_tokens = {token_id: token for token, token_id in target.items()}
    draft_tokens = {token_id: token for token, token_id in draft.items()}
    return tuple(
        TokenDifference(token_id, target_tokens.get(token_id), draft_tokens.get(token_id))
        for token_id in sorted(target_tokens.keys() | draft_tokens.keys())
        if target_tokens.get(token_id) != draft_tokens.get(token_id)
    )


def check_same_vocabulary(
    target_reference: str, target: Mapping[str, int], draft_reference: str, draft: Mapping[str, int]
) -> None:
    """Raise `CheckpointError` with the first differing ids unless every id means the same token in both."""
    differences = compare_vocabularies(target, draft)
    if not differences:
        return
    shown = "\n".join(f"  {difference}" for difference in differences[:MAX_SHOWN])
    more = f"\n  ... and {len(differences) - MAX_SHOWN} more" if len(differences) > MAX_SHOWN else ""
    raise CheckpointError(
        f"speculation.draft {draft_reference}: its tokenizer differs from that of target {target_reference} "
        f"on {len(differences)} of {max(len(target), len(draft))} ids. "
        f"Use a draft model that was made with the target's tokenizer. Differing ids:\n{shown}{more}"
    )


def _shown(token: str | None) -> str:
    return "has none" if token is None else repr(token)
