"""Op messages: records that name ended half messages, and the offsets of the transaction group.

The writer gathers the queue offsets of ended half messages and writes them in RocketMQ's format.
It moves the offsets of ``CID_RMQ_SYS_TRANS`` in the half queue and the op queue behind everything
that is ended *and* durable.

One op message names everything gathered, so an op message names every end before it: recovery
searches only behind the last one (`load`).

Durable when (process death / power cut):
    op message       it was put / with the log's next flush
    group's offsets  as every group's, and never beyond what the log has on stable storage
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from cometmq.broker.base.state import BrokerState
from cometmq.broker.transaction.load import TRANSACTION_GROUP, LoadedTransactions
from cometmq.codec.java_hash import tags_code
from cometmq.core.transaction.open_transactions import OP_TAG, OpenHalves, encode_op_body
from cometmq.errors import StoreError
from cometmq.model.names import HALF_TOPIC, OP_HALF_TOPIC
from cometmq.model.offsets import ConsumerOffset

__all__ = ["OpWriter"]

log = logging.getLogger("cometmq.broker")

RETRY_MS: Final = 1000
"""Pause after an op message that the store did not take."""
_PROPERTIES: Final = f"TAGS\x01{OP_TAG}\x02".encode()
_TAGS_CODE: Final = tags_code(OP_TAG)
_INDEX_KEYS: Final = (None, None, OP_TAG)
_SEARCH_BYTES: Final = 64 << 20
"""While transactions are open, an op message is written whenever the log has grown by so much, even
one that names nothing: it bounds what recovery reads."""
_BODY_BYTES_MAX: Final = 1 << 20


class OpWriter:
    """Writes the op messages of one broker, and moves the group's offsets on."""

    def __init__(self, state: BrokerState, loaded: LoadedTransactions) -> None:
        self._state = state
        self._halves: OpenHalves = loaded.halves
        self._ops = loaded.ops
        self._gathered: list[int] = []
        self._gathered_bytes = 0
        self._waiting: list[Callable[[int], None]] = []
        self._advances: deque[tuple[int, int]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self._last_op_end = state.store.max_physical_offset
        self.half_next = loaded.half_next
        self.op_next = loaded.op_next
        self.at: Callable[[str], None] = lambda name: None
        """Set by `TransactionService.at`."""
        for queue_offset in loaded.unnamed_ended:
            self._gather(queue_offset)

    @property
    def gathered_count(self) -> int:
        """Half messages that are ended and not named by an op message yet."""
        return len(self._gathered)

    def start(self) -> None:
        """Have the ends written soon that no op message named at the start."""
        if self._gathered:
            self._arm(self._state.config.transaction_op_batch_interval)

    def stop(self) -> None:
        """Write what is gathered.  The broker takes no messages after this."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._write()

    def ended(self, queue_offset: int) -> None:
        """Note the queue offset of an ended half message; it is written within the interval."""
        self.ended_together((queue_offset,))

    def ended_together(self, queue_offsets: Sequence[int]) -> None:
        """Note several ended half messages; one op message names all of them.

        Their commits lie in the log already, and recovery searches for commits behind the last op
        message only.  So an op message that named some of them would hide the others.
        """
        for queue_offset in queue_offsets:
            self._gather(queue_offset)
        if self._gathered_bytes >= self._state.config.transaction_op_msg_max_size:
            self.flush()
        elif self._timer is None:
            self._arm(self._state.config.transaction_op_batch_interval)

    def when_written(self, callback: Callable[[int], None]) -> None:
        """Write at the end of this turn of the loop; call back with the log's end.

        The end is -1 where the store did not take the op message.
        """
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        self._waiting.append(callback)

    def flush(self) -> None:
        """Write what is gathered now, and move the offsets on."""
        end = self._write()
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback(end)
        self.move_on()

    def mark(self) -> None:
        """Bound what recovery reads for transactions that stay open for long."""
        grown = self._state.store.max_physical_offset - self._last_op_end
        if self._halves and grown > _SEARCH_BYTES:
            self._put([])

    def move_on(self) -> None:
        """Move the group's offsets behind everything that is ended and durable."""
        store = self._state.store
        first = self._halves.first()
        half_next = store.end_of_queue(HALF_TOPIC, 0) if first is None else first.queue_offset
        if half_next > (self._advances[-1][0] if self._advances else self.half_next):
            self._advances.append((half_next, store.max_physical_offset))
        moved = self.half_next
        while self._advances and self._advances[0][1] <= store.flushed_offset:
            moved = self._advances.popleft()[0]
        if moved != self.half_next:
            self.half_next = moved
            self._commit(HALF_TOPIC, ConsumerOffset(moved))
            self.at("offset.half")
        op_next = self.op_next
        while self._ops and self._ops[0][1] < moved:
            op_next = self._ops.popleft()[0] + 1
        if op_next != self.op_next:
            self.op_next = op_next
            self._commit(OP_HALF_TOPIC, ConsumerOffset(op_next))
            self.at("offset.op")
        if self._advances and self._timer is None and not self._is_stopped:
            # Some of it is not durable yet: try again later.
            self._arm(self._state.config.transaction_op_batch_interval)

    def _commit(self, topic: str, consumer_offset: ConsumerOffset) -> None:
        now_ms = self._state.env.clock.now_ms()
        self._state.offsets.commit(TRANSACTION_GROUP, topic, 0, consumer_offset, now_ms)

    def _gather(self, queue_offset: int) -> None:
        self._gathered.append(queue_offset)
        self._gathered_bytes += len(str(queue_offset)) + 1

    def _write(self) -> int:
        """Put one op message with everything gathered; return the log's end, -1 on failure."""
        if not self._gathered:
            return self._state.store.max_physical_offset
        self.at("op.before")
        if self._put(self._gathered) < 0:
            self._arm(RETRY_MS)
            return -1
        self._gathered = []
        self._gathered_bytes = 0
        self.at("op.put")
        return self._last_op_end

    def _put(self, queue_offsets: list[int]) -> int:
        state = self._state
        now_ms = state.env.clock.now_ms()
        try:
            result = state.store.put(
                OP_HALF_TOPIC,
                0,
                encode_op_body(queue_offsets),
                _PROPERTIES,
                born_ms=now_ms,
                born_host=state.host,
                tags_code=_TAGS_CODE,
                store_ms=now_ms,
                # Java's broker indexes it so, and so does recovery when it reads the record again.
                index_keys=_INDEX_KEYS,
            )
        except StoreError as error:
            log.error("%d ended transactions cannot be noted: %s", len(queue_offsets), error)
            return -1
        self._ops.append((result.queue_offset, max(queue_offsets, default=-1)))
        self._last_op_end = result.end_offset
        return result.end_offset

    def is_refusing(self) -> bool:
        """Whether no transaction may be ended, since too many ends wait for a full store."""
        return self._gathered_bytes > _BODY_BYTES_MAX

    def _arm(self, wait_ms: int) -> None:
        if self._is_stopped:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.flush()
