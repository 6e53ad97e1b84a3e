"""Whole texts through the engine, with and without a drafter, and a target whose next token is known beforehand."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from helpers.tiny_checkpoint import EOS_ID
from specdeploy.runtime.drafters.base import Drafter
from specdeploy.runtime.engine import Engine
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.request import GenerationRequest, SamplingParams

MAX_ROWS = 3
# More requests than rows, so that rows are reused; prompts longer than a chunk; one that ends at the context limit.
PROMPTS = ([5, 17, 200, 31], [9], list(range(30, 70)), [7, 8, 9, 7, 8, 9, 7, 8], [(11 * i) % 300 for i in range(86)])
GREEDY = SamplingParams()
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, seed=21)
OWN_RANDOM = SamplingParams(temperature=0.9, seed=22, has_own_seed=False)
CYCLE = 8


@dataclass(frozen=True, slots=True)
class Run:
    """Output of every prompt, and counts over all of them."""

    outputs: list[list[int]]
    num_drafted: int
    num_accepted: int


def generate(
    target: DecoderModel,
    drafter: Drafter | None,
    draft_len: int,
    samplings: Sequence[SamplingParams] = (GREEDY,) * len(PROMPTS),
    *,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    max_tokens: int = 14,
) -> Run:
    """Decode all prompts together; rows draft at different depths."""
    tree_room = 0 if drafter is None else drafter.max_draft_tokens(draft_len)
    cache = target.new_cache(MAX_ROWS, extra_tokens=tree_room)
    engine = Engine(target, drafter, max_rows=MAX_ROWS, max_queue=9, prefill_chunk=16, cache=cache)
    for index, prompt in enumerate(prompts):
        depth = max(1, draft_len - index % 2)
        engine.submit(
            GenerationRequest(
                request_id=str(index),
                prompt_ids=tuple(prompt),
                max_tokens=max_tokens,
                stop_ids=frozenset({EOS_ID}),
                sampling=samplings[index],
                draft_len=partial(_always, depth),
            )
        )
    outputs: dict[str, list[int]] = {str(index): [] for index in range(len(prompts))}
    counts: dict[str, tuple[int, int]] = {}
    while engine.num_in_flight:
        for update in engine.step():
            outputs[update.request_id].extend(update.token_ids)
            counts[update.request_id] = (update.stats.num_draft_tokens, update.stats.num_accepted_tokens)
    return Run(list(outputs.values()), sum(n for n, _ in counts.values()), sum(n for _, n in counts.values()))


def _always(depth: int, in_flight: int) -> int:
    return depth


def write_cycle_target(folder: Path, source: Path) -> Path:
    """`source` made to count: behind token 1 + n comes 1 + (n + 1) mod CYCLE, whatever came before.

    Layers add nothing, embeddings of the CYCLE tokens are unit vectors, and row t of the lm_head looks for the token
    before t. Needs an untied head and no more tokens in use than the hidden size.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text((source / "config.json").read_text())
    weights = load_file(source / "model.safetensors")
    for name, tensor in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight", "lm_head.weight", "embed_tokens.weight")):
            tensor.zero_()
        elif "norm" in name:
            tensor.fill_(1.0)
    weights["model.embed_tokens.weight"][1 : 1 + CYCLE] = torch.eye(CYCLE, weights["lm_head.weight"].shape[1])
    weights["lm_head.weight"].copy_(looking_back(1, weights["lm_head.weight"].shape))
    save_file(weights, folder / "model.safetensors")
    return folder


def looking_back(distance: int, shape: Sequence[int]) -> torch.Tensor:
    """An lm_head [V, H] that answers the cycle's token `distance` after the one whose unit vector it is given."""
    head = torch.zeros(*shape)
    for place in range(CYCLE):
        head[1 + (place + distance) % CYCLE, place] = 1.0
    return head


def edit_head(folder: Path, tensors: Mapping[str, torch.Tensor], *, remove: Sequence[str] = ()) -> Path:
    """Set and remove tensors of a head's folder. Attention and MLP of `layers.` and `mtp_layers.` add nothing any
    more, and norms scale by one: what is left is what the test put there."""
    weights = load_file(folder / "model.safetensors")
    for name, tensor in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()
        elif "norm" in name:
            tensor.fill_(1.0)
    kept = {name: tensor for name, tensor in weights.items() if name not in remove}
    save_file({**kept, **tensors}, folder / "model.safetensors")
    return folder


def edit_json(path: Path, **values: object) -> None:
    """Change keys of a JSON object in place; None removes one."""
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
