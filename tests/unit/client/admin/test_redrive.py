"""Dead letters of a real broker, sent again: order, once, and only to whom it should."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.client.waiting import until

from cometmq.client import Admin, DeadLetter, Message, Producer, PushConsumer, ReceivedMessage
from cometmq.client.admin.redrive import DeadLetters, Redrive, RedrivePlan, dead_groups
from cometmq.client.admin.redrive_ledger import RedriveLedger
from cometmq.core.retry.dead_letters import Death, DeathSelection
from cometmq.errors import CometError, ConfigError, RequestTimeout
from cometmq.model import MessageQueue
from cometmq.net.env import SystemClock
from cometmq.testing.cluster import EmbeddedCluster, embedded_cluster

COUNT = 12
ALL = DeathSelection()


Story = Callable[[EmbeddedCluster], Coroutine[Any, Any, None]]


def scenario(story: Story) -> None:
    """Run a story in a cluster where `COUNT` messages of Orders died for the group billing."""

    async def run() -> None:
        async with embedded_cluster() as cluster:
            await die(cluster)
            await story(cluster)

    asyncio.run(run())


class Between:
    """An `Io` whose requests go through a function of the test's."""

    def __init__(self, io: Any, request: Any) -> None:
        self._io = io
        self.request = request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._io, name)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask brokers again until it holds."""
    async with asyncio.timeout(30):
        while not await condition():  # noqa: ASYNC110 - brokers do not call back
            await asyncio.sleep(0.05)


async def die(cluster: EmbeddedCluster) -> None:
    """Have a consumer refuse every message for good."""
    address = cluster.name_server_address
    async with Admin(name_server=address) as admin, Producer("p", name_server=address) as producer:
        await admin.create_topic("Orders", queue_count=1)
        for number in range(COUNT):
            await producer.send(
                Message(
                    "Orders",
                    str(number).encode(),
                    tags="even" if number % 2 == 0 else "odd",
                    keys=f"k{number}",
                    properties={"reason": "no such account", "shop": str(number)},
                )
            )
        seen: list[bytes] = []

        async def refuse(message: ReceivedMessage) -> DeadLetter:
            seen.append(message.body)
            return DeadLetter()

        reader = admin.queue_reader()
        async with PushConsumer(
            "billing",
            {"Orders": "*"},
            refuse,
            name_server=address,
            consume_from="first",
            concurrency=1,
        ):

            async def are_dead() -> bool:
                found = await dead_groups(reader, await admin.topic_list(include_system=True))
                return found.get("billing") == COUNT

            await eventually(are_dead)


def redrive(admin: Admin, **options: Any) -> tuple[Redrive, RedriveLedger]:
    """A run, and the ledger that it uses."""
    clock = options.pop("clock", None) or SystemClock()
    run = Redrive(DeadLetters(admin.queue_reader(), "billing"), admin, clock=clock, **options)
    return run, run.ledger("broker-a")


class Leaping(SystemClock):
    """A clock whose monotonic time leaps with each sleep, and when a test says so."""

    def __init__(self) -> None:
        self.leapt_s = 0.0
        begin = time.monotonic
        self.monotonic = lambda: begin() + self.leapt_s  # type: ignore[misc]

    async def sleep(self, seconds: float) -> None:
        self.leapt_s += seconds


async def bodies(admin: Admin, topic: str) -> list[bytes]:
    """What lies in a topic, queue by queue."""
    reader = admin.queue_reader()
    return [
        message.body
        for queue in await reader.queues(topic)
        for message in [
            message async for message in reader.read(queue, *(await reader.bounds(queue)))
        ]
    ]


def test_what_a_death_tells() -> None:
    """Origin, tries, reason and ids, and each condition of a selection."""

    async def story(cluster: EmbeddedCluster) -> None:
        async with Admin(name_server=cluster.name_server_address) as admin:
            letters = DeadLetters(admin.queue_reader(), "billing")
            deaths = sorted(
                [death async for death, _ in letters.walk(ALL)],
                key=lambda death: death.queue_offset,
            )
            assert len(deaths) == COUNT
            by_key = {death.keys[0]: death for death in deaths}
            one = by_key["k3"]
            assert (one.origin_topic, one.tags, one.reason) == ("Orders", "odd", "no such account")
            assert (one.times_refused, one.body_bytes) == (1, 1)
            for selection, count in (
                (DeathSelection(topics=("Orders",)), COUNT),
                (DeathSelection(topics=("Bills",)), 0),
                (DeathSelection(tags=("odd",)), COUNT // 2),
                (DeathSelection(keys=("k1", "k2", "zz")), 2),
                (DeathSelection(reasons=("account",)), COUNT),
                (DeathSelection(reasons=("timeout",)), 0),
                (DeathSelection(message_ids=(one.message_id,)), 1),
                (DeathSelection(since_ms=one.died_ms + 3_600_000), 0),
                (DeathSelection(until_ms=deaths[0].died_ms), 0),
                (
                    DeathSelection(since_ms=deaths[0].died_ms, until_ms=one.died_ms + 3_600_000),
                    COUNT,
                ),
            ):
                found = [death async for death, _ in letters.walk(selection)]
                assert len(found) == count, selection

    scenario(story)


def test_only_the_group_gets_it_again() -> None:
    """In order, under the first topic and id, tries from the start; the topic gets nothing."""

    async def story(cluster: EmbeddedCluster) -> None:
        address = cluster.name_server_address
        async with Admin(name_server=address) as admin:
            run, ledger = redrive(admin)
            plan = await run.plan(DeathSelection(tags=("odd",)))
            assert (plan.count, plan.sent_before) == (COUNT // 2, 0)
            assert await run.send(plan) == COUNT // 2
            assert ledger.count == COUNT // 2
            # Another selection that overlaps sends the rest only.
            again, _ = redrive(admin)
            plan = await again.plan(ALL)
            assert (plan.count, plan.sent_before) == (COUNT // 2, COUNT // 2)
            assert await again.send(plan) == COUNT // 2
            third, _ = redrive(admin)
            assert (await third.plan(ALL)).count == 0
        async with Admin(name_server=address) as admin:
            # As `pipeline dead-letters` does, which knows the offsets from Spark.
            by_offset, _ = redrive(admin, is_repeated=True)
            queue = MessageQueue("%DLQ%billing", "broker-a", 0)
            assert (await by_offset.plan_offsets({queue: [1, 4]})).offsets == {queue: [1, 4]}
        async with Admin(name_server=address) as admin:
            dead = [
                death async for death, _ in DeadLetters(admin.queue_reader(), "billing").walk(ALL)
            ]
            assert len(dead) == COUNT
            assert len(await bodies(admin, "Orders")) == COUNT
            order = [int(body) for body in await bodies(admin, "%RETRY%billing")]
            deaths = [int(death.keys[0][1:]) for death in dead]
            odd = [number for number in deaths if number % 2]
            even = [number for number in deaths if number % 2 == 0]
            assert order == odd + even
        got: list[ReceivedMessage] = []

        async def take(message: ReceivedMessage) -> None:
            got.append(message)

        async with PushConsumer(
            "billing", {"Orders": "*"}, take, name_server=address, concurrency=1
        ):
            await until(lambda: len(got) >= COUNT, 30)
        by_key = {death.keys[0]: death for death in dead}
        assert len(got) == COUNT
        for message in got:
            death = by_key[message.keys[0]]
            assert message.topic == "Orders"
            assert message.message_id == death.message_id
            assert message.reconsume_times == 0
            assert message.properties["REPLAY_OF"] == death.position
            assert message.properties["shop"] == message.body.decode()

    scenario(story)


def test_to_the_first_topics() -> None:
    """As new messages of the topic, for each of its groups; what was sent is not sent twice."""

    async def story(cluster: EmbeddedCluster) -> None:
        async with Admin(name_server=cluster.name_server_address) as admin:
            run, _ = redrive(admin, to_origin=True)
            plan = await run.plan(ALL)
            assert [(key, row[0]) for key, row in plan.by_target.items()] == [
                (("Orders", "Orders"), COUNT)
            ]
            assert await run.send(plan) == COUNT
            assert len(await bodies(admin, "Orders")) == 2 * COUNT
            to_group, _ = redrive(admin)
            plan = await to_group.plan(ALL)
            assert (plan.count, plan.sent_before) == (0, COUNT)
            again, _ = redrive(admin, is_repeated=True)
            assert await again.send(await again.plan(ALL)) == COUNT
            assert len(await bodies(admin, "%RETRY%billing")) == COUNT

    scenario(story)


def test_a_killed_run_is_finished_without_repeating() -> None:
    """What was in doubt is looked up in the retry topic."""

    async def story(cluster: EmbeddedCluster) -> None:

        class Killed(Exception):
            """Stands for the end of the process."""

        sleeps = 0
        clock = Leaping()

        async def die_at_the_fifth(seconds: float) -> None:
            nonlocal sleeps
            sleeps += 1
            if sleeps == 5:
                raise Killed
            await clock.sleep(seconds)

        async with Admin(name_server=cluster.name_server_address) as admin:
            run, ledger = redrive(admin, rate=1.0, clock=clock, sleep=die_at_the_fifth)
            with pytest.raises(Killed):
                await run.send(await run.plan(ALL))
            assert sleeps == 5
            assert ledger.pending is not None
            before = await bodies(admin, "%RETRY%billing")
            assert 0 < len(before) < COUNT
            after, _ = redrive(admin)
            plan = await after.plan(ALL)
            assert plan.sent_before == len(before)
            await after.send(plan)
            order = await bodies(admin, "%RETRY%billing")
            assert sorted(map(int, order)) == list(range(COUNT))

    scenario(story)


def test_a_lost_answer_is_no_second_copy() -> None:
    """The broker stored it, the answer did not come: it is found and not sent again."""

    async def story(cluster: EmbeddedCluster) -> None:
        async with Admin(name_server=cluster.name_server_address) as admin:
            run, ledger = redrive(admin, sleep=lambda seconds: asyncio.sleep(0))
            ask = run._reader.io.request
            lost = 0

            async def lose_the_fourth(address: str, command: Any, timeout_ms: int) -> Any:
                nonlocal lost
                answer = await ask(address, command, timeout_ms)
                if command.code == 310 and command.body == b"3":
                    lost += 1
                    if lost == 1:
                        raise RequestTimeout("the answer is lost")
                return answer

            run._reader.io = Between(run._reader.io, lose_the_fourth)
            assert await run.send(await run.plan(ALL)) == COUNT
            assert lost == 1
            assert ledger.count == COUNT
            order = await bodies(admin, "%RETRY%billing")
            assert sorted(map(int, order)) == list(range(COUNT))

    scenario(story)


def test_a_topic_that_may_not_be_read() -> None:
    """Stores of RocketMQ 4 have dead letters with permission 2; it stays as it is."""

    async def story(cluster: EmbeddedCluster) -> None:
        topics = cluster.standalone.broker.state.topics
        config = topics.get("%DLQ%billing")
        assert config is not None
        topics.put(replace(config, perm=2), 0)
        cluster.standalone.broker.state.topic_changed(replace(config, perm=2))
        async with Admin(name_server=cluster.name_server_address) as admin:

            async def is_known() -> bool:
                route = await admin.topic_route("%DLQ%billing")
                return [data.perm for data in route.queue_datas] == [2]

            await eventually(is_known)
            run, _ = redrive(admin)
            plan = await run.plan(ALL)
            assert plan.count == COUNT
            assert await run.send(plan) == COUNT
            config = topics.get("%DLQ%billing")
            assert config is not None
            assert config.perm == 2

    scenario(story)


def test_a_broker_that_buries_the_copy_is_told_of() -> None:
    """RocketMQ does so while members consume in order; one message is in doubt, not all."""

    async def story(cluster: EmbeddedCluster) -> None:
        async with Admin(name_server=cluster.name_server_address) as admin:
            run, _ = redrive(admin)
            plan = await run.plan(ALL)
            ask = run._reader.io.request

            async def bury(address: str, command: Any, timeout_ms: int) -> Any:
                if command.code == 310:
                    command.ext_fields["b"] = "%DLQ%billing"
                return await ask(address, command, timeout_ms)

            run._reader.io = Between(run._reader.io, bury)
            with pytest.raises(CometError, match="consume in order"):
                await run.send(plan)
            assert len(await bodies(admin, "%DLQ%billing")) == COUNT + 1

    scenario(story)


def test_an_ordered_group_gets_its_dead_letters_again() -> None:
    """Ours does not bury what has no tries yet; the members may stay online."""

    async def story(cluster: EmbeddedCluster) -> None:
        address = cluster.name_server_address
        got: list[bytes] = []

        async def take(message: ReceivedMessage) -> None:
            got.append(message.body)

        async with (
            Admin(name_server=address) as admin,
            PushConsumer("billing", {"Orders": "*"}, take, name_server=address, order="queue"),
        ):
            locks = cluster.standalone.broker.state.queue_locks

            async def is_locked() -> bool:
                return not locks.are_all_expired("billing", SystemClock().now_ms())

            await eventually(is_locked)
            run, _ = redrive(admin)
            assert await run.send(await run.plan(ALL)) == COUNT
            await until(lambda: len(got) == COUNT, 30)
            assert len(await bodies(admin, "%DLQ%billing")) == COUNT

    scenario(story)


def test_two_people_do_not_redrive_the_same_letters_twice() -> None:
    """From two machines or two folders: at the same time, and one after the other."""

    async def story(cluster: EmbeddedCluster) -> None:
        address = cluster.name_server_address
        async with Admin(name_server=address) as one, Admin(name_server=address) as other:
            runs = [redrive(admin)[0] for admin in (one, other)]
            plans = [await run.plan(ALL) for run in runs]
            assert [plan.count for plan in plans] == [COUNT, COUNT]
            sent = await asyncio.gather(
                *[run.send(plan) for run, plan in zip(runs, plans, strict=True)]
            )
            assert sorted(sent) == [0, COUNT]
            assert len(await bodies(one, "%RETRY%billing")) == COUNT
        async with Admin(name_server=address) as later:
            plan = await redrive(later)[0].plan(ALL)
            assert (plan.count, plan.sent_before) == (0, COUNT)

    scenario(story)


def test_a_run_waits_for_another_one_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """As long as the broker keeps the lock of a run that was killed, and not for ever."""

    async def story(cluster: EmbeddedCluster) -> None:
        async with Admin(name_server=cluster.name_server_address) as admin:
            _, held = redrive(admin)
            await held.acquire()
            clock = Leaping()
            run, _ = redrive(admin, clock=clock, sleep=clock.sleep)
            plan = await run.plan(ALL)
            with pytest.raises(CometError, match="another run sends the dead letters"):
                await run.send(plan)
            await held.release()
            assert await run.send(plan) == COUNT

    scenario(story)
    assert "waiting for up to 65 s: another run writes into the ledger %SENT%billing" in caplog.text


def test_a_run_that_slept_too_long_stops() -> None:
    """Another one may have its lock then; what it has sent is on record."""

    async def story(cluster: EmbeddedCluster) -> None:
        clock = Leaping()

        async def oversleep(seconds: float) -> None:
            await clock.sleep(100)

        async with Admin(name_server=cluster.name_server_address) as admin:
            run, _ = redrive(admin, clock=clock, sleep=oversleep, rate=1.0)
            plan = await run.plan(ALL)
            with pytest.raises(CometError, match="has lost the ledger"):
                await run.send(plan)
            sent = len(await bodies(admin, "%RETRY%billing"))
            assert sent < COUNT
            after, _ = redrive(admin)
            assert await after.send(await after.plan(ALL)) == COUNT - sent
            assert len(await bodies(admin, "%RETRY%billing")) == COUNT

    scenario(story)


def test_a_ledger_of_something_else_is_not_taken_for_an_empty_one() -> None:
    """An error names the message that is not a record, and the topic to look into."""

    async def story(cluster: EmbeddedCluster) -> None:
        address = cluster.name_server_address
        async with Admin(name_server=address) as admin, Producer("p", name_server=address) as other:
            await admin.create_topic("%SENT%billing", queue_count=1)
            await other.send(Message("%SENT%billing", b"[1]"))
            with pytest.raises(CometError, match="message 0 of %SENT%billing@broker-a:0 is no rec"):
                await redrive(admin)[0].plan(ALL)

    scenario(story)


def test_ledger_identifies_a_message_by_position_and_id() -> None:
    """The same position with another message id is another message."""

    async def story(cluster: EmbeddedCluster) -> None:
        queue = MessageQueue("%DLQ%g", "a", 0)
        death = Death(queue, 7, 0, "AB", "T", "", 1, "", (), "", 1)
        async with Admin(name_server=cluster.name_server_address) as admin:
            _, ledger = redrive(admin)
            await ledger.acquire()
            await ledger.begin([death], MessageQueue("%RETRY%g", "a", 0), 0)
            assert death not in ledger
            await ledger.done()
            await ledger.done()  # an answer was lost, and the record came twice
            _, again = redrive(admin)
            await again.refresh()
            assert death in again
            assert replace(death, message_id="CD") not in again
            assert replace(death, queue_offset=8) not in again

    scenario(story)


def test_rates() -> None:
    """A rate that never ends is refused; a plan without messages sends nothing."""

    async def story(cluster: EmbeddedCluster) -> None:
        async with Admin(name_server=cluster.name_server_address) as admin:
            with pytest.raises(ConfigError, match="never end"):
                redrive(admin, rate=0.0)
            run, _ = redrive(admin, rate=5.0)
            assert await run.send(RedrivePlan()) == 0
            assert "%SENT%billing" not in await admin.topic_list(include_system=True)

    scenario(story)
