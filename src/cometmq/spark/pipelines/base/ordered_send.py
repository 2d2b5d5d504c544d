"""Rows sent into topics in their order, at a rate, with a ledger for the next run.

`replay` and the re-drive of `dead-letters` share this.  One task sends the rows of a source queue
by queue offset, and updates the queue's `LedgerEntry` around each batch.

A batch is sent between two writes of the ledger.  When a run dies in between, the next run reads
the target queue from its end before the batch and searches for the batch's messages: each carries
its origin in the property `REPLAY_OF`.  So no message is lost or sent twice, as long as the target
still holds these messages and the ledger's folder exists.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import threading
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from cometmq.arrow.live import LiveCluster, QueueId
from cometmq.arrow.live_span import read_span
from cometmq.arrow.options import ScanReport, parse_options
from cometmq.codec.properties import split_keys
from cometmq.core.retry.dead_letters import REPLAY_OF
from cometmq.core.topic.selector import select_by_hash
from cometmq.errors import (
    BrokerBusy,
    CometError,
    ConfigError,
    ConnectFailed,
    RequestTimeout,
    SendFailed,
    ServiceNotAvailable,
)
from cometmq.model.message import Message
from cometmq.model.properties import RESERVED_PROPERTIES, SHARDING_KEY
from cometmq.model.queue import MessageQueue
from cometmq.spark.base.reach import Reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from cometmq.spark.base.progress import RunProgress
    from cometmq.sync import Producer

__all__ = [
    "ORDERS",
    "REPLAY_OF",
    "LedgerSender",
    "SendLedger",
    "SendPlan",
    "all_topics",
    "check_targets",
    "default_ledger",
    "preview",
    "send_ordered",
]

ORDERS: Final = ("queue", "group")
SOURCE: Final = ("topic", "broker", "queueId", "queueOffset")
COLUMNS: Final = (*SOURCE, "target", "body", "tags", "keys", "properties")
_BATCH_ROWS_MAX: Final = 500
_BATCH_BYTES_MAX: Final = 1 << 20
"""Well below the broker's limit, so that a batch is one request."""
_ROW_BYTES: Final = 300
_ATTEMPTS: Final = 5
_PAUSE_S: Final = 0.5
_PASSING: Final = (ConnectFailed, RequestTimeout, SendFailed, BrokerBusy, ServiceNotAvailable)
_RESULT_SCHEMA: Final = "queue string, sent long, skipped long, error string"


@dataclass(frozen=True)
class SendPlan:
    """The parameters of the tasks."""

    name_server: str
    settings: tuple[tuple[str, Any], ...] = field(repr=False)
    """Keywords of the clients: keys and TLS."""
    order: str
    """``queue``: a source queue goes to one queue; ``group``: a message group does."""
    queues: dict[str, tuple[tuple[str, int], ...]]
    """Target topic to its queues (broker, queue id), in order."""
    sources: tuple[tuple[str, str, int], ...]
    """All source queues in order: (topic, broker, queue id)."""
    ledger: str
    rate: float | None
    """Messages per second of one task; None for no limit."""

    @property
    def batch_rows(self) -> int:
        """The most messages of a batch: those of a tenth of a second, for an even rate."""
        if self.rate is None:
            return _BATCH_ROWS_MAX
        return max(1, min(_BATCH_ROWS_MAX, int(self.rate / 10)))


@dataclass(slots=True)
class LedgerEntry:
    """The progress of one source queue."""

    next_offset: int = 0
    """Rows below this queue offset have been sent."""
    sent: int = 0
    pending: dict[str, Any] | None = None
    """The batch being sent: its queue offsets, its target, and the target's end before it."""


class SendLedger:
    """A folder with a plan and one file per source queue."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def open(self, plan: dict[str, Any], *, again: bool = False) -> None:
        """Create the ledger, or check that it belongs to this plan.

        Args:
            again: forget what was sent before.

        Raises:
            ConfigError: the ledger belongs to another plan.
        """
        if again:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "plan.json"
        if not path.exists():
            _replace(path, plan)
            return
        before = _load(path)
        changed = [name for name in plan if before.get(name) != plan[name]]
        if changed:
            name = changed[0]
            raise ConfigError(
                f"the ledger {self.folder} belongs to another selection: {name} was"
                f" {before.get(name)!r} and is {plan[name]!r}. Name another --ledger"
            )

    def path(self, source: tuple[str, str, int]) -> Path:
        """The file of a source queue."""
        topic, broker, queue_id = source
        return self.folder / f"{quote(topic, safe='')}@{quote(broker, safe='')}@{queue_id}.json"

    def entry(self, source: tuple[str, str, int]) -> LedgerEntry:
        """The entry of a source queue; a fresh one if the ledger has none.

        Raises:
            ConfigError: the entry's file is damaged.
        """
        path = self.path(source)
        return LedgerEntry(**_load(path)) if path.exists() else LedgerEntry()

    def put(self, source: tuple[str, str, int], entry: LedgerEntry) -> None:
        """Write an entry atomically."""
        _replace(self.path(source), asdict(entry))

    def sent(self) -> int:
        """The number of messages sent from all source queues."""
        return sum(_load(path)["sent"] for path in self.folder.glob("*@*@*.json"))


def _replace(path: Path, document: dict[str, Any]) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("w", encoding="utf-8") as file:
        json.dump(document, file, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _load(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is no ledger: {error}") from None
    return document


def default_ledger(folder: str | Path, plan: dict[str, Any]) -> Path:
    """The ledger's folder when none is named; the same selection has the same folder."""
    text = json.dumps(plan, sort_keys=True)
    return Path(folder) / "_ledgers" / hashlib.sha256(text.encode()).hexdigest()[:16]


# -- on the driver ---------------------------------------------------------------------------


@dataclass(slots=True)
class ReplayResult:
    """The counts of one run."""

    sent: int = 0
    skipped: int = 0
    """Rows that an earlier run has sent."""
    queues: dict[str, int] = field(default_factory=dict)
    """Rows sent by this run, by source queue."""


def preview(frame: Any) -> list[dict[str, Any]]:
    """The dry run: counts of the rows to send, by source topic, queue and target."""
    from pyspark.sql import functions as sql

    rows = (
        frame.groupBy("target", "topic", "broker", "queueId")
        .agg(
            sql.count("*").alias("messages"),
            sql.sum(sql.length("body")).alias("body_bytes"),
            sql.min("storeTimestamp").alias("first_stored"),
            sql.max("storeTimestamp").alias("last_stored"),
        )
        .orderBy("target", "topic", "broker", "queueId")
        .collect()
    )
    return [
        {
            "target": row["target"],
            "source": str(QueueId(row["topic"], row["broker"], row["queueId"])),
            "messages": row["messages"],
            "body_bytes": row["body_bytes"] or 0,
            "first_stored": str(row["first_stored"]),
            "last_stored": str(row["last_stored"]),
        }
        for row in rows
    ]


def check_targets(
    name_server: str, settings: tuple[tuple[str, Any], ...], targets: Iterable[str]
) -> dict[str, tuple[tuple[str, int], ...]]:
    """The queues (broker, queue id) of each target topic.

    Raises:
        NoRoute: a topic is unknown.
    """
    with LiveCluster(name_server, **dict(settings)) as cluster:
        return {
            target: tuple((q.broker, q.queue_id) for q in sorted(cluster.queues(target)))
            for target in sorted(set(targets))
        }


def all_topics(name_server: str, settings: tuple[tuple[str, Any], ...]) -> list[str]:
    """The topics of the cluster, including retry and dead-letter topics."""
    from cometmq.sync import Admin

    with Admin(name_server=name_server, **dict(settings)) as admin:
        return admin.topic_list(include_system=True)


def send_ordered(
    spark: Any,
    frame: Any,
    ledger: SendLedger,
    *,
    name_server: str,
    settings: tuple[tuple[str, Any], ...] = (),
    order: str = "queue",
    rate: float | None = None,
    progress: RunProgress | None = None,
) -> ReplayResult:
    """Send the rows of a DataFrame with `COLUMNS`, with an open ledger.

    Raises:
        ConfigError: an unknown order or a rate that is not positive.
        NoRoute: a target topic is unknown; nothing was sent.
        CometError: a broker refused or did not answer; the ledger holds what was sent.
    """
    if order not in ORDERS:
        raise ConfigError(f"order {order!r} is unknown: expected queue or group")
    if rate is not None and rate <= 0:
        raise ConfigError(f"a rate of {rate} messages per second would never end")
    frame = frame.select(*COLUMNS)
    pairs = _extents(frame)
    sources = sorted({(row["topic"], row["broker"], row["queueId"]) for row in pairs})
    queues = check_targets(name_server, settings, {row["target"] for row in pairs})
    if not sources:
        return ReplayResult()
    tasks = max(1, min(len(sources), spark.sparkContext.defaultParallelism))
    plan = SendPlan(
        name_server,
        settings,
        order,
        queues,
        tuple(sources),
        str(ledger.folder.absolute()),
        None if rate is None else rate / tasks,
    )
    ordered = frame.repartition(tasks, "topic", "broker", "queueId").sortWithinPartitions(*SOURCE)
    job = ordered.mapInArrow(partial(_run, plan), _RESULT_SCHEMA)
    with _watched(ledger, progress, pairs):
        rows = job.collect()
    result = ReplayResult()
    for row in rows:
        if row["error"]:
            raise CometError(row["error"])
        result.sent += row["sent"]
        result.skipped += row["skipped"]
        if row["sent"]:
            result.queues[row["queue"]] = result.queues.get(row["queue"], 0) + row["sent"]
    if progress is not None:
        progress.update(result.sent)
        progress.finish()
    return result


def _extents(frame: Any) -> list[Any]:
    """Per source queue and target: number of rows, first and last queue offset."""
    from pyspark.sql import functions as sql

    rows: list[Any] = (
        frame.groupBy("topic", "broker", "queueId", "target")
        .agg(
            sql.count("*").alias("messages"),
            sql.min("queueOffset").alias("first"),
            sql.max("queueOffset").alias("last"),
        )
        .collect()
    )
    return rows


@contextlib.contextmanager
def _watched(ledger: SendLedger, progress: RunProgress | None, pairs: list[Any]) -> Iterator[None]:
    """Show the tasks' progress twice a second, from their ledger entries."""
    if progress is None:
        yield
        return
    names = {}
    reach = Reach({}, None)
    for row in pairs:
        source = (row["topic"], row["broker"], row["queueId"])
        names[source] = name = f"{row['topic']} {row['broker']}:{row['queueId']}"
        reach.include(name, row["first"], row["last"] + 1)
    progress.reaches = [reach]
    begin = sum(ledger.entry(source).sent for source in names)
    progress.update(0, total=max(0, sum(row["messages"] for row in pairs) - begin))
    stop = threading.Event()

    def poll() -> None:
        while not stop.wait(0.5):
            entries = {name: ledger.entry(source) for source, name in names.items()}
            reach.move({name: entry.next_offset for name, entry in entries.items()})
            progress.update(sum(entry.sent for entry in entries.values()) - begin)

    watcher = threading.Thread(target=poll, name="pipeline-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()


# -- in the tasks ----------------------------------------------------------------------------


def _run(plan: SendPlan, batches: Iterator[Any]) -> Iterator[Any]:
    """Send the rows of a partition, in an executor's worker."""
    import pyarrow as pa

    from cometmq.sync import Producer

    counts: dict[str, list[int]] = {}
    fault = ""
    try:
        settings = dict(plan.settings)
        with (
            LiveCluster(plan.name_server, **settings) as cluster,
            Producer(
                "cometmq-replay", name_server=plan.name_server, retries=0, **settings
            ) as producer,
        ):
            for source, sent, skipped in LedgerSender(plan, producer, cluster).send(batches):
                count = counts.setdefault(str(QueueId(*source)), [0, 0])
                count[0] += sent
                count[1] += skipped
    except (CometError, OSError) as error:
        fault = str(error) or type(error).__name__
    names = [*counts, *([""] if fault else [])]
    yield pa.RecordBatch.from_pydict(
        {
            "queue": pa.array(names, pa.string()),
            "sent": pa.array([counts.get(name, [0, 0])[0] for name in names], pa.int64()),
            "skipped": pa.array([counts.get(name, [0, 0])[1] for name in names], pa.int64()),
            "error": pa.array([None if name else fault for name in names], pa.string()),
        }
    )


class LedgerSender:
    """Sends rows in the order of `SOURCE`, batch by batch.

    `on_point`, `sleep` and `now` are for tests.  The producer must not retry by itself: after a
    fault the sender must first find out whether the batch arrived.
    """

    def __init__(
        self,
        plan: SendPlan,
        producer: Producer,
        cluster: LiveCluster,
        *,
        on_point: Callable[[str], None] = lambda name: None,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._producer = producer
        self._cluster = cluster
        self._ledger = SendLedger(plan.ledger)
        self._entries: dict[tuple[str, str, int], LedgerEntry] = {}
        self._on_point = on_point
        self._sleep = sleep
        self._now = now
        self._begin = now()
        self._passed = 0

    def send(self, batches: Iterator[Any]) -> Iterator[tuple[tuple[str, str, int], int, int]]:
        """Send rows; yields (source queue, sent, skipped) after each batch.

        Raises:
            CometError: a broker refused or did not answer.
        """
        for batch in batches:
            rows = batch.select(list(COLUMNS)).to_pylist()
            for source, batch_rows, target in _runs(self._plan, rows):
                entry = self._entry(source)
                fresh = [row for row in batch_rows if row["queueOffset"] >= entry.next_offset]
                if fresh:
                    self._wait_for_turn()
                    self._send(source, entry, fresh, target)
                    self._passed += len(fresh)
                yield source, len(fresh), len(batch_rows) - len(fresh)

    def _wait_for_turn(self) -> None:
        if self._plan.rate is not None:
            early = self._begin + self._passed / self._plan.rate - self._now()
            if early > 0:
                self._sleep(early)

    def _send(
        self,
        source: tuple[str, str, int],
        entry: LedgerEntry,
        rows: list[dict[str, Any]],
        target: MessageQueue,
    ) -> None:
        """Write the pending batch into the ledger, send it, write it as sent."""
        queue = QueueId(*target)
        pending = entry.pending = {
            "first": rows[0]["queueOffset"],
            "end": rows[-1]["queueOffset"] + 1,
            "target": list(queue),
            "from": self._cluster.bounds([queue])[queue][1],
        }
        self._ledger.put(source, entry)
        self._on_point("written-down")
        unsent = rows
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._producer.send_batch(
                    [_message(source, row, target.topic) for row in unsent], queue=target
                )
                break
            except _PASSING:
                self._count_arrived(source, entry, pending)
                unsent = [row for row in unsent if row["queueOffset"] >= entry.next_offset]
                if not unsent:
                    break
                if attempt == _ATTEMPTS:
                    raise
                self._sleep(attempt * _PAUSE_S)
        self._on_point("sent")
        entry.sent += len(unsent)
        entry.next_offset = rows[-1]["queueOffset"] + 1
        entry.pending = None
        self._ledger.put(source, entry)
        self._on_point("counted")

    def _entry(self, source: tuple[str, str, int]) -> LedgerEntry:
        """A source queue's entry, after checking whether its pending batch arrived."""
        entry = self._entries.get(source)
        if entry is None:
            entry = self._entries[source] = self._ledger.entry(source)
            if entry.pending is not None:
                self._count_arrived(source, entry, entry.pending)
                entry.pending = None
                self._ledger.put(source, entry)
        return entry

    def _count_arrived(
        self, source: tuple[str, str, int], entry: LedgerEntry, pending: dict[str, Any]
    ) -> None:
        """Count the pending messages that the target queue holds; a queue keeps their order."""
        queue = QueueId(*pending["target"])
        low, high = self._cluster.bounds([queue])[queue]
        start = max(low, pending["from"])
        name = str(QueueId(*source))
        arrived = set()
        for origin in _origins(self._cluster, queue, start, high):
            source_name, _, queue_offset = origin.rpartition(":")
            if (
                source_name == name
                and max(pending["first"], entry.next_offset) <= int(queue_offset) < pending["end"]
            ):
                arrived.add(int(queue_offset))
        if arrived:
            entry.sent += len(arrived)
            entry.next_offset = max(arrived) + 1


def _runs(
    plan: SendPlan, rows: list[dict[str, Any]]
) -> Iterator[tuple[tuple[str, str, int], list[dict[str, Any]], MessageQueue]]:
    """Batches of consecutive rows of one source queue that go to the same target queue."""
    route: tuple[tuple[str, str, int], MessageQueue] | None = None
    batch: list[dict[str, Any]] = []
    size_bytes = 0
    for row in rows:
        source = (row["topic"], row["broker"], row["queueId"])
        row_route = (source, _target(plan, source, row))
        size = len(row["body"] or b"") + _ROW_BYTES
        is_full = len(batch) >= plan.batch_rows or size_bytes + size > _BATCH_BYTES_MAX
        if route is not None and (row_route != route or is_full):
            yield route[0], batch, route[1]
            batch, size_bytes = [], 0
        route = row_route
        batch.append(row)
        size_bytes += size
    if route is not None:
        yield route[0], batch, route[1]


def _target(plan: SendPlan, source: tuple[str, str, int], row: dict[str, Any]) -> MessageQueue:
    """The target queue of a row: by message group, with the same name, or by source index."""
    topic = row["target"]
    queues = plan.queues[topic]
    group = dict(row["properties"] or ()).get(SHARDING_KEY)
    if plan.order == "group" and group:
        return select_by_hash([MessageQueue(topic, *queue) for queue in queues], group)
    if source[1:] in queues:
        return MessageQueue(topic, *source[1:])
    return MessageQueue(topic, *queues[plan.sources.index(source) % len(queues)])


def _origin(source: tuple[str, str, int], row: dict[str, Any]) -> str:
    return f"{QueueId(*source)}:{row['queueOffset']}"


def _message(source: tuple[str, str, int], row: dict[str, Any], topic: str) -> Message:
    """An ordinary message with the row's user properties, tag, keys and group, and its origin."""
    properties = dict(row["properties"] or ())
    own = {name: value for name, value in properties.items() if name not in RESERVED_PROPERTIES}
    own[REPLAY_OF] = _origin(source, row)
    return Message(
        topic,
        row["body"],
        tags=row["tags"] or None,
        keys=split_keys(row["keys"] or ""),
        properties=own,
        message_group=properties.get(SHARDING_KEY),
    )


def _origins(cluster: LiveCluster, queue: QueueId, start: int, end: int) -> set[str]:
    """The origins of the messages in a range of a target queue."""
    options = parse_options(
        topic=queue.topic,
        broker=queue.broker,
        queues=None,
        starting_offsets="earliest",
        ending_offsets="latest",
        starting_timestamp=None,
        ending_timestamp=None,
        tags=None,
        columns=("properties",),
        include_properties=True,
        mode="DROPMALFORMED",
        batch_rows=4_096,
        check_crc=False,
    )
    origins: set[str] = set()
    for batch in read_span(cluster, queue, start, end, options, ScanReport(), skip_expired=True):
        for properties in batch.column(0).to_pylist():
            origins |= {value for name, value in properties or () if name == REPLAY_OF}
    return origins
