"""The admin client's calls for whole pages of figures: few requests, each for many queues.

`FigureCalls` asks a broker for all queues of a topic or of a group at once, where `topic_offsets`
and `group_offsets` ask queue by queue.  RocketMQ's brokers answer these too.
"""

from collections.abc import Iterable
from typing import Protocol

from cometmq.client.base.calls import BrokerCalls
from cometmq.client.base.routes import RouteBook
from cometmq.errors import TopicNotExist
from cometmq.model import MessageQueue, TopicRoute
from cometmq.model.names import park_topic, retry_topic
from cometmq.wire.body.admin import (
    ConsumeStats,
    OffsetWrapper,
    TopicOffset,
    TopicStats,
    decode_consume_stats,
    decode_consumer_offsets,
    decode_topic_stats,
)
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.command.fastjson import loads_object
from cometmq.wire.header.admin import ConsumeStatsHeader, TopicHeader

__all__ = ["FigureCalls"]


class _FigureAdmin(Protocol):
    _calls: BrokerCalls
    _routes: RouteBook

    async def _masters(
        self, cluster: str | None = None, broker_name: str | None = None
    ) -> dict[str, str]: ...

    async def topic_route(self, topic: str) -> TopicRoute: ...


class FigureCalls:
    """The admin client's calls for whole pages of figures."""

    async def topics_by_group(self: _FigureAdmin) -> dict[str, list[str]]:
        """The topics that each group has stored offsets for, without its retry and parked ones."""
        topics: dict[str, set[str]] = {}
        for address in (await self._masters()).values():
            command = RemotingCommand.request(RequestCode.GET_ALL_CONSUMER_OFFSET)
            answer = await self._calls.ask(address, command)
            for key in decode_consumer_offsets(answer.body).offsets:
                topic, _, group = key.partition("@")
                if topic not in (retry_topic(group), park_topic(group)):
                    topics.setdefault(group, set()).add(topic)
        return {group: sorted(names) for group, names in topics.items()}

    async def consume_stats(
        self: _FigureAdmin, group: str, topics: Iterable[str] = ()
    ) -> ConsumeStats:
        """A group's progress in each queue, and messages a second; in these topics, or in all.

        Brokers of RocketMQ before 5.3 give all topics.
        """
        header = ConsumeStatsHeader(group, topic_list=";".join(topics) or None)
        queues: dict[MessageQueue, OffsetWrapper] = {}
        consume_tps = 0.0
        for address in (await self._masters()).values():
            command = RemotingCommand.request(RequestCode.GET_CONSUME_STATS, header.to_ext())
            stats = decode_consume_stats((await self._calls.ask(address, command)).body)
            queues |= stats.queues
            consume_tps += stats.consume_tps
        return ConsumeStats(queues, consume_tps)

    async def topic_stats(self: _FigureAdmin, topic: str) -> TopicStats:
        """The offsets of each queue of a topic, its newest message, and messages a second.

        Raises:
            NoRoute: the topic does not exist.
        """
        offsets: dict[MessageQueue, TopicOffset] = {}
        put_tps = 0.0
        for broker in (await self.topic_route(topic)).broker_datas:
            address = self._routes.any_address(broker.broker_name)
            if address is None:
                continue
            ext = TopicHeader(topic).to_ext()
            command = RemotingCommand.request(RequestCode.GET_TOPIC_STATS_INFO, ext)
            try:
                answer = await self._calls.ask(address, command)
            except TopicNotExist:  # a broker whose queues have gone
                continue
            stats = decode_topic_stats(answer.body)
            offsets |= stats.offsets
            put_tps += stats.put_tps
        return TopicStats(offsets, put_tps)

    async def timer_counts(self: _FigureAdmin) -> dict[str, dict[str, int]]:
        """How many messages with an exact time wait, by broker and topic.

        Raises:
            RequestNotSupported: a broker has no exact timers.
        """
        counts = {}
        for name, address in (await self._masters()).items():
            command = RemotingCommand.request(RequestCode.GET_TIMER_METRICS)
            answer = await self._calls.ask(address, command)
            table = loads_object(answer.body, "TimerMetrics").get("timingCount") or {}
            counts[name] = {topic: int(each["count"]) for topic, each in table.items()}
        return counts
