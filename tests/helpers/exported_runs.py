"""Made-up records with times a test can reckon with, and their export for another tool."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.run_summaries import cell, run_summary
from specdeploy.run_contract import Acceptance, Arm, FailureKind, Load, RequestRecord, RunSummary
from specdeploy.units import NS_PER_MS, NS_PER_S
from specdeploy_client.interchange.files import ExportFormat, export_run

ACCEPTANCE = Acceptance(
    num_steps=20,
    num_draft_tokens=80,
    num_accepted_tokens=44,
    acceptance_rate=0.55,
    mean_acceptance_length=3.2,
    rate_per_pos=(0.9, 0.6),
)


def exported_record(index: int = 0, arm: Arm = Arm.OFF, load: Load | None = None, **changes: Any) -> RequestRecord:
    """Due at `index` s, sent 2 ms later, messages of 1, 2, 1 tokens 50, 70 and 100 ms after the send."""
    load = load or Load(4)
    send_ns = index * NS_PER_S + 2 * NS_PER_MS
    message_ns = tuple(send_ns + gap * NS_PER_MS for gap in (50, 70, 100))
    facts: dict[str, Any] = {
        "request_id": f"r{index}",
        "segment": "chat",
        "concurrency": load.concurrency,
        "request_rate": load.request_rate,
        "arm": arm,
        "block": index // 2,
        "index": index,
        "prompt_id": f"p{index}",
        "scheduled_ns": index * NS_PER_S,
        "send_ns": send_ns,
        "end_ns": message_ns[-1],
        "message_ns": message_ns,
        "message_tokens": (1, 2, 1),
        "output_ids": (1, 2, 3, 4),
        "text": "words",
        "input_token_count": 10,
        "output_token_count": 4,
        "num_steps": 3,
        "num_draft_tokens": 9,
        "num_accepted_tokens": 1,
    }
    return RequestRecord.model_validate({**facts, **changes})


def failed_record(index: int) -> RequestRecord:
    """A refused request."""
    return exported_record(
        index, error="refused: too long", failure=FailureKind.REFUSED, message_ns=(), message_tokens=()
    )


def exported_summary(load: Load | None = None, **changes: Any) -> RunSummary:
    """Both arms of one cell, the on arm with its acceptance."""
    load = load or Load(4)
    cells = [cell(Arm.OFF, load, goodput=3.5), cell(Arm.ON, load, acceptance=ACCEPTANCE)]
    return run_summary((), cells, **changes)


def export(
    run_format: ExportFormat, folder: Path, records: Sequence[RequestRecord], summary: RunSummary | None = None
) -> tuple[Path, ...]:
    """`export_run` of the records with a summary that fits."""
    return export_run(run_format, summary or exported_summary(), records, folder)
