"""Recalls timed messages, or moves them to another time, before they are delivered.

The request RECALL_MESSAGE 370 goes to the broker that holds the message; the broker decides whether
it is too late.  A handle (`SendResult.recall_handle`) names broker, second and message.  A repeated
recall does no harm, so a recall whose answer was lost is tried again.  If that try is refused, the
first may have succeeded, so the lost answer is the error that is raised.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from cometmq.client.base.arguments import checked_text
from cometmq.client.base.instance import ClientInstance
from cometmq.codec.recall import RecallHandle, decode_recall_handle
from cometmq.errors import (
    CodecError,
    ConnectFailed,
    InvalidParameter,
    LocalProtocolError,
    NoRoute,
    RemoteError,
    RequestTimeout,
    ResponseCode,
    SendFailed,
    remote_error,
)
from cometmq.model import Message, SendResult, SendStatus
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.headers import RecallMessageHeader

__all__ = ["recall", "reschedule"]

_STORED: Final = (
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)
"""The broker has stored the recall, and executes it unless it loses unflushed data."""


def _decoded(topic: str, handle: str | None) -> RecallHandle:
    if not handle:
        raise InvalidParameter(
            ResponseCode.INVALID_PARAMETER,
            "there is no recall handle: only a message with an exact time that a broker of "
            "RocketMQ 5.4 or CometMQ holds has one",
        )
    try:
        decoded = decode_recall_handle(checked_text("the recall handle", handle))
    except CodecError as error:
        raise InvalidParameter(ResponseCode.INVALID_PARAMETER, str(error)) from None
    if decoded.topic != topic:
        raise InvalidParameter(
            ResponseCode.INVALID_PARAMETER,
            f"the recall handle is of a message for {decoded.topic}, not for {topic}",
        )
    return decoded


async def recall(
    instance: ClientInstance,
    group: str,
    topic: str,
    handle: str | None,
    *,
    timeout_ms: int,
    tries: int,
) -> str:
    """Recall a timed message and return its id.

    Raises:
        InvalidParameter: the handle is missing, or belongs to another topic.
        NoRoute: the broker that holds the message is not known.
        RemoteError: the broker refuses, for example because it is too late (604).
        ConnectFailed, RequestTimeout: the outcome is unknown.
    """
    decoded = _decoded(topic, handle)
    await instance.routes.find(topic)
    address = instance.routes.address(decoded.broker_name)
    if address is None:
        raise NoRoute(
            f"broker {decoded.broker_name}, which holds the message for {topic}, has no address at "
            "the name server; try again when it runs"
        )
    ext = RecallMessageHeader(topic, handle or "", group).to_ext()
    doubt: ConnectFailed | RequestTimeout | None = None
    while True:
        tries -= 1
        command = RemotingCommand.request(RequestCode.RECALL_MESSAGE, ext)
        try:
            answer = await instance.io.request(address, command, timeout_ms)
        except (ConnectFailed, RequestTimeout) as error:
            if tries <= 0:
                raise
            doubt = error
            continue
        if answer.code != ResponseCode.SUCCESS:
            refused = remote_error(answer.code, answer.remark)
            if doubt is not None:
                raise doubt from refused
            raise refused
        return decoded.uniq_key


async def reschedule(
    message: Message,
    handle: str | None,
    send: Callable[[Message], Awaitable[SendResult]],
    take_back: Callable[[str | None], Awaitable[str]],
) -> SendResult:
    """Send a message that replaces the one a handle names.

    The new message is sent first, so nothing is lost if this process dies before the recall of the
    old one.  If that recall is refused, the new message is recalled and the refusal raised: the old
    message stays, or was delivered.  If its outcome is unknown, both messages stay.

    Raises:
        LocalProtocolError: the new message has no time.
        RemoteError: the old message was not recalled.
        SendFailed: the new message was stored without the broker's full safety; both stay.
    """
    _decoded(message.topic, handle)
    if message.deliver_time_ms is None and message.delay_ms is None:
        raise LocalProtocolError(
            "a message that replaces another one needs a time of its own: set deliver_time_ms or "
            "delay_ms"
        )
    result = await send(message)
    if result.status is not SendStatus.SEND_OK:
        raise SendFailed(
            f"the new message {result.message_id} was stored with {result.status.name}, so the old "
            "one was not recalled: both may be delivered; recall one of them"
        )
    try:
        await take_back(handle)
    except RemoteError as refused:
        if refused.code in _STORED:
            raise
        try:
            await take_back(result.recall_handle)
        except (RemoteError, InvalidParameter) as error:
            refused.add_note(
                f"the new message {result.message_id} could not be taken back either: {error}"
            )
        raise
    return result
