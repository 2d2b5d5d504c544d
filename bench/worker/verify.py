"""Verification: a run counts only if every acknowledged message is read back unchanged.

Reads the stored-message layout with its own few lines (docs/internals/protocol.md#stored-message)
rather than with `codec`, so that a mistake shared by our encoder and our decoder does not pass. Per
record it checks magic, topic, the stored CRC against the bytes, and the bytes against what the
generator rendered for the message id in the body; then it compares (queue, queue offset, message
id) of all records with the acknowledgements.
"""

from __future__ import annotations

import asyncio
import struct
import time
import zlib
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from bench.base.frames import ID_DIGITS, MESSAGES_PER_FRAME_MAX, FrameRing, Targets
from bench.worker.generator import Sent
from bench.worker.pulls import Cursor, PullRun, ReadBack
from cometmq.errors import CometError

__all__ = [
    "READER_GROUP",
    "RecordReader",
    "Rendered",
    "Verdict",
    "VerifyFailed",
    "acknowledged_rows",
    "compare_rows",
    "compare_with_acks",
    "cursors_of",
    "read_back",
]

READER_GROUP: Final = "cometmq_bench"
READ_BACK_S_MAX: Final = 600.0
READ_BACK_CONNECTIONS: Final = 4
READ_BACK_WINDOW: Final = 4
QUEUES_BEHIND_S: Final = 0.05
QUEUES_BEHIND_S_MAX: Final = 20.0

#                 totalSize magic crc queueId flag queueOffset physicalOffset sysFlag
_HEAD: Final = struct.Struct(">IIIi4xq8xi")
MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
IPV6_EXTRA_BYTES: Final = 12
BODY_LENGTH_POSITION: Final = 84

Ints = npt.NDArray[np.int64]


class Rendered(Protocol):
    """What verification needs to know about the sent messages; `FrameRing` implements it.

    A message id is frame number x 1000 + index in the frame.
    """

    targets: Targets
    messages_per_frame: int
    sent: int

    def body_crc(self, message_id: int) -> int:
        """CRC-32 (31 bits) of the body that was sent under an id."""
        ...


class VerifyFailed(CometError):
    """The messages read back are not the acknowledged ones; the run does not count."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The numbers of acknowledged and of read messages; only expired ones may be missing."""

    acknowledged: int
    read_back: int
    expired: int = 0


@dataclass(slots=True)
class RecordReader:
    """Reads pull bodies of one run and notes (queue index, queue offset, message id, size).

    `ring` is the ring that rendered the messages.  Faults are counted; the first few are kept as
    sentences.
    """

    ring: Rendered
    places: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    message_ids: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    fault_count: int = 0

    def fault(self, text: str) -> None:
        """Count a fault; keep the first ones for the error text."""
        self.fault_count += 1
        if len(self.faults) < 5:
            self.faults.append(text)

    def read(self, cursor: Cursor, body: bytes) -> int:
        """Check the records of one answer for a queue; return their number."""
        topic = cursor.topic.encode()
        position = 0
        end = len(body)
        records = 0
        while position < end:
            size = self._record(cursor, topic, body, position, end)
            if not size:
                return records
            position += size
            records += 1
        return records

    def _record(self, cursor: Cursor, topic: bytes, body: bytes, position: int, end: int) -> int:
        if end - position < BODY_LENGTH_POSITION + 4:
            self.fault(f"{end - position} bytes left over in a pull body of {end}")
            return 0
        size, magic, crc, queue_id, queue_offset, sys_flag = _HEAD.unpack_from(body, position)
        if magic not in {MAGIC_V1, MAGIC_V2} or size > end - position:
            self.fault(
                f"{cursor.topic} queue {cursor.queue_id}: record at byte {position} of {end} has "
                f"magic {magic:#x} and size {size}"
            )
            return 0
        start = position + BODY_LENGTH_POSITION
        if sys_flag & 0x30:
            start += IPV6_EXTRA_BYTES * ((sys_flag >> 4 & 1) + (sys_flag >> 5 & 1))
        length = int.from_bytes(body[start : start + 4], "big")
        stop = start + 4 + length
        content = body[start + 4 : stop]
        name = stop + (1 if magic == MAGIC_V1 else 2)
        place = f"{cursor.topic} queue {cursor.queue_id} offset {queue_offset}"
        if body[name : name + len(topic)] != topic or queue_id != cursor.queue_id:
            self.fault(f"{place} holds a record of another topic or queue ({queue_id})")
            return int(size)
        if zlib.crc32(content) & 0x7FFFFFFF != crc:
            self.fault(f"{place}: the body does not have the stored CRC {crc}")
            return int(size)
        head = content[:ID_DIGITS]
        if not head.isdigit() or not self._is_ours(int(head), crc):
            self.fault(f"{place}: the body is not the one that was sent under its id {head!r}")
            return int(size)
        self.places.append(cursor.index)
        self.offsets.append(queue_offset)
        self.message_ids.append(int(head))
        self.sizes.append(size)
        return int(size)

    def _is_ours(self, message_id: int, crc: int) -> bool:
        frame, index = divmod(message_id, MESSAGES_PER_FRAME_MAX)
        if frame >= self.ring.sent or index >= self.ring.messages_per_frame:
            return False
        return self.ring.body_crc(message_id) == crc

    def table(self) -> Ints:
        """Rows (queue index, queue offset, message id, record size), sorted by the first two."""
        rows = np.array(
            [self.places, self.offsets, self.message_ids, self.sizes], np.int64
        ).T.reshape(-1, 4)
        return rows[np.lexsort((rows[:, 1], rows[:, 0]))]


def cursors_of(targets: Targets) -> list[Cursor]:
    """A cursor for each queue of a run; its index is topic index * queue count + queue id."""
    return [
        Cursor(targets.topic(topic), queue, topic * targets.queue_count + queue)
        for topic in range(targets.topic_count)
        for queue in range(targets.queue_count)
    ]


async def read_back(ring: Rendered, address: str, acknowledged: Ints) -> RecordReader:
    """Read every queue of the run's topics to its end.

    A broker may acknowledge a message before its queue has it; RocketMQ's fills queues behind the
    log.  So a queue that ends before its last acknowledged message is read again, until 20 s pass
    in which nothing comes.

    Args:
        ring: rendered the messages.
        address: of the broker.
        acknowledged: rows that begin with queue index and queue offset.
    """
    reader = RecordReader(ring)
    cursors = cursors_of(ring.targets)
    ends = np.zeros(len(cursors), np.int64)
    np.maximum.at(ends, acknowledged[:, 0], acknowledged[:, 1] + 1)
    last_read, deadline_s = -1, 0.0
    while True:
        run = PullRun(
            ReadBack(reader.read),
            cursors,
            connections=READ_BACK_CONNECTIONS,
            group=READER_GROUP,
            active=READ_BACK_WINDOW,
        )
        await run.open(address)
        run.start()
        await run.finish(READ_BACK_S_MAX)
        now_s = time.monotonic()
        if len(reader.offsets) > last_read:
            last_read, deadline_s = len(reader.offsets), now_s + QUEUES_BEHIND_S_MAX
        is_complete = all(cursor.queue_offset >= ends[cursor.index] for cursor in cursors)
        if is_complete or now_s >= deadline_s:
            return reader
        await asyncio.sleep(QUEUES_BEHIND_S)


def acknowledged_rows(ring: FrameRing, sent: Sent) -> Ints:
    """Sorted rows (queue index, queue offset, message id) of the acknowledged messages."""
    count = ring.messages_per_frame
    targets = ring.targets
    per_row = np.array([targets.of_row(row)[0] for row in range(ring.rows)], np.int64)
    topics = per_row[sent.frame_number % ring.rows]
    steps = np.arange(count, dtype=np.int64)
    places = np.repeat(topics * targets.queue_count + sent.queue_id, count)
    offsets = (sent.queue_offset[:, None] + steps).ravel()
    ids = (sent.frame_number[:, None] * MESSAGES_PER_FRAME_MAX + steps).ravel()
    order = np.lexsort((offsets, places))
    return np.stack([places[order], offsets[order], ids[order]], axis=1)


def _still_there(acknowledged: Ints, found: Ints) -> Ints:
    """The acknowledged rows that their queues still hold, from the oldest read row on."""
    if not len(found):
        return acknowledged
    places = int(max(acknowledged[:, 0].max(initial=0), found[:, 0].max())) + 1
    oldest = np.full(places, np.iinfo(np.int64).max, np.int64)
    np.minimum.at(oldest, found[:, 0], found[:, 1])
    return acknowledged[acknowledged[:, 1] >= oldest[acknowledged[:, 0]]]


def compare_with_acks(
    ring: FrameRing, sent: Sent, reader: RecordReader, *, may_expire: bool = False
) -> Verdict:
    """Compare (queue, queue offset, message id) of acknowledged and read messages.

    With `may_expire` each queue may lack its oldest messages, but none after the first one read.

    Raises:
        VerifyFailed: a message was refused, is missing or changed, or exists without an
            acknowledgement.
    """
    if sent.refused:
        (code, remark), times = sent.refused.most_common(1)[0]
        raise VerifyFailed(
            f"{sum(sent.refused.values())} of {ring.sent} requests were refused, "
            f"{times} of them with code {code}: {remark}"
        )
    everything = acknowledged_rows(ring, sent)
    return compare_rows(everything, reader, may_expire=may_expire)


def compare_rows(everything: Ints, reader: RecordReader, *, may_expire: bool = False) -> Verdict:
    """Compare rows (queue index, queue offset, message id), sorted by the first two, with `reader`.

    Raises:
        VerifyFailed: as `compare_with_acks`.
    """
    if reader.fault_count:
        raise VerifyFailed(
            f"{reader.fault_count} records read back are wrong: " + "; ".join(reader.faults)
        )
    found = reader.table()[:, :3]
    acknowledged = _still_there(everything, found) if may_expire else everything
    if acknowledged.shape == found.shape and bool((acknowledged == found).all()):
        return Verdict(len(everything), len(found), len(everything) - len(acknowledged))
    wanted, there = set(map(tuple, acknowledged.tolist())), set(map(tuple, found.tolist()))
    raise VerifyFailed(
        f"{len(acknowledged)} messages were acknowledged and {len(found)} read back; "
        f"{len(wanted - there)} acknowledged ones are missing or changed, "
        f"{len(there - wanted)} others are there; the first of each (queue, queue offset, "
        f"message id): {sorted(wanted - there)[:2]} {sorted(there - wanted)[:2]}"
    )
