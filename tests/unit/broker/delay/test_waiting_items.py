"""Batches whose messages ask for a time: each waits for its own, sent or staged."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.unit.broker.extensions.staging.test_service import Sink, claim
from tests.unit.broker.harness import SEND_DEFAULTS, Client, eventually, running, scenario
from tests.unit.broker.transacting import stored

from cometmq.broker import Broker
from cometmq.codec.batch import encode_batch
from cometmq.errors import ResponseCode
from cometmq.model.names import SCHEDULE_TOPIC, TIMER_TOPIC
from cometmq.wire.command.command import RemotingCommand

HOUR_MS = 3_600_000
BATCH = 320


def packed(*properties: str) -> bytes:
    """A batch of messages with these properties, numbered."""
    return encode_batch(
        [
            (number, b"row %d" % number, f"UNIQ_KEY\x01U{number}\x02TAGS\x01A\x02{text}".encode())
            for number, text in enumerate(properties)
        ]
    )


async def send(client: Client, body: bytes, **ext: str) -> RemotingCommand:
    fields = {**SEND_DEFAULTS, "m": "true", "i": "UNIQ_KEY\x01outer\x02", "e": "2", **ext}
    return await client.call(BATCH, fields, body)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_each_message_of_a_batch_waits_for_its_own_time(tmp_path: Path, flush: str) -> None:
    """Twice, as the broker knows the names the second time; the answer has all places in order."""

    async def story(broker: Broker, client: Client) -> None:
        for turn in range(2):
            now_ms = broker.env.clock.now_ms()
            near_ms = now_ms + 1300
            body = packed(
                f"TIMER_DELIVER_MS\x01{near_ms}\x02",
                "",
                "DELAY\x0199\x02TIMER_DELAY_MS\x015\x02",
                f"TIMER_DELIVER_MS\x01{now_ms - 1}\x02",
                f"TIMER_DELAY_SEC\x01{HOUR_MS // 1000}\x02",
                "DELAY\x010\x02",
                "DELAY\x011\x02",
            )
            answer = await send(client, body)
            assert (answer.code, answer.ext_fields["queueId"]) == (0, "2"), answer.remark
            assert int(answer.ext_fields["queueOffset"]) == 2 * turn
            places = [int(one[16:], 16) for one in answer.ext_fields["msgId"].split(",")]
            timers, levels = stored(broker, TIMER_TOPIC)[-2:], stored(broker, SCHEDULE_TOPIC, 17)
            first = stored(broker, SCHEDULE_TOPIC, 0)[-1]
            at_once = stored(broker, "t", 2)[-3:]
            assert [int(one.body[4:]) for one in at_once] == [1, 3, 5]
            assert [
                places[int(one.body[4:])] for one in (*timers, *at_once, levels[-1], first)
            ] == [one.physical_offset for one in (*timers, *at_once, levels[-1], first)]
            assert levels[-1].properties["DELAY"] == "18"
            assert "TIMER_DELAY_MS" not in levels[-1].properties
            assert {one.properties["REAL_TOPIC"] for one in (*timers, levels[-1])} == {"t"}
            await eventually(lambda turn=turn: len(stored(broker, "t", 2)) == 5 * (turn + 1))
            late = stored(broker, "t", 2)[-2:]
            assert {one.body: one.flag for one in late} == {b"row 0": 0, b"row 6": 6}
            assert all(one.properties["TAGS"] == "A" for one in late)
            (timed,) = [one for one in late if one.body == b"row 0"]
            assert timed.store_timestamp_ms >= near_ms

    scenario(tmp_path, story, flushDiskType=flush)


@pytest.mark.parametrize(
    ("strings", "outer", "words"),
    [
        (["", "TIMER_DELIVER_MS\x01soon\x02"], "", "message 1 of the batch: timer message illegal"),
        (["DELAY\x01soon\x02"], "", "message 0 of the batch: the message is illegal: property"),
        (["", "TIMER_DELAY_SEC\x01999999999\x02"], "", "than the max delay"),
        (["TIMER_DELAY_SEC\x015\x02TIMER_DEL_UNIQKEY\x01u\x02"], "", "recalls travel alone"),
        (["", "DELAY\x011\x02A\x01" + "x" * 32_400 + "\x02"], "", "are allowed when it waits"),
        ([""], "DELAY\x012\x02", "a batch has no time of its own"),
        ([""], "TIMER_DELAY_SEC\x012\x02", "a batch has no time of its own"),
    ],
)
def test_a_batch_with_a_time_that_cannot_be_is_refused_whole(
    tmp_path: Path, strings: list[str], outer: str, words: str
) -> None:
    """With the message and the cause; none of it is stored."""

    async def story(broker: Broker, client: Client) -> None:
        body = packed("", "DELAY\x011\x02", *strings)
        words_here = words.replace("message 1", "message 3").replace("message 0", "message 2")
        answer = await send(client, body, i=f"UNIQ_KEY\x01outer\x02{outer}")
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert words_here in (answer.remark or "")
        assert broker.state.store.max_physical_offset == 0

    scenario(tmp_path, story)


def test_without_timers_a_batch_is_refused_too(tmp_path: Path) -> None:
    """As a single message is; levels need none."""

    async def story(broker: Broker, client: Client) -> None:
        answer = await send(client, packed("", "TIMER_DELAY_SEC\x015\x02"))
        assert "timerWheelEnable is false" in (answer.remark or "")
        assert (await send(client, packed("DELAY\x011\x02"))).code == 0
        await eventually(lambda: len(stored(broker, "t", 2)) == 1)

    scenario(tmp_path, story, timerWheelEnable="false")


def test_staged_messages_wait_from_their_publication_on(tmp_path: Path) -> None:
    """Nothing waits before it, all of it after, also when timers were switched off meanwhile."""
    block = packed("", "TIMER_DELAY_MS\x01600\x02", "DELAY\x011\x02", "TIMER_DELAY_MS\x01600\x02")

    async def main() -> None:
        async with running(tmp_path) as broker:
            client = await Client(broker.env, broker.address).open()
            assert (await Sink(client).stage("a", block, queue_id=2)).code == 0
            assert stored(broker, TIMER_TOPIC) == stored(broker, SCHEDULE_TOPIC, 0) == []
            await client.close()
        async with running(tmp_path, timerWheelEnable="false") as broker:
            client = await Client(broker.env, broker.address).open()
            answer = await Sink(client).publish(claim("a", 4, block))
            assert answer.ext_fields == {"status": "PUBLISHED", "rows": "4"}
            assert [one.body for one in stored(broker, "t", 2)] == [b"row 0"]
            waiting = stored(broker, TIMER_TOPIC)
            assert [one.body for one in waiting] == [b"row 1", b"row 3"]
            await eventually(lambda: len(stored(broker, "t", 2)) == 2)
            await client.close()
        async with running(tmp_path) as broker:
            await eventually(lambda: len(stored(broker, "t", 2)) == 4)
            found = stored(broker, "t", 2)
            assert sorted(one.body for one in found[1:]) == [b"row 1", b"row 2", b"row 3"]
            timed = [one for one in found if one.body in (b"row 1", b"row 3")]
            assert all(
                one.store_timestamp_ms >= kept.store_timestamp_ms + 600
                for one, kept in zip(sorted(timed, key=lambda one: one.body), waiting, strict=True)
            )

    asyncio.run(main())
