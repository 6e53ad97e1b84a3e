"""Every code a pair can be found with, and why it matters in one line."""

from collections.abc import Mapping
from types import MappingProxyType

from specdeploy.checkpoint_contract import PairFinding, Severity

_COLLAPSE = "acceptance would collapse to about 0, and nothing would log it"
_CRASH = "the first request that reaches it would end in an error or a wrong read of memory"
_FEWER = "fewer drafts would be accepted, and nothing would say why"

WHY: Mapping[str, str] = MappingProxyType(
    {
        # tokenizer and vocabulary
        "tokens-differ": f"the draft would propose other text than it means: {_COLLAPSE}",
        "control-tokens-differ": f"the draft learned another role for these tokens: {_FEWER} around them",
        "draft-lacks-ids": "the draft never saw these tokens: it drafts badly after them and never proposes them",
        "draft-has-extra-ids": "the draft may propose ids that the target never emits: each such draft is wasted",
        "draft-rows-short": _CRASH,
        "target-rows-short": "prompts that hold one of these ids are refused, or crash the engine",
        "vocabulary-padded": "one engine refuses such a pair, another mistakes it for a tokenizer mismatch",
        "vocabulary-rows-differ": "a config.json edited by hand hides a real mismatch, or the weights do not load",
        "tokenizer-missing": f"nothing shows that both mean the same token by an id; if not, {_COLLAPSE}",
        "tokenizer-borrowed": "a head has no text of its own: it works on the target's ids",
        "eos-differs": "the draft drafts past the target's end of text, or ends where the target does not",
        "special-tokens-differ": "prompts and padding may start with another token for the draft than for the target",
        "chat-template-differs": f"the draft was tuned on another dialogue format: {_FEWER} on chat traffic",
        "head-vocabulary-differs": f"ids of the head and of the target would not be the same tokens: {_COLLAPSE}",
        "vocab-map-missing": f"draft ids would be taken for target ids: {_COLLAPSE}",
        "vocab-map-shape": f"the map would be read past its end, or as something else: {_COLLAPSE}",
        "vocab-map-size": f"rows of the lm_head and entries of the map would not belong together: {_COLLAPSE}",
        "vocab-map-all-zero": f"a map that was never filled loads like a valid one: {_COLLAPSE}",
        "vocab-map-absolute": f"absolute ids read as offsets name other tokens: {_COLLAPSE}",
        "vocab-map-order": "two draft ids would mean one token, or their order would not be the mask's",
        "vocab-map-range": _CRASH,
        "vocab-map-disagree": f"engines read one map or the other and would draft different tokens: {_COLLAPSE}",
        "vocab-map-unchecked": "an error in the only map would not show",
        "target-is-trimmed": "the target could never emit the tokens that were cut: its output would change",
        "facts-missing": "what the files do not say was not checked",
        # heads
        "draft-missing": "there is nothing to draft with: the engine would refuse to start, or serve without drafts",
        "draft-unused": "the checkpoint would lie idle: the method drafts without one",
        "draft-kind": "the engine would refuse the checkpoint or, worse, load a part of it",
        "head-generation": f"heads of v1/v2 and v3 read different inputs; passed off as the other, {_COLLAPSE}",
        "hidden-size-differs": "the head cannot read the hidden states of this target: it was trained for another",
        "head-shape": "the engine stops with a bare shape error, or reads other hidden states than the head learned",
        "tensors-missing": f"missing weights keep their random start values: {_COLLAPSE}",
        "tensors-unexpected": "what is in the file and not used was part of the head's training",
        "aux-layers": "the engine must be told these layers where it does not read the same key",
        "aux-layers-guessed": f"a wrong guess loads and runs, the output stays right: {_COLLAPSE}",
        "aux-layers-unshifted": f"the head would read every state one layer too early: {_FEWER}",
        "aux-layers-wrong": "the head reads layers that the target does not have, or another number of them",
        "norm-tensor-without-switch": f"an engine that follows the switches skips this norm: {_FEWER}",
        "norm-switch-without-tensor": "the norm would run on start values instead of trained ones",
        "head-key-unknown": f"a key that changes the forward pass would be ignored: {_FEWER}",
        "head-defaults": "tools differ in these defaults",
        "embeddings-same": "own and borrowed embeddings give the same result",
        "embeddings-differ": f"an engine that puts the target's embeddings in their place breaks the head: {_COLLAPSE}",
        "embeddings-broken": "one such row makes every logit after it NaN",
        "embeddings-borrowed": "it loads beside this target only, whose embeddings it was trained on",
        "embeddings-missing": "there would be no vectors to read tokens by",
        "embeddings-random": f"an exporter saved start values instead of trained embeddings: {_COLLAPSE}",
        # running the pair
        "context-short": "beyond its trained positions a model crashes the server, or drafts what is never accepted",
        "tensor-parallel": "the engine cannot be split over this number of GPUs",
        "tensor-parallel-padding": "engines pad the vocabulary to a multiple of the GPUs; not all mask the padded ids",
        "draft-quantization": "releases differ on whether a draft inherits the target's quantisation",
        "draft-too-costly": "drafting takes nearly as long as the tokens it saves: slower than without a draft",
        "draft-cost-unknown": "a draft that costs as much as it saves makes answers slower than without",
        "lane-cannot-serve": "the lane cannot run this pair in any version",
        "lane-unknown": "no documentation or run shows that this lane can serve the pair",
    }
)

# Warnings that predict a loss which nothing would show once the pair is served: right output, no speed-up, or requests
# that fail. `specdeploy build` refuses a pair with one of them until it is accepted by `--allow CODE`; every other
# warning is printed and recorded in the manifest, and forbids nothing.
CONSENT_CODES: frozenset[str] = frozenset(
    {
        "aux-layers-guessed",
        "aux-layers-unshifted",
        "draft-too-costly",
        "embeddings-random",
        "head-key-unknown",
        "norm-switch-without-tensor",
        "norm-tensor-without-switch",
        "target-rows-short",
    }
)


def finding(code: str, severity: Severity, subject: str, detail: str, remedy: str) -> PairFinding:
    """A finding with the reason its code always has. A code without one is a programming error (KeyError)."""
    return PairFinding(code=code, severity=severity, subject=subject, detail=detail, why=WHY[code], remedy=remedy)
