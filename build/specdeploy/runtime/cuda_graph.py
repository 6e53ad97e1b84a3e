"""Work recorded once and replayed: a CUDA graph, or where there is no GPU the plain call in its place.

A graph replays its kernels on the addresses they had at capture, so what it reads is copied into the same tensors
before each replay and what it returns is overwritten by the next. Rules and warm-up:
https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

Result = TypeVar("Result")

# Libraries choose algorithms and allocate workspaces in their first calls, which capture forbids.
_WARM_UP_CALLS = 3


class GraphPool:
    """The memory that graphs of one device share. They must not run at the same time: one stream, one after another."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._handle = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def record(self, function: Callable[[], Result]) -> Callable[[], Result]:
        """A call that does what `function` does and returns the same tensors each time.

        `function` must be repeatable, as the warm-up runs it several times, and must neither wait for the GPU nor make
        tensors from host data. On a CPU the call is the function.
        """
        return _Graph(function, self.device, self._handle) if self.device.type == "cuda" else function


class _Graph(Generic[Result]):
    def __init__(self, function: Callable[[], Result], device: torch.device, pool: Any) -> None:
        with torch.cuda.device(device):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UP_CALLS):
                    function()
            torch.cuda.current_stream().wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, pool=pool):
                self._result = function()

    def __call__(self) -> Result:
        self._graph.replay()
        return self._result
