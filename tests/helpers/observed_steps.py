"""Observed steps of a made-up engine whose cost is known."""

import random
from collections.abc import Iterator

from specdeploy.planner.calibrate import CalibrationSubject, StepObservation
from specdeploy.planner.step_times import StepLoad, StepTime

SUBJECT = CalibrationSubject(name="made up", hardware="cpu", engine="torch", source="a test")
TRUE_DRAFT = {"idle_s": 1e-4, "first_s": 2e-3, "depth_s": 3e-3, "token_s": 1e-4, "prefill_token_s": 5e-5}
TRUE_ROW_S, TRUE_KV_TOKEN_S, TRUE_PAIR_S = 5e-4, 2e-6, 1e-6


def true_curve_s(tokens: float) -> float:
    """A kink up behind one token, then a line."""
    return 0.020 + (0.004 if tokens > 1 else 0.0) + 0.0005 * tokens


def true_target_s(rows: int, drafted: int, kv_tokens: float, prompt: int = 0, before: int = 0) -> float:
    pairs = kv_tokens * (1 + drafted / rows if rows else 1.0) + prompt * before
    return (
        true_curve_s(rows + drafted + prompt)
        + TRUE_ROW_S * max(rows - 1, 0)
        + TRUE_KV_TOKEN_S * (kv_tokens + before)
        + TRUE_PAIR_S * pairs
    )


def true_draft_s(drafted: int, depth: int, prompt: int = 0) -> float:
    seconds = TRUE_DRAFT["idle_s"] + TRUE_DRAFT["prefill_token_s"] * prompt
    if drafted:
        seconds += TRUE_DRAFT["first_s"] + TRUE_DRAFT["depth_s"] * depth + TRUE_DRAFT["token_s"] * drafted
    return seconds


def whole_observations(*, noise: float = 0.0, knows_draft: bool = True, seed: int = 0) -> Iterator[StepObservation]:
    """Rows 1 to 8, K 0 to 4, three contexts, and prompt chunks. `noise`: relative spread of each time."""
    rng = random.Random(seed)
    loads = [(rows, k, context, 0, 0) for rows in (1, 2, 4, 8) for k in (0, 1, 2, 4) for context in (64, 256, 512)]
    loads += [(rows, 0, 100, prompt, before) for rows in (0, 2) for prompt in (64, 128) for before in (0, 128, 256)]
    for rows, k, context, prompt, before in loads:
        factor = 1.0 + rng.uniform(-noise, noise)
        target_s = true_target_s(rows, rows * k, rows * context, prompt, before) * factor
        draft_s = true_draft_s(rows * k, k, prompt) * factor
        yield StepObservation(
            num_rows=rows,
            num_draft_tokens=rows * k,
            depth=k,
            kv_tokens=rows * context,
            prefill_tokens=prompt,
            seconds=target_s + draft_s,
            draft_seconds=draft_s if knows_draft else None,
            prefill_context=before,
            draft_prefill_tokens=prompt,
        )


class MadeUpKernels:
    """Kernels that are a line of tokens and of cached tokens."""

    def target_kernels(self, load: StepLoad) -> StepTime:
        return StepTime(0.005 + 2e-5 * load.num_tokens, 1e-8)

    def draft_kernels(self, load: StepLoad) -> StepTime:
        return StepTime(4e-4 * load.depth + 2e-5 * load.num_draft_tokens, 1e-9 * load.depth)
