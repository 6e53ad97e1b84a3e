"""What the commands tell a person and the shell."""

import sys

from rich.console import Console

from specdeploy.verdict_contract import Status

EXIT_FAILED, EXIT_INCONCLUSIVE, EXIT_USAGE, EXIT_INTERNAL, EXIT_INTERRUPTED = 1, 2, 64, 70, 130
EXIT_CODES = {Status.PASS: 0, Status.FAIL: EXIT_FAILED, Status.INCONCLUSIVE: EXIT_INCONCLUSIVE}

# A log file has no width of its own; 120 columns hold every table.
stdout = Console(width=None if sys.stdout.isatty() else 120)
stderr = Console(stderr=True)


def print_error(text: str) -> None:
    """One message as it stands, whatever brackets it holds."""
    stderr.print(text, soft_wrap=True, markup=False, highlight=False)


def print_note(text: str) -> None:
    """What a person should know although the command goes on."""
    print_error(f"note: {text}")
