"""Command-line flags of TensorRT-LLM's programs, and whether a command keeps to them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from packaging.version import Version

from specdeploy.errors import BuildError
from specdeploy.trtllm.fact_files import BUILD_FLAGS_FILE, TRITON_FILE, load_facts
from specdeploy.trtllm.versions import engine_flow_refusal

_NUMBER = re.compile(r"-?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Flag:
    """One command-line flag. `name` with its dashes; `type` int, float, str, enum, list[str], flag (takes no value) or
    absent (not known); `default` None = left to the program; `choices` None = anything of the type."""

    name: str
    type: str
    default: object
    choices: tuple[str, ...] | None
    aliases: tuple[str, ...]
    is_required: bool
    note: str


class ConvertScript(StrEnum):
    """The `convert_checkpoint.py` scripts whose flags are known."""

    LLAMA = "llama"
    QWEN = "qwen"
    MEDUSA = "medusa"
    EAGLE = "eagle"
    REDRAFTER = "redrafter"


def _flag(name: str, entry: Mapping[str, Any]) -> Flag:
    choices = entry.get("choices")
    return Flag(
        name=name,
        type=entry["type"],
        default=entry.get("default"),
        choices=None if choices is None else tuple(str(choice) for choice in choices),
        aliases=tuple(entry.get("aliases", ())),
        is_required=bool(entry.get("required", False)),
        note=entry.get("note", ""),
    )


def _flags(*tables: Mapping[str, Any]) -> Mapping[str, Flag]:
    """Flags by name and by alias; a later table replaces entries of an earlier one."""
    own = {name: _flag(name, entry) for table in tables for name, entry in table.items() if name.startswith("-")}
    aliases = {alias: flag for flag in own.values() for alias in flag.aliases}
    return MappingProxyType({**aliases, **own})


def build_flags(version: Version) -> Mapping[str, Flag]:
    """Flags of `trtllm-build`, plugin flags included, by name and by alias (an alias maps to the same `Flag`).

    Raises `BuildError` for a version without the command or with one that was never read.
    """
    if reason := engine_flow_refusal(version):
        raise BuildError(f"trtllm-build: {reason}")
    versions = load_facts(BUILD_FLAGS_FILE)["versions"]
    # The tables come from the 0.21-1.0 and from the 1.1-1.2 line; the plugin file of the first was not read.
    later = versions["1.2.1"]
    own = versions["1.0.0"] if version.release[:2] == (1, 0) else later
    flags = _flags(later["plugin_flags"], own["flags"])
    if own is later:
        return flags
    unread = "plugin flags of this version were not read; taken from 1.2.1"
    plugin = later["plugin_flags"]
    return MappingProxyType(
        {name: replace(flag, note=unread) if flag.name in plugin else flag for name, flag in flags.items()}
    )


def build_flags_notes(version: Version) -> tuple[str, ...]:
    """What of `build_flags(version)` was read elsewhere than in that version, a sentence each; () when it was read."""
    if version.release[:2] == (1, 0):
        notes = [f"the plugin flags of trtllm-build {version} were not read: those of 1.2.1 are taken for them"]
        if version != Version("1.0.0"):
            notes.append(f"the flags of trtllm-build {version} were not read: those of 1.0.0 are taken for them")
        return tuple(notes)
    if version == Version("1.2.1"):
        return ()
    return (f"the flags of trtllm-build {version} were not read: those of 1.2.1 are taken for them",)


def convert_flags(script: ConvertScript) -> Mapping[str, Flag]:
    """Flags of a family's `convert_checkpoint.py`, by name and by alias; medusa and eagle add theirs to llama's."""
    scripts = load_facts(BUILD_FLAGS_FILE)["convert_checkpoint"]
    entry = scripts[script.value]
    if "flags" in entry:
        return _flags(entry["flags"])
    return _flags(scripts[ConvertScript.LLAMA.value]["flags"], entry["adds"])


def launch_script_flags() -> Mapping[str, Flag]:
    """Flags of the backend's `launch_triton_server.py`, by name and by alias."""
    return _flags(load_facts(TRITON_FILE)["launch_triton_server"]["args"])


def command_problems(argv: Sequence[str], flags: Mapping[str, Flag]) -> list[str]:
    """What is wrong with the arguments `argv` (program and script left out) of a command with `flags`, all at once:
    unknown flags, values missing, superfluous, of a wrong type or outside the choices, repeated or missing flags."""
    problems: list[str] = []
    seen: set[str] = set()
    for spelled, values in _split_arguments(argv):
        flag = flags.get(spelled)
        if flag is None:
            is_flag = spelled.startswith("-")
            problems.append(f"{spelled}: no such flag" if is_flag else f"{spelled}: a value that belongs to no flag")
            continue
        if flag.name in seen:
            problems.append(f"{flag.name}: given twice")
        seen.add(flag.name)
        problems += [f"{spelled}: {problem}" for problem in _value_problems(flag, values)]
    missing = dict.fromkeys(flag.name for flag in flags.values() if flag.is_required and flag.name not in seen)
    return problems + [f"{name}: missing, it is required" for name in missing]


def _split_arguments(argv: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """(flag, its values) in order; values before the first flag stand for themselves."""
    current: tuple[str, list[str]] | None = None
    for argument in argv:
        if argument.startswith("-") and _NUMBER.fullmatch(argument) is None:
            if current is not None:
                yield current
            spelled, has_value, value = argument.partition("=")
            current = (spelled, [value] if has_value else [])
        elif current is None:
            yield argument, []
        else:
            current[1].append(argument)
    if current is not None:
        yield current


def _value_problems(flag: Flag, values: Sequence[str]) -> Iterator[str]:
    if flag.type == "flag":
        if values:
            yield f"takes no value, got {' '.join(values)}"
        return
    if flag.type == "absent":
        yield "its type is not known, so it must not be generated"
        return
    if not values:
        yield "needs a value"
    elif len(values) > 1 and flag.type != "list[str]":
        yield f"takes one value, got {' '.join(values)}"
    for value in values:
        if not _is_of_type(value, flag.type):
            yield f"'{value}' is no {flag.type}"
        elif flag.choices is not None and value not in flag.choices:
            yield f"'{value}' is none of {', '.join(flag.choices)}"


def _is_of_type(value: str, type_name: str) -> bool:
    if type_name not in ("int", "float"):
        return bool(value)
    try:
        int(value) if type_name == "int" else float(value)
    except ValueError:
        return False
    return True
