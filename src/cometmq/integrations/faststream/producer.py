"""The producer behind every publisher of a broker."""

from collections.abc import Callable
from typing import Any, TypeVar

from fast_depends.library.serializer import SerializerProto
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import BatchCodecProto, CodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream._internal.types import CustomCallable
from faststream.exceptions import IncorrectState

from cometmq import Message, Producer, Reply, SendResult
from cometmq.integrations.faststream.parser import (
    CONTENT_TYPE,
    CORRELATION_ID,
    REPLY_TO,
    CometParser,
)
from cometmq.integrations.faststream.response import CometPublishCommand

__all__ = ["CometProducer", "encoded_messages"]


class CometProducer(ProducerProto[CometPublishCommand]):
    """Sends commands with the client's producer while the broker is connected."""

    def __init__(self, parser: CustomCallable | None, decoder: CustomCallable | None) -> None:
        default = CometParser()
        # For the replies to requests.
        self._parser = ParserComposition(parser, default.parse_message)
        self._decoder = ParserComposition(decoder, default.decode_message)
        self.codec: CodecProto = DefaultCodec()
        self.serializer: SerializerProto | None = None
        self._client: Producer | None = None

    def __bool__(self) -> bool:
        return self._client is not None

    async def connect(
        self, client: Producer, serializer: SerializerProto | None, codec: CodecProto | None
    ) -> None:
        """Start the client's producer.

        Raises:
            CometError: as `cometmq.Producer.start`.
        """
        await client.start()
        self._client = client
        self.serializer = serializer
        self.codec = codec or DefaultCodec()

    async def disconnect(self) -> None:
        """Send what is under way and disconnect."""
        client, self._client = self._client, None
        if client is not None:
            await client.shutdown()

    @property
    def client(self) -> Producer:
        """The client's producer.

        Raises:
            IncorrectState: the broker is not connected.
        """
        if self._client is None:
            raise IncorrectState("the broker is not connected; await broker.connect() or start()")
        return self._client

    async def publish(self, cmd: CometPublishCommand) -> SendResult | None:
        """Send one message; None for the reply to a request.

        Raises:
            CometError: as `cometmq.Producer.send`.
        """
        (message,) = await self._messages(cmd)
        if cmd.request is not None:
            await self.client.reply(cmd.request, message)
            return None
        return await self.client.send(message)

    async def publish_batch(self, cmd: CometPublishCommand) -> list[SendResult]:
        """Send messages of one topic in as few requests as their size allows.

        Raises:
            CometError: as `cometmq.Producer.send_batch`.
        """
        return await self.client.send_batch(await self._messages(cmd))

    async def request(self, cmd: CometPublishCommand) -> Reply:
        """Send a message and wait for the reply of its subscriber.

        Raises:
            RequestTimeout: no reply came in time.
            CometError: as `cometmq.Producer.request`.
        """
        (message,) = await self._messages(cmd)
        return await self.client.request(message, timeout_ms=round(cmd.timeout * 1000))

    async def _messages(self, cmd: CometPublishCommand) -> list[Message]:
        return await encoded_messages(cmd, Message, self.codec, self.serializer)


T = TypeVar("T")


async def encoded_messages(
    cmd: CometPublishCommand,
    make: Callable[..., T],
    codec: CodecProto,
    serializer: SerializerProto | None,
) -> list[T]:
    """``make(topic, body, ...)`` with the arguments of `Message` for each body of a command.

    None and an empty text travel as JSON: RocketMQ's messages have at least one byte.
    """
    if isinstance(codec, BatchCodecProto) and len(cmd.batch_bodies) != 1:
        encoded = await codec.encode_batch(cmd.batch_bodies, serializer)
    else:
        encoded = [await _encoded(body, codec, serializer) for body in cmd.batch_bodies]
    headers: dict[str, Any] = {}
    if cmd.correlation_id:
        headers[CORRELATION_ID] = cmd.correlation_id
    if cmd.reply_to:
        headers[REPLY_TO] = cmd.reply_to
    fields = cmd.fields
    return [
        make(
            cmd.destination,
            body,
            tags=fields.tag,
            keys=fields.keys,
            properties=({CONTENT_TYPE: content_type} if content_type else {})
            | headers
            | cmd.headers,
            delay_level=fields.delay_level,
            message_group=fields.message_group,
            deliver_time_ms=fields.deliver_time_ms,
            delay_ms=fields.delay_ms,
        )
        for body, content_type in encoded
    ]


async def _encoded(
    body: Any, codec: CodecProto, serializer: SerializerProto | None
) -> tuple[bytes, str | None]:
    if body is None:
        return b"null", "application/json"
    if body == "" and isinstance(body, str):
        return b'""', "application/json"
    return await codec.encode(body, serializer)
