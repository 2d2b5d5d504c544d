"""The stored message: one record of the commit log and of every pull answer.

Big-endian, back to back, no padding (``MessageDecoder``, ``CommitLog``;
docs/internals/protocol.md#stored-message, docs/internals/store.md#commit-log-record). With two IPv4
hosts::

    0      4      8      12     16     20            28             36
    |total |magic |crc   |queue |flag  |queue_offset |phys_offset   |
    36        40             48         56             64          72
    |sys_flag |born_ms       |born_host |store_ms      |store_host |
    72         76                 84        88       88+b
    |reconsume |prepared_offset   |body_len |body... |topic_len 1 (V2: 2)|topic...|plen 2|props...|

An IPv6 host takes 20 bytes instead of 8 (sysFlag 0x10 born, 0x20 store).  V1 holds topics of up
to 127 bytes; V2 differs in magic and in the width of the topic length.  A commit-log file ends
with a blank: its length and MAGIC_BLANK.

This module must not verify more than the layout: a record's CRCs are checked on request only.
"""

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from cometmq.codec.crc import body_crc as crc_of_body
from cometmq.codec.crc import is_record_crc_right
from cometmq.codec.ids import HOST_V4_BYTES, HOST_V6_BYTES, decode_host, offset_message_id
from cometmq.codec.properties import PROPERTIES_BYTES_MAX, decode_properties
from cometmq.errors import CodecError, LocalProtocolError
from cometmq.model.offsets import PhysicalOffset, QueueOffset

__all__ = [
    "BLANK",
    "BLANK_BYTES",
    "BODY_POSITION_V4",
    "BORN_HOST_V6_FLAG",
    "FIXED_BYTES_V1",
    "HEAD_V4",
    "HEAD_WITH_ORIGIN_V4",
    "MAGIC_BLANK",
    "MAGIC_V1",
    "MAGIC_V2",
    "ORIGIN_V4",
    "PHYSICAL_OFFSET_POSITION",
    "RECORD_BYTES_MIN",
    "STORE_HOST_V6_FLAG",
    "STORE_TIMESTAMP_POSITION_V4",
    "SYS_FLAG_POSITION",
    "TOPIC_BYTES_MAX_V1",
    "BrokenRecord",
    "RecordHeader",
    "StoredMessage",
    "decode_message",
    "decode_messages",
    "decode_messages_lenient",
    "encode_message",
    "properties_of",
    "read_record_header",
    "record_size",
]

MAGIC_V1: Final = -626843481  # 0xDAA320A7
MAGIC_V2: Final = -626843477  # 0xDAA320AB
MAGIC_BLANK: Final = -875286124  # 0xCBD43194

HEAD_V4: Final = struct.Struct(
    ">"
    "i"  # 0  total_size, including itself
    "i"  # 4  magic
    "i"  # 8  body_crc
    "i"  # 12 queue_id
    "i"  # 16 flag, the user's
    "q"  # 20 queue_offset
    "q"  # 28 physical_offset
    "i"  # 36 sys_flag
    "q"  # 40 born_timestamp_ms
    "8s"  # 48 born_host
    "q"  # 56 store_timestamp_ms
    "8s"  # 64 store_host
    "i"  # 72 reconsume_times
    "q"  # 76 prepared_transaction_offset
    "i"  # 84 body_bytes
)
# The same in two parts: records of one connection and millisecond share bytes 48 to 83, the origin,
# so that a writer of many records packs it once.
HEAD_WITH_ORIGIN_V4: Final = struct.Struct(">iiiiiqqiq36si")
ORIGIN_V4: Final = struct.Struct(">8sq8siq")
assert HEAD_WITH_ORIGIN_V4.size == HEAD_V4.size
assert ORIGIN_V4.size == 36
BLANK: Final = struct.Struct(">ii")  # remaining bytes of the file, MAGIC_BLANK
BLANK_BYTES: Final = 8
BODY_POSITION_V4: Final = 88
# Head, topic length (1) and properties length (2) of a V1 record with two IPv4 hosts.
FIXED_BYTES_V1: Final = 91
RECORD_BYTES_MIN: Final = FIXED_BYTES_V1
PHYSICAL_OFFSET_POSITION: Final = 28
SYS_FLAG_POSITION: Final = 36
STORE_TIMESTAMP_POSITION_V4: Final = 56
TOPIC_BYTES_MAX_V1: Final = 127
BORN_HOST_V6_FLAG: Final = 0x10
STORE_HOST_V6_FLAG: Final = 0x20
_ANY_V6: Final = 0x30
# The fields that lead to the properties: last byte of magic and of flags, length of the body.
_FOR_PROPERTIES: Final = struct.Struct(">7xB31xB44xI")
_HOST_V6_EXTRA: Final = HOST_V6_BYTES - HOST_V4_BYTES
_TOPIC_BYTES_MAX_V2: Final = 32767

_Buffer = bytes | bytearray | memoryview


class StoredMessage(msgspec.Struct, gc=False):
    """One stored message; its fields are in the order of the layout, hosts and properties raw.

    ``gc=False``: it refers to no container that could refer back.
    """

    total_size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    sys_flag: int
    born_timestamp_ms: int
    born_host: bytes
    store_timestamp_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body_bytes: int
    body: bytes
    topic: str
    raw_properties: bytes
    _properties: dict[str, str] | None = None

    @property
    def properties(self) -> dict[str, str]:
        """The properties, decoded on first use."""
        decoded = self._properties
        if decoded is None:
            decoded = self._properties = decode_properties(self.raw_properties)
        return decoded

    @property
    def offset_message_id(self) -> str:
        """Hex of store host and physical offset."""
        return offset_message_id(self.store_host, self.physical_offset)

    @property
    def born_address(self) -> str:
        """``ip:port`` of the producer."""
        return decode_host(self.born_host)

    @property
    def store_address(self) -> str:
        """``ip:port`` of the broker that stored the message."""
        return decode_host(self.store_host)

    @property
    def is_body_crc_right(self) -> bool:
        """Whether the body matches its CRC."""
        return crc_of_body(self.body) == self.body_crc

    def encode(self) -> bytes:
        """Return the record's bytes again, CRC and version as they were read."""
        return encode_message(
            self.topic,
            self.body,
            self.raw_properties,
            queue_id=self.queue_id,
            flag=self.flag,
            queue_offset=self.queue_offset,
            physical_offset=self.physical_offset,
            sys_flag=self.sys_flag,
            born_timestamp_ms=self.born_timestamp_ms,
            born_host=self.born_host,
            store_timestamp_ms=self.store_timestamp_ms,
            store_host=self.store_host,
            reconsume_times=self.reconsume_times,
            prepared_transaction_offset=self.prepared_transaction_offset,
            body_crc=self.body_crc,
            magic=self.magic,
        )


# The head of the layout is passed on as one unpacked tuple, which no checker can count.
_new_message: Final[Callable[..., StoredMessage]] = StoredMessage


class RecordHeader(NamedTuple):
    """What the store reads of a record without copying its body."""

    total_size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp_ms: int
    store_timestamp_ms: int
    reconsume_times: int
    prepared_transaction_offset: int
    body_position: int
    body_bytes: int


class BrokenRecord(NamedTuple):
    """A range of bytes that did not decode, and why."""

    position: int
    size: int
    reason: str


def record_size(
    body_bytes: int,
    topic_bytes: int,
    properties_bytes: int,
    *,
    sys_flag: int = 0,
    is_v2: bool = False,
) -> int:
    """Return the total size of a record."""
    size = FIXED_BYTES_V1 + body_bytes + topic_bytes + properties_bytes
    if is_v2:
        size += 1
    if sys_flag & BORN_HOST_V6_FLAG:
        size += _HOST_V6_EXTRA
    if sys_flag & STORE_HOST_V6_FLAG:
        size += _HOST_V6_EXTRA
    return size


def _host_bytes(sys_flag: int) -> tuple[int, int]:
    born = HOST_V6_BYTES if sys_flag & BORN_HOST_V6_FLAG else HOST_V4_BYTES
    store = HOST_V6_BYTES if sys_flag & STORE_HOST_V6_FLAG else HOST_V4_BYTES
    return born, store


_HEAD_V6: Final = {
    flags: struct.Struct(">iiiiiqqiq{}sq{}siqi".format(*_host_bytes(flags)))
    for flags in (0x10, 0x20, 0x30)
}


def _unpack_head(buffer: _Buffer, position: int) -> tuple[Any, ...]:
    """Return the head fields and, last, the position of the body."""
    try:
        head = HEAD_V4.unpack_from(buffer, position)
        v6 = head[7] & _ANY_V6
        if not v6:
            return (*head, position + BODY_POSITION_V4)
        layout = _HEAD_V6[v6]
        return (*layout.unpack_from(buffer, position), position + layout.size)
    except struct.error:
        raise _short_head(buffer, position) from None


def _short_head(buffer: _Buffer, position: int) -> CodecError:
    return CodecError(
        f"record at position {position}: {max(0, len(buffer) - position)} bytes left,"
        " fewer than its head needs"
    )


def read_record_header(buffer: _Buffer, position: int = 0) -> RecordHeader:
    """Return the head of the record at a position, without reading body, topic and properties.

    Raises:
        CodecError: the magic is unknown or the total size is below the minimum.
    """
    head = _unpack_head(buffer, position)
    if head[1] not in (MAGIC_V1, MAGIC_V2) or head[0] < RECORD_BYTES_MIN:
        raise _broken_head(position, head[0], head[1])
    return RecordHeader(
        head[0],
        head[1],
        head[2],
        head[3],
        head[4],
        head[5],
        head[6],
        head[7],
        head[8],
        head[10],
        head[12],
        head[13],
        head[15],
        head[14],
    )


def properties_of(record: _Buffer) -> bytes:
    """Return the property string of a record without decoding anything else.

    For scans of very many records. The caller knows that the bytes are a record.

    Raises:
        CodecError: its lengths lead out of the record.
    """
    try:
        magic, flags, body_bytes = _FOR_PROPERTIES.unpack_from(record)
        if flags & _ANY_V6:
            body_position = _unpack_head(record, 0)[-1]
            body_bytes = int.from_bytes(record[body_position - 4 : body_position], "big")
        else:
            body_position = BODY_POSITION_V4
        topic = body_position + body_bytes
        if magic == MAGIC_V2 & 0xFF:
            start = topic + 4 + int.from_bytes(record[topic : topic + 2], "big")
        else:
            start = topic + 3 + record[topic]
        length = record[start - 2] << 8 | record[start - 1]
    except (IndexError, struct.error):
        raise CodecError("the lengths of a record lead out of it") from None
    properties = bytes(record[start : start + length])
    if len(properties) != length:
        raise CodecError(f"a record ends {length - len(properties)} bytes before its properties do")
    return properties


def _broken_head(position: int, total_size: int, magic: int) -> CodecError:
    if magic not in (MAGIC_V1, MAGIC_V2):
        return CodecError(
            f"record at position {position}: magic {magic & 0xFFFFFFFF:#010x},"
            " expected 0xdaa320a7 or 0xdaa320ab"
        )
    return CodecError(
        f"record at position {position}: total size {total_size}, at least {RECORD_BYTES_MIN}"
    )


def decode_message(buffer: _Buffer, position: int = 0, *, check_crc: bool = False) -> StoredMessage:
    """Return the record at a position; ``check_crc`` also compares body CRC and CRC tail.

    Raises:
        CodecError: the layout does not hold; the text names position and field.
    """
    if type(buffer) is not bytes:
        size = int.from_bytes(buffer[position : position + 4], "big", signed=True)
        if size < RECORD_BYTES_MIN or position + size > len(buffer):
            raise CodecError(
                f"record at position {position}: total size {size}, {len(buffer) - position}"
                " bytes are there"
            )
        buffer = bytes(buffer[position : position + size])
        position = 0
    try:
        head = HEAD_V4.unpack_from(buffer, position)
    except struct.error:
        raise _short_head(buffer, position) from None
    # Nearly every record: version 1 between IPv4 hosts. All others, and all faults, below.
    if head[1] == MAGIC_V1 and not head[7] & _ANY_V6 and not check_crc:
        body_position = position + BODY_POSITION_V4
        body_end = body_position + head[14]
        end = position + head[0]
        if body_position <= body_end < end <= len(buffer):
            topic_end = body_end + 1 + buffer[body_end]
            if topic_end + 2 <= end and buffer[body_end] <= TOPIC_BYTES_MAX_V1:
                start = topic_end + 2
                length = (buffer[topic_end] << 8) | buffer[topic_end + 1]
                if start + length == end and length <= PROPERTIES_BYTES_MAX:
                    try:
                        topic = buffer[body_end + 1 : topic_end].decode()
                    except UnicodeDecodeError:
                        raise _explain(buffer, position, head, "topic (not UTF-8)") from None
                    return _new_message(
                        *head, buffer[body_position:body_end], topic, buffer[start:end]
                    )
    return _decode_any(buffer, position, head, check_crc=check_crc)


def _decode_any(
    buffer: bytes, position: int, head: tuple[Any, ...], *, check_crc: bool
) -> StoredMessage:
    body_position = position + BODY_POSITION_V4
    if head[7] & _ANY_V6:
        wide = _unpack_head(buffer, position)
        head, body_position = wide[:-1], wide[-1]
    message = _decode_tail(buffer, position, head, body_position)
    if check_crc:
        _check_crc(buffer, position, message)
    return message


def _decode_tail(
    buffer: bytes, position: int, head: tuple[Any, ...], body_position: int
) -> StoredMessage:
    body_end = body_position + head[14]
    end = position + head[0]
    # One comparison for the common faults; _explain tells them apart.
    if end > len(buffer) or head[14] < 0 or body_end + 3 > end:
        raise _explain(buffer, position, head, "body")
    # Both lengths are signed in Java: with the top bit set the record is refused, not read.
    if head[1] == MAGIC_V1:
        topic_position = body_end + 1
        topic_end = topic_position + buffer[body_end]
        is_topic_negative = buffer[body_end] > TOPIC_BYTES_MAX_V1
    elif head[1] == MAGIC_V2:
        topic_position = body_end + 2
        topic_end = topic_position + ((buffer[body_end] << 8) | buffer[body_end + 1])
        is_topic_negative = buffer[body_end] > 127
    else:
        raise _broken_head(position, head[0], head[1])
    properties_position = topic_end + 2
    if is_topic_negative or properties_position > end:
        raise _explain(buffer, position, head, "topic")
    properties_bytes = (buffer[topic_end] << 8) | buffer[topic_end + 1]
    if properties_position + properties_bytes != end or properties_bytes > PROPERTIES_BYTES_MAX:
        raise _explain(buffer, position, head, "properties")
    try:
        topic = buffer[topic_position:topic_end].decode()
    except UnicodeDecodeError:
        raise _explain(buffer, position, head, "topic (not UTF-8)") from None
    return _new_message(
        *head, buffer[body_position:body_end], topic, buffer[properties_position:end]
    )


def _explain(buffer: bytes, position: int, head: tuple[Any, ...], field: str) -> CodecError:
    if head[1] not in (MAGIC_V1, MAGIC_V2) or head[0] < RECORD_BYTES_MIN:
        return _broken_head(position, head[0], head[1])
    available = len(buffer) - position
    if head[0] > available:
        return CodecError(
            f"record at position {position}: total size {head[0]}, only {available} bytes are there"
        )
    return CodecError(
        f"record at position {position}: the {field} does not fit: total size {head[0]},"
        f" body of {head[14]} bytes"
    )


def _check_crc(buffer: bytes, position: int, message: StoredMessage) -> None:
    actual = crc_of_body(message.body)
    # Java writes 0 for an empty body and does not check it then.
    if message.body and actual != message.body_crc:
        raise CodecError(
            f"record at position {position}: body CRC {actual:#010x}, the record says"
            f" {message.body_crc:#010x}"
        )
    if is_record_crc_right(buffer[position : position + message.total_size]) is False:
        raise CodecError(f"record at position {position}: the CRC of the whole record is wrong")


def decode_messages(buffer: _Buffer) -> list[StoredMessage]:
    """Return all records of a pull answer.

    Raises:
        CodecError: a record does not decode; the text names its position.
    """
    raw = buffer if type(buffer) is bytes else bytes(buffer)
    messages: list[StoredMessage] = []
    position = 0
    end = len(raw)
    while position < end:
        message = decode_message(raw, position)
        messages.append(message)
        position += message.total_size
    return messages


def decode_messages_lenient(buffer: _Buffer) -> tuple[list[StoredMessage], list[BrokenRecord]]:
    """Return the records that decode and a report of those that do not.

    If the length of a broken record leads to another record, only that record is skipped. Otherwise
    everything up to the end of the buffer is reported as one broken range.
    """
    raw = buffer if type(buffer) is bytes else bytes(buffer)
    messages: list[StoredMessage] = []
    broken: list[BrokenRecord] = []
    position = 0
    end = len(raw)
    while position < end:
        try:
            message = decode_message(raw, position)
        except CodecError as error:
            size = int.from_bytes(raw[position : position + 4], "big", signed=True)
            following = position + size
            if size < RECORD_BYTES_MIN or not _starts_record(raw, following):
                following = end
            broken.append(BrokenRecord(position, following - position, str(error)))
            position = following
        else:
            messages.append(message)
            position += message.total_size
    return messages, broken


def _starts_record(raw: bytes, position: int) -> bool:
    if position == len(raw):
        return True
    magic = int.from_bytes(raw[position + 4 : position + 8], "big", signed=True)
    return magic in (MAGIC_V1, MAGIC_V2)


def encode_message(
    topic: str,
    body: bytes,
    properties: bytes = b"",
    *,
    queue_id: int = 0,
    flag: int = 0,
    queue_offset: int = 0,
    physical_offset: int = 0,
    sys_flag: int = 0,
    born_timestamp_ms: int = 0,
    born_host: bytes = bytes(HOST_V4_BYTES),
    store_timestamp_ms: int = 0,
    store_host: bytes = bytes(HOST_V4_BYTES),
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    body_crc: int | None = None,
    magic: int | None = None,
) -> bytes:
    """Return the bytes of a record: V1, or V2 for a topic of more than 127 bytes.

    ``body_crc`` and ``magic`` are computed when None.

    Raises:
        LocalProtocolError: a field does not fit, or hosts and sysFlag disagree about IPv6.
    """
    raw_topic = topic.encode()
    is_long_topic = len(raw_topic) > TOPIC_BYTES_MAX_V1
    if magic is None:
        magic = MAGIC_V2 if is_long_topic else MAGIC_V1
    is_v2 = magic == MAGIC_V2
    if len(raw_topic) > _TOPIC_BYTES_MAX_V2 or (is_long_topic and not is_v2):
        raise LocalProtocolError(f"topic of {len(raw_topic)} bytes does not fit the record")
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise LocalProtocolError(
            f"properties of {len(properties)} bytes; the limit is {PROPERTIES_BYTES_MAX}"
        )
    if (len(born_host), len(store_host)) != _host_bytes(sys_flag):
        raise LocalProtocolError(
            f"hosts of {len(born_host)} and {len(store_host)} bytes do not fit sysFlag"
            f" {sys_flag:#x}"
        )
    total_size = record_size(
        len(body), len(raw_topic), len(properties), sys_flag=sys_flag, is_v2=is_v2
    )
    v6 = sys_flag & _ANY_V6
    layout = _HEAD_V6[v6] if v6 else HEAD_V4
    head = layout.pack(
        total_size,
        magic,
        crc_of_body(body) if body_crc is None else body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp_ms,
        born_host,
        store_timestamp_ms,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        len(body),
    )
    topic_length = len(raw_topic).to_bytes(2 if is_v2 else 1, "big")
    return b"".join(
        (head, body, topic_length, raw_topic, len(properties).to_bytes(2, "big"), properties)
    )
