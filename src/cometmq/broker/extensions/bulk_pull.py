"""BULK_PULL: answers a pull with a span of a queue, up to some MiB of records as the log has them.

A worker gathers the span, one at a time for each connection: only workers read units and records,
so the loop does not block.

Whatever is no long span is answered as an ordinary pull: few messages, none (long polling), a queue
offset out of range, an operator's reset, a first record that needs repair.  So a span has no
statuses of its own, and pull.py makes the checks.

The memory for one connection is bounded.  A span is gathered only while less than UNSENT_BYTES_MAX
waits to be sent on the connection.  REQUESTS_MAX requests may wait; one more is refused with
SYSTEM_BUSY.  The server cuts a connection whose peer reads nothing for a minute.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.broker.base.state import BrokerState, Refusal, answer
from cometmq.broker.pull.late_commits import is_late
from cometmq.errors import ResponseCode
from cometmq.model.flags import PULL_COMMIT_OFFSET
from cometmq.model.offsets import ConsumerOffset, QueueOffset
from cometmq.net.env import let_go
from cometmq.store.read.span import Span, SpanWish
from cometmq.wire.command.command import FLAG_ONEWAY, RemotingCommand, encode_response_parts
from cometmq.wire.extensions.bulk_pull import (
    BYTES_DEFAULT,
    BYTES_MAX,
    BulkPullHeader,
    BulkPullResponseHeader,
)

if TYPE_CHECKING:
    from cometmq.broker.pull.filters import RecordFilter
    from cometmq.broker.pull.pull import Frame, PullProcessor
    from cometmq.model.group import SubscriptionGroupConfig
    from cometmq.model.topic import TopicConfig
    from cometmq.net.server import ServerConnection

__all__ = ["REQUESTS_MAX", "UNSENT_BYTES_MAX", "BulkPullProcessor"]

REQUESTS_MAX: Final = 4096
"""So many bulk pulls of one connection may wait, a kilobyte each; a consumer has one per queue."""
UNSENT_BYTES_MAX: Final = 4 << 20
"""A slow reader takes at most this and one span (BYTES_MAX) of the broker's memory."""
_COUNT_MAX: Final = 1 << 20
_HEAD_BYTES: Final = 1024
"""Room for the frame's head in front of a span; a head has about 350 bytes."""
_WINDOW_CHECK_S: Final = 10.0


class _Job(NamedTuple):
    """One request that passed its checks."""

    request: RemotingCommand
    header: BulkPullHeader
    topic: TopicConfig
    group: SubscriptionGroupConfig
    codes: frozenset[int] | None
    filtered: RecordFilter | None


class _Backlog:
    """The bulk pulls of one connection, one after the other."""

    __slots__ = ("connection", "is_busy", "waiting")

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        self.waiting: deque[_Job] = deque()
        self.is_busy = False


class BulkPullProcessor:
    """The processor of code 31001."""

    def __init__(self, state: BrokerState, pull: PullProcessor) -> None:
        self._state = state
        self._pull = pull
        self._backlogs: dict[ServerConnection, _Backlog] = {}
        self._timer: asyncio.TimerHandle | None = None

    def pull(self, request: RemotingCommand, connection: ServerConnection, now_ms: int) -> Frame:
        """Serve BULK_PULL (31001); None when a worker gathers a span."""
        header = BulkPullHeader.from_command(request)
        state, store = self._state, self._state.store
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        if state.offsets.is_after_loss:
            return self._pull.pull_with(request, header, connection, now_ms)
        available_count = store.max_queue_offset(topic, queue_id) - header.queue_offset
        if (
            min(available_count, header.max_msg_nums) <= store.config.transfer_count_max
            or header.queue_offset < store.min_queue_offset(topic, queue_id)
            or request.flag & FLAG_ONEWAY
            or state.offsets.has_reset(group, topic, queue_id)
            or state.shares.is_split(group)
            or state.skipped.concerns(group)
        ):
            return self._pull.pull_with(request, header, connection, now_ms)
        try:
            topic_config, group_config, codes, filtered = self._pull.check(
                header, connection, now_ms
            )
        except Refusal as refusal:
            return answer(request, refusal.code, refusal.remark, refusal.ext)
        if filtered is not None and codes is not None:
            # A retry topic is filtered by tags and by the filters of its messages' own topics.
            # Such pulls are rare and short.
            return self._pull.pull_with(request, header, connection, now_ms)
        backlog = self._backlogs.get(connection)
        if backlog is None:
            backlog = self._backlogs[connection] = _Backlog(connection)
            connection.when_drained = lambda: self._next(backlog)
        if len(backlog.waiting) >= REQUESTS_MAX:
            return answer(
                request,
                ResponseCode.SYSTEM_BUSY,
                f"{len(backlog.waiting)} bulk pulls of this connection wait already, {REQUESTS_MAX}"
                " may; read their answers first",
            )
        if header.sys_flag & PULL_COMMIT_OFFSET:
            header.sys_flag &= ~PULL_COMMIT_OFFSET
            where = topic, queue_id, ConsumerOffset(header.commit_offset)
            if not is_late(state, None, group, *where, connection, now_ms):
                state.offsets.commit(group, *where, now_ms)
        backlog.waiting.append(_Job(request, header, topic_config, group_config, codes, filtered))
        self._next(backlog)
        return None

    def drop_connection(self, connection: ServerConnection) -> None:
        """Forget the requests of a lost connection."""
        backlog = self._backlogs.pop(connection, None)
        if backlog is not None:
            backlog.waiting.clear()
            connection.when_drained = None

    def stop(self) -> None:
        """Forget everything."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for backlog in self._backlogs.values():
            backlog.waiting.clear()
        self._backlogs.clear()

    # -- inside -----------------------------------------------------------------------------

    def _next(self, backlog: _Backlog) -> None:
        """Begin with the next request, unless one is under way or too much waits to be sent."""
        if (
            backlog.is_busy
            or not backlog.waiting
            or backlog.connection.unsent_bytes > UNSENT_BYTES_MAX
        ):
            return
        backlog.is_busy = True
        job = backlog.waiting.popleft()
        header, store = job.header, self._state.store
        wanted_bytes = header.max_msg_bytes
        max_bytes = BYTES_DEFAULT if not wanted_bytes or wanted_bytes < 0 else wanted_bytes
        wish = SpanWish(
            header.topic,
            header.queue_id,
            QueueOffset(header.queue_offset),
            store.max_queue_offset(header.topic, header.queue_id),
            store.confirmed_offset,
            min(header.max_msg_nums, _COUNT_MAX),
            min(max_bytes, BYTES_MAX),
            _HEAD_BYTES,
            bool(header.with_sizes),
        )
        spans, wanted = store.spans, job.filtered

        def read() -> Span | None:
            if wanted is None:
                return spans.read(wish, job.codes)
            return spans.read_matching(
                wish, wanted.matches, wanted.hint, wanted.needles, let_go=let_go
            )

        self._state.env.workers.submit(read, lambda span: self._gathered(backlog, job, span))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WINDOW_CHECK_S, self._drop_windows)

    def _gathered(self, backlog: _Backlog, job: _Job, span: Span | BaseException | None) -> None:
        backlog.is_busy = False
        connection = backlog.connection
        if connection.is_closed or connection not in self._backlogs:
            return
        frame: Frame | memoryview
        if isinstance(span, BaseException):
            frame = answer(
                job.request,
                ResponseCode.SYSTEM_ERROR,
                f"a span of {job.header.topic}, queue {job.header.queue_id} from offset"
                f" {job.header.queue_offset} cannot be read: {span}",
            )
        elif span is None or self._state.skipped.concerns(job.header.consumer_group):
            # An ordinary pull repairs the first record, and passes over what was skipped meanwhile.
            now_ms = self._state.env.clock.now_ms()
            frame = self._pull.pull_with(job.request, job.header, connection, now_ms)
        else:
            frame = self._answer(job, span)
            self._state.store.spans.keep_buffer(span.data)
        if frame is not None:
            connection.send(frame)
        # `send` flushes later in this turn; after that the unsent bytes are known.
        asyncio.get_running_loop().call_soon(self._next, backlog)

    def _answer(self, job: _Job, span: Span) -> memoryview | list[bytes | memoryview]:
        """Return the frame of a span; its head is written in front of the span without a copy."""
        header, store = job.header, self._state.store
        stats = self._state.stats
        body = memoryview(span.data)[span.start : span.end]
        if span.record_count:
            code, remark = ResponseCode.SUCCESS, "FOUND"
            stats.got(
                header.topic,
                header.consumer_group,
                header.queue_id,
                span.record_count,
                len(body) - span.sizes_bytes,
                span.following,
            )
        else:
            code, remark = ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE"
            stats.missed_pulls += 1
        fields = BulkPullResponseHeader(
            0,
            span.following,
            store.min_queue_offset(header.topic, header.queue_id),
            store.max_queue_offset(header.topic, header.queue_id),
            topic_sys_flag=job.topic.topic_sys_flag,
            group_sys_flag=job.group.group_sys_flag,
            msg_count=span.record_count,
            sizes_bytes=span.sizes_bytes,
        )
        request = job.request
        parts = encode_response_parts(
            request.opaque, request.serialize_type, code, remark, fields.to_ext(), [body]
        )
        head = parts[0]
        if len(head) > span.start:
            return parts
        begin = span.start - len(head)
        span.data[begin : span.start] = head
        return memoryview(span.data)[begin : span.end]

    def _drop_windows(self) -> None:
        self._timer = None
        if self._state.store.spans.drop_idle():
            self._timer = asyncio.get_running_loop().call_later(_WINDOW_CHECK_S, self._drop_windows)
