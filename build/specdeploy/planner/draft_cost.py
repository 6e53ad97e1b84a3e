"""Kernel time of a drafter in one step: a pass per depth for a chain, one for a block, none for what copies text."""

from collections.abc import Callable, Iterator

from specdeploy.planner.draft_shape import DraftShape
from specdeploy.planner.pass_cost import PassCost
from specdeploy.planner.pass_parts import CostPart, PassLoad, layer_part, model_parts, readout_part
from specdeploy.planner.step_times import StepLoad
from specdeploy.planner_contract import DraftForm

Padding = Callable[[int], int]  # rounds tokens up to a recorded size


def draft_parts(draft: DraftShape, cost: PassCost, load: StepLoad, padded: Padding) -> Iterator[CostPart]:
    """Parts of the drafter's passes.

    The first pass also reads what the drafter has not seen: the prompt tokens joining, and for heads on the target's
    states all tokens that the last step verified. Output layers run for the tokens drafted only. Where not every row
    drafts as deep as the deepest, a pass has the mean number of rows.
    """
    prompt = load.draft_prefill_tokens if draft.reads_prompts else 0
    passes, is_block = draft.num_passes(load.depth), draft.form is DraftForm.BLOCK
    if passes == 0:
        if prompt:
            yield from _first_parts(draft, cost, load, prompt, padded, 0)
        return
    drafted = load.num_draft_tokens
    each = -(-drafted // load.depth)
    if is_block and draft.model is None:
        yield from _heads_parts(draft, cost, min(load.num_rows, each), load.depth)
        return
    if not is_block:
        drafted = each
    yield from _first_parts(
        draft, cost, load, prompt, padded, load.num_rows + load.num_draft_tokens if draft.reads_verified else drafted
    )
    if passes > 1:
        yield from _pass_parts(draft, cost, _pass_load(load, each, 0, padded), passes - 1)
    yield readout_part(cost, draft.hidden_size, draft.lm_head_rows, drafted, "draft").repeated(passes)


def _first_parts(
    draft: DraftShape, cost: PassCost, load: StepLoad, prompt: int, padded: Padding, read: int
) -> Iterator[CostPart]:
    """The first pass, over `read` tokens of the rows and `prompt` of prompts."""
    first = _pass_load(load, read, prompt, padded)
    for linear in draft.first_linears:
        yield layer_part(cost, linear.features_out, linear.features_in, first.tokens, "draft: fused states")
    yield from _pass_parts(draft, cost, first, 1)


def _pass_load(load: StepLoad, queries: int, prompt: int, padded: Padding) -> PassLoad:
    real, rows = queries + prompt, min(load.num_rows, queries)
    kv_share = rows / load.num_rows if load.num_rows else 0.0
    return PassLoad(padded(real) if real else 0, real, rows, queries, prompt, kv_share)


def _pass_parts(draft: DraftShape, cost: PassCost, load: PassLoad, passes: int) -> Iterator[CostPart]:
    """`passes` equal passes without their output layers."""
    for linear in draft.linears:
        part = layer_part(cost, linear.features_out, linear.features_in, load.tokens, "draft: input layer")
        yield part.repeated(passes)
    if draft.model is not None:
        for part in model_parts(cost, load, "draft"):
            yield part.repeated(passes)


def _heads_parts(draft: DraftShape, cost: PassCost, rows: int, depth: int) -> Iterator[CostPart]:
    """Heads side by side, one per depth, each with its own layers and output layer. They read one state of every row,
    however many candidates of each a tree takes."""
    for linear in draft.linears:
        part = layer_part(cost, linear.features_out, linear.features_in, rows, "draft: residual block")
        yield part.repeated(depth)
    yield readout_part(cost, draft.hidden_size, draft.lm_head_rows, rows, "draft").repeated(depth)
