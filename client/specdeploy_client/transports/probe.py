"""Before anything is measured: what does this server take, what does it tell, and what can therefore be measured?

A probe sets its transport up for the server (types and ranks of tensors, text that is repeated, extensions of the
OpenAI API) and reports in words what will be missing from the numbers.
"""

from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import pairwise

from specdeploy.errors import RequestError
from specdeploy_client.transport import GenerationRequest, Message, RequestRefusedError
from specdeploy_client.transports.base import OpenedTransport
from specdeploy_client.transports.openai import OpenAiTransport
from specdeploy_client.transports.openai_dialect import PLAIN, TRTLLM, VLLM, OpenAiDialect
from specdeploy_client.transports.triton_grpc import GrpcTransport
from specdeploy_client.transports.triton_http import HttpTransport

PROBE_PROMPT = "Count from one to thirty, in words, with a comma between two numbers."
PROBE_TOKENS = 24
MIN_MESSAGES_TO_JUDGE = 3  # fewer prefixes of each other may be chance


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What the probe saw. `server` names the kind of server in words, `notes` are for people.

    `counts_tokens`: the tokens of each message are known; without them, gaps between messages say nothing about tokens.
    """

    server: str
    is_streaming: bool
    is_cumulative: bool
    counts_tokens: bool
    counts_drafts: bool
    notes: tuple[str, ...]


async def probe_transport(
    transport: OpenedTransport, prompt: str = PROBE_PROMPT, max_tokens: int = PROBE_TOKENS
) -> ProbeReport:
    """Ask the server what it is, send it one request, and set `transport` up by both.

    Raises `RequestError` for a model that cannot be asked at all, naming the tensor, and the transport's own errors.
    """
    request = GenerationRequest(prompt=prompt, max_tokens=max_tokens, request_id="probe")
    if isinstance(transport, GrpcTransport | HttpTransport):
        return await _probe_triton(transport, request)
    if isinstance(transport, OpenAiTransport):
        return await _probe_openai(transport, request)
    raise TypeError(f"{type(transport).__name__} cannot be probed")


async def _probe_triton(transport: GrpcTransport | HttpTransport, request: GenerationRequest) -> ProbeReport:
    interface = await transport.read_interface()
    if not interface.has_output("text_output"):
        names = ", ".join(spec.name for spec in interface.outputs)
        raise RequestError(
            "--model",
            f"the model {interface.model} gives {names}, no text_output",
            "Name the model that answers in text",
        )
    transport.is_cumulative = False
    messages = await _messages(transport, request)
    is_cumulative = repeats_whole_text(messages)
    transport.is_cumulative = is_cumulative
    notes = list(_common_notes(messages, is_streaming=interface.is_decoupled))
    if not interface.is_decoupled:
        notes.append(
            f"the model {interface.model} is not decoupled: an answer is one message, so TTFT is the whole latency and "
            "TPOT is not measurable. Set model_transaction_policy { decoupled: true } to stream"
        )
    if is_cumulative:
        notes.append("messages repeat the whole text so far; only what is new in each is counted")
    return ProbeReport(
        server=f"Triton model {interface.model}",
        is_streaming=interface.is_decoupled and len(messages) > 1,
        is_cumulative=is_cumulative,
        counts_tokens=_counts_tokens(messages),
        counts_drafts=_counts_drafts(messages),
        notes=tuple(notes),
    )


async def _probe_openai(transport: OpenAiTransport, request: GenerationRequest) -> ProbeReport:
    told = await transport.read_dialect()
    # A server that does not say what it is may be a gateway before one that knows the extensions.
    candidates = (VLLM, TRTLLM, PLAIN) if told is PLAIN else (told, PLAIN)
    messages = await _best_answer(transport, request, [replace(one, name=told.name) for one in candidates])
    return ProbeReport(
        server=f"OpenAI-compatible server ({told.name})",
        is_streaming=len(messages) > 1,
        is_cumulative=False,
        counts_tokens=_counts_tokens(messages),
        counts_drafts=False,
        notes=tuple(_common_notes(messages, is_streaming=True)),
    )


async def _best_answer(
    transport: OpenAiTransport, request: GenerationRequest, dialects: list[OpenAiDialect]
) -> list[Message]:
    """The messages in the first dialect that makes the server count tokens, or in the last one that it takes.

    `transport` keeps that dialect. Raises the last refusal where it takes none.
    """
    best: tuple[OpenAiDialect, list[Message]] | None = None
    refusal: RequestRefusedError | None = None
    for dialect in dialects:
        # Newer models of OpenAI's own refuse the old name of the limit.
        for field in ("max_tokens", "max_completion_tokens"):
            transport.dialect = replace(dialect, length_field=field)
            try:
                messages = await _messages(transport, request)
            except RequestRefusedError as error:
                refusal = error
                if "max_completion_tokens" not in str(error):
                    break
                continue
            if _counts_tokens(messages):
                return messages
            best = transport.dialect, messages
            break
    if best is None:
        raise refusal or RequestRefusedError(f"server at {transport.url}: refuses every form of a request")
    transport.dialect, messages = best
    return messages


async def _messages(transport: OpenedTransport, request: GenerationRequest) -> list[Message]:
    async with aclosing(transport.stream(request)) as stream:
        return [message async for message in stream]


def repeats_whole_text(messages: list[Message]) -> bool:
    """Whether every text begins with the one before, and the last is longer than the first: cumulative, not deltas."""
    texts = [message.text for message in messages if message.text]
    if len(texts) < MIN_MESSAGES_TO_JUDGE:
        return False
    return all(later.startswith(earlier) for earlier, later in pairwise(texts)) and len(texts[-1]) > len(texts[0])


def _counts_tokens(messages: list[Message]) -> bool:
    return bool(messages) and all(message.num_tokens is not None for message in messages)


def _counts_drafts(messages: list[Message]) -> bool:
    completion = messages[-1].completion if messages else None
    return completion is not None and completion.total_draft_tokens is not None


def _common_notes(messages: list[Message], *, is_streaming: bool) -> Iterator[str]:
    """What is missing from the numbers of such a server, in words."""
    completion = messages[-1].completion if messages else None
    if completion is None or not any(message.text for message in messages):
        yield "the probe's answer had no text"
        return
    if not _counts_tokens(messages):
        yield (
            "the server does not say how many tokens a message carries: tokens per message and gaps per token are not "
            "measurable"
        )
        if completion.output_token_count is None:
            yield "nor how many an answer has: TPOT and throughput in tokens are not measurable"
    elif completion.output_token_count is not None:
        arrived = sum(message.num_tokens or 0 for message in messages)
        if arrived != completion.output_token_count:
            yield f"the server counts {completion.output_token_count} output tokens, its messages carried {arrived}"
    if completion.input_token_count is None:
        yield "the server does not say how many tokens a prompt has: their lengths are not checked"
    if not _counts_drafts(messages):
        yield "answers do not say what was drafted and accepted: that is known from the server's counters, if at all"
    if is_streaming and len(messages) == 1 and (completion.output_token_count or PROBE_TOKENS) > 1:
        yield "the whole answer came as one message: streaming is off, or something on the way holds messages back"
