"""Where a producer sends message groups: what it knows of a topic's growth, and asks of brokers.

Job: `GroupView`, and reading the growth out of the brokers' topic attributes.
Must not: send, or decide where a group is at home (``core.growing`` does).
"""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from cometmq.client.base.transport import Io
from cometmq.core.extensions.growing import Growth, Phase, group_hash
from cometmq.errors import CometError, ConfigError
from cometmq.model import MessageQueue, TopicConfig
from cometmq.wire.body.admin import decode_topic_config
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.admin import TopicHeader

__all__ = ["GroupView", "fetch_growth", "growth_of"]


class RouteQueues(Protocol):
    """Where messages of a topic can go, as the producer has it."""

    queues: tuple[MessageQueue, ...]
    addresses: dict[str, str]


class GroupView:
    """The homes of a topic's message groups, as learned with one route of it.

    It counts as long as the producer has the same route object, ``source``.
    """

    __slots__ = ("growth", "is_settled", "source", "topic")

    def __init__(self, topic: str, source: RouteQueues, growth: Growth | None) -> None:
        self.topic = topic
        self.source = source
        self.growth = growth
        self.is_settled = growth is None or growth.is_complete
        """Whether no group is on the move."""

    def queue(self, number: int) -> MessageQueue:
        """The home of a group with this hash."""
        if self.growth is None:
            queues = self.source.queues
            return queues[number % len(queues)]
        return MessageQueue(self.topic, *self.growth.home(number))

    def queue_of(self, group: str) -> MessageQueue:
        """The home of a group."""
        return self.queue(group_hash(group))

    def must_wait(self, number: int) -> bool:
        """Whether the group's old home takes nothing more, and has not let it go yet."""
        growth = self.growth
        return (
            growth is not None
            and growth.phase is Phase.CLOSING
            and not growth.is_moved(number)
            and growth.old.home(number) != growth.new.home(number)
        )

    def group_home(self, number: int | None) -> str:
        """What a send says of its group: the epoch it was chosen by, and the hash."""
        epoch = 0 if self.growth is None else self.growth.epoch
        return f"{epoch}:" if number is None else f"{epoch}:{number}"


def growth_of(config: TopicConfig | None, broker_name: str) -> Growth | None:
    """The growth that a broker's topic configuration tells of, if any."""
    if config is None:
        return None
    try:
        return Growth.from_attributes(config.attributes, broker_name)
    except ConfigError:
        return None  # somebody else's attributes of these names: the topic never grew


async def fetch_growth(
    io: Io, topic: str, addresses: Mapping[str, str], timeout_ms: int
) -> Growth | None:
    """What the brokers of a topic say of its growth, together; None if it never grew.

    A broker that does not answer, or (RocketMQ's before 5) does not know the question, says
    nothing.
    """
    growths = await asyncio.gather(
        *(ask_growth(io, topic, name, address, timeout_ms) for name, address in addresses.items())
    )
    whole: Growth | None = None
    for growth in growths:
        if growth is not None:
            whole = growth.merged(whole)
    return whole


async def ask_growth(
    io: Io, topic: str, broker_name: str, address: str, timeout_ms: int
) -> Growth | None:
    """What one broker says."""
    command = RemotingCommand.request(RequestCode.GET_TOPIC_CONFIG, TopicHeader(topic).to_ext())
    try:
        answer = await io.request(address, command, timeout_ms)
        if answer.code != 0:
            return None
        return growth_of(decode_topic_config(answer.body), broker_name)
    except CometError:
        return None
