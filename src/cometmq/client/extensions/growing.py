"""Fetches the growth of a topic from its brokers, and tells a producer the homes of message groups.

The brokers publish the growth in their topic attributes.  `core.extensions.growing` decides which
queue is the home of a group.
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
    """The queues of a topic that the producer may send to."""

    queues: tuple[MessageQueue, ...]
    addresses: dict[str, str]


class GroupView:
    """The homes of a topic's message groups, fetched for one route.

    It is valid as long as the producer uses the same route object, ``source``.
    """

    __slots__ = ("_present", "growth", "is_settled", "source", "topic")

    def __init__(self, topic: str, source: RouteQueues, growth: Growth | None) -> None:
        self.topic = topic
        self.source = source
        self.growth = growth
        self.is_settled = growth is None or growth.is_complete
        """Whether no group is moving."""
        self._present = {queue.broker_name for queue in source.queues}

    def queue(self, number: int) -> MessageQueue:
        """The home of a group with this hash, or its queue while that is away."""
        growth = self.growth
        if growth is None or self._is_away(growth, number):
            queues = self.source.queues
            return queues[number % len(queues)]
        return MessageQueue(self.topic, *growth.home(number))

    def _is_away(self, growth: Growth, number: int) -> bool:
        """Whether the group does not wait for the broker of its home, which is away."""
        return growth.moves_when_away and growth.home(number)[0] not in self._present

    def queue_of(self, group: str) -> MessageQueue:
        """The home of a group."""
        return self.queue(group_hash(group))

    def must_wait(self, number: int) -> bool:
        """Whether the group's old home is closing and has not moved the group yet."""
        growth = self.growth
        return (
            growth is not None
            and not self._is_away(growth, number)
            and growth.phase is Phase.CLOSING
            and not growth.is_moved(number)
            and growth.old.home(number) != growth.new.home(number)
        )

    def group_home(self, number: int | None) -> str | None:
        """The epoch and the hash by which a send chose its queue, for the broker to check; None for
        a queue that is not the group's home.

        Without a number it is for a batch of many groups.
        """
        epoch = 0 if self.growth is None else self.growth.epoch
        if number is None:
            return f"{epoch}:"
        if self.growth is not None and self._is_away(self.growth, number):
            return None
        return f"{epoch}:{number}"


def growth_of(config: TopicConfig | None, broker_name: str) -> Growth | None:
    """The growth in a broker's topic configuration, if any."""
    if config is None:
        return None
    try:
        return Growth.from_attributes(config.attributes, broker_name)
    except ConfigError:
        return None  # these attributes have another meaning, so the topic never grew


async def fetch_growth(
    io: Io, topic: str, addresses: Mapping[str, str], timeout_ms: int
) -> Growth | None:
    """The growth of a topic, merged from its brokers; None if it never grew.

    A broker that does not answer, or does not know the request (RocketMQ before 5), is left out.
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
    """The growth that one broker publishes; None without an answer."""
    command = RemotingCommand.request(RequestCode.GET_TOPIC_CONFIG, TopicHeader(topic).to_ext())
    try:
        answer = await io.request(address, command, timeout_ms)
        if answer.code != 0:
            return None
        return growth_of(decode_topic_config(answer.body), broker_name)
    except CometError:
        return None
