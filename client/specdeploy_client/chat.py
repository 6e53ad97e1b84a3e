"""Turns a conversation into the text an instruction-tuned target expects, with the checkpoint's own chat template.

The template runs in jinja2's sandbox with the settings transformers uses (`trim_blocks`, `lstrip_blocks`), so that it
renders the same text without transformers.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specdeploy.errors import ClientError


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A chat template, where it came from, and the two tokens templates may print."""

    source: str
    origin: str
    bos_token: str = ""
    eos_token: str = ""


def load_chat_template(path: Path) -> ChatTemplate:
    """The template in `path`, with the tokens of the tokenizer_config.json beside it when there is one."""
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ClientError(f"chat template {path} cannot be read: {error}. Name a jinja file, or use --raw") from error
    tokens = _special_tokens(path.parent / "tokenizer_config.json")
    return ChatTemplate(source=source, origin=str(path), **tokens)


def find_chat_template(deployment: str, engines_root: Path) -> ChatTemplate | None:
    """The chat template of the current build of `deployment`, or None when the build has none.

    `engines/<deployment>.json` names the current build and its checkpoint folder, relative to the engines root.
    """
    folder = find_target_folder(deployment, engines_root)
    if folder is None:
        return None
    if (folder / "chat_template.jinja").is_file():
        return load_chat_template(folder / "chat_template.jinja")
    tokenizer_config = folder / "tokenizer_config.json"
    source = _load_json(tokenizer_config).get("chat_template")
    if not isinstance(source, str):
        return None
    return ChatTemplate(source=source, origin=str(tokenizer_config), **_special_tokens(tokenizer_config))


def render_user_prompt(template: ChatTemplate, prompt: str) -> str:
    """One user message, rendered up to where the assistant's answer begins."""
    return render_turns(template, (prompt,))


def render_turns(template: ChatTemplate, turns: tuple[str, ...]) -> str:
    """`turns` (user, assistant, user, ...; the last one a user's), rendered up to where the next answer begins."""
    messages = [
        {"role": "user" if number % 2 == 0 else "assistant", "content": turn} for number, turn in enumerate(turns)
    ]
    try:
        return _compile(template.source).render(
            messages=messages,
            add_generation_prompt=True,
            bos_token=template.bos_token,
            eos_token=template.eos_token,
        )
    except TemplateError as error:
        raise ClientError(
            f"chat template {template.origin}: {error}. Give another one with --chat-template, or use --raw"
        ) from error


def find_target_folder(deployment: str, engines_root: Path) -> Path | None:
    """The checkpoint folder of the current build of `deployment`, or None when it has no build."""
    folder = _load_json(engines_root / f"{deployment}.json").get("target_folder")
    return engines_root / folder if isinstance(folder, str) else None


@lru_cache(maxsize=8)  # compiling takes longer than rendering
def _compile(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # the text goes to a tokenizer, not to a browser
        extensions=["jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now(tz=UTC).strftime(pattern)
    return environment.from_string(source)


def _special_tokens(tokenizer_config: Path) -> dict[str, str]:
    config = _load_json(tokenizer_config)
    return {name: _token_text(config.get(name)) for name in ("bos_token", "eos_token")}


def _token_text(token: Any) -> str:
    """A special token is a string or an object with `content`; absent ones print as nothing."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _load_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; {} when there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ClientError(f"{path} is not readable JSON: {error}. Build again with `make engines`") from error
    return content if isinstance(content, dict) else {}


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
