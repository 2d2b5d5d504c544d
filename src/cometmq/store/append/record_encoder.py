"""Encodes records of any form, single ones and batches, and the shared part of simple records.

A *simple* record has two IPv4 hosts and no CRC tail, as nearly all have.  `Appender.append` and
`encode_packed` encode simple records themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from zlib import crc32

from cometmq.codec.consume_queue import CQ_UNIT
from cometmq.codec.crc import CRC_TAIL_BYTES, encode_crc_tail
from cometmq.codec.properties import PROPERTIES_BYTES_MAX, ensure_trailing_separator
from cometmq.codec.stored_message import ORIGIN_V4, encode_message
from cometmq.errors import MessageIllegal
from cometmq.model.flags import BORN_HOST_V6, STORE_HOST_V6
from cometmq.store.base.results import PutItem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.store.base.config import StoreConfig
    from cometmq.store.base.results import BatchItem
    from cometmq.store.queue.consume_queue import ConsumeQueue

__all__ = [
    "EncodedBatch",
    "RecordEncoder",
    "check_sizes",
]

_pack_origin: Final = ORIGIN_V4.pack
_pack_unit: Final = CQ_UNIT.pack
_V4_BYTES: Final = 8

EncodedBatch = tuple[bytes, bytes, list[int]]
"""The joined records, their joined units, and the physical offset of each record."""


def check_sizes(body_bytes: int, properties_bytes: int, body_bytes_max: int) -> None:
    """Refuse a message whose body or properties are too long.

    Raises:
        MessageIllegal: body or properties are over their limit.
    """
    if body_bytes > body_bytes_max:
        raise MessageIllegal(
            f"message body of {body_bytes} bytes is over maxMessageSize {body_bytes_max}"
        )
    if properties_bytes > PROPERTIES_BYTES_MAX:
        raise MessageIllegal(
            f"message properties of {properties_bytes} bytes are over {PROPERTIES_BYTES_MAX}"
        )


class RecordEncoder:
    """Encodes records with the host, the limits and the CRC setting of one store."""

    def __init__(self, config: StoreConfig) -> None:
        self._store_host = config.store_host
        self._body_max = config.message_bytes_max
        self._is_crc_appended = config.is_crc_appended
        self._is_simple = len(config.store_host) == _V4_BYTES and not config.is_crc_appended

    def is_simple(self, born_host: bytes) -> bool:
        """Return whether messages from this host can be simple records."""
        return self._is_simple and len(born_host) == _V4_BYTES

    def origin(
        self, born_host: bytes, store_ms: int, reconsume_times: int = 0, prepared_offset: int = 0
    ) -> bytes | None:
        """Return the bytes that all simple records of one connection and millisecond share.

        Returns None when a record of the connection cannot be simple.
        """
        if not self.is_simple(born_host):
            return None
        return _pack_origin(born_host, store_ms, self._store_host, reconsume_times, prepared_offset)

    def encode(
        self,
        queue: ConsumeQueue,
        position: int,
        queue_offset: int,
        item: PutItem,
        born_host: bytes,
        store_ms: int,
    ) -> bytes:
        """Encode one record of any form: with IPv6 hosts, or a CRC tail if the store appends one.

        Raises:
            MessageIllegal: body or properties are over their limit.
        """
        sys_flag = item.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6)
        if len(born_host) != _V4_BYTES:
            sys_flag |= BORN_HOST_V6
        if len(self._store_host) != _V4_BYTES:
            sys_flag |= STORE_HOST_V6
        properties = item.properties
        if self._is_crc_appended:
            properties = ensure_trailing_separator(properties) + bytes(CRC_TAIL_BYTES)
        check_sizes(len(item.body), len(properties), self._body_max)
        record = encode_message(
            queue.topic,
            item.body,
            properties,
            queue_id=queue.queue_id,
            flag=item.flag,
            queue_offset=queue_offset,
            physical_offset=position,
            sys_flag=sys_flag,
            born_timestamp_ms=item.born_ms,
            born_host=born_host,
            store_timestamp_ms=store_ms,
            store_host=self._store_host,
            reconsume_times=item.reconsume_times,
            prepared_transaction_offset=item.prepared_offset,
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
        store_ms: int,
    ) -> EncodedBatch:
        """Encode the records and units of a batch.

        Args:
            position: physical offset of the first record.

        Raises:
            MessageIllegal: a body or its properties are over their limit.
        """
        records: list[bytes] = []
        units: list[bytes] = []
        offsets: list[int] = []
        for queue_offset, item in enumerate(items, queue.max):
            message = PutItem(
                queue.topic, queue.queue_id, item.body, item.properties, item.flag, sys_flag,
                born_ms, item.tags_code, item.index_keys,
            )  # fmt: skip
            record = self.encode(queue, position, queue_offset, message, born_host, store_ms)
            records.append(record)
            units.append(_pack_unit(position, len(record), item.tags_code))
            offsets.append(position)
            position += len(record)
        return b"".join(records), b"".join(units), offsets
