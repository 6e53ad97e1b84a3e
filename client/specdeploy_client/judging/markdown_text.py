"""Text for GitHub's Markdown: tables, and words that stay words."""

from collections.abc import Iterable, Sequence


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, or nothing when there are no rows."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"| {' | '.join(head)} |", "|" + " --- |" * len(head), *lines])


def escape(text: str) -> str:
    """Text that stays text inside a table cell: no markup, no formula, no new row, no mention, no number of an issue.

    The last two are looked for in the finished page, where no backslash is left: an invisible character parts them.
    """
    for character in "\\`*_[]<>|#$~":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.replace("@", "@\u200b").replace("#", "#\u200b").split())


def inline_code(text: str) -> str:
    """`text` as code; a backtick inside would end it."""
    return f"`{' '.join(text.replace('`', chr(39)).split())}`"
