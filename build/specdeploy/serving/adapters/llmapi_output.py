"""What an LLM's RequestOutput says -> tokens to deliver, why a request ended, and its counts. Pure.

Names read at NVIDIA/TensorRT-LLM:
    outputs[0].token_ids, logprobs   grow from message to message (tensorrt_llm/executor/result.py@005bc848)
    outputs[0].finish_reason         stop, length, timeout or cancelled (same file)
    decoding_iter                    forwards that emitted a token, the prompt's included (sampler.py, blob 440197692)
    avg_decoded_tokens_per_iter      tokens by decoding_iter (result.py, blob 1063746606; llmRequest.h, blob 786144818)
    outputs[0].request_perf_metrics.speculative_decoding.{total_draft_tokens, total_accepted_draft_tokens}
        (triton_backend/all_models/llmapi/tensorrt_llm/1/model.py@044a90d2, blob 814619992)
These counters stay 0 in the PyTorch flow, whatever was drafted, until PR 17082 (August 2026).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from specdeploy.errors import SpecDeployError
from specdeploy.runtime.request import FinishReason, RequestStats

# Tokens per forward above this cannot come from plain decoding, which gives exactly 1.
PLAIN_TOKENS_PER_STEP = 1.05
_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


@dataclass(frozen=True, slots=True)
class EndRule:
    """When our side ends a request; the same rules as the torch engine's."""

    stop_ids: frozenset[int]
    min_tokens: int
    max_output: int

    def apply(
        self, token_ids: Sequence[int], num_before: int, accept: Callable[[int], bool]
    ) -> tuple[int, FinishReason | None]:
        """How many of the new tokens belong to the output, and why it ends with the last of them, if it does.

        `accept` is told every token that belongs to the output, in order, and says whether it ends a stop string.
        """
        for index, token in enumerate(token_ids, start=1):
            ends_with_stop_string = accept(token)
            if token in self.stop_ids:
                return index, "stop"
            if ends_with_stop_string and num_before + index >= self.min_tokens:
                return index, "stop"
            if num_before + index >= self.max_output:
                return index, "length"
        return len(token_ids), None


@dataclass(slots=True)
class OutputReader:
    """Turns cumulative outputs into what is new. `num_messages` counts those that brought tokens."""

    wants_log_probs: bool = False
    num_tokens: int = 0
    num_messages: int = 0

    def take(self, completion: Any) -> tuple[tuple[int, ...], tuple[float, ...] | None]:
        """New token ids of `outputs[0]` and, where wanted, the log probability of each.

        Raises SpecDeployError when a wanted log probability is missing.
        """
        token_ids = tuple(completion.token_ids[self.num_tokens :])
        log_probs = None
        if self.wants_log_probs:
            entries = (completion.logprobs or [])[self.num_tokens : self.num_tokens + len(token_ids)]
            log_probs = tuple(_log_prob(entry, token) for entry, token in zip(entries, token_ids, strict=False))
            if len(log_probs) < len(token_ids):
                missing = self.num_tokens + len(log_probs) + 1
                raise SpecDeployError(f"TensorRT-LLM gave no log probability of output token {missing}")
        self.num_tokens += len(token_ids)
        self.num_messages += bool(token_ids)
        return token_ids, log_probs


def _log_prob(entry: Any, token: int) -> float:
    """Of the chosen token: a number, or a mapping from token id to an object with `logprob`."""
    if isinstance(entry, int | float):
        return float(entry)
    if token not in entry:
        raise SpecDeployError(f"TensorRT-LLM gave log probabilities without that of the chosen token {token}")
    value = entry[token]
    return float(getattr(value, "logprob", value))


def finish_reason_of(message: Any) -> FinishReason | None:
    """Why TensorRT-LLM ended the request; None while it goes on.

    Raises SpecDeployError when it gave up: nobody on our side asked it to.
    """
    if not message.finished:
        return None
    reason = message.outputs[0].finish_reason
    if reason not in _REASONS:
        raise SpecDeployError(f"TensorRT-LLM ended the request without finishing it ({reason or 'no reason given'})")
    return _REASONS[reason]


def read_stats(
    message: Any | None,
    reader: OutputReader,
    *,
    is_drafting: bool,
    is_plain: bool,
    max_draft_len: int,
    may_skip_drafting: bool,
    num_cut: int = 0,
    off_reason: str | None = None,
) -> RequestStats:
    """Counts over one request, from the last message seen.

    `num_cut` tokens came but were not delivered, being behind the end; they are taken off the accepted ones.
    `may_skip_drafting`: a step may have no draft although drafting is on (n-grams without a match), so 0 can be true.
    `num_drafts` is the least number of drafts of at most `max_draft_len` tokens; TensorRT-LLM does not count them.
    """
    num_steps = _num_steps(message, reader)
    if is_plain:
        return RequestStats(num_steps=num_steps, off_reason=off_reason)
    stats = RequestStats(was_allowed_to_draft=is_drafting, num_steps=num_steps, off_reason=off_reason)
    counters = _counters(message)
    if counters is None:
        stats.source = "unavailable:TensorRT-LLM reported no counters of this request"
        return stats
    num_drafted, num_accepted = counters
    if num_drafted == 0 and num_accepted == 0:
        stats.source = _source_of_zero(message, reader, num_steps, is_drafting, may_skip_drafting)
        return stats
    stats.was_allowed_to_draft = True  # also where the plan said no and the engine's own schedule said yes
    stats.num_draft_tokens = num_drafted
    stats.num_accepted_tokens = max(0, num_accepted - num_cut)
    stats.num_drafts = math.ceil(num_drafted / max_draft_len)
    return stats


def _source_of_zero(
    message: Any, reader: OutputReader, num_steps: int | None, is_drafting: bool, may_skip_drafting: bool
) -> str:
    """Whether counters of 0 are true: never when more tokens came than plain decoding gives."""
    tokens_per_step = _tokens_per_step(message, reader, num_steps)
    if tokens_per_step > PLAIN_TOKENS_PER_STEP:
        return f"unavailable:counters are 0 but {tokens_per_step:.2f} tokens came per iteration"
    if is_drafting and not may_skip_drafting and reader.num_tokens > 1:
        return "unavailable:counters are 0 although this method drafts at every step"
    return "measured"


def _tokens_per_step(message: Any, reader: OutputReader, num_steps: int | None) -> float:
    if num_steps is not None:
        return reader.num_tokens / num_steps
    average = getattr(message, "avg_decoded_tokens_per_iter", None)
    if isinstance(average, int | float) and average > 0:
        return float(average)
    return reader.num_tokens / max(1, reader.num_messages)


def _num_steps(message: Any | None, reader: OutputReader) -> int | None:
    """`decoding_iter` where it can be true: every step emits a token, and 0 is its value before anything set it."""
    steps = getattr(message, "decoding_iter", None)
    return int(steps) if isinstance(steps, int) and 0 < steps <= reader.num_tokens else None


def _counters(message: Any | None) -> tuple[int, int] | None:
    if message is None:
        return None
    metrics = getattr(message.outputs[0], "request_perf_metrics", None)
    counters = getattr(metrics, "speculative_decoding", None)
    drafted = getattr(counters, "total_draft_tokens", None)
    accepted = getattr(counters, "total_accepted_draft_tokens", None)
    return None if drafted is None or accepted is None else (int(drafted), int(accepted))
