"""Queues of a route, the hash of a message group, round robin."""

import pytest

from cometmq.codec.java_hash import java_hash
from cometmq.core.topic.selector import RoundRobin, publish_queues, select_by_hash, subscribe_queues
from cometmq.model import BrokerData, MessageQueue, QueueData, TopicRoute


def route(*queues: QueueData, masters: str = "ab", order: str | None = None) -> TopicRoute:
    return TopicRoute(
        queues,
        tuple(
            BrokerData("c", f"broker-{letter}", {0: f"10.0.0.{ord(letter)}:1"})
            for letter in masters
        ),
        order,
    )


def test_publish_queues_are_ordered_by_broker_and_id() -> None:
    """Selectors index into this order, so every producer must see the same one."""
    got = publish_queues("t", route(QueueData("broker-b", 9, 1, 6), QueueData("broker-a", 9, 2, 6)))
    assert got == (
        MessageQueue("t", "broker-a", 0),
        MessageQueue("t", "broker-a", 1),
        MessageQueue("t", "broker-b", 0),
    )


def test_brokers_without_write_or_master_are_left_out() -> None:
    """Perm W and an address with id 0 are both needed to send."""
    queues = (QueueData("broker-a", 2, 2, 4), QueueData("broker-b", 2, 2, 2))
    assert {q.broker_name for q in publish_queues("t", route(*queues))} == {"broker-b"}
    assert publish_queues("t", route(*queues, masters="a")) == ()


def test_order_conf_replaces_the_list() -> None:
    """``orderTopicConf`` names brokers and counts; broken items are skipped."""
    got = publish_queues("t", route(QueueData("broker-a", 8, 8, 6), order="broker-b:2;x;:3;y:z"))
    assert got == (MessageQueue("t", "broker-b", 0), MessageQueue("t", "broker-b", 1))


def test_subscribe_queues_need_read() -> None:
    """Consumers read queues 0..readQueueNums-1 of brokers with perm R, sorted."""
    got = subscribe_queues(
        "t", route(QueueData("broker-b", 1, 5, 4), QueueData("broker-a", 1, 5, 2))
    )
    assert got == (MessageQueue("t", "broker-b", 0),)


@pytest.mark.parametrize(
    ("key", "count", "expected"),
    [
        # String.hashCode: "TagA" 2598919, "标签" 857175, "polygenelubricants" the smallest int,
        # whose absolute value Java cannot hold.
        ("TagA", 4, 3),
        ("标签", 8, 7),
        ("polygenelubricants", 4, 0),
        ("polygenelubricants", 7, 2),
        ("", 4, 0),
    ],
)
def test_select_by_hash_is_javas(key: str, count: int, expected: int) -> None:
    """``Math.abs(hashCode() % size)``."""
    queues = [MessageQueue("t", "b", number) for number in range(count)]
    assert select_by_hash(queues, key).queue_id == expected


def test_negative_hashes_lose_their_sign_after_the_remainder() -> None:
    """-7 % 4 is -3 in Java, so queue 3, where Python's -7 % 4 would be 1."""
    keys = (f"order {number}" for number in range(1_000))
    key = next(text for text in keys if java_hash(text) < 0 and java_hash(text) % 4 == 1)
    queues = [MessageQueue("t", "b", number) for number in range(4)]
    assert select_by_hash(queues, key).queue_id == 3


def test_round_robin_walks_and_avoids() -> None:
    """Plain turn, then without the last broker, then with none that qualifies."""
    queues = [MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0)]
    turn = RoundRobin(1)
    assert [turn.select(queues) for _ in range(4)] == [queues[1], queues[2], queues[0], queues[1]]
    assert turn.select(queues, "b") == queues[0]
    assert turn.select(queues, "a") == queues[2]
    assert turn.select(queues, None, lambda broker: broker == "b") == queues[2]
    assert turn.select(queues, "b", lambda broker: broker == "b") is None
    assert turn.select([]) is None
