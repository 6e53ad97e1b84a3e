"""Guides (JSON, JSON schema, regular expression, EBNF grammar) compiled for one tokenizer, by xgrammar.

xgrammar (Dong et al., arXiv:2411.15100) says which tokens may come next as a bit mask, and takes tokens back. It is
imported when the first guide is compiled: it brings transformers with it. Compiling takes up to seconds and lets other
threads run.
"""

import json
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from tokenizers import Tokenizer

from specdeploy.errors import RequestError, SpecDeployError
from specdeploy.runtime.grammar_output import GrammarOutput, ThinkingEnd
from specdeploy.runtime.regex_guide import regex_problem, without_line_ends
from specdeploy.runtime.schema_guide import schema_problem, wrapper_key
from specdeploy.runtime.token_text import token_texts

MAX_GUIDE_BYTES = 64 << 10
CACHE_BYTES = 64 << 20
# A model that has nothing to say writes blanks, and JSON allows any number of them between its tokens.
MAX_WHITESPACE = 64
_ANY_JSON = {"anyOf": [{"type": "object"}, {"type": "array"}]}
_FIELD = "guided_decoding_guide"
_CONTROL = re.compile(rb"[\x00-\x1f]")
_STRING_RULES = re.compile(r'"(minLength|maxLength|pattern|format)"')
_WHERE_IN_XGRAMMAR = re.compile(r"^\[[\d:]+\] \S+: (Check failed: \(.*?\) is false: )?")


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """A compiler of xgrammar, and the ids that stand for no text in its grammars."""

    compiler: Any
    textless_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class _Vocabularies:
    """All tokens, and those without control characters.

    In strings with a length, pattern or format xgrammar 0.2.9 lets control characters through, which JSON does not
    allow. Such schemas do without them everywhere, line ends between the JSON's tokens included.
    """

    full: _Vocabulary
    printable: _Vocabulary

    def of(self, kind: str, text: str) -> _Vocabulary:
        """The one for a guide."""
        return self.printable if kind in ("json", "json_schema") and _STRING_RULES.search(text) else self.full


class GrammarCompiler:
    """Compiles guides for one tokenizer and keeps what it compiled, up to CACHE_BYTES. Usable from any thread."""

    def __init__(self, tokenizer: Tokenizer, *, num_token_ids: int, thinking_end: str | None = None) -> None:
        """`num_token_ids` as many logits as the engine chooses from. `thinking_end`: guides apply after this text."""
        self._tokenizer = tokenizer
        self._num_token_ids = num_token_ids
        self._marker = thinking_end
        self._lock = threading.Lock()
        self._vocabularies: _Vocabularies | None = None
        self._thinking: ThinkingEnd | None = None

    def guided_output(self, kind: str, text: str, stop_ids: frozenset[int]) -> GrammarOutput:
        """A guide at the start of an output. `kind` is json, json_schema, regex or ebnf_grammar; json without a text is
        any object or array.

        Raises RequestError for a guide that cannot be compiled, or that would not be enforced as it reads.
        """
        with self._lock:
            vocabularies = self._vocabularies = self._vocabularies or self._load()
        checked = _checked_text(kind, text)
        vocabulary = vocabularies.of(kind, checked)
        output = GrammarOutput(
            _compile(vocabulary.compiler, kind, checked),
            self._num_token_ids,
            textless_ids=vocabulary.textless_ids - stop_ids,
            stop_ids=stop_ids,
            thinking=self._thinking,
        )
        if not output.allows_text:
            _refuse("allows no text", "Send a guide that at least one text of one token or more matches")
        return output

    def _load(self) -> "_Vocabularies":
        try:
            import xgrammar
        except ImportError as error:
            raise RequestError(
                "guided_decoding_guide_type",
                f"guides are enforced by the package xgrammar, which cannot be imported here ({error})",
                "Install it where the server runs, or leave the guide out",
            ) from None
        try:
            texts = token_texts(self._tokenizer, self._num_token_ids)
        except SpecDeployError as error:
            raise RequestError("guided_decoding_guide_type", str(error), "Leave the guide out") from None
        if self._marker is not None:
            self._thinking = ThinkingEnd(self._marker.encode(), texts.spelled)

        def vocabulary(written: Sequence[bytes]) -> _Vocabulary:
            # One id more than there are logits: it ends the output of a request that no token ends.
            info = xgrammar.TokenizerInfo(
                [*written, b""],
                xgrammar.VocabType.RAW,
                vocab_size=self._num_token_ids + 1,
                stop_token_ids=[self._num_token_ids],
            )
            compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_limit_bytes=CACHE_BYTES // 2)
            return _Vocabulary(compiler, frozenset(token for token, text in enumerate(written) if not text))

        printable = [b"" if _CONTROL.search(text) else text for text in texts.written]
        return _Vocabularies(vocabulary(texts.written), vocabulary(printable))


def _checked_text(kind: str, text: str) -> str:
    """The guide as xgrammar shall read it. Raises RequestError for what would not be enforced as it reads."""
    if len(text.encode()) > MAX_GUIDE_BYTES:
        _refuse(f"is longer than {MAX_GUIDE_BYTES} bytes", "Shorten it")
    if kind in ("json", "json_schema"):
        return json.dumps(_ANY_JSON if kind == "json" and not text.strip() else _checked_schema(text))
    if kind == "regex":
        if problem := regex_problem(text):
            _refuse(problem, "The expression is matched against the whole output; write it without")
        return without_line_ends(text)
    return text


def _compile(compiler: Any, kind: str, text: str) -> Any:
    """A CompiledGrammar of xgrammar. Raises RequestError for what it cannot compile."""
    try:
        if kind in ("json", "json_schema"):
            return compiler.compile_json_schema(text, max_whitespace_cnt=MAX_WHITESPACE)
        if kind == "regex":
            return compiler.compile_regex(text)
        if kind == "ebnf_grammar":
            return compiler.compile_grammar(text)
    except RuntimeError as error:  # what every check of xgrammar raises
        reason = _WHERE_IN_XGRAMMAR.sub("", str(error)).strip().rstrip(".")
        _refuse(f"cannot be compiled as {kind}: {reason[:300]}", "Correct it; an EBNF grammar starts at the rule root")
    raise RequestError("guided_decoding_guide_type", f"unknown type {kind!r}")


def _checked_schema(text: str) -> Any:
    try:
        schema = json.loads(text, parse_constant=_no_number)
    except RecursionError:
        _refuse("is nested too deeply", "Send a flatter schema")
    except ValueError as error:
        _refuse(f"is not JSON ({error})", "Send a JSON schema")
    if isinstance(schema, dict) and (key := wrapper_key(schema)):
        _refuse(f"is no schema but wraps one under {key}", f"Send what stands under {key} alone")
    if problem := schema_problem(schema):
        _refuse(problem, "Leave it out, or write the schema another way; a constraint is enforced or refused")
    return schema


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _refuse(reason: str, remedy: str) -> NoReturn:
    raise RequestError(_FIELD, reason, remedy)
