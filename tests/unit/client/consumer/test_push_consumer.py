"""The push consumer against the real broker: delivery, groups, subscriptions, flow control."""

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.client.push_stage import committed, numbered, scenario, send
from tests.unit.client.waiting import until

from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.handling.handlers import RetryLater
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.core.consume.offset_file import decode_offset_file
from cometmq.core.consume.process_queue import FlowLimits
from cometmq.errors import ClientClosed, ConfigError
from cometmq.model import Message, MessageModel, MessageQueue
from cometmq.testing.cluster import embedded_cluster


def test_every_message_once_and_committed() -> None:
    """A coroutine handler sees each message once; shutdown commits all of them."""

    async def story(name_server: str, producer: Producer) -> None:
        seen: Counter[bytes] = Counter()

        async def handle(message: ReceivedMessage) -> None:
            seen[message.body] += 1

        await send(producer, *numbered(100))
        async with PushConsumer(
            "g", {"t": "*"}, handle, name_server=name_server, consume_from="first"
        ) as consumer:
            assert [queue.queue_id for queue in consumer.assignment()] == [0, 1, 2, 3]
            await send(producer, *[b"live %d" % number for number in range(20)])
            await until(lambda: len(seen) == 120)
        assert set(seen.values()) == {1}
        assert await committed(name_server, "g") == 120

    scenario(story)


@pytest.mark.parametrize(
    "kind",
    [
        "list annotation",
        "batch_count_max",
        "plain",
        "plain list",
        "plain that returns a coroutine",
    ],
)
def test_every_kind_of_handler(kind: str) -> None:
    """Lists by annotation or by setting, plain functions in threads of their own."""

    async def story(name_server: str, producer: Producer) -> None:
        seen: list[bytes] = []
        threads: set[str] = set()
        sizes: list[int] = []

        async def by_annotation(messages: list[ReceivedMessage]) -> None:
            seen.extend(message.body for message in messages)
            sizes.append(len(messages))

        async def by_setting(messages: Any) -> None:
            await by_annotation(messages)

        def plain(message: ReceivedMessage) -> None:
            threads.add(threading.current_thread().name)
            seen.append(message.body)

        def plain_list(messages: list[ReceivedMessage]) -> None:
            threads.add(threading.current_thread().name)
            seen.extend(message.body for message in messages)

        def coroutine(message: ReceivedMessage) -> Awaitable[None]:
            threads.add(threading.current_thread().name)
            return by_annotation([message])

        handler: Any = {
            "list annotation": by_annotation,
            "batch_count_max": by_setting,
            "plain": plain,
            "plain list": plain_list,
            "plain that returns a coroutine": coroutine,
        }[kind]
        await send(producer, *numbered(200))
        async with PushConsumer(
            "g",
            {"t": "*"},
            handler,
            name_server=name_server,
            consume_from="first",
            batch_count_max=8 if kind == "batch_count_max" else None,
        ):
            await until(lambda: len(seen) >= 200)
        assert sorted(seen) == sorted(numbered(200))
        if kind.startswith("plain"):
            assert all(name.startswith("cometmq-handler") for name in threads)
        else:
            assert max(sizes) > 1
        if kind == "batch_count_max":
            assert max(sizes) <= 8
        assert await committed(name_server, "g") == 200

    scenario(story)


def test_concurrent_handlers_are_bounded() -> None:
    """Handlers that wait run side by side, never more than asked for."""

    async def story(name_server: str, producer: Producer) -> None:
        running, most, done = 0, 0, 0

        async def handle(message: ReceivedMessage) -> None:
            nonlocal running, most, done
            running += 1
            most = max(most, running)
            async with asyncio.timeout(10):  # needs a real current task
                await asyncio.sleep(0.02)
            running -= 1
            done += 1

        await send(producer, *numbered(40))
        async with PushConsumer(
            "g", {"t": "*"}, handle, name_server=name_server, consume_from="first", concurrency=5
        ):
            await until(lambda: done == 40)
        assert most == 5

    scenario(story)


def test_two_members_share_and_a_leaver_hands_over() -> None:
    """Each queue has one owner; when a member leaves, the other takes all within a moment."""

    async def story(name_server: str, producer: Producer) -> None:
        seen: Counter[bytes] = Counter()
        changes: list[tuple[int, int]] = []

        async def handle(message: ReceivedMessage) -> None:
            seen[message.body] += 1

        def listen(added: Any, removed: Any) -> None:
            changes.append((len(added), len(removed)))

        first = PushConsumer(
            "g",
            {"t": "*"},
            handle,
            name_server=name_server,
            consume_from="first",
            rebalance_listener=listen,
        )
        second = PushConsumer("g", {"t": "*"}, handle, name_server=name_server, strategy="AVG")
        async with first:
            assert len(first.assignment()) == 4
            async with second:
                await until(lambda: len(first.assignment()) == len(second.assignment()) == 2)
                assert not set(first.assignment()) & set(second.assignment())
                await send(producer, *numbered(40))
                await until(lambda: len(seen) == 40)
            await until(lambda: len(first.assignment()) == 4)
            await send(producer, b"after")
            await until(lambda: seen[b"after"])
        assert set(seen.values()) == {1}
        assert (0, 2) in changes or (0, 3) in changes
        assert sum(added - removed for added, removed in changes) == 5

    scenario(story)


def test_tags_are_compared_by_text() -> None:
    """Aa and BB have one Java hash: the broker lets both through, the consumer does not."""

    async def story(name_server: str, producer: Producer) -> None:
        seen: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message.body)

        for tags in ("Aa", "BB", "other", None):
            await producer.send(Message("t", f"{tags}".encode(), tags=tags))
        async with PushConsumer(
            "g", {"t": "Aa || 标签"}, handle, name_server=name_server, consume_from="first"
        ):
            await producer.send(Message("t", "标签".encode(), tags="标签"))
            await until(lambda: len(seen) == 2)
        assert sorted(seen) == [b"Aa", "标签".encode()]
        assert await committed(name_server, "g") == 5

    scenario(story)


def test_handlers_per_topic() -> None:
    """Each topic its own handler, retried messages included."""

    async def story(name_server: str, producer: Producer) -> None:
        seen: Counter[tuple[str, bytes]] = Counter()

        async def one(message: ReceivedMessage) -> Any:
            seen["one", message.body] += 1
            return RetryLater(1) if not message.reconsume_times else None

        async def two(message: ReceivedMessage) -> None:
            seen["two", message.body] += 1

        await producer.create_topic("u", queue_count=1)
        consumer = PushConsumer("g", name_server=name_server, consume_from="first")
        await consumer.subscribe("t", handler=one)
        await consumer.subscribe("u", "*", two)
        async with consumer:
            await send(producer, b"a")
            await send(producer, b"b", topic="u")
            await until(lambda: seen.total() >= 3)
        assert seen == {("one", b"a"): 2, ("two", b"b"): 1}

    scenario(story)


def test_subscriptions_change_while_running() -> None:
    """A topic may come, change its expression and go."""

    async def story(name_server: str, producer: Producer) -> None:
        seen: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message.body)

        async with PushConsumer(
            "g", None, handle, name_server=name_server, consume_from="first"
        ) as consumer:
            assert consumer.assignment() == []
            await consumer.subscribe("t", "a")
            await send(producer, b"1", tags="a")
            await send(producer, b"2", tags="b")
            await until(lambda: seen == [b"1"])
            await consumer.subscribe("t", "b")
            await send(producer, b"3", tags="b")
            await until(lambda: b"3" in seen)
            await consumer.unsubscribe("t")
            assert consumer.assignment() == []
            await send(producer, b"4", tags="b")
        assert b"4" not in seen

    scenario(story)


def test_broadcasting_keeps_offsets_in_a_local_file(tmp_path: Path) -> None:
    """Every member gets every message; the file has Java's format and is read again."""

    async def story(name_server: str, producer: Producer) -> None:
        seen: dict[str, list[bytes]] = {"x": [], "y": []}

        def member(name: str) -> PushConsumer:
            async def handle(message: ReceivedMessage) -> Any:
                seen[name].append(message.body)
                return RetryLater(1)  # broadcasting never repeats

            return PushConsumer(
                "g",
                {"t": "*"},
                handle,
                name_server=name_server,
                consume_from="first",
                message_model=MessageModel.BROADCASTING,
                instance_name=name,
                client_ip="10.0.0.9",
                offset_folder=str(tmp_path),
            )

        await send(producer, *numbered(8))
        async with member("x"), member("y"):
            await until(lambda: len(seen["x"]) == len(seen["y"]) == 8)
        path = tmp_path / "10.0.0.9@x" / "g" / "offsets.json"
        assert sum(decode_offset_file(path.read_bytes()).values()) == 8
        await send(producer, b"new")
        async with member("x"):
            await until(lambda: len(seen["x"]) == 9)
        assert seen["x"][-1] == b"new"
        assert path.with_suffix(".json.bak").exists()

    scenario(story)


def test_flow_control_holds_and_releases() -> None:
    """A queue stops pulling at its limit and goes on when handlers finish."""

    async def story(name_server: str, producer: Producer) -> None:
        gate = asyncio.Event()
        seen: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            await gate.wait()
            seen.append(message.body)

        queue = MessageQueue("t", "broker-a", 0)
        for body in numbered(200):
            await producer.send(Message("t", body), queue=queue)
        async with PushConsumer(
            "g",
            {"t": "*"},
            handle,
            name_server=name_server,
            consume_from="first",
            flow_limits=FlowLimits(count_max=50),
        ) as consumer:
            held = consumer.assignments[queue]
            await until(lambda: held.loop.hold_reason is not None)
            assert 50 <= held.process_queue.count <= 50 + 32
            assert "limit 50" in (held.loop.hold_reason or "")
            gate.set()
            await until(lambda: len(seen) == 200)
            assert held.process_queue.count == 0
        assert sorted(seen) == sorted(numbered(200))

    scenario(story)


def test_clusters_in_one_process_do_not_mix() -> None:
    """Same topic, same group, two clusters: each consumer sees its own messages only."""

    async def run() -> None:
        async with embedded_cluster() as one, embedded_cluster() as two:
            seen: dict[str, list[bytes]] = {}
            for cluster in (one, two):
                address = cluster.name_server_address
                async with Producer("pg", name_server=address) as producer:
                    await producer.create_topic("t")
                    await send(producer, *[address.encode()] * 10)

            async def consume(address: str) -> None:
                mine = seen.setdefault(address, [])

                async def handle(message: ReceivedMessage) -> None:
                    mine.append(message.body)

                async with PushConsumer(
                    "g", {"t": "*"}, handle, name_server=address, consume_from="first"
                ):
                    await until(lambda: len(mine) >= 10)
                    await asyncio.sleep(0.05)  # time for a message too many, which none needs

            addresses = [one.name_server_address, two.name_server_address]
            await asyncio.gather(*[consume(address) for address in addresses])
            assert seen == {address: [address.encode()] * 10 for address in addresses}

    asyncio.run(run())


def test_start_is_refused_in_words() -> None:
    """No handler, no topic, bad settings, closed."""

    async def story(name_server: str, producer: Producer) -> None:
        async def handle(message: ReceivedMessage) -> None:
            raise AssertionError("nothing was sent")

        with pytest.raises(ConfigError, match="topic t has no handler"):
            await PushConsumer("g", {"t": "*"}, name_server=name_server).start()
        consumer = PushConsumer("g", {"t": "*"}, handle, name_server=name_server)
        await consumer.start()
        await consumer.start()
        assert consumer.client_id
        await consumer.shutdown()
        await consumer.shutdown()
        with pytest.raises(ClientClosed):
            await consumer.start()

    scenario(story)
    for options, fault in (
        ({"group": "bad group"}, "illegal"),
        ({"group": "g", "concurrency": 0}, "at least"),
        ({"group": "g", "batch_count_max": 0}, "at least"),
        ({"group": "g", "consume_from": "middle"}, "unknown"),
        ({"group": "g", "strategy": "FAIR"}, "no allocation strategy"),
        ({"group": "g", "subscriptions": {"bad topic": "*"}}, "illegal"),
        ({"group": "g", "subscriptions": {"t": "||"}}, "names no tag"),
    ):
        with pytest.raises(ConfigError, match=fault):
            PushConsumer(**options)  # type: ignore[arg-type]
