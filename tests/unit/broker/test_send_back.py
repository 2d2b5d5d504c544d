"""CONSUMER_SEND_MSG_BACK: retries with their levels, dead letters, refusals."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.harness import Client, scenario

from cometmq.broker import Broker
from cometmq.codec.ids import decode_offset_message_id
from cometmq.codec.stored_message import StoredMessage, decode_message
from cometmq.model.names import SCHEDULE_TOPIC
from cometmq.wire.codes import RequestCode


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
