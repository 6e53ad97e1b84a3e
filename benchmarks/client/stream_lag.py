"""How late a client sees messages: its stamp minus the mock's send stamp, on the same monotonic clock.

    python benchmarks/client/stream_lag.py [--seconds 10]

64 streams of 50 messages a second, from the load mock in a process of its own, then rising rates until the 99th
percentile is above 2 ms. A run in which the mock itself was late (99th percentile above 1 ms) is void and repeated, at
most twice; a rate whose runs are all void ends the search, because then nothing is known of it.
"""

import argparse
from collections.abc import Iterator

from streaming_run import MAX_MOCK_LATE_MS, StreamingRun, measure_client

CLIENTS = ("specdeploy", "grpc-aio", "tritonclient")
GOAL_MS = 2.0
RATES = (50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 400.0)
SEARCH_S = 3.0
MAX_TRIES = 3


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0, help="of the run at the first rate")
    parser.add_argument("--clients", nargs="+", default=list(CLIENTS))
    arguments = parser.parse_args()
    print("| client | messages/s per stream | lag p50 ms | lag p99 ms | mock late p99 ms | cores |")
    print("|---|---|---|---|---|---|")
    for client in arguments.clients:
        highest: float | None = None
        for rate, run in _rising(client, arguments.streams, arguments.seconds):
            verdict = " (void)" if run.is_void else ""
            print(
                f"| {client} | {rate:g} | {run.lag_p50_ms:.2f} | {run.lag_p99_ms:.2f}{verdict} | "
                f"{run.mock_late_p99_ms:.2f} | {run.cpu_share:.2f} |",
                flush=True,
            )
            if not run.is_void and run.lag_p99_ms <= GOAL_MS:
                highest = rate
        told = "none" if highest is None else f"{highest:g} messages/s"
        print(f"| {client}: highest rate with p99 <= {GOAL_MS:g} ms | {told} | | | | |", flush=True)
    print(
        f"\nGoal: p99 below {GOAL_MS:g} ms at {RATES[0]:g}. A row is marked void where the mock's own p99 was above "
        f"{MAX_MOCK_LATE_MS:g} ms."
    )


def _rising(client: str, num_streams: int, first_s: float) -> Iterator[tuple[float, StreamingRun]]:
    """Runs at rising rates, up to the first that is void or too late."""
    for rate in RATES:
        seconds = first_s if rate == RATES[0] else SEARCH_S
        for attempt in range(MAX_TRIES):
            run = measure_client(
                client, num_streams=num_streams, rate=rate, num_messages=int(rate * seconds), seed=attempt
            )
            if not run.is_void:
                break
        yield rate, run
        if run.is_void or run.lag_p99_ms > GOAL_MS:
            return


if __name__ == "__main__":
    main()
