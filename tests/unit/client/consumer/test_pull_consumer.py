"""The pull consumer against the real broker: polling, iteration, positions, commits, pauses."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.unit.client.waiting import until

from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.producer.producer import Producer
from cometmq.errors import ClientClosed, ClientError, ConfigError
from cometmq.model import Message, MessageQueue
from cometmq.testing.cluster import embedded_cluster

Story = Callable[[str, Producer], Awaitable[None]]
Q0 = MessageQueue("t", "broker-a", 0)
Q1 = MessageQueue("t", "broker-a", 1)


def scenario(story: Story) -> None:
    """Run a story against a cluster with a topic ``t`` of two queues."""

    async def run() -> None:
        async with (
            embedded_cluster() as cluster,
            Producer("pg", name_server=cluster.name_server_address) as producer,
        ):
            await producer.create_topic("t", queue_count=2)
            await story(cluster.name_server_address, producer)

    asyncio.run(run())


async def fill(
    producer: Producer, queue: MessageQueue, count: int, tags: str | None = None
) -> None:
    for number in range(count):
        await producer.send(Message("t", b"%d" % number, tags=tags), queue=queue)


async def read(consumer: PullConsumer, count: int) -> list[bytes]:
    bodies: list[bytes] = []
    while len(bodies) < count:
        got = await consumer.poll(5_000)
        assert got, f"only {len(bodies)} of {count} came"
        bodies += [message.body for message in got]
    return bodies


def test_iteration_hands_out_everything_and_commits_on_the_way_out() -> None:
    """``async for`` in queue order; leaving without an error commits what was handed out."""

    async def story(name_server: str, producer: Producer) -> None:
        await fill(producer, Q0, 70)
        async with PullConsumer(
            "g", {"t": "*"}, name_server=name_server, consume_from="first"
        ) as consumer:
            assert consumer.assignment() == [Q0, Q1]
            bodies: list[bytes] = []
            async for message in consumer:
                bodies.append(message.body)
                if len(bodies) == 50:
                    break
            assert await consumer.position(Q0) == 50
        assert bodies == [b"%d" % number for number in range(50)]
        async with PullConsumer("g", {"t": "*"}, name_server=name_server) as consumer:
            assert await consumer.committed(Q0) == 50
            assert await read(consumer, 20) == [b"%d" % number for number in range(50, 70)]

    scenario(story)


def test_iteration_and_polling_may_be_mixed() -> None:
    """A poll in the middle of a batch goes on exactly where the iteration was."""

    async def story(name_server: str, producer: Producer) -> None:
        await fill(producer, Q0, 12)
        async with PullConsumer(
            "g", {"t": "*"}, name_server=name_server, consume_from="first"
        ) as consumer:
            first = await anext(consumer)
            second = await anext(consumer)
            some = await consumer.poll(5_000, count_max=3)
            third = await anext(consumer)
            bodies = [message.body for message in (first, second, *some, third)]
            bodies += await read(consumer, 12 - len(bodies))
            assert bodies == [b"%d" % number for number in range(12)]

    scenario(story)


def test_an_error_in_the_loop_does_not_commit_the_message_in_hand() -> None:
    """What was in the program's hands when it failed comes again."""

    async def story(name_server: str, producer: Producer) -> None:
        await fill(producer, Q0, 10)

        async def work() -> None:
            async with PullConsumer(
                "g", {"t": "*"}, name_server=name_server, consume_from="first"
            ) as consumer:
                async for message in consumer:
                    if message.body == b"4":
                        await consumer.commit_changed()
                        raise RuntimeError("on purpose")

        with pytest.raises(RuntimeError):
            await work()
        async with PullConsumer("g", {"t": "*"}, name_server=name_server) as consumer:
            assert await consumer.committed(Q0) == 4

    scenario(story)


def test_automatic_commits_stay_behind_the_hands() -> None:
    """A poll's messages are committed once the next poll comes, not before."""

    async def story(name_server: str, producer: Producer) -> None:
        await fill(producer, Q0, 6)
        async with PullConsumer(
            "g", {"t": "*"}, name_server=name_server, consume_from="first"
        ) as consumer:
            assert len(await consumer.poll(5_000, count_max=2)) == 2
            await consumer.commit_changed()
            assert await consumer.committed(Q0) in (0, None)
            assert len(await consumer.poll(5_000, count_max=3)) == 3
            assert await consumer.position(Q0) == 5
            await consumer.commit_changed()
            async with asyncio.timeout(30):
                # The request that commits is one-way.
                while await consumer.committed(Q0) != 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            await consumer.commit()
            assert await consumer.committed(Q0) == 5

    scenario(story)


def test_without_auto_commit_only_the_program_commits() -> None:
    """Neither time nor shutdown stores anything."""

    async def story(name_server: str, producer: Producer) -> None:
        await fill(producer, Q0, 4)
        options = {"name_server": name_server, "consume_from": "first", "auto_commit": False}
        async with PullConsumer("g", {"t": "*"}, **options) as consumer:  # type: ignore[arg-type]
            assert len(await read(consumer, 4)) == 4
            await consumer.commit_changed()
            await consumer.unsubscribe("t")
        async with PullConsumer("g", {"t": "*"}, **options) as consumer:  # type: ignore[arg-type]
            assert await read(consumer, 4) == [b"0", b"1", b"2", b"3"]
            await consumer.commit({Q0: 3})
        async with PullConsumer("g", {"t": "*"}, **options) as consumer:  # type: ignore[arg-type]
            assert await read(consumer, 1) == [b"3"]

    scenario(story)


def test_assigned_queues_and_seeking() -> None:
    """Exactly the given queues, from any offset the broker has."""

    async def story(name_server: str, producer: Producer) -> None:
        await fill(producer, Q0, 40)
        await fill(producer, Q1, 5)
        async with PullConsumer("g", name_server=name_server, consume_from="first") as consumer:
            assert await consumer.fetch_queues("t") == (Q0, Q1)
            await consumer.assign([Q0])
            await consumer.seek(Q0, 35)
            assert await read(consumer, 5) == [b"35", b"36", b"37", b"38", b"39"]
            await consumer.seek_to_begin(Q0)
            assert (await read(consumer, 1))[0] == b"0"
            await consumer.seek_to_end(Q0)
            assert await consumer.position(Q0) == 40
            assert await consumer.poll(50) == []
            with pytest.raises(ClientError, match="offset 41 of t@broker-a:0 is outside 0 to 40"):
                await consumer.seek(Q0, 41)
            with pytest.raises(ClientError, match="not assigned"):
                await consumer.seek(Q1, 0)
            await consumer.assign([Q1])
            assert consumer.assignment() == [Q1]
            assert await read(consumer, 5) == [b"0", b"1", b"2", b"3", b"4"]
            with pytest.raises(ConfigError, match="assign"):
                await consumer.subscribe("t")

    scenario(story)


def test_offsets_of_queues() -> None:
    """Begin, end and by time."""

    async def story(name_server: str, producer: Producer) -> None:
        await fill(producer, Q0, 3)
        async with PullConsumer("g", name_server=name_server, consume_from="first") as consumer:
            await consumer.assign([Q0, Q1])
            (message, *_) = await consumer.poll(5_000)
            at_ms = message.store_timestamp_ms
            assert await consumer.begin_offsets([Q0, Q1]) == {Q0: 0, Q1: 0}
            assert await consumer.end_offsets([Q0, Q1]) == {Q0: 3, Q1: 0}
            found = await consumer.offsets_for_times({Q0: at_ms - 1_000, Q1: at_ms})
            assert found == {Q0: 0, Q1: 0}
            assert await consumer.offsets_for_times({Q0: at_ms + 60_000}) == {Q0: 3}

    scenario(story)


def test_paused_queues_keep_their_position() -> None:
    """Nothing of a paused queue is handed out, nothing is lost either."""

    async def story(name_server: str, producer: Producer) -> None:
        await fill(producer, Q0, 10)
        async with PullConsumer("g", name_server=name_server, consume_from="first") as consumer:
            await consumer.assign([Q0, Q1])
            first = await consumer.poll(5_000, count_max=4)
            consumer.pause([Q0])
            assert consumer.paused() == [Q0]
            await fill(producer, Q1, 1)
            (other,) = await consumer.poll(5_000)
            assert other.message_queue == Q1
            assert await consumer.poll(50) == []
            await consumer.watch()
            consumer.resume([Q0])
            rest = await read(consumer, 6)
            assert [message.body for message in first] + rest == [b"%d" % n for n in range(10)]

    scenario(story)


def test_tags_filter_and_positions_move_on() -> None:
    """Messages that do not match are passed over, and committed as such."""

    async def story(name_server: str, producer: Producer) -> None:
        await fill(producer, Q0, 3, tags="no")
        await fill(producer, Q0, 2, tags="yes")
        await fill(producer, Q0, 3, tags="no")
        async with PullConsumer(
            "g", {"t": "yes"}, name_server=name_server, consume_from="first"
        ) as consumer:
            assert await read(consumer, 2) == [b"0", b"1"]
            await until_position(consumer, 8)
            await consumer.commit()
            assert await consumer.committed(Q0) == 8

    scenario(story)


async def until_position(consumer: PullConsumer, queue_offset: int) -> None:
    async with asyncio.timeout(15):
        while await consumer.position(Q0) != queue_offset:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_the_buffer_is_bounded_and_refills() -> None:
    """Pulling stops at the limit and goes on as messages are taken."""

    async def story(name_server: str, producer: Producer) -> None:
        await producer.send_batch([Message("t", b"%03d" % n) for n in range(500)], queue=Q0)
        async with PullConsumer(
            "g", {"t": "*"}, name_server=name_server, consume_from="first", buffer_count_max=64
        ) as consumer:
            loop = consumer.assignments[Q0].loop
            await until(lambda: loop.hold_reason is not None)
            assert "limit 64" in (loop.hold_reason or "")
            assert await read(consumer, 500) == [b"%03d" % n for n in range(500)]

    scenario(story)


def test_members_share_queues_and_hand_over() -> None:
    """Subscribed pull consumers rebalance like push consumers."""

    async def story(name_server: str, producer: Producer) -> None:
        one = PullConsumer("g", {"t": "*"}, name_server=name_server, consume_from="first")
        two = PullConsumer("g", {"t": "*"}, name_server=name_server, consume_from="first")
        async with one:
            async with two:
                await until(lambda: len(one.assignment()) == len(two.assignment()) == 1)
                await fill(producer, Q0, 3)
                await fill(producer, Q1, 3)
                got = await asyncio.gather(read(one, 3), read(two, 3))
                assert got[0] == got[1] == [b"0", b"1", b"2"]
            await until(lambda: len(one.assignment()) == 2)
            await fill(producer, Q0, 1)
            await fill(producer, Q1, 1)
            assert await read(one, 2) == [b"0", b"0"]

    scenario(story)


def test_closing_ends_the_iteration() -> None:
    """A reader that waits is let go; a closed consumer says so."""

    async def story(name_server: str, producer: Producer) -> None:
        consumer = PullConsumer("g", {"t": "*"}, name_server=name_server)
        with pytest.raises(ClientClosed, match="not started"):
            await consumer.poll(1)
        await consumer.start()

        async def read_all() -> int:
            return len([message async for message in consumer])

        reader = asyncio.create_task(read_all())
        # A reader that has not begun to wait by then gets the same answer: nothing.
        await asyncio.sleep(0.05)
        await consumer.shutdown()
        assert await reader == 0
        with pytest.raises(ClientClosed, match="closed"):
            await consumer.poll(1)
        with pytest.raises(ClientClosed):
            await consumer.start()

    scenario(story)
