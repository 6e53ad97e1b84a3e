"""One answer as it arrives: what messages carry becomes `Message`s, the last of them with a `Completion`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specdeploy_client.tensors import closing_counts, completion_of
from specdeploy_client.transport import Completion, Message, ProtocolError
from specdeploy_client.transports.exchange import Exchange


class AnswerInProgress:
    """How far one answer got. `is_complete`: a message with a completion was made; `is_over`: nothing may follow.

    `holds_last`: the server does not say in a message that it is the last, but ends its stream after it. Each message
    is then passed on when the next has come, so that the last one can carry the completion; its stamp does not move.
    `is_cumulative`: messages repeat the whole text, of which only what is new is passed on.
    """

    __slots__ = (
        "_counts",
        "_exchange",
        "_has_ids",
        "_held",
        "_holds_last",
        "_is_cumulative",
        "_last_ns",
        "_whole_text",
        "is_complete",
        "is_over",
    )

    def __init__(self, exchange: Exchange, *, is_cumulative: bool = False, holds_last: bool = False) -> None:
        self._exchange = exchange
        self._is_cumulative = is_cumulative
        self._holds_last = holds_last
        self._held: Message | None = None
        self._whole_text = ""
        self._counts: dict[str, Any] = {}
        self._last_ns = 0
        self._has_ids = False
        self.is_complete = False
        self.is_over = False

    @property
    def has_begun(self) -> bool:
        """Whether a message came."""
        return self._last_ns > 0

    def take(
        self,
        recv_ns: int,
        text: str,
        output_ids: tuple[int, ...] | None,
        counts: Mapping[str, Any] | None = None,
        is_last: bool = False,
    ) -> Message | None:
        """What just arrived, or with `holds_last` what arrived before it; `counts` are its other outputs by name."""
        self._last_ns = recv_ns
        self._has_ids = output_ids is not None
        if self._is_cumulative:
            text = self._new_text(text)
        if counts is None and not is_last:
            return self._passed_on(Message(recv_ns, text, output_ids))
        self._counts |= counts or {}
        completion = closing_counts(self._counts) if is_last else completion_of(self._counts)
        self.is_over = is_last
        return self._passed_on(Message(recv_ns, text, output_ids, self._completed(completion)))

    def take_counted(self, message: Message) -> Message | None:
        """Like `take`, for a message that is made already."""
        self._last_ns = message.recv_ns
        self._has_ids = message.output_ids is not None
        return self._passed_on(message)

    def close(self, completion: Completion | None = None) -> Message | None:
        """The last message, if it is still to be passed on. An answer whose last message went out before the server
        said that it was the last gets one more: without text and tokens, and with the stamp of that message, so that
        it moves no latency."""
        self.is_over = True
        if self.is_complete:
            return self.held()
        completion = self._completed(completion or closing_counts(self._counts))
        if (held := self.held()) is not None:
            return replace(held, completion=completion)
        return Message(self._last_ns, "", () if self._has_ids else None, completion)

    def held(self) -> Message | None:
        """The message that waits for its successor, to be passed on without one: the stream broke."""
        held, self._held = self._held, None
        return held

    def _passed_on(self, message: Message) -> Message | None:
        if not self._holds_last:
            return message
        earlier, self._held = self._held, message
        return earlier

    def _completed(self, completion: Completion | None) -> Completion | None:
        if completion is None:
            return None
        self.is_complete = True
        return replace(completion, connect_ns=self._exchange.connect_ns)

    def _new_text(self, text: str) -> str:
        """What `text`, the whole answer so far, adds to what was known of it."""
        if not text.startswith(self._whole_text):
            raise ProtocolError("the server repeated the whole text so far, and now another text than before")
        delta = text[len(self._whole_text) :]
        self._whole_text = text
        return delta
