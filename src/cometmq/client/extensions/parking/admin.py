"""The parked lanes of a group, as an operator lists, retries and skips them.

An order is a record in the parking log; the group's members carry it out when they read it.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice

from cometmq.client.base.reading import QueueReader
from cometmq.client.extensions.parking.log import ParkingQueue
from cometmq.client.extensions.parking.moving import read_parked
from cometmq.client.message.message import ReceivedMessage
from cometmq.core.extensions.parking import HaltedLane, ParkedMessage, ParkKind
from cometmq.errors import ConfigError, QueryNotFound, ResponseCode
from cometmq.model.names import PARK_PREFIX, park_topic
from cometmq.net.env import Clock

__all__ = ["ParkedLane", "ParkedLanes", "parking_groups"]


@dataclass(frozen=True, slots=True)
class ParkedLane:
    """One parked lane at one broker."""

    name: str
    lane: HaltedLane
    queue: ParkingQueue
    expires_ms: int = 0
    """When retention may delete its first message, unless a member moves the lane before."""

    @property
    def message_group(self) -> str:
        """The message group of the lane; empty for messages without a group."""
        return self.name.partition("/")[2]

    async def messages(
        self, reader: QueueReader, count_max: int
    ) -> AsyncIterator[tuple[ParkedMessage, ReceivedMessage]]:
        """The first ``count_max`` messages of the lane, in order."""
        messages = list(islice(self.lane.messages, count_max))
        async for one, message in read_parked(reader, self.queue, messages):
            yield one, message


def parking_groups(topics: Sequence[str]) -> list[str]:
    """The consumer groups whose parking topic is among a cluster's topics."""
    return sorted(
        topic.removeprefix(PARK_PREFIX) for topic in topics if topic.startswith(PARK_PREFIX)
    )


class ParkedLanes:
    """The parked lanes of one consumer group."""

    def __init__(self, reader: QueueReader, group: str, clock: Clock) -> None:
        self.group = group
        self.reader = reader
        self._clock = clock

    async def all(self) -> list[ParkedLane]:
        """All parked lanes, sorted by name."""
        lanes_found: list[ParkedLane] = []
        for queue in await self.reader.queues(park_topic(self.group)):
            park = ParkingQueue(self.reader, self.group, queue.broker_name, self._clock)
            state = await park.state()
            kept_ms = await park.retention_ms() if state.lanes else 0
            lanes_found += [
                ParkedLane(name, lane, park, lane.oldest_ms + kept_ms)
                for name, lane in state.lanes.items()
            ]
        return sorted(lanes_found, key=lambda lane: (lane.name, lane.queue.queue))

    async def named(self, name: str) -> list[ParkedLane]:
        """The lane of a name, or of a message group that only one topic has.

        There is one lane per broker whose queues have the group.

        Raises:
            QueryNotFound: no such lane is parked; the error proposes a similar name.
            ConfigError: the message group is parked in more than one topic.
        """
        lanes = await self.all()
        lanes_found = [lane for lane in lanes if lane.name == name]
        if lanes_found:
            return lanes_found
        lanes_found = [lane for lane in lanes if lane.message_group == name]
        names = sorted({lane.name for lane in lanes_found})
        if len(names) > 1:
            raise ConfigError(
                f"the message group {name} is parked in more than one topic: name one of "
                f"{', '.join(names)}"
            )
        if lanes_found:
            return lanes_found
        known = sorted({lane.name for lane in lanes} | {lane.message_group for lane in lanes})
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"see cometmq parking list {self.group}"
        raise QueryNotFound(
            ResponseCode.QUERY_NOT_FOUND,
            f"nothing of {name} is parked for the group {self.group}; {hint}",
        )

    async def retry(self, lane: ParkedLane) -> None:
        """Have the messages of a lane consumed again, in order; durable when this returns."""
        await lane.queue.append_order(ParkKind.RETRY, lane.name)

    async def skip(self, lane: ParkedLane, count: int) -> int:
        """Give up the first messages of a lane; returns how many."""
        messages = list(islice(lane.lane.messages, count))
        if messages:
            await lane.queue.append_order(ParkKind.SKIP, lane.name, messages[-1].park_offset)
        return len(messages)
