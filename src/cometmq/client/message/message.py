"""A message as a consumer gets it: a view of the pulled bytes that decodes on first use.

Most handlers read the body and nothing else.  So a message is a slice of the pull answer, one
object of six fields, until a handler reads a field.  The first read decodes the whole record; the
properties are decoded only when one of them is read.
"""

import struct
from typing import Final

import msgspec

from cometmq import native
from cometmq.codec.compression import decompress
from cometmq.codec.properties import find_property, split_keys
from cometmq.codec.stored_message import (
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    StoredMessage,
    decode_message,
)
from cometmq.errors import CodecError, CometError
from cometmq.model import MessageQueue
from cometmq.model.names import PARK_PREFIX, RETRY_PREFIX

__all__ = ["SANDBOX_PROPERTY", "ReceivedMessage", "split_messages"]

_CUT: Final = struct.Struct(">ii12xq")  # total size, magic, (crc, queue, flag), queue offset
SANDBOX_PROPERTY: Final = "COMETMQ_SANDBOX"
"""Marks the messages of a sandbox; see `client.base.sandbox`."""
_MAGICS: Final = (MAGIC_V1, MAGIC_V2)
# The native core does the same for plain records, and leaves the others to the text below.
_cut_natively: Final = native.cut_messages
_decode_natively: Final = native.decode_record
_body_natively: Final = native.record_body
_property_natively: Final = native.record_property


class ReceivedMessage(msgspec.Struct, gc=False, eq=False):
    """One message of a queue.

    ``message_queue`` is where it was pulled from (for a retry that is the group's retry topic);
    ``topic`` is the topic it was sent to.  Equality is identity.
    """

    message_queue: MessageQueue
    queue_offset: int
    size_bytes: int
    _buffer: bytes
    _position: int
    _stored: StoredMessage | None = None
    _body: bytes | None = None
    _namespace: str = ""
    bounds: tuple[int, int] | None = None
    """The first offset and the end of its queue when it was pulled; None for one not pulled by a
    consumer."""
    _properties: dict[str, str] | None = None

    def within(self, namespace: str) -> "ReceivedMessage":
        """Itself, from a client in this namespace, whose name `topic` leaves out."""
        self._namespace = namespace
        return self

    @property
    def stored(self) -> StoredMessage:
        """The decoded record.

        Raises:
            CodecError: the record is damaged; the text names the position.
        """
        stored = self._stored
        if stored is None:
            if _decode_natively is not None:
                stored = _decode_natively(self._buffer, self._position, StoredMessage)
            if stored is None:
                stored = decode_message(self._buffer, self._position)
            self._stored = stored
        return stored

    @property
    def body(self) -> bytes:
        """The body as it was sent, decompressed."""
        body = self._body
        if body is None:
            if _body_natively is not None and self._stored is None:
                body = _body_natively(self._buffer, self._position)
            if body is None:
                stored = self.stored
                body = stored.body
                if stored.sys_flag & 1:
                    body = decompress(body, stored.sys_flag)
            self._body = body
        return body

    @property
    def properties(self) -> dict[str, str]:
        """All properties, RocketMQ's own included.

        As RocketMQ's client does, a consumer adds ``MIN_OFFSET`` and ``MAX_OFFSET``: the first
        offset and the end of the queue when the message was pulled.
        """
        bounds = self.bounds
        if bounds is None:
            return self.stored.properties
        properties = self._properties
        if properties is None:
            added = {"MIN_OFFSET": str(bounds[0]), "MAX_OFFSET": str(bounds[1])}
            properties = self._properties = self.stored.properties | added
        return properties

    @property
    def topic(self) -> str:
        """The topic that the producer sent to, also for a retried message."""
        topic = self.stored.topic
        if topic.startswith((RETRY_PREFIX, PARK_PREFIX)):
            topic = self.stored.properties.get("RETRY_TOPIC", topic)
        if self._namespace:
            topic = topic.removeprefix(f"{self._namespace}%")
        return topic

    def _property(self, name: bytes) -> str | None:
        """One property, which is read without the others; None if absent or empty."""
        raw = None
        if _property_natively is not None and self._stored is None:
            raw = _property_natively(self._buffer, self._position, name)
        if raw is None:
            raw = find_property(self.stored.raw_properties, name)
        return raw.decode() if raw else None

    @property
    def sandbox(self) -> str | None:
        """The sandbox of its producer, if that has one."""
        return self._property(SANDBOX_PROPERTY.encode())

    @property
    def tags(self) -> str | None:
        """The tag, if any."""
        return self._property(b"TAGS")

    @property
    def keys(self) -> tuple[str, ...]:
        """The business keys."""
        text = self._property(b"KEYS")
        return split_keys(text) if text else ()

    @property
    def message_id(self) -> str:
        """The producer's unique id, or the broker's id for a message without one."""
        return self._property(b"UNIQ_KEY") or self.stored.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """The broker's id: its address and the position in its commit log, in hex."""
        return self.stored.offset_message_id

    @property
    def message_group(self) -> str | None:
        """The group whose messages keep their order (``__SHARDINGKEY``)."""
        return self.properties.get("__SHARDINGKEY")

    @property
    def delay_level(self) -> int:
        """The delay level it was sent with; 0 for none."""
        return int(self.properties.get("DELAY", "0"))

    @property
    def deliver_time_ms(self) -> int | None:
        """The exact delivery time, ms since 1970; None for a message without one."""
        properties = self.properties
        # Brokers store the slot of the timer wheel as TIMER_OUT_MS, up to a second too early.
        text = properties.get("TIMER_DELIVER_MS") or properties.get("TIMER_OUT_MS")
        return int(text) if text else None

    @property
    def queue_id(self) -> int:
        """Number of the queue it was pulled from."""
        return self.message_queue.queue_id

    @property
    def broker_name(self) -> str:
        """Name of the broker it was pulled from."""
        return self.message_queue.broker_name

    @property
    def physical_offset(self) -> int:
        """Position in the broker's commit log."""
        return self.stored.physical_offset

    @property
    def born_timestamp_ms(self) -> int:
        """When the producer created the message, by the producer's clock."""
        return self.stored.born_timestamp_ms

    @property
    def store_timestamp_ms(self) -> int:
        """When the broker stored the message, by the broker's clock."""
        return self.stored.store_timestamp_ms

    @property
    def born_host(self) -> str:
        """``ip:port`` of the producer."""
        return self.stored.born_address

    @property
    def store_host(self) -> str:
        """``ip:port`` of the broker."""
        return self.stored.store_address

    @property
    def reconsume_times(self) -> int:
        """How often this group has failed to consume the message."""
        return self.stored.reconsume_times

    @property
    def flag(self) -> int:
        """The producer's own flag."""
        return self.stored.flag

    @property
    def sys_flag(self) -> int:
        """The bits of ``model.flags``."""
        return self.stored.sys_flag

    def __repr__(self) -> str:
        position = f"{self.message_queue} at {self.queue_offset}"
        try:
            facts = f"{self.message_id}, keys {self.keys}, tag {self.tags}, {len(self.body)} B"
        except CometError as error:  # a damaged record must not hide the error that shows it
            facts = str(error)
        return f"<ReceivedMessage {position}: {facts}>"


def split_messages(buffer: bytes, queue: MessageQueue) -> list[ReceivedMessage]:
    """The messages of a pull answer, not yet decoded.

    Raises:
        CodecError: a length or a magic number is wrong; the text names position and field.
    """
    if _cut_natively is not None:
        cut = _cut_natively(buffer, queue, ReceivedMessage)
        if cut is not None:
            return cut
    return _split(buffer, queue)


def _split(buffer: bytes, queue: MessageQueue) -> list[ReceivedMessage]:
    messages: list[ReceivedMessage] = []
    position = 0
    end = len(buffer)
    cut = _CUT.unpack_from
    while position < end:
        if position + RECORD_BYTES_MIN > end:
            raise CodecError(
                f"record at position {position}: {end - position} bytes left, a record has at "
                f"least {RECORD_BYTES_MIN}"
            )
        size, magic, queue_offset = cut(buffer, position)
        if magic not in _MAGICS or size < RECORD_BYTES_MIN:
            raise CodecError(
                f"record at position {position}: magic {magic & 0xFFFFFFFF:#010x} and total size "
                f"{size} are not those of a record"
            )
        if position + size > end:
            raise CodecError(
                f"record at position {position}: total size {size}, only {end - position} bytes "
                "are there"
            )
        messages.append(ReceivedMessage(queue, queue_offset, size, buffer, position))
        position += size
    return messages
