"""Every error this project raises on purpose.

    SpecDeployError                 something a person can act on; printed as one message, never as a traceback
    |-- ConfigError                 a file the user wrote (YAML): carries every violation at once
    |-- CheckpointError             a checkpoint folder, hub id or wheel that cannot be used
    |-- BuildError                  a build step failed
    |-- PackagingError              a Triton model repository that must not be written
    |-- ServerError                 the Triton server cannot be found, started, reached or stopped
    |   `-- PortInUseError
    |-- RequestError                one request is refused; the server lives on
    `-- ClientError                 the client cannot do what it was asked (workload, transport, records)

An expected negative ("does not fit", "no gain", "switch it off") is a value (`Verdict`, a report), never an exception.
"""

from dataclasses import dataclass


class SpecDeployError(Exception):
    """Base of all errors meant for people. `str()` of it is the whole message."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing wrong with one field of one file.

    `file` the file or request as the user knows it, `key` dotted path inside it ('' = the file as a whole),
    `reason` what is wrong with the value, `remedy` what to write instead.
    """

    file: str
    key: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        place = f"{self.file}: {self.key}" if self.key else self.file
        return f"{place}: {self.reason}. {self.remedy}"


class ConfigError(SpecDeployError):
    """A config file with one or more violations, all of them listed."""

    def __init__(self, violations: list[Violation]) -> None:
        self.violations = violations
        super().__init__("\n".join(str(violation) for violation in violations))


class CheckpointError(SpecDeployError):
    """A checkpoint that cannot be found, read or used."""


class BuildError(SpecDeployError):
    """A build step failed; the message names the step and its cause."""


class PackagingError(SpecDeployError):
    """A model repository that would not load or would not do what the config says."""


class ServerError(SpecDeployError):
    """The Triton server cannot be found, started, reached or stopped."""


class PortInUseError(ServerError):
    """A port of the config is held by another process."""


class RequestError(SpecDeployError):
    """One request is refused. `field` is the input tensor at fault."""

    def __init__(self, field: str, reason: str, remedy: str = "") -> None:
        self.field = field
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{field}: {reason}" + (f". {remedy}" if remedy else ""))


class ClientError(SpecDeployError):
    """The client cannot do what it was asked to do."""
