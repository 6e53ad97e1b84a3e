"""LLM arguments while they are collected: what a version does not have is left out and noted, or forbids the build."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from packaging.version import Version

from specdeploy.errors import BuildError
from specdeploy.trtllm.columns import Field
from specdeploy.trtllm.probe_record import PROBE_COMMAND


@dataclass(slots=True)
class ArgumentDraft:
    """`unresolved`, `notes`: sentences as in `RenderedArgs`; `missing`: keys without which nothing may be served."""

    version: Version
    arguments: dict[str, object] = field(default_factory=dict)
    unresolved: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def put(
        self, into: dict[str, object], key: str, value: object, names: Mapping[str, Field] | None, where: str
    ) -> None:
        """Write what the deployment is served without, if need be: at worst slower, or with fewer kinds of requests."""
        if names is not None and key in names:
            into[key] = value
        else:
            self.notes.append(f"{where}{key} is left out: TensorRT-LLM {self.version} is not known to have it")

    def require(
        self, into: dict[str, object], key: str, value: object, names: Mapping[str, Field] | None, where: str
    ) -> None:
        """Write what the deployment is another one without: other limits, another memory, no drafting."""
        if names is not None and key in names:
            into[key] = value
        else:
            self.missing.append(f"{where}{key}")

    def raise_if_missing(self) -> None:
        """Raises `BuildError` naming every required key that this version is not known to have."""
        if self.missing:
            raise BuildError(
                "\n".join(
                    f"{key}: TensorRT-LLM {self.version} is not known to have it, and the deployment cannot do without."
                    f" Use another version, or run `{PROBE_COMMAND}` again where {self.version} is installed"
                    for key in self.missing
                )
            )
