"""Checked requests and a sink that keeps what it is told, for tests of adapters."""

import threading
from dataclasses import replace
from typing import Any

from specdeploy.runtime.request import RowUpdate, SamplingParams
from specdeploy.serving.request import ServingRequest


def make_request(prompt_ids: tuple[int, ...] = (5, 6, 7), max_tokens: int = 12, **changes: Any) -> ServingRequest:
    """Greedy, without stop ids; fields of SamplingParams are given beside those of the request."""
    sampling_names = set(SamplingParams.__dataclass_fields__)
    sampling = SamplingParams(**{name: value for name, value in changes.items() if name in sampling_names})
    request = ServingRequest(
        prompt="",
        prompt_ids=prompt_ids,
        max_tokens=max_tokens,
        sampling=sampling,
        stop_ids=frozenset(),
        stop_strings=(),
        num_draft_tokens=None,
        segment="",
        stream=False,
        exclude_input=True,
        wants_log_probs=False,
        wants_perf_metrics=False,
        wants_input_count=False,
        wants_output_count=False,
    )
    return replace(request, **{name: value for name, value in changes.items() if name not in sampling_names})


class RecordingSink:
    """`done` is set by the end, after which nothing may follow. `stop_text`: these tokens end with a stop string."""

    def __init__(self, stop_text: tuple[int, ...] = ()) -> None:
        self.updates: list[RowUpdate] = []
        self.error: str | None = None
        self.accepted: list[int] = []
        self.is_gone = False
        self.done = threading.Event()
        self._stop_text = stop_text

    def is_cancelled(self) -> bool:
        return self.is_gone

    def accept(self, token_id: int) -> bool:
        self.accepted.append(token_id)
        return bool(self._stop_text) and tuple(self.accepted[-len(self._stop_text) :]) == self._stop_text

    def deliver(self, update: RowUpdate) -> None:
        assert not self.done.is_set(), "an update after the end"
        self.updates.append(update)
        if update.finish_reason is not None:
            self.done.set()

    def fail(self, message: str) -> None:
        assert not self.done.is_set(), "an error after the end"
        self.error = message
        self.done.set()

    @property
    def token_ids(self) -> list[int]:
        return [token for update in self.updates for token in update.token_ids]

    @property
    def last(self) -> RowUpdate:
        assert self.error is None, self.error
        return self.updates[-1]
