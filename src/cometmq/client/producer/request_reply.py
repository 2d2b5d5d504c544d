"""Request and reply over topics, as ``DefaultMQProducer.request`` of RocketMQ 5.4.0 does it.

A request is an ordinary message with a correlation id and the requester's client id in its
properties.  Its consumer sends the reply to a broker (SEND_REPLY_MESSAGE_V2 325), which pushes it
(PUSH_REPLY_MESSAGE_TO_CLIENT 326) over the connection of the requester's heartbeat.  So every
broker of the topic must know the requester first.  A reply whose requester is gone is lost.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cometmq.client.base.instance import ClientInstance
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.message.send_codec import Prepared
from cometmq.codec.compression import decompress
from cometmq.codec.properties import decode_properties, encode_properties_text, split_keys
from cometmq.errors import (
    CodecError,
    CometError,
    ConfigTypeError,
    InvalidParameter,
    NoRoute,
    ResponseCode,
    remote_error,
)
from cometmq.model import properties as prop
from cometmq.model.names import reply_topic
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.headers import PushReplyHeader, SendMessageHeader

__all__ = ["OpenRequests", "Reply", "send_reply"]

log = logging.getLogger("cometmq.client")
REPLY_TIMEOUT_MS: Final = 3_000
_COMPRESSED: Final = 1


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply; times are in ms since 1970, by the clocks of its sender and of the broker."""

    body: bytes
    properties: Mapping[str, str]
    topic: str
    flag: int
    born_timestamp_ms: int
    store_timestamp_ms: int

    @property
    def tags(self) -> str | None:
        """The tag, if any."""
        return self.properties.get(prop.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The business keys."""
        return split_keys(self.properties.get(prop.KEYS, ""))


class OpenRequests:
    """The requests of one producer that wait for replies."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[Reply]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def open(self, prepared: Prepared, client_id: str, timeout_ms: int) -> "asyncio.Future[Reply]":
        """Turn a message into a request, and return the future of its reply."""
        correlation_id = prepared.message_id
        prepared.properties += encode_properties_text(
            {
                prop.CORRELATION_ID: correlation_id,
                prop.REPLY_TO_CLIENT: client_id,
                prop.TTL: str(timeout_ms),
            }
        )
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = future
        future.add_done_callback(lambda _: self._waiting.pop(correlation_id, None))
        return future

    def has(self, command: RemotingCommand) -> bool:
        """Whether a pushed reply is for one of these requests."""
        try:
            header = PushReplyHeader.from_command(command)
            properties = decode_properties(header.properties or "")
        except CometError:
            return False
        return properties.get(prop.CORRELATION_ID) in self._waiting

    def serve(self, command: RemotingCommand) -> RemotingCommand:
        """Pass a pushed reply to its request; a late one is logged and accepted."""
        try:
            header = PushReplyHeader.from_command(command)
            properties = decode_properties(header.properties or "")
            body = _plain(command.body, header.sys_flag)
        except CometError as error:
            log.warning("a reply was not understood: %s", error)
            return command.answer(ResponseCode.SYSTEM_ERROR, "process reply message fail")
        future = self._waiting.get(properties.get(prop.CORRELATION_ID, ""))
        if future is None or future.done():
            log.info("a reply of %s came too late: its request has ended", header.born_host)
        else:
            future.set_result(
                Reply(
                    body,
                    properties,
                    header.topic,
                    header.flag,
                    header.born_timestamp_ms,
                    header.store_timestamp_ms,
                )
            )
        return command.answer(ResponseCode.SUCCESS)


def _plain(body: bytes, sys_flag: int) -> bytes:
    if not sys_flag & _COMPRESSED:
        return body
    try:
        return decompress(body, sys_flag)
    except CodecError:
        # Go's client 2.1.2 marks every large reply so and compresses none; Java accepts that too.
        return body


def check_received(request: object) -> None:
    """Check that the value is a `ReceivedMessage`.

    Raises:
        ConfigTypeError: it is not.
    """
    if not isinstance(request, ReceivedMessage):
        raise ConfigTypeError(
            f"the request to be answered is {request!r:.100} ({type(request).__name__}); give the "
            "ReceivedMessage that asks"
        )


async def send_reply(
    instance: ClientInstance, group: str, prepared: Prepared, request: ReceivedMessage
) -> None:
    """Send a prepared message as the reply to a request.

    Raises:
        InvalidParameter: the message is not a request.
        RemoteError: the broker could not deliver the reply.
    """
    request_properties = request.properties
    needed = {
        name: request_properties.get(name) for name in (prop.CORRELATION_ID, prop.REPLY_TO_CLIENT)
    }
    cluster = request_properties.get(prop.CLUSTER)
    if cluster is None or None in needed.values():
        raise InvalidParameter(
            ResponseCode.INVALID_PARAMETER,
            f"the message {request.message_id} is not a request: it lacks "
            f"{prop.CLUSTER}, {prop.CORRELATION_ID} or {prop.REPLY_TO_CLIENT}",
        )
    own = {prop.MSG_TYPE: "reply", **{name: str(value) for name, value in needed.items()}}
    own[prop.TTL] = request_properties.get(prop.TTL, str(REPLY_TIMEOUT_MS))
    topic = reply_topic(cluster)
    route = await instance.routes.find(topic)
    # The broker that stored the request knows the requester; any other master may know it too.
    masters = {
        broker.broker_name: broker.master_address
        for broker in route.broker_datas
        if broker.master_address is not None
    }
    name = request.broker_name if request.broker_name in masters else next(iter(masters), None)
    if name is None:
        raise NoRoute(f"no broker of {topic} has a master")
    header = SendMessageHeader(
        producer_group=group,
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=prepared.sys_flag,
        born_timestamp_ms=instance.env.clock.now_ms(),
        flag=prepared.flag,
        properties=prepared.properties + encode_properties_text(own),
        broker_name=name,
    )
    command = RemotingCommand.request(
        RequestCode.SEND_REPLY_MESSAGE_V2, header.to_ext(), prepared.body
    )
    answer = await instance.io.request(masters[name], command, REPLY_TIMEOUT_MS)
    if answer.code != ResponseCode.SUCCESS:
        raise remote_error(answer.code, answer.remark)
