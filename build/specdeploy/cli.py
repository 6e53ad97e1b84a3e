"""The command line `specdeploy`. Exit codes: 0 pass, 1 fail, 2 measure first (`plan`), 64 usage, 70 internal, 130
interrupted.

Heavy libraries are imported by the command that needs them, so that `specdeploy --help` answers at once.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from specdeploy.commands.calibrate import calibrate
from specdeploy.commands.options import CONFIGS, ENGINES, AsJson, ConfigsRoot, Deployment, EnginesRoot
from specdeploy.commands.plan import plan as plan_command
from specdeploy.commands.profile_acceptance import profile
from specdeploy.config.load import load_deployment
from specdeploy.config.schema import is_valid_name
from specdeploy.contract import Lane, Method
from specdeploy.errors import ConfigError, SpecDeployError
from specdeploy.manifest import MANIFEST_NAME, ManifestVerification, load_current_build
from specdeploy.units import format_bytes

if TYPE_CHECKING:
    from specdeploy.builders.pair import Consent
    from specdeploy.config.load import LoadedDeployment
    from specdeploy.serving.server import ServerState, ServerStatus

EXIT_FAIL = 1
EXIT_USAGE = 64
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130
# typer carries its own copy of click in newer versions; its base class of usage errors is found without naming either.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

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

RepoRoot = Annotated[Path, typer.Option(help="Where Triton model repositories are kept, one folder per deployment.")]
StateRoot = Annotated[Path, typer.Option(help="Where logs and state of running servers are kept.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, do nothing.")]

Strict = Annotated[bool, typer.Option("--strict", help="Every warning that --allow does not name is a failure.")]
Allow = Annotated[
    list[str] | None, typer.Option(help="With --strict: code of a warning to let pass, repeatable. Never a failure.")
]
AllowBuild = Annotated[
    list[str] | None,
    typer.Option(
        help="Code of a warning to accept, repeatable. Needed for those that predict a loss nobody would see, with "
        "--strict for all; the others are printed and recorded. Failures cannot be accepted."
    ),
]

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
def inspect(
    deployment: Annotated[
        str | None, typer.Argument(help="Name of a deployment, or the path of its YAML file.")
    ] = None,
    target: Annotated[Path | None, typer.Option(help="Checkpoint folder, instead of a deployment.")] = None,
    draft: Annotated[Path | None, typer.Option(help="Folder of a draft model or head; needs --target.")] = None,
    method: Annotated[Method | None, typer.Option(help="With --target: how to draft; else the draft decides.")] = None,
    lane: Annotated[Lane | None, typer.Option(help="With --target: the lane that shall serve the pair.")] = None,
    max_seq_len: Annotated[int | None, typer.Option(min=2, help="With --target: longest request in tokens.")] = None,
    tensor_parallel: Annotated[
        int | None, typer.Option(min=1, help="GPUs that share each model; default the deployment's, else 1.")
    ] = None,
    max_draft_cost_ratio: Annotated[
        float, typer.Option(min=0.0, help="No-go for a mixture of experts above this draft/active parameter ratio.")
    ] = 0.25,
    strict: Strict = False,
    allow: Allow = None,
    as_json: AsJson = False,
    configs_root: ConfigsRoot = CONFIGS,
    engines_root: EnginesRoot = ENGINES,
) -> None:
    """Prove from files alone that a draft fits its target; exit code 1 names every misfit."""
    from specdeploy.builders.pair import inspect_deployment
    from specdeploy.checkpoint.pair import PairSettings, blocking_findings, check_allowed_codes, inspect_pair
    from specdeploy.checkpoint.pair_table import render_pair

    if (deployment is None) == (target is None):
        raise typer.BadParameter("name either a deployment or --target DIR [--draft DIR]")
    check_allowed_codes(allow or ())
    if deployment is not None:
        if (draft, method, lane, max_seq_len) != (None, None, None, None):
            raise typer.BadParameter("--draft, --method, --lane and --max-seq-len are the deployment's to say")
        report = inspect_deployment(
            load_deployment(deployment, configs_root),
            engines_root,
            tensor_parallel=tensor_parallel,
            max_draft_cost_ratio=max_draft_cost_ratio,
        )
    elif target is not None:
        report = inspect_pair(
            target, draft, PairSettings(method, lane, max_seq_len, tensor_parallel or 1, max_draft_cost_ratio)
        )
    blocking = blocking_findings(report, strict=strict, allow=allow or ())
    if as_json:
        typer.echo(report.model_dump_json(indent=2))
    else:
        _console().print(render_pair(report))
    if blocking:
        raise typer.Exit(EXIT_FAIL)


app.command("plan")(plan_command)
app.command("calibrate")(calibrate)
app.command("profile")(profile)


@app.command()
def trim_vocab(
    draft: Annotated[Path, typer.Option(help="Folder of the EAGLE-3 head or draft model.")],
    corpus: Annotated[list[Path], typer.Option(help="JSONL of prompts and outputs, text or token ids; repeatable.")],
    keep: Annotated[int, typer.Option(min=1, help="Most frequent tokens to keep; special ones come on top.")],
    output: Annotated[Path, typer.Option(help="New checkpoint folder; must not exist.")],
    target: Annotated[
        Path | None, typer.Option(help="Target folder, for a head without tokenizer or lm_head of its own.")
    ] = None,
    lane: Annotated[
        Lane | None, typer.Option(help="The lane that shall serve it: checked to read such a draft.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a draft with a smaller lm_head, from the tokens that a corpus uses; outputs stay the same."""
    from specdeploy.checkpoint.trim import trim_vocabulary

    report = trim_vocabulary(draft, corpus, keep, output, lane=lane, target=target)
    if as_json:
        typer.echo(report.model_dump_json(indent=2))
        return
    _say(
        f"{report.output}: {report.num_kept} of {report.num_rows} lm_head rows, "
        f"coverage {report.coverage:.2%} of {report.num_corpus_tokens} corpus tokens"
    )


@app.command()
def verify_manifest(
    reference: Annotated[str, typer.Argument(help="Name of a deployment, or a build id.")],
    engines_root: EnginesRoot = ENGINES,
    as_json: AsJson = False,
) -> None:
    """Read every byte of a build again and compare it with its manifest; exit code 0 only if nothing changed.

    The manifest itself is compared with what every deployment that points to the build recorded of it.
    """
    from specdeploy.manifest import build_of_reference, load_manifest, verify_build

    try:
        build_id = build_of_reference(engines_root, reference)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    num_bytes = sum(file.num_bytes for file in load_manifest(engines_root, build_id).files)
    with _counting(f"hashing {build_id}", num_bytes, quiet=as_json) as on_bytes:
        found = verify_build(engines_root, build_id, on_bytes=on_bytes)
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
    else:
        _say(_describe_verification(found))
    if not found.is_intact:
        raise typer.Exit(EXIT_FAIL)


def _describe_verification(found: ManifestVerification) -> str:
    lines = [f"{MANIFEST_NAME}: {fault}" for fault in found.manifest]
    for word, names in (("changed", found.changed), ("missing", found.missing), ("surplus", found.surplus)):
        lines += [f"{word}: {name}" for name in names]
    if found.is_intact:
        return f"{found.build_id}: intact, {found.num_files} files, {format_bytes(found.num_bytes)}"
    remedy = f"Remove its folder and run `make engines` again; do not serve build {found.build_id}."
    return "\n".join([*lines, f"{found.build_id}: not what was built ({len(lines)} findings). {remedy}"])


@app.command()
def build(
    deployment: Deployment,
    configs_root: ConfigsRoot = CONFIGS,
    engines_root: EnginesRoot = ENGINES,
    strict: Strict = False,
    allow: AllowBuild = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done; in the TensorRT-LLM lanes write it to read.")
    ] = False,
    probe: Annotated[
        Path | None,
        typer.Option(help="With --dry-run: what another machine's TensorRT-LLM accepts, engines/probes/*.json there."),
    ] = None,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Afterwards remove converted checkpoints; engines stay, and are not built again."),
    ] = False,
    plan: Annotated[
        Path | None, typer.Option(help="plan.json of `specdeploy plan`: its K by load instead of the config's.")
    ] = None,
) -> None:
    """Make the engines of a deployment, or reuse them, and point the deployment to them.

    A target and draft that do not fit are refused before anything is built. So is a pair with a warning that predicts
    a loss nobody would see, such as draft-too-costly, until --allow names its code. Every other warning is printed and
    recorded in the manifest. A reused build keeps the record of its first time; the findings of now are printed.

    In the TensorRT-LLM lanes --dry-run needs neither TensorRT-LLM nor the checkpoints: it writes every command and file
    to engines/dry-run/<deployment>/ and says what could not be checked here.
    """
    from specdeploy.builders.dispatch import build_deployment
    from specdeploy.builders.pair import Consent

    if probe is not None and not dry_run:
        raise typer.BadParameter("--probe belongs to --dry-run: a build asks the TensorRT-LLM that is installed")
    if prune and dry_run:
        raise typer.BadParameter("--prune removes what a build left; a dry run leaves nothing")
    loaded = load_deployment(deployment, configs_root)
    decided = None
    if plan is not None:
        from specdeploy.builders.planned import load_plan, with_plan

        decided = load_plan(plan).plan
        loaded = with_plan(loaded, decided, plan)
    consent = Consent(is_strict=strict, allow=tuple(allow or ()))
    if dry_run:
        _say("\n".join(_dry_run(loaded, engines_root, consent, probe)))
        return
    started = time.monotonic()
    said: set[str] = set()

    def report(line: str) -> None:
        said.add(line)
        _say(line)

    result = build_deployment(loaded, engines_root, report=report, consent=consent, plan=decided)
    # What was found before the build is printed by now; the rest is what the build itself checked.
    checks = [line for check in result.manifest.checks if (line := f"{check.name}: {check.detail}") not in said]
    if result.reused and checks:
        _say(f"The manifest keeps what was recorded when it was built ({result.manifest.created_at}):")
    for line in checks:
        _say(f"{'recorded' if result.reused else 'checked'} {line}")
    verb = "reused" if result.reused else f"built in {time.monotonic() - started:.1f} s"
    _say(f"{loaded.config.name}: {result.build_folder} ({verb})")
    if prune:
        from specdeploy.builders.step_store import prune_steps
        from specdeploy.builders.trtllm_engine import WORK

        _say(f"removed {format_bytes(prune_steps(engines_root / WORK, keep=()))} of converted checkpoints")


def _dry_run(loaded: "LoadedDeployment", engines_root: Path, consent: "Consent", probe: Path | None) -> list[str]:
    """What a build would do. Lane torch checks the sources and writes nothing; the others write a folder to read."""
    from specdeploy.builders.dispatch import describe_build

    if loaded.config.lane is Lane.TORCH:
        return describe_build(loaded, consent)
    from specdeploy.builders.dry_run import write_dry_run
    from specdeploy.builders.trtllm_installation import find_installation
    from specdeploy.trtllm.probe_record import load_probe

    found = write_dry_run(
        loaded,
        engines_root,
        consent=consent,
        probe=None if probe is None else load_probe(probe),
        installation=find_installation(os.environ),
    )
    first, *found_lines, last = found.describe()
    return [f"{loaded.config.name}: {first}", *found_lines, f"{loaded.config.name}: {last}"]


@app.command()
def repo(
    deployment: Deployment,
    configs_root: ConfigsRoot = CONFIGS,
    engines_root: EnginesRoot = ENGINES,
    repo_root: RepoRoot = REPOS,
) -> None:
    """Render the Triton model repository of a deployment; the TensorRT-LLM lanes need their build first."""
    from specdeploy.builders.dispatch import packaged_build
    from specdeploy.packager.cross_checks import effective_concurrency
    from specdeploy.packager.repository import pack_repository

    loaded = load_deployment(deployment, configs_root)
    built = packaged_build(loaded, engines_root)
    manifest = pack_repository(loaded.config, repo_root, built)
    _say(f"{loaded.config.name}: {repo_root / loaded.config.name} (models: {', '.join(manifest.models)})")
    if built is not None:
        limit = effective_concurrency(loaded.config, built.engines)
        _say(f"requests of full length at once: {limit.num_requests} ({limit.limit})")


@app.command()
def serve(
    deployment: Deployment,
    configs_root: ConfigsRoot = CONFIGS,
    engines_root: EnginesRoot = ENGINES,
    repo_root: RepoRoot = REPOS,
    state_root: StateRoot = STATE,
    timeout: Annotated[
        float | None, typer.Option(min=1.0, help="Seconds to wait for the model; default 300, with TensorRT-LLM 3600.")
    ] = None,
    canary: Annotated[
        bool, typer.Option("--canary", help="For trying out, on this machine alone: clients may draft with guides.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Start the Triton server of a deployment in the background and wait until it is ready."""
    from specdeploy.serving.launch import plan_launch
    from specdeploy.serving.server import start_server

    loaded = load_deployment(deployment, configs_root)
    plan = plan_launch(loaded, engines_root=engines_root, repo_root=repo_root, state_root=state_root, is_canary=canary)
    if dry_run:
        _say(plan.describe())
        return
    started = time.monotonic()
    with _waiting(f"{plan.deployment}: loading, log {plan.log_path}") as on_wait:
        state, is_new = start_server(plan, timeout_s=timeout or plan.start_timeout_s, on_wait=on_wait)
    verb = f"ready after {time.monotonic() - started:.1f} s" if is_new else "already running and ready"
    _say(f"{plan.deployment}: {verb}\n{_describe_server(state)}")
    current = load_current_build(engines_root, plan.deployment)
    if current.effective_concurrency is not None:
        _say(f"  at once {current.effective_concurrency} requests of full length ({current.concurrency_limit})")


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
    if outcome is StopOutcome.NOT_RUNNING:
        _say(f"{name}: not running{_unseen_servers(deployment, configs_root)}")
        return
    _say(f"{name}: stopped{' (it did not end in time and was killed)' if outcome is StopOutcome.KILLED else ''}")


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
        unseen = "" if found.running else _unseen_servers(deployment, configs_root)
        _say(f"{_describe_status(found)}{unseen}")
    if not (found.running and found.ready):
        raise typer.Exit(EXIT_FAIL)


def _deployment_name(reference: str, configs_root: Path) -> str:
    """The name alone is enough to stop or look at a server, even when its YAML file is broken or gone."""
    return reference if is_valid_name(reference) else load_deployment(reference, configs_root).config.name


def _unseen_servers(reference: str, configs_root: Path) -> str:
    """What `serve` did not start is not known here: in the TensorRT-LLM lanes scripts start servers too."""
    try:
        config = load_deployment(reference, configs_root).config
    except SpecDeployError:  # whether a server runs can be said without it
        return ""
    if config.lane is Lane.TORCH or config.tensorrt_llm is None:
        return ""
    name = f"specdeploy-{config.name}"
    if config.tensorrt_llm.num_nodes > 1:
        return f" by `serve`; a job of launch.slurm is not seen here: squeue --name={name}, scancel --name={name}"
    return (
        f" by `serve`; a container that docker-run.sh started is not seen here: docker ps --filter name={name}, "
        f"docker stop {name}"
    )


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


@contextmanager
def _counting(text: str, num_bytes: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar over `num_bytes` on a terminal; elsewhere one line, and nothing beside JSON."""
    console = _console(stderr=True)
    if quiet or not console.is_terminal:
        if not quiet:
            _say(f"{text}, {format_bytes(num_bytes)}")
        yield lambda _num_bytes: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(escape(text), total=num_bytes)
        yield lambda num_read: progress.advance(task, num_read)


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code; nothing raises through here."""
    try:
        code = app(args=list(arguments), prog_name="specdeploy", standalone_mode=False)
    except _UsageError as error:
        cast(Any, error).show()
        return EXIT_USAGE
    except SpecDeployError as error:
        _console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}")
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAIL
    except (KeyboardInterrupt, typer.Abort):
        _console(stderr=True).print("interrupted")
        return EXIT_INTERRUPTED
    except Exception as error:
        return _report_internal(error, debug="--debug" in arguments)
    return code if isinstance(code, int) else 0


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
