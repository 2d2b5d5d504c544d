"""Delayed sends in one read: the same answers, records and deliveries as one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.broker.harness import Client, eventually, scenario
from tests.unit.broker.send.test_send_run import PLAIN, exchange, frame, told
from tests.unit.broker.transacting import stored

from cometmq.broker import Broker
from cometmq.broker.delay.levels.delayed_send import DelayedKind
from cometmq.broker.delay.levels.schedule import ScheduleService
from cometmq.broker.send.kinds import make_property_reader
from cometmq.codec.stored_message import StoredMessage
from cometmq.model.names import SCHEDULE_TOPIC


def delayed(opaque: int, level: str = "1", body: bytes = b"later", keys: str = "") -> bytes:
    """A send to queue 2 of topic t."""
    text = f"{keys}{PLAIN.format(opaque)}TAGS\x01A\x02DELAY\x01{level}\x02"
    return frame(opaque, body, i=text, e="2")


def what(message: StoredMessage) -> tuple[object, ...]:
    """What does not depend on place and time."""
    properties = {name: value for name, value in message.properties.items() if name != "UNIQ_KEY"}
    return message.topic, message.queue_id, message.body, message.flag, properties


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_delayed_sends_in_one_read_are_as_those_one_by_one(tmp_path: Path, flush: str) -> None:
    """Levels apart, answers in order, and all are delivered when they are due."""

    async def story(broker: Broker, client: Client) -> None:
        text = f"{PLAIN.format(900)}TAGS\x01A\x02DELAY\x011\x02"
        alone = await client.send(b"later", i=text, e="2")
        assert alone.code == 0
        run = b"".join(
            [
                delayed(1),
                delayed(2, "18"),
                frame(3),
                delayed(4, keys="KEYS\x01k4\x02"),
                delayed(5, "x"),
                delayed(6, "99"),
                delayed(7, "0"),
                delayed(8, "y"),
                delayed(9),
            ]
        )
        answers = {answer.opaque: answer for answer in await exchange(broker, run, 9)}
        assert [answers[number].code for number in range(1, 10)] == [0, 0, 0, 0, 13, 0, 0, 13, 0]
        assert {answers[n].ext_fields["queueId"] for n in (1, 2, 4, 6, 7, 9)} == {"2"}
        waiting = stored(broker, SCHEDULE_TOPIC, 0)
        assert [one.properties.get("KEYS") for one in waiting] == [None, None, "k4", None]
        assert what(waiting[0]) == what(waiting[1]) == what(waiting[3])
        assert [int(answers[n].ext_fields["queueOffset"]) for n in (1, 4, 9)] == [1, 2, 3]
        assert len(stored(broker, SCHEDULE_TOPIC, 17)) == 2
        assert waiting[1].properties["REAL_TOPIC"] == "t"
        assert waiting[1].properties["REAL_QID"] == "2"
        # The first of the story, the one without a delay, and four of level 1.
        await eventually(lambda: len(stored(broker, "t", 2)) == 6)
        delivered = stored(broker, "t", 2)[2:]
        assert [one.raw_properties for one in delivered] == [one.raw_properties for one in waiting]
        assert [what(one)[1:4] for one in delivered] == [(2, b"later", 0)] * 4
        units = broker.state.store.units(SCHEDULE_TOPIC, 0, 0, 9)
        assert [unit.tags_code for unit in units] == [
            one.store_timestamp_ms + 1000 for one in waiting
        ]
        assert len(await client.messages(queueId="2", subscription="A")) == 5

    told(tmp_path, story, flushDiskType=flush)


def test_levels_are_read_as_this_broker_writes_them(tmp_path: Path) -> None:
    """A level as the table has it, once, at the beginning of an entry."""

    async def story(broker: Broker, client: Client) -> None:
        kind = DelayedKind(broker.state, ScheduleService(broker.state))
        read = make_property_reader((kind,))

        def parsed(text: str) -> tuple[object, ...] | None:
            found = read(text)
            return None if found is None else (found[0], found[1].detail, found[1].tags_code)

        for _ in range(2):
            assert parsed("KEYS\x01a\x02UNIQ_KEY\x01U1\x02TAGS\x01T\x02DELAY\x013\x02") == (
                ("U1", "a", "T"),
                3,
                84,
            )
            assert parsed("UNIQ_KEY\x01U2\x02TAGS\x01T\x02DELAY\x013\x02") == (
                ("U2", None, "T"),
                3,
                84,
            )
        for refused in (
            "UNIQ_KEY\x01U\x02DELAY\x0119\x02",
            "UNIQ_KEY\x01U\x02DELAY\x0103\x02",
            "UNIQ_KEY\x01U\x02DELAY\x010\x02",
            "UNIQ_KEY\x01U\x02DELAY\x01-1\x02",
            "UNIQ_KEY\x01U\x02DELAY\x01\x02",
            "UNIQ_KEY\x01U\x02MYDELAY\x013\x02",
            "UNIQ_KEY\x01U\x02DELAY\x013\x02DELAY\x014\x02",
            "UNIQ_KEY\x01U\x02DELAY\x013\x02TIMER_DELAY_SEC\x014\x02",
            "UNIQ_KEY\x01U\x02DELAY\x013\x02TRAN_MSG\x01true\x02",
            "UNIQ_KEY\x01U\x02DELAY\x013\x02REAL_TOPIC\x01x\x02",
            "DELAY\x013\x02TAGS\x01T\x02",
        ):
            assert read(refused) is None, refused

    scenario(tmp_path, story)
