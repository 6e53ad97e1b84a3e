"""One deployment, one server, one folder of results: what every command that talks to a server needs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from specdeploy.config.load import LoadedDeployment
from specdeploy.errors import ClientError, RequestError
from specdeploy.run_contract import Arm, RequestRecord
from specdeploy_client.bench import BenchOptions, BenchResult, client_environment, plan_bench, run_bench
from specdeploy_client.chat import ChatTemplate, render_user_prompt
from specdeploy_client.grpc_transport import GrpcTransport
from specdeploy_client.loadgen import Job, RequestLabel, run_request
from specdeploy_client.server_facts import ServerFacts, read_server_facts, require_ready
from specdeploy_client.transport import GenerationRequest


@dataclass(frozen=True, slots=True)
class Session:
    """Addresses and files of one command. `template` None sends prompts as they are."""

    deployment: LoadedDeployment
    url: str
    metrics_url: str
    engines_root: Path
    artifact_dir: Path
    timeout_s: float
    template: ChatTemplate | None

    def render(self, prompt: str) -> str:
        """`prompt` as the target expects it."""
        return prompt if self.template is None else render_user_prompt(self.template, prompt)

    @property
    def prompt_format(self) -> str:
        """For the record: how prompts were rendered."""
        return "raw" if self.template is None else f"chat template {Path(self.template.origin).name}"


async def measure(session: Session, options: BenchOptions, command: str, console: Console) -> BenchResult:
    """Run a bench against the session's server, with a progress bar on `console`."""
    plan = plan_bench(session.deployment, options, session.render)

    async def read_facts() -> ServerFacts:
        return await read_server_facts(session.metrics_url)

    async with GrpcTransport(session.url, session.timeout_s) as transport:
        await require_ready(transport)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("measuring", total=plan.num_requests)

            def advance(record: RequestRecord) -> None:
                place = f"{record.segment}, concurrency {record.concurrency}, {record.arm}"
                progress.update(task, advance=1, description=place)

            result = await run_bench(
                session.deployment.config,
                plan,
                options,
                transport=transport,
                read_facts=read_facts,
                artifact_dir=session.artifact_dir,
                environment=client_environment(command, session.prompt_format),
                on_record=advance,
            )
            progress.update(task, description="measured")
    return result


async def answer(session: Session, request: GenerationRequest, write: Callable[[str], None]) -> RequestRecord:
    """Send one request and hand every piece of its text to `write` as it arrives."""
    async with GrpcTransport(session.url, session.timeout_s) as transport:
        job = Job(RequestLabel(request.segment or "query", 1, Arm.ON, 0, "query"), request)
        record = await run_request(transport, job, on_message=lambda message: write(message.text))
    if record.error is not None:
        raise ClientError(record.error)
    return record


def check_prompt(prompt: str) -> str:
    """`prompt`, or a `RequestError` when nothing could be answered."""
    if not prompt.strip():
        raise RequestError("PROMPT", "is empty", 'Give a question, as in make query PROMPT="What is a prime number?"')
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError("PROMPT", "is not valid UTF-8", "Send UTF-8 text") from error
    return prompt


def parse_levels(text: str) -> tuple[int, ...]:
    """`1,2,4` -> (1, 2, 4). Raises `RequestError` for anything that is not a whole number of at least 1."""
    parts: Sequence[str] = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() and int(part) >= 1 for part in parts):
        raise RequestError("--concurrency", f"{text!r} is not a list of whole numbers", "Write for example 1,2,4,8")
    return tuple(dict.fromkeys(int(part) for part in parts))
