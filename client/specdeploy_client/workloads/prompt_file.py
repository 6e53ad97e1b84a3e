"""Prompt files: JSONL, one prompt or one conversation a line.

    {"id": "chat-01", "prompt": "...", "segment": "chat", "max_tokens": 64,
     "constraint": {"type": "json_schema", "guide": {"type": "object"}}}
    {"id": "talk-01", "turns": ["...", {"prompt": "...", "max_tokens": 32, "answer": "...", "think_ms": 1500}]}

All but `id` and one of `prompt` and `turns` is optional. `type` is one of `base.GUIDE_TYPES`; `guide` is text, or an
object for a JSON schema. `answer` is what was answered to a turn when it was recorded.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    model_validator,
)

from specdeploy.units import NS_PER_MS
from specdeploy_client.workloads.base import GUIDE_TYPES
from specdeploy_client.workloads.line_files import MAX_NS, MAX_TOKENS, Findings, json_objects, read_text
from specdeploy_client.workloads.sessions import Session, Turn

_EXAMPLE = '{"id": "chat-01", "prompt": "..."}'
_REMEDY = f"Write {_EXAMPLE}; optional are segment, max_tokens, constraint with type and guide, and turns for prompt"
Text = Annotated[str, Field(min_length=1)]
MaxTokens = Annotated[PositiveInt, Field(le=MAX_TOKENS)]


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _Constraint(_Line):
    """Keys as in our files, or as the inputs of the served model are called."""

    type: Text = Field(validation_alias=AliasChoices("type", "guided_decoding_guide_type"))
    guide: str | dict[str, Any] = Field("", validation_alias=AliasChoices("guide", "guided_decoding_guide"))

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.type not in GUIDE_TYPES:
            raise ValueError(f"unknown type {self.type!r}; known are {', '.join(GUIDE_TYPES)}")
        if self.type != "json" and not self.guide:
            raise ValueError(f"type {self.type} needs a guide")
        if self.type == "json" and self.guide:
            raise ValueError("type json takes no guide; a schema has type json_schema")
        if self.type in ("regex", "ebnf_grammar") and not isinstance(self.guide, str):
            raise ValueError(f"the guide of type {self.type} is text, not an object")
        if self.type == "json_schema" and isinstance(self.guide, str):
            _require_schema(self.guide)
        return self

    @property
    def guide_text(self) -> str:
        """The guide as it is sent."""
        return self.guide if isinstance(self.guide, str) else json.dumps(self.guide, ensure_ascii=False)


def _turns_as_objects(content: object) -> object:
    """A turn that is only text stands for {"prompt": text}."""
    if not isinstance(content, list):
        return content
    return tuple({"prompt": turn} if isinstance(turn, str) else turn for turn in content)


class _TurnLine(_Line):
    prompt: Text
    max_tokens: MaxTokens | None = None
    constraint: _Constraint | None = None
    answer: Text | None = None
    think_ms: Annotated[float, Field(ge=0, le=MAX_NS / NS_PER_MS, allow_inf_nan=False)] = 0.0


class _PromptLine(_Line):
    id: Text
    prompt: Text | None = None
    turns: Annotated[tuple[_TurnLine, ...], Field(min_length=1), BeforeValidator(_turns_as_objects)] | None = None
    segment: Text | None = None
    max_tokens: MaxTokens | None = None
    constraint: _Constraint | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a segment; `max_tokens` None means the segment's own limit.

    `text` is the first turn of a conversation. `segment` None: the line names none.
    """

    prompt_id: str
    text: str
    max_tokens: int | None = None
    segment: str | None = None
    guide_type: str | None = None
    guide: str | None = None
    turns: tuple[Turn, ...] = ()

    @property
    def session(self) -> Session:
        """What a workload sends."""
        if self.turns:
            return Session(self.prompt_id, self.turns, is_conversation=True)
        turn = Turn(self.text, self.max_tokens, guide_type=self.guide_type, guide=self.guide)
        return Session(self.prompt_id, (turn,))


def load_prompts(path: Path, known_segments: Collection[str] | None = None) -> tuple[Prompt, ...]:
    """The prompts in `path`. Raises `ConfigError` with the bad lines, named by their numbers.

    `known_segments`: names that lines may have as segment; None: any.
    """
    findings = Findings(path)
    text = read_text(path, f"Write one JSON object a line: {_EXAMPLE}")
    prompts: list[Prompt] = []
    first_line: dict[str, int] = {}
    for number, content in json_objects(text, findings):
        prompt = _parse_line(content, number, findings)
        if prompt is None:
            continue
        if prompt.prompt_id in first_line:
            reason = f"id {prompt.prompt_id!r} was used on line {first_line[prompt.prompt_id]}"
            findings.add(number, "id", reason, "Give every prompt its own id")
        first_line.setdefault(prompt.prompt_id, number)
        if known_segments is not None and prompt.segment is not None and prompt.segment not in known_segments:
            reason = f"no segment is called {prompt.segment!r}"
            findings.add(number, "segment", reason, f"Known segments: {', '.join(known_segments)}")
        prompts.append(prompt)
    findings.raise_if_any()
    return tuple(prompts)


def group_by_segment(prompts: Sequence[Prompt], path: Path, default: str | None) -> dict[str, tuple[Session, ...]]:
    """Sessions by segment. `default`: the segment of a file that names none at all.

    Raises `ConfigError` where only some lines name one, and where none does and `default` is None.
    """
    findings = Findings(path)
    unnamed = [prompt.prompt_id for prompt in prompts if prompt.segment is None]
    if unnamed and len(unnamed) < len(prompts):
        reason = f"{len(unnamed)} of {len(prompts)} prompts name none ({', '.join(unnamed[:5])})"
        findings.add("", "segment", reason, "Give every line a segment, or none")
    elif unnamed and default is None:
        findings.add("", "segment", "no prompt names one", "Name the one they are of with --segments")
    findings.raise_if_any()
    names = dict.fromkeys(prompt.segment or default or "" for prompt in prompts)
    return {name: tuple(prompt.session for prompt in prompts if (prompt.segment or default) == name) for name in names}


def _parse_line(content: dict[str, Any], number: int, findings: Findings) -> Prompt | None:
    """The prompt of one line, or None after adding what is wrong with it."""
    try:
        line = _PromptLine.model_validate(content)
    except ValidationError as error:
        details = error.errors(include_url=False)
        for detail in details:
            # A list whose only entry is wrong counts as empty as well.
            depth = len(detail["loc"])
            if any(len(other["loc"]) > depth and other["loc"][:depth] == detail["loc"] for other in details):
                continue
            key = ".".join(str(part) for part in detail["loc"])
            findings.add(number, key, detail["msg"].removeprefix("Value error, "), _REMEDY)
        return None
    if (line.prompt is None) == (line.turns is None):
        reason = "is missing" if line.prompt is None else "stands beside turns"
        findings.add(number, "prompt", reason, "Give one of prompt and turns")
        return None
    guide_type, guide = _guide_of(line.constraint)
    turns = tuple(_turn_of(turn, line) for turn in line.turns or ())
    text = line.prompt or str(turns[0].text)
    return Prompt(line.id, text, line.max_tokens, line.segment, guide_type, guide, turns)


def _turn_of(turn: _TurnLine, line: _PromptLine) -> Turn:
    """What a turn does not say of itself, its line says for all."""
    guide_type, guide = _guide_of(turn.constraint or line.constraint)
    return Turn(
        text=turn.prompt,
        max_tokens=turn.max_tokens or line.max_tokens,
        answer=turn.answer,
        think_ns=round(turn.think_ms * NS_PER_MS),
        guide_type=guide_type,
        guide=guide,
    )


def _guide_of(constraint: _Constraint | None) -> tuple[str | None, str | None]:
    return (None, None) if constraint is None else (constraint.type, constraint.guide_text or None)


def _require_schema(text: str) -> None:
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise ValueError(f"the guide is not JSON ({error})") from None
    if not isinstance(schema, dict | bool):
        raise ValueError("a JSON schema is an object")
