"""The planner's cost models against published measurements: tables, a scatter plot, and the calibrations they give.

    python benchmarks/planner/published.py            # tables, and docs/images/planner_*.svg
    python benchmarks/planner/published.py --write    # also configs/calibrations/*.calibration.json

Parameters are fitted to one part of the published numbers and scored on the rest; the split is a column of the files
in benchmarks/planner/data. Acceptance is taken as published wherever it was, so the errors are those of step times.
"""

import argparse
from pathlib import Path

from calibration_texts import file_name, file_text
from cells import Cell
from draft_sizes import implied_acceptances
from fitting import CONFIGS, REPOSITORY
from results import Results, predict_everything
from scatter import Point, scatter_plot
from table import exclusion_table, goal_table, miss_list, score_table

PLOTS = REPOSITORY / "docs" / "images"


def main() -> None:
    """Prints the tables and writes the plots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the calibrations to configs/calibrations")
    parser.add_argument("--plots", type=Path, default=PLOTS, help="folder of the scatter plots")
    arguments = parser.parse_args()
    results = predict_everything()
    print("\n\n".join(report_parts(results)))
    arguments.plots.mkdir(parents=True, exist_ok=True)
    for name, text in (("planner_scatter.svg", times_plot(results)), ("planner_speedups.svg", speedups_plot(results))):
        (arguments.plots / name).write_text(text, encoding="utf-8")
        print(f"\nwritten: {arguments.plots / name}")
    if arguments.write:
        for calibration in results.calibrations:
            path = CONFIGS / "calibrations" / file_name(calibration)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file_text(calibration), encoding="utf-8")
            print(f"written: {path}")


def report_parts(results: Results) -> list[str]:
    """Markdown, part by part."""
    calibration = next(one for one in results.calibrations if one.name == "tensorrt-llm-h200")
    implied = [
        f"- {draft}: " + ", ".join(f"{alpha:.2f}" for alpha in alphas) + " at K 5, 7, 10"
        for draft, alphas in implied_acceptances(calibration).items()
    ]
    return [
        "## Goals, on held-out cells",
        goal_table(results.scores),
        "## Series",
        score_table(results.scores),
        "## Wrong decisions",
        miss_list(results.scores) or "None.",
        "## Tokens per step that were not published",
        "\n".join(f"- {name}: {text}" for name, text in results.taus.items()),
        "## Acceptance per token that the published speeds of Llama-3.1-405B imply, by draft",
        "\n".join(implied),
        "## Left out",
        exclusion_table(results.exclusions),
    ]


def times_plot(results: Results) -> str:
    """SVG: every cell as milliseconds per token of one request, or of a step; ratios have no unit and are left out."""
    series = []
    for name, predictions in results.predictions.items():
        chosen = [one for one in predictions if one.cell.metric != "ratio"]
        if chosen:
            series.append(
                (
                    name,
                    [
                        _point(name, one.cell, _ms(one.cell, one.cell.value), _ms(one.cell, one.predicted))
                        for one in chosen
                    ],
                )
            )
    return scatter_plot("Predicted and published times", "ms per token and request, or per step", series)


def speedups_plot(results: Results) -> str:
    """SVG: plain time over drafting time of every drafting cell whose plain decoding was published."""
    series = [
        (name, [_point(name, one.cell, one.published, one.predicted) for one in speedups])
        for name, speedups in results.speedups.items()
        if speedups
    ]
    return scatter_plot("Predicted and published speed-ups", "times faster than plain decoding", series)


def _point(name: str, cell: Cell, published: float, predicted: float) -> Point:
    where = f"{name}, {cell.arm}, {cell.task}, K {cell.draft_lens}, {cell.rows:g} requests"
    label = f"{where}: {published:.3g}, predicted {predicted:.3g}"
    return Point(published, predicted, cell.split == "held_out", label)


def _ms(cell: Cell, value: float) -> float:
    match cell.metric:
        case "tok_s":
            return 1e3 * cell.rows / value
        case "tok_s_user":
            return 1e3 / value
        case _:
            return 1e3 * value


if __name__ == "__main__":
    main()
