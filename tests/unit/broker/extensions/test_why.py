"""What WHY says of a message is what a pull gets, in every state of a group."""

import random
from pathlib import Path

from tests.unit.broker.harness import Client, scenario

from cometmq.broker import Broker
from cometmq.codec.properties import encode_properties_text
from cometmq.core.filter.tag_filter import parse_subscription
from cometmq.core.group.skipped_ranges import SkipReason
from cometmq.model.flags import PERM_READ, PERM_WRITE
from cometmq.model.group import SubscriptionData, SubscriptionGroupConfig
from cometmq.model.topic import TopicConfig
from cometmq.wire.body.client import ConsumerData
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.extensions.why import PullOutcome, WhyBody, WhyCode

QUEUES, MESSAGES, STATES = 2, 6, 40
FILTERS = ["*", "A", "B", "A || B", "n > 2", "n > 3", None, None]
Wanted = tuple[SubscriptionData, ...]


def subscriptions(chance: random.Random, group: str) -> Wanted:
    items = [parse_subscription(f"%RETRY%{group}", "*", sub_version=1)]
    for topic in ("t", "u"):
        text = chance.choice(FILTERS)
        if text is not None:
            kind = "SQL92" if ">" in text else "TAG"
            items.append(parse_subscription(topic, text, kind, 1))
    return tuple(items)


async def ask(client: Client, group: str, topic: str, queue_id: int, offset: int) -> WhyBody:
    ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
    answer = await client.call(WhyCode.WHY, {**ext, "queueOffset": str(offset)})
    assert answer.code == 0, answer.remark
    return WhyBody.from_bytes(answer.body)


def disturb(broker: Broker, chance: random.Random, group: str) -> None:
    """What an operator may do: close the group or the topic, forbid it, skip messages."""
    now_ms, state = broker.env.clock.now_ms(), broker.state
    step = chance.random()
    if step < 0.1:
        state.groups.put(SubscriptionGroupConfig(group, consume_enable=False), now_ms)
    elif step < 0.2:
        state.groups.forbid_reading(group, "t", True, now_ms)
    elif step < 0.5:
        for queue_id in range(QUEUES):
            begin = chance.randrange(MESSAGES // 2)
            end = chance.randrange(begin, MESSAGES) + 1
            why = chance.choice(list(SkipReason))
            state.skipped.skip(group, "t", queue_id, begin, end, why, now_ms, {}).is_saved = True
    perm = PERM_WRITE if step > 0.9 else PERM_READ | PERM_WRITE
    state.topics.put(TopicConfig("t", QUEUES, QUEUES, perm), now_ms)


def test_the_answer_is_what_a_pull_gets(tmp_path: Path) -> None:
    """For each message and member of forty random groups."""
    outcomes: set[PullOutcome] = set()

    async def story(broker: Broker, first: Client) -> None:
        chance = random.Random(1)
        now_ms = broker.env.clock.now_ms()
        for topic in ("t", "u"):
            broker.state.topics.put(TopicConfig(topic, QUEUES, QUEUES), now_ms)
            for queue_id in range(QUEUES):
                for number in range(MESSAGES):
                    fields = {"TAGS": chance.choice("ABC"), "n": str(number)}
                    properties = encode_properties_text(fields)
                    sent = await first.send(b"x", b=topic, e=str(queue_id), i=properties)
                    assert sent.code == 0
        clients = [first] + [await Client(broker.env, broker.address).open() for _ in range(2)]
        for number in range(STATES):
            group = f"g{number}"
            for client in clients[: chance.randrange(1, 4)]:
                consumer = ConsumerData(group, subscriptions=subscriptions(chance, group))
                await client.heartbeat(consumer, client_id=f"c{clients.index(client)}")
            disturb(broker, chance, group)
            for topic in ("t", "u"):
                queue_id, offset = chance.randrange(QUEUES), chance.randrange(MESSAGES + 1)
                body = await ask(first, group, topic, queue_id, offset)
                for view in body.members:
                    outcomes.add(view.outcome)
                    got = await clients[int(view.client_id[1:])].messages(
                        consumerGroup=group,
                        topic=topic,
                        queueId=str(queue_id),
                        queueOffset=str(offset),
                        maxMsgNums="1",
                        sysFlag="0",
                        subVersion="1",
                    )
                    is_delivered = bool(got) and got[0].queue_offset == offset
                    told = (number, topic, queue_id, offset, view)
                    assert is_delivered is (view.outcome is PullOutcome.DELIVERS), told
        for client in clients[1:]:
            await client.close()

    scenario(tmp_path, story)
    assert outcomes == set(PullOutcome)


def test_who_acknowledged_it_and_who_has_the_lock(tmp_path: Path) -> None:
    """From the commits that the broker has seen, and from its locks."""

    async def story(broker: Broker, client: Client) -> None:
        await client.send(b"one")
        await client.send(b"two")
        wanted = (SubscriptionData("t"), SubscriptionData("%RETRY%g"))
        await client.heartbeat(ConsumerData("g", subscriptions=wanted), client_id="c1")
        body = await ask(client, "g", "t", 0, 0)
        assert (body.group_offset, body.acknowledged_by, body.lock_owner) == (None, None, None)
        for offset in ("0", "1"):
            commit = {"consumerGroup": "g", "topic": "t", "queueId": "0", "commitOffset": offset}
            await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
        body = await ask(client, "g", "t", 0, 0)
        assert (body.group_offset, body.acknowledged_by) == (1, "c1")
        assert body.acknowledged_ms is not None
        assert (await ask(client, "g", "t", 0, 1)).acknowledged_by is None
        stranger = await ask(client, "nobody", "t", 0, 0)
        assert (stranger.members, stranger.is_group_known) == ([], False)

    scenario(tmp_path, story)
