"""Plans of pulls: the core serves what was checked once, until something of it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.harness import Client, eventually, scenario

from cometmq import native
from cometmq.broker import Broker
from cometmq.codec.stored_message import decode_messages
from cometmq.model.group import SubscriptionData
from cometmq.model.offsets import ConsumerOffset
from cometmq.model.topic import TopicConfig
from cometmq.net.server import ServerConnection
from cometmq.wire.body.client import ConsumerData
from cometmq.wire.command.command import RemotingCommand

pytestmark = pytest.mark.skipif(native.read_pull is None, reason=native.describe())

Story = Callable[["Pulls"], Awaitable[None]]


class Pulls:
    """Sends each pull twice, once past the core, and compares the answers."""

    def __init__(self, broker: Broker, client: Client) -> None:
        self.broker = broker
        self.client = client
        self.native_frames = 0
        assert broker._server.front is not None
        self._front = broker._server.front
        self.use_core(is_used=True)

    def use_core(self, *, is_used: bool) -> None:
        def counted(data: bytes, connection: ServerConnection, now_ms: int) -> tuple[int, bytes]:
            end, answers = self._front(data, connection, now_ms)
            self.native_frames += end > 0
            return end, answers

        self.broker._server.front = counted if is_used else None

    async def pull(self, *, is_native: bool, **ext: str) -> RemotingCommand:
        """Pull, and say whether the core is to serve it."""
        self.native_frames = 0
        answer = await self.client.pull(**ext)
        assert (self.native_frames > 0) == is_native
        self.use_core(is_used=False)
        expected = await self.client.pull(**ext)
        self.use_core(is_used=True)
        assert (answer.code, answer.remark, answer.ext_fields, answer.body) == (
            expected.code, expected.remark, expected.ext_fields, expected.body,
        )  # fmt: skip
        return answer


def run_story(tmp_path: Path, story: Story, **config: Any) -> None:
    async def filled(broker: Broker, client: Client) -> None:
        for number, tag in enumerate(("AaAa", "BBBB", "other", "AaAa")):
            sent = await client.send(b"m%d" % number, i=f"TAGS\x01{tag}\x02")
            assert sent.code == 0
        await story(Pulls(broker, client))

    scenario(tmp_path, filled, **config)


def bodies(answer: RemotingCommand) -> list[bytes]:
    return [message.body for message in decode_messages(answer.body)]


def test_core_serves_what_finds_messages(tmp_path: Path) -> None:
    """All, from an offset, by tags with one hash, and not what finds none."""

    async def story(pulls: Pulls) -> None:
        for _ in range(2):
            assert len(bodies(await pulls.pull(is_native=True))) == 4
        assert bodies(await pulls.pull(is_native=True, queueOffset="3")) == [b"m3"]
        # Two tags with one hash: the consumer compares the text.
        found = await pulls.pull(is_native=True, subscription="AaAa")
        assert bodies(found) == [b"m0", b"m1", b"m3"]
        found = await pulls.pull(is_native=True, subscription="BBBB", maxMsgNums="1")
        assert bodies(found) == [b"m0"]
        assert (await pulls.pull(is_native=False, subscription="none")).code == 20
        assert (await pulls.pull(is_native=False, queueOffset="4")).code == 19
        assert (await pulls.pull(is_native=False, queueOffset="5")).code == 21
        by_sql = {"expressionType": "SQL92", "subscription": "TAGS = 'other'"}
        for _ in range(2):
            assert bodies(await pulls.pull(is_native=False, **by_sql)) == [b"m2"]

    run_story(tmp_path, story)


def test_answer_has_the_flags_of_topic_and_group(tmp_path: Path) -> None:
    """They are constant parts of the answers of a plan."""

    async def story(pulls: Pulls) -> None:
        await pulls.pull(is_native=True)
        state = pulls.broker.state
        topic = state.topics.get("t")
        assert topic is not None
        state.topics.put(TopicConfig("t", 4, 4, topic_sys_flag=3), 1)
        answer = await pulls.pull(is_native=True)
        assert answer.ext_fields["topicSysFlag"] == "3"
        await pulls.client.call(200, {}, b'{"groupName":"g","groupSysFlag":5}')
        answer = await pulls.pull(is_native=True)
        assert answer.ext_fields["groupSysFlag"] == "5"

    run_story(tmp_path, story)


def test_plan_ends_when_topic_or_group_change(tmp_path: Path) -> None:
    """Permission of the topic, number of its queues, deletion; the group may not consume."""

    async def story(pulls: Pulls) -> None:
        state = pulls.broker.state

        async def expect(code: int) -> None:
            answer = await pulls.pull(is_native=code == 0)
            assert answer.code == code

        def put(read_queues: int, perm: int) -> None:
            topic = TopicConfig("t", read_queues, 4, perm)
            state.topics.put(topic, 1)
            state.topic_changed(topic)

        await expect(0)
        put(4, 2)
        await expect(16)
        put(4, 6)
        await expect(0)
        put(0, 6)
        await expect(29)
        put(4, 6)
        await expect(0)
        await pulls.client.call(200, {}, b'{"groupName":"g","consumeEnable":false}')
        await expect(16)
        await pulls.client.call(200, {}, b'{"groupName":"g","consumeEnable":true}')
        await expect(0)
        assert (await pulls.client.call(215, {"topic": "t"})).code == 0
        await expect(17)

    run_story(tmp_path, story)


def test_plan_ends_when_the_subscription_changes(tmp_path: Path) -> None:
    """Pulls without a subscription of their own follow the heartbeats of their group."""

    async def story(pulls: Pulls) -> None:
        ext = {"sysFlag": "0", "subscription": "ignored"}

        async def subscribe(tag: str, version: int) -> None:
            codes = frozenset({{"other": 106069776, "AaAa": 2031744}[tag]})
            subscription = SubscriptionData("t", tag, frozenset({tag}), codes, sub_version=version)
            await pulls.client.heartbeat(ConsumerData("g", subscriptions=(subscription,)))

        assert (await pulls.pull(is_native=False, **ext)).code == 24
        await subscribe("other", 1)
        assert bodies(await pulls.pull(is_native=True, **ext)) == [b"m2"]
        await subscribe("AaAa", 2)
        assert bodies(await pulls.pull(is_native=True, **ext)) == [b"m0", b"m1", b"m3"]
        assert (await pulls.pull(is_native=False, subVersion="3", **ext)).code == 25
        state = pulls.broker.state
        state.groups.forbid_reading("g", "t", True, 1)
        assert (await pulls.pull(is_native=False, **ext)).code == 16
        state.groups.forbid_reading("g", "t", False, 1)
        assert (await pulls.pull(is_native=True, **ext)).code == 0
        left = await pulls.client.call(35, {"clientID": "c1", "consumerGroup": "g"})
        assert left.code == 0
        await eventually(lambda: state.consumers.get("g") is None)
        assert (await pulls.pull(is_native=False, **ext)).code == 24

    run_story(tmp_path, story)


def test_plan_ends_when_the_configuration_changes(tmp_path: Path) -> None:
    """The broker's permission."""

    async def story(pulls: Pulls) -> None:
        async def change(text: bytes) -> None:
            assert (await pulls.client.call(25, {}, text)).code == 0

        assert (await pulls.pull(is_native=True)).code == 0
        await change(b"brokerPermission=2")
        assert (await pulls.pull(is_native=False)).code == 16
        await change(b"brokerPermission=6")
        assert (await pulls.pull(is_native=True)).code == 0

    run_story(tmp_path, story)


def test_core_leaves_answers_that_name_another_broker(tmp_path: Path) -> None:
    """With slaveReadEnable the next broker depends on the age of the record."""

    async def story(pulls: Pulls) -> None:
        assert (await pulls.pull(is_native=False)).code == 0

    run_story(tmp_path, story, slaveReadEnable=True)


def test_reset_and_commit_are_those_of_every_pull(tmp_path: Path) -> None:
    """A pull commits the offset that it brings; one of a queue with a reset is told of it."""

    async def story(pulls: Pulls) -> None:
        offsets, stats = pulls.broker.state.offsets, pulls.broker.state.stats
        await pulls.pull(is_native=True, sysFlag="5", commitOffset="2")
        assert offsets.query("g", "t", 0) == 2
        await pulls.pull(is_native=True, sysFlag="4", commitOffset="3")
        assert offsets.query("g", "t", 0) == 2
        assert stats.pulled_offset("t", "g", 0) == 4
        assert (stats.successful_pulls, stats.get_messages) == (4, 16)
        offsets.reset("g", "t", 0, ConsumerOffset(1), 1)
        pulls.native_frames = 0
        answer = await pulls.client.pull()
        assert (answer.code, answer.remark, pulls.native_frames) == (21, "OFFSET_RESET", 0)

    run_story(tmp_path, story)


def test_pulls_in_one_read_are_answered_in_order(tmp_path: Path) -> None:
    """Also with one between them that the core does not serve."""

    async def story(pulls: Pulls) -> None:
        offsets = ["0", "1", "9", "2", "3"]
        answers = [pulls.client.pull(queueOffset=queue_offset) for queue_offset in offsets]
        codes = [(await answer).code for answer in answers]
        assert codes == [0, 0, 21, 0, 0]

    run_story(tmp_path, story)


class Waiting:
    """Lets pulls wait behind the four messages, and counts which of them Python answers."""

    def __init__(self, pulls: Pulls) -> None:
        self.pulls = pulls
        self.by_python = 0
        processor = pulls.broker.services.pull
        self.hold = processor.hold
        serve_later = processor._serve_later

        def counted(*arguments: Any, **how: Any) -> None:
            self.by_python += 1
            serve_later(*arguments, **how)

        processor._serve_later = counted  # type: ignore[method-assign]

    async def pull(self, **ext: str) -> asyncio.Future[RemotingCommand]:
        """A pull that waits, as the core has read it."""
        self.pulls.native_frames = 0
        ext = {"sysFlag": "7", "queueOffset": "4", "suspendTimeoutMillis": "600000"} | ext
        answer = asyncio.ensure_future(self.pulls.client.pull(**ext))
        await eventually(lambda: len(self.hold) == 1)
        assert self.pulls.native_frames == 1
        return answer


def test_core_answers_a_pull_that_waited(tmp_path: Path) -> None:
    """With what Python answers; its offset is committed when it begins to wait."""

    async def story(pulls: Pulls) -> None:
        waiting = Waiting(pulls)
        offsets = pulls.broker.state.offsets
        for number, tag in enumerate(("", "AaAa"), 4):
            held = await waiting.pull(queueOffset=str(number), commitOffset="3", subscription=tag)
            assert offsets.query("g", "t", 0) == 3
            offsets.commit("g", "t", 0, ConsumerOffset(2), 1)
            assert (await pulls.client.send(b"new", i="TAGS\x01AaAa\x02")).code == 0
            answer = await held
            # It commits once.
            assert offsets.query("g", "t", 0) == 2
            pulls.use_core(is_used=False)
            expected = await pulls.client.pull(queueOffset=str(number))
            pulls.use_core(is_used=True)
            assert (answer.code, answer.ext_fields, answer.body) == (
                expected.code, expected.ext_fields, expected.body,
            )  # fmt: skip
        assert waiting.by_python == 0

    run_story(tmp_path, story)


def test_python_answers_a_pull_that_waited_for_something_else(tmp_path: Path) -> None:
    """Its time is over, also with messages that it does not want; an operator moves its offset."""

    async def story(pulls: Pulls) -> None:
        waiting = Waiting(pulls)
        held = await waiting.pull(suspendTimeoutMillis="20")
        assert (await held).code == 19
        held = await waiting.pull(suspendTimeoutMillis="200", subscription="AaAa")
        assert (await pulls.client.send(i="TAGS\x01other\x02")).code == 0
        assert (await held).code == 20
        held = await waiting.pull(queueOffset="5")
        pulls.broker.state.offsets.reset("g", "t", 0, ConsumerOffset(1), 1)
        waiting.hold.offset_moved("g", "t", 0)
        answer = await held
        assert (answer.code, answer.remark) == (21, "OFFSET_RESET")
        assert waiting.by_python == 3

    run_story(tmp_path, story)


def test_plan_of_a_pull_that_waits_ends_too(tmp_path: Path) -> None:
    """A topic that may no longer be read, and one that is deleted."""

    async def story(pulls: Pulls) -> None:
        waiting = Waiting(pulls)
        state = pulls.broker.state
        held = await waiting.pull()
        topic = TopicConfig("t", 4, 4, 2)
        state.topics.put(topic, 1)
        assert (await pulls.client.send()).code == 0
        assert (await held).code == 16
        state.topics.put(TopicConfig("t", 4, 4, 6), 1)
        held = await waiting.pull(queueOffset="5")
        assert (await pulls.client.call(215, {"topic": "t"})).code == 0
        assert (await held).code == 17
        assert waiting.by_python == 2

    run_story(tmp_path, story)


def test_core_lets_pulls_wait_only_where_they_may(tmp_path: Path) -> None:
    """Where long polling is off they wait a second; without PULL_SUSPEND they do not wait."""

    async def story(pulls: Pulls) -> None:
        waiting = Waiting(pulls)
        pull = await waiting.pull()
        assert (await pull).code == 19
        ext = {"queueOffset": "4", "suspendTimeoutMillis": "600000"}
        assert (await pulls.pull(is_native=False, sysFlag="5", **ext)).code == 19

    run_story(tmp_path, story, longPollingEnable=False, shortPollingTimeMills=10)
