"""Did speculation change anything but the time? Pure: records and server counters in, `IntegrityReport` out.

float32: outputs on and off must be the same tokens; one difference fails. bfloat16 and float16: verifying K+1 tokens
and decoding one round differently, near-ties flip, and so does plain decoding at another batch size. There the rate of
differences on against off is judged beside the rate of off against off at another concurrency (the floor).
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from specdeploy.contract import Dtype
from specdeploy.run_contract import Arm, FailureKind, RequestRecord
from specdeploy.verdict_contract import IntegrityCheck, IntegrityReport, Status
from specdeploy_client.artifacts import INTEGRITY_FILE, write_model
from specdeploy_client.comparison.compare import Pair, group_cells, has_drafted, pair_by_prompt
from specdeploy_client.comparison.stats import excess_rate_p_value
from specdeploy_client.metrics import is_answered, is_cancelled, num_tokens
from specdeploy_client.server_facts import SegmentCounters

MAX_P_VALUE = 0.001  # a rate counts as clearly above the floor below this one-sided Fisher exact p
MIN_FLOOR_PAIRS = 8
_SEVERITY = (Status.PASS, Status.INCONCLUSIVE, Status.FAIL)


def worst(statuses: Sequence[Status]) -> Status:
    """FAIL before INCONCLUSIVE before PASS; nothing at all is inconclusive."""
    return max(statuses, key=_SEVERITY.index, default=Status.INCONCLUSIVE)


def check_integrity(
    records: Sequence[RequestRecord],
    *,
    deployment: str,
    build_id: str | None,
    dtype: str | None,
    server_counters: Mapping[str, SegmentCounters] | None,
    created_at: str,
) -> IntegrityReport:
    """Every check over `records`. `server_counters` is their increase over exactly these records, None if unread."""
    checks = (
        check_requests_finished(records),
        check_outputs(records, dtype),
        check_texts(records),
        check_reported_lengths(records),
        check_drafting(records),
        check_server_counters(records, server_counters),
    )
    return IntegrityReport(
        deployment=deployment,
        build_id=build_id,
        dtype=dtype,
        created_at=created_at,
        status=worst([check.status for check in checks]),
        checks=checks,
    )


def write_integrity(report: IntegrityReport, artifact_dir: Path, engines_root: Path) -> tuple[Path, ...]:
    """Write `report` beside the run and, when the build is known, under engines/integrity/."""
    paths = [artifact_dir / INTEGRITY_FILE]
    if report.build_id:
        paths.append(integrity_path(engines_root, report.build_id, report.deployment))
    for path in paths:
        write_model(path, report)
    return tuple(paths)


def integrity_path(engines_root: Path, build_id: str, deployment: str) -> Path:
    """Where the integrity report of a build lives: per deployment, because dtype and plan are not the build's."""
    return engines_root / "integrity" / f"{build_id}-{deployment}.json"


def check_requests_finished(records: Sequence[RequestRecord]) -> IntegrityCheck:
    """Every request ended without an error. A server that went away, or a client that was stopped, answered nothing
    wrong: such requests prove nothing either way."""
    failed = [record for record in records if not is_answered(record)]
    wrong = [r for r in failed if not is_cancelled(r) and r.failure is not FailureKind.UNREACHABLE]
    status = Status.FAIL if wrong else Status.INCONCLUSIVE if failed else _pass_if_any(records)
    first = next(iter(wrong or failed), None)
    detail = f"{first.request_id}: {first.error}" if first else f"{len(records)} requests finished"
    return _check("requests finished", status, detail, len(records), len(failed))


def check_outputs(records: Sequence[RequestRecord], dtype: str | None) -> IntegrityCheck:
    """Token ids on against off, per (segment, concurrency, prompt); see the head of this module."""
    pairs = _on_off_pairs(records)
    differing = [pair for pair in pairs if _differ(pair)]
    name = "output tokens on = off"
    if not pairs:
        return _check(name, Status.INCONCLUSIVE, "no prompt was answered both with and without speculation")
    if dtype is None:
        return _check(name, Status.INCONCLUSIVE, "the server does not say its dtype", len(pairs), len(differing))
    if dtype == Dtype.FLOAT32:
        status = Status.FAIL if differing else Status.PASS
        same = (
            "token for token" if any(off.output_ids for off, _ in pairs) else "as texts; the server sends no token ids"
        )
        detail = _divergence(differing[0]) if differing else f"{len(pairs)} answers are the same, {same}"
        return _check(name, status, detail, len(pairs), len(differing))
    status, detail = _judge_beside_floor(differing, len(pairs), _floor_pairs(records), dtype)
    return _check(name, status, detail, len(pairs), len(differing))


def check_texts(records: Sequence[RequestRecord]) -> IntegrityCheck:
    """Answers of the same tokens have the same text and the same finish reason: streaming in bursts damaged nothing."""
    pairs = [pair for pair in _on_off_pairs(records) if pair[0].output_ids and not _differ(pair)]
    differing = [(off, on) for off, on in pairs if off.text != on.text or (off.finish_reason != on.finish_reason)]
    status = Status.FAIL if differing else _pass_if_any(pairs)
    detail = "same tokens, same text, same finish reason" if pairs else "no two answers with the same tokens"
    if differing:
        off, on = differing[0]
        detail = f"{on.request_id}: {_first_text_difference(off, on)}"
    return _check("text on = off", status, detail, len(pairs), len(differing))


def check_reported_lengths(records: Sequence[RequestRecord]) -> IntegrityCheck:
    """Delivered ids == tokens summed over messages == `output_token_count` of the server; ids where it sends them."""
    name = "delivered = reported tokens"
    known = [r for r in records if is_answered(r) and None not in (r.output_token_count, r.message_tokens)]
    wrong = [r for r in known if {_num_delivered(r), num_tokens(r)} != {r.output_token_count}]
    if wrong:
        first = wrong[0]
        detail = f"{first.request_id}: {_num_delivered(first)} delivered, {first.output_token_count} reported"
        return _check(name, Status.FAIL, detail, len(known), len(wrong))
    detail = f"{len(known)} answers" if known else "the server does not report tokens both per message and in all"
    return _check(name, _pass_if_any(known), detail, len(known))


def check_drafting(records: Sequence[RequestRecord]) -> IntegrityCheck:
    """Every cell drafted in its on arm and never in its off arm: the arms are what their labels say."""
    name = "arms are what they claim"
    problems: list[str] = []
    unused: list[str] = []
    num_cells = 0
    for (segment, load), arms in group_cells(records).items():
        place = f"{segment} at {load}"
        finished = {arm: list(filter(is_answered, arm_records)) for arm, arm_records in arms.items()}
        num_cells += 1
        if finished.get(Arm.ON) and not has_drafted(finished[Arm.ON]):
            said = sorted({r.speculation or "nothing" for r in finished[Arm.ON]})
            note = f"{place}: nothing drafted with speculation on (server says: {', '.join(said)})"
            # Short answers and text without repeats give a drafter nothing to propose; off is another thing. A server
            # that neither counts nor says anything proves nothing.
            is_told = said != ["nothing"] or any(r.num_draft_tokens is not None for r in finished[Arm.ON])
            (problems if is_told and said != ["on"] else unused).append(note)
        problems += [
            f"{place}: {arm} arm drafted"
            for arm in (Arm.OFF, Arm.FLOOR)
            if any(r.num_draft_tokens or r.speculation == "on" for r in finished.get(arm, ()))
        ]
    if problems:
        return _check(name, Status.FAIL, "; ".join(problems + unused), num_cells, len(problems))
    if unused:
        return _check(name, Status.INCONCLUSIVE, "; ".join(unused), num_cells)
    return _check(name, _pass_if_any(records), f"{num_cells} cells", num_cells)


def check_server_counters(
    records: Sequence[RequestRecord], server_counters: Mapping[str, SegmentCounters] | None
) -> IntegrityCheck:
    """Per segment: the increase of the server's counters == the sums of what it told this client."""
    name = "server counters = client sums"
    if server_counters is None:
        return _check(name, Status.INCONCLUSIVE, "the server's counters were not read")
    if not all(map(is_answered, records)):
        return _check(name, Status.INCONCLUSIVE, "failed requests are counted by the server but report nothing here")
    if any(r.num_draft_tokens is None or r.num_accepted_tokens is None for r in records):
        return _check(name, Status.INCONCLUSIVE, "the server does not report counts per request")
    segments = sorted({record.segment for record in records})
    problems: list[str] = []
    only_more = True
    for segment in segments:
        own = [record for record in records if record.segment == segment]
        told = (sum(r.num_draft_tokens or 0 for r in own), sum(r.num_accepted_tokens or 0 for r in own))
        counters = server_counters.get(segment, SegmentCounters())
        counted = (counters.num_draft_tokens, counters.num_accepted_tokens)
        if told != counted:
            only_more &= counted[0] >= told[0] and counted[1] >= told[1]
            problems.append(
                f"{segment}: the server counted {counted[0]} drafted and {counted[1]} accepted, "
                f"told this client {told[0]} and {told[1]}"
            )
    if problems:
        # Counting more can be another client's traffic and proves nothing; counting less cannot be.
        hint = " (another client sent requests meanwhile, or the counters are wrong)" if only_more else ""
        status = Status.INCONCLUSIVE if only_more else Status.FAIL
        return _check(name, status, "; ".join(problems) + hint, len(segments), len(problems))
    return _check(name, _pass_if_any(segments), "drafted and accepted agree in " + ", ".join(segments), len(segments))


def _judge_beside_floor(
    differing: Sequence[Pair], num_pairs: int, floor: Sequence[Pair], dtype: str
) -> tuple[Status, str]:
    """Status and detail for dtypes that round: the on/off difference rate beside the off/off rate."""
    rate = f"{dtype}: {len(differing)} of {num_pairs} answers differ on/off"
    if len(floor) < MIN_FLOOR_PAIRS:
        if not differing:
            return Status.PASS, f"{rate}; identical although {dtype} does not promise it"
        return Status.INCONCLUSIVE, (
            f"{rate}; no floor to judge it by: the same prompts off at another concurrency are needed "
            f"({len(floor)} pairs, at least {MIN_FLOOR_PAIRS})"
        )
    floor_differing = sum(map(_differ, floor))
    p_value = excess_rate_p_value(len(differing), num_pairs, floor_differing, len(floor))
    detail = f"{rate}, {floor_differing} of {len(floor)} differ off/off at another concurrency (p = {p_value:.2g})"
    if p_value < MAX_P_VALUE:
        return Status.FAIL, f"{detail}: clearly more than rounding explains. {_divergence(differing[0])}"
    return Status.PASS, f"{detail}: no more than rounding explains"


def _on_off_pairs(records: Sequence[RequestRecord]) -> list[Pair]:
    return [
        pair
        for arms in group_cells(records).values()
        for pair in pair_by_prompt(arms.get(Arm.OFF, ()), arms.get(Arm.ON, ()), same_block=True)
    ]


def _floor_pairs(records: Sequence[RequestRecord]) -> list[Pair]:
    """Off against off (or floor) at the next other concurrency, same segment and prompt."""
    plain = [record for record in records if record.arm in (Arm.OFF, Arm.FLOOR)]
    levels = sorted({record.load for record in plain}, key=lambda load: load.value)
    by_level = [[record for record in plain if record.load == level] for level in levels]
    return [pair for low, high in pairwise(by_level) for pair in pair_by_prompt(low, high, same_block=False)]


def _differ(pair: Pair) -> bool:
    """Whether two answers are not the same: by their tokens, or by their texts where neither has token ids."""
    off, on = pair
    if not off.output_ids and not on.output_ids:
        return off.text != on.text
    return off.output_ids != on.output_ids


def _num_delivered(record: RequestRecord) -> int:
    """Token ids that arrived; tokens by message where the server sends no ids."""
    return len(record.output_ids) or num_tokens(record) or 0


def _divergence(pair: Pair) -> str:
    """Where two answers part."""
    off, on = pair
    if not off.output_ids and not on.output_ids:
        return f"{on.request_id}: {_first_text_difference(off, on)}"
    common = min(len(off.output_ids), len(on.output_ids))
    position = next((i for i in range(common) if off.output_ids[i] != on.output_ids[i]), common)
    tokens = [str(r.output_ids[position]) if position < len(r.output_ids) else "the end" for r in pair]
    return (
        f"first divergence: {on.segment} at {on.load}, prompt {on.prompt_id}, token {position}: "
        f"off {tokens[0]}, on {tokens[1]}"
    )


def _first_text_difference(off: RequestRecord, on: RequestRecord) -> str:
    if off.text == on.text:
        return f"finish_reason is {on.finish_reason} on, {off.finish_reason} off"
    common = min(len(off.text), len(on.text))
    position = next((i for i in range(common) if off.text[i] != on.text[i]), common)
    on_part, off_part = (record.text[position : position + 12] for record in (on, off))
    return f"text differs at character {position}: {on_part!r} on, {off_part!r} off"


def _pass_if_any(compared: Sequence[object]) -> Status:
    """A check that compared nothing proves nothing."""
    return Status.PASS if compared else Status.INCONCLUSIVE


def _check(name: str, status: Status, detail: str, num_compared: int = 0, num_different: int = 0) -> IntegrityCheck:
    return IntegrityCheck(
        name=name, status=status, detail=detail, num_compared=num_compared, num_different=num_different
    )
