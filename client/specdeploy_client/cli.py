"""`specdeploy-client`: ask, measure, check and judge a deployed server.

Exit codes: 0 pass, 1 fail, 2 inconclusive, 64 usage or config, 70 internal, 130 interrupted. A run that could not be
measured whole (no server, a server that went away, requests that failed), or of which nothing can be compared because
every cell is void, is inconclusive. SIGTERM ends a run as Ctrl-C does: its summary is written first.
"""

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, cast

import typer

from specdeploy.errors import ClientError, ConfigError, RequestError, SpecDeployError
from specdeploy_client.commands import files as cli_files
from specdeploy_client.commands import measure as cli_measure
from specdeploy_client.commands.options import spread_options
from specdeploy_client.commands.terminal import (
    EXIT_FAILED,
    EXIT_INCONCLUSIVE,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    print_error,
    stderr,
)

# typer carries its own copy of click in newer versions; its base class of usage errors is found without naming either.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    help="Ask, measure, check and judge a deployed server.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _command in (
    cli_measure.query,
    cli_measure.bench,
    cli_measure.verify,
    cli_files.gate,
    cli_files.report,
    cli_measure.smoke,
    cli_files.compare,
):
    app.command()(spread_options(_command))
app.command("import")(spread_options(cli_files.import_results))
app.command("export")(spread_options(cli_files.export_results))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script; returns the exit code."""
    with _terminated_as_interrupted():
        return _run(argv)


def _run(argv: Sequence[str] | None) -> int:
    try:
        result = app(args=None if argv is None else list(argv), prog_name="specdeploy-client", standalone_mode=False)
    except _UsageError as error:
        cast(Any, error).show()
        return EXIT_USAGE
    except (ConfigError, RequestError) as error:
        return _fail(error, EXIT_USAGE)
    except ClientError as error:
        return _fail(error, EXIT_INCONCLUSIVE)
    except SpecDeployError as error:
        return _fail(error, EXIT_FAILED)
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except Exception:
        stderr.print_exception()
        stderr.print("This is a defect of specdeploy-client, not of your input.")
        return EXIT_INTERNAL
    if result == EXIT_INTERRUPTED:  # newer versions of typer make an exit code of Ctrl-C themselves
        return _interrupted()
    return result if isinstance(result, int) else 0


def _interrupted() -> int:
    stderr.print("interrupted")
    return EXIT_INTERRUPTED


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM does what Ctrl-C does at that moment: an event loop cancels what it runs, else KeyboardInterrupt."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            handler(signal.SIGINT, frame)

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what signals do
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _fail(error: SpecDeployError, exit_code: int) -> int:
    print_error(f"error: {error}")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
