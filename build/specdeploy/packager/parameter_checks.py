"""Parameters of a C++ model against the facts: names, types, choices, what is fixed and what must be there."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

_BOOLEANS = {"true", "false"}


def _is_number(convert: Callable[[str], object]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            convert(text)
        except ValueError:
            return False
        return True

    return check


_IS_OF_TYPE: Mapping[str, Callable[[str], bool]] = {
    "int": _is_number(int),
    "float": _is_number(float),
    "bool": lambda text: text in _BOOLEANS,
    "str": bool,
    "path": lambda text: text.startswith("/"),
    "list[int]": lambda text: all(_is_number(int)(part) for part in text.split(",")),
}


def parameter_problems(
    parameters: Mapping[str, str], known: Mapping[str, dict[str, Any]], *, blank: tuple[str, ...] = ()
) -> Iterator[str]:
    """What is wrong with `parameters` of a model whose facts are `known`; those in `blank` may be empty (= unset)."""
    for name, value in parameters.items():
        entry = known.get(name)
        if entry is None:
            yield f"parameter {name}: the model has no such parameter"
        elif value or name not in blank:
            yield from (f"parameter {name}: {problem}" for problem in _value_problems(value, entry))
    for name, entry in known.items():
        if name not in parameters and (entry.get("required") or "fixed" in entry):
            yield f"parameter {name}: is missing and has no default"


def _value_problems(value: str, entry: Mapping[str, Any]) -> Iterator[str]:
    if "fixed" in entry and value != entry["fixed"]:
        yield f"'{value}' instead of the fixed value '{entry['fixed']}'"
    if not _IS_OF_TYPE[entry["type"]](value):
        yield f"'{value}' is no {entry['type']}"
    choices = entry.get("choices")
    if choices is not None and value not in choices:
        yield f"'{value}' is none of {', '.join(choices)}"
