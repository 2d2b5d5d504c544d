"""Moves parked messages to the end of their log before retention deletes them.

Once a minute, the member that has a lane's queue moves each lane whose oldest copy has reached half
the retention time.  `core.extensions.parking` explains why a move is one step.  A group without
members moves nothing; `cometmq parking list` shows when its messages expire.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final

from cometmq.client.base.reading import QueueReader
from cometmq.client.extensions.parking.log import ParkingQueue
from cometmq.client.message.message import ReceivedMessage
from cometmq.core.extensions.parking import HaltedLane, LaneState, ParkedMessage
from cometmq.errors import CometError
from cometmq.net.env import Clock

__all__ = ["LaneMover", "read_parked"]

log = logging.getLogger("cometmq.client")

CHECK_S: Final = 60.0
ReadUpTo = Callable[[int], Awaitable[None]]


async def read_parked(
    reader: QueueReader, queue: ParkingQueue, messages: Sequence[ParkedMessage]
) -> AsyncIterator[tuple[ParkedMessage, ReceivedMessage]]:
    """Read copies in the order of their lane; copies that retention has deleted are skipped."""
    start = 0
    for place in range(1, len(messages) + 1):
        # After a move, later copies of a lane may have lower offsets than earlier ones.
        if place < len(messages) and messages[place].park_offset > messages[place - 1].park_offset:
            continue
        wanted = {one.park_offset: one for one in messages[start:place]}
        first, last = messages[start].park_offset, messages[place - 1].park_offset
        async for message in reader.read(queue.queue, first, last + 1):
            one = wanted.get(message.queue_offset)
            if one is not None:
                yield one, message
        start = place


class LaneMover:
    """Moves the old lanes of one broker's log.

    Args:
        lanes: the lanes of the log as read so far.
        may_move: whether this member may move a lane now.
        read_up_to: waits until the log was read up to an offset.
    """

    def __init__(
        self,
        reader: QueueReader,
        queue: ParkingQueue,
        clock: Clock,
        lanes: Callable[[], Mapping[str, HaltedLane]],
        may_move: Callable[[HaltedLane], bool],
        read_up_to: ReadUpTo,
    ) -> None:
        self._reader = reader
        self._queue = queue
        self._clock = clock
        self._lanes = lanes
        self._may_move = may_move
        self._read_up_to = read_up_to

    async def run(self) -> None:
        """Move old lanes, once a minute."""
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                await self.move_old()
            except CometError as error:
                log.warning("%s: parked messages were not moved: %s", self._queue.queue, error)

    async def move_old(self) -> int:
        """Move the lanes that are old enough, and return their number.

        Raises:
            CometError: the log was not read or written; the other lanes are moved next time.
        """
        if not self._lanes():
            return 0
        age_ms = await self._queue.retention_ms() // 2
        old_ms = self._clock.now_ms() - age_ms
        old = [
            name
            for name, lane in self._lanes().items()
            if lane.messages and lane.oldest_ms < old_ms and self._is_movable(lane)
        ]
        moved = 0
        for name in old:
            moved += await self._move(name)
        return moved

    def _is_movable(self, lane: HaltedLane) -> bool:
        return lane.state is LaneState.PARKED and lane.opened_by is None and self._may_move(lane)

    async def _move(self, name: str) -> bool:
        """Copy a lane to the end of its log; False if the lane changed in the meantime."""
        lane = self._lanes().get(name)
        if lane is None or not self._is_movable(lane):
            return False
        copies = [one for one in lane.messages if not one.is_repeat]
        now_ms = self._clock.now_ms()
        move = f"{copies[0].park_offset}-{now_ms}"
        count, end = 0, -1
        async for one, message in read_parked(self._reader, self._queue, copies):
            now = self._lanes().get(name)
            if now is None or not self._is_movable(now):
                break
            end = await self._queue.append_moved(name, one, message, move)
            count += 1
        if end < 0:
            return False
        await self._read_up_to(end + 1)
        now = self._lanes().get(name)
        is_fit = (
            now is not None
            and count == len(copies)
            and self._is_movable(now)
            and now.is_ready_to_move(move, count)
        )
        end = await self._queue.append_move(name, move, count if is_fit else 0)
        await self._read_up_to(end + 1)
        if is_fit:
            log.info(
                "%s: %d messages of %r were moved to the log's end", self._queue.queue, count, name
            )
        return is_fit
