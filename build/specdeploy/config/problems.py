"""Broken rules between keys of a config: collected, then raised together."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule: dotted key inside the section that raised it ('' = the section), reason and remedy."""

    key: str
    reason: str
    remedy: str


class ProblemsError(ValueError):
    """Broken rules between keys, all of them; the loader turns each into a Violation."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{problem.reason}. {problem.remedy}" for problem in problems))


def raise_if_any(problems: list[Problem]) -> None:
    """Raise `ProblemsError` with all of them; nothing for none."""
    if problems:
        raise ProblemsError(problems)
