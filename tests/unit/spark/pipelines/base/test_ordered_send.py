"""Rows into topics: in order, at a rate, and neither lost nor repeated when a run dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cometmq.arrow.live import LiveCluster
from cometmq.arrow.live_span import read_span
from cometmq.arrow.options import ScanReport, parse_options
from cometmq.errors import ConfigError, NoRoute, RequestTimeout
from cometmq.spark.pipelines.base.ordered_send import (
    COLUMNS,
    REPLAY_OF,
    LedgerSender,
    SendLedger,
    SendPlan,
    check_targets,
)
from cometmq.sync import Admin, Producer
from cometmq.testing import threaded_cluster

SOURCES = (("Old", "broker-x", 0), ("Old", "broker-x", 1), ("Old", "broker-y", 0))
ROWS = 130


class Killed(BaseException):
    """What ends a run in a test."""


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster for this file."""
    path = str(tmp_path_factory.mktemp("cluster") / "store")
    with threaded_cluster(store_path=path) as cluster:
        yield cluster.name_server_address


@pytest.fixture
def topic(name_server: str, request: pytest.FixtureRequest) -> str:
    """A topic with two queues for one test."""
    name = f"T{abs(hash(request.node.name)):x}"
    with Admin(name_server=name_server) as admin:
        admin.create_topic(name, queue_count=2)
    return name


def rows(topic: str, sources: tuple[tuple[str, str, int], ...] = SOURCES) -> Iterator[Any]:
    """Batches as Spark hands them over: source queue by source queue, by offset."""
    listed = [
        {
            "topic": source[0],
            "broker": source[1],
            "queueId": source[2],
            "queueOffset": 1_000 + number,
            "target": topic,
            "body": f"{source[1]}:{source[2]}/{number}".encode(),
            "tags": "T" if number % 2 else None,
            "keys": f"k{number} all" if number % 3 else None,
            "properties": [
                ("mine", str(number)),
                ("UNIQ_KEY", "x"),
                ("__SHARDINGKEY", f"g{number % 3}"),
            ],
        }
        for source in sources
        for number in range(ROWS)
    ]
    schema = pa.schema(
        [
            *[(name, pa.string()) for name in ("topic", "broker")],
            ("queueId", pa.int32()),
            ("queueOffset", pa.int64()),
            ("target", pa.string()),
            ("body", pa.binary()),
            ("tags", pa.string()),
            ("keys", pa.string()),
            ("properties", pa.map_(pa.string(), pa.string())),
        ]
    )
    assert tuple(schema.names) == COLUMNS
    for first in range(0, len(listed), 100):
        yield pa.RecordBatch.from_pylist(listed[first : first + 100], schema=schema)


def send(
    name_server: str,
    topic: str,
    folder: Path,
    *,
    order: str = "queue",
    rate: float | None = 500,
    producer: Any = None,
    **hooks: Any,
) -> tuple[int, int]:
    """(sent, skipped) of one run; a rate of 500 makes batches of 50."""
    SendLedger(folder).open({"for": topic})
    queues = check_targets(name_server, (), [topic])
    plan = SendPlan(name_server, (), order, queues, SOURCES, str(folder), rate)
    hooks.setdefault("sleep", lambda seconds: None)
    sent = skipped = 0
    with (
        LiveCluster(name_server) as cluster,
        Producer("replay-test", name_server=name_server, retries=0) as own,
    ):
        for _, new, old in LedgerSender(plan, producer or own, cluster, **hooks).send(rows(topic)):
            sent += new
            skipped += old
    return sent, skipped


def stored(name_server: str, topic: str) -> dict[int, list[dict[str, Any]]]:
    """What the target holds, by queue, in order."""
    options = parse_options(
        topic=topic,
        broker=None,
        queues=None,
        starting_offsets="earliest",
        ending_offsets="latest",
        starting_timestamp=None,
        ending_timestamp=None,
        tags=None,
        columns=("queueId", "body", "tags", "keys", "properties"),
        include_properties=True,
        mode="FAILFAST",
        batch_rows=10_000,
        check_crc=False,
    )
    found: dict[int, list[dict[str, Any]]] = {}
    with LiveCluster(name_server) as cluster:
        for queue, (low, high) in cluster.bounds(cluster.queues(topic)).items():
            for batch in read_span(cluster, queue, low, high, options, ScanReport()):
                for row in batch.to_pylist():
                    row["properties"] = dict(row["properties"])
                    found.setdefault(queue.queue_id, []).append(row)
    return found


def bodies(name_server: str, topic: str) -> list[bytes]:
    """All bodies, by queue and offset."""
    return [row["body"] for queue in stored(name_server, topic).values() for row in queue]


def expected() -> set[bytes]:
    """One of each."""
    return {
        f"{broker}:{queue_id}/{number}".encode()
        for _, broker, queue_id in SOURCES
        for number in range(ROWS)
    }


def test_source_queues_keep_their_order(name_server: str, topic: str, tmp_path: Path) -> None:
    """Every message once, each source queue into one queue in its order, with what it carried."""
    assert send(name_server, topic, tmp_path / "ledger") == (3 * ROWS, 0)
    queues = stored(name_server, topic)
    assert set(bodies(name_server, topic)) == expected()
    assert len(bodies(name_server, topic)) == 3 * ROWS
    for _, broker, queue_id in SOURCES:
        name = f"{broker}:{queue_id}/"
        holding = [
            [row for row in queue if row["body"].decode().startswith(name)]
            for queue in queues.values()
        ]
        (whole,) = [part for part in holding if part]
        assert [row["body"].decode() for row in whole] == [f"{name}{n}" for n in range(ROWS)]
        row = whole[1]
        assert (row["tags"], row["keys"]) == ("T", "k1 all")
        assert row["properties"]["mine"] == "1"
        assert row["properties"]["UNIQ_KEY"] != "x"
        assert row["properties"][REPLAY_OF] == f"Old@{broker}:{queue_id}:1001"


def test_message_groups_come_to_one_queue(name_server: str, topic: str, tmp_path: Path) -> None:
    """With order=group a group's messages are in one queue, in order per source queue."""
    send(name_server, topic, tmp_path / "ledger", order="group")
    queues = stored(name_server, topic)
    for group in ("g0", "g1", "g2"):
        holding = [
            [row for row in queue if row["properties"]["__SHARDINGKEY"] == group]
            for queue in queues.values()
        ]
        (whole,) = [part for part in holding if part]
        for _, broker, queue_id in SOURCES:
            name = f"{broker}:{queue_id}/"
            numbers = [
                int(row["properties"]["mine"])
                for row in whole
                if row["body"].decode().startswith(name)
            ]
            assert numbers == sorted(numbers)
            assert numbers


@pytest.mark.parametrize("point", ["written-down", "sent", "counted"])
def test_the_next_run_continues_after_a_run_that_dies(
    point: str, name_server: str, topic: str, tmp_path: Path
) -> None:
    """Before and after a send, and before and after it is written down: each message once."""
    seen: list[str] = []

    def on_point(name: str) -> None:
        seen.append(name)
        if name == point and seen.count(point) == 4:
            raise Killed

    with pytest.raises(Killed):
        send(name_server, topic, tmp_path / "ledger", on_point=on_point)
    assert seen.count(point) == 4
    before = len(bodies(name_server, topic))
    assert 0 < before < 3 * ROWS
    sent, skipped = send(name_server, topic, tmp_path / "ledger")
    assert (sent, skipped) == (3 * ROWS - before, before)
    assert sorted(bodies(name_server, topic)) == sorted(expected())
    assert send(name_server, topic, tmp_path / "ledger") == (0, 3 * ROWS)


def test_a_lost_answer_is_no_second_message(name_server: str, topic: str, tmp_path: Path) -> None:
    """A request that arrived and was not answered is found in the queue and not sent again."""

    class Unlucky:
        """Sends, and then says that nobody answered; or says so without sending."""

        def __init__(self, producer: Producer) -> None:
            self.producer = producer
            self.calls = 0

        def send_batch(self, messages: Any, *, queue: Any) -> Any:
            """Every second call loses its answer, every third its request."""
            self.calls += 1
            if self.calls % 3:
                result = self.producer.send_batch(messages, queue=queue)
            if self.calls % 3 == 0 or self.calls % 2 == 0:
                raise RequestTimeout("no answer")
            return result

    with Producer("unlucky", name_server=name_server) as producer:
        unlucky = Unlucky(producer)
        send(name_server, topic, tmp_path / "ledger", producer=unlucky)
    assert unlucky.calls > 6
    assert sorted(bodies(name_server, topic)) == sorted(expected())


def test_the_rate_is_kept(name_server: str, topic: str, tmp_path: Path) -> None:
    """At 100 a second a batch is a tenth of that, and waits add up to what is left to wait."""
    clock = [0.0]
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock[0] += seconds

    send(name_server, topic, tmp_path / "ledger", rate=100, sleep=sleep, now=lambda: clock[0])
    assert sum(waits) == pytest.approx((3 * ROWS - 10) / 100)
    assert max(waits) <= 0.2


def test_a_ledger_belongs_to_one_selection(tmp_path: Path) -> None:
    """Another selection would skip what it never sent."""
    ledger = SendLedger(tmp_path / "ledger")
    ledger.open({"slice": {"tags": ["UA"]}})
    ledger.open({"slice": {"tags": ["UA"]}})
    with pytest.raises(ConfigError, match="belongs to another selection: slice was"):
        ledger.open({"slice": {"tags": ["AA"]}})


def test_unknown_targets_are_named(name_server: str) -> None:
    """Before anything is sent."""
    with pytest.raises(NoRoute, match="NoSuchTopic"):
        check_targets(name_server, (), ["NoSuchTopic"])
