"""The prompts of a segment as a client would send them: read from its file, in the target's chat template, as tokens.

Prompt files and templates are the client's matter, and this package does not import it; here is only as much as a
measurement needs. The client's `bench` checks a prompt file in full.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specdeploy.errors import ConfigError, SpecDeployError, Violation

_REMEDY = 'Write one JSON object a line: {"id": "chat-01", "prompt": "..."}'


@dataclass(frozen=True, slots=True)
class SegmentPrompt:
    """One user message; `max_tokens` None: the segment's own limit."""

    text: str
    max_tokens: int | None


def read_prompts(path: Path, num_prompts: int) -> tuple[SegmentPrompt, ...]:
    """The first `num_prompts` free prompts, of conversations the first turn. Raises ConfigError.

    Constrained prompts are left out: where they are drafted for at all, grammars cut their drafts.
    """
    prompts: list[SegmentPrompt] = []
    for number, line in _lines(path):
        prompt = _parse(line, number, path)
        if prompt is not None and len(prompts) < num_prompts:
            prompts.append(prompt)
    if not prompts:
        raise ConfigError([Violation(str(path), "", "holds no prompt without a constraint", _REMEDY)])
    return tuple(prompts)


class PromptTemplate:
    """The chat template of a checkpoint, with the settings transformers uses; without one prompts stay as they are."""

    def __init__(self, folder: Path) -> None:
        """`folder` holds chat_template.jinja, or a tokenizer_config.json with it. Raises SpecDeployError."""
        config = _tokenizer_config(folder / "tokenizer_config.json")
        file = folder / "chat_template.jinja"
        source = file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
        self._origin = str(file if file.is_file() else folder / "tokenizer_config.json")
        self._special = {name: _token_text(config.get(name)) for name in ("bos_token", "eos_token")}
        self._template = None
        if isinstance(source, str):
            try:
                self._template = _environment().from_string(source)
            except TemplateError as error:
                raise self._error(error) from error

    def render(self, prompt: str) -> str:
        """One user message up to where the answer begins."""
        if self._template is None:
            return prompt
        messages = [{"role": "user", "content": prompt}]
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, **self._special)
        except TemplateError as error:
            raise self._error(error) from error

    def _error(self, error: TemplateError) -> SpecDeployError:
        return SpecDeployError(f"chat template {self._origin}: {error}. Correct it and build again")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        reason = f"cannot be read ({error.strerror or error})"
        raise ConfigError([Violation(str(path), "", reason, _REMEDY)]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([Violation(str(path), "", f"byte {error.start} is not valid UTF-8", _REMEDY)]) from error
    yield from ((number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip())


def _parse(line: str, number: int, path: Path) -> SegmentPrompt | None:
    """None for a constrained prompt."""
    try:
        content = json.loads(line)
    except ValueError as error:
        raise ConfigError([Violation(str(path), f"line {number}", f"is not JSON ({error})", _REMEDY)]) from error
    turns = content.get("turns") if isinstance(content, dict) else None
    first = turns[0] if isinstance(turns, list) and turns else content
    text = first.get("prompt") if isinstance(first, dict) else first
    if not isinstance(content, dict) or not isinstance(text, str) or not text:
        raise ConfigError([Violation(str(path), f"line {number}", "has no prompt", _REMEDY)])
    first = first if isinstance(first, dict) else {}
    if content.get("constraint") is not None or first.get("constraint") is not None:
        return None
    max_tokens = first.get("max_tokens", content.get("max_tokens"))
    is_limit = isinstance(max_tokens, int) and not isinstance(max_tokens, bool) and max_tokens > 0
    return SegmentPrompt(text, max_tokens if is_limit else None)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # the text goes to a tokenizer, not to a browser
        extensions=["jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now(tz=UTC).strftime(pattern)
    return environment


def _tokenizer_config(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise SpecDeployError(f"{path} is not readable JSON: {error}. Build again with `make engines`") from error
    return content if isinstance(content, dict) else {}


def _token_text(token: object) -> str:
    """A special token is a string or an object with `content`; absent ones print as nothing."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
