"""Delayed messages kept until they are due: which ones, how many, and delivered without a read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.delay.levels.test_delayed_send import delayed
from tests.unit.broker.harness import Client, eventually
from tests.unit.broker.send.test_send_run import exchange, store_of, told
from tests.unit.broker.transacting import stored

from cometmq.broker import Broker
from cometmq.broker.delay.levels.schedule import ScheduleService
from cometmq.broker.delay.levels.unread import (
    UNREAD_BYTES_MAX,
    UNREAD_DELAY_MS_MAX,
    UnreadMessages,
    UnreadRun,
)
from cometmq.codec.stored_message import StoredMessage, decode_messages
from cometmq.model.names import SCHEDULE_TOPIC
from cometmq.store.base.results import GetResult, PutItem

DELAYS_MS = {1: 1_000, 2: 60_000, 3: 60_001, 4: 10_000}
FILE_BYTES = 1 << 17


def run_of(first_offset: int, count: int, body_bytes: int = 100) -> UnreadRun:
    item = PutItem("t", 0, bytes(body_bytes), b"", 0, 0, 0, 0, ("K", None, None))
    return UnreadRun(first_offset, 0, bytes(8), [item] * count)


def all_of(broker: Broker, topic: str, queue_id: int) -> list[StoredMessage]:
    """Every message of a queue."""
    store = store_of(broker)
    found: list[StoredMessage] = []
    while len(found) < store.max_queue_offset(topic, queue_id):
        got = store.get(topic, queue_id, len(found), 32, allow_cold=True)
        assert isinstance(got, GetResult)
        found += decode_messages(b"".join(got.chunks))
    return found


def test_a_run_is_there_until_its_last_message_is_passed() -> None:
    """What comes before it has to be read, and so has what comes behind a gap."""
    kept = UnreadMessages(DELAYS_MS.__getitem__)
    first, second = run_of(5, 3), run_of(20, 1)
    kept.add(1, first)
    kept.add(1, second)
    assert kept.at(1, 4) is None
    assert [kept.at(1, place) for place in (5, 6, 7)] == [first] * 3
    assert kept.at(1, 8) is None
    assert kept.at(1, 20) is second
    assert kept.at(1, 21) is None
    assert kept.at(2, 5) is None


def test_what_is_kept_is_bounded_and_what_is_due_last_goes_first() -> None:
    """The newest of the level with the longest delay; levels that wait too long keep nothing."""
    kept = UnreadMessages(DELAYS_MS.__getitem__)
    assert DELAYS_MS[3] > UNREAD_DELAY_MS_MAX
    kept.add(3, run_of(0, 1))
    assert kept.at(3, 0) is None
    third = UNREAD_BYTES_MAX // 3
    for level, place in ((2, 0), (4, 0), (2, 1), (1, 0), (4, 1)):
        kept.add(level, run_of(place, 1, third - 1000))
    assert [kept.at(2, 0), kept.at(2, 1)] == [None, None]
    assert kept.at(4, 0) is not None
    assert kept.at(1, 0) is not None
    kept.at(4, 1)
    kept.add(1, run_of(1, 1, third - 1000))
    assert kept.at(1, 1) is not None


def test_what_was_just_sent_is_delivered_without_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one of all as well, whose queue is new."""
    read: list[int] = []
    read_head = ScheduleService._read

    def note(self: ScheduleService, cursor: Any, now_ms: int, **how: bool) -> None:
        read.append(now_ms)
        read_head(self, cursor, now_ms, **how)

    async def story(broker: Broker, client: Client) -> None:
        monkeypatch.setattr(ScheduleService, "_read", note)
        await exchange(broker, delayed(1) + delayed(2), 2)
        await eventually(lambda: len(stored(broker, "t", 2)) == 3)
        assert not read
        frames = b"".join(delayed(number) for number in range(10, 310))
        await exchange(broker, frames, 300)
        await eventually(lambda: store_of(broker).max_queue_offset("t", 2) == 303)
        assert not read
        waiting, delivered = all_of(broker, SCHEDULE_TOPIC, 0)[2:], all_of(broker, "t", 2)[3:]
        assert [one.raw_properties for one in delivered] == [one.raw_properties for one in waiting]
        assert all(
            late.store_timestamp_ms >= early.store_timestamp_ms + 1000
            for early, late in zip(waiting, delivered, strict=True)
        )

    told(tmp_path, story)


def test_deliveries_go_on_where_a_log_file_ends(tmp_path: Path) -> None:
    """Once each and in order, though what does not fit a file is read and put alone."""
    files, runs, width = 3, 20, 20

    async def story(broker: Broker, client: Client) -> None:
        store = store_of(broker)
        bodies: list[bytes] = []
        for run in range(runs):
            numbers = range(1 + run * width, 1 + (run + 1) * width)
            some = [b"%05d" % n + bytes(300 + 37 * n % 500) for n in numbers]
            frames = [delayed(n, body=body) for n, body in zip(numbers, some, strict=True)]
            answers = await exchange(broker, b"".join(frames), width)
            assert {answer.code for answer in answers} == {0}
            bodies += some
        # One message of the story is there before.
        await eventually(lambda: store.max_queue_offset("t", 2) == 1 + len(bodies))
        assert [one.body for one in all_of(broker, "t", 2)[1:]] == bodies
        assert store.max_physical_offset > files * FILE_BYTES

    told(tmp_path, story, mappedFileSizeCommitLog=FILE_BYTES)
