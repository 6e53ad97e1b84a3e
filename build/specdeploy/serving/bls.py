"""Calls from `llm` to other Triton models of the same server (business logic scripting, BLS).

Usable from any thread: the Python backend waits for the answer without holding the interpreter lock
(python_backend src/infer_request.cc@f9088ff6). A model that is decoupled must be called as decoupled and the other
way round; the backend answers the wrong way with an error (src/request_executor.cc@f9088ff6).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from specdeploy.errors import SpecDeployError

Array = np.ndarray[Any, Any]


class ModelCallError(SpecDeployError):
    """A call to another Triton model failed. `model` and `reason` are its parts, for who words it differently."""

    def __init__(self, model: str, reason: str) -> None:
        self.model = model
        self.reason = reason
        super().__init__(f"the Triton model '{model}' failed: {reason}")


class ModelCaller(Protocol):
    """Something that can run a request on a named Triton model."""

    def call(
        self,
        model: str,
        tensors: Mapping[str, Array],
        outputs: Sequence[str],
        *,
        request_id: str = "",
        decoupled: bool = False,
    ) -> Iterator[Mapping[str, Array]]:
        """The responses of `model`: one, or any number when `decoupled`. Tensors have the batch dimension in front.

        Raises ModelCallError, at the latest while the responses are read.
        """


class TritonCaller:
    """`ModelCaller` on the Python backend; `pb_utils` is the module `triton_python_backend_utils`."""

    def __init__(self, pb_utils: Any) -> None:
        self._pb_utils = pb_utils

    def call(
        self,
        model: str,
        tensors: Mapping[str, Array],
        outputs: Sequence[str],
        *,
        request_id: str = "",
        decoupled: bool = False,
    ) -> Iterator[Mapping[str, Array]]:
        """See ModelCaller. Arrays are copies: the backend's own lie in shared memory that goes with the response."""
        request = self._pb_utils.InferenceRequest(
            model_name=model,
            requested_output_names=list(outputs),
            inputs=[self._pb_utils.Tensor(name, value) for name, value in tensors.items()],
            request_id=request_id,
        )
        try:
            answer = request.exec(decoupled=decoupled)
            for response in answer if decoupled else (answer,):
                if response.has_error():
                    raise ModelCallError(model, response.error().message())
                yield {tensor.name(): np.array(tensor.as_numpy()) for tensor in response.output_tensors()}
        except self._pb_utils.TritonModelException as error:
            raise ModelCallError(model, str(error)) from None
