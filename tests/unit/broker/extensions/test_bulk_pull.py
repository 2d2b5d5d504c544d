"""Bulk pulls: the same records as ordinary pulls, in long spans; what they refuse and bound."""

from __future__ import annotations

import asyncio
import random
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.harness import PULL_DEFAULTS, Client, scenario

from cometmq.broker import Broker
from cometmq.broker.extensions.bulk_pull import UNSENT_BYTES_MAX
from cometmq.codec.consume_queue import CQ_UNIT
from cometmq.codec.stored_message import decode_messages
from cometmq.errors import CometError
from cometmq.model.offsets import PhysicalOffset
from cometmq.store.read.span_reader import SpanReader
from cometmq.wire.command.command import RemotingCommand, encode_command
from cometmq.wire.extensions.bulk_pull import (
    BULK_PULL_FEATURE,
    BulkPullCode,
    BulkPullResponseHeader,
    features_of,
)

QUEUES = 3
COUNT = 150
DEFAULTS = {**PULL_DEFAULTS, "maxMsgNums": "1000000", "maxMsgBytes": str(4 << 20)}


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait until something holds, on a machine that may be slow."""
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0.005)


async def fill(client: Client, seed: int = 7, count: int = COUNT, widest: int = 3000) -> None:
    """Messages of many lengths, queue by queue in turn, tags A, B and none."""
    chance = random.Random(seed)
    for number in range(count * QUEUES):
        tag = ("", "A", "B")[chance.randrange(3)]
        body = chance.randbytes(chance.choice([1, 2, 60, 200, widest]))
        answer = await client.send(
            body, e=str(number % QUEUES), i=f"TAGS\x01{tag}\x02" if tag else ""
        )
        assert answer.code == 0


async def bulk(client: Client, **ext: str) -> RemotingCommand:
    return await client.call(BulkPullCode.BULK_PULL, {**DEFAULTS, **ext})


async def ordinary_records(client: Client, queue_id: int, **ext: str) -> list[bytes]:
    """All records of a queue by pulls of 32."""
    records: list[bytes] = []
    place = 0
    while True:
        answer = await client.pull(
            queueId=str(queue_id), queueOffset=str(place), suspendTimeoutMillis="0", **ext
        )
        if answer.code == 19:
            return records
        assert answer.code in (0, 20)
        place = int(answer.ext_fields["nextBeginOffset"])
        body = answer.body
        while body:
            (size,) = struct.unpack_from(">i", body)
            records.append(body[:size])
            body = body[size:]


async def bulk_records(client: Client, queue_id: int, **ext: str) -> tuple[list[bytes], int]:
    """The same by bulk pulls with sizes, and how many answers were spans."""
    records: list[bytes] = []
    place = spans = 0
    while True:
        answer = await bulk(
            client, queueId=str(queue_id), queueOffset=str(place), withSizes="true", **ext
        )
        if answer.code == 19:
            return records, spans
        assert answer.code in (0, 20), answer.remark
        header = BulkPullResponseHeader.from_command(answer)
        assert place < header.next_begin_offset <= header.max_offset
        place = header.next_begin_offset
        if header.msg_count is None:
            found = decode_messages(answer.body)
            at = 0
            for message in found:
                records.append(answer.body[at : at + message.total_size])
                at += message.total_size
            continue
        spans += 1
        assert header.sizes_bytes == 4 * header.msg_count
        sizes = struct.unpack_from(f">{header.msg_count}i", answer.body)
        assert len(answer.body) == header.sizes_bytes + sum(sizes)
        at = header.sizes_bytes
        for size in sizes:
            records.append(answer.body[at : at + size])
            at += size


@pytest.mark.parametrize("settings", [{}, {"mappedFileSizeCommitLog": 1 << 14}])
@pytest.mark.parametrize("max_bytes", ["1", "5000", "70000", str(4 << 20)])
def test_spans_hold_what_ordinary_pulls_give(
    tmp_path: Path, max_bytes: str, settings: dict[str, Any]
) -> None:
    """Byte for byte, over ends of log files, whatever the limit cuts."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client)
        for queue_id in range(QUEUES):
            expected = await ordinary_records(client, queue_id)
            found, spans = await bulk_records(client, queue_id, maxMsgBytes=max_bytes)
            assert found == expected
            assert len(found) == COUNT
            assert spans

    scenario(tmp_path, story, **settings)


@pytest.mark.parametrize("subscription", ["A", "A || B", "C"])
def test_tags_choose_by_hash(tmp_path: Path, subscription: str) -> None:
    """As an ordinary pull with the same expression; what does not match is passed over."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client, widest=300)
        expected = await ordinary_records(client, 1, subscription=subscription)
        assert bool(expected) == (subscription != "C")
        for max_bytes in ("700", str(1 << 20)):
            found, spans = await bulk_records(
                client, 1, subscription=subscription, maxMsgBytes=max_bytes
            )
            assert found == expected
            assert spans

    scenario(tmp_path, story)


def test_the_count_is_a_limit(tmp_path: Path) -> None:
    """A reader asks for what lies before its end."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client)
        answer = await bulk(client, queueOffset="10", maxMsgNums="77")
        header = BulkPullResponseHeader.from_command(answer)
        assert (header.msg_count, header.next_begin_offset, header.sizes_bytes) == (77, 87, 0)
        assert [one.queue_offset for one in decode_messages(answer.body)] == list(range(10, 87))

    scenario(tmp_path, story)


@pytest.mark.parametrize(
    ("ext", "code"),
    [
        ({"queueOffset": "5000"}, 21),
        ({"queueOffset": "40"}, 19),
        ({"queueOffset": "-3"}, 21),
        ({"queueId": "99"}, 29),
        ({"topic": "unknown"}, 17),
        ({"consumerGroup": "closed"}, 16),
        ({"expressionType": "SQL92", "subscription": "a >"}, 23),
        ({"subscription": " || "}, 23),
        ({"sysFlag": "0"}, 24),
    ],
)
def test_refusals_are_those_of_an_ordinary_pull(
    tmp_path: Path, ext: dict[str, str], code: int
) -> None:
    """The same code and remark, whatever is wrong."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client, count=40)
        body = b'{"groupName":"closed","consumeEnable":false}'
        assert (await client.call(200, {}, body)).code == 0
        request = {"suspendTimeoutMillis": "0", **ext}
        answer, plain = await bulk(client, **request), await client.pull(**request)
        assert (answer.code, answer.remark) == (plain.code, plain.remark)
        assert answer.code == code

    scenario(tmp_path, story)


def test_a_span_ends_before_a_unit_that_leads_astray(tmp_path: Path) -> None:
    """What is sound before it comes at once; the ordinary pull behind it repairs the unit."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client)
        expected = await ordinary_records(client, 0)
        store = broker.state.store
        queue = store._queues.find("t", 0)
        assert queue is not None
        await eventually(lambda: queue.written == COUNT)
        with (tmp_path / "consumequeue" / "t" / "0" / f"{0:020d}").open("r+b") as file:
            file.seek(20 * 60)
            position, size, tag = CQ_UNIT.unpack(file.read(20))
            file.seek(20 * 60)
            file.write(CQ_UNIT.pack(position + 1, size, tag))
        first = BulkPullResponseHeader.from_command(await bulk(client))
        assert (first.msg_count, first.next_begin_offset) == (60, 60)
        found, _ = await bulk_records(client, 0)
        assert found == expected

    scenario(tmp_path, story)


def test_requests_beyond_the_bound_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection may have so many waiting; the others get all they asked for."""
    monkeypatch.setattr("cometmq.broker.extensions.bulk_pull.REQUESTS_MAX", 8)

    async def story(broker: Broker, client: Client) -> None:
        await fill(client)
        expected = b"".join(await ordinary_records(client, 0))
        answers = await asyncio.gather(*(bulk(client) for _ in range(14)))
        busy = [answer for answer in answers if answer.code == 2]
        assert len(busy) == 5
        assert "bulk pulls of this connection wait" in (busy[0].remark or "")
        assert all(answer.body == expected for answer in answers if answer.code == 0)
        assert (await bulk(client)).body == expected

    scenario(tmp_path, story)


def test_few_messages_and_none_are_ordinary_pulls(tmp_path: Path) -> None:
    """No span for what one pull brings; with nothing there the request waits for a message."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client, count=20)
        answer = await bulk(client)
        assert (answer.code, "msgCount" in answer.ext_fields) == (0, False)
        waiting = asyncio.ensure_future(
            bulk(client, queueOffset="20", sysFlag="6", suspendTimeoutMillis="20000")
        )
        hold = broker.services.pull.hold
        await eventually(lambda: len(hold) == 1)
        await client.send(b"late", e="0")
        answer = await waiting
        assert [one.body for one in decode_messages(answer.body)] == [b"late"]

    scenario(tmp_path, story)


def test_a_commit_travels_along(tmp_path: Path) -> None:
    """As with a pull: the offset is stored though the answer is a span."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client)
        answer = await bulk(client, sysFlag="5", commitOffset="17")
        assert "msgCount" in answer.ext_fields
        assert broker.state.offsets.query("g", "t", 0) == 17

    scenario(tmp_path, story)


def test_windows_go_when_nobody_reads(tmp_path: Path) -> None:
    """Two looks without a span in between, and nothing of the log is mapped for reading."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client)
        await bulk(client)
        spans = broker.state.store.spans
        assert spans.drop_idle()
        assert not spans.drop_idle()
        assert (await bulk(client)).code == 0

    scenario(tmp_path, story)


def test_a_heartbeat_tells_of_it(tmp_path: Path) -> None:
    """In one field that other clients do not know."""

    async def story(broker: Broker, client: Client) -> None:
        answer = await client.heartbeat(producers=("p",))
        assert BULK_PULL_FEATURE in features_of(answer.ext_fields)
        assert features_of({}) == frozenset()

    scenario(tmp_path, story)


def test_cold_bytes_hold_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A span is read by a worker; while that one waits for the disk, others are served."""
    is_open, entered = threading.Event(), threading.Event()
    readers: list[str] = []
    real = SpanReader.window

    def slow(reader: SpanReader, physical_offset: int) -> Any:
        readers.append(threading.current_thread().name)
        entered.set()
        assert is_open.wait(30)
        return real(reader, PhysicalOffset(physical_offset))

    async def story(broker: Broker, client: Client) -> None:
        await fill(client)
        expected = b"".join(await ordinary_records(client, 0))
        monkeypatch.setattr(SpanReader, "window", slow)
        waiting = asyncio.ensure_future(bulk(client))
        try:
            await asyncio.to_thread(entered.wait, 30)
            assert (await client.send(b"while it waits", e="1")).code == 0
            assert not waiting.done()
        finally:
            is_open.set()
        answer = await waiting
        assert "msgCount" in answer.ext_fields
        assert answer.body == expected
        assert threading.main_thread().name not in readers

    scenario(tmp_path, story)


def test_a_reader_that_does_not_read_costs_little(tmp_path: Path) -> None:
    """What it asked for waits; what was gathered for it stays within the bound, and comes later."""
    requests, body = 12, bytes(3000)

    async def story(broker: Broker, client: Client) -> None:
        for _ in range(1500):
            answer = await client.send(body, e="0")
            assert answer.code == 0
        host, _, port = broker.address.rpartition(":")
        # What the kernel and the stream take in by themselves is not the broker's.
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        for number in range(requests):
            command = RemotingCommand.request(BulkPullCode.BULK_PULL, DEFAULTS)
            command.opaque = number
            writer.write(encode_command(command))
        backlogs = broker.services.bulk._backlogs
        await eventually(
            lambda: any(backlog.connection.unsent_bytes > 0 for backlog in backlogs.values())
        )
        (backlog,) = backlogs.values()
        await eventually(lambda: not backlog.is_busy)
        assert backlog.waiting
        assert backlog.connection.unsent_bytes <= UNSENT_BYTES_MAX + (4 << 20) + 4096
        sizes = []
        for _ in range(requests):
            length, packed = struct.unpack(">iI", await reader.readexactly(8))
            frame = await reader.readexactly(length - 4)
            sizes.append(len(frame) - (packed & 0xFFFFFF))
        assert min(sizes) > 3 << 20
        assert len(set(sizes)) == 1
        writer.close()
        await writer.wait_closed()
        await eventually(lambda: not backlogs)

    scenario(tmp_path, story, mappedFileSizeCommitLog=1 << 24)


def test_a_lost_connection_takes_its_requests_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is gathered for a peer that has gone is dropped, and the next peer is served."""
    is_open, entered = threading.Event(), threading.Event()
    real = SpanReader.window

    def slow(reader: SpanReader, physical_offset: int) -> Any:
        entered.set()
        assert is_open.wait(30)
        return real(reader, PhysicalOffset(physical_offset))

    async def story(broker: Broker, client: Client) -> None:
        await fill(client)
        monkeypatch.setattr(SpanReader, "window", slow)
        other = await Client(broker.env, broker.address).open()
        lost = [asyncio.ensure_future(bulk(other)) for _ in range(3)]
        await asyncio.to_thread(entered.wait, 30)
        await other.close()
        backlogs = broker.services.bulk._backlogs
        await eventually(lambda: not backlogs)
        is_open.set()
        for done in await asyncio.gather(*lost, return_exceptions=True):
            assert isinstance(done, CometError)
        assert (await bulk(client)).code == 0

    scenario(tmp_path, story)


def test_only_spans_bring_numpy_into_the_broker() -> None:
    """A broker that nobody reads in bulk stays small."""
    program = """
import asyncio, sys
from cometmq import Message, Producer, PushConsumer
from cometmq.testing.cluster import embedded_cluster

async def main():
    async with embedded_cluster() as cluster:
        done = asyncio.Event()
        async def handle(message):
            done.set()
        async with Producer("p", name_server=cluster.name_server_address) as producer:
            await producer.send(Message("t", b"x"))
        async with PushConsumer("g", {"t": "*"}, handle, consume_from="first",
                                name_server=cluster.name_server_address):
            await done.wait()
    print("numpy" in sys.modules)

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.stdout.strip() == "False", done.stderr
