"""Regular expressions that would be enforced as something else."""

import pytest

from specdeploy.runtime.regex_guide import regex_problem, without_line_ends

DOT = r"[^\n\r\u2028\u2029]"


@pytest.mark.parametrize(
    "pattern",
    ["", "a", "^a$", r"\^a\$", "[$^]", "[^^]", "(?:ab)+", r"\d+\.\d{2}", r"[\]^]x", "a?(b|c)*", r"é\u00e9\x41"],
)
def test_ordinary_expressions_pass(pattern: str) -> None:
    assert regex_problem(pattern) is None


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("a^b", "the anchor ^ at character 2 is inside the expression"),
        ("(^a)", "the anchor ^ at character 2 is inside the expression"),
        ("a$|b", "the anchor $ at character 2 is inside the expression"),
        ("[a]$b", "the anchor $ at character 4 is inside the expression"),
        (r"\Afoo", r"the escape \A at character 1 is not supported"),
        (r"[\b]", r"the escape \b at character 2 is not supported"),
        (r"(a)\1", r"the escape \1 at character 4 is not supported"),
        (r"\p{L}", r"the escape \p at character 1 is not supported"),
        ("(?!a)", "the group (?! at character 1 is not supported"),
        ("(?P<n>a)", "the group (?P at character 1 is not supported"),
    ],
)
def test_others_are_named(pattern: str, problem: str) -> None:
    assert regex_problem(pattern) == problem


@pytest.mark.parametrize(
    ("pattern", "written"),
    [(".", DOT), (r"\.", r"\."), ("[.]", "[.]"), ("a.*[^.]", f"a{DOT}*[^.]"), (r"[\].].", rf"[\].]{DOT}"), ("", "")],
)
def test_the_dot_is_any_character_but_a_line_end(pattern: str, written: str) -> None:
    assert without_line_ends(pattern) == written
