"""`specdeploy-client`: ask, measure, check and judge a deployed server.

Exit codes: 0 pass, 1 fail, 2 inconclusive, 64 usage or config, 70 internal, 130 interrupted. A run that could not be
measured whole (no server, a server that went away, requests that failed) is inconclusive.
"""

import sys
from collections.abc import Sequence
from typing import Any, cast

import typer

from specdeploy.errors import ClientError, ConfigError, RequestError, SpecDeployError
from specdeploy_client.commands import files as cli_files
from specdeploy_client.commands import measure as cli_measure
from specdeploy_client.commands.exit_codes import (
    EXIT_FAILED,
    EXIT_INCONCLUSIVE,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
)
from specdeploy_client.commands.options import spread_options
from specdeploy_client.commands.terminal import print_error, stderr

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
        stderr.print("interrupted")
        return EXIT_INTERRUPTED
    except Exception:
        stderr.print_exception()
        stderr.print("This is a defect of specdeploy-client, not of your input.")
        return EXIT_INTERNAL
    return result if isinstance(result, int) else 0


def _fail(error: SpecDeployError, exit_code: int) -> int:
    print_error(f"error: {error}")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
