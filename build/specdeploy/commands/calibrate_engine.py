"""Steps of a built deployment of lane torch, measured on this machine."""

import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from specdeploy.manifest import CurrentBuild
from specdeploy.planner.calibrate import StepObservation


@dataclass(frozen=True, slots=True)
class EngineObservations:
    """Observed steps, the sizes that steps are padded to, the device in words, threads, and what the times are of."""

    observations: tuple[StepObservation, ...]
    captured_tokens: tuple[int, ...]
    hardware: str
    num_threads: int
    clock: str


def observe_engine(
    build: CurrentBuild,
    engines_root: Path,
    *,
    budget_s: float,
    random_seed: int,
    report: Callable[[str], None],
) -> EngineObservations:
    """Load what the build serves, as its server does, and time its steps. Raises SpecDeployError.

    With one thread on a processor the times are the thread's own: what other programs take of the core is not the
    engine's. With more, and on a GPU, they are of the wall clock.
    """
    import torch

    from specdeploy.runtime.assemble import load_parts
    from specdeploy.runtime.linear import computed_sizes
    from specdeploy.runtime.measure_steps import StepGrid, measure_steps
    from specdeploy.serving.adapters.torch import engine_sources, resolve_num_threads

    num_threads = resolve_num_threads(build.config.runtime.threads)
    with _pinned(num_threads):
        torch.set_num_threads(num_threads)
        target, draft, settings = engine_sources(build, engines_root)
        parts = load_parts(target, draft, settings)
        is_own_time = settings.device.type == "cpu" and num_threads == 1
        steps = measure_steps(
            parts,
            settings,
            StepGrid.of(settings, budget_s=budget_s, random_seed=random_seed),
            clock=time.thread_time_ns if is_own_time else time.perf_counter_ns,
            now=time.monotonic,
            report=report,
        )
    observations = tuple(
        StepObservation(
            num_rows=step.num_rows,
            num_draft_tokens=step.num_draft_tokens,
            depth=step.depth,
            kv_tokens=step.kv_tokens,
            prefill_tokens=step.prompt_tokens,
            seconds=step.step_s,
            draft_seconds=step.draft_s,
            prefill_context=step.prompt_context,
            draft_prefill_tokens=step.prompt_tokens,
        )
        for step in steps
    )
    device = torch.cuda.get_device_name() if settings.device.type == "cuda" else processor_name()
    most = settings.max_rows * (1 + settings.max_draft_len) + settings.prefill_chunk
    return EngineObservations(
        observations=observations,
        captured_tokens=computed_sizes(most, settings.device, settings.dtype),
        hardware=device,
        num_threads=num_threads,
        clock="the engine thread's own time" if is_own_time else "wall-clock time",
    )


def processor_name() -> str:
    """This machine's processor in words, with its cores."""
    num_cores = len(os.sched_getaffinity(0))
    return f"{_model_name()}, {num_cores} core{'s' * (num_cores != 1)}"


def _model_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.machine()


@contextmanager
def _pinned(num_threads: int) -> Iterator[None]:
    """This thread on as many cores as the server's engine thread has; its OpenMP pool starts there too."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[:num_threads])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
