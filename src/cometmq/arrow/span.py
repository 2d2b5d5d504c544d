"""The records of one queue between two offsets, read from its broker.

Job: `read_span`: answers of pulls in, record batches out.  It must not choose offsets or queues.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cometmq.arrow.batches import BatchMaker, Damage
from cometmq.arrow.columns import schema_of
from cometmq.arrow.decode import Place, decode_records
from cometmq.arrow.records import WireRecords, walk_sizes
from cometmq.errors import OffsetOutOfRange, RemoteProtocolError, ResponseCode, remote_error
from cometmq.model.flags import PULL_SUBSCRIPTION
from cometmq.wire.codes import RequestCode
from cometmq.wire.command import RemotingCommand
from cometmq.wire.headers import PullMessageHeader, PullResponseHeader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from cometmq.arrow.live import LiveCluster, QueueId
    from cometmq.arrow.options import ScanOptions, ScanReport

__all__ = ["read_span"]

_PULL_COUNT: Final = 32
"""More than this a broker does not give in one answer."""
_QUEUE_OFFSET_POSITION: Final = 20


@dataclass(slots=True)
class Chunk:
    """Consecutive records of a queue, as they came."""

    data: bytes | bytearray | memoryview
    sizes: NDArray[np.int64]
    first: int
    """Queue offset asked for."""
    following: int
    """Queue offset behind the last that was looked at."""


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

    Columns, tags, times, mode and batch size are those of the options; its topic, queues and
    offsets are not looked at.  The report is filled while batches are taken.

    Raises OffsetOutOfRange when the broker does not hold `start` to `end`; with `skip_expired`
    what retention has taken (also while the span is read) is passed over and counted in
    `report.expired`.
    """
    if options.broker is None:
        options = replace(options, broker=queue.broker)
    maker = BatchMaker(options, report, schema_of(options.columns))
    for chunk in _pulled(cluster, queue, start, end, options, report, skip_expired=skip_expired):
        batch = _decoded(chunk, queue, end, options, maker)
        if batch.num_rows:
            report.rows += batch.num_rows
            yield batch


def _decoded(
    chunk: Chunk, queue: QueueId, end: int, options: ScanOptions, maker: BatchMaker
) -> Any:
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
    if count and chunk.following > end:
        keep = queue_offsets < end
        start, size, queue_offsets = start[keep], size[keep], queue_offsets[keep]
    place = Place(queue.topic, queue.queue_id, queue_offsets)
    decoded = decode_records(records, start, size, options, place)
    damages = [
        Damage(fault.row, f"{queue}, offset {int(queue_offsets[fault.row])}", None, fault.reason)
        for fault in decoded.faults
    ]
    return maker.batch(decoded, damages, place)


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
    """By ordinary pulls, one after the other."""
    parts: list[bytes] = []
    sizes: list[int] = []
    first = here = start
    while here < end:
        answer = cluster.ask(queue, _pull(cluster, queue, here, end, options))
        if answer.code in (ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_NOT_FOUND):
            header = PullResponseHeader.from_command(answer)
            first_there = header.min_offset
            if not (skip_expired and here < first_there):
                raise out_of_range(queue, here, end, header.min_offset, header.max_offset)
            report.expired += min(end, first_there) - here
            if sizes:
                yield Chunk(b"".join(parts), np.array(sizes, np.int64), first, here)
                parts, sizes = [], []
            first = here = first_there
            continue
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY):
            raise remote_error(answer.code, answer.remark)
        following = PullResponseHeader.from_command(answer).next_begin_offset
        if following <= here:
            raise RemoteProtocolError(
                f"{queue}: a pull of offset {here} was answered with next offset {following}"
            )
        if answer.body:
            found, walked = walk_sizes(answer.body)
            if walked != len(answer.body):
                raise RemoteProtocolError(
                    f"{queue}: an answer of {len(answer.body)} bytes to a pull of offset {here}"
                    f" holds no record at {walked}"
                )
            parts.append(answer.body)
            sizes += found
        here = following
        if len(sizes) >= options.batch_rows:
            yield Chunk(b"".join(parts), np.array(sizes, np.int64), first, here)
            parts, sizes, first = [], [], here
    if sizes:
        yield Chunk(b"".join(parts), np.array(sizes, np.int64), first, here)


def out_of_range(
    queue: QueueId, queue_offset: int, end: int, min_offset: int, max_offset: int
) -> OffsetOutOfRange:
    """The error for a span that the broker does not hold."""
    what = "has expired" if queue_offset < min_offset else "is not written yet"
    return OffsetOutOfRange(
        f"{queue} holds offsets {min_offset} up to {max_offset}: {queue_offset}, of the span up"
        f" to {end}, {what}",
        queue_offset,
        min_offset,
        max_offset,
    )


def _pull(
    cluster: LiveCluster, queue: QueueId, here: int, end: int, options: ScanOptions
) -> RemotingCommand:
    header = PullMessageHeader(
        cluster.group,
        queue.topic,
        queue.queue_id,
        here,
        min(_PULL_COUNT, end - here),
        PULL_SUBSCRIPTION,
        0,
        0,
        "*" if options.tags is None else " || ".join(options.tags),
        0,
        "TAG",
    )
    return RemotingCommand.request(RequestCode.PULL_MESSAGE, header.to_ext())
