"""A running cluster read as record batches: bounds, spans, faults, lost connections."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from cometmq import Message, MessageQueue
from cometmq.arrow.live import LiveCluster, QueueId
from cometmq.arrow.live_span import read_span
from cometmq.arrow.options import ScanReport, parse_options
from cometmq.errors import ConnectFailed, NoRoute, OffsetOutOfRange
from cometmq.sync import Admin, Producer
from cometmq.testing import EmbeddedCluster, threaded_cluster

COUNT = 300
TOPIC = "Live"


@pytest.fixture(scope="module")
def filled() -> Iterator[EmbeddedCluster]:
    """A cluster with a topic of two queues: 300 messages in the first, none in the second."""
    with threaded_cluster() as cluster:
        with Admin(name_server=cluster.name_server_address) as admin:
            admin.create_topic(TOPIC, queue_count=2)
        with Producer("live", name_server=cluster.name_server_address) as producer:
            for number in range(COUNT):
                message = Message(
                    TOPIC, f"body {number}".encode(), tags="AB"[number % 2], keys=f"k{number}"
                )
                producer.send(message, queue=MessageQueue(TOPIC, "broker-a", 0))
        yield cluster


@pytest.fixture
def live(filled: EmbeddedCluster) -> Iterator[LiveCluster]:
    """Connected to it."""
    with LiveCluster(filled.name_server_address) as cluster:
        yield cluster


def read(live: LiveCluster, queue: QueueId, start: int, end: int, **options: Any) -> pa.Table:
    """A span as one table."""
    report = ScanReport()
    batches = list(read_span(live, queue, start, end, parse_options(**options), report))
    assert report.rows == sum(batch.num_rows for batch in batches)
    return pa.Table.from_batches(batches)


def test_topics_queues_and_bounds(live: LiveCluster) -> None:
    """What the name server and the broker have, in plain values."""
    assert live.topics() == [TOPIC]
    queues = live.queues(TOPIC)
    assert queues == [QueueId(TOPIC, "broker-a", 0), QueueId(TOPIC, "broker-a", 1)]
    assert live.bounds(queues) == {queues[0]: (0, COUNT), queues[1]: (0, 0)}


def test_a_span_holds_its_records_and_no_others(live: LiveCluster) -> None:
    """Start inclusive, end exclusive, whatever the broker's answers were cut into."""
    queue = live.queues(TOPIC)[0]
    table = read(live, queue, 10, 275)
    assert table["queueOffset"].to_pylist() == list(range(10, 275))
    assert table["body"].to_pylist() == [f"body {number}".encode() for number in range(10, 275)]
    assert set(table["broker"].to_pylist()) == {"broker-a"}


def test_tags_choose(live: LiveCluster) -> None:
    """Only messages with the tag, and only up to the end."""
    table = read(live, live.queues(TOPIC)[0], 0, 101, tags="B", columns=["queueOffset", "tags"])
    assert table["queueOffset"].to_pylist() == list(range(1, 101, 2))
    assert set(table["tags"].to_pylist()) == {"B"}


def test_offsets_the_broker_does_not_hold(live: LiveCluster) -> None:
    """The error says what was asked for and what there is, also after a journey by pickle."""
    queue = live.queues(TOPIC)[0]
    with pytest.raises(OffsetOutOfRange, match=r"holds offsets 0 up to 300: 300.*not written yet"):
        read(live, queue, 290, 301)
    with pytest.raises(OffsetOutOfRange) as caught:
        read(live, queue, 900, 901)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert (copy.queue_offset, copy.min_offset, copy.max_offset) == (900, 0, COUNT)


def test_progress_of_a_new_group(live: LiveCluster) -> None:
    """A commit makes the group; what it stored is read back."""
    first, second = live.queues(TOPIC)
    assert live.committed("tracks", [first, second]) == {first: None, second: None}
    live.commit("tracks", {first: 17})
    assert live.committed("tracks", [first])[first] == 17


def test_offset_at_a_time(live: LiveCluster) -> None:
    """The first message stored at or after a time."""
    queue = live.queues(TOPIC)[0]
    assert live.offset_at(queue, 0) == 0
    assert live.offset_at(queue, 2**42) == COUNT


def test_an_unknown_topic_and_an_unreachable_name_server(live: LiveCluster) -> None:
    """One clear error, at once."""
    with pytest.raises(NoRoute, match="Nowhere"):
        live.queues("Nowhere")
    with (
        LiveCluster("127.0.0.1:1") as nobody,
        pytest.raises(ConnectFailed, match="no name server answered"),
    ):
        nobody.topics()


def _bounds(live: LiveCluster, queue: QueueId) -> tuple[int, int]:
    return live.bounds([queue])[queue]


def _end_by_sigterm() -> None:
    """A fork has the handlers of whatever ran in this process before."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_it_travels_to_other_processes(live: LiveCluster) -> None:
    """By pickle to a new process, and by fork with its connections open."""
    queue = live.queues(TOPIC)[0]
    assert _bounds(live, queue) == (0, COUNT)
    for way in ("spawn", "fork"):
        if way not in multiprocessing.get_all_start_methods():
            continue
        with multiprocessing.get_context(way).Pool(1, _end_by_sigterm) as pool:
            assert pool.apply(_bounds, (live, queue)) == (0, COUNT)
    assert _bounds(live, queue) == (0, COUNT)
