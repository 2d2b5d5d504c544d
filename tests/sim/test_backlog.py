"""Backlog rescue on virtual time: dropped messages, the newest first, copies to more queues."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from cometmq.client.admin.admin import Admin
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.core.consume.process_queue import FlowLimits
from cometmq.core.retry.dead_letters import REPLAY_OF
from cometmq.errors import CometError, RemoteError
from cometmq.model import Message, SubscriptionGroupConfig
from cometmq.testing.sim_cluster import SimCluster, run_seed

TOPIC, GROUP = "Orders", "billing"
RETRIES = f"%RETRY%{GROUP}"
FEW: Final = FlowLimits(count_max=16)
"""Members of these tests take few messages at a time, so that a backlog stays at the broker."""
Story = Callable[["Backlog"], Awaitable[None]]


class Backlog:
    """A topic with a backlog, members with one slow handler each, and what they handled."""

    def __init__(self, cluster: SimCluster, admin: Admin) -> None:
        self.cluster = cluster
        self.admin = admin
        self.order: list[bytes] = []
        self.pause_s = 0.01

    @property
    def counts(self) -> Counter[bytes]:
        return Counter(self.order)

    async def _handle(self, message: ReceivedMessage) -> None:
        await asyncio.sleep(self.pause_s)
        self.order.append(message.body)

    def member(self, machine: str = "client", tags: str = "*", **options: Any) -> PushConsumer:
        given = {"concurrency": 1, "flow_limits": FEW, "pull_count_max": 8, **options}
        return self.cluster.consumer(GROUP, {TOPIC: tags}, self._handle, machine=machine, **given)

    async def send(self, word: str, count: int, pause_s: float = 0.0) -> list[bytes]:
        bodies = [f"{word} {number:05}".encode() for number in range(count)]
        async with self.cluster.producer("shop", machine="shop") as producer:
            for body in bodies:
                await producer.send(Message(TOPIC, body))
                await asyncio.sleep(pause_s)
        return bodies

    async def handled(self, bodies: list[bytes]) -> None:
        await self.cluster.until(lambda: set(bodies) <= set(self.order))

    async def copied(self) -> Counter[str]:
        """Of which positions the stores have copies."""
        found: Counter[str] = Counter()
        reader = self.admin.queue_reader()
        for queue in await reader.queues(RETRIES):
            first, end = await reader.bounds(queue)
            async for message in reader.read(queue, first, end):
                found[message.properties[REPLAY_OF]] += 1
        return found

    async def left(self) -> int:
        """How many skipped messages wait for their copy."""
        return sum(
            item.end - item.copied_to
            for body in (await self.admin.skipped(GROUP)).values()
            for item in body.ranges
            if item.copied_to is not None
        )


def run(story: Story, seed: int = 1, *, queue_count: int = 1, **options: Any) -> None:
    async def main(cluster: SimCluster) -> None:
        async with Admin(**cluster.options("admin")) as admin:
            await admin.create_topic(TOPIC, queue_count=queue_count)
            await admin.create_group(SubscriptionGroupConfig(GROUP))
            await story(Backlog(cluster, admin))

    run_seed(main, seed, **options)


def test_the_newest_go_first_and_each_message_comes_once() -> None:
    """Of a backlog of 600, while 300 new messages come as fast as they can be handled."""

    async def story(backlog: Backlog) -> None:
        old = await backlog.send("old", 600)
        await backlog.admin.set_backlog_rules(GROUP, fresh_share=0.8, fresh_lag=50)
        async with backlog.member():
            await asyncio.sleep(3)
            new = await backlog.send("new", 300, 0.01)
            await backlog.handled(new)
            between = backlog.order[backlog.order.index(new[0]) : backlog.order.index(new[-1])]
            await backlog.handled([*old, *new])
        assert set(backlog.counts.values()) == {1}
        past = sum(body in set(old) for body in between)
        assert backlog.order.index(new[-1]) < 850  # without the rule it comes behind all old ones
        assert 0.1 * len(between) <= past <= 0.4 * len(between)  # the past gets its fifth

    run(story)


def test_old_messages_keep_their_order_in_a_queue_of_copies() -> None:
    """Copies are made oldest first."""

    async def story(backlog: Backlog) -> None:
        old = await backlog.send("old", 300)
        await backlog.admin.set_backlog_rules(GROUP, fresh_share=0.5, fresh_lag=20)
        async with backlog.member():
            await backlog.handled(old)
        assert backlog.order == old

    run(story)


@pytest.mark.parametrize("seed", range(4))
def test_a_crash_at_any_time_repeats_no_copy_and_forgets_no_message(seed: int) -> None:
    """Brokers are killed and lose their power while they copy, and members leave and join."""

    async def story(backlog: Backlog) -> None:
        cluster = backlog.cluster
        old = await backlog.send("old", 200)
        await backlog.admin.set_backlog_rules(GROUP, fresh_share=0.5, fresh_lag=20)
        backlog.pause_s = 0.03
        async with backlog.member("one"):
            disturbing = asyncio.ensure_future(cluster.disturb(8))
            async with backlog.member("two"):
                await asyncio.sleep(cluster.world.chance.uniform(2, 6))
            await disturbing
            await backlog.handled(old)
        copied = await backlog.copied()
        assert copied
        assert set(copied.values()) == {1}

    run(story, seed, queue_count=2)


def test_a_rebalance_leaves_each_message_to_one_member() -> None:
    """Members join and leave in order while the past is filled."""

    async def story(backlog: Backlog) -> None:
        old = await backlog.send("old", 400)
        await backlog.admin.set_backlog_rules(GROUP, fresh_share=0.5, fresh_lag=20)
        async with backlog.member("one"):
            await asyncio.sleep(2)
            async with backlog.member("two"):
                new = await backlog.send("new", 100, 0.01)
                await asyncio.sleep(1)
            await backlog.handled([*old, *new])
        await asyncio.sleep(30)
        # The last unfinished messages of a queue that changes hands may come twice, as always.
        repeated = [body for body, count in backlog.counts.items() if count > 1]
        assert len(repeated) <= 2 * FEW.count_max
        assert set((await backlog.copied()).values()) == {1}

    run(story, queue_count=4)


def test_a_tag_filter_holds_for_the_past_too() -> None:
    """Copies are made only of what the group wants."""

    async def story(backlog: Backlog) -> None:
        async with backlog.cluster.producer("shop", machine="shop") as producer:
            for number in range(300):
                body = b"%d" % number
                await producer.send(Message(TOPIC, body, tags="A" if number % 3 else "B"))
        await backlog.admin.set_backlog_rules(GROUP, fresh_share=0.5, fresh_lag=20)
        wanted = [b"%d" % number for number in range(300) if number % 3]
        async with backlog.member(tags="A"):
            await backlog.handled(wanted)
            await asyncio.sleep(10)
        assert backlog.order == wanted

    run(story)


@pytest.mark.parametrize("rules", [{"drop_lag": 100}, {"drop_age_ms": 60_000}])
def test_dropped_messages_are_counted_and_come_with_a_replay(rules: dict[str, int]) -> None:
    """By lag and by age; nothing comes twice, and nothing is missing in the end."""

    async def story(backlog: Backlog) -> None:
        old = await backlog.send("old", 300)
        await asyncio.sleep(120)
        new = await backlog.send("new", 40)
        await backlog.admin.set_backlog_rules(GROUP, **rules)  # type: ignore[arg-type]
        async with backlog.member():
            await backlog.handled(new)
            await asyncio.sleep(20)
            (body,) = (await backlog.admin.skipped(GROUP)).values()
            dropped = sum(item.end - item.begin for item in body.ranges)
            assert dropped >= 100
            assert {item.copied_to for item in body.ranges} == {None}
            assert {item.reason for item in body.ranges} == {
                "lag" if "drop_lag" in rules else "age"
            }
            assert len(backlog.order) == 340 - dropped
            await backlog.admin.set_backlog_rules(GROUP)
            (replayed,) = (await backlog.admin.replay(GROUP)).values()
            assert replayed.changed == dropped
            await backlog.handled([*old, *new])
            await asyncio.sleep(20)
            assert await backlog.left() == 0
        assert set(backlog.counts.values()) == {1}

    run(story)


def test_a_restart_knows_what_was_dropped() -> None:
    """A kill follows the drop; the replay comes after it."""

    async def story(backlog: Backlog) -> None:
        old = await backlog.send("old", 300)
        await backlog.admin.set_backlog_rules(GROUP, drop_lag=50)
        (name,) = backlog.cluster.brokers
        async with backlog.member():
            await backlog.cluster.until(lambda: old[-1] in backlog.order)
            await asyncio.sleep(10)
            backlog.cluster.crash(name, power_cut=False)
            await backlog.cluster.restart(name)
            await asyncio.sleep(60)
            assert len(backlog.order) < 300
            await backlog.admin.replay(GROUP, TOPIC)
            await backlog.handled(old)
        assert set(backlog.counts.values()) == {1}

    run(story)


def test_a_rescue_gives_a_backlog_to_more_members() -> None:
    """One queue, eight members: the backlog is handled in parallel, each message once."""

    async def story(backlog: Backlog) -> None:
        # A member that gives a queue up has messages of it, which come twice, as always: so all
        # members and queues are there before the backlog is.
        await backlog.admin.create_topic(RETRIES, queue_count=16)
        backlog.pause_s = 0.1
        members = [backlog.member(f"machine {number}") for number in range(8)]
        for member in members:
            await member.start()
        await asyncio.sleep(60)
        old = await backlog.send("old", 800)
        await asyncio.sleep(2)
        before = len(backlog.order)
        (begun,) = (await backlog.admin.rescue(GROUP, TOPIC, 16)).values()
        assert begun.changed >= 700
        again = await backlog.admin.rescue(GROUP, TOPIC, 16)
        assert [body.changed for body in again.values()] == [0]
        await asyncio.sleep(40)
        assert len(backlog.order) - before > 3 * 40 / 0.1 / 2  # one member alone handles 400
        await backlog.handled(old)
        for member in members:
            await member.shutdown()
        assert set(backlog.counts.values()) == {1}
        assert len(await backlog.copied()) == begun.changed

    run(story)


@pytest.mark.parametrize("seed", range(3))
def test_a_rescue_goes_on_after_a_crash(seed: int) -> None:
    """The broker loses its power while it copies; counts are equal, and nothing is copied twice."""

    async def story(backlog: Backlog) -> None:
        old = await backlog.send("old", 400)
        backlog.pause_s = 0.5
        async with backlog.member():
            await asyncio.sleep(3)
            (begun,) = (await backlog.admin.rescue(GROUP, TOPIC, 4)).values()
            (name,) = backlog.cluster.brokers
            await asyncio.sleep(backlog.cluster.world.chance.uniform(0, 0.05))
            backlog.cluster.crash(name)
            await backlog.cluster.restart(name)
            backlog.pause_s = 0.001
            await backlog.handled(old)
            copied = await backlog.copied()
        assert set(copied.values()) == {1}
        assert len(copied) == begun.changed

    run(story, seed)


def test_an_operators_reset_brings_messages_back_from_their_queue() -> None:
    """What was passed over comes from the topic then, and not as a copy too."""

    async def story(backlog: Backlog) -> None:
        old = await backlog.send("old", 200)
        await backlog.admin.set_backlog_rules(GROUP, drop_lag=20)
        async with backlog.member():
            await backlog.cluster.until(lambda: old[-1] in backlog.order)
            await asyncio.sleep(10)
            assert len(backlog.order) < 200
            await backlog.admin.set_backlog_rules(GROUP)
            backlog.order.clear()
            await backlog.admin.reset_offsets(GROUP, TOPIC, timestamp_ms=0)
            await backlog.handled(old)
            assert [body.ranges for body in (await backlog.admin.skipped(GROUP)).values()] == [[]]
        assert backlog.order == old

    run(story)


def test_groups_that_cannot_skip_are_refused_with_the_reason() -> None:
    """Ordered members, nobody, and members that want different messages."""

    async def story(backlog: Backlog) -> None:
        await backlog.send("old", 100)

        async def refusal() -> str:
            with pytest.raises(RemoteError) as caught:
                await backlog.admin.rescue(GROUP, TOPIC)
            return str(caught.value)

        assert "no member is online" in await refusal()
        async with backlog.member(order="queue"):
            await backlog.cluster.until(lambda: backlog.order)
            assert "in order" in await refusal()
        async with backlog.member(tags="A"), backlog.member(tags="B", machine="two"):
            assert "want different messages" in await refusal()

    run(story)


def test_a_member_that_leaves_takes_no_message_along() -> None:
    """The group's only member ends in the middle; the next one gets the past."""

    async def story(backlog: Backlog) -> None:
        old = await backlog.send("old", 300)
        await backlog.admin.set_backlog_rules(GROUP, fresh_share=0.5, fresh_lag=20)
        async with backlog.member("one"):
            await backlog.cluster.until(lambda: len(backlog.order) > 50)
        await asyncio.sleep(60)
        handled = len(backlog.order)
        assert handled < 300
        async with backlog.member("two"):
            await backlog.handled(old)
        assert set(backlog.counts.values()) == {1}

    run(story)


def test_why_names_the_range_of_a_skipped_message() -> None:
    """Dropped first, then delivered as a copy."""

    async def story(backlog: Backlog) -> None:
        async with backlog.cluster.producer("shop", machine="shop") as producer:
            sent = [await producer.send(Message(TOPIC, b"%d" % n)) for n in range(200)]
        ids = [each.message_id for each in sent]
        await backlog.admin.set_backlog_rules(GROUP, drop_lag=20)
        async with backlog.member():
            await backlog.cluster.until(lambda: b"199" in backlog.order)
            await asyncio.sleep(10)
            missing = next(n for n in range(200) if b"%d" % n not in backlog.order)
            answer = await backlog.admin.why(ids[missing], GROUP, TOPIC)
            assert answer.state == "dropped", answer
            assert "because of lag" in answer.facts[1]
            assert answer.change == f"cometmq group replay {GROUP} {TOPIC}"
            handled = await backlog.admin.why(ids[199], GROUP, TOPIC)
            assert handled.state == "acknowledged", handled
            await backlog.admin.set_backlog_rules(GROUP)
            await backlog.admin.replay(GROUP)
            await backlog.cluster.until(lambda: b"%d" % missing in backlog.order)
            await asyncio.sleep(10)
            answer = await backlog.admin.why(ids[missing], GROUP, TOPIC)
            assert answer.state == "acknowledged", answer
            assert answer.facts[0].startswith(f"copied from {TOPIC}@")

    run(story)


def test_lag_explained_says_that_messages_are_set_aside() -> None:
    """With the number that waits for copies."""

    async def story(backlog: Backlog) -> None:
        await backlog.send("old", 600)
        await backlog.admin.set_backlog_rules(GROUP, fresh_share=0.5, fresh_lag=20)
        backlog.pause_s = 1.0
        async with backlog.member(consume_timeout_ms=600_000):
            await asyncio.sleep(20)
            causes = (await backlog.admin.explain_lag(GROUP))[1]
        assert "set-aside" in {cause.kind for cause in causes}

    run(story)


def test_a_share_out_of_range_is_refused() -> None:
    """Before any broker is asked."""

    async def story(backlog: Backlog) -> None:
        with pytest.raises(CometError, match=r"0\.01 to 0\.99"):
            await backlog.admin.set_backlog_rules(GROUP, fresh_share=1.0)

    run(story)
