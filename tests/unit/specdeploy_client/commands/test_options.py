"""Groups of options become options of a command, and come back as one value."""

from dataclasses import dataclass, fields
from itertools import combinations
from pathlib import Path
from typing import Annotated

import typer
from typer.testing import CliRunner

from specdeploy_client.commands.options import (
    EndpointOptions,
    LoadOptions,
    ResultOptions,
    SwitchKind,
    SwitchOptions,
    WorkloadOptions,
    spread_options,
)


@dataclass(frozen=True, slots=True)
class _Place:
    path: Annotated[Path, typer.Option("--path", "-p")]
    kind: Annotated[SwitchKind, typer.Option()] = SwitchKind.NONE


def test_a_group_is_spread_and_gathered() -> None:
    seen: list[object] = []
    app = typer.Typer()

    @app.command()
    @spread_options
    def go(word: Annotated[str, typer.Argument()], place: _Place, times: int = 2) -> None:
        """Goes."""
        seen.append((word, place, times))

    runner = CliRunner()
    assert runner.invoke(app, ["hey", "-p", "x", "--kind", "endpoints", "--times", "3"]).exit_code == 0
    assert seen == [("hey", _Place(Path("x"), SwitchKind.ENDPOINTS), 3)]
    assert runner.invoke(app, ["hey"]).exit_code == 2  # --path has no default
    refused = runner.invoke(app, ["hey", "--path", "x", "--kind", "carrier-pigeon"])
    assert refused.exit_code == 2
    assert "per-request" in refused.output


def test_no_option_is_in_two_groups() -> None:
    groups = (EndpointOptions, SwitchOptions, WorkloadOptions, LoadOptions, ResultOptions)
    for left, right in combinations(groups, 2):
        assert not {field.name for field in fields(left)} & {field.name for field in fields(right)}
