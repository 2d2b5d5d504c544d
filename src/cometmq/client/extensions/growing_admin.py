"""The admin client's calls that grow and shrink an ordered topic.

`GrowthCalls` starts a growth, closes it and reports its progress.  The brokers decide which message
groups move, and no call waits for them.

The order of the steps keeps the growth safe (``core.extensions.growing``): every broker is
*prepared*, in the order of their names, before any broker is *moving*.  A broker refuses a second
growth, so of two operators who begin at once only one gets past the first broker.  Each step may be
repeated: an operator completes a half-begun growth with the same call.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from cometmq.client.base.calls import BrokerCalls
from cometmq.client.base.reading import QueueReader
from cometmq.client.base.routes import RouteBook
from cometmq.client.extensions.growing import growth_of
from cometmq.client.extensions.parking.admin import ParkedLanes, parking_groups
from cometmq.core.extensions.growing import (
    AWAY_MOVES,
    AWAY_WAITS,
    BUCKET_COUNT,
    Growth,
    Layout,
    Phase,
)
from cometmq.errors import ConfigError, RemoteError, ResponseCode, TopicNotExist
from cometmq.model import MessageQueue, TopicConfig
from cometmq.net.env import SystemClock
from cometmq.wire.body.admin import (
    decode_consumer_offsets,
    decode_group_list,
)
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.admin import TopicHeader
from cometmq.wire.header.headers import CreateTopicHeader

__all__ = ["GroupBehind", "GrowthCalls", "GrowthStatus"]

TEMPLATE: str = "TBW102"


@dataclass(frozen=True, slots=True)
class GroupBehind:
    """A consumer group that has not consumed ``lag`` messages of a queue yet."""

    group: str
    queue: MessageQueue
    lag: int


@dataclass(frozen=True, slots=True)
class GrowthStatus:
    """The progress of a topic's growth.

    ``phase`` is ``none``, ``prepared``, ``moving``, ``closing`` or ``complete``.  ``moved`` of
    ``buckets`` have left their old queues.  ``leaving`` lists the queues that nobody writes to any
    more and that consumers have not read to the end; ``waiting_for`` lists these consumer groups.
    ``absent`` lists unregistered brokers that the growth waits for.  ``away`` says whether message
    groups ``wait`` for a broker that is away or ``move``; it is empty where nobody has chosen.

    Once ``complete``, no producer needs a broker that is not in the ``new`` layout.
    """

    topic: str
    phase: str
    epoch: int = 0
    old: str = ""
    new: str = ""
    moved: int = 0
    buckets: int = 0
    away: str = ""
    leaving: tuple[MessageQueue, ...] = ()
    waiting_for: tuple[GroupBehind, ...] = ()
    absent: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether all groups have moved and every leaving queue is read to its end."""
        return self.phase in ("none", "complete")


@dataclass(frozen=True, slots=True)
class _TopicAtBroker:
    """A topic at one broker; ``config`` is None if the broker does not have the topic."""

    address: str
    config: TopicConfig | None
    growth: Growth | None


class _Admin(Protocol):
    _calls: BrokerCalls
    _routes: RouteBook

    async def _masters(
        self, cluster: str | None = None, broker_name: str | None = None
    ) -> dict[str, str]: ...

    async def topic_list(self, *, include_system: bool = False) -> list[str]: ...

    def queue_reader(self) -> QueueReader: ...


class GrowthCalls:
    """The admin client's calls about growth."""

    async def grow_topic(
        self: _Admin,
        topic: str,
        queue_count: int,
        *,
        cluster: str | None = None,
        broker_names: Iterable[str] | None = None,
        when_away: str | None = None,
    ) -> GrowthStatus:
        """Give a topic ``queue_count`` queues on each broker, and keep the order of its groups.

        Without ``broker_names`` it grows on all masters (of the cluster), also on those that do not
        have the topic yet; an unfinished growth continues on the brokers it was begun with.
        ``when_away`` is the choice of `set_when_away`, which is ``wait`` for a topic that grows for
        the first time without one.  Returns at once; `topic_growth` reports the progress.

        Raises:
            ConfigError: nothing would grow, another growth is under way, a broker is unknown, or
                parked message groups would move to another broker.
            TopicNotExist: no broker has the topic.
        """
        topics = await _fetch_topics(self, topic, cluster)
        chosen = None if broker_names is None else tuple(broker_names)
        _check_broker_names(topics, chosen)
        names = set(topics) if chosen is None else set(chosen)
        begun = _merged_growth(topics)
        if chosen is None and begun is not None and not begun.is_complete:
            # A broker may have joined or got the topic since.
            names = {name for name, _ in begun.new.brokers}
        old = _present_layout(topic, topics)
        counts = dict(old.brokers)
        wanted = Layout.of(counts | dict.fromkeys(names, queue_count))
        for name, count in old.brokers:
            if wanted.count_of(name) < count:
                raise ConfigError(
                    f"the topic {topic} has {count} queues on {name}, more than {queue_count}; "
                    "cometmq topic shrink makes them fewer"
                )
        return await _change(self, topic, topics, wanted, when_away)

    async def shrink_topic(
        self: _Admin,
        topic: str,
        queue_count: int,
        *,
        cluster: str | None = None,
        without: Iterable[str] = (),
    ) -> GrowthStatus:
        """Reduce a topic to ``queue_count`` queues per broker, and to none on those of ``without``.

        A leaving queue accepts only the message groups that have not moved yet; its broker removes
        it when all its messages are consumed.

        Raises:
            ConfigError: nothing would shrink, another growth is under way, a broker is unknown, or
                parked message groups would move to another broker.
            TopicNotExist: no broker has the topic.
        """
        topics = await _fetch_topics(self, topic, cluster)
        excluded = set(without)
        _check_broker_names(topics, excluded)
        old = _present_layout(topic, topics)
        wanted = Layout.of(
            {name: min(count, queue_count) for name, count in old.brokers if name not in excluded}
        )
        if queue_count < 1 or not wanted.brokers:
            raise ConfigError(
                f"the topic {topic} would have no queue left; cometmq topic delete removes it"
            )
        return await _change(self, topic, topics, wanted)

    async def close_topic_growth(self: _Admin, topic: str) -> GrowthStatus:
        """Move also the message groups that never pause, by letting their sends wait.

        Raises:
            ConfigError: the topic is not growing.
            TopicNotExist: no broker has the topic.
        """
        topics = await _fetch_topics(self, topic, None)
        growth = _merged_growth(topics)
        if growth is None or growth.is_complete or growth.phase is Phase.PREPARED:
            raise ConfigError(
                f"the topic {topic} has no message groups on the move; cometmq topic growth shows "
                "how far it is"
            )
        closing = replace(growth, phase=Phase.CLOSING)
        for name, at_broker in topics.items():
            if at_broker.config is not None and at_broker.growth is not None:
                await _write(self, at_broker.address, name, at_broker.config, closing)
        return await _status(self, topic, await _fetch_topics(self, topic, None))

    async def set_when_away(self: _Admin, topic: str, when_away: str) -> GrowthStatus:
        """Choose what producers do with message groups whose broker is away.

        With ``wait`` their sends wait for the broker, which keeps the order; with ``move`` they go
        to other brokers until it is back.  The brokers keep the choice with the topic's present
        queues, which `grow_topic` and `shrink_topic` change from then on.

        Raises:
            ConfigError: the word is another one, or a broker of the topic is not registered.
            TopicNotExist: no broker has the topic.
        """
        _check_away(when_away)
        topics = await _fetch_topics(self, topic, None)
        growth = _merged_growth(topics)
        if growth is None:
            layout = _present_layout(topic, topics)
            growth = Growth(1, Phase.COMPLETE, layout, layout)
        _check_registered(topic, growth.brokers, topics)
        for name in sorted(growth.brokers):
            at_broker = topics[name]
            if at_broker.config is not None:
                own = replace(at_broker.growth or growth, away=when_away)
                await _write(self, at_broker.address, name, at_broker.config, own)
        return await _status(self, topic, await _fetch_topics(self, topic, None))

    async def topic_growth(self: _Admin, topic: str) -> GrowthStatus:
        """The progress of a topic's growth, and the consumer groups it waits for.

        When everything has moved, this call marks the growth complete in the topic's attributes at
        each broker: a producer then needs no broker of the old layout.

        Raises:
            TopicNotExist: no broker has the topic.
            RemoteError: a broker refused to close the growth.
        """
        return await _status(self, topic, await _fetch_topics(self, topic, None))


def _check_away(when_away: str) -> None:
    if when_away not in (AWAY_WAITS, AWAY_MOVES):
        raise ConfigError(f"when_away is {when_away!r:.50}, expected wait or move")


def _check_registered(
    topic: str, names: Iterable[str], topics: Mapping[str, _TopicAtBroker]
) -> None:
    missing = sorted(name for name in names if name not in topics)
    if missing:
        raise ConfigError(
            f"the broker {', '.join(missing)} of the topic {topic} is not registered; every broker "
            "of the topic must be prepared before the change starts; start it and repeat the call"
        )


def _check_broker_names(topics: Mapping[str, _TopicAtBroker], names: Iterable[str] | None) -> None:
    unknown = sorted(set(names or ()) - set(topics))
    if unknown:
        raise ConfigError(
            f"no broker is called {', '.join(unknown)}; there are {', '.join(topics)}"
        )


async def _fetch_topics(
    admin: _Admin, topic: str, cluster: str | None
) -> dict[str, _TopicAtBroker]:
    """The topic at each master; raises TopicNotExist if no master has it."""
    topics: dict[str, _TopicAtBroker] = {}
    for name, address in (await admin._masters(cluster)).items():
        config = await admin._calls.topic_config(address, topic)
        topics[name] = _TopicAtBroker(address, config, growth_of(config, name))
    if all(at_broker.config is None for at_broker in topics.values()):
        raise TopicNotExist(ResponseCode.TOPIC_NOT_EXIST, f"no broker has the topic {topic}")
    return topics


def _merged_growth(topics: Mapping[str, _TopicAtBroker]) -> Growth | None:
    whole: Growth | None = None
    for at_broker in topics.values():
        if at_broker.growth is not None:
            whole = at_broker.growth.merged(whole)
    return whole


def _present_layout(topic: str, topics: Mapping[str, _TopicAtBroker]) -> Layout:
    """The layout that message groups have now, or are moving from."""
    growth = _merged_growth(topics)
    if growth is not None:
        return growth.new if growth.is_complete else growth.old
    counts = {
        name: at_broker.config.write_queue_count
        for name, at_broker in topics.items()
        if at_broker.config is not None and at_broker.config.is_writable
    }
    layout = Layout.of(counts)
    if not layout.brokers:
        raise ConfigError(f"the topic {topic} has no queue to write to, so nothing can grow")
    return layout


async def _change(
    admin: _Admin,
    topic: str,
    topics: Mapping[str, _TopicAtBroker],
    wanted: Layout,
    when_away: str | None = None,
) -> GrowthStatus:
    """Prepare every broker, then let every broker move."""
    if when_away is not None:
        _check_away(when_away)
    before = _merged_growth(topics)
    if before is not None and not before.is_complete:
        if before.new != wanted:
            step = "when that is complete (cometmq topic growth)"
            if before.phase is Phase.PREPARED:
                step = "after that one, which was begun only: ask for it again to have it done"
            raise ConfigError(
                f"the topic {topic} is on its way from {before.old} to {before.new}; the next "
                f"change starts {step}"
            )
        growth = replace(before, moved={})
    else:
        old = _present_layout(topic, topics)
        if wanted == old:
            raise ConfigError(f"the topic {topic} has these queues already: {old}")
        epoch = 1 if before is None else before.epoch + 1
        away = (before.away if before is not None else "") or AWAY_WAITS
        growth = Growth(epoch, Phase.PREPARED, old, wanted, away=when_away or away)
    # New brokers come last: the next change asks the old ones, so it sees a half-begun growth.
    names = sorted(growth.brokers, key=lambda name: (not growth.old.count_of(name), name))
    _check_registered(topic, names, topics)
    if before is None or before.is_complete:
        await _check_parked(admin, topic, growth)
    order = next(
        at_broker.config.order for at_broker in topics.values() if at_broker.config is not None
    )
    for phase in (Phase.PREPARED, Phase.MOVING):
        for name in names:
            at_broker = topics[name]
            if at_broker.growth is not None and at_broker.growth.has_come_to(growth.epoch, phase):
                continue
            config = at_broker.config or TopicConfig(topic, 0, 0, order=order)
            await _write(admin, at_broker.address, name, config, replace(growth, phase=phase))
            topics = {
                **topics,
                name: replace(
                    at_broker, config=await admin._calls.topic_config(at_broker.address, topic)
                ),
            }
    admin._routes.forget(topic)
    return await _status(admin, topic, await _fetch_topics(admin, topic, None))


async def _check_parked(admin: _Admin, topic: str, growth: Growth) -> None:
    """Refuse to move parked message groups between brokers: each broker has its own parking log."""
    if len(growth.brokers) == 1:
        return
    for group in parking_groups(await admin.topic_list(include_system=True)):
        lanes = await ParkedLanes(admin.queue_reader(), group, SystemClock()).all()
        parked = [lane.message_group for lane in lanes if lane.name.startswith(f"{topic}/")]
        if parked:
            raise ConfigError(
                f"{len(parked)} message groups of the topic {topic} are parked for the group "
                f"{group}, among them {parked[0]}; at another broker newer messages would overtake "
                f"them: retry or skip them first (cometmq parking list {group})"
            )


async def _write(
    admin: _Admin, address: str, broker_name: str, config: TopicConfig, growth: Growth
) -> None:
    """Write the queues and attributes of one broker in one request, so that both change at once.

    Leaving queues stay readable; the broker removes them later.
    """
    count = growth.new.count_of(broker_name)
    is_new = config.read_queue_count == 0 and not config.attributes
    signed = {f"+{key}": value for key, value in growth.to_attributes(broker_name).items()}
    present = growth_of(config, broker_name)
    if present is not None and present.epoch != growth.epoch and "group.moved" in config.attributes:
        signed["-group.moved"] = ""
    if present is not None and present.epoch == growth.epoch:
        signed.pop("+group.moved", None)  # only the broker changes it
    changes = ",".join(f"{key}={value}" if value else key for key, value in signed.items())
    header = CreateTopicHeader(
        config.topic,
        TEMPLATE,
        count if is_new else max(count, config.read_queue_count),
        count,
        config.perm,
        config.topic_filter_type,
        order=config.order,
        topic_sys_flag=config.topic_sys_flag,
        attributes=changes,
    )
    command = RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())
    try:
        await admin._calls.ask(address, command)
    except RemoteError as error:
        if "unsupported key" in str(error):
            raise ConfigError(
                f"the broker {broker_name} is RocketMQ's and cannot keep the order of a growing "
                "topic; mqadmin updateTopic changes its queues without that"
            ) from error
        raise


# -- progress --------------------------------------------------------------------------------


async def _status(admin: _Admin, topic: str, topics: Mapping[str, _TopicAtBroker]) -> GrowthStatus:
    """Report the progress of a growth, and mark it complete when everything has moved."""
    growth = _merged_growth(topics)
    if growth is None:
        return GrowthStatus(topic, "none")
    unmoved = {MessageQueue(topic, *queue) for queue in growth.unmoved_queues()}
    leaving = tuple(
        MessageQueue(topic, name, queue_id)
        for name, at_broker in sorted(topics.items())
        # A broker that got the topic after the growth began has no leaving queue.
        if at_broker.config is not None and at_broker.growth is not None
        for queue_id in range(growth.new.count_of(name), at_broker.config.read_queue_count)
    )
    absent = tuple(sorted(growth.brokers - topics.keys()))
    phase = growth.phase.value
    if not unmoved and not leaving:
        await _close(admin, topics, growth)
        if not absent:
            phase = Phase.COMPLETE.value
    total = growth.old.queue_count * BUCKET_COUNT
    moved = total - sum(
        BUCKET_COUNT - growth.moved.get((queue.broker_name, queue.queue_id), 0).bit_count()
        for queue in unmoved
    )
    behind = await _behind(admin, topic, topics, sorted(unmoved | set(leaving)))
    return GrowthStatus(
        topic,
        phase,
        growth.epoch,
        str(growth.old),
        str(growth.new),
        moved,
        total,
        growth.away,
        leaving,
        tuple(behind),
        absent,
    )


async def _close(admin: _Admin, topics: Mapping[str, _TopicAtBroker], growth: Growth) -> None:
    """Mark the growth complete at every broker.

    All brokers of the old layout have recorded durably that their groups have moved, so the order
    of the writes does not matter, and the next call completes an interrupted one.
    """
    for name, at_broker in topics.items():
        if (
            at_broker.config is None
            or at_broker.growth is None
            or at_broker.growth.epoch != growth.epoch
        ):
            continue
        if at_broker.growth.phase is not Phase.COMPLETE:
            complete = replace(growth, phase=Phase.COMPLETE)
            await _write(admin, at_broker.address, name, at_broker.config, complete)


async def _behind(
    admin: _Admin, topic: str, topics: Mapping[str, _TopicAtBroker], queues: Iterable[MessageQueue]
) -> list[GroupBehind]:
    """The consumer groups that have not consumed all messages of these queues."""
    behind: list[GroupBehind] = []
    tables: dict[str, dict[str, dict[int, int]]] = {}
    for queue in queues:
        if queue.broker_name not in topics:
            continue
        address = topics[queue.broker_name].address
        if address not in tables:
            tables[address] = await _offsets(admin, topic, address)
        first = await admin._calls.min_offset(address, queue)
        end = await admin._calls.max_offset(address, queue)
        for group, offsets in sorted(tables[address].items()):
            lag = end - max(first, offsets.get(queue.queue_id, 0))
            if lag > 0:
                behind.append(GroupBehind(group, queue, lag))
    return behind


async def _offsets(admin: _Admin, topic: str, address: str) -> dict[str, dict[int, int]]:
    answer = await admin._calls.ask(
        address, RemotingCommand.request(RequestCode.GET_ALL_CONSUMER_OFFSET)
    )
    # A group that is online counts even before it has stored an offset.
    ext = TopicHeader(topic).to_ext()
    who = RemotingCommand.request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, ext)
    named = decode_group_list((await admin._calls.ask(address, who)).body)
    table: dict[str, dict[int, int]] = {name: {} for name in named}
    for key, offsets in decode_consumer_offsets(answer.body).offsets.items():
        name, _, group = key.partition("@")
        if name == topic:
            table[group] = dict(offsets)
    return table
