"""From turns to the text a server reads, and how many tokens that is."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tokenizers import Encoding, Tokenizer

from specdeploy.errors import ClientError
from specdeploy_client.chat import ChatTemplate, find_target_folder, render_turns

_RAW_TURN_SEPARATOR = "\n\n"
_SENTINEL = "Xylophone"  # stands for what the user says: a word that no template holds


class TokenCounter:
    """Counts tokens as the server does: with the special tokens that the tokenizer itself adds to a prompt."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """The tokenizer must neither truncate nor pad; `load_token_counter` sees to that."""
        self.tokenizer = tokenizer

    def encode(self, prompt: str) -> Encoding:
        """A whole prompt as tokens; a begin token that the text already spells is not doubled."""
        encoding = self.tokenizer.encode(prompt)
        if len(encoding.ids) > 1 and encoding.ids[0] == encoding.ids[1]:
            plain = self.tokenizer.encode(prompt, add_special_tokens=False)
            return plain if plain.ids[:1] == encoding.ids[:1] else encoding
        return encoding

    def ids(self, prompt: str) -> list[int]:
        """Token ids of a whole prompt."""
        return self.encode(prompt).ids

    def plain_ids(self, text: str) -> list[int]:
        """Token ids of a piece of a prompt, without special tokens at its ends."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def count(self, prompt: str) -> int:
        """Tokens of a whole prompt."""
        return len(self.ids(prompt))


def load_token_counter(path: Path) -> TokenCounter:
    """Counts with the tokenizer in `path`, a tokenizer.json or its folder. Raises `ClientError`."""
    file = path / "tokenizer.json" if path.is_dir() else path
    remedy = "Name a tokenizer.json or the folder that holds one with --tokenizer"
    if not file.is_file():
        raise ClientError(f"tokenizer {file}: there is no such file. {remedy}")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more special
        raise ClientError(f"tokenizer {file} cannot be read: {error}. {remedy}") from error
    # Fine-tuning leaves both behind in the file; they would cut or fill prompts without a word.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return TokenCounter(tokenizer)


def find_token_counter(deployment: str, engines_root: Path) -> TokenCounter | None:
    """Counts with the tokenizer of the current build of `deployment`; None without a build or a tokenizer.json."""
    folder = find_target_folder(deployment, engines_root)
    if folder is None or not (folder / "tokenizer.json").is_file():
        return None
    return load_token_counter(folder)


@dataclass(frozen=True, slots=True)
class Frame:
    """What a rendered prompt holds besides the user's text: `head` is before it; tokens before it and in all."""

    head: str
    num_head_tokens: int
    num_frame_tokens: int

    @property
    def least_tokens(self) -> int:
        """Tokens of the shortest prompt: one token of text."""
        return self.num_frame_tokens + 1


@dataclass(frozen=True)  # no slots: cached_property
class Rendering:
    """How conversations become prompts. `template` None: as they are; `counter` None: tokens cannot be counted.

    `is_by_server`: the server puts its own template around every prompt, and `template` is only for counting.
    """

    template: ChatTemplate | None = None
    counter: TokenCounter | None = None
    is_by_server: bool = False

    def turns(self, turns: tuple[str, ...]) -> str:
        """The prompt of a conversation that ends with the user; without a template, turns in paragraphs."""
        if self.template is None:
            return _RAW_TURN_SEPARATOR.join(turns)
        return render_turns(self.template, turns)

    def prompt(self, user_turn: str) -> str:
        """The prompt of a single user turn."""
        return self.turns((user_turn,))

    def require_counter(self, reason: str) -> TokenCounter:
        """The counter, or a `ClientError` that says what it is needed for."""
        if self.counter is None:
            raise ClientError(
                f"{reason} need the target's tokenizer, and none is known. "
                "Name its tokenizer.json with --tokenizer, or build the deployment with `make engines`"
            )
        return self.counter

    @cached_property
    def frame(self) -> Frame:
        """What the template puts around a user's text, in tokens. Raises `ClientError` where that is not known."""
        if self.is_by_server and self.template is None:
            raise ClientError(
                "prompts of an exact length need the chat template that the server puts around them, and none is "
                "known. Name it with --chat-template, or ask --endpoint-type openai-completions"
            )
        counter = self.require_counter("prompts of an exact length")
        rendered = self.prompt(_SENTINEL)
        start = rendered.find(_SENTINEL)
        if start < 0:
            raise ClientError(
                f"{self._template_name}: prints the user's text changed, so that prompts cannot be made to a length. "
                "Give another template with --chat-template, or use --raw"
            )
        end = start + len(_SENTINEL)
        spans = counter.encode(rendered).offsets
        begin = start - 1 if rendered[:start].endswith(" ") else start  # a blank belongs to the word after it
        is_text = [span_end > begin and span_begin < end for span_begin, span_end in spans]
        return Frame(
            head=rendered[:start],
            num_head_tokens=is_text.index(True),
            num_frame_tokens=len(spans) - sum(is_text),
        )

    @property
    def _template_name(self) -> str:
        return "no chat template" if self.template is None else f"chat template {self.template.origin}"
