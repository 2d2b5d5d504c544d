"""Store directories written record by record, and what the row decoder reads from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cometmq.codec.compression import compress, decompress
from cometmq.codec.consume_queue import CQ_UNIT
from cometmq.codec.java_hash import tags_code
from cometmq.codec.stored_message import BLANK, MAGIC_BLANK, decode_message, encode_message

if TYPE_CHECKING:
    from pathlib import Path

HOST = bytes([10, 0, 0, 7, 0, 0, 0x2A, 0x9F])
HOST_V6 = bytes(range(16)) + bytes([0, 0, 0x2A, 0x9F])
FILE_BYTES = 4096


@dataclass
class MadeStore:
    """A log of small files and the queues that point into it."""

    root: Path
    files: list[bytearray] = field(default_factory=lambda: [bytearray()])
    queues: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    records: list[tuple[int, bytes]] = field(default_factory=list)

    def put(
        self,
        body: bytes = b"body",
        properties: bytes = b"",
        *,
        topic: str = "T",
        queue_id: int = 0,
        sys_flag: int = 0,
        kind: str | None = None,
        store_ms: int = 1_700_000_000_000,
        **fields: Any,
    ) -> int:
        """Append a record and its unit; its physical offset."""
        if kind is not None:
            body, flag = compress(body, kind)
            sys_flag |= flag
        units = self.queues.setdefault((topic, queue_id), [])
        for _ in range(2):
            position = (len(self.files) - 1) * FILE_BYTES + len(self.files[-1])
            values: dict[str, Any] = {
                "flag": 0,
                "born_timestamp_ms": store_ms,
                "reconsume_times": 0,
                "prepared_transaction_offset": 0,
                "born_host": HOST_V6 if sys_flag & 0x10 else HOST,
                "store_host": HOST_V6 if sys_flag & 0x20 else HOST,
            }
            record = encode_message(
                topic,
                body,
                properties,
                queue_id=queue_id,
                queue_offset=len(units),
                physical_offset=position,
                sys_flag=sys_flag,
                store_timestamp_ms=store_ms,
                **{**values, **fields},
            )
            left = FILE_BYTES - len(self.files[-1])
            if len(record) + 8 <= left:
                break
            self.files[-1] += BLANK.pack(left, MAGIC_BLANK) + bytes(left - 8)
            self.files.append(bytearray())
        self.files[-1] += record
        tags = decode_message(record).properties.get("TAGS")
        units.append(CQ_UNIT.pack(position, len(record), tags_code(tags)))
        self.records.append((position, record))
        return position

    def write(self) -> Path:
        """Make the directory; every file full-size."""
        log = self.root / "commitlog"
        log.mkdir(parents=True)
        for number, raw in enumerate(self.files):
            padded = bytes(raw) + bytes(FILE_BYTES - len(raw))
            (log / f"{number * FILE_BYTES:020d}").write_bytes(padded)
        for (topic, queue_id), units in self.queues.items():
            folder = self.root / "consumequeue" / topic / str(queue_id)
            folder.mkdir(parents=True)
            raw_units = b"".join(units)
            for start in range(0, max(1, len(raw_units)), 200):
                part = raw_units[start : start + 200]
                (folder / f"{start:020d}").write_bytes(part + bytes(200 - len(part)))
        return self.root

    def spoil(self, position: int, *, mask: int = 1) -> None:
        """Flip bits of one byte of the written log."""
        start = position // FILE_BYTES * FILE_BYTES
        path = self.root / "commitlog" / f"{start:020d}"
        raw = bytearray(path.read_bytes())
        raw[position - start] ^= mask
        path.write_bytes(raw)

    def rows(self) -> list[dict[str, Any]]:
        """Every record as the row decoder reads it, in log order, in a scan's columns."""
        return [expected_row(record) for _, record in self.records]


def expected_row(record: bytes) -> dict[str, Any]:
    """A record's columns from `decode_message`; times as ms."""
    message = decode_message(record)
    return {
        "topic": message.topic,
        "broker": None,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.physical_offset,
        "body": decompress(message.body, message.sys_flag),
        "tags": message.properties.get("TAGS"),
        "keys": message.properties.get("KEYS"),
        "properties": message.properties,
        "bornTimestamp": message.born_timestamp_ms,
        "storeTimestamp": message.store_timestamp_ms,
        "bornHost": message.born_address,
        "storeHost": message.store_address,
        "msgId": message.offset_message_id,
        "uniqKey": message.properties.get("UNIQ_KEY"),
        "reconsumeTimes": message.reconsume_times,
        "sysFlag": message.sys_flag,
        "_corrupt_record": None,
    }
