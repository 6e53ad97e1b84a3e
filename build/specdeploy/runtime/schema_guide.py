"""Which JSON schemas are enforced: what would be passed over without a word is refused here.

xgrammar 0.2.9 reads one kind of constraint per schema ($ref, const, enum, anyOf, oneOf, allOf or type, in this order)
and skips everything that stands beside it, and it skips keywords it does not know. Tried out keyword by keyword; see
the unit tests.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from specdeploy.runtime.regex_guide import regex_problem

MAX_DEPTH = 64  # compiling takes a time that grows with the cube of the depth
MAX_PROPERTIES = 500  # per object; the time grows with the square


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Enforced by a regular expression each: a date has a day from 1 to 31. The one for ipv4 lets leading zeros through.
_FORMATS = _words(
    "date time date-time duration email uuid ipv6 hostname uri uri-reference uri-template json-pointer "
    "relative-json-pointer"
)
_BOUNDS = _words("minimum maximum exclusiveMinimum exclusiveMaximum")
_ENFORCED = {
    "string": _words("minLength maxLength pattern format"),
    "integer": _BOUNDS | {"format"},  # a remark there, such as int32
    "number": _BOUNDS | {"format"},
    "boolean": frozenset[str](),
    "null": frozenset[str](),
    "array": _words("items prefixItems minItems maxItems"),
    "object": _words("properties required additionalProperties minProperties maxProperties"),
}
# Keywords of JSON Schema that restrict values. A word that is not among them restricts nothing, by the standard.
_ASSERTIONS = frozenset.union(*_ENFORCED.values()) | _words(
    "$ref $dynamicRef $recursiveRef const enum type anyOf oneOf allOf not if then else dependentRequired "
    "dependentSchemas dependencies multipleOf uniqueItems contains minContains maxContains additionalItems "
    "unevaluatedItems patternProperties propertyNames unevaluatedProperties"
)
_KINDS = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf", "type")
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def schema_problem(schema: Any) -> str | None:
    """The first thing in `schema` (parsed JSON) that would not be enforced, with its place; None when all would."""
    return next(_problems(schema, "#", 0), None)


def wrapper_key(schema: Mapping[str, Any]) -> str | None:
    """Under which key the schema lies in what some interfaces wrap around one; None for a schema."""
    if isinstance(schema.get("json_schema"), dict):
        return "json_schema.schema" if isinstance(schema["json_schema"].get("schema"), dict) else "json_schema"
    is_wrapper = isinstance(schema.get("schema"), dict) and not (_ASSERTIONS - {"type"}) & schema.keys()
    return "schema" if is_wrapper else None


def _problems(schema: Any, place: str, depth: int) -> Iterator[str]:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        yield f"{place} is neither an object nor true or false"
        return
    if depth > MAX_DEPTH:
        yield f"{place[:80]}... is nested deeper than {MAX_DEPTH} schemas"
        return
    kind = next((name for name in _KINDS if name in schema), None)
    yield from _ignored(schema, kind, place)
    yield from _wrong_values(schema, kind, place)
    for key, child in _children(schema):
        yield from _problems(child, f"{place}/{key}", depth + 1)


def _ignored(schema: dict[str, Any], kind: str | None, place: str) -> Iterator[str]:
    """Keywords that nothing enforces where they stand."""
    enforced = {kind} if kind is not None else set()
    if kind == "type":
        for name in _types(schema):
            enforced |= _ENFORCED.get(name, frozenset())
    elif kind in ("const", "enum"):
        enforced.add("type")  # compared with the values below
    elif kind is None:
        enforced |= _untyped_keywords(schema)
    for keyword in schema:
        is_void = keyword in ("unevaluatedProperties", "unevaluatedItems", "uniqueItems") and schema[keyword] is False
        if keyword in _ASSERTIONS and keyword not in enforced and not is_void:
            beside = f" beside {kind}" if kind not in (None, keyword) else ""
            yield f"{place}/{keyword} is not enforced{beside}"


def _untyped_keywords(schema: dict[str, Any]) -> frozenset[str]:
    """Without a type, these say that it is an object, or an array."""
    if {"properties", "additionalProperties"} & schema.keys():
        return _ENFORCED["object"]
    return _ENFORCED["array"] if {"items", "prefixItems"} & schema.keys() else frozenset()


def _types(schema: dict[str, Any]) -> list[str]:
    named = schema.get("type")
    return [name for name in (named if isinstance(named, list) else [named]) if isinstance(name, str)]


def _wrong_values(schema: dict[str, Any], kind: str | None, place: str) -> Iterator[str]:
    """Values for which a keyword that is enforced otherwise is not."""
    if kind == "$ref" and not (schema["$ref"] == "#" or str(schema["$ref"]).startswith("#/")):
        yield f"{place}/$ref points to {schema['$ref']!r}: only places in the same schema, such as #/$defs/x, are read"
    if kind in ("const", "enum") and "type" in schema:
        values = [schema["const"]] if kind == "const" else schema["enum"]
        if not all(_is_of(value, _types(schema)) for value in (values if isinstance(values, list) else [])):
            yield f"{place}/type does not fit every value of {kind}, and is not enforced beside it"
    if kind == "allOf" and isinstance(schema["allOf"], list) and len(schema["allOf"]) > 1:
        yield f"{place}/allOf with more than one schema is not enforced"
    if kind == "oneOf" and isinstance(schema["oneOf"], list) and not _are_disjoint(schema["oneOf"]):
        yield f"{place}/oneOf is enforced only where no value can match two of its schemas; write anyOf"
    if kind in ("type", None):
        yield from _wrong_string(schema, place)
        yield from _wrong_object(schema, place)


def _wrong_string(schema: dict[str, Any], place: str) -> Iterator[str]:
    if "string" not in _types(schema):
        return
    if "format" in schema and schema["format"] not in _FORMATS:
        yield f"{place}/format {schema['format']!r} is not enforced; known are {', '.join(sorted(_FORMATS))}"
    ways = [name for name in ("format", "pattern") if name in schema]
    if ways and ({"minLength", "maxLength"} & schema.keys() or len(ways) == 2):
        yield f"{place}: of format, pattern and a length only one is enforced"
    if isinstance(schema.get("pattern"), str) and (problem := regex_problem(schema["pattern"])):
        yield f"{place}/pattern: {problem}"


def _wrong_object(schema: dict[str, Any], place: str) -> Iterator[str]:
    properties = schema.get("properties")
    names = properties.keys() if isinstance(properties, dict) else set()
    if len(names) > MAX_PROPERTIES:
        yield f"{place}/properties has more than {MAX_PROPERTIES} entries"
    required = schema.get("required")
    if isinstance(required, list):
        yield from (
            f"{place}/required names {name!r}, which properties has not" for name in required if name not in names
        )
    counts = [name for name in ("minProperties", "maxProperties") if name in schema]
    if counts and schema.get("additionalProperties", not names) is not False:
        # Free keys may repeat in the text, and the parsed object then has fewer of them.
        yield f"{place}/{counts[0]} is enforced only beside properties and additionalProperties: false"


def _is_of(value: Any, types: list[str]) -> bool:
    return any(
        isinstance(value, _PYTHON_TYPES.get(name, ())) and isinstance(value, bool) <= (name == "boolean")
        for name in types
    )


def _are_disjoint(options: list[Any]) -> bool:
    """Whether no value matches two: different types, or a required property whose constants differ."""
    for index, first in enumerate(options):
        for second in options[index + 1 :]:
            if not (isinstance(first, dict) and isinstance(second, dict) and _exclude(first, second)):
                return False
    return True


def _exclude(first: dict[str, Any], second: dict[str, Any]) -> bool:
    types = _types(first), _types(second)
    if all(types) and not set(types[0]) & set(types[1]):
        return {"integer", "number"} - {*types[0], *types[1]} != set()
    if _constants(first) and _constants(second):
        return not _constants(first) & _constants(second)
    shared = set(first.get("required") or ()) & set(second.get("required") or ())
    return types == (["object"], ["object"]) and any(
        (ours := _constants((first.get("properties") or {}).get(name)))
        and (theirs := _constants((second.get("properties") or {}).get(name)))
        and not ours & theirs
        for name in shared
    )


def _constants(schema: Any) -> frozenset[str]:
    """The strings that are all `schema` allows; nothing for other schemas."""
    if not isinstance(schema, dict):
        return frozenset()
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        return frozenset()
    return frozenset(values)


def _children(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for keyword in ("properties", "$defs", "definitions"):
        if isinstance(schema.get(keyword), dict):
            yield from ((f"{keyword}/{name}", child) for name, child in schema[keyword].items())
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if isinstance(schema.get(keyword), list):
            yield from ((f"{keyword}/{index}", child) for index, child in enumerate(schema[keyword]))
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            yield keyword, schema[keyword]
