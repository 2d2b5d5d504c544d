"""Where a new group begins: our client at RocketMQ's brokers, Java's client at ours."""

import time
from pathlib import Path

import pytest
from interop.peers import JAVA_SERVER, Unavailable
from interop.servers import JavaCluster
from tests.interop.stage import Stage, bodies_of, letter

import cometmq.sync
from cometmq.client.consumer.group.first_offset import StartFrom
from cometmq.model import Message
from cometmq.net.env import system_environment

OLD = [b"old %d" % number for number in range(40)]
NEW = [b"new %d" % number for number in range(8)]
READY_S = 60.0


@pytest.mark.full
@pytest.mark.parametrize("version", ["4.9.7", JAVA_SERVER])
def test_our_new_group_does_not_get_the_backlog_of_a_java_broker(
    version: str, tmp_path: Path
) -> None:
    """Last, max offset and a timestamp of now, from the first poll, on a store minutes old."""
    try:
        cluster = JavaCluster(tmp_path, version=version)
    except Unavailable as error:
        pytest.skip(str(error))
    with (
        cluster,
        cometmq.sync.Admin(name_server=cluster.name_server) as admin,
        cometmq.sync.Producer("pg", name_server=cluster.name_server) as producer,
    ):
        _wait_route(admin, "TBW102")
        admin.create_topic("Bills", queue_count=2)
        _wait_route(admin, "Bills")
        for body in OLD:
            producer.send(Message("Bills", body))
        starts: dict[str, StartFrom | None] = {
            "last": "last",
            "max": cometmq.ConsumeFromWhere.CONSUME_FROM_MAX_OFFSET,
        }
        if version == JAVA_SERVER:
            # Brokers of 4.x answer the message nearest to a time, which may be the one before it.
            starts["now"] = None
        seen: dict[str, list[bytes]] = {}
        for group, where in starts.items():
            start = where or system_environment().clock.now_ms() + 1
            with cometmq.sync.PullConsumer(
                f"new-{group}", {"Bills": "*"}, name_server=cluster.name_server, consume_from=start
            ) as consumer:
                for body in NEW:
                    producer.send(Message("Bills", body))
                seen[group] = []
                while len(seen[group]) < len(NEW) and (messages := consumer.poll(10_000)):
                    seen[group] += [message.body for message in messages]
            # A group that is not new goes on where it stopped, also at the very first offset.
            assert sum(p.consumer_offset or 0 for p in admin.group_offsets(f"new-{group}").values())
        ordered = {group: sorted(bodies) for group, bodies in seen.items()}
        assert ordered == dict.fromkeys(starts, NEW)
        queues = producer.fetch_publish_queues("Bills")
        admin.commit_offsets("new-last", dict.fromkeys(queues, 0))
        with cometmq.sync.PullConsumer(
            "new-last", {"Bills": "*"}, name_server=cluster.name_server
        ) as consumer:
            everything: list[bytes] = []
            while len(everything) < len(OLD) + len(starts) * len(NEW):
                messages = consumer.poll(10_000)
                assert messages, f"{len(everything)} came: a stored offset 0 was taken for none"
                everything += [message.body for message in messages]


def test_messages_right_after_the_start_on_a_new_topic_are_delivered(stage: Stage) -> None:
    """A consumer with the default start; the first message is stored while it asks for offsets."""
    topic = stage.topic()
    name = stage.push({topic: "*"}, fromLast=True)
    producer = stage.producer(by=stage.ours)
    letters = [letter(topic, body, number) for number, body in enumerate(NEW)]
    stage.send(producer, letters, by=stage.ours)
    received = stage.peer.wait_messages(name, lambda got: len(got) >= len(NEW), timeout_s=60.0)
    assert sorted(bodies_of(received)) == sorted(bodies_of(letters))


def _wait_route(admin: cometmq.sync.Admin, topic: str) -> None:
    deadline = time.monotonic() + READY_S
    while True:
        try:
            admin.topic_route(topic)
        except cometmq.errors.NoRoute:
            assert time.monotonic() < deadline, f"no name server knows {topic}"
            time.sleep(0.05)
        else:
            return
