"""What an arm is. Imported by arms in any environment: needs torch alone."""

from typing import Any, Protocol

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Skip(Exception):  # noqa: N818 - it is an answer, not an error
    """This arm cannot run here, and why."""


class Arm(Protocol):
    """A loaded configuration."""

    def facts(self) -> dict[str, Any]:
        """What runs: versions and settings, for the report."""

    def generate(self, prompts: list[list[int]], max_tokens: list[int], stop_ids: frozenset[int]) -> dict[str, Any]:
        """All prompts, `max_tokens[i]` tokens of prompt i or up to one of `stop_ids`; fields of arm_process.Answer."""
