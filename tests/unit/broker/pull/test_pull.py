"""Pulls: every row of the status table, checks in their order, long polling."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.harness import PULL_DEFAULTS, Client, eventually, scenario

from cometmq.broker import Broker
from cometmq.broker.pull import hold as hold_module
from cometmq.codec.ids import encode_host
from cometmq.model.group import MessageModel, SubscriptionData
from cometmq.model.offsets import ConsumerOffset
from cometmq.store.base.results import PutResult
from cometmq.wire.body.client import ConsumerData
from cometmq.wire.command.codes import RequestCode

HOST = encode_host("127.0.0.1:10911")


async def fill(client: Client, count: int = 3, *, tags: str = "", topic: str = "t") -> None:
    for number in range(count):
        tag = tags[number % len(tags)] if tags else ""
        answer = await client.send(b"m%d" % number, b=topic, i=f"TAGS\x01{tag}\x02")
        assert answer.code == 0


@pytest.mark.parametrize(
    ("queue_id", "offset", "code", "remark", "following"),
    [
        ("0", "0", 0, "FOUND", "3"),
        ("0", "1", 0, "FOUND", "3"),
        ("0", "3", 19, "OFFSET_OVERFLOW_ONE", "3"),
        ("0", "4", 21, "OFFSET_OVERFLOW_BADLY", "3"),
        ("0", "9999", 21, "OFFSET_OVERFLOW_BADLY", "3"),
        ("0", "-1", 21, "OFFSET_TOO_SMALL", "0"),
        ("1", "0", 19, "NO_MESSAGE_IN_QUEUE", "0"),
        ("1", "5", 21, "NO_MESSAGE_IN_QUEUE", "0"),
    ],
)
def test_status_table(
    queue_id: str, offset: str, code: int, remark: str, following: str, tmp_path: Path
) -> None:
    """docs/internals/protocol.md#pulling: code, status name, where to go on, and all six fields
    always."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client)
        answer = await client.pull(queueId=queue_id, queueOffset=offset)
        assert (answer.code, answer.remark) == (code, remark)
        assert answer.ext_fields == {
            "nextBeginOffset": following,
            "minOffset": "0",
            "maxOffset": "3" if queue_id == "0" else "0",
            "suggestWhichBrokerId": "0",
            "topicSysFlag": "0",
            "groupSysFlag": "0",
        }
        assert bool(answer.body) == (code == 0)

    scenario(tmp_path, story)


def test_filter_moves_past_what_it_scanned(tmp_path: Path) -> None:
    """20 goes on after the last scanned message; 0 never skips a wanted one (trap T16)."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client, 6, tags="AB")
        none = await client.pull(subscription="C")
        assert (none.code, none.remark) == (20, "NO_MATCHED_MESSAGE")
        assert none.ext_fields["nextBeginOffset"] == "6"
        found = await client.messages(subscription="B || X")
        assert [m.body for m in found] == [b"m1", b"m3", b"m5"]
        two = await client.pull(subscription="A", maxMsgNums="2")
        following = int(two.ext_fields["nextBeginOffset"])
        rest = await client.messages(subscription="A", queueOffset=str(following))
        assert [m.body for m in rest] == [b"m4"]

    scenario(tmp_path, story)


@pytest.mark.parametrize(
    ("ext", "code", "remark"),
    [
        ({"topic": "nobody"}, 17, r"topic\[nobody\] not exist, apply first please"),
        ({"queueId": "99"}, 29, r"queueId\[99\] is illegal, topic:\[t\]"),
        ({"queueId": "-1"}, 29, r"queueId\[-1\] is illegal"),
        ({"subscription": "||"}, 23, "names no tag"),
        (
            {"expressionType": "SQL92", "subscription": "a = 1 b"},
            23,
            "line 1 column 7: expected .* found b",
        ),
        ({"expressionType": "XPATH", "subscription": "a"}, 23, "neither TAG nor SQL92"),
        ({"sysFlag": "0"}, 24, "the consumer's group info not exist"),
        ({"consumerGroup": "bad group"}, 26, "does not exist"),
        ({"queueOffset": "x"}, 1, "queueOffset"),
    ],
)
def test_refusals(ext: dict[str, str], code: int, remark: str, tmp_path: Path) -> None:
    """Each mistake gets its code and a cause."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client)
        answer = await client.pull(**ext)
        assert answer.code == code
        assert re.search(remark, answer.remark or "")

    scenario(tmp_path, story)


def test_permissions_are_told_apart(tmp_path: Path) -> None:
    """16 with forbiddenType: 3 for the topic, 2 for the group, 1 for the broker."""

    async def story(broker: Broker, client: Client) -> None:
        ext = {"topic": "w", "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2"}
        made = await client.call(17, {**ext, "perm": "2", "topicFilterType": "SINGLE_TAG"})
        assert made.code == 0
        answer = await client.pull(topic="w")
        assert (answer.code, answer.ext_fields) == (16, {"forbiddenType": "3"})
        await client.call(200, {}, b'{"groupName":"shut","consumeEnable":false}')
        answer = await client.pull(topic="w", consumerGroup="shut")
        assert (answer.code, answer.ext_fields) == (16, {"forbiddenType": "2"})

    scenario(tmp_path, story)


def test_broker_that_may_not_be_read(tmp_path: Path) -> None:
    """brokerPermission without bit R."""

    async def story(broker: Broker, client: Client) -> None:
        answer = await client.pull()
        assert (answer.code, answer.ext_fields) == (16, {"forbiddenType": "1"})

    scenario(tmp_path, story, brokerPermission=2)


def test_subscription_of_the_heartbeat(tmp_path: Path) -> None:
    """Without bit 4 the heartbeat decides: 24, 25, the stored tags, broadcast."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client, 4, tags="AB")
        subscription = SubscriptionData("t", "A", frozenset({"A"}), sub_version=100)
        await client.heartbeat(ConsumerData("g", subscriptions=(subscription,)))
        push = {"sysFlag": "0", "subVersion": "100"}
        assert [m.body for m in await client.messages(**push)] == [b"m0", b"m2"]
        stale = await client.pull(**{**push, "subVersion": "101"})
        assert (stale.code, "not latest" in (stale.remark or "")) == (25, True)
        older = await client.pull(**{**push, "subVersion": "0"})
        assert older.code == 0
        await fill(client, 1, topic="other")
        assert (await client.pull(**push, topic="other")).code == 24
        await client.call(200, {}, b'{"groupName":"b","consumeBroadcastEnable":false}')
        await client.heartbeat(
            ConsumerData(
                "b", message_model=MessageModel.BROADCASTING, subscriptions=(subscription,)
            )
        )
        answer = await client.pull(**push, consumerGroup="b")
        assert (answer.code, answer.ext_fields) == (16, {"forbiddenType": "4"})

    scenario(tmp_path, story)


def test_lite_pull_is_the_same_pull(tmp_path: Path) -> None:
    """Code 361 with its flag."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client)
        answer = await client.call(
            RequestCode.LITE_PULL_MESSAGE, {**PULL_DEFAULTS, "sysFlag": "20"}
        )
        assert (answer.code, answer.remark) == (0, "FOUND")

    scenario(tmp_path, story)


def test_limits_of_one_answer(tmp_path: Path) -> None:
    """At most 32 messages and 256 KiB, but always the first message."""

    async def story(broker: Broker, client: Client) -> None:
        for _ in range(40):
            await client.send(b"x" * 9000)
        assert len(await client.messages(maxMsgNums="100")) == 28
        assert len(await client.messages(maxMsgNums="3")) == 3
        assert len(await client.messages(maxMsgBytes="100")) == 1

    scenario(tmp_path, story)


def test_commit_offset_rides_on_a_pull_once(tmp_path: Path) -> None:
    """Bit 0 commits when the pull comes in, not when it wakes up."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client)
        held = asyncio.ensure_future(
            client.pull(sysFlag="7", commitOffset="2", queueOffset="3", suspendTimeoutMillis="5000")
        )
        await eventually(lambda: broker.state.offsets.query("g", "t", 0) == 2)
        await client.call(
            15, {"consumerGroup": "g", "topic": "t", "queueId": "0", "commitOffset": "3"}
        )
        await client.send(b"wake")
        assert (await held).code == 0
        assert broker.state.offsets.query("g", "t", 0) == 3

    scenario(tmp_path, story)


# -- long polling ---------------------------------------------------------------------------


def test_held_pull_wakes_with_every_message_of_the_moment(tmp_path: Path) -> None:
    """The original opaque, at once, and not one message per wake-up."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client)
        held = asyncio.ensure_future(
            client.pull(sysFlag="6", queueOffset="3", suspendTimeoutMillis="9000")
        )
        await _held(broker, 1)
        sends = [client.send(b"n%d" % number) for number in range(3)]
        answer = await held
        assert answer.code == 0
        assert answer.ext_fields["nextBeginOffset"] == "6"
        await asyncio.gather(*sends)
        assert len(broker.services.pull.hold) == 0

    scenario(tmp_path, story)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_an_arrival_between_look_and_park_is_not_missed(
    flush: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message comes in the turn after the one in which the pull saw an empty queue."""
    # Neither the sweep nor the pull's own time may repair a lost wake-up.
    monkeypatch.setattr(hold_module, "SWEEP_INTERVAL_MS", 1 << 40)

    async def story(broker: Broker, client: Client) -> None:
        await fill(client)
        store = broker.state.store
        results: list[PutResult] = []

        def arrive() -> None:
            now_ms = broker.env.clock.now_ms()
            results.append(store.put("t", 0, b"late", b"", born_host=HOST, store_ms=now_ms))
            store.when_durable(results[0].end_offset, lambda _: None)

        def then_arrive(look: Callable[..., Any]) -> Callable[..., Any]:
            def look_then_arrive(*arguments: Any, **named: Any) -> Any:
                result = look(*arguments, **named)
                if not results:
                    asyncio.get_running_loop().call_soon(arrive)
                return result

            return look_then_arrive

        # The first one is Python's look, the second one the core's.
        for name in ("get", "answer"):
            look = getattr(store._reader, name)
            monkeypatch.setattr(store._reader, name, then_arrive(look))
        answer = await client.pull(sysFlag="6", queueOffset="3", suspendTimeoutMillis="600000")
        assert [result.queue_offset for result in results] == [3]
        assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (0, "4")
        monkeypatch.undo()

    scenario(tmp_path, story, flushDiskType=flush)


def test_held_pull_ends_with_its_time(tmp_path: Path) -> None:
    """19 after suspendTimeoutMillis."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client)
        answer = await client.pull(sysFlag="6", queueOffset="3", suspendTimeoutMillis="50")
        assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (19, "3")

    scenario(tmp_path, story)


def test_unwanted_messages_do_not_wake_but_are_not_forgotten(tmp_path: Path) -> None:
    """At the time-out the pull learns that it may go on after them (20)."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client, 1, tags="A")
        held = asyncio.ensure_future(
            client.pull(sysFlag="6", queueOffset="1", subscription="A", suspendTimeoutMillis="300")
        )
        await _held(broker, 1)
        await fill(client, 2, tags="B")
        assert not held.done()
        answer = await held
        assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (20, "3")

    scenario(tmp_path, story)


def test_wanted_message_wakes_a_filtered_pull(tmp_path: Path) -> None:
    """Tag codes are looked at before the pull runs again."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client, 1, tags="A")
        held = asyncio.ensure_future(
            client.pull(sysFlag="6", queueOffset="1", subscription="A", suspendTimeoutMillis="9000")
        )
        await _held(broker, 1)
        await fill(client, 2, tags="BA")
        answer = await held
        assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (0, "3")

    scenario(tmp_path, story)


def test_without_the_suspend_bit_nothing_is_held(tmp_path: Path) -> None:
    """19 at once."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client)
        answer = await client.pull(queueOffset="3", suspendTimeoutMillis="60000")
        assert answer.code == 19

    scenario(tmp_path, story)


def test_short_polling_when_long_polling_is_off(tmp_path: Path) -> None:
    """longPollingEnable=false holds for shortPollingTimeMills only."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client)
        answer = await client.pull(sysFlag="6", queueOffset="3", suspendTimeoutMillis="60000")
        assert answer.code == 19

    scenario(tmp_path, story, longPollingEnable="false", shortPollingTimeMills=30)


def test_pull_before_the_queue_exists_waits_for_its_first_message(tmp_path: Path) -> None:
    """An empty queue asked from 0 is held, and the first message wakes it."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client)
        held = asyncio.ensure_future(
            client.pull(sysFlag="6", queueId="1", suspendTimeoutMillis="9000")
        )
        await _held(broker, 1)
        await client.send(b"first", e="1")
        assert (await held).code == 0

    scenario(tmp_path, story)


def test_pulls_of_a_lost_connection_are_forgotten(tmp_path: Path) -> None:
    """A client that vanishes leaves nothing held."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client)
        other = await Client(broker.env, broker.address).open()
        lost = asyncio.ensure_future(
            other.pull(sysFlag="6", queueOffset="3", suspendTimeoutMillis="60000")
        )
        await _held(broker, 1)
        await other.close()
        await _held(broker, 0)
        with pytest.raises(Exception, match="closed"):
            await lost

    scenario(tmp_path, story)


def test_deleting_a_topic_answers_its_held_pulls(tmp_path: Path) -> None:
    """They learn at once that the topic is gone (17)."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client)
        held = asyncio.ensure_future(
            client.pull(sysFlag="6", queueOffset="3", suspendTimeoutMillis="60000")
        )
        await _held(broker, 1)
        assert (await client.call(215, {"topic": "t"})).code == 0
        assert (await held).code == 17

    scenario(tmp_path, story)


def test_synchronous_flush_shows_only_what_is_durable(tmp_path: Path) -> None:
    """A held pull wakes with a message that a power cut cannot take back."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client)
        held = asyncio.ensure_future(
            client.pull(sysFlag="6", queueOffset="3", suspendTimeoutMillis="9000")
        )
        await _held(broker, 1)
        sent = await client.send(b"durable")
        answer = await held
        assert (sent.code, answer.code) == (0, 0)
        assert int(answer.ext_fields["maxOffset"]) == 4

    scenario(tmp_path, story, flushDiskType="SYNC_FLUSH")


def test_reset_of_an_operator_reaches_the_next_pull_once(tmp_path: Path) -> None:
    """21 with the reset offset, then ordinary pulls again."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client)
        broker.state.offsets.reset("g", "t", 0, ConsumerOffset(1), 0)
        answer = await client.pull(queueOffset="3")
        assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (21, "1")
        assert (await client.pull(queueOffset="1")).code == 0

    scenario(tmp_path, story)


async def _held(broker: Broker, count: int) -> None:
    hold = broker.services.pull.hold
    await eventually(lambda: len(hold) == count)
