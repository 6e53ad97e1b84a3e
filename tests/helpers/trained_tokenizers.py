"""Small tokenizers of the three families in use, trained on English prose, so that words are one token or few."""

from functools import lru_cache

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from specdeploy_client.chat import ChatTemplate
from specdeploy_client.workloads.corpus import TextKind, Words, prose_text, split_words
from specdeploy_client.workloads.render import Rendering, TokenCounter

VOCAB_SIZE = 2000
MARKS = ["<|end|>", "<|user|>", "<|bot|>", "<s>"]
CHAT_TEMPLATE = ChatTemplate(
    "{% for message in messages %}<|{{ 'user' if message.role == 'user' else 'bot' }}|>\n{{ message.content }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|bot|>\n{% endif %}",
    "test template",
)
# Prints the begin token itself, and a blank before what the user says.
BLANK_TEMPLATE = ChatTemplate("{{ bos_token }}[INST] {{ messages[0].content | trim }} [/INST]", "test template", "<s>")
_WORDS_AND_DIGITS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
NAMES = ("gpt2", "llama3", "llama2")


@lru_cache
def small_words(num_chars: int = 40_000) -> Words:
    """The begin of the prose corpus."""
    return split_words(prose_text()[:num_chars], TextKind.PROSE)


@lru_cache
def train_tokenizer(name: str) -> Tokenizer:
    """`gpt2`: bytes, words split at blanks. `llama3`: as well, other splits, and a begin token. `llama2`: blanks are
    letters of words, and a begin token."""
    tokenizer = Tokenizer(models.BPE())
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if name == "gpt2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    elif name == "llama3":
        split = pre_tokenizers.Split(Regex(_WORDS_AND_DIGITS), "isolated")
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_only])
        tokenizer.decoder = decoders.ByteLevel()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        alphabet = ["\n"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=MARKS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(prose_text().split("\n\n"), trainer)
    if name != "gpt2":
        begin = tokenizer.token_to_id("<s>")
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", begin)])
    return tokenizer


def rendering_of(name: str, template: ChatTemplate | None = CHAT_TEMPLATE) -> Rendering:
    """How a target with that tokenizer and template is asked."""
    return Rendering(template, TokenCounter(train_tokenizer(name)))
