"""Timed sends in one read: the same answers, records and deliveries as one by one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from tests.unit.broker.harness import Client, eventually, scenario
from tests.unit.broker.send.test_send_run import PLAIN, exchange, frame, store_of, told
from tests.unit.broker.transacting import stored

from cometmq.broker import Broker
from cometmq.broker.delay.wheel.delivery import Near
from cometmq.broker.delay.wheel.fetch import Ready
from cometmq.broker.delay.wheel.timed_send import TimedKind, Timing
from cometmq.broker.send.kinds import PLAIN as PLAIN_KIND
from cometmq.broker.send.kinds import make_property_reader
from cometmq.codec.recall import decode_recall_handle
from cometmq.codec.stored_message import StoredMessage
from cometmq.model.names import TIMER_TOPIC

HOUR_MS = 3_600_000
FILE_BYTES = 1 << 17


def timed(opaque: int, text: str, body: bytes = b"later") -> bytes:
    """A send to queue 2 of topic t."""
    return frame(opaque, body, i=f"{PLAIN.format(opaque)}TAGS\x01A\x02{text}", e="2")


def at(time_ms: int) -> str:
    """The property."""
    return f"TIMER_DELIVER_MS\x01{time_ms}\x02"


def what(message: StoredMessage) -> tuple[object, ...]:
    """What does not depend on place and time."""
    properties = {name: value for name, value in message.properties.items() if name != "UNIQ_KEY"}
    return message.topic, message.queue_id, message.body, message.flag, properties


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_timed_sends_in_one_read_are_as_those_one_by_one(tmp_path: Path, flush: str) -> None:
    """Answers in order with what recalls them, records alike; what is due comes when it is."""

    async def story(broker: Broker, client: Client) -> None:
        now_ms = broker.env.clock.now_ms()
        far_ms, near_ms = now_ms + HOUR_MS, now_ms + 1500
        alone = await client.send(
            b"later", i=f"{PLAIN.format(900)}TAGS\x01A\x02{at(far_ms)}", e="2"
        )
        assert alone.code == 0
        run = b"".join(
            [
                timed(1, at(far_ms)),
                timed(2, at(near_ms)),
                frame(3),
                timed(4, at(near_ms + 1)),
                timed(5, at(now_ms - 1)),
                timed(6, "TIMER_DELIVER_MS\x01soon\x02"),
                timed(7, "TIMER_DELAY_SEC\x013600\x02"),
                timed(8, at(now_ms + 10**13)),
                timed(9, at(now_ms + 10**13), body=b""),
            ]
        )
        answers = {answer.opaque: answer for answer in await exchange(broker, run, 9)}
        codes = [answers[number].code for number in range(1, 10)]
        assert codes == [0, 0, 0, 0, 0, 13, 0, 13, 13]
        handles = [
            decode_recall_handle(one.ext_fields["recallHandle"]) for one in (alone, answers[1])
        ]
        assert handles[0].time_ms == handles[1].time_ms
        assert handles[1].uniq_key == answers[1].ext_fields["transactionId"]
        assert (handles[1].topic, handles[1].broker_name) == ("t", "broker-a")
        assert alone.ext_fields.keys() == answers[1].ext_fields.keys()
        assert {answers[n].ext_fields["queueId"] for n in (1, 2, 4, 5, 7)} == {"2"}
        waiting = stored(broker, TIMER_TOPIC)
        assert [int(answers[n].ext_fields["queueOffset"]) for n in (1, 2, 4)] == [1, 2, 3]
        assert what(waiting[0]) == what(waiting[1])
        assert int(waiting[2].properties["TIMER_OUT_MS"]) < near_ms
        # The first of the story, the one that was due, and the two that are due soon.
        await eventually(lambda: len(stored(broker, "t", 2)) == 4)
        delivered = stored(broker, "t", 2)[2:]
        assert all(one.store_timestamp_ms >= near_ms for one in delivered)
        assert [one.body for one in delivered] == [b"later"] * 2
        assert sorted(one.properties["UNIQ_KEY"] for one in delivered) == sorted(
            answers[n].ext_fields["transactionId"] for n in (2, 4)
        )

    told(tmp_path, story, flushDiskType=flush)


def test_what_is_delivered_unread_is_as_what_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two messages for a loaded slot: one is kept in memory, for the other there is no room."""
    push = Near.push
    asked: list[int] = []

    def push_one(near: Near, run: Sequence[Ready]) -> int:
        asked.append(len(run))
        return push(near, run[:1])

    async def story(broker: Broker, client: Client) -> None:
        near_ms = broker.env.clock.now_ms() + 1100
        monkeypatch.setattr(Near, "push", push_one)
        # The first one of all takes the way of single sends: its queue is new.
        await exchange(broker, timed(9, at(near_ms + HOUR_MS)), 1)
        await exchange(broker, timed(1, at(near_ms)) + timed(2, at(near_ms)), 2)
        await eventually(lambda: len(stored(broker, "t", 2)) == 3)
        kept, read = sorted(stored(broker, "t", 2)[1:], key=lambda one: one.properties["UNIQ_KEY"])
        assert sum(asked) == 2
        assert all(one.store_timestamp_ms >= near_ms for one in (kept, read))
        assert list(kept.properties) == list(read.properties)
        for one in (kept, read):
            del one.properties["TIMER_DEQUEUE_MS"]
        assert what(kept) == what(read)
        assert kept.born_timestamp_ms == read.born_timestamp_ms
        units = store_of(broker).units("t", 2, 1, 2)
        assert units[0].tags_code == units[1].tags_code != 0

    told(tmp_path, story)


def test_runs_end_where_a_log_file_does(tmp_path: Path) -> None:
    """The wheel knows the size of every record, also of the last one before a file's end, where the
    next one does not begin where it ends."""
    files, runs, width = 3, 30, 20

    async def story(broker: Broker, client: Client) -> None:
        store = store_of(broker)
        far_ms = broker.env.clock.now_ms() + HOUR_MS
        count = 0
        for run in range(runs):
            numbers = range(1 + run * width, 1 + (run + 1) * width)
            # Sizes that differ, so that the end of a file is met with all kinds of room.
            frames = [timed(n, at(far_ms), bytes(300 + 37 * n % 500)) for n in numbers]
            answers = await exchange(broker, b"".join(frames), width)
            assert {answer.code for answer in answers} == {0}
            count += width
        await eventually(lambda: broker.timers.taken_count == count)
        units = store.units(TIMER_TOPIC, 0, 0, count)
        records = [(unit.physical_offset, unit.size) for unit in units]
        assert len(records) == count
        log = broker.timers._book.log
        known = {
            int(unit["physical_offset"]): int(unit["bytes"])
            for units in log.reader().arrays(0, log.end)
            for unit in units
        }
        assert known == dict(records)
        gaps = sum(place + size != following for (place, size), (following, _) in pairwise(records))
        assert gaps >= files
        assert store.max_physical_offset > files * FILE_BYTES

    told(tmp_path, story, mappedFileSizeCommitLog=FILE_BYTES)


def test_a_time_is_read_where_an_entry_begins(tmp_path: Path) -> None:
    """Once, a number, and with nothing else of the timers'."""

    async def story(broker: Broker, client: Client) -> None:
        kind = TimedKind(broker.state, broker.timers.rules, broker.timers)
        read = make_property_reader((kind,))
        found = read("UNIQ_KEY\x01U\x02TIMER_DELIVER_MS\x015000\x02TAGS\x01T\x02")
        assert found is not None
        assert found[0] == ("U", None, "T")
        assert found[1].detail == Timing(4000, 5000)
        # What is remembered of a time would be the time of all others.
        other = read("UNIQ_KEY\x01V\x02TIMER_DELIVER_MS\x016000\x02TAGS\x01T\x02")
        assert other is not None
        assert other[1].detail == Timing(5000, 6000)
        plain = read("UNIQ_KEY\x01U\x02")
        assert plain is not None
        assert plain[1].kind is PLAIN_KIND
        for refused in (
            "UNIQ_KEY\x01U\x02MYTIMER_DELIVER_MS\x015\x02",
            "UNIQ_KEY\x01U\x02TIMER_DELIVER_MS\x01-5\x02",
            "UNIQ_KEY\x01U\x02TIMER_DELIVER_MS\x01\x02",
            "UNIQ_KEY\x01U\x02TIMER_DELIVER_MS\x015\x02TIMER_DEL_UNIQKEY\x01x\x02",
            "UNIQ_KEY\x01U\x02TIMER_DELIVER_MS\x015\x02REAL_TOPIC\x01x\x02",
            "UNIQ_KEY\x01U\x02TIMER_DELIVER_MS\x01" + "9" * 19 + "\x02",
        ):
            assert read(refused) is None, refused

    scenario(tmp_path, story)
