"""Turns what is put into bytes of the log: batches, and the general form of single messages.

Job: records and units for given positions.  It must not place them; the message store does, and
has its own copy of the single message with two IPv4 hosts and no CRC tail, its hottest path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from zlib import crc32

from cometmq.codec.consume_queue import CQ_UNIT
from cometmq.codec.crc import CRC_TAIL_BYTES, encode_crc_tail
from cometmq.codec.properties import PROPERTIES_BYTES_MAX, ensure_trailing_separator
from cometmq.codec.stored_message import HEAD_V4, encode_message
from cometmq.errors import MessageIllegal
from cometmq.model.flags import BORN_HOST_V6, STORE_HOST_V6

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.store.config import StoreConfig
    from cometmq.store.consume_queue import ConsumeQueue
    from cometmq.store.results import BatchItem

__all__ = ["LENGTHS", "LENGTHS_COUNT", "EncodedBatch", "RecordEncoder", "check_sizes"]

_pack_head: Final = HEAD_V4.pack
_pack_unit: Final = CQ_UNIT.pack
_CRC_MASK: Final = 0x7FFFFFFF
_V4_BYTES: Final = 8

# The length field of usual properties, ready made: an eighth of a microsecond a message.
LENGTHS_COUNT: Final = 1024
LENGTHS: Final = [length.to_bytes(2, "big") for length in range(LENGTHS_COUNT)]

EncodedBatch = tuple[bytes, bytes, list[int]]
"""Records in a row, their units in a row, the physical offset of each record."""


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
        self.is_wide = len(config.store_host) != _V4_BYTES or config.is_crc_appended
        """Whether every record needs the general form."""

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
        if self.is_wide or len(born_host) != _V4_BYTES:
            return self._encode_batch_wide(
                queue, items, position, sys_flag, born_ms, born_host, reconsume_times, store_ms
            )
        queue_offset = queue.max
        queue_id, magic, topic_part = queue.queue_id, queue.magic, queue.topic_part
        fixed, body_max = queue.fixed_bytes, self._body_max
        store_host = self._store_host
        parts: list[bytes] = []
        units: list[bytes] = []
        offsets: list[int] = []
        for flag, body, properties, tags_code, _ in items:
            body_bytes = len(body)
            properties_bytes = len(properties)
            if body_bytes > body_max or properties_bytes > PROPERTIES_BYTES_MAX:
                check_sizes(body_bytes, properties_bytes, body_max)
            size = fixed + body_bytes + properties_bytes
            parts += (
                _pack_head(
                    size,
                    magic,
                    crc32(body) & _CRC_MASK,
                    queue_id,
                    flag,
                    queue_offset,
                    position,
                    sys_flag,
                    born_ms,
                    born_host,
                    store_ms,
                    store_host,
                    reconsume_times,
                    0,
                    body_bytes,
                ),
                body,
                topic_part,
                LENGTHS[properties_bytes]
                if properties_bytes < LENGTHS_COUNT
                else properties_bytes.to_bytes(2, "big"),
                properties,
            )
            units.append(_pack_unit(position, size, tags_code))
            offsets.append(position)
            position += size
            queue_offset += 1
        return b"".join(parts), b"".join(units), offsets

    def _encode_batch_wide(
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
