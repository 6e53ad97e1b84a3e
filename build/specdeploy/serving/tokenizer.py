"""The target's tokenizer as serving needs it."""

import json
from pathlib import Path

from tokenizers import Tokenizer

from specdeploy.errors import SpecDeployError


def load_tokenizer(folder: Path) -> Tokenizer:
    """`tokenizer.json` of a checkpoint folder, without the truncation and padding that fine-tuning leaves in it: they
    would cut or fill prompts without a word."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def count_token_ids(tokenizer: Tokenizer) -> int:
    """One more than the highest id: ids may have holes, and rows of the vocabulary beyond are padding."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def count_emittable_ids(tokenizer: Tokenizer, folder: Path) -> int:
    """Ids that both the tokenizer and the checkpoint in `folder` know. Raises SpecDeployError."""
    vocab_size = json.loads((folder / "config.json").read_text()).get("vocab_size")
    if not isinstance(vocab_size, int):
        raise SpecDeployError(f"{folder / 'config.json'}: vocab_size: {vocab_size} is no number. Fetch the file again")
    return min(vocab_size, count_token_ids(tokenizer))


def load_eos_ids(folder: Path) -> frozenset[int]:
    """End-of-sequence ids of generation_config.json, else config.json; both may hold one id or a list.

    Raises SpecDeployError where neither says it.
    """
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        if path.is_file():
            value = json.loads(path.read_text()).get("eos_token_id")
            if value is not None:
                return frozenset(value if isinstance(value, list) else [value])
    raise SpecDeployError(f"{folder}: eos_token_id is in neither generation_config.json nor config.json. Add it")
