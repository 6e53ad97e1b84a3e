"""The command line `specdeploy`. Exit codes: 0 pass, 1 fail, 64 usage, 70 internal, 130 interrupted.

Heavy libraries are imported by the command that needs them, so that `specdeploy --help` answers at once.
"""

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from specdeploy.config.load import load_deployment
from specdeploy.config.schema import is_valid_name
from specdeploy.errors import ConfigError, SpecDeployError

if TYPE_CHECKING:
    from specdeploy.serving.server import ServerState, ServerStatus

EXIT_FAIL = 1
EXIT_USAGE = 64
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130
_CLICK_USAGE = 2  # what the option parser exits with; our own commands never use 2

# Distribution extra that brings a module which only some commands need.
_EXTRA_OF_MODULE = {
    "psutil": "serve",
    "torch": "torch",
    "transformers": "torch",
    "gguf": "torch",
    "accelerate": "torch",
    "safetensors": "torch",
    "huggingface_hub": "torch",
}
_PLAIN_PROGRESS_EVERY_S = 10.0

app = typer.Typer(
    name="specdeploy",
    help="Build, package and serve a target with speculative decoding.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Deployment = Annotated[str, typer.Argument(help="Name of a file in configs/deployments, or the path of a YAML file.")]
ConfigsRoot = Annotated[Path, typer.Option(help="Folder that holds deployments/.")]
EnginesRoot = Annotated[Path, typer.Option(help="Where builds are kept.")]
RepoRoot = Annotated[Path, typer.Option(help="Where Triton model repositories are kept, one folder per deployment.")]
StateRoot = Annotated[Path, typer.Option(help="Where logs and state of running servers are kept.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, do nothing.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]

CONFIGS = Path("configs")
ENGINES = Path("engines")
REPOS = Path("triton_repo")
STATE = Path(".specdeploy")


def _console(*, stderr: bool = False) -> Console:
    """A console for now: not kept, because tests and pipes replace the streams."""
    return Console(stderr=stderr, soft_wrap=True, highlight=False)


def _say(text: str) -> None:
    _console().print(escape(text))


@app.callback()
def _root(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an internal error.")] = False,
) -> None:
    context.obj = {"debug": debug}


@app.command()
def build(
    deployment: Deployment,
    configs_root: ConfigsRoot = CONFIGS,
    engines_root: EnginesRoot = ENGINES,
    dry_run: DryRun = False,
) -> None:
    """Make the engines of a deployment, or reuse them, and point the deployment to them."""
    from specdeploy.builders.dispatch import build_deployment, describe_build

    loaded = load_deployment(deployment, configs_root)
    if dry_run:
        _say("\n".join(describe_build(loaded)))
        return
    started = time.monotonic()
    result = build_deployment(loaded, engines_root, report=_say)
    for check in result.manifest.checks:
        _say(f"checked {check.name}: {check.detail}")
    verb = "reused" if result.reused else f"built in {time.monotonic() - started:.1f} s"
    _say(f"{loaded.config.name}: {result.build_folder} ({verb})")


@app.command()
def repo(
    deployment: Deployment,
    configs_root: ConfigsRoot = CONFIGS,
    repo_root: RepoRoot = REPOS,
) -> None:
    """Render the Triton model repository of a deployment."""
    from specdeploy.packager.repository import pack_repository

    loaded = load_deployment(deployment, configs_root)
    manifest = pack_repository(loaded.config, repo_root)
    _say(f"{loaded.config.name}: {repo_root / loaded.config.name} (models: {', '.join(manifest.models)})")


@app.command()
def serve(
    deployment: Deployment,
    configs_root: ConfigsRoot = CONFIGS,
    engines_root: EnginesRoot = ENGINES,
    repo_root: RepoRoot = REPOS,
    state_root: StateRoot = STATE,
    timeout: Annotated[float, typer.Option(min=1.0, help="Seconds to wait for the model to be ready.")] = 300.0,
    dry_run: DryRun = False,
) -> None:
    """Start the Triton server of a deployment in the background and wait until it is ready."""
    from specdeploy.serving.launch import plan_launch
    from specdeploy.serving.server import start_server

    loaded = load_deployment(deployment, configs_root)
    plan = plan_launch(loaded, engines_root=engines_root, repo_root=repo_root, state_root=state_root)
    if dry_run:
        _say(plan.describe())
        return
    started = time.monotonic()
    with _waiting(f"{plan.deployment}: loading, log {plan.log_path}") as on_wait:
        state, is_new = start_server(plan, timeout_s=timeout, on_wait=on_wait)
    verb = f"ready after {time.monotonic() - started:.1f} s" if is_new else "already running and ready"
    _say(f"{plan.deployment}: {verb}\n{_describe_server(state)}")


@app.command()
def stop(
    deployment: Deployment,
    configs_root: ConfigsRoot = CONFIGS,
    state_root: StateRoot = STATE,
) -> None:
    """Stop the server of a deployment; requests in flight get time to finish."""
    from specdeploy.serving.server import StopOutcome, stop_server

    name = _deployment_name(deployment, configs_root)
    outcome = stop_server(state_root, name)
    detail = " (it did not end in time and was killed)" if outcome is StopOutcome.KILLED else ""
    _say(f"{name}: {'not running' if outcome is StopOutcome.NOT_RUNNING else 'stopped'}{detail}")


@app.command()
def status(
    deployment: Deployment,
    configs_root: ConfigsRoot = CONFIGS,
    state_root: StateRoot = STATE,
    as_json: AsJson = False,
) -> None:
    """Say whether the server of a deployment is running and ready; exit code 0 only if it is both."""
    from specdeploy.serving.server import inspect_server

    found = inspect_server(state_root, _deployment_name(deployment, configs_root))
    if as_json:
        typer.echo(json.dumps(found.model_dump(mode="json"), indent=2))
    else:
        _say(_describe_status(found))
    if not (found.running and found.ready):
        raise typer.Exit(EXIT_FAIL)


def _deployment_name(reference: str, configs_root: Path) -> str:
    """The name alone is enough to stop or look at a server, even when its YAML file is broken or gone."""
    return reference if is_valid_name(reference) else load_deployment(reference, configs_root).config.name


def _describe_status(found: "ServerStatus") -> str:
    if found.state is None:
        return f"{found.deployment}: not running"
    readiness = "ready" if found.ready else "not ready"
    return f"{found.deployment}: running, {readiness}, up {found.uptime_s or 0:.0f} s\n{_describe_server(found.state)}"


def _describe_server(state: "ServerState") -> str:
    return (
        f"  pid     {state.pid}\n"
        f"  http    {state.host}:{state.http_port}\n"
        f"  grpc    {state.host}:{state.grpc_port}\n"
        f"  metrics {state.host}:{state.metrics_port}\n"
        f"  build   {state.build_id}\n"
        f"  log     {state.log_path}"
    )


@contextmanager
def _waiting(text: str) -> Iterator[Callable[[float], None]]:
    """A spinner with seconds on a terminal; elsewhere one line now and then."""
    console = _console()
    if console.is_terminal:
        with console.status(escape(text)) as spinner:
            yield lambda elapsed_s: spinner.update(f"{escape(text)} ({elapsed_s:.0f} s)")
        return
    _say(text)
    next_at_s = _PLAIN_PROGRESS_EVERY_S

    def on_wait(elapsed_s: float) -> None:
        nonlocal next_at_s
        if elapsed_s >= next_at_s:
            _say(f"  still loading after {elapsed_s:.0f} s")
            next_at_s += _PLAIN_PROGRESS_EVERY_S

    yield on_wait


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code; nothing raises through here."""
    try:
        app(args=list(arguments), prog_name="specdeploy")
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        return EXIT_USAGE if code == _CLICK_USAGE else code
    except SpecDeployError as error:
        _console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}")
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAIL
    except KeyboardInterrupt:
        _console(stderr=True).print("interrupted")
        return EXIT_INTERRUPTED
    except Exception as error:
        return _report_internal(error, debug="--debug" in arguments)
    return 0


def _report_internal(error: Exception, *, debug: bool) -> int:
    console = _console(stderr=True)
    extra = _EXTRA_OF_MODULE.get(error.name or "") if isinstance(error, ModuleNotFoundError) else None
    if extra is not None:
        console.print(
            f"[bold red]error:[/] the module {getattr(error, 'name', '')} is not installed. "
            + escape(f'Run: python -m pip install "specdeploy[{extra}]"')
        )
        return EXIT_FAIL
    if debug:
        console.print(escape(traceback.format_exc()))
    hint = "" if debug else " Run it again with --debug before the command for the traceback."
    console.print(
        f"[bold red]internal error:[/] {escape(f'{type(error).__name__}: {error}')}. "
        f"This is a defect of specdeploy: please report it in the project's issue tracker.{hint}"
    )
    return EXIT_INTERNAL


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
