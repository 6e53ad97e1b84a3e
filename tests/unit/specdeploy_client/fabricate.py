"""Made-up observations and a transport with settable latencies, for the client's tests."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specdeploy.run_contract import Arm, MetricName, Percentile, PlannedDraftLen, RequestRecord, RunSummary, Slo
from specdeploy.units import NS_PER_MS
from specdeploy_client.compare import compare_arms, group_cells, summarise_arm
from specdeploy_client.transport import Completion, GenerationRequest, Message, RequestRefusedError


def make_record(
    arrivals_ms: Sequence[float] = (50, 60, 70),
    sizes: Sequence[int] = (1, 1, 1),
    *,
    segment: str = "chat",
    concurrency: int = 1,
    arm: Arm = Arm.OFF,
    block: int = 0,
    prompt_id: str = "chat-01",
    send_ms: float = 0.0,
    ids: Sequence[int] | None = None,
    text: str = "hello",
    error: str | None = None,
    steps: int | None = None,
    drafted: int | None = None,
    accepted: int | None = None,
    reported: int | None = -1,
    speculation: str | None = None,
) -> RequestRecord:
    """A request sent at `send_ms` whose messages of `sizes` tokens arrived `arrivals_ms` later."""
    send_ns = int(send_ms * NS_PER_MS)
    times = [send_ns + int(arrival * NS_PER_MS) for arrival in arrivals_ms]
    output_ids = tuple(range(sum(sizes))) if ids is None else tuple(ids)
    return RequestRecord(
        request_id=f"{segment}-c{concurrency}-{arm}-{prompt_id}",
        segment=segment,
        concurrency=concurrency,
        arm=arm,
        block=block,
        index=0,
        prompt_id=prompt_id,
        scheduled_ns=send_ns,
        send_ns=send_ns,
        end_ns=times[-1] if times else send_ns,
        message_ns=tuple(times),
        message_tokens=tuple(sizes),
        output_ids=output_ids,
        text=text,
        error=error,
        finish_reason=None if error else "length",
        input_token_count=10,
        output_token_count=len(output_ids) if reported == -1 else reported,
        num_steps=steps,
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        speculation=speculation,
    )


def make_cell(
    segment: str = "chat",
    concurrency: int = 1,
    *,
    num_pairs: int = 20,
    speedup: float = 1.5,
    num_tokens: int = 33,
    step_ms: float = 50.0,
    seed: int = 0,
) -> list[RequestRecord]:
    """Both arms of a cell; the on arm takes 1/`speedup` of the time in bursts of two tokens."""
    rng = np.random.default_rng(seed)
    records: list[RequestRecord] = []
    for index in range(num_pairs):
        step = step_ms * float(rng.uniform(0.9, 1.1))
        common: dict[str, Any] = {
            "segment": segment,
            "concurrency": concurrency,
            "block": index // 5,
            "prompt_id": f"p{index}",
        }
        sizes = [1] * num_tokens
        off = [80 + step * (i + 1) * float(rng.uniform(0.98, 1.02)) for i in range(num_tokens)]
        on_sizes = [1] + [2] * ((num_tokens - 1) // 2)
        on_step = step * (num_tokens - 1) / speedup / (len(on_sizes) - 1)
        on = [80 + step + on_step * i * float(rng.uniform(0.98, 1.02)) for i in range(len(on_sizes))]
        at = 10_000.0 * index
        records.append(
            make_record(
                off,
                sizes,
                arm=Arm.OFF,
                send_ms=at,
                steps=num_tokens,
                drafted=0,
                accepted=0,
                speculation="off:request",
                **common,
            )
        )
        records.append(
            make_record(
                on,
                on_sizes,
                arm=Arm.ON,
                send_ms=at + 5_000,
                steps=len(on_sizes),
                drafted=3 * len(on_sizes),
                accepted=num_tokens - len(on_sizes),
                speculation="on",
                **common,
            )
        )
    return records


def make_summary(
    records: Sequence[RequestRecord],
    *,
    deployment: str = "demo",
    build_id: str | None = "b1",
    dtype: str | None = "float32",
    expected_concurrency: int = 4,
    planned: Sequence[PlannedDraftLen] = (PlannedDraftLen(segment="chat", draft_len=4),),
    slos: Sequence[Slo] = (),
    environment: dict[str, str] | None = None,
    effective_concurrency: int | None = None,
) -> RunSummary:
    """A RunSummary of `records` as the bench would write it."""
    cells = group_cells(records)
    return RunSummary(
        deployment=deployment,
        build_id=build_id,
        lane="torch",
        method="ngram",
        max_draft_len=4,
        dtype=dtype,
        server_threads=1,
        budget="quick",
        random_seed=0,
        started_at="2026-01-01T12:00:00+00:00",
        duration_s=93.4,
        expected_concurrency=expected_concurrency,
        slos=tuple(slos),
        planned=tuple(planned),
        cells=tuple(
            summarise_arm(key[0], key[1], arm, arms[arm]) for key, arms in cells.items() for arm in Arm if arm in arms
        ),
        comparisons=tuple(
            compare_arms(key, arms[Arm.OFF], arms[Arm.ON], metric, 0)
            for key, arms in cells.items()
            if Arm.OFF in arms and Arm.ON in arms
            for metric in MetricName
        ),
        environment=environment or {"command": "specdeploy-client smoke"},
        effective_concurrency=effective_concurrency,
        concurrency_limit=None if effective_concurrency is None else "serving.max_rows",
    )


def make_slo(max_ms: float, percentile: Percentile = Percentile.P50, segment: str = "chat") -> Slo:
    """An objective on TPOT."""
    return Slo(segment=segment, metric=MetricName.TPOT, percentile=percentile, max_ms=max_ms)


@dataclass
class MockTransport:
    """Answers every request with `num_tokens` tokens, `tokens_on`/1 a message, after settable delays."""

    ttft_s: float = 0.001
    gap_s: float = 0.0005
    num_tokens: int = 6
    tokens_on: int = 2
    refuse: frozenset[str] = frozenset()  # request ids answered with an error
    die_after: int | None = None  # requests after which the server is gone
    death: Exception | None = None
    requests: list[GenerationRequest] = field(default_factory=list)
    in_flight: int = 0
    max_in_flight: int = 0
    num_closed: int = 0

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[Message, None]:
        """Stream the made-up answer."""
        self.requests.append(request)
        if self.death is not None and self.die_after is not None and len(self.requests) > self.die_after:
            raise self.death
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.ttft_s)
            if request.request_id in self.refuse:
                raise RequestRefusedError("text_input: too long")
            burst = self.tokens_on if request.num_draft_tokens else 1
            num_tokens = min(self.num_tokens, request.max_tokens)
            num_messages = -(-num_tokens // burst)
            for number in range(num_messages):
                if number:
                    await asyncio.sleep(self.gap_s)
                ids = tuple(range(number * burst, min((number + 1) * burst, num_tokens)))
                completion = None
                if number == num_messages - 1:
                    completion = self._completion(request, num_tokens, num_messages)
                yield Message(time.monotonic_ns(), "x" * len(ids), ids, completion)
        finally:
            self.in_flight -= 1
            self.num_closed += 1

    def _completion(self, request: GenerationRequest, num_tokens: int, num_messages: int) -> Completion:
        is_on = bool(request.num_draft_tokens)
        return Completion(
            finish_reason="length",
            input_token_count=7,
            output_token_count=num_tokens,
            num_steps=num_messages,
            total_draft_tokens=4 * num_messages if is_on else 0,
            total_accepted_draft_tokens=num_tokens - num_messages,
            speculation="on" if is_on else "off:request",
            speculation_stats="measured",
        )
