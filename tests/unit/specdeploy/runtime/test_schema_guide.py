"""JSON schemas: what is accepted is enforced, what is not enforced is refused with its place."""

import json
from typing import Any

import jsonschema
import pytest
import torch

from helpers.tiny_checkpoint import EOS_ID, make_tokenizer
from specdeploy.runtime.grammar import GrammarCompiler
from specdeploy.runtime.schema_guide import MAX_DEPTH, schema_problem, wrapper_key

TOKENIZER = make_tokenizer()
NUM_TOKENS = TOKENIZER.get_vocab_size()
INTEGER = {"type": "integer", "minimum": 0, "maximum": 9}
WORD = {"enum": ["a", "b"]}

ACCEPTED: dict[str, Any] = {
    "true": True,
    "const": {"const": {"a": [1, 2.5, "x\n"]}, "title": "t"},
    "const with type": {"const": "a", "type": "string"},
    "enum with types": {"enum": ["a", 1, None], "type": ["string", "integer", "null"]},
    "length": {"type": "string", "minLength": 2, "maxLength": 3},
    "pattern": {"type": "string", "pattern": "^[^a][^b].$"},
    "duration": {"type": "string", "format": "duration"},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv6": {"type": "string", "format": "ipv6"},
    "integer": {"type": "integer", "exclusiveMinimum": -3, "maximum": 120},
    "number": {"type": "number", "minimum": 1.5, "exclusiveMaximum": 2.5},
    "several types": {"type": ["string", "null", "integer"], "maxLength": 1, "minimum": 5, "maximum": 7},
    "any of": {"anyOf": [WORD, INTEGER]},
    "one of, by type": {"oneOf": [WORD | {"type": "string"}, INTEGER, {"type": "null"}]},
    "one of, by constant": {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": kind}, "n": INTEGER}, "required": ["kind", "n"]}
            for kind in ("x", "y")
        ]
    },
    "all of one": {"allOf": [{"type": "integer", "minimum": 3, "maximum": 4}]},
    "items": {"type": "array", "items": INTEGER, "minItems": 1, "maxItems": 3, "uniqueItems": False},
    "prefix items": {"type": "array", "prefixItems": [INTEGER, WORD], "items": False, "minItems": 2},
    "properties": {"type": "object", "properties": {"a": INTEGER, "b": WORD, "c": WORD}, "required": ["b"]},
    "count of properties": {
        "type": "object",
        "properties": {"a": INTEGER, "b": WORD, "c": WORD},
        "minProperties": 1,
        "maxProperties": 2,
        "additionalProperties": False,
    },
    "references": {
        "$defs": {"n": {"type": "object", "properties": {"v": INTEGER, "next": {"$ref": "#/$defs/n"}}}},
        "$ref": "#/$defs/n",
    },
    "without a type": {"properties": {"a": INTEGER}, "required": ["a"]},
    "an unknown word": {"type": "integer", "minimum": 1, "maximum": 3, "x-order": 7, "format": "int32"},
}

REFUSED: dict[str, tuple[Any, str]] = {
    "not": ({"type": "string", "not": {"const": "a"}}, "#/not is not enforced"),
    "if": ({"if": {"type": "string"}, "then": {}}, "#/if is not enforced"),
    "dependent": ({"type": "object", "dependentRequired": {"a": ["b"]}}, "#/dependentRequired is not enforced"),
    "multiple": ({"type": "integer", "multipleOf": 3}, "#/multipleOf is not enforced"),
    "unique": ({"type": "array", "uniqueItems": True}, "#/uniqueItems is not enforced"),
    "contains": ({"type": "array", "contains": INTEGER}, "#/contains is not enforced"),
    "pattern properties": ({"type": "object", "patternProperties": {"^a": INTEGER}}, "#/patternProperties is not"),
    "property names": ({"type": "object", "propertyNames": {"maxLength": 1}}, "#/propertyNames is not"),
    "two of all": ({"allOf": [INTEGER, {"minimum": 3}]}, "#/allOf with more than one schema"),
    "overlapping": ({"oneOf": [INTEGER, {"type": "number"}]}, "#/oneOf is enforced only where no value can match two"),
    "overlapping constants": ({"oneOf": [{"const": "a"}, {"enum": ["a", "b"]}]}, "#/oneOf is enforced only"),
    "beside a reference": ({"$ref": "#/$defs/a", "minimum": 3, "$defs": {"a": INTEGER}}, "#/minimum is not enforced"),
    "beside any of": ({"anyOf": [WORD, INTEGER], "type": "string"}, "#/type is not enforced beside anyOf"),
    "elsewhere": ({"$ref": "http://x/y"}, "#/$ref points to 'http://x/y'"),
    "an anchor": ({"$ref": "#foo"}, "#/$ref points to '#foo'"),
    "no type": ({"minimum": 3}, "#/minimum is not enforced"),
    "wrong type": ({"type": "integer", "minLength": 3}, "#/minLength is not enforced beside type"),
    "constant of another type": ({"const": 1, "type": "string"}, "#/type does not fit every value of const"),
    "a boolean is no integer": ({"enum": [True], "type": "integer"}, "#/type does not fit every value of enum"),
    "format": ({"type": "string", "format": "phone"}, "#/format 'phone' is not enforced; known are date"),
    "format let through": ({"type": "string", "format": "ipv4"}, "#/format 'ipv4' is not enforced"),
    "pattern and length": ({"type": "string", "pattern": "a+", "maxLength": 3}, "#: of format, pattern and a length"),
    "lookahead": ({"type": "string", "pattern": "^(?=a)b"}, "#/pattern: the group (?= at character 2"),
    "anchor": ({"type": "string", "pattern": "a|^b"}, "#/pattern: the anchor ^ at character 3"),
    "required": ({"type": "object", "properties": {"a": INTEGER}, "required": ["c"]}, "#/required names 'c'"),
    "counted free keys": ({"type": "object", "minProperties": 2}, "#/minProperties is enforced only"),
    "deep inside": (
        {"type": "object", "properties": {"a": {"type": "array", "items": {"anyOf": [{"not": {}}]}}}},
        "#/properties/a/items/anyOf/0/not is not enforced",
    ),
    "in a definition": ({"$defs": {"a": {"type": "array", "uniqueItems": True}}}, "#/$defs/a/uniqueItems"),
}


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(TOKENIZER, num_token_ids=NUM_TOKENS)


@pytest.mark.parametrize("schema", ACCEPTED.values(), ids=ACCEPTED)
def test_what_is_accepted_is_enforced(compiler: GrammarCompiler, schema: Any) -> None:
    assert schema_problem(schema) is None
    num_finished = 0
    for seed in range(30):
        output = compiler.guided_output("json_schema", json.dumps(schema), frozenset({EOS_ID}))
        generator = torch.Generator().manual_seed(seed)
        tokens: list[int] = []
        while len(tokens) < 150 and not output.is_finished:
            logits = torch.randn(NUM_TOKENS, generator=generator)
            output.mask_logits(logits)
            token = int(logits.argmax())
            output.accept(token)
            if token == EOS_ID:
                break
            tokens.append(token)
        if len(tokens) < 150:
            num_finished += 1
            value = json.loads(TOKENIZER.decode(tokens))
            jsonschema.validate(value, schema, format_checker=jsonschema.FormatChecker())
    assert num_finished >= 3


@pytest.mark.parametrize(("schema", "problem"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_enforced_is_refused_with_its_place(schema: Any, problem: str) -> None:
    assert (schema_problem(schema) or "").startswith(problem)


def test_depth_and_breadth_are_limited() -> None:
    schema: Any = INTEGER
    for _ in range(MAX_DEPTH):
        schema = {"type": "array", "items": schema}
    assert schema_problem(schema) is None
    assert "is nested deeper than 64 schemas" in (schema_problem({"type": "array", "items": schema}) or "")
    wide = {"type": "object", "properties": {f"k{i}": INTEGER for i in range(501)}}
    assert schema_problem(wide) == "#/properties has more than 500 entries"


@pytest.mark.parametrize(
    ("schema", "key"),
    [
        ({"name": "x", "schema": {"type": "object"}}, "schema"),
        ({"name": "x", "strict": True, "schema": {}}, "schema"),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}, "json_schema.schema"),
        ({"json_schema": {"type": "object"}}, "json_schema"),
        ({"type": "object", "properties": {"schema": {"type": "string"}}}, None),
        ({"type": "object", "properties": {}, "schema": {}}, None),
        ({}, None),
    ],
)
def test_wrappers_are_told_from_schemas(schema: dict[str, Any], key: str | None) -> None:
    assert wrapper_key(schema) == key
