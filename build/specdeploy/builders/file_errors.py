"""What the file system refuses, as an error that says where and what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specdeploy.errors import BuildError

REMEDY = "Make the folder writable for this user and free space on its disk"


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Turn every `OSError` into a `BuildError` that names the file, or `path` where the error names none."""
    try:
        yield
    except OSError as error:
        raise BuildError(f"{error.filename or path}: {error.strerror or error}. {REMEDY}") from error
