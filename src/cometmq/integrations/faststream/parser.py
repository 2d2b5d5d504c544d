"""From messages of the client to messages of FastStream."""

from typing import Any

from faststream._internal.basic_types import DecodedMessage
from faststream.message import StreamMessage, decode_message

from cometmq import ReceivedMessage, Reply
from cometmq.integrations.faststream.message import CometStreamMessage, current_settlement

__all__ = ["CONTENT_TYPE", "CORRELATION_ID", "REPLY_TO", "CometParser"]

CONTENT_TYPE = "content-type"
CORRELATION_ID = "correlation_id"
REPLY_TO = "reply_to"
"""Properties in which FastStream's fields travel."""
_REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
"""RocketMQ's property of a request: the client id that waits for the reply."""


class CometParser:
    """The default parser and decoder."""

    async def parse_message(self, message: ReceivedMessage | Reply) -> CometStreamMessage:
        """One message, or the reply to a request."""
        properties = dict(message.properties)
        reply_to = "" if isinstance(message, Reply) else _reply_address(properties)
        message_id = None if isinstance(message, Reply) else message.message_id
        return CometStreamMessage(
            raw_message=message,
            body=message.body,
            headers=properties,
            reply_to=reply_to,
            content_type=properties.get(CONTENT_TYPE),
            message_id=message_id,
            correlation_id=properties.get(CORRELATION_ID),
            settlement=current_settlement.get(),
        )

    async def parse_batch(self, message: list[ReceivedMessage]) -> CometStreamMessage:
        """The messages of one call of a batch handler; their first names id and headers."""
        headers = [dict(each.properties) for each in message]
        return CometStreamMessage(
            raw_message=message,
            body=[each.body for each in message],
            headers=headers[0],
            batch_headers=headers,
            content_type=headers[0].get(CONTENT_TYPE),
            message_id=message[0].message_id,
            correlation_id=headers[0].get(CORRELATION_ID),
            settlement=current_settlement.get(),
        )

    async def decode_message(self, msg: StreamMessage[Any]) -> DecodedMessage:
        """The body by its content type: JSON, text or bytes."""
        return decode_message(msg)

    async def decode_batch(self, msg: StreamMessage[Any]) -> list[DecodedMessage]:
        """The bodies of a batch, each by its own content type."""
        return [decode_message(await self.parse_message(each)) for each in msg.raw_message]


def _reply_address(properties: dict[str, str]) -> str:
    """The topic of ``reply_to=``, else the client id of a request; empty for neither."""
    return properties.get(REPLY_TO, "") or properties.get(_REPLY_TO_CLIENT, "")
