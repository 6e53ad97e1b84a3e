"""YAML text -> plain data, with the surprises of YAML taken out.

PyYAML reads YAML 1.1: `off` is False, `1:30` is 90, `2026-01-01` is a date, `010` is 8, a repeated key silently wins
over the first. Here scalars follow the YAML 1.2 core schema that editors use: only `true` and `false` are booleans, so
that `constrained: off` means the word. Repeated keys, anchors, tags and infinities are refused, each with its line.
"""

import re
from typing import Any

import yaml

from specdeploy.errors import Violation

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)$")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$")
_MAX_NUMBER_LENGTH = 40  # Python refuses to parse integers of thousands of digits; no setting needs forty


class _CoreSchemaLoader(yaml.SafeLoader):
    """SafeLoader with the YAML 1.2 core schema. `violations` collects what does not stop the parsing."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's interface)

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text)
        self.file = file
        self.violations: list[Violation] = []

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "anchors and aliases are not supported", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        first_line: dict[str, int] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key_node.start_mark)
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in first_line:
                reason = f"repeated on line {line}, first given on line {first_line[key]}"
                self.violations.append(Violation(self.file, key, reason, "Keep one of them."))
            first_line.setdefault(key, line)
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        text = str(node.value)
        if len(text) > _MAX_NUMBER_LENGTH:
            raise yaml.constructor.ConstructorError(None, None, "this number is too long", node.start_mark)
        return int(text) if _INT.match(text) else float(text)

    def construct_text(self, node: yaml.ScalarNode) -> str:
        text = str(node.value)
        try:
            return text.encode("utf-16", "surrogatepass").decode(
                "utf-16"
            )  # "\ud83d\ude00" is one character, as in JSON
        except UnicodeDecodeError:
            raise yaml.constructor.ConstructorError(None, None, "half of a character", node.start_mark) from None

    def refuse_number(self, node: yaml.ScalarNode) -> None:
        raise yaml.constructor.ConstructorError(None, None, f"{node.value} is not a finite number", node.start_mark)


def _add_scalar(tag: str, pattern: str | re.Pattern[str], first: str) -> None:
    _CoreSchemaLoader.add_implicit_resolver(tag, re.compile(pattern), list(first))


_add_scalar("tag:yaml.org,2002:bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF")
_add_scalar("tag:yaml.org,2002:null", r"^(?:~|null|Null|NULL)$", "~nN")
_add_scalar("tag:yaml.org,2002:int", _INT, "-+0123456789")
_add_scalar("tag:yaml.org,2002:float", _FLOAT, "-+.0123456789")
_add_scalar("!not-finite", _NOT_FINITE, "-+.")
_CoreSchemaLoader.yaml_implicit_resolvers[""] = [("tag:yaml.org,2002:null", re.compile("^$"))]
_CoreSchemaLoader.add_constructor("tag:yaml.org,2002:int", _CoreSchemaLoader.construct_number)
_CoreSchemaLoader.add_constructor("tag:yaml.org,2002:float", _CoreSchemaLoader.construct_number)
_CoreSchemaLoader.add_constructor("tag:yaml.org,2002:str", _CoreSchemaLoader.construct_text)
_CoreSchemaLoader.add_constructor("!not-finite", _CoreSchemaLoader.refuse_number)


def parse_yaml(text: str, file: str) -> tuple[object, list[Violation]]:
    """Data of one YAML document and everything wrong with the text; the data is None when it cannot be read."""
    try:
        loader = _CoreSchemaLoader(text, file)
        data: object = loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        what = " ".join(str(part) for part in (error.context, error.problem) if part)
        return None, [Violation(file, "", f"{place}{what}", "Correct the YAML there; indent with spaces.")]
    except yaml.YAMLError as error:  # a character YAML does not allow; PyYAML gives its position in the message
        return None, [Violation(file, "", " ".join(str(error).split()), "Remove that character.")]
    except RecursionError:
        return None, [Violation(file, "", "nested too deeply to be read", "Write at most a few levels.")]
    return data, loader.violations
