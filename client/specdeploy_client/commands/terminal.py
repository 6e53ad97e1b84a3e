"""The two streams that the commands print to."""

import sys

from rich.console import Console

# A log file has no width of its own; 120 columns hold every table.
stdout = Console(width=None if sys.stdout.isatty() else 120)
stderr = Console(stderr=True)


def print_error(text: str) -> None:
    """One message as it stands, whatever brackets it holds."""
    stderr.print(text, soft_wrap=True, markup=False, highlight=False)
