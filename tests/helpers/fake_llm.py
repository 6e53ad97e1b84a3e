"""A stand-in for `tensorrt_llm`: as much of it as the LLM API lane uses, on a CPU.

Its shapes are those of NVIDIA/TensorRT-LLM: fields of SamplingParams and GuidedDecodingParams from
tensorrt_llm/sampling_params.py@000a01de, cumulative outputs and abort() from tensorrt_llm/executor/result.py@005bc848,
`DecodingBaseConfig.from_dict` from llm_args.py (blob 1520735490). Like the real ones they refuse unknown keywords,
and LLM takes no mapping as `speculative_config`.

What an LLM answers is a script (chunks of tokens, one per message) or the torch runtime of this project.
"""

import asyncio
import itertools
import math
import sys
from collections.abc import AsyncIterator, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from specdeploy.runtime.drafters import NgramDrafter
from specdeploy.runtime.engine import Engine
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.request import GenerationRequest, RowUpdate
from specdeploy.runtime.request import SamplingParams as RuntimeSampling


@dataclass(slots=True, kw_only=True)
class GuidedDecodingParams:
    json: Any = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    bad: Any = None
    bad_token_ids: list[int] | None = None
    stop: Any = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    embedding_bias: torch.Tensor | None = None
    n: int = 1
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    prompt_ignore_length: int | None = None
    min_p: float | None = None
    logprobs: int | None = None
    return_perf_metrics: bool = False
    guided_decoding: GuidedDecodingParams | None = None
    ignore_eos: bool = False
    detokenize: bool = True

    @property
    def stop_ids(self) -> frozenset[int]:
        """What ends the output there."""
        if self.ignore_eos:
            return frozenset()
        return frozenset({*([] if self.end_id is None else [self.end_id]), *(self.stop_token_ids or [])})


class Hang:
    """A message that never comes."""


HANG = Hang()
Chunk = tuple[int, ...] | BaseException | Hang
Script = Callable[[list[int], SamplingParams, bool], Iterable[Chunk]]


def count_up(prompt: list[int], params: SamplingParams, is_speculative: bool) -> Iterable[Chunk]:
    """A text that goes on as its last token says; three tokens at once where drafts are accepted."""
    size = 3 if is_speculative else 1
    yield (prompt[-1] + 1,)
    for first in itertools.count(prompt[-1] + 2, size):
        yield tuple(range(first, first + size))


@dataclass
class Behaviour:
    """What the stand-in does. `llms` are the objects that were made of it, in order.

    `counters`: `true` ones, `zero` as in versions that never write them, or `none`.
    """

    script: Script = count_up
    version: str = "1.2.1"
    counters: str = "true"
    has_decoding_iter: bool = True
    runs_torch: bool = False
    load_error: BaseException | None = None
    load_error_of_plain: Exception | None = None
    generate_error: Exception | None = None
    has_log_probs: bool = True
    end_reason: str = "length"
    message_s: float = 0.0
    llms: list["LLM"] = field(default_factory=list)


class RequestOutput:
    """Cumulative, and the same object at every message."""

    def __init__(self, llm: "LLM", prompt: list[int], params: SamplingParams) -> None:
        self.prompt_token_ids, self.sampling_params, self._llm = prompt, params, llm
        self.outputs = [
            SimpleNamespace(token_ids=[], logprobs=[], finish_reason=None, stop_reason=None, request_perf_metrics=None)
        ]
        self.finished = False
        self.aborted = False
        self.was_iterated_after_abort = False
        self._woken = asyncio.Event()
        self._drafted = self._accepted = 0
        if llm.behaviour.has_decoding_iter:
            self.decoding_iter = 0
            self.avg_decoded_tokens_per_iter: float | None = None
        self._chunks = self._from_torch() if llm.behaviour.runs_torch else self._from_script()

    def abort(self) -> None:
        self.aborted = True
        self._woken.set()
        if self._llm.engine is not None:
            self._llm.engine.cancel(str(id(self)))

    def __aiter__(self) -> "RequestOutput":
        return self

    async def __anext__(self) -> "RequestOutput":
        if self.finished:
            raise StopAsyncIteration
        self.was_iterated_after_abort |= self.aborted
        try:
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            self._end("cancelled" if self.aborted else self._llm.behaviour.end_reason)
            return self
        self._add(chunk)
        return self

    def _add(self, chunk: tuple[int, ...]) -> None:
        output, params = self.outputs[0], self.sampling_params
        room = params.max_tokens - len(output.token_ids)
        for token in chunk[:room]:
            output.token_ids.append(token)
            if params.logprobs and self._llm.behaviour.has_log_probs:
                entry = {token: SimpleNamespace(logprob=-token / 8, rank=2), -1: SimpleNamespace(logprob=0.0, rank=1)}
                output.logprobs.append(entry)
            if token in params.stop_ids:
                self._end("stop")
                if token != params.end_id and not params.include_stop_str_in_output:
                    output.token_ids.pop()
                break
        if self._llm.behaviour.has_decoding_iter:
            self.decoding_iter += 1
            self.avg_decoded_tokens_per_iter = len(output.token_ids) / self.decoding_iter
        if not self._llm.behaviour.runs_torch and self._llm.is_speculative and len(output.token_ids) > 1:
            self._drafted += self._llm.depth
            self._accepted += len(chunk) - 1
        if len(output.token_ids) >= params.max_tokens and not self.finished:
            self._end("length")
        self._count()

    def _count(self) -> None:
        if self._llm.behaviour.counters == "none" or not self.sampling_params.return_perf_metrics:
            return
        drafted, accepted = (self._drafted, self._accepted) if self._llm.behaviour.counters == "true" else (0, 0)
        counters = SimpleNamespace(total_draft_tokens=drafted, total_accepted_draft_tokens=accepted)
        self.outputs[0].request_perf_metrics = SimpleNamespace(speculative_decoding=counters)

    def _end(self, reason: str) -> None:
        self.finished = True
        self.outputs[0].finish_reason = reason

    async def _from_script(self) -> AsyncIterator[tuple[int, ...]]:
        behaviour = self._llm.behaviour
        for chunk in behaviour.script(self.prompt_token_ids, self.sampling_params, self._llm.is_speculative):
            await asyncio.sleep(behaviour.message_s)
            if isinstance(chunk, Hang):
                await self._woken.wait()
            if self.aborted:
                return
            if isinstance(chunk, BaseException):
                raise chunk
            assert not isinstance(chunk, Hang)
            yield chunk

    async def _from_torch(self) -> AsyncIterator[tuple[int, ...]]:
        updates: asyncio.Queue[RowUpdate] = asyncio.Queue()
        self._llm.run(str(id(self)), self.prompt_token_ids, self.sampling_params, updates)
        while True:
            update = await updates.get()
            self._drafted, self._accepted = update.stats.num_draft_tokens, update.stats.num_accepted_tokens
            yield update.token_ids
            if update.finish_reason is not None:
                return


class LLM:
    """One instance. `max_batch_size`, `max_seq_len` and `speculative_config` are read of its arguments."""

    def __init__(self, behaviour: Behaviour, arguments: dict[str, Any]) -> None:
        speculation = arguments.get("speculative_config")
        assert not isinstance(speculation, dict), "LLM takes a config object, not a mapping"
        if behaviour.load_error is not None:
            raise behaviour.load_error
        if behaviour.load_error_of_plain is not None and speculation is None:
            raise behaviour.load_error_of_plain
        self.behaviour, self.arguments = behaviour, arguments
        self.is_speculative = speculation is not None
        self.depth = speculation.values["max_draft_len"] if speculation is not None else 0
        self.requests: list[RequestOutput] = []
        self.was_shut_down = False
        self.engine: Engine | None = None
        self._updates: dict[str, asyncio.Queue[RowUpdate]] = {}
        self._pump: asyncio.Task[None] | None = None
        if behaviour.runs_torch:
            self.engine = self._make_engine()
        behaviour.llms.append(self)

    def generate_async(
        self, inputs: list[int], sampling_params: SamplingParams | None = None, *, streaming: bool = False
    ) -> RequestOutput:
        assert streaming
        assert sampling_params is not None
        assert all(type(token) is int for token in inputs)
        if self.behaviour.generate_error is not None:
            raise self.behaviour.generate_error
        self.requests.append(RequestOutput(self, inputs, sampling_params))
        return self.requests[-1]

    def shutdown(self) -> None:
        self.was_shut_down = True

    def _make_engine(self) -> Engine:
        arguments = self.arguments
        model = DecoderModel(
            Path(arguments["model"]),
            dtype=torch.float32,
            device=torch.device("cpu"),
            max_seq_len=arguments["max_seq_len"],
        )
        drafter = NgramDrafter(min_matching_ngram_size=1, max_matching_ngram_size=3) if self.is_speculative else None
        return Engine(model, drafter, max_rows=arguments["max_batch_size"], max_queue=1000, prefill_chunk=64)

    def run(
        self, request_id: str, prompt: list[int], params: SamplingParams, updates: "asyncio.Queue[RowUpdate]"
    ) -> None:
        """Start a request in the engine; its updates go to the queue."""
        assert self.engine is not None
        is_greedy = params.top_k == 1
        sampling = RuntimeSampling(
            temperature=0.0 if is_greedy else params.temperature or 1.0,
            top_k=params.top_k or 0,
            top_p=params.top_p or 1.0,
            seed=params.seed or 0,
        )
        self.engine.submit(
            GenerationRequest(
                request_id=request_id,
                prompt_ids=tuple(prompt),
                max_tokens=params.max_tokens,
                stop_ids=params.stop_ids,
                sampling=sampling,
                draft_len=lambda in_flight: self.depth,
            )
        )
        self._updates[request_id] = updates
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._step())

    async def _step(self) -> None:
        assert self.engine is not None
        while self.engine.num_in_flight:
            with torch.inference_mode():
                steps = self.engine.step()
            for update in steps:
                self._updates[update.request_id].put_nowait(update)
            await asyncio.sleep(0)


@dataclass(frozen=True)
class SpeculativeConfig:
    """What `DecodingBaseConfig.from_dict` makes of a mapping."""

    values: dict[str, Any]


class DecodingBaseConfig:
    """The table lookup of versions up to 1.2.1."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SpeculativeConfig:
        """Writes into its argument, as the real one does."""
        values = dict(data)
        if data.pop("decoding_type") not in ("NGram", "Eagle", "DraftTarget", "MTP"):
            raise ValueError(f"Invalid decoding type: {values['decoding_type']}")
        return SpeculativeConfig(values)


def make_modules(behaviour: Behaviour) -> dict[str, ModuleType]:
    """`tensorrt_llm` and the modules below it, by name."""
    contents: dict[str, dict[str, Any]] = {
        "tensorrt_llm": {
            "__version__": behaviour.version,
            "LLM": lambda **arguments: LLM(behaviour, arguments),
            "SamplingParams": SamplingParams,
        },
        "tensorrt_llm.sampling_params": {
            "SamplingParams": SamplingParams,
            "GuidedDecodingParams": GuidedDecodingParams,
        },
        "tensorrt_llm.llmapi": {},
        "tensorrt_llm.llmapi.llm_args": {"DecodingBaseConfig": DecodingBaseConfig},
    }
    modules = {}
    for name, values in contents.items():
        modules[name] = ModuleType(name)
        modules[name].__dict__.update(values)
    return modules


def install(behaviour: Behaviour, modules: MutableMapping[str, ModuleType] | None = None) -> None:
    """Make `import tensorrt_llm` find the stand-in in this process."""
    (sys.modules if modules is None else modules).update(make_modules(behaviour))


def expected_steps(num_tokens: int, chunk: int) -> int:
    """Messages of `count_up`: the first token alone, then chunks."""
    return 1 + math.ceil((num_tokens - 1) / chunk)
