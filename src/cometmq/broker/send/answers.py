"""Answers of sends: at once, or when the messages are durable.

Where sends wait (SYNC_FLUSH, SYNC_MASTER), the messages of a run whose producers wait are answered
together, when the last of them has passed the barrier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat

from cometmq.broker.base.state import BrokerState
from cometmq.broker.base.store_failure import when_topic_saved
from cometmq.broker.send.kinds import Send
from cometmq.codec.ids import offset_message_ids
from cometmq.errors import ResponseCode
from cometmq.net.server import ServerConnection
from cometmq.store.base.results import PutResult
from cometmq.wire.command.command import FLAG_ONEWAY, RemotingCommand
from cometmq.wire.header.fast_decode import SendCommand
from cometmq.wire.header.fast_encode import SendResponseEncoder

__all__ = ["Request", "SendAnswers"]


Request = RemotingCommand | SendCommand
_Stored = tuple[PutResult, Send, str | None]
"""Where the store put a message, the message, its recall handle."""


class SendAnswers:
    """Makes the answers to sends for one broker."""

    def __init__(self, state: BrokerState) -> None:
        config = state.config
        self._state = state
        self._barrier = state.barrier
        self._encoder = SendResponseEncoder(config.region_id, trace_on=config.trace_on)
        self._passed = SendResponseEncoder(
            config.region_id, trace_on=config.trace_on, barrier=state.barrier.level
        )
        """For messages that have passed the barrier."""

    def refused(self, request: Request, code: int, remark: str) -> bytes:
        """Return the answer of a send that is not stored."""
        return self._encoder.encode_refusal(request.opaque, request.serialize_type, code, remark)

    def stored(
        self,
        request: Request,
        result: PutResult,
        queue_id: int,
        uniq_key: str | None,
        recall_handle: str | None = None,
        code: int = ResponseCode.SUCCESS,
        *,
        has_waited: bool = False,
    ) -> bytes:
        """Return the answer of one message, or of a batch."""
        if result.physical_offsets:
            message_id = offset_message_ids(self._state.host, result.physical_offsets)
        else:
            message_id = f"{self._state.message_id_prefix}{result.physical_offset:016X}"
        encoder = self._passed if has_waited else self._encoder
        return encoder.encode(
            request.opaque,
            request.serialize_type,
            queue_id,
            result.queue_offset,
            message_id,
            uniq_key,
            recall_handle,
            code,
        )

    def of_run(
        self,
        sends: Sequence[Send],
        results: Sequence[PutResult],
        handles: Sequence[str] | None,
        connection: ServerConnection,
    ) -> bytes:
        """Return the answers that leave now; those that wait for a flush are sent later.

        The first `len(results)` of `sends` are answered.
        """
        # There may be fewer results than sends: as the first argument they end the zip.
        stored: Iterable[_Stored] = zip(results, sends, handles or repeat(None), strict=False)
        if self._barrier.is_waiting:
            waiting: list[_Stored] = []
            ready: list[_Stored] = []
            for row in stored:
                (waiting if row[1].shape.is_flush_awaited else ready).append(row)
            if waiting:
                self._answer_passed(waiting, connection)
            stored = ready
        return self._answers(stored)

    def _answers(
        self,
        stored: Iterable[_Stored],
        code: int = ResponseCode.SUCCESS,
        *,
        has_waited: bool = False,
    ) -> bytes:
        # An answer names the queue that the message is for, even while it waits elsewhere.
        return b"".join(
            [
                self.stored(
                    send.request,
                    result,
                    send.real_queue_id,
                    send.uniq_key,
                    handle,
                    code,
                    has_waited=has_waited,
                )
                for result, send, handle in stored
                if not send.request.flag & FLAG_ONEWAY
            ]
        )

    def _answer_passed(self, stored: list[_Stored], connection: ServerConnection) -> None:
        """Answer all messages when the last one has passed the barrier."""

        def settle(code: int) -> None:
            answers = self._answers(stored, code, has_waited=code == ResponseCode.SUCCESS)
            if answers:
                connection.send(answers)

        self._barrier.when_passed(stored[-1][0].end_offset, settle)

    def checked(
        self,
        request: Request,
        connection: ServerConnection,
        topic: str,
        end_offset: int,
        make: Callable[[int, bool], bytes],
        *,
        is_flush_awaited: bool,
    ) -> bytes | None:
        """Answer a send that came through the checks and may have created its topic.

        `make` makes the answer from a code and whether the message has waited.  The answer leaves
        when the message has passed the barrier and a restart would find the topic.
        """
        if request.flag & FLAG_ONEWAY:
            return None
        if self._barrier.is_waiting and is_flush_awaited:

            def settle(code: int) -> None:
                self._when_topic_saved(request, connection, topic, make(code, True))

            self._barrier.when_passed(end_offset, settle)
            return None
        if self._state.would_topic_survive(topic):
            return make(ResponseCode.SUCCESS, False)
        self._when_topic_saved(request, connection, topic, make(ResponseCode.SUCCESS, False))
        return None

    def _when_topic_saved(
        self, request: Request, connection: ServerConnection, topic: str, frame: bytes
    ) -> None:
        """Answer when the topic is on disk; with an error when its write failed."""

        def settle(fault: tuple[int, str] | None) -> None:
            connection.send(frame if fault is None else self.refused(request, *fault))

        when_topic_saved(self._state, topic, settle)
