"""Which regular expressions are enforced as they are meant.

xgrammar 0.2.9 matches the whole text. Anchors inside an expression, lookaheads in the patterns of a JSON schema and
escapes it does not know it passes over with a line in the log, and what it then accepts is another language: here they
are refused. What else it cannot do it raises itself. Classes such as \\w are those of ASCII, as in ECMAScript.
"""

from collections.abc import Iterator

# Escapes of letters and digits with a meaning that xgrammar knows; an escaped sign stands for itself.
_KNOWN_ESCAPES = frozenset("dDwWsStnrfvxu0")
# ECMAScript's line ends; Python's dot leaves out only the first.
_DOT = r"[^\n\r\u2028\u2029]"


def regex_problem(pattern: str) -> str | None:
    """Why `pattern` would not be enforced as it reads, None when it would."""
    last = len(pattern) - 1
    for index, atom, in_class in _atoms(pattern):
        if len(atom) == 2 and atom[1].isalnum() and atom[1] not in _KNOWN_ESCAPES:
            return f"the escape {atom} at character {index + 1} is not supported"
        if in_class:
            continue
        if (atom == "^" and index > 0) or (atom == "$" and index < last):
            return f"the anchor {atom} at character {index + 1} is inside the expression"
        if atom == "(" and pattern.startswith("(?", index) and not pattern.startswith("(?:", index):
            return f"the group {pattern[index : index + 3]} at character {index + 1} is not supported"
    return None


def without_line_ends(pattern: str) -> str:
    """`pattern` with every dot as regular expressions mean it: any character but a line end. xgrammar's dot is any."""
    return "".join(_DOT if atom == "." and not in_class else atom for _, atom, in_class in _atoms(pattern))


def _atoms(pattern: str) -> Iterator[tuple[int, str, bool]]:
    """(index, one character or an escape, whether it stands in a character class)."""
    index, in_class = 0, False
    while index < len(pattern):
        atom = pattern[index : index + 2] if pattern[index] == "\\" else pattern[index]
        yield index, atom, in_class
        if atom == "[" and not in_class:
            in_class = True
            if pattern.startswith("^", index + 1):  # negates the class, and is no anchor
                index += 1
                yield index, "^", True
        elif atom == "]":
            in_class = False
        index += len(atom)
