"""Prompts for training text, from what is on the machine: the standard library, and the target's own imagination.

No prompt of `configs/traffic` is among them. Python's sources are under the PSF licence; what the target writes comes
from an Apache-2.0 model.
"""

import ast
import hashlib
import random
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Before a user turn the target invents the user itself (Xu et al. 2024, Magpie): temperature 1, top-k 60.
USER_TURN_PREFIX = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n"
)
_CODE_TASKS = (
    "Rewrite this function with type hints and return the full code.",
    "Add a docstring to this function and return the full code.",
    "Rename the variables of this function to clearer names and return the full code.",
    "Add a comment to every step of this function and return the full code.",
    "Rewrite this function so that it also handles empty input, and return the full code.",
    "Explain what this function does.",
    "Return this function unchanged.",
    "Write a unit test for this function.",
)
_TEXT_TASKS = (
    "Summarise the following text in two sentences.",
    "Summarise this text in one short paragraph.",
    "What is the main point of this text?",
    "List the most important facts of the following text.",
)
_SKIPPED_FOLDERS = {
    "test",
    "tests",
    "idle_test",
    "site-packages",
    "dist-packages",
    "encodings",
    "lib2to3",
    "pydoc_data",
}


@dataclass(frozen=True, slots=True)
class TrainingPrompt:
    """One user message and the family it counts in."""

    family: str
    text: str

    @property
    def is_held_out(self) -> bool:
        """One prompt in sixteen is kept for measuring, by its content, so that no run can train on it."""
        return hashlib.sha256(self.text.encode()).digest()[0] < 16


def standard_library_prompts(seed: int) -> list[TrainingPrompt]:
    """Code tasks over functions and reading tasks over docstrings of the installed standard library, shuffled."""
    functions, texts = [], []
    for path in _sources(Path(sysconfig.get_paths()["stdlib"])):
        source = path.read_text(encoding="utf-8", errors="replace")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(source)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                functions.append(_dedent(ast.get_source_segment(source, node) or ""))
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                texts.append(ast.get_docstring(node) or "")
    code = [text for text in dict.fromkeys(functions) if 150 <= len(text) <= 900 and text.isascii()]
    prose = [text for text in dict.fromkeys(texts) if 300 <= len(text) <= 1500 and text.isascii() and ">>>" not in text]
    rng = random.Random(seed)  # noqa: S311 - which task a text gets is no secret
    prompts = [TrainingPrompt("code", f"{rng.choice(_CODE_TASKS)}\n\n```python\n{text}\n```") for text in code]
    prompts += [TrainingPrompt("text", f"{rng.choice(_TEXT_TASKS)}\n\n{text}") for text in prose]
    rng.shuffle(prompts)
    return prompts


def _sources(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*.py")):
        if not _SKIPPED_FOLDERS & set(path.relative_to(folder).parts):
            yield path


def _dedent(text: str) -> str:
    lines = text.splitlines()
    indents = [len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()]
    extra = max(0, min(indents, default=4) - 4)
    return "\n".join([*lines[:1], *(line[extra:] for line in lines[1:])])
