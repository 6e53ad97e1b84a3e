"""What steps of a real engine take, by rows, draft tokens, prompt tokens and context.

The engine's own loop is driven with real requests, so that packing, verification, sampling and Python are in the times.
K is forced: the policy that would choose it is asked and overruled. Drafters that copy from the text are made to draft
K tokens in every step, whatever the text; models draft as they do.

A **visit** reads as many prompts as the engine has rows, then goes through every K with all rows, with half of them,
and so on to one. Visits to all contexts are repeated in turn until the time is used up, so that a machine that becomes
slower does so for all loads alike, and medians over the visits are what counts.
"""

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from specdeploy.contract import Method
from specdeploy.runtime.assemble import EngineParts, EngineSettings, draft_length_policy
from specdeploy.runtime.draft_length import FixedDraftLength
from specdeploy.runtime.drafters.base import Draft
from specdeploy.runtime.engine import Engine
from specdeploy.runtime.forced_drafts import FilledDrafts, ForcedDraftLength
from specdeploy.runtime.request import GenerationRequest
from specdeploy.runtime.step_batch import StepBatch

_LOOKUP_METHODS = (Method.NGRAM, Method.SUFFIX)
# Timed steps of one K one after the other. Few, because a moment later the machine may be faster or slower.
_STEPS_IN_A_ROW = 2
# How often all K are gone through with one row; less with more rows, whose steps take longer.
_PASSES_OF_ONE_ROW = 3
_MIN_ROUNDS = 2
# A drafter may read what it missed in pieces. One that leaves a row undrafted for longer never drafts for it.
_MAX_CATCH_UP_STEPS = 32
# Prompts of a visit together: reading them takes most of its time on a processor.
_MAX_PROMPT_TOKENS = 1024
# Room for all steps of a visit with drafts that are accepted.
_MAX_OUTPUT_TOKENS = 512


@dataclass(frozen=True, slots=True)
class StepGrid:
    """Loads to measure. `contexts` are prompt lengths; of long ones fewer rows are measured."""

    max_rows: int
    draft_lens: tuple[int, ...]
    contexts: tuple[int, ...]
    budget_s: float = 90.0
    random_seed: int = 0

    @classmethod
    def of(cls, settings: EngineSettings, *, budget_s: float = 90.0, random_seed: int = 0) -> "StepGrid":
        """Rows 1, 2, 4, .. and K 0 to 4, 8, 16, .. up to what an engine with these settings serves; contexts that leave
        room for the measured output."""
        deepest = settings.max_draft_len
        draft_lens = {*range(min(deepest, 4) + 1), *_doublings(deepest), deepest}
        longest = settings.max_seq_len // 2
        contexts = {min(tokens, longest) for tokens in (64, 512)}
        return cls(settings.max_rows, tuple(sorted(draft_lens)), tuple(sorted(contexts)), budget_s, random_seed)

    def row_counts(self, context: int) -> tuple[int, ...]:
        """Rows measured at a context, falling."""
        most = max(1, min(self.max_rows, _MAX_PROMPT_TOKENS // context))
        return tuple(sorted({*_doublings(most), most}, reverse=True))


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One step, or the median over `num_steps` like ones. Seconds: of the whole step, and the drafter's part of it.

    `num_rows` rows decoded over `kv_tokens` cached tokens together; `num_draft_tokens` over all rows, the deepest draft
    `depth` deep; `prompt_tokens` were read behind `prompt_context` cached tokens of their rows.
    """

    num_rows: int
    num_draft_tokens: int
    depth: int
    kv_tokens: float
    prompt_tokens: int
    prompt_context: int
    step_s: float
    draft_s: float
    num_steps: int = 1


def measure_steps(
    parts: EngineParts,
    settings: EngineSettings,
    grid: StepGrid,
    *,
    clock: Callable[[], int],
    now: Callable[[], float],
    report: Callable[[str], None] = lambda line: None,  # noqa: ARG005 - the signature is the contract
) -> tuple[MeasuredStep, ...]:
    """Medians by load. `clock` gives nanoseconds of what a step takes, `now` seconds that `grid.budget_s` is of.

    At least two rounds of visits are made, whatever they take.
    """
    bench = _Bench(parts, settings, grid, clock)
    started = now()
    rounds = 0
    samples: dict[_Key, list[MeasuredStep]] = {}
    with torch.inference_mode():
        while rounds < _MIN_ROUNDS or (now() - started) * (1 + 1 / rounds) < grid.budget_s:
            for context in grid.contexts:
                for sample in bench.visit(context):
                    samples.setdefault(_key(sample, context), []).append(sample)
            rounds += 1
            report(f"round {rounds}: {len(samples)} loads, {now() - started:.0f} s")
    return tuple(_median(like) for like in samples.values())


# --- one visit ------------------------------------------------------------------------------------------------------


class _Bench:
    """An engine whose K and whose times are in our hands."""

    def __init__(self, parts: EngineParts, settings: EngineSettings, grid: StepGrid, clock: Callable[[], int]) -> None:
        self._settings, self._grid, self._clock = settings, grid, clock
        self._random = random.Random(grid.random_seed)  # noqa: S311 - prompts, no secrets
        self._policy = ForcedDraftLength(draft_length_policy(settings) or FixedDraftLength())
        drafter = parts.drafter
        if drafter is not None and settings.method in _LOOKUP_METHODS:
            drafter = FilledDrafts(drafter)
        self._engine = _WatchedEngine(
            parts.model,
            drafter,
            max_rows=settings.max_rows,
            max_queue=settings.max_rows,
            prefill_chunk=settings.prefill_chunk,
            num_token_ids=settings.num_token_ids,
            cache=parts.cache,
            policy=self._policy,
            clock=clock,
        )
        self._num_ids = min(parts.model.vocab_size, settings.num_token_ids or parts.model.vocab_size)
        self._max_request_tokens = min(settings.max_seq_len, parts.cache.max_request_tokens)
        self._planned = 0  # K that requests allow now; 0 is speculation off
        self._num_requests = 0

    def visit(self, context: int) -> Iterator[MeasuredStep]:
        """Steps at one context, prompts first."""
        context = min(context, self._max_request_tokens // 2)
        row_counts = self._grid.row_counts(context)
        deepest = max(self._grid.draft_lens)
        for _ in range(row_counts[0]):
            self._submit(context)
        try:
            yield from self._read_prompts(deepest)
            for count in row_counts:
                self._keep(count)
                yield from self._all_depths(count)
        except _NoRowLeft:  # outputs came to their end: a short context, or drafts that were accepted throughout
            pass
        finally:
            self._keep(0)

    def _submit(self, context: int) -> None:
        self._num_requests += 1
        name = str(self._num_requests)
        prompt = tuple(self._random.randrange(self._num_ids) for _ in range(context))
        most = min(self._max_request_tokens - context, _MAX_OUTPUT_TOKENS)
        self._engine.submit(GenerationRequest(name, prompt, most, draft_len=lambda in_flight: self._planned))  # noqa: ARG005

    def _keep(self, count: int) -> None:
        """End all requests but the first so many that have a row: of those that found none nothing can be measured."""
        for name in [*self._engine.row_request_ids[count:], *self._engine.waiting_request_ids]:
            self._engine.cancel(name)

    def _read_prompts(self, deepest: int) -> Iterator[MeasuredStep]:
        """The drafter is told of everything but drafts nothing until all prompts are read. What it reads of them with
        its first drafts is then added to the steps that read them, by their tokens."""
        self._planned, self._policy.forced = deepest, 0
        reading: list[MeasuredStep] = []
        while (step := self._step()).prompt_tokens:
            reading.append(step)
        late_s = 0.0
        if deepest:
            self._policy.forced = deepest
            catching_up = self._catch_up(deepest)
            ordinary_s = statistics.median(self._step().draft_s for _ in range(_STEPS_IN_A_ROW))
            late_s = max(sum(step.draft_s - ordinary_s for step in catching_up), 0.0)
        num_tokens = sum(step.prompt_tokens for step in reading)
        for step in reading:
            share_s = late_s * step.prompt_tokens / num_tokens
            yield replace(step, step_s=step.step_s + share_s, draft_s=step.draft_s + share_s)

    def _catch_up(self, draft_len: int) -> list[MeasuredStep]:
        """Steps until every row drafts, as far as they ever do."""
        steps = [self._step()]
        while not _is_full(steps[-1], draft_len) and len(steps) < _MAX_CATCH_UP_STEPS:
            steps.append(self._step())
        return steps

    def _all_depths(self, num_rows: int) -> Iterator[MeasuredStep]:
        """Every K, in another order each time. After steps without speculation a drafter has to catch up: those steps
        are not counted, nor is the first one without."""
        order: list[int] = []
        for _ in range(max(1, round(_PASSES_OF_ONE_ROW / num_rows**0.5))):
            order += self._random.sample(self._grid.draft_lens, len(self._grid.draft_lens))
        was_off = True
        for draft_len in order:
            self._planned = self._policy.forced = draft_len
            if was_off or draft_len == 0:
                self._catch_up(draft_len)
            was_off = draft_len == 0
            for _ in range(_STEPS_IN_A_ROW):
                step = self._step()
                if step.num_rows == num_rows and _is_full(step, draft_len):  # no row ended, none was without a draft
                    yield step

    def _step(self) -> MeasuredStep:
        engine = self._engine
        if not engine.num_in_flight:
            raise _NoRowLeft
        start = self._clock()
        engine.step()
        step_ns = self._clock() - start
        batch, timing = engine.batch, self._policy.timing
        if batch is None or timing is None:
            raise RuntimeError("the engine has nothing to do")
        decoding = batch.spans[: batch.num_decoding]
        reading = batch.spans[batch.num_decoding :]
        return MeasuredStep(
            num_rows=timing.num_rows,
            num_draft_tokens=timing.num_tokens - timing.num_rows,
            depth=timing.depth,
            kv_tokens=sum(span.cached_len for span in decoding),
            prompt_tokens=sum(span.num_tokens for span in reading),
            prompt_context=sum(span.cached_len for span in reading),
            step_s=step_ns / 1e9,
            draft_s=max(timing.draft_ns - engine.pack_ns, 0) / 1e9,
        )


def _is_full(step: MeasuredStep, draft_len: int) -> bool:
    """Every row drafts as deep as it may."""
    return step.depth == draft_len and step.num_draft_tokens >= step.num_rows * draft_len


class _NoRowLeft(Exception):  # noqa: N818 - the end of a visit, no error
    """Every row has ended."""


class _WatchedEngine(Engine):
    """Keeps the batch of its latest step, and what packing it took: that is counted as the drafter's otherwise."""

    batch: StepBatch | None = None
    pack_ns: int = 0

    def _pack(self, drafts: dict[int, tuple[Draft, int]]) -> StepBatch:
        start = self._now()
        self.batch = super()._pack(drafts)
        self.pack_ns = self._now() - start
        return self.batch


# --- medians --------------------------------------------------------------------------------------------------------

_Key = tuple[int, int, int, int, int, int]


def _key(step: MeasuredStep, context: int) -> _Key:
    """Steps that are alike but for the few tokens that rows have grown by."""
    return (context, step.num_rows, step.num_draft_tokens, step.depth, step.prompt_tokens, step.prompt_context)


def _median(like: Sequence[MeasuredStep]) -> MeasuredStep:
    return replace(
        like[0],
        kv_tokens=statistics.fmean(step.kv_tokens for step in like),
        step_s=statistics.median(step.step_s for step in like),
        draft_s=statistics.median(step.draft_s for step in like),
        num_steps=len(like),
    )


def _doublings(most: int) -> list[int]:
    """1, 2, 4, .. up to `most`."""
    return [1 << index for index in range(most.bit_length())]
