"""Prompts have exactly the tokens that were asked for, whatever the tokenizer, and share no more than they should."""

from itertools import takewhile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from helpers.tiny_checkpoint import make_tokenizer
from helpers.trained_tokenizers import BLANK_TEMPLATE, CHAT_TEMPLATE, NAMES, rendering_of, small_words
from specdeploy.errors import ClientError
from specdeploy_client.chat import ChatTemplate, find_chat_template
from specdeploy_client.workloads.corpus import TextKind, split_words
from specdeploy_client.workloads.prompt_writer import PromptWriter
from specdeploy_client.workloads.render import Rendering, TokenCounter, find_token_counter

ENGINES = Path(__file__).parents[4] / "engines"
TEMPLATES = (CHAT_TEMPLATE, BLANK_TEMPLATE, None)
all_tokenizers = pytest.mark.parametrize("name", NAMES)
all_templates = pytest.mark.parametrize("template", TEMPLATES)


def _writer(name: str, template: ChatTemplate | None = CHAT_TEMPLATE, seed: int = 0) -> PromptWriter:
    return PromptWriter(rendering_of(name, template), TextKind.PROSE, seed, small_words())


def _ids(writer: PromptWriter, text: str) -> list[int]:
    """As a server has them: the special tokens of the tokenizer, but no begin token twice."""
    tokenizer: Tokenizer = writer.rendering.require_counter("prompts").tokenizer
    ids: list[int] = tokenizer.encode(writer.rendering.prompt(text)).ids
    return ids[1:] if ids[:1] == ids[1:2] else ids


def _num_shared(first: list[int], second: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


@all_tokenizers
@all_templates
def test_every_length_is_met_and_no_two_prompts_begin_alike(name: str, template: ChatTemplate | None) -> None:
    writer = _writer(name, template)
    num_head = writer.rendering.frame.num_head_tokens
    for num_tokens in (writer.least_tokens, writer.least_tokens + 1, 30, 129, 250):
        prompts = [_ids(writer, writer.write(num_tokens, serial)) for serial in range(30)]
        assert {len(ids) for ids in prompts} == {num_tokens}
        assert len({ids[num_head] for ids in prompts}) == 30
        assert len({tuple(ids[:num_head]) for ids in prompts}) == 1


@given(num_tokens=st.integers(7, 900), serial=st.integers(0, 100_000), seed=st.integers(0, 3))
def test_any_length_of_any_prompt(num_tokens: int, serial: int, seed: int) -> None:
    writer = _WRITERS[seed]
    assert len(_ids(writer, writer.write(num_tokens, serial))) == num_tokens


_WRITERS = [_writer("gpt2", seed=seed) for seed in range(4)]


def test_a_tokenizer_that_spells_nearly_every_word_in_letters() -> None:
    rendering = Rendering(CHAT_TEMPLATE, TokenCounter(make_tokenizer()))
    writer = PromptWriter(rendering, TextKind.PROSE, 0, small_words())
    for num_tokens in (writer.least_tokens, 40, 333):
        assert len(_ids(writer, writer.write(num_tokens, 5))) == num_tokens


def test_prompts_are_longer_than_the_corpus_where_they_have_to_be() -> None:
    words = split_words("The river rose in the night, and the bridge was closed until morning came.", TextKind.PROSE)
    writer = PromptWriter(rendering_of("gpt2"), TextKind.PROSE, 0, words)
    text = writer.write(500, 3)
    assert len(_ids(writer, text)) == 500
    assert text.count("bridge") > 5


def test_prompts_are_a_function_of_seed_and_number() -> None:
    texts = [_WRITERS[0].write(60, serial) for serial in range(20)]
    again = _writer("gpt2")
    assert texts == [again.write(60, serial) for serial in reversed(range(20))][::-1]
    assert texts != [_WRITERS[1].write(60, serial) for serial in range(20)]


def test_sentences_come_before_other_starts() -> None:
    writer = _WRITERS[0]
    text = small_words().text
    for serial in range(20):
        begin = text.index(writer.write(60, serial)[:25])
        assert begin == 0 or text[:begin].rstrip()[-1] in ".?!:" or text[:begin].endswith("\n")


def test_the_text_is_a_run_of_the_corpus() -> None:
    written = _WRITERS[0].write(200, 4)
    assert written[: int(len(written) * 0.9)] in small_words().text


def test_lengths_that_cannot_be_are_refused_with_the_least_possible() -> None:
    writer = _WRITERS[0]
    with pytest.raises(ClientError, match=r"of 5 tokens cannot be made.*alone takes 6\. The shortest has 7"):
        writer.write(5, 0)
    with pytest.raises(ClientError, match="tokenizer alone adds 1"):
        _writer("llama3", None).write(1, 0)
    with pytest.raises(ClientError, match="need the target's tokenizer"):
        PromptWriter(Rendering(CHAT_TEMPLATE), TextKind.PROSE, 0)


@all_tokenizers
@all_templates
def test_blocks_of_the_same_name_are_shared_and_others_are_not(name: str, template: ChatTemplate | None) -> None:
    writer = _writer(name, template)
    first = _ids(writer, writer.write_blocks(200, (0, 1, 2, 3), 64))
    second = _ids(writer, writer.write_blocks(250, (0, 1, 5, 6), 64))
    third = _ids(writer, writer.write_blocks(192, (0, 1, 2), 64))
    fourth = _ids(writer, writer.write_blocks(64, (9,), 64))
    assert [len(ids) for ids in (first, second, third, fourth)] == [200, 250, 192, 64]
    assert _num_shared(first, second) == 128
    num_tail = writer.rendering.frame.num_frame_tokens - writer.rendering.frame.num_head_tokens
    assert 192 - num_tail - 5 <= _num_shared(first, third) <= 192  # the template's end is in its last block
    assert _num_shared(first, fourth) == writer.rendering.frame.num_head_tokens


@all_tokenizers
@all_templates
def test_a_last_block_of_a_token_or_two(name: str, template: ChatTemplate | None) -> None:
    writer = _writer(name, template)
    num_tail = writer.rendering.frame.num_frame_tokens - writer.rendering.frame.num_head_tokens
    for num_text in (1, 2, 3):
        for rank in range(1, 30):
            text = writer.write_blocks(64 + num_tail + num_text, (0, rank), 64)
            assert len(_ids(writer, text)) == 64 + num_tail + num_text


@pytest.mark.parametrize("block_tokens", [3, 8, 16])
def test_a_template_whose_head_is_longer_than_a_block(block_tokens: int) -> None:
    system = "system: You are helpful and answer in whole sentences, as briefly as you can.\n"
    template = ChatTemplate(system + CHAT_TEMPLATE.source, "long.jinja")
    writer = _writer("gpt2", template)
    assert writer.rendering.frame.num_head_tokens > 16
    num_blocks = -(-96 // block_tokens)
    ranks = tuple(range(num_blocks))
    first = _ids(writer, writer.write_blocks(96, ranks, block_tokens))
    second = _ids(writer, writer.write_blocks(96, (*ranks[:-3], 97, 98, 99), block_tokens))
    assert (len(first), len(second)) == (96, 96)
    assert _num_shared(first, second) == (num_blocks - 3) * block_tokens


def test_a_last_block_that_is_all_template() -> None:
    writer = _WRITERS[0]
    assert writer.rendering.frame.num_frame_tokens - writer.rendering.frame.num_head_tokens > 2
    text = writer.write_blocks(64 + 2, (0, 1), 64)
    assert len(_ids(writer, text)) == 66


def test_a_turn_without_a_template() -> None:
    writer = _writer("llama3")
    tokenizer = writer.rendering.require_counter("prompts").tokenizer
    assert len(tokenizer.encode(writer.write_turn(37, 2), add_special_tokens=False).ids) == 37


def test_num_distinct_counts_prompts_that_differ() -> None:
    writer = _WRITERS[0]
    assert writer.num_distinct(200) > 5000
    few = writer.num_distinct(writer.least_tokens)
    assert 30 < few < 2000
    assert len({writer.write(writer.least_tokens, serial) for serial in range(few)}) == few


@pytest.mark.skipif(not (ENGINES / "demo.json").is_file(), reason="no build of the demo here (make engines)")
def test_prompts_for_the_demo() -> None:
    rendering = Rendering(find_chat_template("demo", ENGINES), find_token_counter("demo", ENGINES))
    writer = PromptWriter(rendering, TextKind.PROSE, 0)
    prompts = [_ids(writer, writer.write(512, serial)) for serial in range(10)]
    assert {len(ids) for ids in prompts} == {512}
    assert len({ids[rendering.frame.num_head_tokens] for ids in prompts}) == 10
