"""Client CPU time per streamed message, of this client against plain tritonclient, in one run.

    python benchmarks/client/message_cost.py [--rounds 3]

The load mock replays messages that were serialised beforehand, in a process of its own; every client starts afresh in
its own process, and the clients take turns. CPU time is that of the client's process from the first request to the last
message, connections included. Reported are the medians over the rounds, and the ratio within each round.
"""

import argparse
import statistics

from stream_client import CLIENTS
from streaming_run import StreamingRun, measure_client

GOAL = 0.25
OURS, REFERENCE = "specdeploy", "tritonclient"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rate", type=float, default=50.0, help="messages per second of one stream")
    parser.add_argument("--messages", type=int, default=200, help="messages of one stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    arguments = parser.parse_args()
    clients = list(dict.fromkeys([OURS, REFERENCE, *arguments.clients]))
    runs: dict[str, list[StreamingRun]] = {client: [] for client in clients}
    for number in range(arguments.rounds):
        order = clients if number % 2 == 0 else clients[::-1]
        for client in order:
            runs[client].append(
                measure_client(
                    client,
                    num_streams=arguments.streams,
                    rate=arguments.rate,
                    num_messages=arguments.messages,
                    seed=number,
                )
            )
    print(f"{arguments.streams} streams of {arguments.rate:g} messages/s, {arguments.rounds} rounds\n")
    print(
        "| client | CPU per message us | lowest round us | of tritonclient's, by round | cores |\n|---|---|---|---|---|"
    )
    for client, measured in runs.items():
        costs = [run.cpu_us for run in measured]
        ratios = [run.cpu_us / reference.cpu_us for run, reference in zip(measured, runs[REFERENCE], strict=True)]
        share = statistics.median(run.cpu_share for run in measured)
        print(
            f"| {client} | {statistics.median(costs):.1f} | {min(costs):.1f} | "
            f"{', '.join(f'{ratio:.2f}' for ratio in ratios)} | {share:.2f} |"
        )
    ratio = statistics.median(
        ours.cpu_us / reference.cpu_us for ours, reference in zip(runs[OURS], runs[REFERENCE], strict=True)
    )
    print(f"\ngoal: at most {GOAL} of {REFERENCE}'s; {ratio:.2f}: {'reached' if ratio <= GOAL else 'not reached'}")


if __name__ == "__main__":
    main()
