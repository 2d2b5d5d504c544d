"""Answers of sends that are stored, at once or when they are durable.

With SYNC_FLUSH the messages of a run whose producers wait for the flush are answered together, when
the last of them is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


class SendAnswers:
    """Makes the answers to sends for one broker."""

    __slots__ = ("_encoder", "_is_sync_flush", "_state")

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
        offsets = result.physical_offsets or (result.physical_offset,)
        return self._encoder.encode(
            request.opaque,
            request.serialize_type,
            queue_id,
            result.queue_offset,
            offset_message_ids(self._state.host, offsets),
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
        *,
        is_durable: bool = False,
    ) -> bytes:
        """Return the answers that leave now, of the first `len(results)` sends; others follow.

        `is_durable`: nobody has to wait for the flush any more.
        """
        is_parking = self._is_sync_flush and not is_durable
        text = self._encoder.success_text
        if len(results) == 1:
            ids = [f"{self._state.message_id_prefix}{results[0].physical_offset:016X}"]
        else:
            offsets = [result.physical_offset for result in results]
            ids = offset_message_ids(self._state.host, offsets).split(",")
        texts: list[str] = []
        waiting: list[int] = []
        handle = None
        for number, (send, message_id) in enumerate(zip(sends, ids, strict=False)):
            request = send.request
            if is_parking and send.shape.is_flush_awaited:
                waiting.append(number)
            elif not request.flag & FLAG_ONEWAY:
                if handles is not None:
                    handle = handles[number]
                queue_offset = results[number].queue_offset
                # Clients are told the queue the message is for, also while it waits elsewhere.
                texts.append(
                    text(
                        request.opaque,
                        send.real_queue_id,
                        queue_offset,
                        message_id,
                        send.uniq_key,
                        handle,
                    )
                )
        if waiting:
            self._park_run(
                [sends[number] for number in waiting],
                [results[number] for number in waiting],
                [handles[number] for number in waiting] if handles else None,
                connection,
            )
        return "".join(texts).encode("latin-1")

    def _park_run(
        self,
        sends: Sequence[Send],
        results: Sequence[PutResult],
        handles: Sequence[str] | None,
        connection: ServerConnection,
    ) -> None:
        """Answer all of them when the last one is durable."""

        def settle(is_durable: bool) -> None:
            if is_durable:
                answers = self.of_run(sends, results, handles, connection, is_durable=True)
            else:
                answers = b"".join(
                    self.stored(
                        send.request,
                        result,
                        send.real_queue_id,
                        send.uniq_key,
                        handles[number] if handles else None,
                        ResponseCode.FLUSH_DISK_TIMEOUT,
                    )
                    for number, (send, result) in enumerate(zip(sends, results, strict=True))
                    if not send.request.flag & FLAG_ONEWAY
                )
            if answers:
                connection.send(answers)

        self._state.store.when_durable(results[-1].end_offset, settle)

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
        """Answer what came through the checks, maybe to a topic that is new.

        `make` makes the answer from a code.  It leaves when the message is durable, and when a
        restart would find the topic.
        """
        if request.flag & FLAG_ONEWAY:
            return None
        if self._is_sync_flush and is_flush_awaited:

            def settle(is_durable: bool) -> None:
                code = ResponseCode.SUCCESS if is_durable else ResponseCode.FLUSH_DISK_TIMEOUT
                self._when_kept(request, connection, topic, make(code))

            self._state.store.when_durable(end_offset, settle)
            return None
        if self._state.would_topic_survive(topic):
            return make(ResponseCode.SUCCESS)
        self._when_kept(request, connection, topic, make(ResponseCode.SUCCESS))
        return None

    def _when_kept(
        self, request: Request, connection: ServerConnection, topic: str, frame: bytes
    ) -> None:
        """Answer when a restart would find the topic, or why it would not."""

        def settle(fault: tuple[int, str] | None) -> None:
            connection.send(frame if fault is None else self.refused(request, *fault))

        when_topic_saved(self._state, topic, settle)
