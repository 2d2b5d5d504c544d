"""Answers of sends: at once, or when the messages are durable.

With SYNC_FLUSH, the messages of a run whose producers wait for the flush are answered together,
when the last of them is durable.
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
from cometmq.wire.command.command import BINARY, FLAG_ONEWAY, RemotingCommand
from cometmq.wire.header.fast_decode import SendCommand
from cometmq.wire.header.fast_encode import SendResponseEncoder

__all__ = ["Request", "SendAnswers"]


Request = RemotingCommand | SendCommand
_Stored = tuple[PutResult, Send, str, str | None]
"""Where the store put a message, the message, its message id, its recall handle."""


class SendAnswers:
    """Makes the answers to sends for one broker."""

    def __init__(self, state: BrokerState) -> None:
        config = state.config
        self._state = state
        self._is_sync_flush = config.flush_disk_type == "SYNC_FLUSH"
        self._encoder = SendResponseEncoder(config.region_id, trace_on=config.trace_on)

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
    ) -> bytes:
        """Return the answer of one message, or of a batch."""
        if result.physical_offsets:
            message_id = offset_message_ids(self._state.host, result.physical_offsets)
        else:
            message_id = f"{self._state.message_id_prefix}{result.physical_offset:016X}"
        return self._encoder.encode(
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
        if len(results) == 1 and not self._is_sync_flush:
            send = sends[0]
            if send.request.flag & FLAG_ONEWAY:
                return b""
            handle = handles[0] if handles else None
            return self.stored(send.request, results[0], send.real_queue_id, send.uniq_key, handle)
        offsets = [result.physical_offset for result in results]
        ids = offset_message_ids(self._state.host, offsets).split(",")
        # There may be fewer results than sends: as the first argument they end the zip.
        stored: Iterable[_Stored] = zip(results, sends, ids, handles or repeat(None), strict=False)
        if self._is_sync_flush:
            waiting: list[_Stored] = []
            ready: list[_Stored] = []
            for row in stored:
                (waiting if row[1].shape.is_flush_awaited else ready).append(row)
            if waiting:
                self._answer_durable(waiting, connection)
            stored = ready
        return self._successes(stored)

    def _successes(self, stored: Iterable[_Stored]) -> bytes:
        text = self._text
        # The answer names the queue that the message is for, even while it waits elsewhere.
        texts = [
            text(
                send.request,
                send.real_queue_id,
                result.queue_offset,
                message_id,
                send.uniq_key,
                handle,
            )
            for result, send, message_id, handle in stored
            if not send.request.flag & FLAG_ONEWAY
        ]
        return "".join(texts).encode("latin-1")

    def _text(
        self,
        request: Request,
        queue_id: int,
        queue_offset: int,
        message_id: str,
        uniq_key: str,
        handle: str | None,
    ) -> str:
        """Return the answer of one message of a run, each byte as one character."""
        if request.serialize_type == BINARY:
            return self._encoder.encode_full(
                request.opaque, BINARY, 0, queue_id, queue_offset, message_id, uniq_key,
                recall_handle=handle,
            ).decode("latin-1")  # fmt: skip
        return self._encoder.success_text(
            request.opaque, queue_id, queue_offset, message_id, uniq_key, handle
        )

    def _answer_durable(self, stored: list[_Stored], connection: ServerConnection) -> None:
        """Answer all messages when the last one is durable."""

        def settle(is_durable: bool) -> None:
            if is_durable:
                answers = self._successes(stored)
            else:
                answers = b"".join(
                    self.stored(
                        send.request,
                        result,
                        send.real_queue_id,
                        send.uniq_key,
                        handle,
                        ResponseCode.FLUSH_DISK_TIMEOUT,
                    )
                    for result, send, _, handle in stored
                    if not send.request.flag & FLAG_ONEWAY
                )
            if answers:
                connection.send(answers)

        self._state.store.when_durable(stored[-1][0].end_offset, settle)

    def checked(
        self,
        request: Request,
        connection: ServerConnection,
        topic: str,
        end_offset: int,
        make: Callable[[int], bytes],
        *,
        is_flush_awaited: bool,
    ) -> bytes | None:
        """Answer a send that came through the checks and may have created its topic.

        `make` makes the answer from a code.  The answer leaves when the message is durable and a
        restart would find the topic.
        """
        if request.flag & FLAG_ONEWAY:
            return None
        if self._is_sync_flush and is_flush_awaited:

            def settle(is_durable: bool) -> None:
                code = ResponseCode.SUCCESS if is_durable else ResponseCode.FLUSH_DISK_TIMEOUT
                self._when_topic_saved(request, connection, topic, make(code))

            self._state.store.when_durable(end_offset, settle)
            return None
        if self._state.would_topic_survive(topic):
            return make(ResponseCode.SUCCESS)
        self._when_topic_saved(request, connection, topic, make(ResponseCode.SUCCESS))
        return None

    def _when_topic_saved(
        self, request: Request, connection: ServerConnection, topic: str, frame: bytes
    ) -> None:
        """Answer when the topic is on disk; with an error when its write failed."""

        def settle(fault: tuple[int, str] | None) -> None:
            connection.send(frame if fault is None else self.refused(request, *fault))

        when_topic_saved(self._state, topic, settle)
