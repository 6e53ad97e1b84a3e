"""A `ModelCaller` whose answers a test writes down."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from helpers.engine_standins.caller import Call
from helpers.engine_standins.engine import Array

Answers = Iterable[Mapping[str, Array]]
Script = Callable[[Call], Answers | None]


def response(ids: Sequence[int], **scalars: int) -> dict[str, Any]:
    """One answer with these tokens; `scalars` are further tensors of one value."""
    tensors: dict[str, Any] = {
        "output_ids": np.array(ids, dtype=np.int32).reshape(1, 1, -1),
        "sequence_length": np.array([[len(ids)]], dtype=np.int32),
    }
    return tensors | {name: np.array([[value]], dtype=np.int32) for name, value in scalars.items()}


class ScriptedCaller:
    """`script` answers what it knows; None = `inner` is asked."""

    def __init__(self, inner: Any, script: Script) -> None:
        self.inner, self.script = inner, script

    def call(
        self,
        model: str,
        tensors: Mapping[str, Array],
        outputs: Sequence[str],
        *,
        request_id: str = "",
        decoupled: bool = False,
    ) -> Iterator[Mapping[str, Array]]:
        answers = self.script(Call(str(model), dict(tensors), tuple(outputs), request_id))
        if answers is None:
            yield from self.inner.call(model, tensors, outputs, request_id=request_id, decoupled=decoupled)
        else:
            yield from answers
