"""Text that people wrote and that every Python carries: English prose and code, split into words.

Random token ids would be drafted for as no real text is; filler words repeat. Prose is the language reference
(`pydoc_data.topics`) without its code and grammar; code is modules of the standard library. Both differ a little
between Python versions, so their digest goes into the record of a run.
"""

import hashlib
import re
import sysconfig
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import numpy.typing as npt

from specdeploy.errors import ClientError

_MIN_PARAGRAPH_CHARS = 80
_MIN_PLAIN_SHARE = 0.93  # letters and the marks of sentences; code and tables have fewer
_NO_PROSE = ("::=", ">>>", "****", "====", "----", "~~~~", " = ", "+--")
_PARAGRAPH_BREAK = re.compile(r"\n\s*\n")
_LIST_MARK = re.compile(r"\A\s*(?:[*+-]|\d+\.)\s+")
_WORD = re.compile(r"\S+")
_SENTENCE_END = (".", "?", "!", ":")
_CODE_MODULES = (
    "argparse.py", "calendar.py", "configparser.py", "contextlib.py", "csv.py", "dataclasses.py", "difflib.py",
    "fractions.py", "functools.py", "heapq.py", "inspect.py", "ipaddress.py", "logging/__init__.py", "shutil.py",
    "statistics.py", "textwrap.py", "threading.py", "traceback.py",
)  # fmt: skip


class TextKind(StrEnum):
    """What synthetic prompts are made of."""

    PROSE = "prose"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class Words:
    """A text and its W words, runs without white space: `begins` and `ends` [W] are character positions.

    `is_start` [W]: begins with a letter, so that a prompt may start there; `is_natural_start` [W]: begins a sentence
    or a line of code, where a person would start.
    """

    text: str
    begins: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    is_start: npt.NDArray[np.bool_]
    is_natural_start: npt.NDArray[np.bool_]

    @property
    def digest(self) -> str:
        """The first 12 digits of the text's SHA-256."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]

    def word(self, index: int) -> str:
        """Word number `index`."""
        return self.text[self.begins[index] : self.ends[index]]


@lru_cache(maxsize=len(TextKind))
def load_words(kind: TextKind) -> Words:
    """The words of prose or code. Raises `ClientError` on a Python without the sources of its library."""
    return split_words(prose_text() if kind is TextKind.PROSE else code_text(), kind)


def split_words(text: str, kind: TextKind) -> Words:
    """`text` as `Words`."""
    spans = [match.span() for match in _WORD.finditer(text)]
    begins, ends = (np.array(positions, dtype=np.int64) for positions in zip(*spans, strict=True))
    is_start = np.array([text[begin].isalpha() and text[begin].isascii() for begin, _ in spans])
    gaps = [text[end:begin] for (_, end), (begin, _) in pairwise(spans)]
    if kind is TextKind.PROSE:
        is_break = [text[end - 1] in _SENTENCE_END or "\n" in gap for (_, end), gap in zip(spans, gaps, strict=False)]
    else:
        is_break = ["\n" in gap for gap in gaps]
    return Words(text, begins, ends, is_start, is_start & np.array([True, *is_break]))


def prose_text() -> str:
    """Paragraphs of the language reference, each on one line."""
    paragraphs = (
        _prose_of(paragraph) for name in sorted(topics) for paragraph in _PARAGRAPH_BREAK.split(str(topics[name]))
    )
    # Some topics contain one another.
    return "\n\n".join(dict.fromkeys(paragraph for paragraph in paragraphs if paragraph))


def code_text(library: Path | None = None) -> str:
    """Sources of modules in `library` (the running Python's), those that are there."""
    folder = Path(sysconfig.get_paths()["stdlib"]) if library is None else library
    sources = [(folder / name).read_text(encoding="utf-8") for name in _CODE_MODULES if (folder / name).is_file()]
    if not sources:
        raise ClientError(
            f"{folder} holds no sources of the standard library, which prompts of code are made of. "
            "Use prose, or a prompt file with --input-file"
        )
    return "\n\n".join(source.strip() for source in sources)


def _prose_of(paragraph: str) -> str:
    """`paragraph` on one line, or '' where it is code, grammar, a heading, a table or too short to be prose."""
    text = " ".join(_LIST_MARK.sub("", paragraph).split())
    if len(text) < _MIN_PARAGRAPH_CHARS or text[-1] not in _SENTENCE_END or any(mark in text for mark in _NO_PROSE):
        return ""
    num_plain = sum(character.isalpha() or character in " ,.;" for character in text)
    return text if num_plain >= _MIN_PLAIN_SHARE * len(text) else ""
