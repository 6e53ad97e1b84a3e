"""One measurement: the load mock in one process, a client in another."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
MAX_MOCK_LATE_MS = 1.0
CLIENT_LIMIT_S = 60


@dataclass(frozen=True, slots=True)
class StreamingRun:
    """What one client needed for its messages. `is_void`: the mock itself was late (p99), so lags mean nothing."""

    num_messages: int
    cpu_us: float
    cpu_share: float
    lag_p50_ms: float
    lag_p99_ms: float
    mock_late_p99_ms: float

    @property
    def is_void(self) -> bool:
        """Whether the mock was late."""
        return self.mock_late_p99_ms > MAX_MOCK_LATE_MS


def measure_client(client: str, *, num_streams: int, rate: float, num_messages: int, seed: int) -> StreamingRun:
    """Start both processes, wait for the client, read what both say. Raises `RuntimeError` when one fails.

    The client reads one stream first, which warms it up; the mock's lateness covers that one too.
    """
    mock = subprocess.Popen(
        [
            *(sys.executable, str(FOLDER / "load_mock.py")),
            *("--rate", str(rate), "--messages", str(num_messages), "--seed", str(seed)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    if mock.stdout is None:
        raise RuntimeError("the load mock has no output")
    try:
        port = mock.stdout.readline().strip()
        command = [sys.executable, str(FOLDER / "stream_client.py"), client, "--port", port]
        finished = subprocess.run(
            [*command, "--streams", str(num_streams)],
            capture_output=True,
            text=True,
            timeout=CLIENT_LIMIT_S,
            check=False,
        )
        if finished.returncode:
            raise RuntimeError(f"{client} failed: {finished.stderr[-2000:]}")
        told, _ = mock.communicate(timeout=10)
    finally:
        mock.kill()
    seen, mock_seen = json.loads(finished.stdout), json.loads(told)
    if seen["messages"] != num_streams * num_messages:
        raise RuntimeError(f"{client} saw {seen['messages']} messages of {num_streams * num_messages}")
    return StreamingRun(
        num_messages=seen["messages"],
        cpu_us=seen["cpu_us"],
        cpu_share=seen["cpu_share"],
        lag_p50_ms=seen["lag_p50_ms"],
        lag_p99_ms=seen["lag_p99_ms"],
        mock_late_p99_ms=mock_seen["late_p99_ms"],
    )
