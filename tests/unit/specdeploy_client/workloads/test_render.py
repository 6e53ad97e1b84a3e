"""Prompts are rendered and counted as the server does it."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, processors

from helpers.tiny_checkpoint import make_tokenizer
from helpers.trained_tokenizers import BLANK_TEMPLATE, CHAT_TEMPLATE, NAMES, rendering_of
from specdeploy.errors import ClientError
from specdeploy.serving.request import encode_prompt
from specdeploy_client.chat import ChatTemplate
from specdeploy_client.workloads.render import Rendering, TokenCounter, find_token_counter, load_token_counter


def test_turns_with_and_without_a_template() -> None:
    turns = ("one", "1", "two")
    rendered = "<|user|>\none<|end|>\n<|bot|>\n1<|end|>\n<|user|>\ntwo<|end|>\n<|bot|>\n"
    assert Rendering(CHAT_TEMPLATE).turns(turns) == rendered
    assert Rendering().turns(turns) == "one\n\n1\n\ntwo"
    assert Rendering().prompt("one") == "one"


def test_a_begin_token_that_the_template_prints_is_counted_once() -> None:
    tokenizer = rendering_of("llama3").require_counter("prompts").tokenizer
    prompt = Rendering(BLANK_TEMPLATE).prompt("hello")
    assert prompt.startswith("<s>")
    assert len(tokenizer.encode(prompt).ids) == TokenCounter(tokenizer).count(prompt) + 1
    assert TokenCounter(tokenizer).ids("hello")[0] == tokenizer.token_to_id("<s>")


def _double_begin(tokenizer: Tokenizer) -> Tokenizer:
    begin = ("<|user|>", tokenizer.token_to_id("<|user|>"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<|user|> <|user|> $A", special_tokens=[begin])
    return tokenizer


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("template", [CHAT_TEMPLATE, BLANK_TEMPLATE, None])
@pytest.mark.parametrize("text", ["hello", "<s>hello", "<s>", " 12 \u00fc\U0001f600\n\n<|end|> x"])
def test_counts_are_those_of_our_server(name: str, template: ChatTemplate | None, text: str) -> None:
    rendering = rendering_of(name, template)
    counter, prompt = rendering.require_counter("prompts"), rendering.prompt(text)
    assert tuple(counter.ids(prompt)) == encode_prompt(prompt, counter.tokenizer)


def test_two_begin_tokens_of_the_tokenizer_itself_stay() -> None:
    counter = TokenCounter(_double_begin(make_tokenizer()))
    assert counter.count("x") == 3


def test_tokenizers_are_read_without_truncation_and_padding(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=100)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = "a short answer is often better"
    expected = len(make_tokenizer().encode(text).ids)
    assert 4 < expected < 100
    assert load_token_counter(tmp_path).count(text) == expected
    assert load_token_counter(tmp_path / "tokenizer.json").count(text) == expected


def test_missing_and_broken_tokenizers_are_named(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match=r"tokenizer\.json: there is no such file.*--tokenizer"):
        load_token_counter(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ClientError, match="cannot be read"):
        load_token_counter(tmp_path)
    with pytest.raises(ClientError, match=r"prompts need the target's tokenizer.*--tokenizer"):
        Rendering().require_counter("prompts")


def test_the_tokenizer_of_a_build_is_found(tmp_path: Path) -> None:
    assert find_token_counter("demo", tmp_path) is None
    (tmp_path / "demo.json").write_text('{"target_folder": "b1/target"}')
    (tmp_path / "b1" / "target").mkdir(parents=True)
    assert find_token_counter("demo", tmp_path) is None
    make_tokenizer().save(str(tmp_path / "b1" / "target" / "tokenizer.json"))
    counter = find_token_counter("demo", tmp_path)
    assert counter is not None
    assert counter.count("x") == 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("template", [CHAT_TEMPLATE, BLANK_TEMPLATE, None])
def test_the_frame_is_what_a_prompt_has_besides_its_text(name: str, template: ChatTemplate | None) -> None:
    rendering = rendering_of(name, template)
    counter = rendering.require_counter("prompts")
    frame = rendering.frame
    # Letters are one token wherever they stand.
    assert counter.count(rendering.prompt("a")) == frame.least_tokens
    ids, other = counter.ids(rendering.prompt("a")), counter.ids(rendering.prompt("s"))
    assert ids[: frame.num_head_tokens] == other[: frame.num_head_tokens]
    assert ids[frame.num_head_tokens] != other[frame.num_head_tokens]
    assert rendering.prompt("a").startswith(frame.head + "a")


def test_a_template_that_changes_the_text_cannot_be_counted_for() -> None:
    counter = TokenCounter(make_tokenizer())
    with pytest.raises(ClientError, match=r"loud\.jinja.*prints the user's text changed"):
        _ = Rendering(ChatTemplate("{{ messages[0].content | upper }}", "loud.jinja"), counter).frame


def test_a_template_that_only_the_server_has_leaves_lengths_unknown() -> None:
    counter = rendering_of("gpt2").counter
    with pytest.raises(ClientError, match=r"the chat template that the server puts around them.*--chat-template"):
        _ = Rendering(None, counter, is_by_server=True).frame
    assert Rendering(CHAT_TEMPLATE, counter, is_by_server=True).frame == Rendering(CHAT_TEMPLATE, counter).frame
