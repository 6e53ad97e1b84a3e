"""A stand-in engine as a Python model of Triton; its parameters are `checkpoint` and `settings` (JSON)."""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from helpers.engine_standins.engine import FACTS, Array, Settings, StandInEngine, StandInError

RESHAPED = {tensor.name for tensor in FACTS.inputs if tensor.reshape_to_scalar}


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        settings = json.loads(parameters["settings"]["string_value"])
        for name in ("fail_when", "die_when"):
            settings[name] = None if settings.get(name) is None else Path(settings[name])
        settings["accepts"] = tuple(settings["accepts"])
        if settings.get("lookahead") is not None:
            settings["lookahead"] = tuple(settings["lookahead"])
        self._engine = StandInEngine(Path(parameters["checkpoint"]["string_value"]), Settings(**settings))

    def execute(self, requests: list[Any]) -> list[Any] | None:
        if not self._engine.settings.decoupled:
            return [self._answer(request) for request in requests]
        for request in requests:
            arguments = (request.get_response_sender(), *self._parts(request))
            threading.Thread(target=self._stream, args=arguments, daemon=True).start()
        return None

    def _parts(self, request: Any) -> tuple[dict[str, Array], list[str], str]:
        tensors = {tensor.name(): np.array(tensor.as_numpy()) for tensor in request.inputs()}
        # Triton has checked the shapes against the config; what it reshaped to a scalar comes as [batch].
        tensors = {name: value.reshape(1, 1) if name in RESHAPED else value for name, value in tensors.items()}
        return tensors, list(request.requested_output_names()), request.request_id()

    def _answer(self, request: Any) -> Any:
        try:
            (response,) = self._engine.respond(*self._parts(request))
        except StandInError as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        return _response(response)

    def _stream(self, sender: Any, tensors: dict[str, Array], outputs: list[str], request_id: str) -> None:
        try:
            for response in self._engine.respond(tensors, outputs, request_id):
                sender.send(_response(response))
        except StandInError as error:
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _response(tensors: dict[str, Array]) -> Any:
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in tensors.items()])
