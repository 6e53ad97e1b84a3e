"""YAML file -> frozen config, or one ConfigError that lists every violation at once."""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from specdeploy.config.problems import Problem, ProblemsError
from specdeploy.config.schema import (
    NAME_PATTERN,
    DeploymentConfig,
    ServingConfig,
    SpeculationConfig,
    TrafficConfig,
    cross_section_problems,
    is_valid_name,
)
from specdeploy.config.yaml_text import parse_yaml
from specdeploy.contract import Lane
from specdeploy.errors import ConfigError, Violation
from specdeploy.run_contract import Slo

ModelT = TypeVar("ModelT", bound=BaseModel)
Location = tuple[int | str, ...]

_KIND_OF_ERROR = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "tuple_type": "a list (lines starting with '- ')",
    "model_type": "a group of keys, indented below it",
    "model_attributes_type": "a group of keys, indented below it",
}
_BOUND_OF_ERROR = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}

_SECTIONS: dict[str, TypeAdapter[Any]] = {
    "lane": TypeAdapter(Lane),
    "speculation": TypeAdapter(SpeculationConfig),
    "serving": TypeAdapter(ServingConfig),
    "traffic": TypeAdapter(TrafficConfig),
    "slos": TypeAdapter(tuple[Slo, ...]),
}


@dataclass(frozen=True, slots=True)
class LoadedDeployment:
    """A deployment config and the file it came from. `digest` is the SHA-256 of the file's bytes."""

    config: DeploymentConfig
    path: Path
    digest: str
    text: str


def load_deployment(reference: str | Path, configs_root: Path = Path("configs")) -> LoadedDeployment:
    """Load a deployment by name (`configs/deployments/<name>.yaml`) or by the path of its YAML file."""
    path = _resolve_reference(reference, configs_root / "deployments")
    content = _read_file(path)
    text = _decode(content, path)
    data, violations = parse_yaml(text, str(path))
    config: DeploymentConfig | None = None
    if mapping := _require_mapping(data, path, violations):
        config = _validate(mapping, path, DeploymentConfig, violations)
        violations += _check_files(mapping, path)
        if config is None:
            violations += _cross_section_violations(mapping, path)
    if config is None or violations:
        raise ConfigError(_without_repeats(violations))
    return LoadedDeployment(config=config, path=path, digest=hashlib.sha256(content).hexdigest(), text=text)


def load_yaml_model(path: Path, model: type[ModelT]) -> ModelT:
    """Load any other YAML file (a gate, for example) as `model`, with the same error reports."""
    data, violations = parse_yaml(_decode(_read_file(path), path), str(path))
    loaded: ModelT | None = None
    if mapping := _require_mapping(data, path, violations):
        loaded = _validate(mapping, path, model, violations)
    if loaded is None or violations:
        raise ConfigError(_without_repeats(violations))
    return loaded


def list_deployments(configs_root: Path = Path("configs")) -> list[str]:
    """Names of the deployments that exist, sorted."""
    return sorted(path.stem for path in (configs_root / "deployments").glob("*.yaml"))


def _resolve_reference(reference: str | Path, folder: Path) -> Path:
    if isinstance(reference, Path) or "/" in reference or reference.endswith((".yaml", ".yml")):
        return Path(reference)
    known = list_deployments(folder.parent)
    exist = f"Deployments that exist: {', '.join(known)}." if known else f"{folder} holds no deployment yet."
    if not is_valid_name(reference):
        reason = f"'{reference}' is not a deployment name (it must match {NAME_PATTERN})"
        raise ConfigError([Violation(str(folder), "", reason, exist)])
    path = folder / f"{reference}.yaml"
    if not path.exists():
        raise ConfigError([Violation(str(path), "", "no such deployment", _did_you_mean(reference, known) + exist)])
    return path


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        reason = f"cannot be read ({error.strerror or error})"
        raise ConfigError([Violation(str(path), "", reason, "Give the path of a readable YAML file.")]) from error


def _decode(content: bytes, path: Path) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"byte {error.start} is not valid UTF-8"
        raise ConfigError([Violation(str(path), "", reason, "Save the file as UTF-8.")]) from error


def _require_mapping(data: object, path: Path, violations: list[Violation]) -> dict[str, Any] | None:
    if isinstance(data, dict) and data:
        return data
    if not violations:
        seen = "the file is empty" if data is None or data == {} else f"the file holds a {type(data).__name__}"
        violations.append(Violation(str(path), "", f"{seen}, not keys and values", "Write `key: value` lines."))
    return None


def _validate(data: Mapping[str, Any], path: Path, model: type[ModelT], violations: list[Violation]) -> ModelT | None:
    try:
        # Strict JSON mode: lists become tuples and words become enums, but "8000" never becomes 8000 nor 1 True.
        return model.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            violations += _translate(details, str(path), model)
        return None


def _translate(details: ErrorDetails, file: str, model: type[BaseModel]) -> list[Violation]:
    """One pydantic error as violations in plain English."""
    key = _dotted(details["loc"])
    cause = details.get("ctx", {}).get("error")
    if isinstance(cause, ProblemsError):
        return [_violation_of(problem, file, key) for problem in cause.problems]
    return [Violation(file, key, *_explain(details, model))]


def _violation_of(problem: Problem, file: str, section: str = "") -> Violation:
    return Violation(file, _join(section, problem.key), problem.reason, problem.remedy)


def _explain(details: ErrorDetails, model: type[BaseModel]) -> tuple[str, str]:
    """(reason, remedy) of one pydantic error."""
    kind, location, context = details["type"], details["loc"], details.get("ctx", {})
    given = _show(details["input"])
    if kind == "missing":
        description = _describe(model, location)
        return "required key is missing", f"Add it: {description}" if description else "Add it."
    if kind == "extra_forbidden":
        known = _keys_beside(model, location)
        return "unknown key", f"{_did_you_mean(str(location[-1]), known)}Keys known here: {', '.join(known)}."
    if kind in ("enum", "literal_error"):
        words = [word.strip("'") for word in re.split(r", | or ", str(context.get("expected", "")))]
        suggestion = _did_you_mean(str(details["input"]), words)
        if location[-2:] == ("tensorrt_llm", "gpu"):  # a GPU of another generation is no misspelling
            return f"{given} is not allowed: these lanes are for Hopper GPUs only", f"Use one of: {', '.join(words)}."
        return f"{given} is not allowed", f"{suggestion}Use one of: {', '.join(words)}."
    if kind in _KIND_OF_ERROR:
        return f"{given} has the wrong type", f"Write {_KIND_OF_ERROR[kind]}."
    if kind in _BOUND_OF_ERROR:
        word, name = _BOUND_OF_ERROR[kind]
        return f"{given} is out of range", f"It must be {word} {context[name]}."
    if kind == "string_pattern_mismatch" and location[-2:] == ("tensorrt_llm", "version"):
        return f"{given} is no exact version", "Write the exact version, such as 1.2.1."
    if kind == "string_pattern_mismatch":
        return f"{given} is not a valid name", f"It must match {context['pattern']}."
    if kind in ("string_too_short", "too_short"):
        return "it is empty", "Fill it in."
    return f"{details['msg']} (given {given})", "Correct the value."


def _keys_beside(model: type[BaseModel], location: Location) -> list[str]:
    """Keys the model knows at the place of `location`'s last part."""
    owner = _model_at(model, location[:-1])
    return list(owner.model_fields) if owner is not None else []


def _describe(model: type[BaseModel], location: Location) -> str | None:
    """What the schema says of the key at `location`."""
    owner, key = _model_at(model, location[:-1]), str(location[-1])
    return owner.model_fields[key].description if owner is not None and key in owner.model_fields else None


def _model_at(model: type[BaseModel], location: Location) -> type[BaseModel] | None:
    """The model that holds the keys below `location`."""
    current: type[BaseModel] | None = model
    for part in location:
        if isinstance(part, str) and current is not None:
            field = current.model_fields.get(part)
            current = _model_in(field.annotation) if field is not None else None
    return current


def _model_in(annotation: object) -> type[BaseModel] | None:
    """The model inside an annotation such as `tuple[Model, ...]` or `Model | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part)) is not None), None)


def _cross_section_violations(data: Mapping[str, Any], path: Path) -> list[Violation]:
    """Rules between sections, for a file whose sections are not all valid: checked on those that are."""
    sections: dict[str, Any] = {}
    for name, adapter in _SECTIONS.items():
        field = DeploymentConfig.model_fields[name]
        sections[name] = None if field.is_required() else field.default
        if name in data:
            try:
                sections[name] = adapter.validate_json(json.dumps(data[name]), strict=True)
            except ValidationError:  # reported already, with the whole file
                sections[name] = None
    problems = cross_section_problems(**sections, has_tensorrt_llm=data.get("tensorrt_llm") is not None)
    return [_violation_of(problem, str(path)) for problem in problems]


def _check_files(data: Mapping[str, Any], path: Path) -> Iterator[Violation]:
    """What the file says against the disk: its own name and its prompt files."""
    name = data.get("name")
    if isinstance(name, str) and name != path.stem:
        remedy = f"Write {path.stem} or rename the file."
        yield Violation(str(path), "name", f"'{name}' differs from the file name", remedy)
    traffic = data.get("traffic")
    segments = traffic.get("segments") if isinstance(traffic, dict) else None
    for index, segment in enumerate(segments if isinstance(segments, list) else []):
        prompts = segment.get("prompts") if isinstance(segment, dict) else None
        if isinstance(prompts, str) and prompts and not _is_file(path.parent / prompts):
            reason = f"{os.path.normpath(path.parent / prompts)} does not exist"
            remedy = "Give a JSONL file, relative to this YAML file."
            yield Violation(str(path), f"traffic.segments[{index}].prompts", reason, remedy)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long, or with a NUL
        return False


def _dotted(location: Location) -> str:
    """('traffic', 'segments', 0, 'name') -> 'traffic.segments[0].name'."""
    key = ""
    for part in location:
        key = _join(key, f"[{part}]" if isinstance(part, int) else str(part))
    return key


def _join(key: str, rest: str) -> str:
    return f"{key}{rest}" if not key or not rest or rest.startswith("[") else f"{key}.{rest}"


def _show(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _did_you_mean(word: str, known: list[str]) -> str:
    close = get_close_matches(word, known, n=1)
    return f"Did you mean {close[0]}? " if close else ""


def _without_repeats(violations: list[Violation]) -> list[Violation]:
    return list(dict.fromkeys(violations))
