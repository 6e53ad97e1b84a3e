"""What the mock server answers: a pure function of its behaviour and the request, the same over every protocol.

Token `i` of an answer is `i` plus a number made of the prompt, so both arms of a pair get the same tokens, and its
text is ` w<token>`. Drafting only changes how many tokens a message carries and, if so set, how long a step takes.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class MockFailure(StrEnum):
    """What may go wrong with a request.

    `refuse`: an error instead of an answer. `die`: the whole server goes away in the middle of the answer.
    `close_early`: the stream ends well, without its last message. `error_mid_stream`: an error after some messages.
    `garbage`: bytes that are no message. `wrong_dtype`: token ids as another type than declared. `stall`: silence.
    """

    REFUSE = "refuse"
    DIE = "die"
    CLOSE_EARLY = "close_early"
    ERROR_MID_STREAM = "error_mid_stream"
    GARBAGE = "garbage"
    WRONG_DTYPE = "wrong_dtype"
    STALL = "stall"


@dataclass(frozen=True, slots=True)
class TensorDeclaration:
    """One input or output as a Triton configuration declares it; `dims` without the batch dimension."""

    name: str
    datatype: str
    dims: tuple[int, ...] = (1,)
    is_optional: bool = False


INPUTS = (
    TensorDeclaration("text_input", "BYTES"),
    TensorDeclaration("max_tokens", "INT32"),
    TensorDeclaration("stream", "BOOL", is_optional=True),
    TensorDeclaration("num_draft_tokens", "INT32", is_optional=True),
    TensorDeclaration("segment", "BYTES", is_optional=True),
    TensorDeclaration("temperature", "FP32", is_optional=True),
    TensorDeclaration("top_k", "INT32", is_optional=True),
    TensorDeclaration("top_p", "FP32", is_optional=True),
    TensorDeclaration("seed", "UINT64", is_optional=True),
    TensorDeclaration("min_tokens", "INT32", is_optional=True),
    TensorDeclaration("ignore_eos", "BOOL", is_optional=True),
    TensorDeclaration("stop_words", "BYTES", (-1,), is_optional=True),
    TensorDeclaration("return_perf_metrics", "BOOL", is_optional=True),
    TensorDeclaration("guided_decoding_guide_type", "BYTES", is_optional=True),
    TensorDeclaration("guided_decoding_guide", "BYTES", is_optional=True),
)
OUTPUTS = (
    TensorDeclaration("text_output", "BYTES", (-1,)),
    TensorDeclaration("output_ids", "INT32", (-1,)),
    TensorDeclaration("finish_reason", "BYTES"),
    TensorDeclaration("input_token_count", "INT32"),
    TensorDeclaration("output_token_count", "INT32"),
    TensorDeclaration("num_steps", "INT32"),
    TensorDeclaration("total_draft_tokens", "INT32"),
    TensorDeclaration("total_accepted_draft_tokens", "INT32"),
    TensorDeclaration("speculation", "BYTES"),
    TensorDeclaration("speculation_stats", "BYTES"),
)


@dataclass(frozen=True, slots=True)
class MockBehaviour:
    """The knobs of the mock. Seconds are of the server's own clock, counted from a request's arrival.

    `first_message_s` until the first message, `step_s` between messages, `plain_step_s` the same without drafting
    (None: `step_s`). A step emits one token and as many accepted ones as `accepted_per_step` says, in a cycle; a
    request with `num_draft_tokens` 0 drafts nothing. `draft_len` tokens are drafted per step where a request does not
    say how many. `num_tokens` None: as many as asked; fewer make short answers. `failure` befalls requests whose number
    (from 0, in order of arrival) `fail_numbers` names (None: all of them), after `fail_after` messages.
    `sends_ids`, `sends_counts`, `sends_finish`: what the last and other messages carry. `is_cumulative`: every
    message repeats the whole text so far. `cached_tokens` of each prompt are reported as taken from a prefix cache.
    `openai_owner`: who owns the model on the page /v1/models. `openai_extensions`: fields beyond OpenAI's that are
    known; others are ignored, or with `is_strict` refused.
    """

    model: str = "llm"
    first_message_s: float = 0.0
    step_s: float = 0.0
    plain_step_s: float | None = None
    accepted_per_step: tuple[int, ...] = (2, 0, 1)
    draft_len: int = 4
    num_tokens: int | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None
    failure: MockFailure | None = None
    fail_numbers: frozenset[int] | None = None
    fail_after: int = 1
    sends_ids: bool = True
    sends_counts: bool = True
    sends_finish: bool = True
    is_cumulative: bool = False
    is_ready: bool = True
    is_decoupled: bool = True
    max_batch_size: int = 1
    inputs: tuple[TensorDeclaration, ...] = INPUTS
    outputs: tuple[TensorDeclaration, ...] = OUTPUTS
    info: Mapping[str, str] = field(default_factory=dict)
    openai_owner: str = "vllm"
    openai_extensions: frozenset[str] = frozenset({"return_token_ids", "ignore_eos", "min_tokens", "top_k"})
    is_strict: bool = False

    def failure_of(self, number: int) -> MockFailure | None:
        """What befalls request `number`."""
        return self.failure if self.fail_numbers is None or number in self.fail_numbers else None


@dataclass(frozen=True, slots=True)
class MockRequest:
    """One request as it arrived. `fields` are its decoded tensors or JSON keys; `endpoint` the path or method."""

    number: int
    endpoint: str
    model: str
    prompt: str
    max_tokens: int
    num_draft_tokens: int | None
    segment: str
    fields: dict[str, Any]
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class MockCounts:
    """What the last message says of the whole request."""

    input_token_count: int
    output_token_count: int
    num_steps: int
    num_draft_tokens: int
    num_accepted_tokens: int
    accepted_per_pos: tuple[int, ...]
    is_drafting: bool


@dataclass(frozen=True, slots=True)
class MockMessage:
    """One message, due `due_s` after the request's arrival. `counts` on the last one only."""

    due_s: float
    text: str
    ids: tuple[int, ...]
    counts: MockCounts | None


def plan_answer(behaviour: MockBehaviour, request: MockRequest) -> list[MockMessage]:
    """The messages of one answer."""
    num_tokens = request.max_tokens if behaviour.num_tokens is None else behaviour.num_tokens
    draft_len = behaviour.draft_len if request.num_draft_tokens is None else request.num_draft_tokens
    step_s = behaviour.step_s if draft_len or behaviour.plain_step_s is None else behaviour.plain_step_s
    first = zlib.crc32(request.prompt.encode()) % 1000
    accepted = _accepted_by_step(behaviour, draft_len, num_tokens)
    messages: list[MockMessage] = []
    whole_text, done = "", 0
    for step, num_accepted in enumerate(accepted):
        ids = tuple(first + token for token in range(done, done + 1 + num_accepted))
        delta = "".join(f" w{token}" for token in ids)
        whole_text += delta
        done += len(ids)
        is_last = step == len(accepted) - 1
        messages.append(
            MockMessage(
                due_s=behaviour.first_message_s + step * step_s,
                text=whole_text if behaviour.is_cumulative else delta,
                ids=ids,
                counts=_counts(behaviour, request, draft_len, accepted) if is_last else None,
            )
        )
    return messages


def _accepted_by_step(behaviour: MockBehaviour, draft_len: int, num_tokens: int) -> list[int]:
    accepted: list[int] = []
    left = num_tokens
    while left > 0:
        pattern = behaviour.accepted_per_step
        wanted = min(pattern[len(accepted) % len(pattern)], draft_len) if draft_len else 0
        accepted.append(min(wanted, left - 1))
        left -= 1 + accepted[-1]
    return accepted


def _counts(behaviour: MockBehaviour, request: MockRequest, draft_len: int, accepted: list[int]) -> MockCounts:
    words = len(request.prompt.split()) if behaviour.input_tokens is None else behaviour.input_tokens
    return MockCounts(
        input_token_count=words,
        output_token_count=sum(accepted) + len(accepted),
        num_steps=len(accepted),
        num_draft_tokens=draft_len * len(accepted),
        num_accepted_tokens=sum(accepted),
        accepted_per_pos=tuple(sum(count > position for count in accepted) for position in range(draft_len)),
        is_drafting=draft_len > 0,
    )
