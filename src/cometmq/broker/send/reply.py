"""SEND_REPLY_MESSAGE: brings the reply of a consumer to the client that asked.

The property REPLY_TO_CLIENT names the asking client.  The broker pushes the reply to it as a call.
When that call is answered or has failed, the broker stores the reply (``storeReplyMessageEnable``)
and answers the consumer: with code 1 and the id of the stored message if the push failed
(ReplyMessageProcessor of RocketMQ 5.4).
"""

from __future__ import annotations

import logging
from typing import Final

from cometmq.broker.base.state import BrokerState, Refusal
from cometmq.broker.send.checks import SendChecks
from cometmq.broker.send.kinds import Destination
from cometmq.broker.send.send import SendProcessor, client_sys_flag
from cometmq.codec.ids import decode_host
from cometmq.codec.properties import decode_properties, encode_properties_text
from cometmq.errors import ResponseCode, StoreError
from cometmq.model import properties as prop
from cometmq.model.topic import TopicConfig
from cometmq.net.server import ServerConnection
from cometmq.store.base.results import PutResult
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.fast_encode import SendResponseEncoder
from cometmq.wire.header.headers import PushReplyHeader, SendMessageHeader

__all__ = ["ReplyProcessor"]

log = logging.getLogger("cometmq.broker")

PUSH_TIMEOUT_MS: Final = 10_000
"""Broker2Client waits this long for the asking client."""


class ReplyProcessor:
    """The processor of codes 324 and 325."""

    def __init__(self, state: BrokerState, send: SendProcessor) -> None:
        self._state = state
        self._send = send
        self._checks = SendChecks(state)
        self._answers = SendResponseEncoder(state.config.region_id, trace_on=state.config.trace_on)

    def reply(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes | None:
        """Serve SEND_REPLY_MESSAGE (324) and its V2 (325)."""
        header = SendMessageHeader.from_command(request)
        try:
            config = self._checks.topic(header, connection, now_ms)
            self._checks.body_size(request.body)
        except Refusal as refusal:
            return self._answers.encode_refusal(
                request.opaque, request.serialize_type, refusal.code, refusal.remark
            )
        asker_id = decode_properties(header.properties).get(prop.REPLY_TO_CLIENT)
        if asker_id is None:
            return self._finish(
                request,
                header,
                config,
                connection,
                f"reply message properties[{prop.REPLY_TO_CLIENT}] is null",
            )
        asker = self._state.producers.find_client(asker_id)
        if asker is None:
            return self._finish(
                request,
                header,
                config,
                connection,
                f"push reply message fail, channel of <{asker_id}> not found.",
            )

        def pushed(response: RemotingCommand | None) -> None:
            is_accepted = response is not None and response.code == ResponseCode.SUCCESS
            remark = None if is_accepted else f"push reply message to {asker_id}fail."
            frame = self._finish(request, header, config, connection, remark)
            if not request.is_oneway:
                connection.send(frame)

        asker.call(self._push(request, header, connection, now_ms), PUSH_TIMEOUT_MS, pushed)
        return None

    def _properties(self, header: SendMessageHeader) -> dict[str, str]:
        """Return the reply's properties with region and trace switch, as for any send."""
        config = self._state.config
        properties = decode_properties(header.properties)
        properties[prop.MSG_REGION] = config.region_id
        properties[prop.TRACE_ON] = "true" if config.trace_on else "false"
        return properties

    def _push(
        self,
        request: RemotingCommand,
        header: SendMessageHeader,
        connection: ServerConnection,
        now_ms: int,
    ) -> RemotingCommand:
        properties = self._properties(header)
        properties[prop.PUSH_REPLY_TIME] = str(now_ms)
        push = PushReplyHeader(
            header.producer_group,
            header.topic,
            header.default_topic,
            header.default_topic_queue_nums,
            header.queue_id,
            header.sys_flag,
            header.born_timestamp_ms,
            header.flag,
            decode_host(connection.peer_host),
            self._state.address,
            now_ms,
            encode_properties_text(properties),
            header.reconsume_times,
            header.unit_mode,
        )
        return RemotingCommand.request(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, push.to_ext(), request.body
        )

    def _finish(
        self,
        request: RemotingCommand,
        header: SendMessageHeader,
        config: TopicConfig,
        connection: ServerConnection,
        remark: str | None,
    ) -> bytes:
        """Store the reply and answer the replier; `remark` says why the push failed."""
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = self._state.random_queue(config.write_queue_count)
        stored = self._store(request, header, config, connection, queue_id)
        code = ResponseCode.SUCCESS if remark is None else ResponseCode.SYSTEM_ERROR
        message_id, queue_offset = "0", 0
        if stored is not None:
            message_id = f"{self._state.message_id_prefix}{stored.physical_offset:016X}"
            queue_offset = stored.queue_offset
        return self._answers.encode_full(
            request.opaque,
            request.serialize_type,
            code,
            queue_id,
            queue_offset,
            message_id,
            None,
            remark=remark,
        )

    def _store(
        self,
        request: RemotingCommand,
        header: SendMessageHeader,
        config: TopicConfig,
        connection: ServerConnection,
        queue_id: int,
    ) -> PutResult | None:
        """Store the reply.  It is delivered already, so a refusal of the store is only logged."""
        if not self._state.config.store_reply_message_enable:
            return None
        properties = self._properties(header)
        target = Destination(header.topic, queue_id, properties)
        now_ms = self._state.env.clock.now_ms()
        try:
            return self._send.put(
                target,
                request.body,
                flag=header.flag,
                sys_flag=client_sys_flag(header, config),
                born_ms=header.born_timestamp_ms,
                born_host=connection.peer_host,
                reconsume_times=header.reconsume_times,
                now_ms=now_ms,
            )
        except (StoreError, Refusal) as error:
            log.warning("a reply to %s was not stored: %s", header.topic, error)
            return None
