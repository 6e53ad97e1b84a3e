"""Chat templates render as transformers renders them, and their absence is visible."""

import json
from pathlib import Path

import pytest

from specdeploy.errors import ClientError
from specdeploy_client.chat import (
    ChatTemplate,
    find_chat_template,
    find_target_folder,
    load_chat_template,
    render_turns,
    render_user_prompt,
)

CHATML = """{% for message in messages %}
    {% if loop.first and message['role'] != 'system' %}
{{ '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}
    {% endif %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{% endif %}"""
RENDERED = (
    "<|im_start|>system\nBe brief.<|im_end|>\n\n"
    "<|im_start|>user\n<b>Gr\u00fc\u00dfe</b> & 'so'<|im_end|>\n\n"
    "<|im_start|>assistant\n\n"
)


def _build(root: Path, files: dict[str, str]) -> None:
    folder = root / "b1" / "target"
    folder.mkdir(parents=True)
    (root / "demo.json").write_text(json.dumps({"build_id": "b1", "target_folder": "b1/target"}))
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def test_one_user_message_up_to_the_answer() -> None:
    rendered = render_user_prompt(ChatTemplate(CHATML, "x"), "<b>Gr\u00fc\u00dfe</b> & 'so'")
    # Blocks leave no blanks behind (trim_blocks, lstrip_blocks), and nothing is escaped.
    assert rendered == RENDERED


def test_turns_alternate_between_user_and_assistant() -> None:
    rendered = render_turns(ChatTemplate(CHATML, "x"), ("one", "1", "two"))
    assert rendered == (
        "<|im_start|>system\nBe brief.<|im_end|>\n\n<|im_start|>user\none<|im_end|>\n\n"
        "<|im_start|>assistant\n1<|im_end|>\n\n<|im_start|>user\ntwo<|im_end|>\n\n<|im_start|>assistant\n\n"
    )


def test_the_target_of_the_current_build_is_found(tmp_path: Path) -> None:
    assert find_target_folder("demo", tmp_path) is None
    _build(tmp_path, {})
    assert find_target_folder("demo", tmp_path) == tmp_path / "b1" / "target"


def test_the_template_of_the_current_build_is_found(tmp_path: Path) -> None:
    config = json.dumps({"bos_token": {"content": "<s>"}, "eos_token": "</s>"})
    _build(
        tmp_path,
        {
            "chat_template.jinja": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
            "tokenizer_config.json": config,
        },
    )
    template = find_chat_template("demo", tmp_path)
    assert template is not None
    assert render_user_prompt(template, "hi") == "<s>hi</s>"


def test_a_template_inside_the_tokenizer_config_is_found(tmp_path: Path) -> None:
    _build(tmp_path, {"tokenizer_config.json": json.dumps({"chat_template": "[{{ messages[0]['content'] }}]"})})
    template = find_chat_template("demo", tmp_path)
    assert template is not None
    assert render_user_prompt(template, "hi") == "[hi]"


def test_no_build_or_no_template_is_none(tmp_path: Path) -> None:
    assert find_chat_template("demo", tmp_path) is None
    _build(tmp_path, {})
    assert find_chat_template("demo", tmp_path) is None


def test_broken_files_and_templates_name_their_place(tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_text("{")
    with pytest.raises(ClientError, match=r"demo\.json is not readable JSON"):
        find_chat_template("demo", tmp_path)
    with pytest.raises(ClientError, match="no such template"):
        render_user_prompt(ChatTemplate("{{ raise_exception('no such template') }}", "mine.jinja"), "hi")
    with pytest.raises(ClientError, match=r"mine\.jinja"):
        render_user_prompt(ChatTemplate("{% if %}", "mine.jinja"), "hi")
    with pytest.raises(ClientError, match="cannot be read"):
        load_chat_template(tmp_path / "none.jinja")


def test_the_sandbox_holds() -> None:
    with pytest.raises(ClientError, match="unsafe"):
        render_user_prompt(ChatTemplate("{{ ''.__class__.__mro__[1].__subclasses__() }}", "evil.jinja"), "hi")
