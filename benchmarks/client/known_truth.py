"""Does the client find what was planted? A slowdown, a gain, and nothing, in runs whose truth is known.

    .venv/bin/python benchmarks/client/known_truth.py [--runs 100] [--pairs 800] [--first-seed 1000] [--real 3]

In virtual time (nothing waits, every time is exact) the load generator, the records, the comparison and the gate do
what they do in a real run; only the server is a model. Three tables: how often the gate says the right thing, with and
without stopping early; how far percentiles and acceptance are from the truth; and the same verdicts in real time
against a mock server in a process of its own. Exit code 1 when a goal is missed.
"""

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Sequence

from truth_model import Scenario, draw_truth, planted
from truth_runs import REAL_CONCURRENCY, REAL_PAIRS, Run, measure_real, measure_virtual, record_virtual, summarise

from specdeploy.run_contract import Arm, MetricName, Percentile
from specdeploy_client.comparison.stats import CONFIDENCE

SCENARIOS = (Scenario("5 % slower", 1.05), Scenario("10 % faster", 0.90), Scenario("no difference", 1.0))
RIGHT = {"5 % slower": "switch off", "10 % faster": "speculate", "no difference": "measure more"}
MIN_RIGHT, MAX_FALSE_ALARMS, MAX_DEVIATION = 0.95, 0.05, 0.01
PRECISE_PAIRS = 20_000  # the sampling error of p99 is then about 0.4 % here


def main() -> int:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100, help="seeds per scenario in virtual time")
    parser.add_argument("--pairs", type=int, default=800)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--real", type=int, default=3, help="runs per scenario in real time, 0 for none")
    options = parser.parse_args()
    started = time.monotonic()
    seeds = range(options.first_seed, options.first_seed + options.runs)
    is_met = [verdicts_in_virtual_time(seeds, options.pairs, stops_early=stops) for stops in (False, True)]
    is_met.append(percentiles_against_truth())
    if options.real:
        is_met.append(verdicts_in_real_time(options.real))
    print(f"\n{time.monotonic() - started:.0f} s in all. Goals {'met' if all(is_met) else 'MISSED'}.")
    return 0 if all(is_met) else 1


def verdicts_in_virtual_time(seeds: Sequence[int], num_pairs: int, *, stops_early: bool) -> bool:
    """One table; whether its goals are met."""
    how = "stopping when decided" if stops_early else "to the end"
    print(f"\n## {len(seeds)} runs each of {num_pairs} pairs, {how}, virtual time, confidence {CONFIDENCE:.0%}\n")
    return print_verdicts(
        [
            (s.name, [measure_virtual(s, num_pairs, seed, stops_early=stops_early) for seed in seeds])
            for s in map(planted, SCENARIOS)
        ]
    )


def print_verdicts(rows: Sequence[tuple[str, Sequence[Run]]]) -> bool:
    """The table of verdicts, and whether its goals are met. Nothing to find is found by staying undecided."""
    print("| planted | right | undecided | wrong | void | any of ttft, tpot, e2e said to differ | pairs used |")
    print("|---|---|---|---|---|---|---|")
    is_met = True
    for name, runs in rows:
        counts = Counter(outcome_of(run, RIGHT[name]) for run in runs)
        alarms = sum(run.has_alarm for run in runs)
        pairs = sum(run.pairs for run in runs) / len(runs)
        cells = [str(counts[outcome]) for outcome in ("right", "undecided", "wrong", "void")]
        print(f"| {name} | {' | '.join(cells)} | {alarms} | {pairs:.0f} |", flush=True)
        is_met &= counts["right"] >= MIN_RIGHT * len(runs)
        is_met &= RIGHT[name] != "measure more" or alarms <= MAX_FALSE_ALARMS * len(runs)
    voids = sorted({void for _, runs in rows for run in runs for void in run.voids})
    print("".join(f"\nvoid: {void}" for void in voids[:5]))
    return is_met


def outcome_of(run: Run, right: str) -> str:
    """`right`, `undecided`, `wrong` or `void`."""
    if run.voids:
        return "void"
    if run.action == right:
        return "right"
    return "undecided" if run.action == "measure more" else "wrong"


def percentiles_against_truth() -> bool:
    """Percentiles, step time and acceptance of a long run beside those of the model; whether all are within 1 %."""
    scenario = planted(Scenario("10 % faster", 0.90, spell_sigma=0.0))
    records = record_virtual(scenario, PRECISE_PAIRS, seed=5)
    summary = summarise(records)
    print(f"\n## {PRECISE_PAIRS} requests per arm beside the model they were drawn from\n")
    print("| arm | quantity | truth | measured | deviation |\n|---|---|---|---|---|")
    worst = 0.0

    def row(arm: Arm, name: str, truth: float, measured: float | None, unit: str) -> None:
        nonlocal worst
        deviation = math.inf if measured is None else measured / truth - 1
        worst = max(worst, abs(deviation))
        print(f"| {arm} | {name} | {truth:.4g}{unit} | {measured or math.nan:.4g}{unit} | {deviation:+.2%} |")

    for cell in summary.cells:
        truth = draw_truth(scenario, cell.arm, num_answers=1_000_000)
        by_metric = {MetricName.TTFT: cell.ttft_ms, MetricName.TPOT: cell.tpot_ms, MetricName.E2E: cell.e2e_ms}
        for metric, measured in by_metric.items():
            for percentile in Percentile:
                expected = truth.quantile(metric, percentile.quantile) * 1e3
                row(cell.arm, f"{metric} {percentile}", expected, measured.value(percentile), " ms")
        row(cell.arm, "median step", truth.step_s * 1e3, cell.icl_ms and cell.icl_ms.p50, " ms")
        if cell.acceptance is not None:
            row(cell.arm, "acceptance rate", truth.acceptance_rate, cell.acceptance.acceptance_rate, "")
    print(f"\nfarthest from the truth: {worst:.2%}, at most {MAX_DEVIATION:.0%} allowed")
    return worst <= MAX_DEVIATION


def verdicts_in_real_time(num_runs: int) -> bool:
    """The table of verdicts against a mock in a process of its own; whether its goals are met."""
    print(f"\n## {num_runs} runs each of {REAL_PAIRS} pairs in real time, concurrency {REAL_CONCURRENCY}\n")
    return print_verdicts([(s.name, [measure_real(s.effect) for _ in range(num_runs)]) for s in SCENARIOS])


if __name__ == "__main__":
    sys.exit(main())
