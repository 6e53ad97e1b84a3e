"""What goes wrong before any server is asked is the fault of a file or an option."""

from collections.abc import Iterator
from contextlib import contextmanager

from specdeploy.errors import ClientError, ConfigError, Violation


class InputError(ConfigError):
    """A file or an option that code complained of which does not know where it came from; the message is its own."""

    def __init__(self, message: str) -> None:
        super().__init__([Violation("", "", message, "")])
        self.args = (message,)


@contextmanager
def as_user_input() -> Iterator[None]:
    """Turn a `ClientError` of the code inside into an `InputError`: nothing but files and options was looked at."""
    try:
        yield
    except ClientError as error:
        raise InputError(str(error)) from error
