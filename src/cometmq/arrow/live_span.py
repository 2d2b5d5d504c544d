"""The records of one queue between two offsets, pulled from its broker as record batches."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from cometmq.arrow.batches import BatchMaker, Damage
from cometmq.arrow.columns import schema_of
from cometmq.arrow.decode import QueueRows, decode_records
from cometmq.codec.stored_message import RECORD_BYTES_MIN
from cometmq.errors import (
    BrokerBusy,
    ConnectFailed,
    NoRoute,
    OffsetOutOfRange,
    RemoteProtocolError,
    RequestTimeout,
    ResponseCode,
    remote_error,
)
from cometmq.model.flags import PULL_SUBSCRIPTION
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.extensions.bulk_pull import (
    BYTES_DEFAULT,
    BulkPullCode,
    BulkPullHeader,
    BulkPullResponseHeader,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from cometmq.arrow.live import LiveCluster, QueueId
    from cometmq.arrow.options import ScanOptions, ScanReport
    from cometmq.net.pipelined import PipelinedChannel

__all__ = ["WireRecords", "read_span", "walk_sizes"]

_PULL_COUNT: Final = 32
"""The most records that a broker returns for an ordinary pull."""
_COUNT_MAX: Final = 1 << 20
_PULL_ANSWERS: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
_BUSY: Final = (ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL)
_QUEUE_OFFSET_POSITION: Final = 20

_SIZE: Final = struct.Struct(">i")


class WireRecords:
    """Records as a broker sent them, one after the other."""

    __slots__ = ("buffer", "bytes", "map", "size", "start")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self.start: int | None = None
        self.size = len(data)
        self.map: Any = memoryview(data)
        self.bytes: NDArray[np.uint8] = np.frombuffer(data, np.uint8)
        self.buffer: Any = pa.py_buffer(data)


@dataclass(slots=True)
class Chunk:
    """Consecutive records of a queue, as the broker sent them."""

    data: bytes | bytearray | memoryview
    sizes: NDArray[np.int64]
    first: int
    """Queue offset of the request."""
    following: int
    """Queue offset after the last unit that the broker examined."""


def read_span(
    cluster: LiveCluster,
    queue: QueueId,
    start: int,
    end: int,
    options: ScanOptions,
    report: ScanReport,
    *,
    skip_expired: bool = False,
) -> Iterator[Any]:
    """The records of a queue from offset `start` up to, not including, `end`, as record batches.

    The options give columns, tags, times, mode and batch size; their topic, queues and offsets
    are ignored.  The report is filled while the caller takes batches.  With `skip_expired` the
    read passes over messages that retention has deleted, before or during the read, and counts
    them in `report.expired`.

    Raises:
        OffsetOutOfRange: the broker does not hold `start` to `end`.
        RemoteProtocolError: an answer makes no sense.
        ClientError, RemoteError: the broker does not answer in time or refuses.
    """
    if options.broker is None:
        options = replace(options, broker=queue.broker)
    maker = BatchMaker(options, report, schema_of(options.columns))
    for chunk in _pulled(cluster, queue, start, end, options, report, skip_expired=skip_expired):
        for batch in _decoded(chunk, queue, end, options, maker):
            if batch.num_rows:
                report.rows += batch.num_rows
                yield batch


def _decoded(
    chunk: Chunk, queue: QueueId, end: int, options: ScanOptions, maker: BatchMaker
) -> Iterator[Any]:
    if not len(chunk.sizes):
        # The broker examined units and none has a requested tag.
        return
    records = WireRecords(chunk.data)
    size = chunk.sizes
    start = np.cumsum(size) - size
    count = len(size)
    if count == chunk.following - chunk.first:
        queue_offsets = np.arange(chunk.first, chunk.following, dtype=np.int64)
    else:
        head = start + _QUEUE_OFFSET_POSITION
        view = np.ndarray((len(records.bytes) - 7,), "V8", records.map, strides=(1,))
        queue_offsets = view[head].view(">i8").astype(np.int64)
    if chunk.following > end:
        keep = queue_offsets < end
        start, size, queue_offsets = start[keep], size[keep], queue_offsets[keep]
    for begin in range(0, len(size), options.batch_rows):
        part = slice(begin, begin + options.batch_rows)
        queue_rows = QueueRows(queue.topic, queue.queue_id, queue_offsets[part])
        decoded = decode_records(records, start[part], size[part], options, queue_rows)
        damages = [
            Damage(
                fault.row,
                f"{queue}, offset {int(queue_rows.queue_offsets[fault.row])}",
                None,
                fault.reason,
            )
            for fault in decoded.faults
        ]
        yield maker.batch(decoded, damages, queue_rows)


class _Puller:
    """Pulls a span; sends the next request before the caller decodes the last answer."""

    def __init__(
        self, cluster: LiveCluster, queue: QueueId, start: int, end: int, options: ScanOptions
    ) -> None:
        self._cluster = cluster
        self._queue = queue
        self._end = end
        tags, self._sql92 = options.tags, options.sql92
        self._expression = "*" if tags is None else " || ".join(tags)
        self._channel: PipelinedChannel | None = None
        self._opaque = -1
        self.position = start
        """Queue offset of the outstanding request."""

    def ask(self, position: int) -> None:
        """Send the request for this queue offset, if a connection is open."""
        self.position = position
        if self._channel is None or self._channel.is_closed or position >= self._end:
            return
        try:
            (self._opaque,) = self._channel.post([self._command()], self._cluster.timeout_ms)
        except ConnectFailed:
            # `answer` notices the lost connection and reconnects.
            return

    def answer(self) -> tuple[RemotingCommand, memoryview]:
        """The answer to the outstanding request, repeated as long as the cluster's retries last."""
        cluster = self._cluster
        cluster.check_open()
        patience = cluster.patience()
        while True:
            try:
                if self._channel is None or self._channel.is_closed:
                    address = cluster.address(self._queue, is_fresh=patience.is_tried)
                    self._channel = cluster.take_channel(address)
                    self.ask(self.position)
                answer, body = self._channel.take(self._opaque, cluster.timeout_ms)
                if answer.code in _BUSY:
                    raise BrokerBusy(answer.code, answer.remark)
                if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    return answer, body
                if self._queue.broker in cluster.plain_brokers:
                    raise remote_error(answer.code, answer.remark)
                cluster.plain_brokers.add(self._queue.broker)
                self.ask(self.position)
            except (ConnectFailed, RequestTimeout, NoRoute) as error:
                patience.wait_after(error)
            except BrokerBusy as error:
                patience.wait_after(error)
                self.ask(self.position)

    def close(self, *, is_done: bool) -> None:
        """Give the connection back; close it first if an answer is still outstanding."""
        channel, self._channel = self._channel, None
        if channel is not None:
            if not is_done:
                channel.close()
            self._cluster.give_channel(channel)

    def _command(self) -> RemotingCommand:
        cluster, queue = self._cluster, self._queue
        # A broker evaluates SQL92 record by record, so it would answer a bulk pull as a plain one.
        is_plain = queue.broker in cluster.plain_brokers or self._sql92 is not None
        header = BulkPullHeader(
            cluster.group,
            queue.topic,
            queue.queue_id,
            self.position,
            min(_PULL_COUNT if is_plain else _COUNT_MAX, self._end - self.position),
            PULL_SUBSCRIPTION,
            0,
            0,
            self._expression if self._sql92 is None else self._sql92,
            0,
            "TAG" if self._sql92 is None else "SQL92",
            None if is_plain else BYTES_DEFAULT,
            with_sizes=None if is_plain else True,
        )
        code = RequestCode.PULL_MESSAGE if is_plain else BulkPullCode.BULK_PULL
        command = RemotingCommand.request(code, header.to_ext())
        if cluster.security.credentials is not None:
            cluster.security.credentials.sign_command(command)
        return command


def _pulled(
    cluster: LiveCluster,
    queue: QueueId,
    start: int,
    end: int,
    options: ScanOptions,
    report: ScanReport,
    *,
    skip_expired: bool,
) -> Iterator[Chunk]:
    """The chunks of all answers, in order."""
    puller = _Puller(cluster, queue, start, end, options)
    small = _SmallAnswers(options.batch_rows)
    position = start
    try:
        puller.ask(position)
        while position < end:
            answer, body = puller.answer()
            if answer.code not in _PULL_ANSWERS:
                raise remote_error(answer.code, answer.remark)
            header = BulkPullResponseHeader.from_command(answer)
            if answer.code in (ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_NOT_FOUND):
                if not (skip_expired and position < header.min_offset):
                    raise out_of_range(queue, position, end, header.min_offset, header.max_offset)
                report.expired += min(end, header.min_offset) - position
                yield from small.flush()
                position = header.min_offset
                puller.ask(position)
                continue
            first, position = position, header.next_begin_offset
            if position <= first:
                raise RemoteProtocolError(
                    f"{queue}: a pull of offset {first} was answered with next offset {position}"
                )
            puller.ask(position)
            if header.msg_count is None:
                yield from small.add(queue, body, first, position)
            else:
                yield from small.flush()
                yield _span_chunk(queue, body, header, first)
        yield from small.flush()
    finally:
        puller.close(is_done=position >= end)


def _span_chunk(
    queue: QueueId, body: memoryview, header: BulkPullResponseHeader, first: int
) -> Chunk:
    count, skip = header.msg_count or 0, header.sizes_bytes or 0
    if count < 0 or skip != 4 * count or skip > len(body):
        raise RemoteProtocolError(
            f"{queue}: a span of {count} records from offset {first} comes with {skip} bytes of"
            f" sizes in {len(body)} bytes"
        )
    sizes = np.frombuffer(body, ">i4", count).astype(np.int64)
    if (sizes < RECORD_BYTES_MIN).any() or int(sizes.sum()) != len(body) - skip:
        raise RemoteProtocolError(
            f"{queue}: the sizes of a span of {count} records from offset {first} add up to"
            f" {int(sizes.sum())}, {len(body) - skip} bytes are there"
        )
    return Chunk(body[skip:], sizes, first, header.next_begin_offset)


class _SmallAnswers:
    """Joins the answers of ordinary pulls until they make a batch."""

    def __init__(self, batch_rows: int) -> None:
        self._batch_rows = batch_rows
        self._parts: list[bytes] = []
        self._sizes: list[int] = []
        self._first = self._following = -1

    def add(self, queue: QueueId, body: memoryview, first: int, following: int) -> Iterator[Chunk]:
        """Add an answer; yields a chunk when there are enough rows for a batch."""
        if not self._parts:
            self._first = first
        # The connection reuses its buffer, so copy the bytes.
        data = bytes(body)
        sizes, walked = walk_sizes(data)
        if walked != len(data):
            raise RemoteProtocolError(
                f"{queue}: an answer of {len(data)} bytes to a pull of offset {first} holds no"
                f" record at {walked}"
            )
        self._parts.append(data)
        self._sizes += sizes
        self._following = following
        if len(self._sizes) >= self._batch_rows:
            yield from self.flush()

    def flush(self) -> Iterator[Chunk]:
        """Yields the rows added since the last chunk."""
        if self._sizes:
            data = b"".join(self._parts)
            yield Chunk(data, np.array(self._sizes, np.int64), self._first, self._following)
        self._parts, self._sizes = [], []


def out_of_range(
    queue: QueueId, queue_offset: int, end: int, min_offset: int, max_offset: int
) -> OffsetOutOfRange:
    """The error for a span that the broker does not hold completely."""
    reason = "has expired" if queue_offset < min_offset else "is not written yet"
    return OffsetOutOfRange(
        f"{queue} holds offsets {min_offset} up to {max_offset}: {queue_offset}, of the span up"
        f" to {end}, {reason}",
        queue_offset,
        min_offset,
        max_offset,
    )


def walk_sizes(data: bytes | bytearray | memoryview) -> tuple[list[int], int]:
    """Sizes of consecutive records, and the position after the last of them.

    The walk stops before the end of the data at a size that is not a record's.
    """
    sizes: list[int] = []
    unpack = _SIZE.unpack_from
    position, end = 0, len(data)
    while position + RECORD_BYTES_MIN <= end:
        (size,) = unpack(data, position)
        if not RECORD_BYTES_MIN <= size <= end - position:
            break
        sizes.append(size)
        position += size
    return sizes, position
