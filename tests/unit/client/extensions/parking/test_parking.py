"""Parked message groups with a real broker: who flows, who waits, and that nobody is overtaken."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.unit.client.waiting import until

from cometmq.client import (
    Admin,
    DeadLetter,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
)
from cometmq.client.extensions.parking.log import ParkingQueue
from cometmq.core.extensions.parking import LaneState, ParkingLog, ParkKind
from cometmq.errors import ConfigError
from cometmq.net.env import SystemClock
from cometmq.testing.cluster import EmbeddedCluster, embedded_cluster

WAIT_S = 60.0


class Shop:
    """A cluster with a topic Orders, and what its consumers saw."""

    def __init__(self, cluster: EmbeddedCluster, admin: Admin, producer: Producer) -> None:
        self.cluster = cluster
        self.address = cluster.name_server_address
        self.admin = admin
        self.producer = producer
        self.taken: list[str] = []
        self.tried: list[str] = []
        self.parked: list[tuple[str, str]] = []
        self.refused: set[str] = set()
        self.number = 0

    async def send(self, group: str | None, count: int = 1) -> None:
        """Messages ``group:0``, ``group:1``, ... of a group."""
        for _ in range(count):
            body = f"{group}:{self.number}"
            self.number += 1
            await self.producer.send(
                Message("Orders", body.encode(), keys=body, message_group=group)
            )

    async def handle(self, message: ReceivedMessage) -> None:
        """Take it, unless the test says that it fails."""
        text = message.body.decode()
        self.tried.append(text)
        if text in self.refused or text.partition(":")[0] in self.refused:
            raise LookupError(f"no account for {text}")
        self.taken.append(text)

    def alert(self, message: ReceivedMessage, reason: str) -> None:
        """The hook."""
        self.parked.append((message.body.decode(), reason))

    def consumer(self, **options: Any) -> PushConsumer:
        """An ordered member of the group billing that parks after two tries."""
        settings: dict[str, Any] = {
            "order": "group",
            "suspend_ms": 10,
            "park_after": 2,
            "on_parked": self.alert,
            "consume_from": "first",
            "name_server": self.address,
        }
        handler = options.pop("handler", self.handle)
        return PushConsumer("billing", {"Orders": "*"}, handler, **(settings | options))

    @property
    def log(self) -> ParkingQueue:
        """The parking queue as an operator sees it."""
        return ParkingQueue(self.admin.queue_reader(), "billing", "broker-a", SystemClock())

    async def state(self) -> ParkingLog:
        """What is parked now."""
        return await self.log.state()

    def taken_of(self, group: str) -> list[str]:
        """What was taken of a group, in order."""
        return [text for text in self.taken if text.partition(":")[0] == group]

    async def committed(self) -> int:
        """Messages of Orders that count as consumed."""
        progress = await self.admin.group_offsets("billing", ["Orders"])
        return sum(queue.consumer_offset or 0 for queue in progress.values())


Story = Callable[[Shop], Coroutine[Any, Any, None]]


def scenario(story: Story, queue_count: int = 1) -> None:
    """Run a story in a fresh cluster."""

    async def run() -> None:
        async with embedded_cluster() as cluster:
            address = cluster.name_server_address
            async with (
                Admin(name_server=address) as admin,
                Producer("p", name_server=address) as producer,
            ):
                await admin.create_topic("Orders", queue_count=queue_count)
                await admin.topic_route("Orders")
                await story(Shop(cluster, admin, producer))

    asyncio.run(run())


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask the broker again until it holds."""
    async with asyncio.timeout(WAIT_S):
        while not await condition():  # noqa: ASYNC110 - brokers do not call back
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("order", ["group", "queue"])
def test_the_others_flow_on_and_a_retry_keeps_order(order: str) -> None:
    """The failed one and all of its group after it are put aside; then they come, in order."""

    async def story(shop: Shop) -> None:
        shop.refused = {"bad"}
        await shop.send("good", 2)
        await shop.send("bad", 3)
        await shop.send("good", 3)
        async with shop.consumer(order=order):
            await until(lambda: len(shop.taken_of("good")) == 5, WAIT_S)
            await until(lambda: shop.parked, WAIT_S)
            assert shop.parked == [("bad:2", "LookupError: no account for bad:2")]
            await shop.send("bad", 2)
            await shop.send("good")

            async def is_all_parked() -> bool:
                lane = (await shop.state()).lanes.get("Orders/bad")
                return lane is not None and len(lane.messages) == 5

            await eventually(is_all_parked)
            await until(lambda: len(shop.taken_of("good")) == 6, WAIT_S)
            # Only the first of the group was tried, as often as was asked for.
            assert [text for text in shop.tried if text.startswith("bad")] == ["bad:2"] * 2
            lane = (await shop.state()).lanes["Orders/bad"]
            assert [one.keys for one in lane.messages] == [f"bad:{n}" for n in (2, 3, 4, 8, 9)]
            shop.refused = set()
            await shop.log.append_order(ParkKind.RETRY, "Orders/bad")
            await until(lambda: len(shop.taken_of("bad")) == 5, WAIT_S)
            assert shop.taken_of("bad") == [f"bad:{n}" for n in (2, 3, 4, 8, 9)]

            async def flows_again() -> bool:
                return not (await shop.state()).lanes

            await eventually(flows_again)
            await shop.send("bad", 2)
            await until(lambda: len(shop.taken_of("bad")) == 7, WAIT_S)
        assert shop.taken_of("bad") == [f"bad:{n}" for n in (2, 3, 4, 8, 9, 11, 12)]
        assert await shop.committed() == 13

    scenario(story)


def test_a_retry_that_fails_again_stands_still_until_the_next() -> None:
    """The hook is called again; a skipped message is passed, the rest comes in order."""

    async def story(shop: Shop) -> None:
        shop.refused = {"bad:0", "bad:2"}
        await shop.send("bad", 4)
        async with shop.consumer():
            await until(lambda: len(shop.parked) == 1, WAIT_S)
            await shop.log.append_order(ParkKind.RETRY, "Orders/bad")
            await until(lambda: len(shop.parked) == 2, WAIT_S)

            async def is_parked() -> bool:
                lane = (await shop.state()).lanes["Orders/bad"]
                return lane.state is LaneState.PARKED and len(lane.messages) == 4

            await eventually(is_parked)
            first = (await shop.state()).lanes["Orders/bad"].messages[0]
            await shop.log.append_order(ParkKind.SKIP, "Orders/bad", first.park_offset)
            await shop.log.append_order(ParkKind.RETRY, "Orders/bad")
            await until(lambda: len(shop.parked) == 3, WAIT_S)
            assert shop.parked[-1][0] == "bad:2"
            assert shop.taken == ["bad:1"]
            shop.refused = set()
            await shop.log.append_order(ParkKind.RETRY, "Orders/bad")
            await until(lambda: len(shop.taken) == 3, WAIT_S)
        assert shop.taken == ["bad:1", "bad:2", "bad:3"]

    scenario(story)


def test_parked_groups_survive_their_member() -> None:
    """Whoever takes the queue knows them before it handles a message."""

    async def story(shop: Shop) -> None:
        shop.refused = {"bad"}
        await shop.send("bad", 3)
        async with shop.consumer():
            await until(lambda: shop.parked, WAIT_S)

            async def is_committed() -> bool:
                return await shop.committed() == 3

            await eventually(is_committed)
        shop.refused = set()
        tries = len(shop.tried)
        await shop.send("bad")
        await shop.send("good")
        async with shop.consumer():
            await until(lambda: shop.taken_of("good"), WAIT_S)

            async def are_parked() -> bool:
                return len((await shop.state()).lanes["Orders/bad"].messages) == 4

            await eventually(are_parked)
            assert len(shop.tried) == tries + 1, "a message of the parked group was tried"
            await shop.log.append_order(ParkKind.RETRY, "Orders/bad")
            await until(lambda: len(shop.taken_of("bad")) == 4, WAIT_S)
        assert shop.taken_of("bad") == [f"bad:{n}" for n in range(4)]

    scenario(story)


def test_a_rebalance_in_the_middle_of_a_retry() -> None:
    """The first member leaves while it retries; the next goes on, and nobody is overtaken."""

    async def story(shop: Shop) -> None:
        shop.refused = {"a", "b", "c"}
        for _ in range(5):
            for group in "abc":
                await shop.send(group)
        first = shop.consumer(instance_name="first")
        await first.start()
        await until(lambda: len(shop.parked) == 3, WAIT_S)

        async def are_parked() -> bool:
            lanes = (await shop.state()).lanes.values()
            return sum(len(lane.messages) for lane in lanes) == 15

        await eventually(are_parked)
        shop.refused = set()
        for group in "abc":
            await shop.log.append_order(ParkKind.RETRY, f"Orders/{group}")
        await until(lambda: shop.taken, WAIT_S)
        async with shop.consumer(instance_name="second"):
            await first.shutdown()
            for group in "abc":
                await shop.send(group)
            await until(lambda: len(set(shop.taken)) == 18, WAIT_S)
        for group in "abc":
            numbers = [int(text.partition(":")[2]) for text in shop.taken_of(group)]
            once = list(dict.fromkeys(numbers))
            assert once == sorted(once)
            assert len(once) == 6

    scenario(story, queue_count=3)


def test_old_lanes_are_moved_on_before_they_expire() -> None:
    """Nothing is old at first; later all copies lie further on, in order, and may be retried."""

    class Later(SystemClock):
        def now_ms(self) -> int:
            return super().now_ms() + 37 * 3_600_000

    async def story(shop: Shop) -> None:
        shop.refused = {"bad"}
        await shop.send("bad", 3)
        await shop.send("good")
        async with shop.consumer() as consumer:

            async def are_parked(count: int) -> bool:
                lane = (await shop.state()).lanes.get("Orders/bad")
                return lane is not None and len(lane.messages) == count

            await eventually(lambda: are_parked(3))
            assert await shop.log.retention_ms() == 72 * 3_600_000
            before = list((await shop.state()).lanes["Orders/bad"].messages)
            assert consumer._parking is not None
            (found,) = consumer._parking._brokers.values()
            mover = consumer._parking.mover(found)
            assert await mover.move_old() == 0
            mover._clock = Later()
            assert await mover.move_old() == 1
            state = await shop.state()
            after = state.lanes["Orders/bad"].messages
            assert [one.position for one in after] == [one.position for one in before]
            assert [one.parked_ms for one in after] == [one.parked_ms for one in before]
            assert after[0].park_offset > before[-1].park_offset
            await until(lambda: found.committed == after[0].park_offset, WAIT_S)
            await shop.send("bad")
            await eventually(lambda: are_parked(4))
            shop.refused.clear()
            await shop.log.append_order(ParkKind.RETRY, "Orders/bad")
            await until(lambda: len(shop.taken) == 5, WAIT_S)
            await shop.send("bad")
            await until(lambda: len(shop.taken) == 6, WAIT_S)
        assert shop.taken_of("bad") == [f"bad:{n}" for n in (0, 1, 2, 4, 5)]
        assert (await shop.state()).lanes == {}

    scenario(story)


def test_messages_without_a_group_are_parked_by_queue() -> None:
    """All of the queue's messages that have no group, and no others."""

    async def story(shop: Shop) -> None:
        shop.refused = {"None"}
        await shop.send(None, 2)
        await shop.send("good", 2)
        async with shop.consumer():
            await until(lambda: len(shop.taken) == 2, WAIT_S)

            async def are_parked() -> bool:
                lane = (await shop.state()).lanes.get("Orders@broker-a:0")
                return lane is not None and len(lane.messages) == 2

            await eventually(are_parked)
            shop.refused = set()
            await shop.log.append_order(ParkKind.RETRY, "Orders@broker-a:0")
            await until(lambda: len(shop.taken) == 4, WAIT_S)
        assert shop.taken_of("None") == ["None:0", "None:1"]

    scenario(story)


def test_list_handlers_threads_and_dead_letters() -> None:
    """A plain handler of lists parks too; a retried message may be made a dead letter."""

    async def story(shop: Shop) -> None:
        is_hopeless = False

        def handle(messages: list[ReceivedMessage]) -> list[bool | DeadLetter]:
            verdicts: list[bool | DeadLetter] = []
            for message in messages:
                text = message.body.decode()
                if text == "bad:1":
                    verdicts.append(DeadLetter() if is_hopeless else False)
                else:
                    shop.taken.append(text)
                    verdicts.append(True)
            return verdicts

        await shop.send("bad", 3)
        async with shop.consumer(handler=handle, batch_count_max=1):
            await until(lambda: shop.parked, WAIT_S)
            assert shop.taken == ["bad:0"]
            is_hopeless = True
            await shop.log.append_order(ParkKind.RETRY, "Orders/bad")
            await until(lambda: len(shop.taken) == 2, WAIT_S)

            async def is_dead() -> bool:
                reader = shop.admin.queue_reader()
                bounds = [await reader.bounds(q) for q in await reader.queues("%DLQ%billing")]
                return sum(end for _, end in bounds) == 1

            await eventually(is_dead)
        assert shop.taken == ["bad:0", "bad:2"]

    scenario(story)


def test_a_hook_that_fails_stops_nothing() -> None:
    """It is logged; a coroutine is waited for."""

    async def story(shop: Shop) -> None:
        called: list[str] = []

        async def broken(message: ReceivedMessage, reason: str) -> None:
            called.append(reason)
            raise RuntimeError("the pager is down")

        shop.refused = {"bad"}
        await shop.send("bad")
        await shop.send("good")
        async with shop.consumer(on_parked=broken):
            await until(lambda: called and shop.taken_of("good"), WAIT_S)
        assert called == ["LookupError: no account for bad:0"]

    scenario(story)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"order": "none"}, "order='queue'"),
        ({"park_after": 0}, "park_after is 0"),
        ({"park_after": None}, "park_after="),
        ({"group": "g" * 122}, "longer than group max length"),
    ],
)
def test_settings_that_cannot_be(options: dict[str, Any], words: str) -> None:
    """Told when the consumer is made."""
    settings: dict[str, Any] = {"order": "group", "park_after": 3, "on_parked": print}
    group = options.pop("group", "g")
    with pytest.raises(ConfigError, match=words):
        PushConsumer(group, {"t": "*"}, print, **(settings | options))


def test_parked_groups_survive_the_broker(tmp_path: Path) -> None:
    """The parking topic is in the store; a fresh member of a fresh broker goes on with it."""

    async def run() -> None:
        seen: list[Shop] = []
        for round_number in range(2):
            async with embedded_cluster(store_path=str(tmp_path / "store")) as cluster:
                address = cluster.name_server_address
                async with (
                    Admin(name_server=address) as admin,
                    Producer("p", name_server=address) as producer,
                ):
                    shop = Shop(cluster, admin, producer)
                    seen.append(shop)
                    if round_number == 0:
                        await admin.create_topic("Orders", queue_count=1)
                        await before_the_restart(shop)
                    else:
                        await admin.topic_route("Orders")
                        await after_the_restart(shop)

    async def before_the_restart(shop: Shop) -> None:
        shop.refused = {"bad"}
        await shop.send("bad", 4)
        async with shop.consumer():

            async def are_parked() -> bool:
                lane = (await shop.state()).lanes.get("Orders/bad")
                return lane is not None and len(lane.messages) == 4

            await shop.admin.topic_route("Orders")
            await eventually(are_parked)

    async def after_the_restart(shop: Shop) -> None:
        shop.number = 4
        await shop.send("bad")
        async with shop.consumer():

            async def are_parked() -> bool:
                return len((await shop.state()).lanes["Orders/bad"].messages) == 5

            await eventually(are_parked)
            assert shop.tried == []
            await shop.log.append_order(ParkKind.RETRY, "Orders/bad")
            await until(lambda: len(shop.taken) == 5, WAIT_S)
        assert shop.taken == [f"bad:{n}" for n in range(5)]

    asyncio.run(run())


def test_a_member_that_dies_while_it_parks() -> None:
    """What it had sent and not committed comes again; nothing is lost, nobody is overtaken."""

    async def story(shop: Shop) -> None:
        # The next owner need not wait a minute for the lock of the dead one.
        shop.cluster.standalone.broker.state.queue_locks.live_ms = 500
        shop.refused = {"bad"}
        dying = shop.consumer(instance_name="dying")
        await dying.start()
        parking = dying._parking
        assert parking is not None
        read_back = 0

        def lose_what_is_read_back(broker_log: object) -> None:
            nonlocal read_back
            read_back += 1

        # It reads its copies back and dies before it can count them as consumed.
        parking._read_back = lose_what_is_read_back  # type: ignore[method-assign]
        await shop.send("bad", 3)
        await shop.send("good", 2)

        async def is_begun() -> bool:
            return "Orders/bad" in (await shop.state()).lanes

        await eventually(is_begun)
        await until(lambda: read_back and len(shop.taken_of("good")) == 2, WAIT_S)
        assert dying._instance is not None
        for assignment in dying._assignments.values():
            assignment.loop.stop()
            assignment.process_queue.dropped = True
        for task in list(dying._instance._tasks):
            task.cancel()
        await dying._instance.pool.close()
        assert await shop.committed() == 0
        async with shop.consumer(instance_name="next"):
            await shop.send("bad")

            async def are_parked() -> bool:
                messages = (await shop.state()).lanes["Orders/bad"].messages
                return len({one.position for one in messages}) == 4

            await eventually(are_parked)
            shop.refused = set()
            await shop.log.append_order(ParkKind.RETRY, "Orders/bad")
            await until(lambda: len(shop.taken_of("bad")) == 4, WAIT_S)

            async def flows_again() -> bool:
                return not (await shop.state()).lanes

            await eventually(flows_again)
        assert shop.taken_of("bad") == [f"bad:{n}" for n in (0, 1, 2, 5)]

    scenario(story)


def test_a_broker_that_lost_acknowledged_copies_gets_them_again() -> None:
    """A power cut with asynchronous flush: what was not read back is not in other hands."""

    async def story(shop: Shop) -> None:
        shop.refused = {"a", "b"}
        await shop.send("a")
        async with shop.consumer() as consumer:
            await until(lambda: len(shop.parked) == 1, WAIT_S)
            assert consumer._parking is not None
            found = consumer._parking._brokers["broker-a"]
            append, pull = found.queue.append_copy, found.queue.pull
            faults: list[str] = []

            async def lose(message: ReceivedMessage, properties: Any) -> int:
                if "lost" in faults:
                    return await append(message, properties)
                faults.append("lost")
                return found.log.next_offset + 1000

            async def end_earlier(
                place: int, suspend_ms: int
            ) -> tuple[list[ReceivedMessage], int, bool]:
                if "lost" not in faults or "moved" in faults:
                    return await pull(place, 100)
                faults.append("moved")
                return [], place - 1, True

            found.queue.append_copy = lose  # type: ignore[method-assign]
            found.queue.pull = end_earlier  # type: ignore[method-assign, assignment]
            # The pull that is held has to end before the next one can find out.
            await shop.log.append_order(ParkKind.RETRY, "nobody")
            await shop.send("b", 2)

            async def are_parked() -> bool:
                lanes = (await shop.state()).lanes
                return len(lanes) == 2 and len(lanes["Orders/b"].messages) == 2

            await eventually(are_parked)
            assert faults == ["lost", "moved"]
            lane = (await shop.state()).lanes["Orders/b"]
            assert [one.keys for one in lane.messages] == ["b:1", "b:2"]

        assert await shop.committed() == 3

    scenario(story)


def test_what_is_parked_is_no_topic_of_the_group() -> None:
    """Its progress is that in the topics it subscribes to."""

    async def story(shop: Shop) -> None:
        shop.refused = {"a"}
        await shop.send("a")
        async with shop.consumer():
            await until(lambda: len(shop.parked) == 1, WAIT_S)
            await shop.log.append_order(ParkKind.RETRY, "Orders/a")
            shop.refused = set()

            async def flows_again() -> bool:
                return not (await shop.state()).lanes

            await eventually(flows_again)
        assert await shop.admin.group_topics("billing") == ["Orders"]

    scenario(story)
