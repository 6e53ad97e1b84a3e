"""What `generate_text.py` wrote, as batches: text and the target's states, padded, with the positions that count."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file


@dataclass(frozen=True)
class Sequence:
    """One answer with its prompt or the end of it: `tokens` [L], `states` [S, 4*H] of the last S of the first L - 2
    tokens, answer from `output_start` on."""

    family: str
    tokens: torch.Tensor
    states: torch.Tensor
    output_start: int


@dataclass(frozen=True)
class Batch:
    """B sequences padded to T states: `tokens` [B, T + 2], `states` [B, T, 4*H], `is_output` [B, T + 2] says which
    tokens belong to the answer (padding does not), `families` names each row's."""

    tokens: torch.Tensor
    states: torch.Tensor
    is_output: torch.Tensor
    families: tuple[str, ...]


def load_sequences(folder: Path, *, held_out: bool, whole_prompt: bool = False) -> list[Sequence]:
    """Every sequence of the finished parts in `folder`, either those to train on or those kept for measuring.

    `whole_prompt`: with the part of the prompt whose states were not kept (zeros), for drafts that read tokens only.
    """
    sequences = []
    for path in sorted(folder.glob("*.jsonl")):
        states = load_file(path.with_suffix(".safetensors"))["states"]
        offset = 0
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            first, prompt = record["first_position"], record["prompt_ids"]
            tokens = torch.tensor([*prompt, *record["output_ids"]])
            count = len(tokens) - first - 2
            if record["is_held_out"] == held_out:
                kept, missing = states[offset : offset + count], first if whole_prompt else 0
                sequences.append(
                    Sequence(record["family"], tokens[first - missing :], kept, len(prompt) - first + missing)
                )
            offset += count
        if offset != len(states):
            raise ValueError(f"{path}: {offset} states expected, {len(states)} found")
    return sequences


def frequent_tokens(sequences: list[Sequence], count: int) -> tuple[torch.Tensor, float]:
    """The `count` most frequent output tokens in rising order, and the share of all output tokens they cover."""
    counts = Counter(int(token) for sequence in sequences for token in sequence.tokens[sequence.output_start :])
    kept = [token for token, _ in counts.most_common(count)]
    return torch.tensor(sorted(kept)), sum(counts[token] for token in kept) / counts.total()


def batches(sequences: list[Sequence], batch_size: int, seed: int) -> Iterator[Batch]:
    """Endless batches, each epoch shuffled anew; sequences of similar length share a batch."""
    rng = random.Random(seed)  # noqa: S311 - an order, not a secret
    while True:
        order = sorted(sequences, key=lambda sequence: len(sequence.tokens) + rng.random() * 32)
        groups = [order[start : start + batch_size] for start in range(0, len(order) - batch_size + 1, batch_size)]
        rng.shuffle(groups)
        for group in groups:
            yield collate(group)


def collate(group: list[Sequence]) -> Batch:
    """Pad to the longest. Padded tokens are 0 and count nowhere."""
    longest = max(len(sequence.tokens) for sequence in group)
    tokens = torch.zeros(len(group), longest, dtype=torch.long)
    is_output = torch.zeros(len(group), longest, dtype=torch.bool)
    states = torch.zeros(len(group), longest - 2, group[0].states.shape[1], dtype=group[0].states.dtype)
    for row, sequence in enumerate(group):
        length = len(sequence.tokens)
        tokens[row, :length] = sequence.tokens
        is_output[row, sequence.output_start : length] = True
        states[row, length - 2 - len(sequence.states) : length - 2] = sequence.states
    return Batch(tokens, states, is_output, tuple(sequence.family for sequence in group))
