"""Turns what is put into bytes of the log: the simple record, batches, and the general form.

Job: records and units for given positions.  It must not place them (appender.py does).

Simple is what nearly every message is: two IPv4 hosts, no CRC tail, properties of less than
LENGTHS_COUNT bytes.  Its layout stands in `record_parts` only, which all three ways to put call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from zlib import crc32

from cometmq.codec.consume_queue import CQ_UNIT
from cometmq.codec.crc import CRC_TAIL_BYTES, encode_crc_tail
from cometmq.codec.properties import PROPERTIES_BYTES_MAX, ensure_trailing_separator
from cometmq.codec.stored_message import HEAD_WITH_ORIGIN_V4, ORIGIN_V4, encode_message
from cometmq.errors import MessageIllegal
from cometmq.model.flags import BORN_HOST_V6, STORE_HOST_V6

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.store.base.config import StoreConfig
    from cometmq.store.base.results import BatchItem
    from cometmq.store.queue.consume_queue import ConsumeQueue

__all__ = [
    "LENGTHS_COUNT",
    "EncodedBatch",
    "RecordEncoder",
    "check_sizes",
    "record_parts",
]

_pack_head: Final = HEAD_WITH_ORIGIN_V4.pack
_pack_origin: Final = ORIGIN_V4.pack
_pack_unit: Final = CQ_UNIT.pack
_CRC_MASK: Final = 0x7FFFFFFF
_V4_BYTES: Final = 8

# The length field of usual properties, ready made: an eighth of a microsecond a message.
LENGTHS_COUNT: Final = 1024
_LENGTHS: Final = [length.to_bytes(2, "big") for length in range(LENGTHS_COUNT)]

EncodedBatch = tuple[bytes, bytes, list[int]]
"""Records in a row, their units in a row, the physical offset of each record."""


def record_parts(
    queue: ConsumeQueue,
    queue_offset: int,
    position: int,
    size: int,
    body: bytes,
    properties: bytes,
    flag: int,
    sys_flag: int,
    born_ms: int,
    origin: bytes,
) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """A simple record in pieces, to be joined; HOT, so the caller checks sizes.

    `size` is `queue.fixed_bytes` with body and properties, `origin` what `RecordEncoder.origin`
    gave for the connection.
    """
    return (
        _pack_head(
            size,
            queue.magic,
            crc32(body) & _CRC_MASK,
            queue.queue_id,
            flag,
            queue_offset,
            position,
            sys_flag,
            born_ms,
            origin,
            len(body),
        ),
        body,
        queue.topic_part,
        _LENGTHS[len(properties)],
        properties,
    )


def check_sizes(body_bytes: int, properties_bytes: int, body_bytes_max: int) -> None:
    """Raise MessageIllegal when body or properties are over their limit."""
    if body_bytes > body_bytes_max:
        raise MessageIllegal(
            f"message body of {body_bytes} bytes is over maxMessageSize {body_bytes_max}"
        )
    if properties_bytes > PROPERTIES_BYTES_MAX:
        raise MessageIllegal(
            f"message properties of {properties_bytes} bytes are over {PROPERTIES_BYTES_MAX}"
        )


class RecordEncoder:
    """Encodes for one store: its host, its limits, its CRC tails."""

    def __init__(self, config: StoreConfig) -> None:
        self._store_host = config.store_host
        self._body_max = config.message_bytes_max
        self._is_crc_appended = config.is_crc_appended
        self._is_simple = len(config.store_host) == _V4_BYTES and not config.is_crc_appended

    def is_simple(self, born_host: bytes) -> bool:
        """Whether records of this host can be simple ones."""
        return self._is_simple and len(born_host) == _V4_BYTES

    def origin(
        self, born_host: bytes, store_ms: int, reconsume_times: int = 0, prepared_offset: int = 0
    ) -> bytes | None:
        """What the records of one connection and millisecond share; None: not simple ones."""
        if not self.is_simple(born_host):
            return None
        return _pack_origin(born_host, store_ms, self._store_host, reconsume_times, prepared_offset)

    def encode(
        self,
        queue: ConsumeQueue,
        position: int,
        queue_offset: int,
        body: bytes,
        properties: bytes,
        flag: int,
        sys_flag: int,
        born_ms: int,
        born_host: bytes,
        reconsume_times: int,
        prepared_offset: int,
        store_ms: int,
    ) -> bytes:
        """One record in the general form: any hosts, a CRC tail if the store appends them."""
        sys_flag &= ~(BORN_HOST_V6 | STORE_HOST_V6)
        if len(born_host) != _V4_BYTES:
            sys_flag |= BORN_HOST_V6
        if len(self._store_host) != _V4_BYTES:
            sys_flag |= STORE_HOST_V6
        if self._is_crc_appended:
            properties = ensure_trailing_separator(properties) + bytes(CRC_TAIL_BYTES)
        check_sizes(len(body), len(properties), self._body_max)
        record = encode_message(
            queue.topic,
            body,
            properties,
            queue_id=queue.queue_id,
            flag=flag,
            queue_offset=queue_offset,
            physical_offset=position,
            sys_flag=sys_flag,
            born_timestamp_ms=born_ms,
            born_host=born_host,
            store_timestamp_ms=store_ms,
            store_host=self._store_host,
            reconsume_times=reconsume_times,
            prepared_transaction_offset=prepared_offset,
        )
        if self._is_crc_appended:
            record = record[:-CRC_TAIL_BYTES]
            record += encode_crc_tail(crc32(record))
        return record

    def encode_batch(
        self,
        queue: ConsumeQueue,
        items: Sequence[BatchItem],
        position: int,
        sys_flag: int,
        born_ms: int,
        born_host: bytes,
        reconsume_times: int,
        store_ms: int,
    ) -> EncodedBatch:
        """Records and units of a batch that begins at a physical offset."""
        origin = self.origin(born_host, store_ms, reconsume_times)
        first = position
        queue_offset = queue.max
        fixed, body_max = queue.fixed_bytes, self._body_max
        parts: list[bytes] = []
        units: list[bytes] = []
        offsets: list[int] = []
        for flag, body, properties, tags_code, _ in items:
            body_bytes = len(body)
            properties_bytes = len(properties)
            if origin is None or body_bytes > body_max or properties_bytes >= LENGTHS_COUNT:
                return self._encode_batch_generally(
                    queue, items, first, sys_flag, born_ms, born_host, reconsume_times, store_ms
                )
            size = fixed + body_bytes + properties_bytes
            parts += record_parts(
                queue,
                queue_offset,
                position,
                size,
                body,
                properties,
                flag,
                sys_flag,
                born_ms,
                origin,
            )
            units.append(_pack_unit(position, size, tags_code))
            offsets.append(position)
            position += size
            queue_offset += 1
        return b"".join(parts), b"".join(units), offsets

    def _encode_batch_generally(
        self,
        queue: ConsumeQueue,
        items: Sequence[BatchItem],
        position: int,
        sys_flag: int,
        born_ms: int,
        born_host: bytes,
        reconsume_times: int,
        store_ms: int,
    ) -> EncodedBatch:
        parts: list[bytes] = []
        units: list[bytes] = []
        offsets: list[int] = []
        for place, (flag, body, properties, tags_code, _) in enumerate(items):
            record = self.encode(
                queue,
                position,
                queue.max + place,
                body,
                properties,
                flag,
                sys_flag,
                born_ms,
                born_host,
                reconsume_times,
                0,
                store_ms,
            )
            parts.append(record)
            units.append(_pack_unit(position, len(record), tags_code))
            offsets.append(position)
            position += len(record)
        return b"".join(parts), b"".join(units), offsets
