"""What a TensorRT-LLM engine behind Triton's C++ backend does with its tensors, on the torch runtime and a CPU.

Names, types and shapes are checked against the facts of the real model; the quirks are the real one's: the end id is
not part of the output, stop words are; a drafted call ends after one verification; counts are those of one call; room
for max_draft_len tokens is kept free; a draft that is too long or outside the vocabulary and streaming without
decoupling are errors. What its decoder acts on, and how, is in `decoder`.
"""

import itertools
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from helpers.engine_standins.decoder import DECODERS, Choice, adjusted, choose
from specdeploy.runtime.attention import Span
from specdeploy.runtime.model import DecoderModel
from specdeploy.trtllm.facts import TritonTensor, triton_model

Array = np.ndarray[Any, Any]
FACTS = triton_model("tensorrt_llm")
NUMPY_TYPES = {
    "INT32": np.int32, "INT64": np.int64, "UINT64": np.uint64, "UINT8": np.uint8, "FP16": np.float16,
    "FP32": np.float32, "BOOL": np.bool_, "STRING": np.object_,
}  # fmt: skip


class StandInError(Exception):
    """An error response."""


@dataclass(slots=True)
class Settings:
    """What was built and configured, and what should go wrong.

    `accepts`, of an engine that drafts for itself: the draft tokens that each verification accepts, over and over. The
    step that reads the prompt verifies none; every other drafts `max_draft_len` tokens and brings one message.
    """

    decoding: str | None = None  # trtllm-build's --speculative_decoding_mode
    accepts: tuple[int, ...] = ()
    max_draft_len: int = 0
    max_seq_len: int = 256
    decoupled: bool = False
    repeats_prompt: bool = False
    reports_counts: bool = True
    lookahead: tuple[int, int, int] | None = None
    step_s: float = 0.0
    fail_when: Path | None = None  # while this file exists, every call is an error
    die_when: Path | None = None  # when this file exists, the process ends inside the next call


def check_tensors(tensors: Mapping[str, Array]) -> None:
    """StandInError for a tensor the real model does not declare, or one of another type or shape."""
    declared = {tensor.name: tensor for tensor in FACTS.inputs}
    for name, value in tensors.items():
        if name not in declared:
            raise StandInError(f"unexpected inference input '{name}'")
        _check_tensor(declared[name], value)
    for tensor in FACTS.inputs:
        if not tensor.optional and tensor.name not in tensors:
            raise StandInError(f"expected input '{tensor.name}'")


def _check_tensor(tensor: TritonTensor, value: Array) -> None:
    expected = NUMPY_TYPES[tensor.data_type] if "$" not in tensor.data_type else value.dtype
    if value.dtype != expected:
        raise StandInError(f"input '{tensor.name}' is {value.dtype}, not {tensor.data_type}")
    dims = value.shape[1:]
    if value.shape[:1] != (1,) or len(dims) != len(tensor.dims):
        raise StandInError(f"input '{tensor.name}' has shape {value.shape}, not [1, {tensor.dims}]")
    if any(size not in (-1, dim) for size, dim in zip(tensor.dims, dims, strict=True)):
        raise StandInError(f"input '{tensor.name}' has shape {value.shape}, not [1, {tensor.dims}]")


def words_of(tensor: Array | None) -> list[tuple[int, ...]]:
    """Token sequences of a [1, 2, n] word list."""
    if tensor is None:
        return []
    ids, ends = tensor[0].tolist()
    words, start = [], 0
    for end in ends:
        if end < 0:
            break
        if not start < end <= len(ids):
            raise StandInError(f"Sparse list must not have out-of-bound offsets: {ends}")
        words.append(tuple(ids[start:end]))
        start = end
    return words


@dataclass(slots=True)
class _Generation:
    prompt: list[int]
    asked: int
    draft: list[int]
    stop_words: list[tuple[int, ...]]
    choice: Choice
    output: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    num_drafted: int = 0
    num_accepted: int = 0
    is_done: bool = False


class StandInEngine:
    """One engine. `respond` yields the responses of one request; requests run one after another."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        torch.set_num_threads(1)
        self.settings = settings
        self._decoder = DECODERS[settings.decoding]
        self._model = DecoderModel(
            folder, dtype=torch.float32, device=torch.device("cpu"), max_seq_len=settings.max_seq_len + 8
        )
        self.vocab_size = self._model.vocab_size
        self._cache = self._model.new_cache(1)
        slot = self._cache.allocate(self._cache.max_request_tokens)
        assert slot is not None
        self._slot = slot
        self._lock = threading.Lock()
        self._stopped: set[str] = set()

    def respond(
        self, tensors: Mapping[str, Array], outputs: list[str] | tuple[str, ...], request_id: str = ""
    ) -> Iterator[dict[str, Array]]:
        """StandInError is an error response."""
        check_tensors(tensors)
        if "stop" in tensors and bool(tensors["stop"].ravel()[0]):
            if not request_id:
                raise StandInError("Trying to stop a request but request ID is not provided")
            self._stopped.add(request_id)
            yield {}
            return
        is_streaming = "streaming" in tensors and bool(tensors["streaming"].ravel()[0])
        if is_streaming and not self.settings.decoupled:
            raise StandInError("Streaming is only supported if model is deployed using decoupled mode.")
        self._misbehave()
        with self._lock, torch.inference_mode():
            generation = self._read(tensors)
            for new in self._messages(generation, request_id):
                if is_streaming and not generation.is_done:
                    yield self._response(generation, new, tensors, outputs)
            new = new if is_streaming else generation.output
            yield self._response(generation, new, tensors, outputs)
        self._stopped.discard(request_id)

    def _misbehave(self) -> None:
        if self.settings.die_when is not None and self.settings.die_when.exists():
            import os

            self.settings.die_when.unlink()
            os._exit(1)
        if self.settings.fail_when is not None and self.settings.fail_when.exists():
            raise StandInError("Executor failed process requestId 7 due to the following error: out of memory")

    def _read(self, tensors: Mapping[str, Array]) -> _Generation:
        def scalar(name: str, default: Any) -> Any:
            return tensors[name].ravel()[0].item() if name in tensors else default

        settings = self.settings
        prompt = tensors["input_ids"][0].tolist()
        if scalar("input_lengths", 0) != len(prompt):
            raise StandInError("input_lengths is not the length of input_ids")
        draft = tensors["draft_input_ids"][0].tolist() if "draft_input_ids" in tensors else []
        if len(draft) > settings.max_draft_len:
            raise StandInError(
                f"Draft tokens length ({len(draft)}) exceeds maximum draft tokens length ({settings.max_draft_len})."
            )
        if any(not 0 <= token < self.vocab_size for token in [*prompt, *draft]):
            raise StandInError("Assertion failed: token id is out of the vocabulary; the executor has ended")
        self._check_lookahead(tensors)
        asked = int(scalar("request_output_len", 0))
        asked = min(asked, settings.max_seq_len - len(prompt) - (len(draft) or settings.max_draft_len))
        bias = tensors["embedding_bias"][0] if "embedding_bias" in tensors else None
        if bias is not None and len(bias) != self.vocab_size:
            raise StandInError(
                "The embedding bias shape is not as expected. Expected last dimension to be same as vocab size: "
                f"{self.vocab_size}."
            )
        choice = Choice(
            temperature=float(scalar("temperature", 1.0)),
            top_k=int(scalar("runtime_top_k", 0)),
            top_p=float(scalar("runtime_top_p", 0.0)),
            repetition_penalty=float(scalar("repetition_penalty", 1.0)),
            presence_penalty=float(scalar("presence_penalty", 0.0)),
            frequency_penalty=float(scalar("frequency_penalty", 0.0)),
            min_tokens=int(scalar("min_tokens", 0)),
            end_id=scalar("end_id", None),
            bad_words=tuple(words_of(tensors.get("bad_words_list"))),
            bias=bias,
            seed=int(scalar("seed", 0)),
        )
        return _Generation(prompt, asked, draft, words_of(tensors.get("stop_words_list")), choice)

    def _check_lookahead(self, tensors: Mapping[str, Array]) -> None:
        names = [name for name in tensors if name.startswith("lookahead_")]
        if not names:
            return
        if self.settings.lookahead is None or len(names) != 3:
            raise StandInError("Cannot set the request lookahead decoding configuration")
        order = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
        sizes = [int(tensors[name].ravel()[0]) for name in order]
        if any(size > built for size, built in zip(sizes, self.settings.lookahead, strict=True)):
            raise StandInError(f"lookahead {sizes} exceeds the built {self.settings.lookahead}")

    def _messages(self, generation: _Generation, request_id: str) -> Iterator[list[int]]:
        """The tokens of each message. An engine that drafts for itself brings those of a verification together."""
        steps = self._steps(generation, request_id)
        if not self.settings.accepts or request_id in self._stopped:
            yield from steps
            return
        yield next(steps)
        for accepted in itertools.cycle(self.settings.accepts):
            if generation.is_done:
                return
            generation.num_drafted += self.settings.max_draft_len
            new = [token for step in itertools.islice(steps, accepted + 1) for token in step]
            generation.num_accepted += max(0, len(new) - 1)
            yield new

    def _steps(self, generation: _Generation, request_id: str) -> Iterator[list[int]]:
        """One target forward each; the tokens it added."""
        cached = 0
        while not generation.is_done:
            if request_id in self._stopped or len(generation.output) >= generation.asked:
                generation.is_done = True
                yield []
                return
            time.sleep(self.settings.step_s)
            draft = generation.draft if not generation.output else []
            text = generation.prompt + generation.output
            fresh = [*text[cached:], *draft]
            logits = self._model.forward(
                fresh,
                [Span(0, len(fresh), self._slot, cached)],
                list(range(len(fresh) - len(draft) - 1, len(fresh))),
                self._cache,
            ).logits
            before = len(generation.output)
            cached = len(text) + self._commit(generation, draft, logits)
            if generation.draft or len(generation.output) >= generation.asked:
                generation.is_done = True
            yield generation.output[before:]

    def _commit(self, generation: _Generation, draft: list[int], logits: torch.Tensor) -> int:
        """Token by token, as the real decoder does; returns how many draft tokens were accepted."""
        for index in range(len(draft) + 1):
            token = self._choose(generation, logits[index])
            if token == generation.choice.end_id:
                generation.is_done = True
                return index
            generation.output.append(token)
            generation.log_probs.append(float(torch.log_softmax(logits[index], -1)[token]))
            is_accepted = index < len(draft) and draft[index] == token
            generation.num_accepted += is_accepted
            text = tuple(generation.output)
            if any(text[-len(word) :] == word for word in generation.stop_words) or len(text) >= generation.asked:
                generation.is_done = True
                return index + is_accepted
            if not is_accepted:
                return index
        return len(draft)

    def _choose(self, generation: _Generation, logits: torch.Tensor) -> int:
        values = adjusted(logits.numpy(), generation.choice, self._decoder, generation.prompt, generation.output)
        return choose(values, generation.choice, self._decoder, len(generation.output))

    def _response(
        self,
        generation: _Generation,
        new: list[int],
        tensors: Mapping[str, Array],
        outputs: list[str] | tuple[str, ...],
    ) -> dict[str, Array]:
        if "output_ids" not in outputs or "sequence_length" not in outputs:
            raise StandInError("output_ids tensor must be present in list of output tensors")
        excludes = "exclude_input_in_output" in tensors and bool(tensors["exclude_input_in_output"].ravel()[0])
        shown = new
        is_streaming = "streaming" in tensors and bool(tensors["streaming"].ravel()[0])
        if not is_streaming and (self.settings.repeats_prompt or not excludes):
            shown = generation.prompt + new
        response: dict[str, Array] = {
            "output_ids": np.array(shown, dtype=np.int32).reshape(1, 1, -1),
            "sequence_length": np.array([[len(shown)]], dtype=np.int32),
        }
        if self.settings.reports_counts and "return_perf_metrics" in tensors:
            drafted, accepted = generation.num_drafted, generation.num_accepted
            if generation.draft:  # the length of the output less one is what is taken for accepted
                drafted, accepted = len(generation.draft), max(1, len(generation.output)) - 1
            response["total_draft_tokens"] = np.array([[drafted]], dtype=np.int32)
            response["total_accepted_draft_tokens"] = np.array([[accepted]], dtype=np.int32)
        if "return_log_probs" in tensors:
            log_probs = np.array(generation.log_probs, dtype=np.float32) * self._decoder.has_log_probs
            response["output_log_probs"] = log_probs.reshape(1, 1, -1)
        return {name: value for name, value in response.items() if name in outputs}
