"""Turns a `Message` into the bytes of a send request, and a response into a result or an error.

A message is checked and turned into properties and body once.  Each try makes a frame of those,
from a template that holds everything but the few numbers that change.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, Final

import msgspec

from cometmq import native
from cometmq.client.message.checks import (
    check_is_message,
    delay_properties,
    own_properties,
)
from cometmq.codec.batch import BATCH_ITEM_OVERHEAD_BYTES, encode_batch
from cometmq.codec.compression import compress, compression_flag
from cometmq.codec.properties import PROPERTIES_BYTES_MAX
from cometmq.core.produce.batching import MESSAGE_BYTES_MAX
from cometmq.errors import (
    LocalProtocolError,
    RemoteError,
    ResponseCode,
    remote_error,
)
from cometmq.model import Message, MessageQueue, SendResult, SendStatus
from cometmq.model.message_checks import (
    check_sendable_topic,
    keys_text,
    plain_bytes,
    plain_text,
)
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.frame.acl import Credentials, SignedSendTemplate
from cometmq.wire.header.fast_decode import PlainSendAnswer, decode_plain_answer
from cometmq.wire.header.fast_encode import SendRequestTemplate
from cometmq.wire.header.headers import SendResponseHeader

__all__ = ["Prepared", "SendCodec", "is_retriable", "refusal_of", "result_of", "results_of"]

COMPRESS_ABOVE_BYTES: Final = 4096
_encode_natively: Final = native.encode_send_request
_NOT_PLAIN: Final = (msgspec.MsgspecError, ValueError, RecursionError)
_NO_KEYS: Final = ()
_SEND_OK: Final = SendStatus.SEND_OK
_SEND_STATUS: Final = {int(status): status for status in SendStatus}
# Response codes after which another broker may do better (DefaultMQProducerImpl.sendDefaultImpl).
_RETRIABLE_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    }
)


def is_retriable(code: int) -> bool:
    """Whether a send that was answered with ``code`` may be tried on another broker."""
    return code in _RETRIABLE_CODES


class NativeSendTemplate(SendRequestTemplate):
    """Writes plain sends with the native core where it is there, and all others in Python."""

    __slots__ = ("_parts",)

    def __init__(self, *names: str, is_batch: bool = False) -> None:
        super().__init__(*names, is_batch=is_batch)
        self._parts = self.parts()

    def encode(
        self,
        opaque: int,
        queue_id: int,
        sys_flag: int,
        born_timestamp_ms: int,
        flag: int,
        properties: str,
        body: bytes,
        **unusual: Any,
    ) -> bytes:
        """The frame of one send, of the same bytes as that of `SendRequestTemplate`.  HOT."""
        frame = None
        if _encode_natively is not None and not unusual:
            frame = _encode_natively(
                self._parts, opaque, queue_id, sys_flag, born_timestamp_ms, flag, properties, body
            )
        if frame is None:
            frame = super().encode(
                opaque, queue_id, sys_flag, born_timestamp_ms, flag, properties, body, **unusual
            )
        return frame


class Prepared(msgspec.Struct, gc=False):
    """A checked message in the form that is sent."""

    topic: str
    body: bytes
    sys_flag: int
    flag: int
    properties: str
    message_id: str
    reconsume_times: int = 0
    max_reconsume_times: int | None = None
    batch_count: int = 0
    """0 for a single message, else how many messages the body holds."""
    is_delayed: bool = False
    """Whether the broker keeps the message elsewhere first, and answers with an offset there."""


class SendCodec:
    """Encodes and decodes the sends of one producer group."""

    def __init__(
        self,
        group: str,
        new_id: Callable[[], str],
        now_ms: Callable[[], int],
        *,
        compression: str = "ZLIB",
        compression_level: int = 5,
        compress_above_bytes: int = COMPRESS_ABOVE_BYTES,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        credentials: Credentials | None = None,
        wrap: Callable[[str], str] = str,
        mark: str = "",
    ) -> None:
        self._mark = mark
        self._numbers: Iterator[int] | None = None
        """Of a producer that numbers its messages: the next numbers."""
        self._number_start = ""
        self._wrap = wrap
        self.group = group
        self._credentials = credentials
        self.new_id = new_id
        self.message_bytes_max = message_bytes_max
        self._now_ms = now_ms
        self._compression = compression.upper()
        self._compression_flag = compression_flag(self._compression)
        self._compression_level = compression_level
        self._compress_above_bytes = compress_above_bytes
        self._known_topics: set[str] = set()
        self._templates: dict[tuple[str, str, bool], SendRequestTemplate] = {}

    def number(self, life: str) -> None:
        """Number the messages from now on, under the id of a producer's life."""
        self._numbers = count(1)
        self._number_start = f"PRODUCER_SEQ\x01{life}:"

    # -- messages ---------------------------------------------------------------------------

    def prepare(self, message: Message) -> Prepared:
        """Check, compress and encode a message that travels alone.

        Raises:
            LocalProtocolError: topic, body or properties break a limit; the text names which.
        """
        try:
            topic = message.topic
            body = message.body
            if type(body) is not bytes or topic not in self._known_topics:
                body = self._checked_body(message)
            message_id = self.new_id()
            text = self.properties_text(message, message_id)
        except (AttributeError, TypeError):
            check_is_message(message)
            raise
        sys_flag = 0
        if len(body) >= self._compress_above_bytes:
            packed, flag = compress(body, self._compression, self._compression_level)
            if len(packed) < len(body):
                body = packed
                sys_flag = flag
        if len(body) > self.message_bytes_max:
            raise LocalProtocolError(
                f"the body for {topic} has {len(body)} bytes; the limit is "
                f"{self.message_bytes_max} (max_message_bytes here, maxMessageSize at the broker)"
            )
        prepared = Prepared(topic, body, sys_flag, message.flag, text, message_id)
        prepared.is_delayed = message.is_delayed
        return prepared

    def prepare_batch(
        self, topic: str, items: Sequence[tuple[int, bytes, bytes]], ids: str
    ) -> Prepared:
        """A batch of encoded items ``(flag, body, properties)`` with the joined unique ids."""
        return Prepared(
            topic,
            encode_batch(items),
            0,
            0,
            "WAIT\x01true\x02",
            ids,
            batch_count=len(items),
        )

    def batch_item(self, message: Message) -> tuple[tuple[int, bytes, bytes], str]:
        """``(flag, body, properties)`` of a message inside a batch, and its unique id.

        Raises:
            LocalProtocolError: topic, body or properties break a limit; the text names which.
        """
        try:
            body = message.body
            if type(body) is not bytes or message.topic not in self._known_topics:
                body = self._checked_body(message)
            message_id = self.new_id()
            properties = self.properties_text(message, message_id).encode()
        except UnicodeEncodeError:
            raise LocalProtocolError("the properties hold half a surrogate pair") from None
        except (AttributeError, TypeError):
            check_is_message(message)
            raise
        size = BATCH_ITEM_OVERHEAD_BYTES + len(body) + len(properties)
        if size > self.message_bytes_max:
            raise LocalProtocolError(
                f"a message for {message.topic} takes {size} bytes in a batch; the limit is "
                f"{self.message_bytes_max}"
            )
        return (message.flag, body, properties), message_id

    def _checked_body(self, message: Message) -> bytes:
        topic = message.topic
        if not isinstance(topic, str) or topic not in self._known_topics:
            check_sendable_topic(topic)
            self._known_topics.add(topic)
        return plain_bytes(topic, message.body)

    def properties_text(self, message: Message, message_id: str) -> str:
        """The property string of a message with its separators.

        Raises:
            LocalProtocolError: a property is not accepted, or all take more bytes than allowed.
        """
        # The values that differ between messages come first, as with Java's clients.
        text = f"UNIQ_KEY\x01{message_id}\x02WAIT\x01true\x02{self._mark}"
        keys = message.keys
        if keys is not _NO_KEYS:
            if type(keys) is not str or " " in keys or "\x01" in keys or "\x02" in keys:
                keys = keys_text(message.topic, keys)
            if keys:
                text = f"KEYS\x01{keys}\x02{text}"
        if not message.wait_store_ok:
            text = text.replace("WAIT\x01true", "WAIT\x01false")
        tags = message.tags
        if tags:
            if type(tags) is not str or "\x01" in tags or "\x02" in tags:
                tags = plain_text(tags, f"tag for {message.topic}")
            text = f"{text}TAGS\x01{tags}\x02"
        elif tags is not None:
            plain_text(tags, f"tag for {message.topic}")
        group = message.message_group
        if group is not None and group != "":
            group = plain_text(message.message_group, f"message group for {message.topic}")
            text = f"{text}__SHARDINGKEY\x01{group}\x02"
        if (
            message.is_delayed
            or message.properties
            or message.flag != 0
            or self._numbers is not None
        ):
            text += self._further_properties(message)
        if len(text) > PROPERTIES_BYTES_MAX // 4 and len(text.encode()) > PROPERTIES_BYTES_MAX:
            raise LocalProtocolError(
                f"the properties of a message for {message.topic} take {len(text.encode())} "
                f"bytes; the limit is {PROPERTIES_BYTES_MAX}"
            )
        return text

    def _further_properties(self, message: Message) -> str:
        """The properties that most messages do not have."""
        text = ""
        if message.is_delayed:
            text = delay_properties(message)
        if message.properties or message.flag != 0:
            text += own_properties(message)
        if self._numbers is not None:
            text = f"{text}{self._number_start}{next(self._numbers)}\x02"
        return text

    # -- frames -----------------------------------------------------------------------------

    def template(self, queue: MessageQueue, *, is_batch: bool = False) -> SendRequestTemplate:
        """The parts that all frames to a topic at a broker share."""
        key = (queue.topic, queue.broker_name, is_batch)
        template = self._templates.get(key)
        if template is None:
            names = (self._wrap(self.group), self._wrap(queue.topic), queue.broker_name)
            if self._credentials is None:
                template = NativeSendTemplate(*names, is_batch=is_batch)
            else:
                template = SignedSendTemplate(self._credentials, *names, is_batch=is_batch)
            self._templates[key] = template
        return template

    def frame(
        self,
        prepared: Prepared,
        queue: MessageQueue,
        opaque: int,
        *,
        oneway: bool = False,
        group_home: str | None = None,
    ) -> bytes:
        """The complete request frame; ``group_home`` is for sends by message group."""
        template = self.template(queue, is_batch=prepared.batch_count > 0)
        unusual: dict[str, Any] = {}
        if (
            oneway
            or group_home is not None
            or prepared.reconsume_times
            or prepared.max_reconsume_times is not None
        ):
            unusual = {
                "oneway": oneway,
                "reconsume_times": prepared.reconsume_times,
                "max_reconsume_times": prepared.max_reconsume_times,
                "group_home": group_home,
            }
        return template.encode(
            opaque,
            queue.queue_id,
            prepared.sys_flag,
            self._now_ms(),
            prepared.flag,
            prepared.properties,
            prepared.body,
            **unusual,
        )

    # -- answers ----------------------------------------------------------------------------

    def result(
        self, prepared: Prepared, queue: MessageQueue, answer: RemotingCommand
    ) -> SendResult:
        """The result of a send; HOT.

        Raises:
            RemoteError: the message was not stored; the class follows the response code.
            RemoteProtocolError: the answer lacks a field that every broker sends.
        """
        status = _SEND_OK if answer.code == 0 else _SEND_STATUS.get(answer.code)
        if status is None:
            raise refusal_of(prepared, answer)
        try:
            fields: SendResponseHeader | PlainSendAnswer = decode_plain_answer(answer.raw_ext)
        except _NOT_PLAIN:
            fields = SendResponseHeader.from_command(answer)
        return result_of(status, prepared, queue, fields)

    def batch_results(
        self, ids: Sequence[str], queue: MessageQueue, answer: RemotingCommand
    ) -> list[SendResult]:
        """One result per message of a batch; raises as `result` does."""
        status = _SEND_OK if answer.code == 0 else _SEND_STATUS.get(answer.code)
        if status is None:
            raise remote_error(answer.code, answer.remark)
        return results_of(status, ids, queue, SendResponseHeader.from_command(answer))


def result_of(
    status: SendStatus,
    prepared: Prepared,
    queue: MessageQueue,
    fields: SendResponseHeader | PlainSendAnswer,
) -> SendResult:
    """The result of a send from the fields of its answer; HOT."""
    if fields.queue_id != queue.queue_id:
        queue = MessageQueue(queue.topic, queue.broker_name, fields.queue_id)
    return SendResult(
        status,
        prepared.message_id,
        queue,
        None if prepared.is_delayed else fields.queue_offset,
        fields.msg_id,
        fields.transaction_id,
        fields.recall_handle,
        fields.cmq_barrier,
    )


def results_of(
    status: SendStatus,
    ids: Sequence[str],
    queue: MessageQueue,
    fields: SendResponseHeader | PlainSendAnswer,
) -> list[SendResult]:
    """One result for each message of a batch from the fields of its answer."""
    if fields.queue_id != queue.queue_id:
        queue = MessageQueue(queue.topic, queue.broker_name, fields.queue_id)
    offset_ids = fields.msg_id.split(",")
    if len(offset_ids) != len(ids):
        # An inner-batch queue stores the batch as one record, which has one id.
        offset_ids = [fields.msg_id] * len(ids)
    first = fields.queue_offset
    return [
        SendResult(status, message_id, queue, first + index, offset_id, barrier=fields.cmq_barrier)
        for index, (message_id, offset_id) in enumerate(zip(ids, offset_ids, strict=True))
    ]


def refusal_of(prepared: Prepared, answer: RemotingCommand) -> RemoteError:
    """The error of a send that was not stored."""
    code, remark = answer.code, answer.remark
    if not prepared.body and (
        code == ResponseCode.MESSAGE_ILLEGAL or "NullPointerException" in (remark or "")
    ):
        # RocketMQ's broker has no body then and fails (AbstractSendMessageProcessor
        # .buildMsgContext) or refuses (HookUtils.checkBeforePutMessage); another would too.
        code = ResponseCode.MESSAGE_ILLEGAL
        remark = (
            f"RocketMQ's broker stores no message with an empty body, and that of "
            f"{prepared.message_id} for {prepared.topic} is empty; send at least one byte "
            f"({remark})"
        )
    return remote_error(code, remark)
