"""The target's tokenizer as serving needs it."""

from pathlib import Path

from tokenizers import Tokenizer


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
