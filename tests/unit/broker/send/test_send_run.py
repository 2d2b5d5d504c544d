"""Runs of sends in one read: the same answers, records and order as one by one."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.broker.harness import SEND_DEFAULTS, Client, eventually, running

from cometmq import native
from cometmq.broker import Broker
from cometmq.broker.send.kinds import make_property_reader
from cometmq.broker.send.send import RUN_SENDS_MAX
from cometmq.codec.properties import decode_properties
from cometmq.errors import DiskFull
from cometmq.store.message_store import MessageStore
from cometmq.wire.command.command import RemotingCommand, encode_command
from cometmq.wire.frame.framing import FrameReader

PLAIN = "UNIQ_KEY\x01{:032X}\x02WAIT\x01true\x02"


def frame(
    opaque: int, /, body: bytes = b"body", code: int = 310, flag: int = 0, **ext: str
) -> bytes:
    """A request as clients write it, keys sorted, so that it is decoded in one pass."""
    fields = {**SEND_DEFAULTS, "i": PLAIN.format(opaque), **ext}
    header = {"code": code, "extFields": fields, "flag": flag, "opaque": opaque, "version": 493}
    raw = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack(">iI", 4 + len(raw) + len(body), len(raw)) + raw + body


async def exchange(broker: Broker, data: bytes, count: int) -> list[RemotingCommand]:
    """Write bytes at once and read that many answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    frames = FrameReader()
    answers: list[RemotingCommand] = []
    try:
        async with asyncio.timeout(10):
            writer.write(data)
            while len(answers) < count:
                answers += frames.receive(await reader.read(1 << 20))
    finally:
        writer.close()
        await writer.wait_closed()
    return answers


def told(path: Path, story: Callable[[Broker, Client], Awaitable[None]], **settings: Any) -> None:
    """Run a story on a broker that knows topic `t`, whose first message is stored."""

    async def main() -> None:
        async with running(path, **settings) as broker:
            client = await Client(broker.env, broker.address).open()
            try:
                # The second finds the topic saved, and the broker remembers that it is plain.
                for queue_id in ("0", "2"):
                    first = await client.send(b"first", i=PLAIN.format(0), e=queue_id)
                    assert first.code == 0
                await story(broker, client)
            finally:
                await client.close()

    asyncio.run(main())


def store_of(broker: Broker) -> MessageStore:
    return broker.services.store


async def bodies(client: Client, queue_id: int = 0) -> list[bytes]:
    return [message.body for message in await client.messages(queueId=str(queue_id))]


def test_run_is_answered_in_order_and_stored_in_order(tmp_path: Path) -> None:
    """Ids, queue offsets and properties are those of single sends."""

    async def story(broker: Broker, client: Client) -> None:
        data = b"".join(frame(n, b"%d" % n, e=str(n & 1)) for n in range(1, 21))
        answers = await exchange(broker, data, 20)
        assert [answer.opaque for answer in answers] == list(range(1, 21))
        assert {answer.code for answer in answers} == {0}
        for queue_id in (0, 1):
            stored = await client.messages(queueId=str(queue_id), queueOffset=str(1 - queue_id))
            mine = [answer for answer in answers if answer.ext_fields["queueId"] == str(queue_id)]
            assert [m.body for m in stored] == [b"%d" % answer.opaque for answer in mine]
            for message, answer in zip(stored, mine, strict=True):
                fields = answer.ext_fields
                assert fields["queueOffset"] == str(message.queue_offset)
                assert int(fields["msgId"][16:], 16) == message.physical_offset
                properties = decode_properties(message.raw_properties)
                assert properties["UNIQ_KEY"] == fields["transactionId"]
                assert properties["MSG_REGION"] == fields["MSG_REGION"]
        single = await client.send(b"x", e="0", i=PLAIN.format(99))
        assert single.ext_fields.keys() == answers[0].ext_fields.keys()

    told(tmp_path, story)


def test_everything_that_is_not_plain_keeps_its_place(tmp_path: Path) -> None:
    """Checked sends, refusals, one-way sends and other requests between plain ones."""

    async def story(broker: Broker, client: Client) -> None:
        data = b"".join(
            (
                frame(1, b"1"),
                frame(2, b"2", i="no unique key\x02"),
                frame(3, b"3"),
                frame(4, b"4", e="77"),
                frame(5, b"", e="0"),
                frame(6, b"6", flag=2),
                frame(7, b"7", i=PLAIN.format(7) + "DELAY\x013\x02"),
                encode_command(RemotingCommand.request(30, {"topic": "t", "queueId": "0"})),
                frame(9, b"9", b="bad topic"),
                frame(10, b"10", i='UNIQ_KEY\x01a"b\x02'),
                frame(11, b"11", flag=1),
                frame(12, b"12", code=31999),
                frame(13, b"13", i=PLAIN.format(13).rstrip("\x02")),
                frame(14, b"14", i=PLAIN.format(14) * 2),
            )
        )
        answers = await exchange(broker, data, 12)
        codes = [(answer.opaque, answer.code) for answer in answers]
        assert [opaque for opaque, _ in codes if opaque] == [1, 2, 3, 4, 5, 7, 9, 10, 12, 13, 14]
        refused = {opaque: code for opaque, code in codes if code}
        assert refused.keys() == {4, 9, 12}
        assert refused[4] == 29
        (query,) = [answer for answer in answers if answer.opaque == 0]
        assert query.ext_fields["offset"] == "6"
        assert await bodies(client) == [
            b"first", b"1", b"2", b"3", b"", b"6", b"10", b"13", b"14"
        ]  # fmt: skip
        (answer,) = [answer for answer in answers if answer.opaque == 10]
        assert answer.ext_fields["transactionId"] == 'a"b'

    told(tmp_path, story)


def test_very_long_run_and_messages_that_need_another_window(tmp_path: Path) -> None:
    """More than one run, records over many windows and files: nothing is lost or doubled."""

    async def story(broker: Broker, client: Client) -> None:
        count = 2 * RUN_SENDS_MAX + 7
        data = b"".join(frame(n, b"%d" % n * 900, e="3") for n in range(1, count + 1))
        answers = await exchange(broker, data, count)
        assert [answer.opaque for answer in answers] == list(range(1, count + 1))
        assert [int(answer.ext_fields["queueOffset"]) for answer in answers] == list(range(count))
        found: list[bytes] = []
        while len(found) < count:
            found += [
                m.body for m in await client.messages(queueId="3", queueOffset=str(len(found)))
            ]
        assert found == [b"%d" % n * 900 for n in range(1, count + 1)]

    told(tmp_path, story)


def test_full_disk_in_the_middle_answers_the_rest_with_14(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came before is stored and says so; afterwards every send is refused, none stored."""

    async def story(broker: Broker, client: Client) -> None:
        log = store_of(broker)._log

        def full(size: int) -> int:
            raise DiskFull(f"no space for {size} bytes")

        monkeypatch.setattr(log, "make_room", full)
        body = bytes(2000)
        left = (log.limit - log.wrote) // 2400
        data = b"".join(frame(n, body) for n in range(1, left + 200))
        answers = await exchange(broker, data, left + 199)
        codes = [answer.code for answer in answers]
        stored = codes.count(0)
        assert stored >= left
        assert codes == [0] * stored + [14] * (len(codes) - stored)
        assert "no space for" in (answers[-1].remark or "")
        assert store_of(broker).max_queue_offset("t", 0) == stored + 1

    told(tmp_path, story, mappedFileSizeCommitLog=1 << 18)


def test_synchronous_flush_answers_a_run_when_it_is_durable(tmp_path: Path) -> None:
    """One flush for all; WAIT=false is answered at once, a one-way send never."""

    async def story(broker: Broker, client: Client) -> None:
        hasty = "UNIQ_KEY\x01AB\x02WAIT\x01false\x02"
        own_name = "UNIQ_KEY\x01AC\x02AWAIT\x01false\x02"
        data = b"".join(
            (
                frame(1, b"1", i=own_name),
                frame(2, b"2", i=hasty),
                frame(3, b"3", flag=2),
                frame(4, b"4"),
            )
        )
        answers = await exchange(broker, data, 3)
        assert {answer.code for answer in answers} == {0}
        assert [answer.opaque for answer in answers] == [2, 1, 4]
        assert store_of(broker).flushed_offset == store_of(broker).max_physical_offset
        assert await bodies(client) == [b"first", b"1", b"2", b"3", b"4"]

    told(tmp_path, story, flushDiskType="SYNC_FLUSH")


def test_run_whose_flush_fails_says_so_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLUSH_DISK_TIMEOUT, with ids: the messages are stored, perhaps not for ever."""

    async def story(broker: Broker, client: Client) -> None:
        monkeypatch.setattr(store_of(broker), "when_durable", lambda end, callback: callback(False))
        answers = await exchange(broker, frame(1) + frame(2), 2)
        assert [(answer.opaque, answer.code) for answer in answers] == [(1, 10), (2, 10)]
        assert [answer.ext_fields["queueOffset"] for answer in answers] == ["1", "2"]

    told(tmp_path, story, flushDiskType="SYNC_FLUSH")


def test_fault_in_a_run_is_answered_and_nothing_is_tried_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection goes on with what follows the sends."""
    monkeypatch.setattr(native, "SendEncoder", None)

    async def story(broker: Broker, client: Client) -> None:
        def broken(*_: Any, **__: Any) -> Any:
            raise RuntimeError("a fault of ours")

        monkeypatch.setattr(store_of(broker), "append", broken)
        query = encode_command(RemotingCommand.request(30, {"topic": "t", "queueId": "0"}))
        answers = await exchange(broker, frame(1) + frame(2, flag=2) + frame(3) + query, 3)
        assert [(answer.opaque, answer.code) for answer in answers] == [(1, 1), (3, 1), (0, 0)]
        assert "a fault of ours" in (answers[0].remark or "")
        assert answers[2].ext_fields["offset"] == "1"

    told(tmp_path, story)


def test_parked_pull_wakes_up_for_a_run(tmp_path: Path) -> None:
    """The listener is told after the records are there."""

    async def story(broker: Broker, client: Client) -> None:
        waiting = asyncio.ensure_future(
            client.pull(queueOffset="1", suspendTimeoutMillis="9000", sysFlag="6")
        )
        await eventually(lambda: len(broker.services.pull.hold) == 1)
        await exchange(broker, frame(1, b"1") + frame(2, b"2"), 2)
        answer = await waiting
        assert answer.code == 0
        assert b"1" in answer.body

    told(tmp_path, story)


KEYS = st.text("AZaz09", min_size=1, max_size=6)
ENTRIES = st.sampled_from(
    [
        "UNIQ_KEY\x01{}", "KEYS\x01{}", "TAGS\x01{}", "WAIT\x01false", "WAIT\x01true", "x\x01{}",
        "MY_KEYS\x01{}", "XUNIQ_KEY\x01{}", "DELAY\x01{}", "KEYS\x01", "UNIQ_KEY\x01", "KEYS",
        "AWAIT\x01false", "WAIT\x01false{}",
    ]
)  # fmt: skip


@given(st.lists(st.tuples(ENTRIES, KEYS), max_size=6))
def test_reader_agrees_with_the_decoded_properties(entries: list[tuple[str, str]]) -> None:
    """Whatever it calls plain has exactly those values."""
    text = "".join(entry.format(key) + "\x02" for entry, key in entries)
    read = make_property_reader(())
    first = read(text)
    if first is None:
        return
    (uniq_key, keys, tags), shape = first
    properties = decode_properties(text)
    assert "DELAY" not in properties
    assert properties["UNIQ_KEY"] == uniq_key
    assert properties.get("KEYS", "") == (keys or "")
    assert properties.get("TAGS") == tags
    assert shape.is_flush_awaited == (properties.get("WAIT") != "false")


def test_an_empty_value_is_no_value() -> None:
    """The entry before it counts, which only the way with all checks looks for."""
    read = make_property_reader(())
    for text in ("KEYS\x01a\x02KEYS\x01\x02UNIQ_KEY\x01u\x02", "UNIQ_KEY\x01u\x02TAGS\x01\x02"):
        assert read(text) is None


def test_the_last_of_equal_names_counts() -> None:
    """Of two UNIQ_KEY or KEYS."""
    read = make_property_reader(())
    twice = "UNIQ_KEY\x01{}\x02TAGS\x01t\x02UNIQ_KEY\x01B\x02"
    keys = "KEYS\x01{}\x02UNIQ_KEY\x01A\x02KEYS\x01k\x02"
    for first in ("B", "C"):
        found = read(twice.format(first))
        assert found is not None
        assert found[0] == ("B", None, "t")
    for first in ("k", "l"):
        found = read(keys.format(first))
        assert found is not None
        assert found[0] == ("A", "k", None)


def test_usual_strings_are_plain() -> None:
    """Otherwise nothing would ever take the fast way."""
    read = make_property_reader(())
    for text in (PLAIN.format(1), "KEYS\x01a b\x02UNIQ_KEY\x01A1\x02TAGS\x01x\x02"):
        assert read(text) is not None
