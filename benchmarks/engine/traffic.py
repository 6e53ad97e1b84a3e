"""The prompts of the shipped traffic as token ids, with the target's own chat template."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from folders import REPOSITORY

from specdeploy.serving.tokenizer import count_token_ids, load_tokenizer
from specdeploy_client.chat import load_chat_template, render_user_prompt
from specdeploy_client.workloads.prompt_file import load_prompts

SEGMENTS = ("code_edit", "chat", "summarisation")


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """One prompt, rendered and tokenized."""

    prompt_id: str
    segment: str
    token_ids: tuple[int, ...]


def read_traffic(target: Path, segments: Sequence[str]) -> list[TokenPrompt]:
    """All prompts of the segments, in the order of their files."""
    tokenizer = load_tokenizer(target)
    template = load_chat_template(target / "chat_template.jinja")
    return [
        TokenPrompt(
            prompt.prompt_id,
            segment,
            tuple(tokenizer.encode(render_user_prompt(template, prompt.text), add_special_tokens=False).ids),
        )
        for segment in segments
        for prompt in load_prompts(REPOSITORY / "configs" / "traffic" / f"{segment}.jsonl")
    ]


def num_token_ids(target: Path) -> int:
    """Ids the target's tokenizer knows: rows of the vocabulary beyond are padding."""
    return count_token_ids(load_tokenizer(target))
