"""The corpus is text that people wrote, and its words are where they say."""

from pathlib import Path

import pytest

from specdeploy.errors import ClientError
from specdeploy_client.workloads.corpus import TextKind, code_text, load_words, prose_text, split_words


def test_prose_is_prose() -> None:
    text = prose_text()
    paragraphs = text.split("\n\n")
    assert len(text) > 100_000
    assert len(set(paragraphs)) == len(paragraphs)
    assert not any("\n" in paragraph or "::=" in paragraph or ">>>" in paragraph for paragraph in paragraphs)
    assert all(paragraph[-1] in ".?!:" for paragraph in paragraphs)
    letters = sum(character.isalpha() or character.isspace() for character in text)
    assert letters / len(text) > 0.9


def test_code_compiles() -> None:
    for source in code_text().split("\n\n\n\n")[:1]:
        compile(source, "corpus", "exec")
    assert "def " in code_text()


def test_a_library_without_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match=r"no sources of the standard library.*--input-file"):
        code_text(tmp_path)
    (tmp_path / "csv.py").write_text("import re\n\n")
    assert code_text(tmp_path) == "import re"


def test_words_and_where_prompts_may_begin() -> None:
    words = split_words("One two. Three\n\n(four five) 6 six? seven", TextKind.PROSE)
    listed = [words.word(index) for index in range(len(words.begins))]
    assert listed == ["One", "two.", "Three", "(four", "five)", "6", "six?", "seven"]
    assert [word for word, flag in zip(listed, words.is_start, strict=True) if not flag] == ["(four", "6"]
    natural = [word for word, flag in zip(listed, words.is_natural_start, strict=True) if flag]
    assert natural == ["One", "Three", "seven"]
    code = split_words("def f(x): return x\n    if x:\n # y", TextKind.CODE)
    assert [code.word(i) for i in range(len(code.begins)) if code.is_natural_start[i]] == ["def", "if"]


def test_the_corpus_is_the_same_each_time() -> None:
    first = load_words(TextKind.PROSE)
    load_words.cache_clear()
    assert load_words(TextKind.PROSE).digest == first.digest
    assert len(first.digest) == 12
