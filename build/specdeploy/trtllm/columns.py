"""Fields of `speculative_config` and of the LLM arguments, for each version that was read.

A *column* is one entry of `versions` in the files. A version that has no column of its own is placed between the two
that were read: only what both have counts. What lies outside everything that was read is refused, never guessed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from packaging.version import Version

from specdeploy.errors import BuildError
from specdeploy.trtllm.fact_files import LLM_ARGS_FILE, SPECULATIVE_FILE, load_facts
from specdeploy.trtllm.probe_record import PROBE_COMMAND

JULY_MAIN = "1.3.0rc (July-Aug 2026 main)"
LLM_ARGS_GROUPS = ("base", "torch", "kv_cache_config", "cuda_graph_config")


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a pydantic class. `type` as the facts write it (`int|null`); `default` means nothing where
    `is_default_absent`; `is_settable` False = not to be given in input; bounds are inclusive, None = not known."""

    name: str
    type: str
    default: object
    is_required: bool
    is_settable: bool
    aliases: tuple[str, ...]
    is_default_absent: bool
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[object, ...] | None = None

    @property
    def accepted_names(self) -> tuple[str, ...]:
        """Every name under which it is accepted in input, its own first."""
        return (self.name, *self.aliases)


@dataclass(frozen=True, slots=True)
class Column:
    """Where the fields of a version are read. `name` is a key of the file, or the version itself where several are
    combined; a field counts when every key in `sources` has it. `is_exact`: read for exactly this version."""

    name: str
    is_exact: bool
    note: str
    sources: tuple[str, ...]


def _exact(name: str) -> Column:
    return Column(name, is_exact=True, note="", sources=(name,))


def _between(name: str, version: Version, *sources: str) -> Column:
    note = f"{version} was not read: only fields that {' and '.join(sources)} both have are used"
    return Column(name, is_exact=False, note=note, sources=sources)


def speculative_column(version: Version) -> Column:
    """Where to read `speculative_config` of `version`. Raises `BuildError` where nothing near it was read: older than
    1.0.0, between 1.2.1 and 1.3.0rc27, later than 1.4.0rc4. There only a probe of the package helps."""
    _refuse_unread(version)
    if (exact := next((name for name in _READ_EXACTLY if Version(name) == version), None)) is not None:
        return _exact(exact)
    if is_121(version):
        return Column("1.2.1", is_exact=False, note=_with_unread(_NOTE_121, version), sources=("1.2.1",))
    if version < Version("1.2.0rc0"):
        return _between("1.1.0" if version.release[:2] == (1, 1) else str(version), version, "1.0.0", "1.2.0rc")
    if version < Version("1.2.0"):
        return Column("1.2.0rc", is_exact=False, note=_NOTE_120RC, sources=("1.2.0rc",))
    if version < Version("1.2.1"):
        return _between(str(version), version, "1.2.0rc", "1.2.1")
    if version < Version("1.4.0rc1"):
        return _between(str(version), version, "1.3.0rc27", "1.4.0rc1")
    return _between(str(version), version, "1.4.0rc1", "1.4.0rc4")


_READ_EXACTLY = ("1.0.0", "1.3.0rc27", "1.4.0rc1", "1.4.0rc4")
_NOTE_121 = "only part of 1.2.1 was seen, in a transcript; how its methods are spelled was not"
_NOTE_120RC = "read from main of late 2025; which candidate of 1.2.0 that was is not known"


def is_121(version: Version) -> bool:
    """Whether `version` is 1.2.1 or a later build of it, such as 1.2.1.post1 and 1.2.1.2511."""
    return version.release[:3] == (1, 2, 1) and not version.is_prerelease


def _with_unread(note: str, version: Version) -> str:
    return note if version == Version("1.2.1") else f"{version} was not read, it is taken for 1.2.1: {note}"


def unread_reason(version: Version) -> str | None:
    """Why nothing that was read says what `version` has, None where something does."""
    if version < Version("1.0.0"):
        return "is older than 1.0.0, the first whose LLM arguments are used"
    if version.release[:3] > (1, 2, 1) and version < Version("1.3.0rc27"):
        return "was not read, and which state of main it was cut from is not known"
    if version > Version("1.4.0rc4"):
        return "is later than 1.4.0rc4, the last that was read"
    return None


UNREAD_REMEDY = (
    "Use 1.0.0 to 1.2.1 or 1.3.0rc27 to 1.4.0rc4, or probe the installed package with"
    f" `{PROBE_COMMAND}` where it is installed"
)


def _refuse_unread(version: Version) -> None:
    if (reason := unread_reason(version)) is not None:
        raise BuildError(f"tensorrt_llm.version: {version} {reason}. {UNREAD_REMEDY}")


# A class that the page of a candidate did not show is read where it was shown last.
_READ_BEFORE = {"1.4.0rc4": "1.4.0rc1", "1.4.0rc1": "1.3.0rc27", "1.3.0rc27": JULY_MAIN}


def _read_in(source: str, decoding_type: str) -> str | None:
    """The key of the file where the class of `decoding_type` in `source` was read, None when it has no such class."""
    versions = load_facts(SPECULATIVE_FILE)["versions"]
    while decoding_type not in versions[source]["types"]:
        if decoding_type not in versions[source].get("types_not_read", ()) or source not in _READ_BEFORE:
            return None
        source = _READ_BEFORE[source]
    return source


@cache
def type_sources(column: Column, decoding_type: str) -> tuple[str, ...]:
    """Keys of the file where the class of `decoding_type` was read for `column`; empty when some source lacks it."""
    found = [_read_in(source, decoding_type) for source in column.sources]
    return tuple(dict.fromkeys(key for key in found if key is not None)) if None not in found else ()


@cache
def speculative_types(column: Column) -> Mapping[str, Mapping[str, Field]]:
    """decoding_type -> its fields, for every type that all of the column's sources have."""
    versions = load_facts(SPECULATIVE_FILE)["versions"]
    first = versions[column.sources[0]]
    names = (*first["types"], *first.get("types_not_read", ()))
    types: dict[str, Mapping[str, Field]] = {}
    for name in names:
        if keys := type_sources(column, name):
            types[name] = _common([_fields(versions[key]["types"][name]["fields"]) for key in keys])
    return MappingProxyType(types)


@cache
def pytorch_types(column: Column) -> frozenset[str]:
    """The decoding types of `column` that the PyTorch backend serves (others belong to the engine flow)."""
    versions = load_facts(SPECULATIVE_FILE)["versions"]
    return frozenset(
        name
        for name in speculative_types(column)
        if all("pytorch" in versions[key]["types"][name]["backends"] for key in type_sources(column, name))
    )


def llm_args_column(version: Version) -> Column:
    """Where to read the LLM arguments of `version`; raises `BuildError` as `speculative_column` does."""
    _refuse_unread(version)
    if version == Version("1.0.0"):
        return _exact("1.0.0")
    if version < Version("1.2.0rc0"):
        return _between("1.1.0" if version.release[:2] == (1, 1) else str(version), version, "1.0.0", "1.2.0rc")
    if version < Version("1.2.0"):
        return Column("1.2.0rc", is_exact=False, note=_NOTE_120RC, sources=("1.2.0rc",))
    if is_121(version):
        note = "groups of 1.2.1 that were not seen: only fields that the versions before and after it have"
        return Column("1.2.1", is_exact=False, note=_with_unread(note, version), sources=("1.2.1",))
    if version < Version("1.2.1"):
        return _between(str(version), version, "1.2.0rc", "1.2.1")
    note = f"read from main of July-August 2026, not from {version} itself"
    return Column(JULY_MAIN, is_exact=False, note=note, sources=(JULY_MAIN,))


# The file itself says for 1.2.1: PyTorch-only fields as its neighbours agree, kv_cache_config as 1.0.0 and main agree.
_UNSEEN_IN_121 = {
    "torch": ("1.2.0rc", JULY_MAIN),
    "kv_cache_config": ("1.0.0", "1.2.0rc", JULY_MAIN),
    "cuda_graph_config": ("1.0.0", "1.2.0rc", JULY_MAIN),
}


@cache
def llm_args_fields(column: Column, group: str) -> Mapping[str, Field]:
    """Fields of one group (one of `LLM_ARGS_GROUPS`) that all of the column's sources have."""
    versions = load_facts(LLM_ARGS_FILE)["versions"]
    keys: list[str] = []
    for source in column.sources:
        keys += _UNSEEN_IN_121.get(group, (source,)) if source == "1.2.1" else (source,)
    return _common([_fields(versions[key][group]) for key in dict.fromkeys(keys)])


def _fields(table: Mapping[str, Any]) -> Mapping[str, Field]:
    """Fields of one class; entries that are texts (notes) or say that a field was removed are none."""
    return {name: _field(name, entry) for name, entry in table.items() if isinstance(entry, dict) and "type" in entry}


def _field(name: str, entry: Mapping[str, Any]) -> Field:
    choices = entry.get("choices")
    return Field(
        name=name,
        type=entry["type"],
        default=entry.get("default"),
        is_required=bool(entry.get("required", False)),
        is_settable=bool(entry.get("settable", True)),
        aliases=tuple(entry.get("aliases", ())),
        is_default_absent=bool(entry.get("default_absent", False)),
        minimum=entry.get("min"),
        maximum=entry.get("max"),
        choices=None if choices is None else tuple(choices),
    )


def _common(tables: Sequence[Mapping[str, Field]]) -> Mapping[str, Field]:
    """Fields whose name, or one of whose aliases, is accepted by every table; required where any table requires it."""
    if len(tables) == 1:
        return MappingProxyType(dict(tables[0]))
    by_name = [_by_accepted_name(table.values()) for table in tables]
    common: dict[str, Field] = {}
    for field in tables[0].values():
        names = [name for name in field.accepted_names if all(name in names for names in by_name)]
        if names:
            entries = [table[names[0]] for table in by_name]
            common[names[0]] = _merged(names, entries)
    return MappingProxyType(common)


def _by_accepted_name(fields: Iterable[Field]) -> dict[str, Field]:
    return {name: field for field in fields for name in field.accepted_names}


def _merged(names: Sequence[str], entries: Sequence[Field]) -> Field:
    first = entries[0]
    has_one_default = all(entry.default == first.default and not entry.is_default_absent for entry in entries)
    return replace(
        first,
        name=names[0],
        aliases=tuple(names[1:]),
        default=first.default if has_one_default else None,
        is_default_absent=not has_one_default,
        is_required=any(entry.is_required for entry in entries),
        is_settable=all(entry.is_settable for entry in entries),
        minimum=max((entry.minimum for entry in entries if entry.minimum is not None), default=None),
        maximum=min((entry.maximum for entry in entries if entry.maximum is not None), default=None),
        choices=_common_choices(entries),
    )


def _common_choices(entries: Sequence[Field]) -> tuple[object, ...] | None:
    known = [entry.choices for entry in entries if entry.choices is not None]
    if not known:
        return None
    return tuple(choice for choice in known[0] if all(choice in choices for choices in known))
