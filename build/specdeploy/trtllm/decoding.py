"""`speculative_config`: how a drafting method is spelled in a version, and the fields its class accepts there."""

from collections.abc import Container, Iterable, Mapping
from types import MappingProxyType

from packaging.version import InvalidVersion, Version

from specdeploy.contract import Method
from specdeploy.errors import BuildError
from specdeploy.trtllm.facts import (
    LLM_ARGS_GROUPS,
    SPECULATIVE_FILE,
    Column,
    Field,
    llm_args_column,
    llm_args_fields,
    load_facts,
    pytorch_types,
    speculative_column,
    speculative_types,
)
from specdeploy.trtllm.probe_record import PROBE_COMMAND, ProbeRecord

UNRESOLVED = "unresolved:"

# Every spelling a method has had since 1.0.0, the newest first: where a package accepts both, the old one only warns.
SPELLINGS: Mapping[Method, tuple[str, ...]] = MappingProxyType(
    {
        Method.EAGLE3: ("Eagle3", "Eagle"),
        Method.DRAFT_MODEL: ("Draft_Target", "DraftTarget"),
        Method.NGRAM: ("NGram",),
        Method.MTP: ("MTP",),
    }
)
_CANDIDATES_KEY = {Method.EAGLE3: "EAGLE-3", Method.DRAFT_MODEL: "draft/target"}
_UNKNOWN_TYPE = "unknown"


def probe_mismatch(version: Version, probe: ProbeRecord | None) -> str | None:
    """Why `probe` says nothing about `version`, None where it does or there is none."""
    if probe is None:
        return None
    try:
        is_same = Version(probe.version) == version
    except InvalidVersion:
        is_same = False
    return None if is_same else f"the probe record is of TensorRT-LLM {probe.version}, the deployment names {version}"


def check_probe(version: Version, probe: ProbeRecord | None) -> None:
    """Raises `BuildError` when `probe` is of another version than `version`: its answers say nothing here."""
    if (reason := probe_mismatch(version, probe)) is not None:
        raise BuildError(f"tensorrt_llm.version: {reason}. Run `{PROBE_COMMAND}` where {version} is installed")


def spelling(method: Method, version: Version, probe: ProbeRecord | None) -> str:
    """The `decoding_type` of `method`, or `unresolved:<candidate>|<candidate>` where only a probe can tell.

    Raises `BuildError` for a method the LLM API does not have, a version nothing is known of, a probe of another
    version, and a package that accepts none of the spellings.
    """
    check_probe(version, probe)
    if method not in SPELLINGS:
        known = ", ".join(SPELLINGS)
        raise BuildError(f"speculation.method: the LLM API has no method {method}. Use one of: {known}")
    if probe is not None and method.value in probe.spellings:
        accepted = probe.spellings[method.value]
        if accepted is None:
            tried = " or ".join(SPELLINGS[method])
            raise BuildError(
                f"speculation.method: TensorRT-LLM {version} as installed accepts no decoding_type {tried}, so it"
                f" cannot serve method {method}. Choose another method or another version"
            )
        return accepted
    column = speculative_column(version)
    if candidates := _unresolved_candidates(method, column):
        return UNRESOLVED + "|".join(candidates)
    types = speculative_types(column)
    for candidate in SPELLINGS[method]:
        if candidate in types:
            return candidate
    raise BuildError(f"speculation.method: TensorRT-LLM {version} has no method {method}. Choose another one")


def _unresolved_candidates(method: Method, column: Column) -> tuple[str, ...]:
    """Spellings between which the facts of `column` do not decide; empty where they do."""
    versions = load_facts(SPECULATIVE_FILE)["versions"]
    found: set[str] = set()
    for source in column.sources:
        candidates = versions[source].get("spelling_candidates", {})
        found.update(candidates.get(_CANDIDATES_KEY.get(method, ""), ()))
    return tuple(sorted(found))


def method_of(decoding_type: str) -> Method | None:
    """The method that `decoding_type` spells in some version, None for types this project does not render."""
    return next((method for method, names in SPELLINGS.items() if decoding_type in names), None)


def class_fields(decoding_type: str, version: Version, probe: ProbeRecord | None) -> Mapping[str, Field] | None:
    """Every settable name that the class of `decoding_type` accepts in `version`; aliases lead to the same field.

    None when that version's PyTorch backend has no such type. Where the probe answered for the method its list decides
    and the facts only add types and bounds. Spellings between which the facts do not decide, and `unresolved:` values,
    share one class. Raises `BuildError` where nothing is known of the version.
    """
    column = _column(version, probe)
    known = None if column is None else _read_fields(decoding_type, column)
    method = method_of(decoding_type)
    if probe is None or method is None or method.value not in probe.spellings:
        return None if known is None else _by_accepted_name(known.values())
    if probe.spellings[method.value] != decoding_type:
        return None
    return _probed_fields(probe.speculative_fields.get(decoding_type, ()), known or {})


def _read_fields(decoding_type: str, column: Column) -> Mapping[str, Field] | None:
    types, served = speculative_types(column), pytorch_types(column)
    return next((types[name] for name in _read_names(decoding_type, column) if name in served), None)


def _read_names(decoding_type: str, column: Column) -> list[str]:
    """Names under which the class of `decoding_type` may have been read: its own, then those it shares it with."""
    names = [decoding_type, *decoding_type.removeprefix(UNRESOLVED).split("|")]
    for method in SPELLINGS:
        if decoding_type in (candidates := _unresolved_candidates(method, column)):
            names += candidates
    return names


def read_name(decoding_type: str, column: Column) -> str:
    """The name under which the class of `decoding_type` was read for `column`; itself where it was not."""
    served = pytorch_types(column)
    return next((name for name in _read_names(decoding_type, column) if name in served), decoding_type)


def mtp_depth_key(version: Version, names: Container[str]) -> str:
    """The field that sets the depth of MTP. From 1.3.0rc27 on it is max_draft_len, and the old name, where a package
    still lists it, is only moved over with a warning; before, the old name sets it and overwrites the other."""
    is_old = version < Version("1.3.0rc27") and "num_nextn_predict_layers" in names
    return "num_nextn_predict_layers" if is_old else "max_draft_len"


def unresolved_reason(decoding_type: str, version: Version, probe: ProbeRecord | None) -> str | None:
    """Why it is not known that `version` accepts `decoding_type`, None when the facts or the probe settle it."""
    method = method_of(decoding_type.removeprefix(UNRESOLVED).split("|")[0])
    if method is None or (probe is not None and method.value in probe.spellings):
        return None
    candidates = _unresolved_candidates(method, speculative_column(version))
    if not candidates:
        return None
    return (
        f"TensorRT-LLM {version} spells method {method} either {' or '.join(candidates)}, and nothing that was read"
        f" says which. Run `{PROBE_COMMAND}` where it is installed, then build again"
    )


def _column(version: Version, probe: ProbeRecord | None) -> Column | None:
    """The column of `version`; None where nothing was read but a probe answers."""
    try:
        return speculative_column(version)
    except BuildError:
        if probe is None:
            raise
        return None


def argument_fields(version: Version, probe: ProbeRecord | None) -> Mapping[str, Field]:
    """Every settable top-level LLM argument of `version` for the PyTorch backend; raises `BuildError` where unknown."""
    known = {**_group(version, probe, "base"), **_group(version, probe, "torch")}
    return _by_accepted_name(known.values()) if probe is None else _probed_fields(probe.llm_args_fields, known)


def group_fields(group: str, version: Version, probe: ProbeRecord | None) -> Mapping[str, Field] | None:
    """Settable fields of `kv_cache_config` or `cuda_graph_config`; None where nothing is known of them."""
    known = _group(version, probe, group)
    if probe is not None and group == "kv_cache_config":
        return _probed_fields(probe.kv_cache_fields, known)
    return _by_accepted_name(known.values()) if known else None


def _group(version: Version, probe: ProbeRecord | None, group: str) -> Mapping[str, Field]:
    assert group in LLM_ARGS_GROUPS  # noqa: S101 - a name in this package, never a user's
    try:
        return llm_args_fields(llm_args_column(version), group)
    except BuildError:
        if probe is None:
            raise
        return {}


def _by_accepted_name(fields: Iterable[Field]) -> Mapping[str, Field]:
    return MappingProxyType({name: field for field in fields if field.is_settable for name in field.accepted_names})


def _probed_fields(names: Iterable[str], known: Mapping[str, Field]) -> Mapping[str, Field]:
    """The names an installed class accepts, with what the facts know of them."""
    by_name = {name: field for field in known.values() for name in field.accepted_names}
    unknown = {name: Field(name, _UNKNOWN_TYPE, None, False, True, (), True) for name in names}
    fields = {name: by_name.get(name, unknown[name]) for name in unknown}
    return MappingProxyType({name: field for name, field in fields.items() if field.is_settable})
