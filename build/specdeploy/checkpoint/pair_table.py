"""A PairReport for people: both checkpoints side by side, the tensors of a head, the lanes, then every finding."""

from collections.abc import Callable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from specdeploy.checkpoint.pair_findings import CONSENT_CODES
from specdeploy.checkpoint.pair_serving import describe_precision
from specdeploy.checkpoint_contract import CheckpointInfo, PairFinding, PairReport, PairVerdict, Severity, TensorOrigin
from specdeploy.units import format_bytes

_STYLE_OF_VERDICT = {
    PairVerdict.IDENTICAL: "bold green",
    PairVerdict.COMPATIBLE: "bold yellow",
    PairVerdict.INCOMPATIBLE: "bold red",
}
_STYLE_OF_SEVERITY = {Severity.FAILURE: "bold red", Severity.WARNING: "yellow", Severity.INFO: "dim"}
_STYLE_OF_ORIGIN = {TensorOrigin.MISSING: "bold red", TensorOrigin.BORROWED_FROM_TARGET: "yellow"}


def render_pair(report: PairReport) -> RenderableType:
    """Everything a person needs to decide, failures first and the verdict last, where the eye is."""
    parts: list[RenderableType] = [_facts_table(report)]
    if report.draft is not None and report.draft.head is not None and report.draft.head.tensors:
        parts.append(_tensor_table(report.draft))
    parts.append(_lane_table(report))
    if report.first_differing_ids:
        parts.append(_differing_table(report))
    parts += [line for found in report.findings for line in finding_lines(found)]
    parts.append(verdict_line(report))
    return Group(*parts)


def verdict_line(report: PairReport) -> Text:
    """`verdict: compatible (0 failures, 2 warnings)`."""
    failures = sum(found.severity is Severity.FAILURE for found in report.findings)
    warnings = sum(found.severity is Severity.WARNING for found in report.findings)
    counts = f" ({failures} failure{'s' * (failures != 1)}, {warnings} warning{'s' * (warnings != 1)})"
    draft = "" if report.draft is not None else ", no draft checkpoint to compare"
    text = Text.assemble("verdict: ", (str(report.verdict), _STYLE_OF_VERDICT[report.verdict]), counts, draft)
    if report.digest is not None:
        text.append(f"\npair digest of its build: {report.digest}")
    return text


def finding_lines(found: PairFinding) -> Iterator[Text]:
    """Four lines: what and where, the facts, why it matters, what to do; a fifth where a build needs consent."""
    yield Text.assemble((f"{found.severity}", _STYLE_OF_SEVERITY[found.severity]), f" [{found.code}] {found.subject}")
    yield Text(f"  {found.detail}")
    yield Text(f"  why:    {found.why}", style="dim")
    yield Text(f"  remedy: {found.remedy}", style="dim")
    if found.severity is Severity.WARNING and found.code in CONSENT_CODES:
        yield Text(f"  build:  refused without --allow {found.code}", style="dim")


def _table(*columns: str) -> Table:
    table = Table(show_edge=False, pad_edge=False, box=None, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _facts_table(report: PairReport) -> Table:
    infos = [report.target] if report.draft is None else [report.target, report.draft]
    table = _table("", *["target", "draft"][: len(infos)])
    for label, show in _ROWS:
        cells = [show(info) for info in infos]
        if any(cells):
            table.add_row(label, *(escape(cell or "-") for cell in cells))
    if report.draft_cost_ratio is not None:
        table.add_row("draft/active cost", "", f"{report.draft_cost_ratio:.3g}")
    return table


def _size(count: int | None) -> str:
    if count is None:
        return ""
    return f"{count / 1e9:.2f}B" if count >= 1e8 else f"{count / 1e6:.2f}M"


def _parameters(info: CheckpointInfo) -> str:
    if info.num_parameters is None:
        return ""
    active = f", {_size(info.num_active_parameters)} active" if info.moe is not None else ""
    return f"{_size(info.num_parameters)}{active} (from {info.parameters_from or 'files'})"


def _layers(info: CheckpointInfo) -> str:
    if info.num_layers is None:
        return ""
    return (
        f"{info.num_layers}, hidden {info.hidden_size}, heads {info.num_heads}/{info.num_kv_heads} of {info.head_dim}"
    )


def _experts(info: CheckpointInfo) -> str:
    moe = info.moe
    if moe is None:
        return ""
    return f"{moe.num_experts_per_token} of {moe.num_experts} per token, {moe.num_shared_experts} shared"


def _number(count: int | None) -> str:
    return "" if count is None else str(count)


def _lm_head_rows(info: CheckpointInfo) -> str:
    sizes = info.vocabulary
    if sizes.lm_head_rows is None and info.tie_word_embeddings:
        return f"{_number(sizes.embedding_rows)} (tied to the embedding)"
    return _number(sizes.lm_head_rows)


def _positions(info: CheckpointInfo) -> str:
    rope = info.rope
    scaling = f", rope {rope.type}" + (f" x{rope.factor:g}" if rope.factor else "") if rope is not None else ""
    return f"{info.max_positions}{scaling}" if info.max_positions is not None else ""


def _special(info: CheckpointInfo) -> str:
    special = info.special_tokens
    eos = ", ".join(map(str, special.eos_token_ids)) or "none"
    template = special.chat_template_sha256
    return f"eos {eos}; chat template {template[:12] if template else 'none'}"


def _head(info: CheckpointInfo) -> str:
    head = info.head
    if head is None:
        return ""
    states = ", ".join(map(str, head.aux_states or ()))
    layers = f", reads states after {states} layers ({head.aux_layer_ids_source})" if states else ""
    return f"{head.layout}, generation {head.generation}{layers}"


def _switches(info: CheckpointInfo) -> str:
    switches = {} if info.head is None else info.head.norm_switches
    return ", ".join(f"{key} {str(value).lower()}" for key, value in switches.items())


def _kv(info: CheckpointInfo) -> str:
    size = info.kv_bytes_per_token
    return "" if size is None else f"{format_bytes(size)} per token ({info.kv_dtype or 'dtype not stated'})"


_ROWS: Sequence[tuple[str, Callable[[CheckpointInfo], str]]] = (
    ("checkpoint", lambda info: info.reference),
    ("kind", lambda info: f"{info.kind}, {info.architecture or 'architecture not stated'}"),
    ("layers", _layers),
    ("parameters", _parameters),
    ("experts", _experts),
    ("precision", describe_precision),
    ("tokenizer length", lambda info: _number(info.vocabulary.tokenizer_length)),
    ("config vocab_size", lambda info: _number(info.vocabulary.config_vocab_size)),
    ("lm_head rows", _lm_head_rows),
    ("positions", _positions),
    ("special tokens", _special),
    ("KV cache", _kv),
    ("head", _head),
    ("norm switches", _switches),
)


def _tensor_table(draft: CheckpointInfo) -> Table:
    table = _table("tensor the head needs", "origin")
    for name, origin in (draft.head.tensors if draft.head is not None else {}).items():
        table.add_row(escape(name), Text(origin, style=_STYLE_OF_ORIGIN.get(origin, "")))
    return table


def _lane_table(report: PairReport) -> Table:
    table = _table("lane", "method", "serves it", "versions, reason")
    for fit in report.lanes:
        answer = Text("yes", style="green") if fit.can_serve else Text("no")
        if not fit.can_serve and fit.reason.startswith("unknown"):
            answer = Text("unknown", style="yellow")
        said = f"{fit.versions}: {fit.reason}" if fit.versions else fit.reason
        table.add_row(str(fit.lane), str(fit.method), answer, escape(said))
    return table


def _differing_table(report: PairReport) -> Table:
    table = _table("id", "target piece", f"draft piece ({report.num_differing_ids} ids differ)")
    for entry in report.first_differing_ids:
        table.add_row(str(entry.token_id), escape(entry.target or "none"), escape(entry.draft or "none"))
    return table
