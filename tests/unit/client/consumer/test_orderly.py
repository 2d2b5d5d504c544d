"""Ordered consumption against the real broker: order, failures, hand-over, order by group."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.client.waiting import until

from cometmq import sync
from cometmq.client.consumer.group.broker_requests import serve_broker
from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.handling.handlers import DeadLetter, RetryLater
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.client.queue.pull_loop import PullState
from cometmq.core.consume.process_queue import FlowLimits
from cometmq.errors import ConfigError
from cometmq.model import Message, MessageModel, MessageQueue
from cometmq.model.offsets import ConsumerOffset
from cometmq.testing.cluster import embedded_cluster, threaded_cluster
from cometmq.wire.body.client import ConsumerRunningInfo
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand

Story = Callable[[str, Producer], Awaitable[None]]
WAIT_S = 30.0


def scenario(story: Story, queue_count: int = 4) -> None:
    """Run a story against a cluster with a topic ``t``."""

    async def run() -> None:
        async with (
            embedded_cluster() as cluster,
            Producer("pg", name_server=cluster.name_server_address) as producer,
        ):
            await producer.create_topic("t", queue_count=queue_count)
            await story(cluster.name_server_address, producer)

    asyncio.run(run())


def consumer(name_server: str, handler: Any, **options: Any) -> PushConsumer:
    options = {"order": "queue", "consume_from": "first", "suspend_ms": 20, **options}
    return PushConsumer("g", {"t": "*"}, handler, name_server=name_server, **options)


async def send_groups(producer: Producer, groups: str, count: int, first: int = 0) -> None:
    """``count`` numbered messages of each group, all groups side by side."""
    for number in range(first, first + count):
        await asyncio.gather(
            *[
                producer.send(Message("t", f"{group}{number}".encode(), message_group=group))
                for group in groups
            ]
        )


async def committed(name_server: str) -> int:
    """Sum of the group's stored offsets in topic t."""
    async with PullConsumer("g", name_server=name_server) as reader:
        queues = await reader.fetch_queues("t")
        return sum([await reader.committed(queue) or 0 for queue in queues])


def by_group(seen: list[bytes]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for body in seen:
        found.setdefault(body[:1].decode(), []).append(int(body[1:]))
    return found


@pytest.mark.parametrize("order", ["queue", "group"])
@pytest.mark.parametrize("kind", ["coroutine", "list", "plain", "plain list"])
def test_order_holds_for_every_kind_of_handler(kind: str, order: str) -> None:
    """Each message once, in order, all of it committed; queues or groups run side by side."""

    async def story(name_server: str, producer: Producer) -> None:
        seen: list[bytes] = []
        inside: set[str] = set()
        most = 0
        beside = threading.Event()
        """Set when two handlers run side by side; the first one waits for it."""

        def enter(message: ReceivedMessage) -> str:
            nonlocal most
            unit = message.message_group if order == "group" else str(message.queue_id)
            assert unit is not None
            assert unit not in inside, "two handlers have one unit of order"
            inside.add(unit)
            most = max(most, len(inside))
            if most > 1:
                beside.set()
            return unit

        async def coroutine(message: ReceivedMessage) -> None:
            unit = enter(message)
            await asyncio.to_thread(beside.wait, WAIT_S)
            seen.append(message.body)
            inside.remove(unit)

        async def of_list(messages: list[ReceivedMessage]) -> None:
            unit = enter(messages[0])
            await asyncio.to_thread(beside.wait, WAIT_S)
            seen.extend(message.body for message in messages)
            inside.remove(unit)

        def plain(message: ReceivedMessage) -> None:
            unit = enter(message)
            beside.wait(WAIT_S)
            seen.append(message.body)
            inside.remove(unit)

        def plain_list(messages: list[ReceivedMessage]) -> None:
            unit = enter(messages[0])
            beside.wait(WAIT_S)
            seen.extend(message.body for message in messages)
            inside.remove(unit)

        handler = {
            "coroutine": coroutine,
            "list": of_list,
            "plain": plain,
            "plain list": plain_list,
        }[kind]
        await send_groups(producer, "abcdefgh", 25)
        async with consumer(name_server, handler, order=order):
            await until(lambda: len(seen) >= 200, WAIT_S)
        assert by_group(seen) == {group: list(range(25)) for group in "abcdefgh"}
        assert most > 1
        assert await committed(name_server) == 200

    scenario(story)


@pytest.mark.parametrize("threads", [False, True])
def test_a_failure_stops_its_queue_only(threads: bool) -> None:
    """The same message again until it is taken, with a count; other queues go on."""

    async def story(name_server: str, producer: Producer) -> None:
        seen: list[bytes] = []
        tries: list[int] = []
        may_pass = False

        def judge(message: ReceivedMessage) -> bool:
            if message.body == b"a3" and not may_pass:
                tries.append(message.reconsume_times)
                return False
            seen.append(message.body)
            return True

        async def coroutine(message: ReceivedMessage) -> bool:
            return judge(message)

        await send_groups(producer, "abcdefgh", 8)
        async with consumer(name_server, judge if threads else coroutine):
            await until(lambda: len(tries) >= 3 and seen.count(b"b7") == 1, WAIT_S)
            assert by_group(seen)["a"] == [0, 1, 2]
            may_pass = True
            await until(lambda: len(seen) == 64, WAIT_S)
        assert tries == list(range(len(tries)))
        assert by_group(seen) == {group: list(range(8)) for group in "abcdefgh"}
        assert await committed(name_server) == 64

    scenario(story)


def test_lists_repeat_as_they_failed() -> None:
    """The same batch again; what a list of verdicts took before the first failure is done."""

    async def story(name_server: str, producer: Producer) -> None:
        calls: list[list[bytes]] = []

        async def handle(messages: list[ReceivedMessage]) -> Any:
            calls.append([message.body for message in messages])
            if len(calls) == 1:
                raise ValueError("the whole batch")
            if len(calls) == 2:
                return [True, False, True, True]
            return None

        await send_groups(producer, "a", 8)
        async with consumer(name_server, handle, batch_count_max=4):
            await until(lambda: [call[-1] for call in calls[-1:]] == [b"a7"], WAIT_S)
        assert calls[:2] == [[b"a0", b"a1", b"a2", b"a3"]] * 2
        assert calls[2] == [b"a1", b"a2", b"a3"]
        assert [body for call in calls[3:] for body in call] == [b"a4", b"a5", b"a6", b"a7"]
        assert await committed(name_server) == 8

    scenario(story, queue_count=1)


@pytest.mark.parametrize("order", ["queue", "group"])
def test_the_limit_makes_a_dead_letter_and_the_order_goes_on(order: str) -> None:
    """Tries after the first as configured; `DeadLetter` at once; `RetryLater` waits a level."""

    async def story(name_server: str, producer: Producer) -> None:
        seen: list[bytes] = []
        tries = 0

        async def handle(message: ReceivedMessage) -> None:
            nonlocal tries
            if message.body == b"a1":
                tries += 1
                raise ValueError("never")
            if message.body == b"a2":
                raise DeadLetter
            if message.body == b"a3" and message.reconsume_times == 0:
                raise RetryLater(1)
            seen.append(message.body)

        await send_groups(producer, "a", 5)
        async with consumer(name_server, handle, order=order, max_reconsume_times=2):
            await until(lambda: len(seen) == 3, WAIT_S)
        assert tries == 3
        assert seen == [b"a0", b"a3", b"a4"]
        assert await committed(name_server) == 5
        async with PullConsumer("reader", name_server=name_server, consume_from="first") as reader:
            await reader.assign([MessageQueue("%DLQ%g", "broker-a", 0)])
            dead: list[ReceivedMessage] = []
            while len(dead) < 2:
                dead += await reader.poll(5_000)
            # Java's orderly consumers count the tries after the first in the dead letter, too.
            assert [(one.body, one.reconsume_times) for one in dead] == [(b"a1", 2), (b"a2", 0)]
            assert {one.properties["RETRY_TOPIC"] for one in dead} == {"t"}
            assert all(one.message_group == "a" for one in dead)

    scenario(story, queue_count=1)


def test_a_failing_group_suspends_alone() -> None:
    """Others of the same queue flow; the offset stays before the first that is not done."""

    async def story(name_server: str, producer: Producer) -> None:
        seen: list[bytes] = []
        may_pass = False

        async def handle(message: ReceivedMessage) -> bool:
            if message.body == b"a1" and not may_pass:
                return False
            seen.append(message.body)
            return True

        await send_groups(producer, "abc", 10)
        await producer.send(Message("t", b"-0"))
        await producer.send(Message("t", b"-1"))
        async with consumer(name_server, handle, order="group") as member:
            await until(lambda: len(seen) == 23, WAIT_S)
            assert by_group(seen)["a"] == [0]
            assert by_group(seen)["-"] == [0, 1]
            await member.commit_changed()
            blocked = next(iter(member.assignments.values())).process_queue.commit_offset
            assert blocked < 6
            may_pass = True
            await until(lambda: len(seen) == 32, WAIT_S)
        assert by_group(seen) == {**{group: [*range(10)] for group in "abc"}, "-": [0, 1]}
        assert await committed(name_server) == 32

    scenario(story, queue_count=1)


def test_a_blocked_group_stops_the_pull_at_the_span(caplog: pytest.LogCaptureFixture) -> None:
    """Memory stays bounded, and the log says which group and which offset."""

    async def story(name_server: str, producer: Producer) -> None:
        seen: list[bytes] = []
        may_pass = False

        async def handle(message: ReceivedMessage) -> bool:
            if message.message_group == "a" and not may_pass:
                return False
            seen.append(message.body)
            return True

        await send_groups(producer, "a", 1)
        limits = FlowLimits(span_max=40)
        async with consumer(
            name_server, handle, order="group", flow_limits=limits, pull_count_max=8
        ) as member:
            await until(lambda: member.assignments, WAIT_S)
            await send_groups(producer, "b", 100)
            held = next(one for one in member.assignments.values() if one.queue.topic == "t")
            await until(lambda: held.loop.hold_reason is not None, WAIT_S)
            assert "offset span" in (held.loop.hold_reason or "")
            assert held.process_queue.pull_offset < 60
            assert by_group(seen) == {"b": list(range(len(seen)))}
            may_pass = True
            await until(lambda: len(seen) == 101, WAIT_S)
        assert by_group(seen) == {"a": [0], "b": [*range(100)]}

    scenario(story, queue_count=1)
    (line,) = [line for line in caplog.messages if "stops pulling" in line]
    assert "(offset span 40, limit 40): offset 0 is not done, and 1 of" in line
    assert "the first is 'a'" in line


def test_order_holds_while_members_come_and_go() -> None:
    """A queue is handed over when its handler has ended, from where it got to, at once."""

    async def story(name_server: str, producer: Producer) -> None:
        seen: list[tuple[str, bytes]] = []
        inside: dict[int, str] = {}

        def handler(who: str) -> Callable[[ReceivedMessage], Awaitable[None]]:
            async def handle(message: ReceivedMessage) -> None:
                assert message.queue_id not in inside, "two members have one queue"
                inside[message.queue_id] = who
                await asyncio.sleep(0.003)
                seen.append((who, message.body))
                del inside[message.queue_id]

            return handle

        are_all_here = asyncio.Event()

        async def keep_sending() -> int:
            """Until everybody has had some; how many of each group."""
            number = 0
            while not are_all_here.is_set() or number < 60:
                await send_groups(producer, "abcdefgh", 1, first=number)
                await asyncio.sleep(0.005)
                number += 1
            return number

        sending = asyncio.create_task(keep_sending())
        first = consumer(name_server, handler("first"))
        second = consumer(name_server, handler("second"))
        third = consumer(name_server, handler("third"))
        await first.start()
        await until(lambda: len(seen) > 40, WAIT_S)
        await second.start()
        await until(lambda: any(who == "second" for who, _ in seen), WAIT_S)
        await third.start()
        await until(lambda: any(who == "third" for who, _ in seen), WAIT_S)
        are_all_here.set()
        await first.shutdown()
        await second.shutdown()
        count = await sending
        await until(lambda: len(seen) >= 8 * count, WAIT_S)
        await third.shutdown()
        # Nobody died, so there is nothing twice.
        assert by_group([body for _, body in seen]) == {g: [*range(count)] for g in "abcdefgh"}
        assert await committed(name_server) == 8 * count

    scenario(story)


def test_a_long_handler_keeps_its_queue() -> None:
    """The next owner waits until it has ended, is told, and goes on behind it."""

    async def story(name_server: str, producer: Producer) -> None:
        seen: list[str] = []
        go_on = asyncio.Event()

        async def slow(message: ReceivedMessage) -> None:
            await go_on.wait()
            seen.append(f"slow {message.body.decode()}")

        async def quick(message: ReceivedMessage) -> None:
            seen.append(f"quick {message.body.decode()}")

        await send_groups(producer, "a", 3)
        holder = consumer(name_server, slow, instance_name="z")
        waiter = consumer(name_server, quick, instance_name="a")
        await holder.start()
        (queue,) = holder.assignment()
        await until(lambda: holder.assignments[queue].process_queue.count, WAIT_S)
        await waiter.start()  # sorts before: the queue is its from now on
        await until(lambda: queue not in holder.assignments, WAIT_S)
        assert not waiter.assignment()
        assert seen == []
        go_on.set()
        await until(lambda: len(seen) == 3, WAIT_S)
        assert seen == ["slow a0", "quick a1", "quick a2"]
        await waiter.shutdown()
        await holder.shutdown()
        assert await committed(name_server) == 3

    scenario(story, queue_count=1)


def test_a_lost_lock_ends_the_queue_without_a_commit() -> None:
    """Another member may have got further: what is in hand is dropped and taken up anew."""

    async def story(name_server: str, producer: Producer) -> None:
        seen: list[bytes] = []
        go_on = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message.body)
            if message.body == b"a1":
                await go_on.wait()

        await send_groups(producer, "a", 3)
        async with consumer(name_server, handle) as member:
            await until(lambda: len(seen) == 2, WAIT_S)
            (queue,) = member.assignment()
            before = member.assignments[queue]
            assert member._locks is not None
            # As if the broker had given it to somebody else who gave it back.
            await member._locks.release([queue])
            member._locks._granted[queue] = (-100.0, 1)
            assert not member.may_consume(queue)
            assert member.hold(before.loop) == "its lock was not renewed for 30 s"
            await member.renew_locks()
            assert before.process_queue.dropped
            await until(lambda: member.assignments.get(queue) not in (None, before), WAIT_S)
            await asyncio.sleep(0.05)  # time for a message too early, which none needs
            assert len(seen) == 2, "the handler of the old assignment has not ended"
            go_on.set()
            await until(lambda: seen[-1] == b"a2", WAIT_S)
        assert seen == [b"a0", b"a1", b"a0", b"a1", b"a2"]
        assert await committed(name_server) == 3

    scenario(story, queue_count=1)


def test_a_lock_that_is_lost_while_its_queue_starts_is_asked_for_again() -> None:
    """Incident of 2026-11-28: the queue was assigned without its lock, and nobody consumed it."""

    async def story(name_server: str, producer: Producer) -> None:
        seen: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message.body)

        await send_groups(producer, "a", 3)
        member = consumer(name_server, handle)
        start_offset = member._start_offset
        lost: list[MessageQueue] = []

        async def lose_the_lock(queue: MessageQueue) -> int:
            queue_offset = await start_offset(queue)
            if not lost and member._locks is not None:
                lost.append(queue)
                await member._locks.release([queue])
            return queue_offset

        member._start_offset = lose_the_lock  # type: ignore[method-assign]
        async with member:
            await until(lambda: seen == [b"a0", b"a1", b"a2"], WAIT_S)
        assert len(lost) == 1

    scenario(story, queue_count=1)


def test_broadcasting_keeps_the_order_without_locks(tmp_path: Path) -> None:
    """Every member has all queues; a message that never passes is passed over at the limit."""

    async def story(name_server: str, producer: Producer) -> None:
        seen: list[bytes] = []

        async def handle(message: ReceivedMessage) -> bool:
            seen.append(message.body)
            return message.body != b"a1"

        await send_groups(producer, "a", 3)
        async with consumer(
            name_server,
            handle,
            message_model=MessageModel.BROADCASTING,
            max_reconsume_times=1,
            offset_folder=str(tmp_path),
        ) as member:
            await until(lambda: seen[-1:] == [b"a2"], WAIT_S)
            assert member.locked_ms(member.assignment()[0]) == 0
        assert seen == [b"a0", b"a1", b"a1", b"a2"]

    scenario(story, queue_count=1)


def test_wrong_options_are_told() -> None:
    """An order that does not exist, and a pause that is none."""
    with pytest.raises(ConfigError, match="give one of none, queue, group"):
        PushConsumer("g", order="partition")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="suspend_ms is 0"):
        PushConsumer("g", order="queue", suspend_ms=0)


def test_a_vanished_member_is_followed_when_its_locks_expire() -> None:
    """No goodbye, no unlock: until the locks expire nobody has its queues, then somebody has."""

    async def run() -> None:
        async with (
            embedded_cluster({"rebalanceLockMaxLiveTime": 3_000}) as cluster,
            Producer("pg", name_server=cluster.name_server_address) as producer,
        ):
            await producer.create_topic("t", queue_count=2)
            seen: list[tuple[str, bytes]] = []

            def handler(who: str) -> Callable[[ReceivedMessage], Awaitable[None]]:
                async def handle(message: ReceivedMessage) -> None:
                    seen.append((who, message.body))

                return handle

            gone = consumer(cluster.name_server_address, handler("gone"), instance_name="a")
            left = consumer(cluster.name_server_address, handler("left"), instance_name="b")
            await gone.start()
            await left.start()
            await until(lambda: len(gone.assignment()) == len(left.assignment()) == 1, WAIT_S)
            instance = gone._instance
            assert instance is not None
            assert gone._locks is not None
            await gone._locks.renew()
            for task in list(instance._tasks):
                task.cancel()
            await instance.pool.close()
            await send_groups(producer, "abcdefgh", 3)
            await until(lambda: len(seen) >= 24, WAIT_S)
            assert {who for who, _ in seen} == {"left"}
            assert by_group([body for _, body in seen]) == {g: [0, 1, 2] for g in "abcdefgh"}
            await left.shutdown()
            gone._running = None

    asyncio.run(run())


def test_an_operator_sees_the_locks() -> None:
    """Running info: ordered, locked since when."""

    async def story(name_server: str, producer: Producer) -> None:
        async def handle(message: ReceivedMessage) -> None:
            pass

        async with consumer(name_server, handle) as member:
            await until(lambda: len(member.assignment()) == 4, WAIT_S)
            command = RemotingCommand.request(
                RequestCode.GET_CONSUMER_RUNNING_INFO,
                {"consumerGroup": "g", "clientId": member.client_id or ""},
            )
            answer = serve_broker(member, None, command)  # type: ignore[arg-type]
            assert answer is not None
            info = ConsumerRunningInfo.decode(answer.body)
            assert info.properties["PROP_CONSUMEORDERLY"] == "true"
            assert len(info.queue_table) == 5  # the retry queue is one of them
            for row in info.queue_table.values():
                assert (row["locked"], row["droped"]) == (True, False)
                assert row["lastLockTimestamp"] > 1_700_000_000_000

    scenario(story)


def test_a_lock_that_went_to_another_member_ends_the_queue() -> None:
    """Nothing of it is committed any more; given back, it is taken up where the other was."""

    async def run() -> None:
        async with (
            embedded_cluster() as cluster,
            Producer("pg", name_server=cluster.name_server_address) as producer,
        ):
            await producer.create_topic("t", queue_count=1)
            seen: list[bytes] = []

            async def handle(message: ReceivedMessage) -> bool:
                seen.append(message.body)
                return message.body != b"a1"

            broker = cluster.standalone.broker
            locks = broker.state.queue_locks
            await send_groups(producer, "a", 5)
            async with consumer(cluster.name_server_address, handle) as member:
                await until(lambda: b"a1" in seen, WAIT_S)
                (queue,) = member.assignment()
                before = member.assignments[queue]
                locks.unlock("g", member.client_id or "", [queue])
                locks.lock("g", "other", [queue], broker.env.clock.now_ms())
                await member.renew_locks()
                assert before.process_queue.dropped
                assert before.loop.state is PullState.STOPPED
                assert not member.assignment()
                assert not member.may_consume(queue)
                # The other got to 3 and goes.
                broker.state.offsets.commit(
                    "g", "t", 0, ConsumerOffset(3), broker.env.clock.now_ms()
                )
                await until(
                    lambda: locks.unlock("g", "other", [queue]) or seen[-1] == b"a4", WAIT_S
                )
                member.rebalance_soon()
                await until(lambda: seen[-1] == b"a4", WAIT_S)
            assert seen[-2:] == [b"a3", b"a4"]
            assert await committed(cluster.name_server_address) == 5

    asyncio.run(run())


def test_the_synchronous_face_keeps_the_order() -> None:
    """The same options, without asyncio."""
    seen: list[bytes] = []

    def handle(message: ReceivedMessage) -> bool:
        if message.body == b"a1" and message.reconsume_times < 2:
            return False
        seen.append(message.body)
        return True

    with (
        threaded_cluster() as cluster,
        sync.Producer("pg", name_server=cluster.name_server_address) as producer,
    ):
        producer.create_topic("t", queue_count=1)
        for group in "ab":
            for number in range(4):
                producer.send(Message("t", f"{group}{number}".encode(), message_group=group))
        with sync.PushConsumer(
            "g",
            {"t": "*"},
            handle,
            name_server=cluster.name_server_address,
            consume_from="first",
            order="group",
            suspend_ms=20,
        ):
            deadline = time.monotonic() + WAIT_S
            while len(seen) < 8 and time.monotonic() < deadline:
                time.sleep(0.01)
    assert by_group(seen) == {"a": [0, 1, 2, 3], "b": [0, 1, 2, 3]}
