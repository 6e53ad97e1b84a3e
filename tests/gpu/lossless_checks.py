"""Losslessness where it is to be used: through graphs, on the device, with small models of random weights."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest import mock

import torch

from gpu.model_shapes import LLAMA_3_1_8B, LLAMA_3_2_1B, ModelShape, tiny
from helpers.scripted_drafter import ScriptedDrafter
from specdeploy.planner.measured_steps import OutputCheck
from specdeploy.runtime.attention import Span
from specdeploy.runtime.drafters import Drafter, DraftModelDrafter, NgramDrafter
from specdeploy.runtime.engine import Engine
from specdeploy.runtime.graphed_model import GraphedModel
from specdeploy.runtime.model import DecoderModel, StepOutput
from specdeploy.runtime.request import GenerationRequest
from specdeploy.runtime.static_attention import can_page

MAX_SEQ_LEN = 512
MAX_TOKENS = 32
K = 4
TARGET = tiny("small target", hidden_size=256, num_layers=4, head_dim=64)
DRAFT = tiny("small draft", hidden_size=128, num_layers=2, head_dim=64, tied=True)
# Near-equal logits may swap in bfloat16; beyond this difference of logits with deviation 1 something is wrong.
_BFLOAT16_TOLERANCE = 0.25

Texts = dict[tuple[int, ...], list[int]]


def run_checks(device: torch.device) -> tuple[OutputCheck, ...]:
    """Every check; a failed one is a value, and the others still run."""
    checks = [_check_replays(device, torch.float32), _check_replays(device, torch.bfloat16)]
    if device.type == "cuda":
        checks += [_check_paged(device, shape) for shape in (LLAMA_3_1_8B, LLAMA_3_2_1B)]
    target = GraphedModel.of(build(TARGET, torch.float32, device))
    prompts = make_prompts()
    plain = decode(target, None, prompts)
    for name, drafter in drafters(target, plain, device).items():
        drafted = decode(target, drafter, prompts)
        wrong = [prompt for prompt in prompts if drafted[prompt] != plain[prompt]]
        detail = f"{len(wrong)} of {len(prompts)} texts differ from plain decoding"
        checks.append(OutputCheck(name=f"float32, {name}: same tokens", has_passed=not wrong, detail=detail))
    half = GraphedModel.of(build(TARGET, torch.bfloat16, device))
    half_plain = decode(half, None, prompts)
    for name, drafter in drafters(half, half_plain, device).items():
        checks.append(check_argmax(f"bfloat16, {name}: every token is its pass's argmax", half, drafter, prompts))
    return tuple(checks)


def make_prompts() -> list[tuple[int, ...]]:
    """Texts of several lengths; one repeats itself, for the n-gram drafter."""
    draw = Random(5)
    prompts = [tuple(draw.randrange(TARGET.config.vocab_size) for _ in range(count)) for count in (3, 17, 40, 130)]
    return [*prompts, (9, 8, 7, 6, 5) * 6]


def drafters(target: DecoderModel, plain: Texts, device: torch.device) -> dict[str, Drafter]:
    """Right now and then, mostly wrong, mostly right, and from the text."""
    random_draft = GraphedModel.of(build(DRAFT, target.dtype, device))
    slots = len(plain)
    return {
        "scripted drafts": ScriptedDrafter(dict(plain), lambda prompt, step: (len(prompt) + step) % (K + 1)),
        "random draft model": DraftModelDrafter(random_draft, num_slots=slots),
        "the target as its draft": DraftModelDrafter(target, num_slots=slots),
        "n-grams": NgramDrafter(min_matching_ngram_size=1, max_matching_ngram_size=3),
    }


def decode(target: DecoderModel, drafter: Drafter | None, prompts: Sequence[tuple[int, ...]]) -> Texts:
    """Greedy output of each prompt, all in one batch. Rows take slots 0, 1, ... in the order of the prompts."""
    engine = Engine(target, drafter, max_rows=len(prompts), max_queue=len(prompts), prefill_chunk=64)
    texts: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        texts[str(index)] = []
        engine.submit(GenerationRequest(str(index), prompt, MAX_TOKENS, draft_len=lambda in_flight: K))
    while engine.num_in_flight:
        for update in engine.step():
            texts[update.request_id] += update.token_ids
    return {prompt: texts[str(index)] for index, prompt in enumerate(prompts)}


@dataclass
class _Pass:
    """One row in one target pass: its tokens, those cached before, and the argmax after each (None: no logits)."""

    slot: int
    cached_len: int
    token_ids: list[int]
    argmax: list[int | None]


@dataclass
class _Recorder:
    passes: list[_Pass] = field(default_factory=list)

    def record(
        self, token_ids: Sequence[int], spans: Sequence[Span], positions: Sequence[int], out: StepOutput
    ) -> None:
        best = dict(zip(positions, out.logits.argmax(-1).tolist(), strict=True))
        for span in spans:
            places = range(span.start, span.end)
            tokens = [token_ids[place] for place in places]
            self.passes.append(_Pass(span.slot, span.cached_len, tokens, [best.get(place) for place in places]))


@contextmanager
def _recorded(target: GraphedModel) -> Iterator[_Recorder]:
    recorder, forward = _Recorder(), target.forward

    def recording(
        token_ids: Sequence[int], spans: Sequence[Span], positions: Sequence[int], *rest: Any, **options: Any
    ) -> StepOutput:
        out = forward(token_ids, spans, positions, *rest, **options)
        recorder.record(token_ids, spans, positions, out)
        return out

    with mock.patch.object(target, "forward", recording):
        yield recorder


def check_argmax(name: str, target: GraphedModel, drafter: Drafter, prompts: Sequence[tuple[int, ...]]) -> OutputCheck:
    """Repeats acceptance on recorded passes: the first pass that read all text before a token has emitted it."""
    target = GraphedModel.of(target)  # its own: what drafters ask of the same model is not recorded
    with _recorded(target) as recorder:
        texts = decode(target, drafter, prompts)
    wrong = num_tokens = 0
    for slot, prompt in enumerate(prompts):
        full = [*prompt, *texts[prompt]]
        known = emitted_from = len(prompt)
        for step in (step for step in recorder.passes if step.slot == slot):
            for place, (token, best) in enumerate(zip(step.token_ids, step.argmax, strict=True)):
                if known == len(full) or full[step.cached_len + place] != token:
                    break
                if best is not None and step.cached_len + place == known - 1:
                    wrong += full[known] != best
                    known += 1
        num_tokens += known - emitted_from
        wrong += len(full) - known
    return OutputCheck(name=name, has_passed=wrong == 0, detail=f"{wrong} of {num_tokens} tokens are not")


def _check_replays(device: torch.device, dtype: torch.dtype) -> OutputCheck:
    """Replays of several shapes, each with inputs that change between replays, against the general pass."""
    model = build(TARGET, dtype, device)
    graphed = GraphedModel.of(model)
    caches = [model.new_cache(5), graphed.new_cache(5)]
    draw = Random(2)
    worst, num_swapped = 0.0, 0
    lengths = [3, 40, 200, 77, 130]
    for slot, length in enumerate(lengths):
        text = [draw.randrange(model.vocab_size) for _ in range(length)]
        for cache in caches:
            model.forward(text, [Span(0, length, slot, 0)], [], cache)
    for slots, counts in (
        ((2,), (1,)),
        ((0, 3, 4), (1, 1, 1)),
        ((4, 1, 0), (5, 2, 1)),
        ((0, 1, 2, 3, 4), (3, 4, 5, 4, 3)),
    ):
        for _ in range(3):
            spans, start = [], 0
            for slot, count in zip(slots, counts, strict=True):
                spans.append(Span(start, start + count, slot, lengths[slot]))
                start += count
                lengths[slot] += count
            tokens = [draw.randrange(model.vocab_size) for _ in range(start)]
            expected, actual = (
                each.forward(tokens, spans, range(start), cache).logits.float()
                for each, cache in zip((model, graphed), caches, strict=True)
            )
            worst = max(worst, float((expected - actual).abs().max()))
            num_swapped += int((expected.argmax(-1) != actual.argmax(-1)).sum())
    is_exact = dtype is torch.float32
    has_passed = worst < 1e-3 and not num_swapped if is_exact else worst < _BFLOAT16_TOLERANCE
    name = f"{str(dtype).removeprefix('torch.')}: replayed steps equal the general pass"
    return OutputCheck(
        name=name, has_passed=has_passed, detail=f"largest difference {worst:.1e}, {num_swapped} argmax differ"
    )


def _check_paged(device: torch.device, shape: ModelShape) -> OutputCheck:
    config = shape.config
    agrees = can_page(
        device,
        torch.bfloat16,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
    )
    detail = "yes" if agrees else "missing or different here: keys are gathered, which is slower"
    return OutputCheck(name=f"bfloat16, {shape.name}: paged attention agrees", has_passed=agrees, detail=detail)


def build(shape: ModelShape, dtype: torch.dtype, device: torch.device) -> DecoderModel:
    return shape.build(dtype=dtype, device=device, max_seq_len=MAX_SEQ_LEN, seed=1 if shape is TARGET else 2)
