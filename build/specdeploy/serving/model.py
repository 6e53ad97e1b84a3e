"""`TritonPythonModel` of the public model `llm`: tensors in, messages out, counters on the metrics port.

Runs inside Triton's Python backend. Requests are parsed on Triton's thread and answered from the adapter's thread.
"""

import importlib.util
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

from specdeploy.contract import OTHER_SEGMENT, Lane
from specdeploy.errors import RequestError, SpecDeployError
from specdeploy.manifest import CurrentBuild, load_current_build
from specdeploy.runtime.request import RequestStats, RowUpdate
from specdeploy.serving.adapters.base import Adapter
from specdeploy.serving.detokenize import OutputText
from specdeploy.serving.late_answers import LateAnswers
from specdeploy.serving.metrics import ServingMetrics
from specdeploy.serving.request import ServingLimits, ServingRequest, parse_request
from specdeploy.serving.responses import final_tensors, message_tensors
from specdeploy.serving.router import route
from specdeploy.serving.tokenizer import count_emittable_ids, load_eos_ids, load_tokenizer

ENGINES_ROOT_VARIABLE = "SPECDEPLOY_ENGINES_ROOT"
CANARY_VARIABLE = "SPECDEPLOY_CANARY"
ERROR_PREFIX = "specdeploy: "  # lets `serve` find the cause of a failed start in Triton's log


class TritonPythonModel:
    """The four entry points Triton calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the deployment that config.pbtxt names. A failure is one line that says what to do."""
        try:
            parameters = json.loads(args["model_config"])["parameters"]
            deployment = parameters["deployment"]["string_value"]
            engines_root = Path(os.environ[ENGINES_ROOT_VARIABLE])
            build = load_current_build(engines_root, deployment)
            self._tokenizer = load_tokenizer(engines_root / build.target_folder)
            self._eos_ids = load_eos_ids(engines_root / build.target_folder)
            self._limits = _limits(build, self._tokenizer, engines_root / build.target_folder)
            self._is_canary = os.environ.get(CANARY_VARIABLE) == "1"
            self._adapter: Adapter = _load_adapter(build, engines_root, is_canary=self._is_canary)
            self._metrics = ServingMetrics(build, getattr(self._adapter, "num_threads", None), pb_utils.MetricFamily)
        except SpecDeployError as error:
            raise pb_utils.TritonModelException(f"{ERROR_PREFIX}{error}") from None
        self._segments = {plan.segment for plan in build.plan.segments}
        self._late_answers = LateAnswers()

    def execute(self, requests: list[Any]) -> None:
        """Start every request; answers follow through its response sender."""
        for request in requests:
            arrival_ns = time.time_ns()
            sender = request.get_response_sender()
            try:
                parsed = parse_request(_tensors(request), self._tokenizer, self._limits, self._eos_ids)
            except RequestError as error:
                _send_error(sender, str(error))
                continue
            except Exception as error:  # a bug: this request gets an answer and the others go on
                pb_utils.Logger.log_error(f"{ERROR_PREFIX}request parsing failed: {error!r}")
                _send_error(sender, f"internal error while reading the request: {error!r}")
                continue
            self._metrics.observe_load(self._adapter.num_in_flight + 1, self._adapter.num_slots_in_use)
            self._adapter.submit(parsed, self._responder(request, sender, parsed, arrival_ns))

    def finalize(self) -> None:
        """Fail what is in flight and stop the engine."""
        self._adapter.close()
        self._late_answers.close()

    def _responder(self, request: Any, sender: Any, parsed: ServingRequest, arrival_ns: int) -> "_Responder":
        segment = parsed.segment if parsed.segment in self._segments else OTHER_SEGMENT
        off_reason = route(
            self._adapter.plan,
            segment=parsed.segment,
            num_draft_tokens=parsed.num_draft_tokens,
            is_constrained=parsed.guide is not None,
            is_canary=self._is_canary,
        ).off_reason
        return _Responder(
            sender=sender,
            parsed=parsed,
            text=OutputText(self._tokenizer, parsed.stop_strings, min_tokens=parsed.sampling.min_tokens),
            requested_outputs=frozenset(request.requested_output_names()),
            off_reason=off_reason,
            arrival_ns=arrival_ns,
            on_finish=lambda stats: self._finish(segment, stats),
            late_answers=self._late_answers,
        )

    def _finish(self, segment: str, stats: RequestStats) -> None:
        self._metrics.count(segment, stats)
        self._metrics.observe_load(self._adapter.num_in_flight, self._adapter.num_slots_in_use)


class _Responder:
    """The sink of one request: turns row updates into Triton responses."""

    def __init__(
        self,
        *,
        sender: Any,
        parsed: ServingRequest,
        text: OutputText,
        requested_outputs: frozenset[str],
        off_reason: str,
        arrival_ns: int,
        on_finish: Callable[[RequestStats], None],
        late_answers: LateAnswers,
    ) -> None:
        self._sender = sender
        self._late_answers = late_answers
        self._parsed = parsed
        self._text = text
        self._requested_outputs = requested_outputs
        self._off_reason = off_reason
        self._arrival_ns = arrival_ns
        self._first_token_ns: int | None = None
        self._on_finish = on_finish
        self._pending_ids: list[int] = []
        self._log_probs: list[float] = []
        self._pending_text = "" if parsed.exclude_input else parsed.prompt
        self._num_output = 0
        self._cum_log_prob = 0.0

    def is_cancelled(self) -> bool:
        """Whether the client cancelled or its stream is gone."""
        return bool(self._sender.is_cancelled())

    def accept(self, token_id: int) -> bool:
        """Take one output token; True when it completes a stop string."""
        return self._text.accept(token_id)

    def deliver(self, update: RowUpdate) -> None:
        """Send a message for this step when streaming, the whole answer at the end otherwise."""
        now_ns = time.time_ns()
        if update.token_ids and self._first_token_ns is None:
            self._first_token_ns = now_ns
        self._pending_ids.extend(update.token_ids)
        self._log_probs.extend(update.log_probs or ())
        self._cum_log_prob += sum(update.log_probs or ())
        self._num_output += len(update.token_ids)
        is_final = update.finish_reason is not None
        if not (is_final or self._parsed.stream):
            return
        self._pending_text += self._text.take_delta(is_final=is_final)
        tensors = message_tensors(self._pending_text, self._pending_ids, self._log_probs, self._parsed)
        if is_final:
            self._on_finish(update.stats)
            tensors |= final_tensors(
                update,
                self._parsed,
                num_output=self._num_output,
                cum_log_prob=self._cum_log_prob,
                off_reason=self._off_reason,
                times_ns=(self._arrival_ns, self._first_token_ns, now_ns),
            )
        self._send(tensors, is_final=is_final)
        self._pending_text = ""
        self._pending_ids = []
        self._log_probs = []

    def fail(self, message: str) -> None:
        """End the request with an error."""
        self._on_finish(RequestStats())
        self._send_last(lambda: _send_error(self._sender, message))

    def _send(self, tensors: dict[str, np.ndarray[Any, Any]], *, is_final: bool) -> None:
        response = pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, value) for name, value in tensors.items() if name in self._requested_outputs]
        )
        if is_final:
            final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            self._send_last(lambda: self._sender.send(response, flags=final))
        else:
            self._sender.send(response, flags=0)

    def _send_last(self, send: Callable[[], None]) -> None:
        """At once, or in a moment where the client has gone: see `late_answers`."""
        if self.is_cancelled():
            self._late_answers.send_later(send)
        else:
            send()


def _tensors(request: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Input tensors by name, refusing more than one prompt per request."""
    tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
    return {name: value[0] if value.ndim > 1 else value for name, value in tensors.items()}


def _send_error(sender: Any, message: str) -> None:
    response = pb_utils.InferenceResponse(error=pb_utils.TritonError(message))
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _load_adapter(build: CurrentBuild, engines_root: Path, *, is_canary: bool) -> Adapter:
    # Imported late: the other lanes' containers need not carry what this one needs.
    if build.config.lane is Lane.TRTLLM_ENGINE:
        from specdeploy.serving.adapters.trtllm_engine import TrtllmEngineAdapter
        from specdeploy.serving.bls import TritonCaller

        return TrtllmEngineAdapter(build, engines_root, TritonCaller(pb_utils))
    if build.config.lane is Lane.TRTLLM_LLMAPI:
        from specdeploy.serving.adapters.trtllm_llmapi import TrtllmLlmapiAdapter

        return TrtllmLlmapiAdapter(build, engines_root)
    from specdeploy.serving.adapters.torch import TorchAdapter

    return TorchAdapter(build, engines_root, is_canary=is_canary)


def _limits(build: CurrentBuild, tokenizer: Tokenizer, folder: Path) -> ServingLimits:
    longest = max(len(piece.encode()) for piece in tokenizer.get_vocab())
    limits = ServingLimits(build.config.serving.max_seq_len, count_emittable_ids(tokenizer, folder), longest)
    section = build.config.tensorrt_llm
    if section is not None:
        return replace(limits, serves_guides=section.guided_decoding_backend is not None)
    if importlib.util.find_spec("xgrammar") is None:
        reason = "guides are enforced by the package xgrammar, which is not installed where this server runs"
        return replace(limits, no_guides_reason=reason)
    return replace(limits, serves_guides=True)
