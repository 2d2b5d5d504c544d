"""CONSUMER_SEND_MSG_BACK: retries with their levels, dead letters, refusals."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.harness import Client, scenario

from cometmq.broker import Broker
from cometmq.codec.ids import decode_offset_message_id
from cometmq.codec.stored_message import StoredMessage, decode_message
from cometmq.model.names import SCHEDULE_TOPIC
from cometmq.wire.command.codes import RequestCode


async def back(client: Client, offset: int, level: int = 0, **ext: Any) -> int:
    answer = await client.call(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        {"offset": str(offset), "group": "g", "delayLevel": str(level), **ext},
    )
    return answer.code


async def sent(client: Client) -> int:
    answer = await client.send(b"again", i="KEYS\x01k\x02TAGS\x01A\x02UNIQ_KEY\x01AB\x02", h="3")
    return decode_offset_message_id(answer.ext_fields["msgId"])[1]


def waiting(broker: Broker, level: int) -> StoredMessage:
    found = broker.state.store.get(SCHEDULE_TOPIC, level - 1, 0, 1)
    assert hasattr(found, "chunks")
    return decode_message(found.chunks[0])


@pytest.mark.parametrize(("asked", "level"), [(0, 3), (5, 5), (99, 18)])
def test_retry_waits_at_its_level(asked: int, level: int, tmp_path: Path) -> None:
    """0 is 3 + tries; the copy knows where it came from and how often it was tried."""

    async def story(broker: Broker, client: Client) -> None:
        offset = await sent(client)
        assert await back(client, offset, asked) == 0
        message = waiting(broker, level)
        properties = message.properties
        assert (message.body, message.flag, message.reconsume_times) == (b"again", 3, 1)
        assert properties["RETRY_TOPIC"] == "t"
        assert properties["REAL_TOPIC"] == "%RETRY%g"
        assert properties["REAL_QID"] == "0"
        assert properties["DELAY"] == str(level)
        assert properties["UNIQ_KEY"] == "AB"
        assert decode_offset_message_id(properties["ORIGIN_MESSAGE_ID"])[1] == offset
        # Given back again: the first origin stays, the next level follows.
        assert await back(client, message.physical_offset, 0) == 0
        again = waiting(broker, 4)
        assert again.reconsume_times == 2
        assert again.properties["ORIGIN_MESSAGE_ID"] == properties["ORIGIN_MESSAGE_ID"]
        assert again.properties["RETRY_TOPIC"] == "t"

    scenario(tmp_path, story)


@pytest.mark.parametrize(
    ("level", "ext"),
    [(-1, {}), (0, {"maxReconsumeTimes": "0"}), (3, {"maxReconsumeTimes": "-1"})],
)
def test_dead_letters(level: int, ext: dict[str, str], tmp_path: Path) -> None:
    """Asked for, or out of tries: %DLQ%, one queue, readable, at once."""

    async def story(broker: Broker, client: Client) -> None:
        offset = await sent(client)
        assert await back(client, offset, level, **ext) == 0
        (message,) = await client.messages(topic="%DLQ%g")
        assert message.properties["RETRY_TOPIC"] == "t"
        assert message.properties["DELAY"] == "0"
        assert message.reconsume_times == 1
        config = broker.state.topics.get("%DLQ%g")
        assert config is not None
        assert (config.write_queue_count, config.perm) == (1, 6)

    scenario(tmp_path, story)


def test_group_decides_where_the_client_says_nothing(tmp_path: Path) -> None:
    """retryMaxTimes of the group, and no retry at all without retry queues."""

    async def story(broker: Broker, client: Client) -> None:
        await client.call(200, {}, b'{"groupName":"g","retryMaxTimes":0}')
        offset = await sent(client)
        assert await back(client, offset) == 0
        assert len(await client.messages(topic="%DLQ%g")) == 1
        await client.call(200, {}, b'{"groupName":"g","retryQueueNums":0}')
        end = broker.state.store.max_physical_offset
        assert await back(client, offset) == 0
        assert broker.state.store.max_physical_offset == end

    scenario(tmp_path, story)


EXPONENTIAL = {
    "type": "EXPONENTIAL",
    "exponentialRetryPolicy": {"initial": 2000, "max": 50_000, "multiplier": 3},
}
CUSTOMIZED = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [0, 0, 4000, 61_000]}}


@pytest.mark.parametrize(
    ("policy", "levels"),
    [
        # 2 s, 6 s, 18 s, 50 s, 50 s: the levels are 5 s, 10 s, 30 s, 1 m.
        (EXPONENTIAL, (2, 3, 4, 5, 5)),
        (CUSTOMIZED, (2, 6, 6)),
        ({"type": "EXPONENTIAL"}, (2, 3, 4)),
        ({"type": "CUSTOMIZED"}, (3, 4, 5)),
    ],
)
def test_group_policy_chooses_the_delay(
    policy: dict[str, Any], levels: tuple[int, ...], tmp_path: Path
) -> None:
    """The nearest level that is not too early; a group without times keeps RocketMQ's levels."""

    async def story(broker: Broker, client: Client) -> None:
        body = json.dumps({"groupName": "g", "groupRetryPolicy": policy}).encode()
        assert (await client.call(200, {}, body)).code == 0
        offset = await sent(client)
        seen = dict.fromkeys(levels, 0)
        for tries, level in enumerate(levels, 1):
            assert await back(client, offset) == 0
            found = broker.state.store.get(SCHEDULE_TOPIC, level - 1, seen[level], 1)
            assert hasattr(found, "chunks")
            message = decode_message(found.chunks[0])
            assert message.reconsume_times == tries
            assert message.properties["DELAY"] == str(level)
            seen[level] += 1
            offset = message.physical_offset
        # The client's own wish goes before the policy.
        assert await back(client, offset, 9) == 0
        assert waiting(broker, 9).properties["DELAY"] == "9"

    scenario(tmp_path, story, timerWheelEnable="false")


def test_a_pause_that_no_level_has_is_kept_exactly(tmp_path: Path) -> None:
    """By the timers, again and again; then by a level, and for good."""

    async def story(broker: Broker, client: Client) -> None:
        policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [0, 0, 70, 90, 1000]}}
        body = json.dumps({"groupName": "g", "groupRetryPolicy": policy}).encode()
        assert (await client.call(200, {}, body)).code == 0
        offset = await sent(client)
        stored_ms = broker.state.env.clock.now_ms()
        for tries, pause_ms in enumerate((70, 90), 1):
            assert await back(client, offset) == 0
            async with asyncio.timeout(30):
                while len(got := await client.messages(topic="%RETRY%g")) < tries:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            message = got[-1]
            assert message.reconsume_times == tries
            assert "DELAY" not in message.properties
            assert message.store_timestamp_ms >= stored_ms + pause_ms
            assert message.properties["RETRY_TOPIC"] == "t"
            offset, stored_ms = message.physical_offset, message.store_timestamp_ms
        assert await back(client, offset) == 0
        late = waiting(broker, 1)
        assert (late.reconsume_times, late.properties["DELAY"]) == (3, "1")

    scenario(tmp_path, story)


def test_a_policy_without_waiting_brings_it_back_at_once(tmp_path: Path) -> None:
    """A delay of 0 goes to the retry topic itself, also after a try that had waited."""

    async def story(broker: Broker, client: Client) -> None:
        policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [0]}}
        body = json.dumps({"groupName": "g", "groupRetryPolicy": policy}).encode()
        assert (await client.call(200, {}, body)).code == 0
        offset = await sent(client)
        assert await back(client, offset, 2) == 0
        assert await back(client, waiting(broker, 2).physical_offset) == 0
        (message,) = await client.messages(topic="%RETRY%g")
        assert (message.reconsume_times, message.properties["DELAY"]) == (2, "0")

    scenario(tmp_path, story)


@pytest.mark.parametrize(
    "policy",
    [
        {"type": "LINEAR"},
        {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": []}},
        {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1, -1]}},
        {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"multiplier": 0}},
        {"type": "EXPONENTIAL", "exponentialRetryPolicy": [1]},
    ],
)
def test_a_policy_nobody_can_follow_is_refused(policy: dict[str, Any], tmp_path: Path) -> None:
    """29 with the part that is wrong, and the group stays as it was."""

    async def story(broker: Broker, client: Client) -> None:
        body = json.dumps({"groupName": "g", "groupRetryPolicy": policy}).encode()
        answer = await client.call(200, {}, body)
        assert answer.code == 29
        assert "expected" in str(answer.remark)
        assert broker.state.groups.get("g") is None

    scenario(tmp_path, story)


def test_refusals(tmp_path: Path) -> None:
    """No message there: 1; group unknown and not to be made: 26; wrong fields: 1."""

    async def story(broker: Broker, client: Client) -> None:
        offset = await sent(client)
        assert await back(client, offset) == 26
        await client.call(200, {}, b'{"groupName":"g"}')
        assert await back(client, 999_999_999) == 1
        assert await back(client, offset + 1) == 1
        assert await back(client, offset, delayLevel="x") == 1
        assert await back(client, offset) == 0

    scenario(tmp_path, story, autoCreateSubscriptionGroup="false")


def test_synchronous_flush_answers_when_the_copy_is_durable(tmp_path: Path) -> None:
    """The consumer forgets the message with this answer."""

    async def story(broker: Broker, client: Client) -> None:
        offset = await sent(client)
        assert await back(client, offset) == 0
        assert broker.state.store.flushed_offset == broker.state.store.max_physical_offset

    scenario(tmp_path, story, flushDiskType="SYNC_FLUSH")
