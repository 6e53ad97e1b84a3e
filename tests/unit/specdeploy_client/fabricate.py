"""Made-up observations and a transport with settable latencies, for the client's tests."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specdeploy.run_contract import (
    Arm,
    CellConditions,
    FailureKind,
    MetricName,
    Objective,
    Percentile,
    PlannedDraftLen,
    RequestRecord,
    RunSummary,
    Slo,
)
from specdeploy.units import NS_PER_MS
from specdeploy_client.records.table import ArmColumns, RecordTable
from specdeploy_client.server_facts import ServerFacts
from specdeploy_client.summary import RunFacts, TargetFacts, summarise_run
from specdeploy_client.transport import Completion, GenerationRequest, Message, RequestRefusedError


def make_record(
    arrivals_ms: Sequence[float] = (50, 60, 70),
    sizes: Sequence[int] | None = (1, 1, 1),
    *,
    segment: str = "chat",
    concurrency: int | None = 1,
    request_rate: float | None = None,
    arm: Arm = Arm.OFF,
    block: int = 0,
    index: int = 0,
    prompt_id: str = "chat-01",
    send_ms: float = 0.0,
    lag_ms: float = 0.0,
    ids: Sequence[int] | None = None,
    text: str = "hello",
    error: str | None = None,
    failure: FailureKind | None = None,
    finish_reason: str | None = None,
    max_tokens: int | None = None,
    ignore_eos: bool | None = None,
    steps: int | None = None,
    drafted: int | None = None,
    accepted: int | None = None,
    reported: int | None = -1,
    speculation: str | None = None,
) -> RequestRecord:
    """A request due at `send_ms`, sent `lag_ms` later, whose messages of `sizes` tokens arrived `arrivals_ms` after it
    was due. `sizes` None: the server does not say how many tokens a message carries."""
    due_ns = int(send_ms * NS_PER_MS)
    times = [due_ns + int(arrival * NS_PER_MS) for arrival in arrivals_ms]
    output_ids = tuple(range(sum(sizes or ()))) if ids is None else tuple(ids)
    load = f"c{concurrency}" if request_rate is None else f"r{request_rate:g}"
    return RequestRecord(
        request_id=f"{segment}-{load}-{arm}-{prompt_id}",
        segment=segment,
        concurrency=concurrency if request_rate is None else None,
        request_rate=request_rate,
        arm=arm,
        block=block,
        index=index,
        prompt_id=prompt_id,
        scheduled_ns=due_ns,
        send_ns=due_ns + int(lag_ms * NS_PER_MS),
        end_ns=times[-1] if times else due_ns,
        message_ns=tuple(times),
        message_tokens=None if sizes is None else tuple(sizes),
        output_ids=output_ids,
        text=text,
        max_tokens=max_tokens,
        ignore_eos=ignore_eos,
        error=error,
        failure=failure,
        finish_reason=finish_reason or (None if error else "length"),
        input_token_count=10,
        output_token_count=len(output_ids) if reported == -1 else reported,
        num_steps=steps,
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        speculation=speculation,
    )


def make_cell(
    segment: str = "chat",
    concurrency: int | None = 1,
    *,
    request_rate: float | None = None,
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
            "request_rate": request_rate,
            "block": index // 5,
            "index": index,
            "prompt_id": f"p{index}",
            "max_tokens": num_tokens,
        }
        sizes = [1] * num_tokens
        off = [80 + step * (i + 1) * float(rng.uniform(0.98, 1.02)) for i in range(num_tokens)]
        on_sizes = [1] + [2] * ((num_tokens - 1) // 2)
        on_step = step * (num_tokens - 1) / speedup / (len(on_sizes) - 1)
        on = [80 + step + on_step * i * float(rng.uniform(0.98, 1.02)) for i in range(len(on_sizes))]
        at = 10_000.0 * index
        records.append(
            make_record(
                sorted(off),
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
                sorted(on),
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


def make_columns(records: Sequence[RequestRecord]) -> ArmColumns:
    """The columns of records of one arm of one cell."""
    ((columns,),) = (arms.values() for arms in RecordTable.from_records(records).cells.values())
    return columns


def make_summary(
    records: Sequence[RequestRecord],
    *,
    deployment: str = "demo",
    build_id: str | None = "b1",
    dtype: str | None = "float32",
    expected_concurrency: int = 4,
    planned: Sequence[PlannedDraftLen] = (PlannedDraftLen(segment="chat", draft_len=4),),
    slos: Sequence[Slo] = (),
    objectives: Sequence[Objective] = (),
    conditions: Sequence[CellConditions] = (),
    environment: dict[str, str] | None = None,
    effective_concurrency: int | None = None,
    interrupted: str | None = None,
) -> RunSummary:
    """A RunSummary of `records` as the bench would write it."""
    target = TargetFacts(deployment, expected_concurrency, tuple(slos), tuple(planned))
    facts = ServerFacts(
        build_id=build_id,
        lane="torch",
        method="ngram",
        dtype=dtype,
        threads=1,
        max_draft_len=4,
        effective_concurrency=effective_concurrency,
        concurrency_limit=None if effective_concurrency is None else "serving.max_rows",
    )
    run = RunFacts(
        budget="quick",
        random_seed=0,
        started_at="2026-01-01T12:00:00+00:00",
        duration_s=93.4,
        environment=environment or {"command": "specdeploy-client smoke"},
        objectives=tuple(objectives),
        conditions=tuple(conditions),
        interrupted=interrupted,
    )
    return summarise_run(RecordTable.from_records(records), target, facts, run)


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
