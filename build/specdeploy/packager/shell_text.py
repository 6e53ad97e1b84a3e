"""Pieces of the bash scripts beside the models: heading, variables with a default, long commands.

Scripts use no `${...}`: what looks like a variable of a template is one that was forgotten.
"""

import shlex
from collections.abc import Sequence

from specdeploy.config.schema import DeploymentConfig


def script_head(config: DeploymentConfig, purpose: str) -> list[str]:
    """First lines of every script; `purpose` is a comment."""
    return [
        "#!/usr/bin/env bash",
        f"# Written by `make repo DEPLOYMENT={config.name}`; change configs/deployments/{config.name}.yaml instead.",
        f"# {purpose}",
        "set -euo pipefail",
        "",
    ]


def port_arguments(config: DeploymentConfig) -> list[str]:
    """Arguments of tritonserver itself, which spells them with hyphens."""
    serving = config.serving
    return [
        f"--http-port={serving.http_port}",
        f"--grpc-port={serving.grpc_port}",
        f"--metrics-port={serving.metrics_port}",
        "--disable-auto-complete-config",
    ]


def default_variable(name: str, value: str) -> str:
    """Sets an environment variable that has no value yet."""
    return f"printenv {name} > /dev/null || export {name}={shlex.quote(value)}"


def resolved_folder(name: str, value: str) -> list[str]:
    """Sets variable `name` to the absolute path of folder `value` (a word of bash); `fail` must be defined."""
    return [
        f'[[ -d {value} ]] || fail "no such folder: "{value}',
        f'{name}="$(cd -- {value} && pwd)"',
    ]


def join_command(command: str, arguments: Sequence[str], *, indent: str = "  ") -> str:
    """A command with one argument per line; arguments are quoted already."""
    return f" \\\n{indent}".join([command, *arguments])


def join_lines(lines: Sequence[str]) -> str:
    """The text of a script."""
    return "\n".join(lines) + "\n"
