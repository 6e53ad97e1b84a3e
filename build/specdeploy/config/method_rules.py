"""What a drafting method demands of `speculation`: alone, and in the lane that serves it."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from specdeploy.config.methods import (
    Eagle3Config,
    EagleConfig,
    LayerSkipConfig,
    LookaheadConfig,
    MedusaConfig,
    NgramConfig,
    RedrafterConfig,
    SuffixConfig,
    TreePaths,
    lookahead_draft_len,
)
from specdeploy.config.problems import Problem
from specdeploy.contract import METHODS_WITH_DRAFT, ContractModel, Lane, Method

if TYPE_CHECKING:
    from specdeploy.config.schema import SpeculationConfig

# Section -> its defaults, and the methods beside the one of its name that read it. What `auto` drafts with is known
# when the draft's files are.
_SECTIONS: Mapping[Method, tuple[ContractModel, tuple[Method, ...]]] = {
    Method.NGRAM: (NgramConfig(), (Method.AUTO,)),
    Method.SUFFIX: (SuffixConfig(), ()),
    Method.MEDUSA: (MedusaConfig(), (Method.AUTO,)),
    Method.EAGLE: (EagleConfig(), (Method.AUTO,)),
    Method.EAGLE3: (Eagle3Config(), (Method.AUTO,)),
    Method.REDRAFTER: (RedrafterConfig(), ()),
    Method.LOOKAHEAD: (LookaheadConfig(), ()),
    Method.LAYER_SKIP: (LayerSkipConfig(), ()),
}
_TREES = (Method.MEDUSA, Method.EAGLE, Method.EAGLE3)


def method_problems(speculation: "SpeculationConfig") -> Iterator[Problem]:
    """Broken rules of the method, whatever the lane; keys start inside the section."""
    yield from _draft_problems(speculation)
    yield from _unread_sections(speculation)
    yield from _own_numbers(speculation)


def lane_problems(lane: Lane, speculation: "SpeculationConfig") -> Iterator[Problem]:
    """Broken rules of the method in `lane`; keys start at the top of the file."""
    for problem in (_torch_problems if lane is Lane.TORCH else _tensorrt_llm_problems)(lane, speculation):
        yield Problem(f"speculation.{problem.key}", problem.reason, problem.remedy)


def tree_of(speculation: "SpeculationConfig", method: Method) -> TreePaths | None:
    """The section of a method that may draft a tree, None for every other method."""
    sections: Mapping[Method, TreePaths] = {
        Method.MEDUSA: speculation.medusa,
        Method.EAGLE: speculation.eagle,
        Method.EAGLE3: speculation.eagle3,
    }
    return sections.get(method)


def _draft_problems(speculation: "SpeculationConfig") -> Iterator[Problem]:
    method = speculation.method
    needs_draft = method in METHODS_WITH_DRAFT
    if needs_draft and speculation.draft is None:
        what = "smaller checkpoint with the same tokenizer" if method is Method.DRAFT_MODEL else "draft heads"
        remedy = f"Name the {what} under draft.checkpoint."
        if method is Method.AUTO:
            remedy = "Name a smaller checkpoint or draft heads under draft.checkpoint, or use ngram."
        yield Problem("draft", f"method {method} needs a draft", remedy)
    if not needs_draft and speculation.draft is not None:
        reason = f"method {method} needs no checkpoint to draft from"
        yield Problem("draft", reason, "Remove the key.")


def _unread_sections(speculation: "SpeculationConfig") -> Iterator[Problem]:
    """Sections of another method than the one chosen: a value there would be believed and never read."""
    for method, (default, also) in _SECTIONS.items():
        if speculation.method not in (method, *also) and getattr(speculation, method.value) != default:
            readers = f"only method {method} reads it"
            if also:
                readers = f"only methods {' and '.join((method, *also))} read it"
            yield Problem(method.value, f"{readers}, not {speculation.method}", "Remove the key.")


def _own_numbers(speculation: "SpeculationConfig") -> Iterator[Problem]:
    """Where a method's own numbers say what K is, or must be there."""
    k = speculation.max_draft_len
    if speculation.method is Method.LOOKAHEAD and k != (due := lookahead_draft_len(speculation.lookahead)):
        sizes = speculation.lookahead
        shape = f"({sizes.window_size}, {sizes.ngram_size}, {sizes.verification_set_size})"
        yield Problem("max_draft_len", f"{k} is not the {due} tokens of lookahead {shape}", f"Write {due}.")
    if speculation.method is Method.MEDUSA:
        heads, depth = speculation.medusa.num_heads, speculation.medusa.depth
        if depth is not None and depth > heads:
            reason = f"a path is {depth} tokens deep and there are {heads} heads"
            yield Problem("medusa.choices", reason, "Shorten the paths or use a checkpoint with more heads.")
        if k > heads:
            yield Problem("max_draft_len", f"{k} exceeds the {heads} Medusa heads", f"Write at most {heads}.")
    if speculation.method is Method.REDRAFTER and k != (due := speculation.redrafter.draft_len_per_beam):
        yield Problem("max_draft_len", f"{k} is not redrafter.draft_len_per_beam {due}", f"Write {due}.")
    if speculation.method is Method.LAYER_SKIP and speculation.layer_skip.num_layers is None:
        remedy = "Write how many of the target's first layers draft; a quarter of them is a start."
        yield Problem("layer_skip.num_layers", "method layer_skip needs it", remedy)


def _torch_problems(lane: Lane, speculation: "SpeculationConfig") -> Iterator[Problem]:
    """The runtime drafts a chain of K tokens, or the paths of `choices`, which K bounds."""
    k, default = speculation.max_draft_len, EagleConfig()
    for key in ("num_layers", "max_non_leaves_per_layer"):
        if getattr(speculation.eagle, key) != getattr(default, key):
            yield Problem(f"eagle.{key}", f"lane {lane} does not read it", "Remove the key.")
    for method in _TREES:
        tree = tree_of(speculation, method)
        # Paths deeper than the heads are reported as such.
        is_read = speculation.method in (method, Method.AUTO)
        if is_read and tree is not None and tree.depth is not None and tree.depth > k:
            reason = f"a path is {tree.depth} tokens deep and max_draft_len is {k}"
            yield Problem(f"{method}.choices", reason, "Shorten the paths or raise max_draft_len.")


def _tensorrt_llm_problems(lane: Lane, speculation: "SpeculationConfig") -> Iterator[Problem]:
    if speculation.method is Method.EAGLE3 and speculation.eagle3.choices is not None:
        yield Problem("eagle3.choices", f"lane {lane} drafts a chain and reads no paths", "Remove the key.")
    if speculation.method is not Method.EAGLE:
        return
    k, layers, depth = speculation.max_draft_len, speculation.eagle.num_layers, speculation.eagle.depth
    if depth is not None and depth != layers:
        reason = f"its paths are {depth} deep and num_layers is {layers}: both must be equal"
        yield Problem("eagle.choices", reason, "Lengthen the paths or change num_layers.")
    if k != layers:
        yield Problem("max_draft_len", f"{k} is not eagle.num_layers {layers}", f"Write {layers}.")
