"""Messages that retention deleted before a stream read them: an error, or a gap that is told."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.waiting import wait_until
from tests.raw_client import RawClient
from tests.spark.clusters import Cluster

from cometmq.arrow.options import COLUMNS
from cometmq.errors import OffsetOutOfRange
from cometmq.spark.live.options import LiveOptions
from cometmq.spark.live.ranges import QueueRange, read_range
from cometmq.spark.live.stream_source import LiveStreamReader
from cometmq.testing import threaded_cluster

DELETE_EXPIRED_COMMITLOG = 329
MIN_OFFSET = 31
MESSAGES = 3_000
SETTINGS = {"mappedFileSizeCommitLog": 1 << 20, "fileReservedTime": 1}


@pytest.fixture(scope="module")
def shrunk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str, int]]:
    """A cluster whose topic has lost its first messages; the topic, its first offset."""
    store = tmp_path_factory.mktemp("shrunk") / "store"
    with threaded_cluster(SETTINGS, store_path=str(store)) as embedded:
        cluster = Cluster(embedded.name_server_address, str(store), embedded.broker_address)
        topic = cluster.create(queues=1)
        for start in range(0, MESSAGES, 300):
            numbers = range(start, start + 300)
            cluster.send(topic, (b"%04d" % n + bytes(1000) for n in numbers), queues=1)
        first = forget_oldest(cluster, topic, store)
        yield cluster, topic, first
        cluster.close()


def forget_oldest(cluster: Cluster, topic: str, store: Path) -> int:
    """Let the two oldest log files expire; the queue's first offset after that."""
    files = sorted((store / "commitlog").iterdir())
    two_hours_ago = time.clock_gettime(time.CLOCK_REALTIME) - 7_200
    for path in files[:2]:
        os.utime(path, (two_hours_ago, two_hours_ago))
    first = 0
    with RawClient(cluster.broker_address) as client:

        def has_deleted() -> bool:
            nonlocal first
            client.call(DELETE_EXPIRED_COMMITLOG, {})
            answer = client.call(MIN_OFFSET, {"topic": topic, "queueId": "0"})
            first = int(answer.ext_fields["offset"])
            return first > 0 and not files[1].exists()

        wait_until(has_deleted, lambda: "retention did not delete the oldest files")
    return first


def options(cluster: Cluster, topic: str, **more: str) -> LiveOptions:
    """A stream's options."""
    given = {"nameServer": cluster.name_server, "subscribe": topic, **more}
    return LiveOptions.parse(given, COLUMNS, is_stream=True)


def test_gap_stops_the_query(shrunk: tuple[Cluster, str, int]) -> None:
    """The error names the deleted offsets and how to continue."""
    cluster, topic, first = shrunk
    made = LiveStreamReader(options(cluster, topic))
    with pytest.raises(OffsetOutOfRange) as raised:
        made.partitions({topic: {"broker-a:0": 3}}, {topic: {"broker-a:0": MESSAGES}})
    assert f"offsets 3 up to {first} ({first - 3} messages) were deleted" in str(raised.value)
    assert "failOnDataLoss=false continues after the gap" in str(raised.value)


def test_gap_is_passed_over_and_told(
    shrunk: tuple[Cluster, str, int], caplog: pytest.LogCaptureFixture
) -> None:
    """The remaining messages are read in full, and the log has the number of deleted ones."""
    cluster, topic, first = shrunk
    made = LiveStreamReader(options(cluster, topic, failOnDataLoss="false"))
    with caplog.at_level(logging.WARNING):
        (only,) = made.partitions({topic: {"broker-a:0": 3}}, {topic: {"broker-a:0": MESSAGES}})
    assert f"({first - 3} messages) were deleted" in caplog.text
    assert isinstance(only, QueueRange)
    assert (only.start, only.end) == (first, MESSAGES)
    assert sum(batch.num_rows for batch in made.read(only)) == MESSAGES - first


def test_gap_that_opens_while_a_task_reads(
    shrunk: tuple[Cluster, str, int], caplog: pytest.LogCaptureFixture
) -> None:
    """Planned with the messages, read without them: the same two ways."""
    cluster, topic, first = shrunk
    planned = QueueRange(topic, "broker-a", 0, 0, MESSAGES)
    with pytest.raises(OffsetOutOfRange, match="has expired"):
        list(read_range(options(cluster, topic), planned))
    with caplog.at_level(logging.WARNING):
        batches = list(read_range(options(cluster, topic, failOnDataLoss="false"), planned))
    assert sum(batch.num_rows for batch in batches) == MESSAGES - first
    assert f"{first} messages were deleted before they were read" in caplog.text
