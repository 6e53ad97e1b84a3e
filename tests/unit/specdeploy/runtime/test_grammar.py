"""Guides: what they let through, beside drafts too, and what they refuse."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from helpers.scripted_drafter import QuietDrafter
from helpers.tiny_checkpoint import EOS_ID, make_tokenizer
from specdeploy.errors import RequestError
from specdeploy.runtime.drafters.base import Draft, Drafter, DraftRow
from specdeploy.runtime.engine import Engine
from specdeploy.runtime.grammar import GrammarCompiler
from specdeploy.runtime.grammar_output import GrammarOutput
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.request import GenerationRequest, RowUpdate, SamplingParams

TOKENIZER = make_tokenizer()
NUM_TOKENS = TOKENIZER.get_vocab_size()
STOP = frozenset({EOS_ID})
PROMPT = tuple(TOKENIZER.encode("The river rose in the night and").ids)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 2},
        "mail": {"type": "string", "pattern": "^[a-c]{1,3}@x$"},
        "is_new": {"type": "boolean"},
    },
    "required": ["name", "age", "tags", "mail", "is_new"],
}
SUMS = 'root ::= term ("+" term){0,3}\nterm ::= [1-9] [0-9]{0,2} | "(" term "-" term ")"'


def is_sum(text: str) -> None:
    assert set(text) <= set("0123456789+-()")
    eval(text)  # noqa: S307 - digits and signs alone


def validates(schema: dict[str, Any]) -> Callable[[str], None]:
    return lambda text: jsonschema.validate(json.loads(text), schema)


def matches(pattern: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        assert re.fullmatch(pattern, text), text

    return check


GUIDES: dict[str, tuple[str, str, Callable[[str], None]]] = {
    "json": ("json", "", lambda text: json.loads(text)),
    "schema": ("json_schema", json.dumps(SCHEMA), validates(SCHEMA)),
    "regex": ("regex", "[a-f]{3}-(red|green)\\.[0-9]{2,5}", matches(r"[a-f]{3}-(red|green)\.[0-9]{2,5}")),
    "ebnf": ("ebnf_grammar", SUMS, is_sum),
}
with_each_guide = pytest.mark.parametrize(("kind", "text", "check"), GUIDES.values(), ids=GUIDES)


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(TOKENIZER, num_token_ids=NUM_TOKENS)


def token_id_in(tokenizer: Tokenizer, piece: str) -> int:
    token = tokenizer.token_to_id(piece)
    assert token is not None
    return token


def token_id(piece: str) -> int:
    return token_id_in(TOKENIZER, piece)


def mask_of(output: GrammarOutput) -> list[bool]:
    logits = torch.zeros(NUM_TOKENS)
    output.mask_logits(logits)
    return (logits == 0).tolist()


def walk(output: GrammarOutput, seed: int, most: int = 200) -> list[int]:
    """A random legal output; tokens of many bytes are as likely as the others."""
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = []
    while len(tokens) < most and not output.is_finished:
        logits = torch.randn(NUM_TOKENS, generator=generator)
        output.mask_logits(logits)
        tokens.append(int(logits.argmax()))
        output.accept(tokens[-1])
    return tokens


def serve(model: DecoderModel, drafter: Drafter | None, requests: Sequence[GenerationRequest]) -> dict[str, Any]:
    """(tokens, finish reason, drafted tokens) by request."""
    engine = Engine(model, drafter, max_rows=8, max_queue=64, prefill_chunk=64, num_token_ids=NUM_TOKENS)
    tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
    last: dict[str, RowUpdate] = {}
    for request in requests:
        engine.submit(request)
    with torch.inference_mode():
        while engine.num_in_flight:
            for update in engine.step():
                tokens[update.request_id] += update.token_ids
                last[update.request_id] = update
    return {name: (tokens[name], last[name].finish_reason, last[name].stats.num_draft_tokens) for name in tokens}


def guided_request(
    output: GrammarOutput | None, *, draft_len: int = 0, name: str = "a", max_tokens: int = 60, **fields: Any
) -> GenerationRequest:
    base = GenerationRequest(
        name, PROMPT, max_tokens, stop_ids=STOP, draft_len=lambda in_flight: draft_len, guided=output
    )
    return replace(base, **fields)


class Guesser(QuietDrafter):
    """Drafts of which some tokens are right, some illegal, and none depend on the grammar."""

    def __init__(self, right: Sequence[int], *, seed: int) -> None:
        super().__init__()
        self._right, self._seed = right, seed

    def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
        return [self._draft(row) for row in rows]

    def _draft(self, row: DraftRow) -> Draft:
        generator = torch.Generator().manual_seed(1000 * self._seed + row.num_output)
        right = self._right[row.num_output :]
        guesses = torch.randint(NUM_TOKENS, (row.draft_len,), generator=generator).tolist()
        is_right = (torch.rand(row.draft_len, generator=generator) < 0.7).tolist()
        return Draft(tuple(right[i] if i < len(right) and is_right[i] else guesses[i] for i in range(row.draft_len)))


# --- what is let through --------------------------------------------------------------------------------------------


@with_each_guide
def test_every_finished_output_is_what_the_guide_asks_for(
    compiler: GrammarCompiler, kind: str, text: str, check: Callable[[str], None]
) -> None:
    num_finished = 0
    for seed in range(25):
        output = compiler.guided_output(kind, text, STOP)
        tokens = walk(output, seed)
        if output.is_finished:
            num_finished += 1
            check(TOKENIZER.decode(tokens))
        assert not output.is_stuck
    assert num_finished >= 5


@with_each_guide
def test_a_token_is_legal_exactly_when_the_mask_has_it(
    compiler: GrammarCompiler, kind: str, text: str, check: Callable[[str], None]
) -> None:
    output = compiler.guided_output(kind, text, STOP)
    for token in walk(compiler.guided_output(kind, text, STOP), seed=3, most=25):
        legal = output.legal_draft(list(range(NUM_TOKENS)), [-1] * NUM_TOKENS)
        assert legal == [index for index, is_legal in enumerate(mask_of(output)) if is_legal]
        output.accept(token)


def test_special_tokens_are_no_text(compiler: GrammarCompiler) -> None:
    output = compiler.guided_output("regex", r"(.|<|\|)*", frozenset())
    mask = mask_of(output)
    assert mask[token_id("a")]
    assert not any(mask[token] for token in TOKENIZER.get_added_tokens_decoder())


def test_a_character_of_many_tokens_is_one_character(compiler: GrammarCompiler) -> None:
    tokens = TOKENIZER.encode("東é").ids
    assert len(tokens) == 5
    output = compiler.guided_output("regex", "..", STOP)
    for token in tokens:
        assert mask_of(output)[token]
        assert not output.is_finished
        output.accept(token)
    assert output.is_finished


def test_the_dot_is_no_line_end(compiler: GrammarCompiler) -> None:
    assert not mask_of(compiler.guided_output("regex", ".", STOP))[TOKENIZER.encode("\n").ids[0]]
    assert mask_of(compiler.guided_output("regex", r"[.\n]", STOP))[TOKENIZER.encode("\n").ids[0]]


def test_stop_ids_are_legal_where_the_text_may_end_and_nowhere_else(compiler: GrammarCompiler) -> None:
    output = compiler.guided_output("regex", "a+b?", STOP)
    a, b = map(token_id, "ab")
    assert not mask_of(output)[EOS_ID]
    output.accept(a)
    assert mask_of(output)[EOS_ID]
    assert not output.is_finished
    output.accept(b)
    assert output.is_finished
    assert [index for index, is_legal in enumerate(mask_of(output)) if is_legal] == [EOS_ID]


def test_without_stop_ids_the_output_ends_where_nothing_can_follow(compiler: GrammarCompiler) -> None:
    output = compiler.guided_output("regex", "a+b?", frozenset())
    for piece, is_finished in (("a", False), ("a", False), ("b", True)):
        output.accept(token_id(piece))
        assert output.is_finished is is_finished


def test_a_dead_end_is_told_apart_from_the_end(compiler: GrammarCompiler) -> None:
    output = compiler.guided_output(
        "ebnf_grammar", 'root ::= "a" rest | "b"\nrest ::= "c" rest2\nrest2 ::= rest2', STOP
    )
    assert not output.is_stuck
    for piece in "ac":
        output.accept(token_id(piece))
    assert output.is_stuck
    assert not output.is_finished
    assert output.legal_draft([5, EOS_ID], None) == []
    assert not any(mask_of(output))


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("json_schema", "{", "is not JSON"),
        ("json_schema", '{"minimum": NaN}', "NaN is no JSON number"),
        ("json_schema", "[" * 5000, "is "),
        ("json_schema", "[1]", "# is neither an object nor true or false"),
        ("json", "[1]", "# is neither an object nor true or false"),
        ("json_schema", "false", "cannot accept any value"),
        ("json_schema", '{"type": "strin"}', 'Unsupported type "strin"'),
        ("json_schema", '{"enum": []}', "enum array must not be empty"),
        ("json_schema", '{"$ref": "#/$defs/x"}', "Cannot find field '$defs'"),
        ("json_schema", '{"type": "integer", "minimum": 5, "maximum": 3}', "minimum greater than maximum"),
        ("json_schema", '{"name": "x", "schema": {"type": "object"}}', "wraps one under schema. Send what stands"),
        (
            "json_schema",
            '{"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}',
            "wraps one under json_schema.schema",
        ),
        ("json_schema", '{"type": "string", "pattern": "(a"}', "The parenthesis is not closed"),
        ("json_schema", f'{{"enum": ["{"x" * 70000}"]}}', "is longer than 65536 bytes"),
        ("regex", "(a", "The parenthesis is not closed"),
        ("regex", "[z-a]", "lower bound is larger"),
        ("regex", r"(a)\1", "the escape \\1 at character 4 is not supported"),
        ("regex", r"\bfoo", "the escape \\b at character 1"),
        ("regex", r"fo\Z", "the escape \\Z at character 3"),
        ("regex", "(?=a)b", "the group (?= at character 1"),
        ("regex", "a|^b", "the anchor ^ at character 3"),
        ("regex", "a$b", "the anchor $ at character 2"),
        ("regex", "(" * 30000, "cannot be compiled"),
        ("regex", "", "allows no text"),
        ("ebnf_grammar", 'root ::= "a', 'Expect " in string literal'),
        ("ebnf_grammar", 'main ::= "a"', 'root rule with name "root" is not found'),
        ("ebnf_grammar", "root ::= foo", 'Rule "foo" is not defined'),
        ("ebnf_grammar", "root ::= root", "allows no text"),
        ("ebnf_grammar", 'root ::= root "a"', "allows no text"),
        ("ebnf_grammar", "root ::= Token(99999)", "out of the vocabulary range"),
        ("choice", "a|b", "unknown type 'choice'"),
    ],
)
def test_a_guide_that_cannot_be_compiled_is_refused(
    compiler: GrammarCompiler, kind: str, text: str, message: str
) -> None:
    with pytest.raises(RequestError) as caught:
        compiler.guided_output(kind, text, STOP)
    assert caught.value.field == ("guided_decoding_guide_type" if kind == "choice" else "guided_decoding_guide")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text", ['root ::= root "a" | "a"', 'root ::= "a"{1,1000000}', 'root ::= (("a"{1,1000}){1,1000}){1,1000}']
)
def test_recursion_and_large_repetitions_are_compiled_in_no_time(compiler: GrammarCompiler, text: str) -> None:
    assert compiler.guided_output("ebnf_grammar", text, STOP).legal_draft([token_id("a")] * 4, None)


def test_a_tokenizer_whose_pieces_are_no_text_is_refused() -> None:
    tokenizer = Tokenizer.from_str(TOKENIZER.to_str())
    tokenizer.decoder = None
    with pytest.raises(RequestError, match=r"tokenizer\.json: decoder: None is neither byte-level"):
        GrammarCompiler(tokenizer, num_token_ids=NUM_TOKENS).guided_output("json", "", STOP)


# --- drafts ---------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_judging_drafts_leaves_the_state_as_it_was(compiler: GrammarCompiler, data: st.DataObject) -> None:
    """And what it calls legal is what the masks on the way there call legal."""
    kind, text, _ = data.draw(st.sampled_from(list(GUIDES.values())))
    seed = data.draw(st.integers(0, 10**6))
    tokens = walk(compiler.guided_output(kind, text, STOP), seed)
    num_before = data.draw(st.integers(0, len(tokens) - 1))
    output = compiler.guided_output(kind, text, STOP)
    for token in tokens[:num_before]:
        output.accept(token)
    right = tokens[num_before : num_before + 6]
    draft = [token if data.draw(st.booleans()) else data.draw(st.integers(-2, NUM_TOKENS + 2)) for token in right * 2]
    parents = [data.draw(st.integers(-1, index - 1)) for index in range(len(draft))]
    mask = mask_of(output)
    legal = output.legal_draft(draft, parents)
    assert mask_of(output) == mask
    assert not output.is_stuck
    for index, token in enumerate(draft):
        path = [index]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        other = compiler.guided_output(kind, text, STOP)
        for before in [*tokens[:num_before], *(draft[node] for node in path[:-1])]:
            other.accept(before)
        is_possible = 0 <= token < NUM_TOKENS and not other.is_stuck and mask_of(other)[token]
        assert (index in legal) == is_possible
    for token in tokens[num_before:]:  # and it goes on as if nothing had been asked
        assert mask_of(output)[token]
        output.accept(token)


@with_each_guide
@pytest.mark.parametrize("draft_len", range(1, 9))
def test_drafted_outputs_are_the_undrafted_ones(
    target: DecoderModel,
    compiler: GrammarCompiler,
    kind: str,
    text: str,
    check: Callable[[str], None],
    draft_len: int,
) -> None:
    plain = serve(target, None, [guided_request(compiler.guided_output(kind, text, STOP))])["a"]
    drafter = Guesser(plain[0], seed=draft_len)
    request = guided_request(compiler.guided_output(kind, text, STOP), draft_len=draft_len)
    tokens, finish_reason, num_drafted = serve(target, drafter, [request])["a"]
    assert (tokens, finish_reason) == plain[:2]
    assert num_drafted > 0
    if finish_reason == "stop":
        check(TOKENIZER.decode(tokens))


def test_many_guided_rows_with_illegal_drafts_beside_a_plain_one(
    target: DecoderModel, compiler: GrammarCompiler
) -> None:
    class Illegal(QuietDrafter):
        def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
            return [Draft((token_id("<|bot|>"), 7, 8)[: row.draft_len]) for row in rows]

    kinds = list(GUIDES.values())

    def requests(draft_len: int) -> list[GenerationRequest]:
        guided = [
            guided_request(
                compiler.guided_output(*kinds[i % 4][:2], STOP),
                draft_len=draft_len,
                name=str(i),
                sampling=SamplingParams(temperature=1.0, seed=i) if i % 3 else SamplingParams(),
            )
            for i in range(30)
        ]
        return [*guided[:11], guided_request(None, draft_len=draft_len, name="plain"), *guided[11:]]

    drafted = serve(target, Illegal(), requests(3))
    alone = serve(target, None, [guided_request(None, name="plain")])["plain"]
    assert drafted["plain"][:2] == alone[:2]
    plain = serve(target, None, requests(0))
    assert {name: result[:2] for name, result in drafted.items()} == {name: r[:2] for name, r in plain.items()}
    finished = [i for i in range(30) if drafted[str(i)][1] == "stop"]
    assert len(finished) > 10
    for i in finished:
        kinds[i % 4][2](TOKENIZER.decode(drafted[str(i)][0]))


def test_an_output_that_can_only_end_ends_inside_a_block(target: DecoderModel, compiler: GrammarCompiler) -> None:
    right = [token_id(piece) for piece in "abc"]
    for num_right in range(4):
        drafter = Guesser([*right[:num_right], *[7] * 9], seed=0)
        request = guided_request(compiler.guided_output("regex", "abc", STOP), draft_len=6)
        tokens, reason, _ = serve(target, drafter, [request])["a"]
        assert TOKENIZER.decode(tokens) == "abc"
        assert reason == "stop"


def test_bans_do_not_break_a_guide(target: DecoderModel, compiler: GrammarCompiler) -> None:
    """Every token the guide allows is banned, and the output must not end yet: what the client parses comes first."""
    a = token_id("a")
    sampling = SamplingParams(bad_words=((a,),), min_tokens=20)
    request = guided_request(compiler.guided_output("regex", "a{3}", STOP), sampling=sampling)
    tokens, reason, _ = serve(target, None, [request])["a"]
    assert (TOKENIZER.decode(tokens), reason) == ("aaa", "stop")


def test_a_dead_end_is_an_error_of_its_request_alone(target: DecoderModel, compiler: GrammarCompiler) -> None:
    dead = compiler.guided_output("ebnf_grammar", 'root ::= "a" rest\nrest ::= "b" rest2\nrest2 ::= rest2', STOP)
    results = serve(target, None, [guided_request(dead, name="dead"), guided_request(None, name="plain")])
    assert results["dead"][1] == "error"
    assert results["plain"][:2] == serve(target, None, [guided_request(None, name="plain")])["plain"][:2]


# --- thinking -------------------------------------------------------------------------------------------------------

MARKER = "</done>"


@pytest.fixture(scope="module")
def after_thinking() -> GrammarCompiler:
    return GrammarCompiler(TOKENIZER, num_token_ids=NUM_TOKENS, thinking_end=MARKER)


def pieces(*texts: str) -> list[int]:
    return [token for text in texts for token in TOKENIZER.encode(text).ids]


def test_the_guide_begins_with_the_token_after_the_marker(after_thinking: GrammarCompiler) -> None:
    output = after_thinking.guided_output("regex", "ab", STOP)
    for token in pieces("hm </do", "</done", ">"):
        mask = mask_of(output)
        assert mask[token]
        assert not mask[EOS_ID]  # the output cannot end before it began
        output.accept(token)
    for letter in "ab":
        mask = mask_of(output)
        assert [index for index, is_legal in enumerate(mask) if is_legal] == [token_id(letter)]
        output.accept(token_id(letter))
    assert output.is_finished


@pytest.mark.parametrize("num_before", range(12))
@pytest.mark.parametrize("draft_len", [3, 8])
def test_drafts_across_the_marker(after_thinking: GrammarCompiler, num_before: int, draft_len: int) -> None:
    """The marker at every place of a block: legal is what follows it and the guide, nothing else."""
    text = pieces("hm ", MARKER, "ab")
    num_thinking = len(text) - 2
    output = after_thinking.guided_output("regex", "ab", STOP)
    for token in text[: min(num_before, len(text) - 1)]:
        output.accept(token)
    before = mask_of(output)
    rest = text[min(num_before, len(text) - 1) :][:draft_len]
    assert output.legal_draft(rest, None) == list(range(len(rest)))
    wrong = [*rest, token_id("x"), token_id("y")]
    num_legal = len(rest) if num_before + len(rest) >= num_thinking else len(wrong)
    assert output.legal_draft(wrong, None) == list(range(num_legal))
    assert mask_of(output) == before


@pytest.mark.parametrize("draft_len", range(1, 9))
def test_thinking_then_json_is_the_same_drafted(
    target: DecoderModel, after_thinking: GrammarCompiler, draft_len: int
) -> None:
    """The model is made to think: a bias writes the marker, and the guide takes over inside a block."""
    bias = dict.fromkeys(pieces(MARKER), 30.0)
    # Without a penalty it would write one of them for ever.
    sampling = SamplingParams(logit_bias=bias, frequency_penalty=20.0, temperature=0.8, seed=4)

    def request(k: int) -> GenerationRequest:
        output = after_thinking.guided_output(*GUIDES["schema"][:2], STOP)
        return guided_request(output, draft_len=k, sampling=sampling)

    plain = serve(target, None, [request(0)])["a"]
    tokens, reason, num_drafted = serve(target, Guesser(plain[0], seed=draft_len), [request(draft_len)])["a"]
    assert (tokens, reason) == plain[:2]
    assert num_drafted > 0


def test_a_marker_inside_a_token_hands_the_rest_to_the_guide() -> None:
    tokenizer = Tokenizer.from_str(TOKENIZER.to_str())
    tokenizer.add_tokens(["!</done>ab", "e>a", "e>x", "e>\n\n", "</done>"])
    num_tokens = tokenizer.get_vocab_size()
    compiler = GrammarCompiler(tokenizer, num_token_ids=num_tokens, thinking_end=MARKER)

    def mask(output: GrammarOutput) -> list[bool]:
        logits = torch.zeros(num_tokens)
        output.mask_logits(logits)
        return (logits == 0).tolist()

    begun = token_id_in(tokenizer, "!</done>ab")
    output = compiler.guided_output("regex", "abc", STOP)
    assert mask(output)[begun]
    assert mask(output)[token_id_in(tokenizer, "e>x")]  # no marker before it
    assert not mask(compiler.guided_output("regex", "xbc", STOP))[begun]
    for token in (*tokenizer.encode("</don", add_special_tokens=False).ids, token_id_in(tokenizer, "e>a")):
        assert not mask(output)[EOS_ID]
        output.accept(token)
    assert [index for index, legal in enumerate(mask(output)) if legal] == [token_id_in(tokenizer, "b")]
    output = compiler.guided_output("regex", "abc", STOP)
    for token in tokenizer.encode("</don", add_special_tokens=False).ids:
        output.accept(token)
    assert not mask(output)[token_id_in(tokenizer, "e>x")]
    assert mask(output)[token_id_in(tokenizer, "e>\n\n")]
    output.accept(token_id_in(tokenizer, "e>\n\n"))
    assert not mask(output)[token_id_in(tokenizer, "x")]
    assert mask(output)[token_id_in(tokenizer, "a")]


def test_a_dead_guide_is_refused_also_where_it_comes_after_thinking(after_thinking: GrammarCompiler) -> None:
    with pytest.raises(RequestError, match="allows no text"):
        after_thinking.guided_output("ebnf_grammar", "root ::= root", STOP)


def test_without_the_marker_the_output_is_free_and_ends_by_length(
    target: DecoderModel, after_thinking: GrammarCompiler
) -> None:
    request = guided_request(after_thinking.guided_output("regex", "ab", STOP), max_tokens=30)
    free = serve(target, None, [replace(guided_request(None, max_tokens=30), stop_ids=frozenset())])["a"]
    tokens, reason, _ = serve(target, None, [request])["a"]
    assert reason == "length"
    assert EOS_ID not in tokens
    assert free[0] == tokens or EOS_ID in free[0]
