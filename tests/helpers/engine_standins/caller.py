"""`ModelCaller` over stand-in engines in this process; every call is kept for the test to look at."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from helpers.engine_standins.engine import Array, StandInEngine, StandInError
from specdeploy.serving.bls import ModelCallError


@dataclass(frozen=True, slots=True)
class Call:
    model: str
    tensors: Mapping[str, Array]
    outputs: tuple[str, ...]
    request_id: str

    def value(self, name: str) -> object:
        return self.tensors[name].ravel().tolist()[0]

    @property
    def is_probe(self) -> bool:
        """Whether this call finds out if the model repeats the prompt."""
        is_short = self.value("request_output_len") == 1 and self.tensors["input_ids"].shape == (1, 2)
        return is_short and "return_perf_metrics" not in self.tensors


class StandInCaller:
    def __init__(self, engines: Mapping[str, StandInEngine], on_call: Callable[[Call], None] | None = None) -> None:
        self.engines = dict(engines)
        self.on_call = on_call
        self._lock = threading.Lock()
        self._calls: list[Call] = []

    @property
    def calls(self) -> list[Call]:
        return [call for call in self._calls if not call.is_probe]

    def of(self, model: str) -> list[Call]:
        return [call for call in self.calls if call.model == model and "stop" not in call.tensors]

    @property
    def stops(self) -> list[Call]:
        return [call for call in self.calls if "stop" in call.tensors]

    def call(
        self,
        model: str,
        tensors: Mapping[str, Array],
        outputs: Sequence[str],
        *,
        request_id: str = "",
        decoupled: bool = False,
    ) -> Iterator[Mapping[str, Array]]:
        call = Call(str(model), dict(tensors), tuple(outputs), request_id)
        with self._lock:
            self._calls.append(call)
        if self.on_call is not None:
            self.on_call(call)
        engine = self.engines.get(model)
        if engine is None:
            raise ModelCallError(model, f"Model '{model}' is not ready.")
        if engine.settings.decoupled != decoupled:
            raise ModelCallError(
                model, "Model is using the decoupled. The current BLS request call doesn't support it."
            )
        try:
            yield from engine.respond(tensors, tuple(outputs), request_id)
            if decoupled:
                yield {}  # the empty response that says it was the last, as Triton gives it to the caller
        except StandInError as error:
            raise ModelCallError(model, str(error)) from None
