"""Does this draft fit this target? Proven from files alone, in seconds, without a GPU: every misfit, each with its why.

identical      same tokens, same rows, same special tokens and chat template
compatible     it differs, and every difference is listed
incompatible   at least one failure; it would run slower than without a draft, or not at all
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from specdeploy.checkpoint.embedding_sample import EmbeddingSample, sample_embeddings
from specdeploy.checkpoint.info import CheckpointFiles, describe_checkpoint, read_checkpoint_files
from specdeploy.checkpoint.pair_embeddings import find_borrowed_embeddings
from specdeploy.checkpoint.pair_findings import CONSENT_CODES, WHY, finding
from specdeploy.checkpoint.pair_heads import find_draft_presence, find_head_problems, find_kind_mismatch
from specdeploy.checkpoint.pair_serving import (
    draft_cost_ratio,
    find_cost,
    find_facts_missing,
    find_parallelism_problems,
    find_quantization,
    find_short_contexts,
    judge_lanes,
)
from specdeploy.checkpoint.pair_vocabulary import (
    compare_token_maps,
    find_head_vocabulary,
    find_row_mismatches,
    find_special_token_differences,
    find_token_differences,
    find_vocab_map_problems,
    first_differing_ids,
    token_map_sha256,
)
from specdeploy.checkpoint.safetensors_header import TensorEntry, read_tensor
from specdeploy.checkpoint.tokenizer import TokenMap
from specdeploy.checkpoint.vocab_maps import VocabMaps
from specdeploy.checkpoint_contract import (
    CheckpointInfo,
    CheckpointKind,
    PairFinding,
    PairReport,
    PairVerdict,
    Severity,
)
from specdeploy.contract import Lane, Method
from specdeploy.errors import CheckpointError
from specdeploy.manifest import pair_digest

MAX_DRAFT_COST_RATIO = 0.25
_EMBEDDING = "embed_tokens.weight"

_METHOD_OF_KIND = {
    CheckpointKind.CAUSAL_LM: Method.DRAFT_MODEL,
    CheckpointKind.EAGLE: Method.EAGLE,
    CheckpointKind.EAGLE3: Method.EAGLE3,
    CheckpointKind.MEDUSA: Method.MEDUSA,
}
# Facts about how a pair runs: they make nothing about it different.
_NO_DIFFERENCE = frozenset(
    {
        "facts-missing",
        "tokenizer-borrowed",
        "aux-layers",
        "head-defaults",
        "embeddings-same",
        "embeddings-borrowed",
        "draft-quantization",
    }
)
_SEVERITIES = tuple(reversed(Severity))  # failures first


@dataclass(frozen=True, slots=True)
class PairSettings:
    """How the pair is to be run. None = not decided: rules that need it judge every possibility, or are skipped."""

    method: Method | None = None
    lane: Lane | None = None
    max_seq_len: int | None = None
    tensor_parallel: int = 1
    max_draft_cost_ratio: float = MAX_DRAFT_COST_RATIO
    draft_tensor_parallel: int | None = None  # None = as the target


@dataclass(frozen=True, slots=True)
class PairContents:
    """What was read beside the facts: the two id -> bytes maps, `d2t`/`t2d` of the draft, embeddings side by side.

    A map is None where there is no tokenizer file. `draft_vocab_size` is what the draft's config states.
    """

    target_tokens: TokenMap | None = None
    draft_tokens: TokenMap | None = None
    maps: VocabMaps = field(default_factory=VocabMaps)
    draft_vocab_size: int | None = None
    target_is_trimmed: bool = False
    embeddings: EmbeddingSample | None = None


def method_of(draft: CheckpointInfo | None) -> Method:
    """The method a checkpoint is made for; n-gram drafts need none."""
    return Method.NGRAM if draft is None else _METHOD_OF_KIND[draft.kind]


def inspect_pair(
    target: Path,
    draft: Path | None,
    settings: PairSettings,
    *,
    target_reference: str | None = None,
    draft_reference: str | None = None,
) -> PairReport:
    """Read both folders and compare them. Raises `CheckpointError` with everything that cannot be read."""
    problems: list[str] = []
    read: list[tuple[CheckpointFiles, CheckpointInfo]] = []
    for folder, reference in ((target, target_reference), (draft, draft_reference)):
        if folder is not None:
            try:
                files = read_checkpoint_files(folder)
                read.append((files, describe_checkpoint(files, reference=reference)))
            except CheckpointError as error:
                problems.append(str(error))
    if problems:
        raise CheckpointError("\n".join(problems))
    target_files, target_info = read[0]
    draft_files, draft_info = read[1] if draft is not None else (None, None)
    return compare_pair(target_info, draft_info, read_contents(target_files, draft_files, draft_info), settings)


def read_contents(
    target: CheckpointFiles, draft: CheckpointFiles | None, draft_info: CheckpointInfo | None
) -> PairContents:
    """The few small tensors that a comparison needs beside the facts and the tokenizers."""
    target_is_trimmed = target.find("d2t") is not None
    if draft is None or draft_info is None:
        return PairContents(target_tokens=target.tokens, target_is_trimmed=target_is_trimmed)
    stated = draft.config.get("draft_vocab_size")
    found = [draft.find(name) for name in ("d2t", "t2d")]
    return PairContents(
        target_tokens=target.tokens,
        draft_tokens=draft.tokens,
        maps=VocabMaps(*(None if entry is None else read_tensor(entry) for entry in found)),
        draft_vocab_size=stated if type(stated) is int else None,
        target_is_trimmed=target_is_trimmed,
        embeddings=None if draft_info.head is None else _sample(target.find(_EMBEDDING), draft.find(_EMBEDDING)),
    )


def _sample(target: TensorEntry | None, draft: TensorEntry | None) -> EmbeddingSample | None:
    """Embeddings side by side where both carry readable ones."""
    if target is None or draft is None or any(len(e.shape) != 2 or 0 in e.shape for e in (target, draft)):
        return None
    try:
        return sample_embeddings(target, draft)
    except CheckpointError:  # quantised embeddings: their values cannot be compared with plain ones
        return None


def compare_pair(
    target: CheckpointInfo, draft: CheckpointInfo | None, contents: PairContents, settings: PairSettings
) -> PairReport:
    """Judge a pair. `draft` None = a method without a checkpoint of its own. A pure function of what was read."""
    method = settings.method or method_of(draft)
    ratio = draft_cost_ratio(target, draft, num_kept=None if contents.maps.d2t is None else len(contents.maps.d2t))
    is_trimmed = not contents.maps.is_absent
    lanes, lane_findings = judge_lanes(target, draft, method, settings.lane, is_trimmed=is_trimmed)
    findings = [*_find_about_target(target, contents), *find_short_contexts(target, draft, *_limits(settings))]
    findings += find_parallelism_problems(target, draft, settings.tensor_parallel, settings.draft_tensor_parallel)
    findings += find_draft_presence(target, draft, method)
    if draft is not None:
        findings += find_kind_mismatch(draft, method)
        findings += find_row_mismatches("draft", draft, is_trimmed=is_trimmed)
        findings += _compare_vocabularies(target, draft, contents, settings.lane)
        findings += find_borrowed_embeddings(target, draft)
        findings += find_head_problems(target, draft, contents.embeddings)
        findings += find_quantization(target, draft, settings.lane)
        findings += find_cost(target, draft, ratio, settings.max_draft_cost_ratio)
    findings += [*lane_findings, *find_facts_missing(target, draft)]
    findings.sort(key=lambda found: _SEVERITIES.index(found.severity))
    both = (contents.target_tokens, contents.draft_tokens)
    differences = compare_token_maps(both[0], both[1]) if both[0] is not None and both[1] is not None else None
    shown = first_differing_ids(both[0], both[1], differences) if both[0] and both[1] and differences else ()
    return PairReport(
        target=target,
        draft=draft,
        verdict=_verdict(findings),
        findings=tuple(findings),
        num_differing_ids=0 if differences is None else differences.num_differing,
        first_differing_ids=shown,
        draft_cost_ratio=ratio,
        lanes=lanes,
    )


def _limits(settings: PairSettings) -> tuple[int | None, Lane | None]:
    return settings.max_seq_len, settings.lane


def _find_about_target(target: CheckpointInfo, contents: PairContents) -> Iterator[PairFinding]:
    yield from find_row_mismatches("target", target, is_trimmed=contents.target_is_trimmed)
    if contents.target_is_trimmed:
        remedy = "Use the untrimmed checkpoint as target; a trimmed one may only draft"
        detail = "holds d2t: its lm_head was cut to a reduced vocabulary"
        yield finding("target-is-trimmed", Severity.FAILURE, f"target {target.reference}", detail, remedy)


def _compare_vocabularies(
    target: CheckpointInfo, draft: CheckpointInfo, contents: PairContents, lane: Lane | None
) -> Iterator[PairFinding]:
    target_tokens, draft_tokens = contents.target_tokens, contents.draft_tokens
    if target_tokens is None or (draft_tokens is None and draft.head is None):
        role, info = ("target", target) if target_tokens is None else ("draft", draft)
        detail = "holds neither tokenizer.json nor tokenizer.model"
        remedy = "Put the tokenizer files of this checkpoint into its folder"
        yield finding("tokenizer-missing", Severity.FAILURE, f"{role} {info.reference}", detail, remedy)
    elif draft_tokens is None:
        detail = "carries no tokenizer of its own"
        yield finding("tokenizer-borrowed", Severity.INFO, f"draft {draft.reference}", detail, "Nothing to do")
    else:
        yield from find_token_differences(target, draft, target_tokens, draft_tokens, lane)
        yield from find_special_token_differences(target, draft, target_tokens, draft_tokens)
    yield from find_head_vocabulary(target, draft)
    yield from find_vocab_map_problems(target, draft, contents.maps, contents.draft_vocab_size)


def _verdict(findings: Iterable[PairFinding]) -> PairVerdict:
    found = list(findings)
    if any(one.severity is Severity.FAILURE for one in found):
        return PairVerdict.INCOMPATIBLE
    return PairVerdict.COMPATIBLE if any(one.code not in _NO_DIFFERENCE for one in found) else PairVerdict.IDENTICAL


def digest_of_pair(
    target: Path, *, target_digest: str, draft_digest: str | None, lane: Lane, versions: Mapping[str, str]
) -> str:
    """The pair digest of a build: file digests from its sources, tokenizer and special ids from the folder `target`.

    Raises `CheckpointError` when the folder cannot be read or has no tokenizer.
    """
    files = read_checkpoint_files(target)
    if files.tokens is None:
        raise CheckpointError(f"{target}: holds neither tokenizer.json nor tokenizer.model. Fetch the checkpoint again")
    special = describe_checkpoint(files).special_tokens
    return pair_digest(
        target=target_digest,
        draft=draft_digest,
        tokenizer_map=token_map_sha256(files.tokens),
        special_ids=special.model_dump(mode="json", exclude={"chat_template_sha256"}),
        chat_template=special.chat_template_sha256,
        lane=lane,
        versions=versions,
    )


def describe_blocking(findings: Iterable[PairFinding]) -> str:
    """Findings that forbid a pair, as one message: subject, code, facts, why, remedy; one line each."""
    return "\n".join(
        f"{one.subject}: [{one.code}] {one.detail}. Why it matters: {one.why}. {one.remedy}" for one in findings
    )


def check_allowed_codes(allow: Iterable[str]) -> None:
    """Raise `CheckpointError` for a code that no finding can have: a consent with a typing error is none."""
    if unknown := sorted(set(allow) - WHY.keys()):
        raise CheckpointError(f"--allow {unknown[0]}: no finding has this code. Codes: {', '.join(sorted(WHY))}")


def blocking_findings(
    report: PairReport, *, strict: bool, allow: Iterable[str] = (), for_build: bool = False
) -> tuple[PairFinding, ...]:
    """Failures always; `for_build` also warnings of `CONSENT_CODES`, `strict` every warning, unless in `allow`.

    Raises `CheckpointError` for a code in `allow` that no finding can have.
    """
    allowed = frozenset(allow)
    check_allowed_codes(allowed)

    def blocks(found: PairFinding) -> bool:
        if found.severity is not Severity.WARNING:
            return found.severity is Severity.FAILURE
        return found.code not in allowed and (strict or (for_build and found.code in CONSENT_CODES))

    return tuple(found for found in report.findings if blocks(found))
