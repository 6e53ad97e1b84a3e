"""What the numbers were measured on: processor, its matrix instructions, threads, versions, memory bandwidth."""

import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile")
_BUFFER_BYTES = 1 << 30


def machine_facts(num_threads: int) -> dict[str, Any]:
    """Facts for the report; what cannot be read is absent."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    lines = dict(_split(line) for line in text.splitlines() if ":" in line)
    present = set(lines.get("flags", "").split())
    return {
        "processor": lines.get("model name", platform.processor()),
        "cores": len(os.sched_getaffinity(0)),
        "threads": num_threads,
        "flags": [flag for flag in _FLAGS if flag in present],
        "has_amx": "amx_bf16" in present,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load_average": os.getloadavg()[0],
    }


def read_bandwidth(repeats: int = 7) -> float:
    """Bytes per second at which the threads read memory: the best of three reductions over 1 GiB, each a median."""
    buffer = torch.ones(_BUFFER_BYTES // 4)
    words = buffer.view(torch.int64)
    best = 0.0
    readers: list[Callable[[], torch.Tensor]] = [
        lambda: buffer.sum(),
        lambda: torch.dot(buffer, buffer),
        lambda: words.max(),
    ]
    for reduce in readers:
        reduce()
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            reduce()
            seconds.append(time.perf_counter() - start)
        best = max(best, _BUFFER_BYTES / statistics.median(seconds))
    return best


def _split(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()
