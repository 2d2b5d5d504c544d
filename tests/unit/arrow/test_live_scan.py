"""A scan of a cluster equals one of its store, and outlives lost connections and moved brokers."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.interop.waiting import wait_until
from tests.unit.arrow.made_stores import MadeStore, expected_row
from tests.unit.arrow.test_scan import as_rows

from cometmq import Message, MessageQueue
from cometmq.arrow import ALL_COLUMNS, ScanReport, scan
from cometmq.arrow.decode import QueueRows, decode_records
from cometmq.arrow.live import LiveCluster, QueueId
from cometmq.arrow.live_span import WireRecords, _SmallAnswers, _span_chunk, read_span
from cometmq.arrow.options import parse_options
from cometmq.broker import Broker, load_config
from cometmq.errors import (
    ConfigError,
    ConnectFailed,
    ExpressionIllegal,
    NoRoute,
    OffsetOutOfRange,
    RemoteProtocolError,
    RequestTimeout,
    StoreError,
)
from cometmq.net.env import system_environment
from cometmq.net.pipelined import PipelinedChannel
from cometmq.store.base.disk import RealDisk
from cometmq.sync import Admin, Producer
from cometmq.testing import EmbeddedCluster, threaded_cluster
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.extensions.bulk_pull import BulkPullCode, BulkPullResponseHeader

COUNT = 700
TOPIC = "Live"
QUEUES = 2


def fill(name_server: str, topic: str = TOPIC, count: int = COUNT) -> None:
    """Messages of many shapes in two queues, some compressed."""
    chance = random.Random(3)
    with Admin(name_server=name_server) as admin:
        admin.create_topic(topic, queue_count=QUEUES, broker_name="broker-a")
    with Producer("live", name_server=name_server, compress_above_bytes=4000) as producer:
        for number in range(count):
            body = chance.randbytes(chance.choice([1, 50, 900])) or b"x"
            if number % 97 == 5:
                body *= 10
            message = Message(
                topic,
                body,
                tags=chance.choice([None, "A", "B"]),
                keys=f"k{number}",
                properties={"place": f"Ärmel {number}"} if number % 7 == 0 else {},
            )
            producer.send(message, queue=MessageQueue(topic, "broker-a", number % QUEUES))


@pytest.fixture(scope="module")
def filled() -> Iterator[EmbeddedCluster]:
    """A cluster with a topic of two queues."""
    with threaded_cluster() as cluster:
        fill(cluster.name_server_address)
        yield cluster


def wait_for_units(cluster: EmbeddedCluster) -> None:
    """Until a scan of the store sees every unit: they are written behind the log."""
    seen = 0

    def are_all_there() -> bool:
        nonlocal seen
        # The first unit of a queue makes its directory.
        with contextlib.suppress(StoreError):
            batches = scan(cluster.store_path, topic=TOPIC, columns=["queueId"])
            seen = sum(batch.num_rows for batch in batches)
        return seen == COUNT

    wait_until(are_all_there, lambda: f"{seen} of {COUNT} units were written")


@pytest.mark.parametrize(
    "options",
    [
        {"include_properties": True, "columns": ALL_COLUMNS},
        {"tags": "A || B", "columns": ["queueId", "queueOffset", "tags", "keys"]},
        {"queues": [1], "batch_rows": 37},
        {"starting_offsets": {0: 17, "broker-a:1": 200}, "ending_offsets": {"broker-a:0": 300}},
        {"check_crc": True, "mode": "FAILFAST", "columns": ["body", "msgId"]},
    ],
)
def test_it_equals_a_scan_of_the_store(filled: EmbeddedCluster, options: dict[str, Any]) -> None:
    """Every value of every row, with the same options."""
    wait_for_units(filled)
    report = ScanReport()
    live = scan(name_server=filled.name_server_address, topic=TOPIC, report=report, **options)
    stored = scan(filled.store_path, topic=TOPIC, broker="broker-a", **options)
    assert live.schema == stored.schema
    rows = as_rows(live)
    assert rows == as_rows(stored)
    assert report.rows == len(rows) > 0


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_tag_that_nothing_has_gives_no_row(filled: EmbeddedCluster, is_plain: bool) -> None:
    """Answers without a record say how far the broker looked, and no more."""
    with LiveCluster(filled.name_server_address) as live:
        if is_plain:
            live.plain_brokers.add("broker-a")
        for queue, (_, end) in live.bounds(live.queues(TOPIC)).items():
            report = ScanReport()
            options = parse_options(tags="nobody has it")
            assert not list(read_span(live, queue, 0, end, options, report))
            assert end > 0
            assert report == ScanReport()


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"timeout_ms": "x"}, "timeout_ms must be a whole number of ms, got 'x'"),
        ({"retry_ms": 1.5}, "retry_ms must be a whole number of ms, got 1.5"),
        ({"group": 5}, "group must be a name, got 5"),
    ],
)
def test_settings_of_a_wrong_kind_are_told(settings: dict[str, Any], what: str) -> None:
    """Before a name server is asked: there is none."""
    with pytest.raises(ConfigError) as caught:
        scan(name_server="127.0.0.1:1", topic=TOPIC, **settings)
    assert str(caught.value) == what


def test_without_bulk_pulls_the_rows_are_the_same(filled: EmbeddedCluster) -> None:
    """A broker that does not know the request is read by ordinary pulls."""
    with LiveCluster(filled.name_server_address) as live:
        queue = live.queues(TOPIC)[0]
        end = live.bounds([queue])[queue][1]
        options = parse_options(include_properties=True)
        bulk = list(read_span(live, queue, 0, end, options, ScanReport()))
        live.plain_brokers.add("broker-a")
        plain = list(read_span(live, queue, 0, end, options, ScanReport()))
    assert pa.Table.from_batches(bulk).equals(pa.Table.from_batches(plain))


def test_an_answer_not_supported_leads_to_ordinary_pulls() -> None:
    """Once, and the broker is remembered."""
    with threaded_cluster() as cluster:
        fill(cluster.name_server_address, count=200)
        handlers = cluster.standalone.broker._server.handlers
        del handlers[BulkPullCode.BULK_PULL]
        with LiveCluster(cluster.name_server_address) as live:
            queue = live.queues(TOPIC)[0]
            batches = list(read_span(live, queue, 0, 100, parse_options(), ScanReport()))
            assert sum(batch.num_rows for batch in batches) == 100
            assert live.plain_brokers == {"broker-a"}


def test_times_choose_offsets_and_rows(filled: EmbeddedCluster) -> None:
    """From the first message at or after a time up to, not including, another."""
    name_server = filled.name_server_address
    columns = ["queueId", "queueOffset", "storeTimestamp"]
    rows = as_rows(scan(name_server=name_server, topic=TOPIC, columns=columns))
    times = sorted(row["storeTimestamp"] for row in rows)
    begin, end = times[COUNT // 3], times[2 * COUNT // 3]
    found = as_rows(
        scan(
            name_server=name_server,
            topic=TOPIC,
            columns=columns,
            starting_timestamp=begin,
            ending_timestamp=end,
        )
    )
    assert found == [row for row in rows if begin <= row["storeTimestamp"] < end]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"topic": None}, ConfigError, "needs a topic"),
        ({"topic": "Live2"}, NoRoute, "did you mean 'Live'"),
        ({"queues": [5]}, NoRoute, r"no queue 5, only \[0, 1\]"),
        ({"broker": "broker-b"}, NoRoute, "did you mean 'broker-a'"),
        ({"starting_offsets": {"broker-x:0": 1}}, NoRoute, "not on a broker 'broker-x'"),
        ({"ending_offsets": {0: 99_999}}, OffsetOutOfRange, "ends at offset 350"),
        ({"sql92": "a >"}, ExpressionIllegal, "line 1 column 4: expected"),
        ({"sql92": "a > 1", "tags": "A"}, ConfigError, "do not go together"),
        ({"sql92": " "}, ConfigError, "must be an expression"),
        ({"time_out_ms": 5}, ConfigError, "did you mean 'timeout_ms'"),
    ],
)
def test_what_is_wrong_is_named(
    filled: EmbeddedCluster, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    """One error with the cause, before a row is handed out."""
    with pytest.raises(error, match=text):
        scan(name_server=filled.name_server_address, **{"topic": TOPIC, **options}).read_all()


def test_brokers_evaluate_a_filter(filled: EmbeddedCluster) -> None:
    """Rows are those whose properties match, also where no message of a span does."""
    everything = scan(name_server=filled.name_server_address, topic=TOPIC, include_properties=True)
    rows = everything.read_all().to_pylist()
    some = scan(
        name_server=filled.name_server_address,
        topic=TOPIC,
        sql92="place ENDSWITH '7' OR (TAGS = 'A' AND KEYS = 'k3')",
    ).read_all()
    expected = [
        row["queueOffset"]
        for row in rows
        if dict(row["properties"]).get("place", "").endswith("7")
        or (row["tags"] == "A" and row["keys"] == "k3")
    ]
    assert 5 < len(expected) < 30
    assert sorted(some["queueOffset"].to_pylist()) == sorted(expected)
    none = scan(name_server=filled.name_server_address, topic=TOPIC, sql92="place = 'nowhere'")
    assert none.read_all().num_rows == 0


def test_a_directory_and_a_cluster_are_two_things(tmp_path: Path) -> None:
    """Either, with the options of its kind."""
    with pytest.raises(ConfigError, match="nothing to scan"):
        scan(topic="T")
    with pytest.raises(ConfigError, match="a directory or a cluster"):
        scan(tmp_path, name_server="127.0.0.1:1", topic="T")
    for option in ({"sql92": "a > 1"}, {"timeout_ms": 5}):
        with pytest.raises(ConfigError, match="is for a scan of a cluster"):
            scan(tmp_path, topic="T", **option)


def test_expired_offsets_are_an_error_or_passed_over(filled: EmbeddedCluster) -> None:
    """Where the queue now begins later than a plan says."""
    store = filled.standalone.broker.state.store
    real = store.min_queue_offset
    with LiveCluster(filled.name_server_address) as live:
        queue = live.queues(TOPIC)[0]
        found = store._queues.find(TOPIC, 0)
        assert found is not None
        assert real(TOPIC, 0) == 0
        found.min = 120
        try:
            with pytest.raises(OffsetOutOfRange, match="100, of the span up to 200, has expired"):
                list(read_span(live, queue, 100, 200, parse_options(), ScanReport()))
            report = ScanReport()
            batches = list(
                read_span(live, queue, 100, 200, parse_options(), report, skip_expired=True)
            )
        finally:
            found.min = 0
    assert (report.rows, report.expired) == (80, 20)
    assert batches[0]["queueOffset"][0].as_py() == 120


# -- lost connections ----------------------------------------------------------------------


def test_a_cut_connection_is_made_again(filled: EmbeddedCluster) -> None:
    """In the middle of a span: no row twice, none missing."""
    with LiveCluster(filled.name_server_address) as live:
        queue = live.queues(TOPIC)[0]
        batches = read_span(
            live, queue, 0, 350, parse_options(columns=["queueOffset"], batch_rows=50), ScanReport()
        )
        live.plain_brokers.add("broker-a")
        offsets = next(batches)["queueOffset"].to_pylist()
        server = filled.standalone.broker._server
        cut = [connection.peer for connection in server.connections]
        assert cut
        done = threading.Event()

        def abort() -> None:
            for connection in list(server.connections):
                connection.abort("the test cuts it")
            done.set()

        connection = next(iter(server.connections))
        connection._loop.call_soon_threadsafe(abort)
        assert done.wait(30)
        for batch in batches:
            offsets += batch["queueOffset"].to_pylist()
    assert offsets == list(range(350))


class Moving:
    """A broker in a thread that can be stopped and come back elsewhere."""

    def __init__(self, name_server: str, folder: Path) -> None:
        self._settings = {
            "listenPort": 0,
            "brokerName": "broker-a",
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "namesrvAddr": name_server,
            "storePathRootDir": str(folder),
            "mappedFileSizeCommitLog": 1 << 24,
        }

    def __enter__(self) -> Moving:
        self.ports: list[int] = []
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Serve, on some port."""
        ready = threading.Event()
        self._stop = threading.Event()

        async def serve() -> None:
            config = load_config(overrides=self._settings, environment={}).config
            broker = Broker(config, system_environment(), RealDisk())
            await broker.start()
            self.ports.append(broker.port)
            ready.set()
            await asyncio.to_thread(self._stop.wait)
            await broker.stop()

        self._thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
        self._thread.start()
        assert ready.wait(30)

    def stop(self) -> None:
        """Stop serving."""
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


def test_a_broker_that_restarts_elsewhere_is_found(tmp_path: Path) -> None:
    """In the middle of a span the route is asked for again."""
    settings = {"brokerName": "other"}
    with threaded_cluster(settings) as cluster:
        name_server = cluster.name_server_address
        with Moving(name_server, tmp_path / "store") as moving:
            fill(name_server)
            with LiveCluster(name_server, timeout_ms=20_000) as live:
                queue = QueueId(TOPIC, "broker-a", 0)
                assert queue in live.queues(TOPIC)
                live.plain_brokers.add("broker-a")
                options = parse_options(columns=["queueOffset"], batch_rows=50)
                batches = read_span(live, queue, 0, 350, options, ScanReport())
                offsets = next(batches)["queueOffset"].to_pylist()
                moving.stop()
                moving.start()
                for batch in batches:
                    offsets += batch["queueOffset"].to_pylist()
                assert offsets == list(range(350))
                assert live.bounds([queue]) == {queue: (0, 350)}
            assert len(set(moving.ports)) == 2


def test_a_broker_that_stays_away_is_an_error_in_the_end(tmp_path: Path) -> None:
    """After `retry_ms`, with the address."""
    with (
        threaded_cluster({"brokerName": "other"}) as cluster,
        Moving(cluster.name_server_address, tmp_path / "store") as moving,
        LiveCluster(cluster.name_server_address, retry_ms=300) as live,
    ):
        fill(cluster.name_server_address, count=40)
        queue = QueueId(TOPIC, "broker-a", 0)
        live.address(queue)
        moving.stop()
        with pytest.raises((ConnectFailed, NoRoute), match=r"broker-a|127\.0\.0\.1"):
            list(read_span(live, queue, 0, 20, parse_options(), ScanReport()))


# -- what a broker may send ----------------------------------------------------------------


def header(count: int | None, sizes_bytes: int | None, following: int) -> BulkPullResponseHeader:
    return BulkPullResponseHeader(0, following, 0, 9, msg_count=count, sizes_bytes=sizes_bytes)


@pytest.mark.parametrize(
    ("count", "sizes_bytes", "body", "text"),
    [
        (2, 4, struct.pack(">2i", 100, 100) + bytes(200), "comes with 4 bytes of sizes"),
        (-1, -4, bytes(200), "comes with -4 bytes"),
        (3, 12, bytes(8), "comes with 12 bytes of sizes in 8"),
        (2, 8, struct.pack(">2i", 100, 101) + bytes(200), "add up to 201, 200 bytes"),
        (2, 8, struct.pack(">2i", -100, 300) + bytes(200), "add up to"),
        (1, 4, struct.pack(">i", 5) + bytes(5), "add up to"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    count: int, sizes_bytes: int, body: bytes, text: str
) -> None:
    """A span whose lengths lie is no span."""
    queue = QueueId("T", "b", 0)
    with pytest.raises(RemoteProtocolError, match=text):
        _span_chunk(queue, memoryview(body), header(count, sizes_bytes, 5), 3)


def test_an_answer_that_holds_no_records_is_refused() -> None:
    """Of an ordinary pull: where its records end is not its end."""
    store = MadeStore(Path())
    store.put(b"body")
    record = store.records[0][1]
    small = _SmallAnswers(10)
    queue = QueueId("T", "b", 0)
    list(small.add(queue, memoryview(record * 2), 0, 2))
    with pytest.raises(RemoteProtocolError, match="holds no record at"):
        list(small.add(queue, memoryview(record + record[:-1]), 2, 4))


def test_records_as_they_are_sent_decode_like_stored_ones() -> None:
    """Without knowing where in a log they stood, whatever is damaged in one of them."""
    store = MadeStore(Path())
    for number in range(20):
        store.put(
            b"body %d" % number, b"TAGS\x01A\x02KEYS\x01k\x02", kind="ZLIB" if number == 4 else None
        )
    records = [record for _, record in store.records]
    broken = bytearray(records[7])
    broken[4] ^= 1
    records[7] = bytes(broken)
    sizes = np.array([len(record) for record in records], np.int64)
    queue_rows = QueueRows("T", 0, np.arange(20))
    options = parse_options(columns=ALL_COLUMNS, include_properties=True)
    wire = WireRecords(b"".join(records))
    decoded = decode_records(wire, np.cumsum(sizes) - sizes, sizes, options, queue_rows)
    assert [(fault.row, "magic" in fault.reason) for fault in decoded.faults] == [(7, True)]
    table = pa.Table.from_arrays(list(decoded.columns.values()), names=list(decoded.columns))
    reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches())
    expected = [expected_row(record) for number, record in enumerate(records) if number != 7]
    assert as_rows(reader) == expected


# -- the connection ------------------------------------------------------------------------


def serve_bytes(answer: bytes, *, close: bool) -> tuple[str, threading.Thread]:
    """A server for one connection: reads something, sends these bytes."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"

    def run() -> None:
        with listener, listener.accept()[0] as peer:
            peer.recv(65536)
            peer.sendall(answer)
            if not close:
                peer.settimeout(30)
                peer.recv(1)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return address, thread


FRAME = b'{"code":0,"flag":1,"opaque":1}'


@pytest.mark.parametrize(
    ("answer", "close", "error"),
    [
        (struct.pack(">iI", 2, 0), True, RemoteProtocolError),
        (struct.pack(">iI", 1 << 30, 4), True, RemoteProtocolError),
        (struct.pack(">iI", 10, 500), True, RemoteProtocolError),
        (struct.pack(">iI", 4 + len(FRAME), len(FRAME) | 7 << 24) + FRAME, True,
         RemoteProtocolError),
        (struct.pack(">iI", 104 + len(FRAME), len(FRAME)) + FRAME + bytes(60), True,
         ConnectFailed),
        (struct.pack(">iI", 104 + len(FRAME), len(FRAME)) + FRAME + bytes(60), False,
         RequestTimeout),
        (b"", True, ConnectFailed),
    ],
)  # fmt: skip
def test_half_and_wrong_frames_close_the_connection(
    answer: bytes, close: bool, error: type[Exception]
) -> None:
    """Each is one error of the client's, and the connection is of no further use."""
    address, thread = serve_bytes(answer, close=close)
    channel = PipelinedChannel(address)
    channel.post([RemotingCommand.request(1)], 5_000)
    with pytest.raises(error):
        channel.take(1, 300 if error is RequestTimeout else 20_000)
    assert channel.is_closed
    thread.join(30)


def test_answers_in_another_order_find_their_requests() -> None:
    """The body of one that came too early is kept."""
    frames = b""
    for opaque in (3, 2, 1):
        head = b'{"code":0,"flag":1,"opaque":%d}' % opaque
        body = b"%d" % opaque * 100
        frames += struct.pack(">iI", 4 + len(head) + len(body), len(head)) + head + body
    address, thread = serve_bytes(frames, close=True)
    channel = PipelinedChannel(address)
    assert channel.post([RemotingCommand.request(1)] * 3, 5_000) == [1, 2, 3]
    for opaque in (1, 2, 3):
        answer, view = channel.take(opaque, 20_000)
        assert answer.opaque == opaque
        assert bytes(view) == b"%d" % opaque * 100
    channel.close()
    thread.join(30)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("nameServer", "; it is called 'name_server' here"),
        ("subscribe", "; it is called 'topic' here"),
        ("startingOffsets", "; it is called 'starting_offsets' here"),
        ("groupId", "; it is called 'group' here"),
        ("startin_offsets", "; did you mean 'starting_offsets'?"),
        ("xyzzy", ""),
    ],
)
def test_names_of_spark_are_told_as_ours(name: str, ours: str) -> None:
    """Before anything is dialled or opened, also where nothing else was given."""
    given: dict[str, Any] = {name: "x"}
    with pytest.raises(ConfigError) as caught:
        scan(**given)
    assert str(caught.value) == f"scan has no argument {name!r}{ours}"
    with pytest.raises(ConfigError, match="has no argument"):
        scan("no-directory", **given)
