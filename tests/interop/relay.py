"""One store directory that a Java broker and ours use in turn, and a reading of all its contents.

Job: start either broker on the same directory under the same name and address, stop or kill it,
and read a broker's whole store over the wire: ends of queues, records byte by byte, offsets by
time, keys, consumer offsets.
Must not: contain a scenario.
"""

import contextlib
import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from interop.servers import Cluster, JavaCluster, OurCluster

import cometmq.sync
from cometmq.codec.stored_message import StoredMessage, decode_messages
from cometmq.errors import CodecError, CometError, NoRoute
from cometmq.net.blocking import BlockingChannel
from cometmq.net.env import system_environment
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.command.fastjson import loads_object

__all__ = ["LOG_FILE_BYTES", "QueueReading", "Reading", "Relay", "now_ms"]

LOG_FILE_BYTES: Final = 1 << 18
_SHARED: Final = {
    "brokerClusterName": "DefaultCluster",
    "mappedFileSizeCommitLog": str(LOG_FILE_BYTES),
    "mappedFileSizeConsumeQueue": "6000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
    "maxMessageSize": "200000",
    "messageDelayLevel": "1s 6s 1h",
    # A full disk of the test machine must not end a test.
    "diskMaxUsedSpaceRatio": "95",
    "cleanResourceInterval": "1000",
    "flushConsumerOffsetInterval": "500",
}
_JAVA: Final = {
    "timerWheelEnable": "true",
    "mappedFileSizeTimerLog": "4096",
    "enablePropertyFilter": "true",
    # No producer is asked about a transaction unless a scenario wants it (a stop asks, too).
    "transactionCheckInterval": "600000",
    "transactionTimeOut": "3600000",
    "transactionCheckMax": "10000",
    "transactionOpBatchInterval": "200",
}
_TABLES: Final = {
    "topics.json": "topicConfigTable",
    "subscriptionGroup.json": "subscriptionGroupTable",
}
_READY_TIMEOUT_S: Final = 90.0
_DELETED_TIMEOUT_S: Final = 120.0
_PULL_COUNT: Final = 32


def now_ms() -> int:
    """The wall clock, which both brokers use."""
    return system_environment().clock.now_ms()


@dataclass
class QueueReading:
    """One queue: ends, first store time, each message as stored, offsets by time."""

    queue_id: int
    min_offset: int
    max_offset: int
    earliest_ms: int
    records: dict[int, bytes] = field(default_factory=dict)
    by_time: dict[tuple[int, str], int] = field(default_factory=dict)

    def differences(self, other: Self) -> list[str]:
        """The differences between two brokers' readings of this queue."""
        ends = [
            f"{name}: {getattr(self, name)} and {getattr(other, name)}"
            for name in ("min_offset", "max_offset", "earliest_ms")
            if getattr(self, name) != getattr(other, name)
        ]
        records = [
            f"message {place}"
            for place in sorted(self.records | other.records)
            if self.records.get(place) != other.records.get(place)
        ]
        times = [
            f"{where}: {self.by_time.get(where)} and {other.by_time.get(where)}"
            for where in sorted(self.by_time | other.by_time)
            if self.by_time.get(where) != other.by_time.get(where)
        ]
        return ends + records + times

    def messages(self) -> list[StoredMessage]:
        """The records, decoded."""
        return [message for raw in self.records.values() for message in decode_messages(raw)]


@dataclass
class Reading:
    """The contents of a whole store, read from a broker."""

    queues: dict[tuple[str, int], QueueReading] = field(default_factory=dict)
    by_key: dict[tuple[str, str, str], list[str]] = field(default_factory=dict)
    """Topic, key and index type to digests of the records found, in their order."""
    by_place: dict[int, str] = field(default_factory=dict)
    consumer_offsets: dict[tuple[str, str, int], str] = field(default_factory=dict)
    settings: dict[tuple[str, str], Any] = field(default_factory=dict)
    """Topics and groups as the files have them."""

    def check_same(self, other: Self, *, besides: Iterable[str] = ()) -> None:
        """Check that every answer is the same; the error names differences.

        Topics in `besides` have new messages; their earlier messages must be there.
        """
        for key, queue in self.queues.items():
            if key[0] not in besides:
                faults = queue.differences(other.queues[key])
                assert faults == [], f"{key} reads differently: {faults}"
        assert {key[0] for key in set(other.queues) - set(self.queues)} <= set(besides)
        assert self.by_key == other.by_key
        self.check_kept(other)
        faults = [
            f"{where}: {self.consumer_offsets.get(where)} and {other.consumer_offsets.get(where)}"
            for where in sorted(self.consumer_offsets | other.consumer_offsets)
            if self.consumer_offsets.get(where) != other.consumer_offsets.get(where)
            # A stopping Java broker looks through the transactions once more.
            and where[0] != "CID_RMQ_SYS_TRANS"
        ]
        assert faults == []

    def check_kept(self, later: Self) -> None:
        """Check that `later` has every record of this reading, unchanged and under its offset."""
        for key, queue in self.queues.items():
            after = later.queues[key]
            assert after.min_offset == queue.min_offset, key
            assert after.max_offset >= queue.max_offset, key
            for place, raw in queue.records.items():
                assert after.records.get(place) == raw, f"{key}: message {place} changed"
        assert self.by_place.items() <= later.by_place.items()
        for which, setting in self.settings.items():
            assert later.settings.get(which) == setting, which
        for where, value in self.consumer_offsets.items():
            assert int(later.consumer_offsets[where]) >= int(value), where


class Relay:
    """The directory, a name server of ours, and both brokers, of which one runs at a time."""

    def __init__(self, folder: Path) -> None:
        self.names = OurCluster(folder / "names")
        self.java = JavaCluster(folder / "java", self.names, settings=_SHARED | _JAVA)
        self.ours = OurCluster(folder / "ours", self.names, settings=_SHARED)
        self.store_path = folder / "store"
        for cluster in (self.java, self.ours):
            cluster.store_path = self.store_path
            cluster.broker_port = self.java.broker_port
        self.holder: Cluster | None = None
        self.admin: cometmq.sync.Admin | None = None

    def __enter__(self) -> Self:
        self.names.start_name_server()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave_admin()
        for cluster in (self.java, self.ours, self.names):
            cluster.close()

    @property
    def name_server(self) -> str:
        """`host:port` of the name server, for clients."""
        return self.names.name_server

    @property
    def broker_name(self) -> str:
        """The name both brokers have."""
        return self.java.broker_name

    # -- who has it -------------------------------------------------------------------------

    def take(self, cluster: Cluster) -> None:
        """Start a broker on the directory; return when it is registered."""
        assert self.holder is None
        cluster.start_broker()
        self.holder = cluster
        self.admin = cometmq.sync.Admin(name_server=self.name_server)
        self.admin.start()
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while True:
            try:
                self.admin.topic_route("TBW102")
                self.ask(RequestCode.GET_MAX_OFFSET, topic="TBW102", queueId=0)
                return
            except (NoRoute, CometError, OSError):
                assert time.monotonic() < deadline, f"{cluster.kind} does not serve"
                time.sleep(0.05)

    def give(self, number: int = signal.SIGTERM) -> None:
        """Stop the broker of the directory."""
        assert self.holder is not None
        self._leave_admin()
        self.holder.stop_broker(number)
        self.holder = None

    def _leave_admin(self) -> None:
        if self.admin is not None:
            self.admin.shutdown()
            self.admin = None

    @contextmanager
    def held_by(self, cluster: Cluster, end: int = signal.SIGTERM) -> Iterator[None]:
        """Run a broker on the directory during the block."""
        self.take(cluster)
        yield
        self.give(end)

    def log_of(self, cluster: Cluster) -> str:
        """The output of a broker."""
        return (cluster.folder / "broker.log").read_text("utf-8", "replace")

    # -- questions --------------------------------------------------------------------------

    def ask(self, code: int, *, body: bytes = b"", **ext: Any) -> RemotingCommand:
        """One request to the broker, over a connection of its own."""
        channel = BlockingChannel(f"127.0.0.1:{self.java.broker_port}")
        try:
            return self._ask(channel, code, ext, body)
        finally:
            channel.close()

    @staticmethod
    def _ask(
        channel: BlockingChannel, code: int, ext: Mapping[str, Any], body: bytes = b""
    ) -> RemotingCommand:
        texts = {name: str(value) for name, value in ext.items()}
        return channel.request(RemotingCommand.request(code, texts, body), 10_000)

    def topics(self) -> dict[str, int]:
        """Topics and their queues, by the file both brokers write."""
        table = self.config("topics.json")["topicConfigTable"]
        queue_counts = {name: int(topic["readQueueNums"]) for name, topic in table.items()}
        queue_counts.pop("BenchmarkTest", None)  # 1024 empty queues
        return queue_counts

    def config(self, name: str) -> dict[str, Any]:
        """A configuration file; Java has it only as `.bak` for a moment of each write."""
        path = self.store_path / "config" / name
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while True:
            try:
                return loads_object(path.read_bytes(), name)
            except (FileNotFoundError, CodecError):
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

    def read_settled(self, *, keys: Iterable[tuple[str, str, str]] = ()) -> Reading:
        """Read until two readings in a row are equal, so that nothing is in progress."""
        before = self.read(keys=keys)
        while True:
            time.sleep(1)
            after = self.read(keys=keys)
            if after == before:
                return after
            before = after

    def read(self, *, keys: Iterable[tuple[str, str, str]] = ()) -> Reading:
        """Ask the broker for everything; `keys` are topic, key and index type."""
        channel = BlockingChannel(f"127.0.0.1:{self.java.broker_port}")
        try:
            reading = Reading()
            for topic, count in sorted(self.topics().items()):
                for queue_id in range(count):
                    queue = self._read_queue(channel, topic, queue_id)
                    if queue.max_offset:
                        reading.queues[topic, queue_id] = queue
            for queue in reading.queues.values():
                for raw in queue.records.values():
                    (message,) = decode_messages(raw)
                    answer = self._ask(
                        channel,
                        RequestCode.VIEW_MESSAGE_BY_ID,
                        {"offset": message.physical_offset, "topic": message.topic},
                    )
                    assert answer.code == 0
                    reading.by_place[message.physical_offset] = _digest(answer.body)
            for topic, key, kind in keys:
                reading.by_key[topic, key, kind] = self._by_key(channel, topic, key, kind)
            for name, table in _TABLES.items():
                for entry, setting in self.config(name)[table].items():
                    reading.settings[table, entry] = setting
            for where in self._known_offsets():
                reading.consumer_offsets[where] = self._consumer_offset(channel, *where)
            return reading
        finally:
            channel.close()

    def read_ends(self, topic: str) -> list[QueueReading]:
        """The queues of one topic without their messages."""
        channel = BlockingChannel(f"127.0.0.1:{self.java.broker_port}")
        try:
            return [
                self._ends(channel, topic, queue_id)
                for queue_id in range(self.topics().get(topic, 0))
            ]
        finally:
            channel.close()

    def _ends(self, channel: BlockingChannel, topic: str, queue_id: int) -> QueueReading:
        where = {"topic": topic, "queueId": queue_id}
        return QueueReading(
            queue_id,
            self._number(channel, RequestCode.GET_MIN_OFFSET, "offset", where),
            self._number(channel, RequestCode.GET_MAX_OFFSET, "offset", where),
            self._number(channel, RequestCode.GET_EARLIEST_MSG_STORETIME, "timestamp", where),
        )

    def _number(
        self, channel: BlockingChannel, code: int, name: str, where: Mapping[str, Any]
    ) -> int:
        answer = self._ask(channel, code, where)
        assert answer.code == 0, (where, answer.remark)
        return int((answer.ext_fields or {})[name])

    def read_topic(self, topic: str) -> dict[tuple[str, int], QueueReading]:
        """The queues of one topic; none while it does not exist."""
        count = self.topics().get(topic, 0)
        channel = BlockingChannel(f"127.0.0.1:{self.java.broker_port}")
        try:
            return {
                (topic, queue_id): self._read_queue(channel, topic, queue_id, with_times=False)
                for queue_id in range(count)
            }
        finally:
            channel.close()

    def _read_queue(
        self, channel: BlockingChannel, topic: str, queue_id: int, *, with_times: bool = True
    ) -> QueueReading:
        where = {"topic": topic, "queueId": queue_id}

        queue = self._ends(channel, topic, queue_id)
        place = queue.min_offset
        while place < queue.max_offset:
            answer = self._ask(
                channel,
                RequestCode.PULL_MESSAGE,
                {
                    "consumerGroup": "TOOLS_CONSUMER",
                    **where,
                    "queueOffset": place,
                    "maxMsgNums": _PULL_COUNT,
                    "sysFlag": 4,
                    "commitOffset": 0,
                    "suspendTimeoutMillis": 0,
                    "subscription": "*",
                    "subVersion": 0,
                    "expressionType": "TAG",
                },
            )
            assert answer.code == 0, (topic, queue_id, place, answer.code, answer.remark)
            position = 0
            while position < len(answer.body):
                size = int.from_bytes(answer.body[position : position + 4], "big")
                queue.records[place] = bytes(answer.body[position : position + size])
                position += size
                place += 1
        for time_ms in _times(queue) if with_times else ():
            for boundary in ("LOWER", "UPPER"):
                queue.by_time[time_ms, boundary] = self._number(
                    channel,
                    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                    "offset",
                    {**where, "timestamp": time_ms, "boundaryType": boundary},
                )
        return queue

    def _by_key(self, channel: BlockingChannel, topic: str, key: str, kind: str) -> list[str]:
        answer = self._ask(
            channel,
            RequestCode.QUERY_MESSAGE,
            {
                "topic": topic,
                "key": key,
                "maxNum": 64,
                "beginTimestamp": 0,
                "endTimestamp": 2**62,
                "indexType": kind,
            },
        )
        if answer.code:
            return []
        found: list[str] = []
        position = 0
        while position < len(answer.body):
            size = int.from_bytes(answer.body[position : position + 4], "big")
            found.append(_digest(answer.body[position : position + size]))
            position += size
        return found

    def _known_offsets(self) -> list[tuple[str, str, int]]:
        table = self.config("consumerOffset.json")["offsetTable"]
        committed = []
        for key, queues in table.items():
            topic, _, group = str(key).partition("@")
            committed += [(group, topic, int(queue_id)) for queue_id in queues]
        return sorted(committed)

    def _consumer_offset(
        self, channel: BlockingChannel, group: str, topic: str, queue_id: int
    ) -> str:
        answer = self._ask(
            channel,
            RequestCode.QUERY_CONSUMER_OFFSET,
            {"consumerGroup": group, "topic": topic, "queueId": queue_id},
        )
        return str((answer.ext_fields or {}).get("offset", answer.code))

    # -- files ------------------------------------------------------------------------------

    def digests(self, *below: str) -> dict[str, str]:
        """Digests of files below the store, by path."""
        found: dict[str, str] = {}
        for start in below:
            root = self.store_path / start
            for path in [root] if root.is_file() else sorted(root.rglob("*")):
                if path.is_file():
                    name = str(path.relative_to(self.store_path))
                    found[name] = _digest(path.read_bytes())
        return found

    def log_files(self) -> list[str]:
        """Names of the commit-log files; without the one Java reserves ahead."""
        found: list[str] = []
        for path in sorted((self.store_path / "commitlog").iterdir()):
            with contextlib.suppress(FileNotFoundError):  # it may go at this moment
                if path.read_bytes().strip(b"\0"):
                    found.append(path.name)
        return found

    def make_old(self, names: Iterable[str]) -> None:
        """Let log files look a week old."""
        when = now_ms() // 1000 - 7 * 86_400
        for name in names:
            os.utime(self.store_path / "commitlog" / name, (when, when))

    def wait_log_files(self, are_right: Callable[[list[str]], bool]) -> None:
        """Wait until the right commit-log files are there."""
        deadline = time.monotonic() + _DELETED_TIMEOUT_S
        while not are_right(names := self.log_files()):
            assert time.monotonic() < deadline, f"{names} are still there"
            time.sleep(0.1)

    def wait_heads(self, *topics: str) -> None:
        """Wait until queues begin at a message that is there.

        Java moves their beginnings some time after it has deleted log files; until then a message
        that stood at physical offset 0 is answered with bytes of others.
        """
        deadline = time.monotonic() + _DELETED_TIMEOUT_S
        while any(
            queue.max_offset > queue.min_offset and queue.earliest_ms < 0
            for topic in topics
            for queue in self.read_ends(topic)
        ):
            assert time.monotonic() < deadline, f"{topics} begin at messages that are gone"
            time.sleep(0.2)

    def wait_log(self, text: str) -> None:
        """Wait until the broker's log contains a text."""
        assert self.holder is not None
        deadline = time.monotonic() + _DELETED_TIMEOUT_S
        while text not in (log := self.log_of(self.holder)):
            assert time.monotonic() < deadline, f"{text!r} was never said: {log[-500:]}"
            time.sleep(0.1)


def _times(queue: QueueReading) -> list[int]:
    """Store times to ask for: around each tenth message, and far beyond both ends."""
    stored = [message.store_timestamp_ms for message in queue.messages()]
    if not stored:
        return []
    times = {stored[0] - 100_000, stored[-1] + 100_000}
    for time_ms in {*stored[::10], stored[-1]}:
        times |= {time_ms - 1, time_ms, time_ms + 1}
    return sorted(times)


def _digest(raw: bytes | memoryview) -> str:
    return hashlib.sha256(raw).hexdigest()[:16]
