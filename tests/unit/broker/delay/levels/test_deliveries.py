"""Deliveries of delayed messages: by the native core where they are plain, else by Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.delay.levels.test_delayed_send import delayed
from tests.unit.broker.harness import Client, eventually
from tests.unit.broker.send.test_send_run import exchange, store_of, told
from tests.unit.broker.transacting import stored

from cometmq import native
from cometmq.broker import Broker
from cometmq.codec.stored_message import StoredMessage, decode_messages
from cometmq.model.names import SCHEDULE_TOPIC
from cometmq.store.append.appender import Appender
from cometmq.store.base.results import Copied, GetResult

FILE_BYTES = 1 << 17


def all_of(broker: Broker, topic: str, queue_id: int) -> list[StoredMessage]:
    """Every message of a queue."""
    store = store_of(broker)
    found: list[StoredMessage] = []
    while len(found) < store.max_queue_offset(topic, queue_id):
        got = store.get(topic, queue_id, len(found), 32, allow_cold=True)
        assert isinstance(got, GetResult)
        found += decode_messages(b"".join(got.chunks))
    return found


def test_copies_keep_their_properties_and_come_late_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ones are delivered by Python, which makes their queue, the others by the core."""
    copied: list[int] = []
    append_copies = Appender.append_copies

    def note(self: Appender, *arguments: Any) -> Copied:
        copies = append_copies(self, *arguments)
        copied.append(copies.copy_count)
        return copies

    async def story(broker: Broker, client: Client) -> None:
        await exchange(broker, delayed(1) + delayed(2), 2)
        await eventually(lambda: len(stored(broker, "t", 2)) == 3)
        frames = b"".join(delayed(number) for number in range(10, 310))
        await exchange(broker, frames, 300)
        await eventually(lambda: store_of(broker).max_queue_offset("t", 2) == 303)
        assert sum(copied) >= (300 if native.CopyEncoder is not None else 0)
        waiting, delivered = all_of(broker, SCHEDULE_TOPIC, 0)[2:], all_of(broker, "t", 2)[3:]
        assert [one.raw_properties for one in delivered] == [one.raw_properties for one in waiting]
        assert all(
            late.store_timestamp_ms >= early.store_timestamp_ms + 1000
            for early, late in zip(waiting, delivered, strict=True)
        )

    monkeypatch.setattr(Appender, "append_copies", note)
    told(tmp_path, story)


def test_deliveries_go_on_where_a_log_file_ends(tmp_path: Path) -> None:
    """Once each and in order, though what does not fit a file is put by Python."""
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
