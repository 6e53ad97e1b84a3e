"""The same load by AIPerf and by specdeploy-client against the same server: medians and the CPU each client spends.

    python benchmarks/client/beside_aiperf.py                              # a mock server of known times
    python benchmarks/client/beside_aiperf.py --url http://127.0.0.1:8000 --tokenizer engines/<build>/target

AIPerf lives in an environment of its own, .venv-aiperf, made here when it is missing; where it cannot be installed, the
reason is printed and nothing is measured. Runs of the two take turns. Each is its whole command in a process of its
own; what a command costs that sends next to nothing (imports, start-up) is measured once and shown apart.

Without `--url` a mock in a process of its own answers OpenAI's completions: a first message after 200 ms, one every
20 ms, one to three tokens in each. With it, the Triton model `llm` at that address is asked through `generate_stream`,
by AIPerf with its template endpoint; it counts tokens itself, with the tokenizer given.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
CLIENT = REPOSITORY / ".venv" / "bin" / "specdeploy-client"
AIPERF_VENV = REPOSITORY / ".venv-aiperf"
AIPERF = "aiperf==0.13.0"
INSTALL_SECONDS = 1200
MEDIAN_GOAL = 0.03
METRICS = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "e2e": "request_latency"}
FIRST_MESSAGE_S, STEP_S, ACCEPTED_PER_STEP = 0.2, 0.02, (2, 0, 1)
MOCK = f"""
import asyncio, sys
from helpers.mock_llm_server import MockBehaviour, MockLlmServer

async def main():
    behaviour = MockBehaviour(first_message_s={FIRST_MESSAGE_S}, step_s={STEP_S}, accepted_per_step={ACCEPTED_PER_STEP})
    async with MockLlmServer(behaviour) as server:
        print(server.http_url, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(main())
"""
TEMPLATE = (
    '{"text_input": {{ text|tojson }}, "max_tokens": {{ max_tokens|tojson }}, "stream": {{ stream|tojson }}, '
    '"ignore_eos": true}'
)


@dataclass(frozen=True, slots=True)
class Load:
    """What both clients are told to send. `url` of an OpenAI-compatible mock, or of Triton's HTTP service."""

    url: str
    is_triton: bool
    tokenizer: str
    concurrency: int
    num_requests: int
    max_tokens: int
    folder: Path


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of one client: medians in ms, requests that were answered, and CPU seconds of the whole command."""

    medians_ms: dict[str, float]
    num_answered: int
    cpu_s: float
    wall_s: float


def main() -> int:
    """Measure and print; exit code 0 when both goals are reached, 1 when not, 2 when nothing could be measured."""
    options = parse_options()
    if (reason := install_aiperf()) is not None:
        print(f"not measured: {reason}")
        return 2
    with tempfile.TemporaryDirectory() as folder, served(options.url) as url:
        load = Load(
            url=url,
            is_triton=options.url is not None,
            tokenizer=str(Path(options.tokenizer).resolve() if options.tokenizer else make_tokenizer(Path(folder))),
            concurrency=options.concurrency,
            num_requests=options.requests,
            max_tokens=options.max_tokens,
            folder=Path(folder),
        )
        write_prompts(load)
        clients = {"specdeploy-client": run_ours, "AIPerf": run_aiperf}
        start_up = {name: run(load, load.concurrency, f"{name}-start").cpu_s for name, run in clients.items()}
        runs: dict[str, list[Measured]] = {name: [] for name in clients}
        for number in range(options.rounds):
            order = list(clients) if number % 2 == 0 else list(reversed(clients))
            for name in order:
                runs[name].append(clients[name](load, load.num_requests, f"{name}-{number}"))
                print(f"round {number + 1}: {name}: {runs[name][-1]}", file=sys.stderr)
    return 0 if print_report(runs, start_up, options) else 1


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", help="HTTP address of a Triton server with model llm; default: a mock")
    parser.add_argument("--tokenizer", help="folder of the target's tokenizer, for AIPerf's token counts (with --url)")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.url and not options.tokenizer:
        parser.error("--url needs --tokenizer: AIPerf counts the tokens of Triton's answers itself")
    return options


def install_aiperf() -> str | None:
    """Make .venv-aiperf where it is missing. Returns why there is none."""
    if (AIPERF_VENV / "bin" / "aiperf").is_file():
        return None
    commands = (
        [sys.executable, "-m", "venv", str(AIPERF_VENV)],
        [str(AIPERF_VENV / "bin" / "python"), "-m", "pip", "install", "-qq", AIPERF],
    )
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{AIPERF} cannot be installed: {error}"
        if done.returncode != 0:
            return f"{AIPERF} cannot be installed: {done.stderr.strip().splitlines()[-1:]}"
    return None


@contextmanager
def served(url: str | None) -> Iterator[str]:
    """The server of the user, or a mock that lives as long as this."""
    if url is not None:
        yield url
        return
    paths = os.pathsep.join(str(REPOSITORY / name) for name in ("tests", "build", "client"))
    process = subprocess.Popen(
        [sys.executable, "-c", MOCK],
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the mock has no pipes")
        yield process.stdout.readline().strip()
        process.stdin.close()
        process.wait(timeout=10)
    finally:
        process.kill()
        process.wait()


def make_tokenizer(folder: Path) -> Path:
    """A tokenizer of words: AIPerf loads one even where the server counts tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    target = folder / "tokenizer"
    target.mkdir()
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))  # noqa: S106 - a token of text
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(target / "tokenizer.json"))
    (target / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return target


def write_prompts(load: Load) -> None:
    """The same prompts for both, in the format of each."""
    prompts = [f"Number {i} of the questions about the sea, ships and weather." for i in range(2 * load.num_requests)]
    ours = [
        json.dumps({"id": f"p{i}", "prompt": text, "max_tokens": load.max_tokens}) for i, text in enumerate(prompts)
    ]
    theirs = [json.dumps({"text": text, "output_length": load.max_tokens}) for text in prompts]
    (load.folder / "ours.jsonl").write_text("\n".join(ours) + "\n")
    (load.folder / "theirs.jsonl").write_text("\n".join(theirs) + "\n")
    (load.folder / "template.json").write_text(TEMPLATE)


def run_ours(load: Load, num_requests: int, name: str) -> Measured:
    """One run of specdeploy-client."""
    output = load.folder / name
    kind = "triton-http" if load.is_triton else "openai-completions"
    command = [
        str(CLIENT), "bench", "--url", load.url, "--endpoint-type", kind, "--model", "llm", "--switch", "none",
        "--input-file", str(load.folder / "ours.jsonl"), "--concurrency", str(load.concurrency),
        "--request-count", str(num_requests), "--warmup-request-count", str(load.concurrency),
        "--raw", "--ignore-eos", "--ui", "none", "--artifact-dir", str(output),
    ]  # fmt: skip
    cpu_s, wall_s = timed(command, load.folder, expected=(0, 2))
    (cell,) = json.loads((output / "run_summary.json").read_text())["cells"]
    medians = {metric: cell[f"{metric}_ms"]["p50"] for metric in METRICS}
    return Measured(medians, cell["num_requests"] - cell["num_errors"], cpu_s, wall_s)


def run_aiperf(load: Load, num_requests: int, name: str) -> Measured:
    """One run of AIPerf."""
    output = load.folder / name
    template = ["--extra-inputs", f"payload_template:{load.folder / 'template.json'}"]
    endpoint = (
        ["--custom-endpoint", "/v2/models/llm/generate_stream", "--endpoint-type", "template", *template,
         "--extra-inputs", "response_field:text_output"]
        if load.is_triton
        else ["--endpoint-type", "completions", "--use-server-token-count", "--use-legacy-max-tokens",
              "--extra-inputs", f"max_tokens:{load.max_tokens}"]
    )  # fmt: skip
    command = [
        str(AIPERF_VENV / "bin" / "aiperf"), "profile", "--model", "llm", "--url", load.url, *endpoint, "--streaming",
        "--tokenizer", load.tokenizer, "--input-file", str(load.folder / "theirs.jsonl"),
        "--custom-dataset-type", "single_turn", "--concurrency", str(load.concurrency),
        "--request-count", str(num_requests), "--warmup-request-count", str(load.concurrency),
        "--ui", "none", "--no-gpu-telemetry", "--no-server-metrics", "--artifact-dir", str(output),
    ]  # fmt: skip
    cpu_s, wall_s = timed(command, load.folder)
    result = json.loads((output / "profile_export_aiperf.json").read_text())
    medians = {metric: result[theirs]["p50"] for metric, theirs in METRICS.items()}
    return Measured(medians, int(result["request_count"]["avg"]), cpu_s, wall_s)


def timed(command: Sequence[str], folder: Path, expected: tuple[int, ...] = (0,)) -> tuple[float, float]:
    """CPU and wall seconds of a command and all its processes."""
    # In offline mode AIPerf looks for a tokenizer's folder on the model hub.
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_OFFLINE")}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    after, wall_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - started
    if done.returncode not in expected:
        raise SystemExit(f"{command[0]} ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu_s, wall_s


def print_report(runs: dict[str, list[Measured]], start_up: dict[str, float], options: argparse.Namespace) -> bool:
    """Two tables and the goals; whether both are reached."""
    server = "the mock" if options.url is None else "the server given"
    print(
        f"{options.rounds} runs of each in turn, {options.requests} requests of {options.max_tokens} tokens, "
        f"{options.concurrency} at once, against {server}; medians of runs\n"
    )
    print("| client | TTFT p50 ms | TPOT p50 ms | e2e p50 ms | CPU s | of it start-up | answered |")
    print("|---|---|---|---|---|---|---|")
    medians: dict[str, dict[str, float]] = {}
    cpu_s: dict[str, float] = {}
    for name, measured in runs.items():
        medians[name] = {m: statistics.median(run.medians_ms[m] for run in measured) for m in METRICS}
        cpu_s[name] = statistics.median(run.cpu_s for run in measured)
        answered = min(run.num_answered for run in measured)
        cells = " | ".join(f"{medians[name][metric]:.2f}" for metric in METRICS)
        print(f"| {name} | {cells} | {cpu_s[name]:.2f} | {start_up[name]:.2f} | {answered} of {options.requests} |")
    if options.url is None:
        truth = " | ".join(f"{value:.2f}" for value in true_medians_ms(options.max_tokens).values())
        print(f"| as the mock was set | {truth} | | | |")
    ours, theirs = runs
    differences = {metric: medians[ours][metric] / medians[theirs][metric] - 1 for metric in METRICS}
    named = ", ".join(f"{metric} {difference:+.1%}" for metric, difference in differences.items())
    is_close = all(abs(difference) <= MEDIAN_GOAL for difference in differences.values())
    is_cheap = cpu_s[ours] <= cpu_s[theirs]
    sending = {name: max(cpu_s[name] - start_up[name], 0.0) for name in runs}
    spent = f"{cpu_s[ours]:.2f} s of {cpu_s[theirs]:.2f} s"
    spent += f"; without start-up {sending[ours]:.2f} s of {sending[theirs]:.2f} s"
    print("\n| goal | measured | reached |\n|---|---|---|")
    print(f"| medians within {MEDIAN_GOAL:.0%} | {named} | {say(is_close)} |")
    print(f"| our CPU not higher | {spent} | {say(is_cheap)} |")
    return is_close and is_cheap


def true_medians_ms(num_tokens: int) -> dict[str, float]:
    """What the mock was set to: every answer takes the same time."""
    num_steps, emitted = 0, 0
    while emitted < num_tokens:
        emitted += 1 + ACCEPTED_PER_STEP[num_steps % len(ACCEPTED_PER_STEP)]
        num_steps += 1
    streaming_s = (num_steps - 1) * STEP_S
    return {
        "ttft": 1e3 * FIRST_MESSAGE_S,
        "tpot": 1e3 * streaming_s / (num_tokens - 1),
        "e2e": 1e3 * (FIRST_MESSAGE_S + streaming_s),
    }


def say(is_reached: bool) -> str:
    return "yes" if is_reached else "no"


if __name__ == "__main__":
    sys.exit(main())
