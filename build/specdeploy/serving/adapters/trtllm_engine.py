"""The engine lane: requests run on Triton models of TensorRT-LLM's C++ backend, called through BLS.

    draft_model               target, draft          neither decoupled; one call per round (engine_rounds)
    medusa, eagle, redrafter  target, target_plain   decoupled; a request that must not be drafted goes to target_plain
    lookahead                 target                 decoupled; (1, 1, 0) per request switches drafting off

What a call costs: every call of a draft_model request sends the whole text again. Engines for drafted targets need KV
block reuse, which finds all complete blocks (tokens_per_block, 32) of the text; the tokens of the last one are read
again, by the target and by the draft. A drafted round is one verification anyway, so this adds a few tokens to it. A
request without drafts pays one such context step per PLAIN_CHUNK tokens, also when it is off from the start: its time
is not quite that of a server without drafting.

The models need not be there when this one loads: Triton loads models in any order, and a dead draft costs drafting
only.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path

from specdeploy.contract import DeploymentPlan, EngineModel, EngineRecord, Method
from specdeploy.errors import RequestError, SpecDeployError
from specdeploy.manifest import CurrentBuild, load_manifest
from specdeploy.runtime.request import RowUpdate
from specdeploy.serving.adapters.base import Sink
from specdeploy.serving.adapters.draft_rounds import (
    CONSTRAINED,
    LOG_PROBS,
    LOGIT_BIAS,
    PENALTIES,
    SAMPLING,
    Emission,
    check_decoder,
    off_reason_of,
)
from specdeploy.serving.adapters.engine_rounds import EngineRounds
from specdeploy.serving.adapters.engine_stream import EngineStream, StreamRoute
from specdeploy.serving.adapters.engine_tensors import check_representable
from specdeploy.serving.adapters.request_pool import Job, RequestPool
from specdeploy.serving.bls import ModelCaller
from specdeploy.serving.request import ServingRequest
from specdeploy.serving.router import Route, route

LOOKAHEAD_OFF = (1, 1, 0)  # TensorRT-LLM examples/lookahead/README.md@7ed07f06
# The input behind a reason not to draft, where the two have different names.
_FIELD_OF = {
    CONSTRAINED: "guided_decoding_guide_type",
    LOGIT_BIAS: "embedding_bias_words, embedding_bias_weights",
    LOG_PROBS: "return_log_probs",
    PENALTIES: "repetition_penalty, presence_penalty, frequency_penalty",
    SAMPLING: "temperature, top_k, top_p",
}


class TrtllmEngineAdapter:
    """One thread per running request; `serving.max_rows` of them, as many as the engines take at once.

    Triton's Python backend serves the calls of a model, and the responses it sends, with 32 threads of its own, a call
    holding one until it is answered: beyond about 24 rows the server needs a larger
    `--backend-config=python,thread-pool-size` (python_backend src/python_be.cc@f9088ff6).
    """

    def __init__(
        self,
        build: CurrentBuild,
        engines_root: Path,
        caller: ModelCaller,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises SpecDeployError when the build's manifest does not name the engines that the method needs."""
        self._build = build
        self._method = build.config.speculation.method
        self._engines = _engines(build, engines_root)
        self._target = self._engines[EngineModel.TARGET]
        self._vocab_size = _vocab_size(engines_root / build.target_folder)
        self._stream = EngineStream(caller, vocab_size=self._vocab_size, deliver=self._deliver)
        self._rounds: EngineRounds | None = None
        if self._method is Method.DRAFT_MODEL:
            self._rounds = EngineRounds(
                caller,
                target=self._target,
                draft=self._engines[EngineModel.DRAFT],
                vocab_size=self._vocab_size,
                draft_vocab_size=None if build.draft_folder is None else _vocab_size(engines_root / build.draft_folder),
                deliver=self._deliver,
                clock=clock,
            )
        serving = build.config.serving
        self._pool = RequestPool(self._run, max_rows=serving.max_rows, max_queue=serving.max_queue)

    @property
    def plan(self) -> DeploymentPlan:
        """K by segment and load."""
        return self._build.plan

    @property
    def num_in_flight(self) -> int:
        """Requests accepted and not finished."""
        return self._pool.num_in_flight

    @property
    def num_slots_in_use(self) -> int:
        """Requests that an engine works on."""
        return self._pool.num_running

    def submit(self, request: ServingRequest, sink: Sink) -> None:
        """Start a request; everything about it, refusals included, reaches its sink."""
        try:
            self._check(request)
            self._pool.submit(request, sink)
        except SpecDeployError as error:  # RequestError, ShuttingDownError
            sink.fail(str(error))

    def close(self) -> None:
        """Fail what is in flight and stop the threads."""
        self._pool.close()

    def _run(self, job: Job) -> None:
        request = job.request
        max_output = min(request.max_tokens, self._max_text - len(request.prompt_ids))
        emission = Emission(job.request_id, request, max_output, job.sink.accept)
        if self._rounds is None:
            self._stream.run(job, emission, self._stream_route(request))
            return
        routed = self._routed(request)
        off_reason = off_reason_of(request, self._method)
        self._rounds.run(job, emission, lambda: routed.draft_len(self.num_in_flight), off_reason)

    def _deliver(self, job: Job, update: RowUpdate) -> None:
        if update.finish_reason is not None:
            self._pool.finish(job)
        job.sink.deliver(update)

    @property
    def _max_text(self) -> int:
        """Prompt plus output tokens of a request: the engine keeps the rest free for drafts (see engine_tensors)."""
        return self._target.max_seq_len - self._target.max_draft_len

    def _routed(self, request: ServingRequest) -> Route:
        return route(self.plan, segment=request.segment, num_draft_tokens=request.num_draft_tokens)

    def _check(self, request: ServingRequest) -> None:
        """Raises RequestError for what no engine of this deployment can do as asked."""
        check_representable(request)
        check_decoder(request, self._method)
        if len(request.prompt_ids) >= self._max_text:
            reason = f"{len(request.prompt_ids)} tokens leave no room for output in a context of {self._max_text}"
            raise RequestError("text_input", reason, "Shorten the prompt or raise serving.max_seq_len")
        if not request.prompt_ids:
            raise RequestError("text_input", "no tokens", "Send a prompt with at least one token")
        if max(request.prompt_ids) >= self._vocab_size:
            reason = f"token id {max(request.prompt_ids)} has no row in a vocabulary of {self._vocab_size}"
            remedy = "The tokenizer knows more tokens than the checkpoint: leave such tokens out of the prompt"
            raise RequestError("text_input", reason, remedy)
        section = self._build.config.tensorrt_llm
        if request.guide is not None and (section is None or section.guided_decoding_backend != "xgrammar"):
            reason = "engines enforce a guide with xgrammar only (tensorrt_llm.guided_decoding_backend)"
            raise RequestError("guided_decoding_guide_type", reason, "Leave the guide out")
        if self._rounds is None:
            self._stream_route(request)  # refuses what it has no place for

    def _stream_route(self, request: ServingRequest) -> StreamRoute:
        """Where a request goes with a method that drafts inside the engine, by the load at its start.

        Raises RequestError where drafting cannot be switched as the request needs it.
        """
        off_reason = off_reason_of(request, self._method)
        asked, depth = request.num_draft_tokens, self.plan.max_draft_len
        if asked is not None and 0 < asked < depth:
            reason = f"{asked}: method {self._method} drafts {depth} tokens or none"
            raise RequestError("num_draft_tokens", reason, f"Send 0, {depth}, or leave it out")
        is_on = off_reason is None and self._routed(request).draft_len(max(1, self.num_in_flight)) > 0
        if self._method is Method.LOOKAHEAD:
            return self._lookahead_route(is_on=is_on, off_reason=off_reason)
        if not is_on and EngineModel.TARGET_PLAIN in self._engines:
            return StreamRoute(EngineModel.TARGET_PLAIN, is_on=False, off_reason=off_reason)
        if off_reason is not None or asked == 0:
            field = "num_draft_tokens" if off_reason is None else _FIELD_OF.get(off_reason, off_reason)
            reason = "needs an engine without drafting, and there is none here (tensorrt_llm.plain_instance: swap)"
            raise RequestError(field, reason, "Leave it out, or deploy with plain_instance: beside")
        # The plan may say off and nothing can be switched: that takes another start of the server.
        return StreamRoute(EngineModel.TARGET, is_on=True, off_reason=None)

    def _lookahead_route(self, *, is_on: bool, off_reason: str | None) -> StreamRoute:
        sizes = self._build.config.speculation.lookahead
        built = (sizes.window_size, sizes.ngram_size, sizes.verification_set_size)
        return StreamRoute(EngineModel.TARGET, is_on, off_reason, built if is_on else LOOKAHEAD_OFF)


def _engines(build: CurrentBuild, engines_root: Path) -> dict[EngineModel, EngineRecord]:
    engines = {record.model: record for record in load_manifest(engines_root, build.build_id).engines}
    needed = {EngineModel.TARGET}
    if build.config.speculation.method is Method.DRAFT_MODEL:
        needed.add(EngineModel.DRAFT)
    if missing := sorted(needed - engines.keys()):
        names = ", ".join(missing)
        remedy = f"Run `make engines DEPLOYMENT={build.deployment}`"
        raise SpecDeployError(f"{engines_root / build.build_id}/manifest.json: engines: {names} is missing. {remedy}")
    return engines


def _vocab_size(folder: Path) -> int:
    """Rows of the vocabulary, as config.json says. Raises SpecDeployError."""
    try:
        return int(json.loads((folder / "config.json").read_text())["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecDeployError(f"{folder}/config.json: vocab_size cannot be read ({error!r}). Build again") from None
