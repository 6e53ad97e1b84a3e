"""Prompts: JSONL files with one object a line, and which prompt each request of a run gets."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from specdeploy.errors import ConfigError, Violation


class _PromptLine(BaseModel):
    """One line of a prompt file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    id: Annotated[str, Field(min_length=1)]
    prompt: Annotated[str, Field(min_length=1)]
    max_tokens: PositiveInt | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a segment; `max_tokens` None means the segment's own limit."""

    prompt_id: str
    text: str
    max_tokens: int | None = None


def load_prompts(path: Path) -> tuple[Prompt, ...]:
    """The prompts in `path`. Raises `ConfigError` with every bad line, named by its number."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # not splitlines: U+2028 may stand inside a prompt
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        remedy = 'Write one JSON object a line: {"id": "chat-01", "prompt": "..."}'
        raise ConfigError([Violation(str(path), "", f"cannot be read: {reason}", remedy)]) from error
    prompts: list[Prompt] = []
    violations: list[Violation] = []
    first_line: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        prompt = _parse_line(line, place, violations)
        if prompt is None:
            continue
        if prompt.prompt_id in first_line:
            reason = f"id {prompt.prompt_id!r} was used on line {first_line[prompt.prompt_id]}"
            violations.append(Violation(place, "id", reason, "Give every prompt its own id"))
        first_line.setdefault(prompt.prompt_id, number)
        prompts.append(prompt)
    if not prompts and not violations:
        violations.append(Violation(str(path), "", "holds no prompts", "Add at least one line"))
    if violations:
        raise ConfigError(violations)
    return tuple(prompts)


def prompt_at(prompts: Sequence[Prompt], seed: int, segment: str, index: int) -> Prompt:
    """Prompt number `index` of a cell: a pure function of (seed, segment, index).

    It does not know the arm, so both arms get the same prompts. It runs through a shuffled order of all prompts before
    any of them repeats, and reshuffles for every further round.
    """
    round_number, position = divmod(index, len(prompts))
    digest = hashlib.sha256(f"{seed}:{segment}:{round_number}".encode()).digest()
    order = np.random.default_rng(int.from_bytes(digest[:8], "big")).permutation(len(prompts))
    return prompts[int(order[position])]


def _parse_line(line: str, place: str, violations: list[Violation]) -> Prompt | None:
    """The prompt on one line, or None after adding what is wrong with it to `violations`."""
    try:
        content: Any = json.loads(line)
    except ValueError as error:
        violations.append(Violation(place, "", f"is not JSON ({error})", "Write one JSON object a line"))
        return None
    try:
        parsed = _PromptLine.model_validate(content)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            key = ".".join(str(part) for part in detail["loc"])
            remedy = 'A line is {"id": "...", "prompt": "..."} with an optional "max_tokens" of at least 1'
            violations.append(Violation(place, key, detail["msg"], remedy))
        return None
    return Prompt(prompt_id=parsed.id, text=parsed.prompt, max_tokens=parsed.max_tokens)
