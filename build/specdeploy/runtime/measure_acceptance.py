"""How many drafted tokens survive on given prompts: the engine's own loop, drafting K tokens in every step.

Counted are the steps whose draft was allowed its full K. The last tokens of an answer leave no room for it, so each
request is given K + 1 tokens of output more than it shall be measured for. A step that ends its request is not counted:
its block was cut short by the end, not by the draft.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from specdeploy.errors import SpecDeployError
from specdeploy.runtime.assemble import EngineParts, EngineSettings
from specdeploy.runtime.draft_length import FixedDraftLength
from specdeploy.runtime.engine import Engine
from specdeploy.runtime.request import GenerationRequest, SamplingParams

_RANDOM_SEED = 0


@dataclass(frozen=True, slots=True)
class MeasuredPrompt:
    """One prompt and the output tokens it is measured for."""

    token_ids: tuple[int, ...]
    max_tokens: int


@dataclass(slots=True)
class CountedDrafts:
    """Steps of one request that were allowed the full K: all, those with a draft, and those that accepted their first
    1, 2, .. tokens [K]."""

    num_steps: int = 0
    num_drafts: int = 0
    accepted_per_pos: list[int] = field(default_factory=list)


class CountingDraftLength(FixedDraftLength):
    """Always the cap, counting what becomes of drafts `draft_len` deep, row by row."""

    def __init__(self, draft_len: int) -> None:
        """`counts` grow by one entry for every row that leaves."""
        self.counts: list[CountedDrafts] = []
        self._draft_len = draft_len
        self._caps: dict[int, int] = {}
        self._rows: dict[int, CountedDrafts] = {}

    def draft_len(self, slot: int, cap: int, num_rows: int) -> int:
        """The cap."""
        self._caps[slot] = cap
        return super().draft_len(slot, cap, num_rows)

    def record(self, slot: int, num_drafted: int, num_accepted: int) -> None:
        """Counts a step that could draft all of K."""
        if self._caps.get(slot, 0) < self._draft_len:
            return
        counts = self._rows.setdefault(slot, CountedDrafts(accepted_per_pos=[0] * self._draft_len))
        counts.num_steps += 1
        counts.num_drafts += num_drafted > 0
        for position in range(num_accepted):
            counts.accepted_per_pos[position] += 1

    def release(self, slot: int) -> None:
        """The row left: its counts are whole."""
        self._caps.pop(slot, None)
        if (counts := self._rows.pop(slot, None)) is not None:
            self.counts.append(counts)


@torch.inference_mode()
def measure_acceptance(
    parts: EngineParts,
    settings: EngineSettings,
    prompts: Sequence[MeasuredPrompt],
    *,
    stop_ids: frozenset[int],
    temperature: float = 0.0,
    report: Callable[[str], None] = lambda line: None,  # noqa: ARG005 - the signature is the contract
) -> tuple[CountedDrafts, ...]:
    """Counts of every prompt that had such a step, in the order in which they ended; the same call gives the same ones.

    Sampled drafts are verified as for clients that name no seed. Prompts that leave no room for an answer in the
    context are left out, which `report` is told. Raises SpecDeployError where the engine fails.
    """
    draft_len = settings.max_draft_len
    policy = CountingDraftLength(draft_len)
    engine = Engine(
        parts.model,
        parts.drafter,
        max_rows=settings.max_rows,
        max_queue=len(prompts),
        prefill_chunk=settings.prefill_chunk,
        num_token_ids=settings.num_token_ids,
        cache=parts.cache,
        policy=policy,
    )
    for number, prompt in enumerate(prompts):
        room = min(settings.max_seq_len, parts.cache.max_request_tokens) - len(prompt.token_ids)
        if room < draft_len + 2:
            report(f"prompt {number + 1} of {len(prompt.token_ids)} tokens leaves no room for an answer: left out")
            continue
        sampling = SamplingParams(temperature=temperature, seed=_RANDOM_SEED + number, has_own_seed=False)
        engine.submit(
            GenerationRequest(
                str(number),
                prompt.token_ids,
                min(prompt.max_tokens + draft_len + 1, room),
                stop_ids=stop_ids,
                sampling=sampling,
                draft_len=lambda in_flight: draft_len,  # noqa: ARG005 - at any load
            )
        )
    while engine.num_in_flight:
        for update in engine.step():
            if update.finish_reason == "error":
                raise SpecDeployError(f"prompt {int(update.request_id) + 1} failed in the engine; its log says why")
    return tuple(policy.counts)
