"""One broker of a simulated cluster: its lives, and every message that its readers saw.

`BrokerPart` starts the broker on its disk and compares the visible messages of the watched topics
with what their consumers commit.  Each observation and each start checks:

- what the store calls flushed would outlive a power cut now;
- with SYNC_FLUSH readers see only flushed messages;
- a queue's offsets are dense, and a message stays at its position, also across crashes;
- a queue's least offset never moves back;
- a committed offset is not beyond the end, never skips a message its group has not decided about,
  and after a restart is at least what it was at the start before;
- after a power cut with ASYNC_FLUSH the log ends behind the last flush, and what is there of queues
  is what lies before its end.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.broker import Broker
from cometmq.codec.stored_message import decode_messages
from cometmq.model.offsets import ConsumerOffset, PhysicalOffset
from cometmq.store.base.disk import Disk
from cometmq.store.base.results import GetResult, GetStatus
from cometmq.store.offline.verify import FindingKind, verify_store
from cometmq.testing.simulate.rot import Rot
from cometmq.testing.simulate.saved_tables import TABLE_FILES, TIMERS, differences

if TYPE_CHECKING:
    from cometmq.broker.services import Services
    from cometmq.store.message_store import MessageStore
    from cometmq.testing.simulate.hooks import Hooks
    from cometmq.testing.simulation import Node

__all__ = [
    "BROKER_PORT",
    "DELAY_LEVELS",
    "QUEUE_COUNT",
    "BrokerPart",
    "CheckFailed",
    "Group",
    "Seen",
    "place_of",
]

BROKER_PORT: Final = 10911
QUEUE_COUNT: Final = 3
DELAY_LEVELS: Final = "1s 2s 1s 2s 3s 4s"
_DELAYS_MS: Final = tuple(int(level[:-1]) * 1000 for level in DELAY_LEVELS.split())
_ROOT: Final = "/store"
_NO_END: Final = 1 << 62
_COUNTS: Final = frozenset({"timermetrics", "transactionMetrics"})
"""Files of statistics, which brokers write once a minute and count anew at a start."""

Position = tuple[str, str, int, int]
"""Broker name, topic, queue id, queue offset."""


def place_of(position: Position) -> str:
    """Write a position: topic, queue and offset, and the broker."""
    broker_name, topic, queue_id, queue_offset = position
    return f"{topic}/{queue_id} at {queue_offset} of {broker_name}"


class CheckFailed(AssertionError):
    """The cluster broke one of its promises."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A message as readers see it."""

    position: Position
    body: bytes
    properties: dict[str, str]
    store_ms: int
    seen_ms: int
    """By the clock of its broker, as `store_ms`."""
    reconsume_times: int
    physical_offset: int


@dataclass(slots=True)
class Group:
    """A watched consumer group and the messages it has decided about."""

    name: str
    wants: Callable[[Seen], bool]
    """Whether its subscription matches; the group may skip other messages."""
    is_alone: bool = False
    """Whether a queue has one member at a time, the only one or the holder of the queue's lock.
    Offsets then never move back.  Where members share a group the last commit wins, as in RocketMQ:
    a member that has lost a queue may commit after one that began from an older offset.
    """
    may_go_back_to: Callable[[Position], bool] = lambda position: False
    """Whether an operator reset the group to this position."""
    has_locks: bool = False
    """Whether its members lock queues: then no single commit moves back."""
    decided: set[Position] = field(default_factory=set)
    bodies: set[bytes] = field(default_factory=set)
    """Bodies of the messages that were handled successfully."""


class BrokerPart:
    """One broker; `broker` is None while it is down."""

    def __init__(
        self,
        node: Node,
        hooks: Hooks,
        settings: dict[str, Any],
        now_ms: Callable[[], int],
        on_seen: Callable[[Seen], None],
        on_loss: Callable[[BrokerPart, int, list[Seen]], None],
    ) -> None:
        """Follow a broker on a machine.

        Args:
            on_seen: called with each message that appears.
            on_loss: called after a power cut with ASYNC_FLUSH: physical offset at which the log
                ends, and the messages that readers had seen and that are gone.
        """
        self.node = node
        self.broker: Broker | None = None
        self.topics: dict[str, int] = {}
        """Watched topics, and how many queues each has at most."""
        self.groups: list[Group] = []
        self.seen: dict[tuple[str, int], list[Seen]] = {}
        self.log_may_begin = 0
        """The greatest physical offset below which log files were to be deleted."""
        self.began_ms = 0
        """When the present life began to serve, by the broker's clock."""
        self.observation_count = 0
        self._hooks = hooks
        self._settings = settings
        self._is_sync = settings.get("flush_disk_type") == "SYNC_FLUSH"
        self._now_ms = now_ms
        self._on_seen = on_seen
        self._on_loss = on_loss
        self._moved_back = ""
        self.rot = Rot(node.disk)
        self._boot = node.disk.boot
        self._end_after_cut = _NO_END
        self._store: MessageStore | None = None
        """The store of the present or the last life."""
        self._committed: dict[tuple[str, str, int], int] = {}
        self._committed_revision = -1
        self._saved: dict[tuple[str, str, int], int] = {}
        self._members_changed_ms: dict[str, int] = {}
        self._least: dict[tuple[str, int], int] = {}
        self._durable = 0
        """Below this physical offset the log was compared with the platter in this life."""
        self._recorded = 0
        self._flushed_at_round = 0
        self._proven = 0
        """After any end of this life, the next one knows that the log reaches this offset."""
        hooks.watch_disk(node)

    def spoil(self, chance: random.Random, *, may_lose_power: bool) -> bool:
        """Spoil a message that readers saw; False if there is none yet that is known to be there.

        Args:
            may_lose_power: whether only what the side file says durably proves that the log goes on
                behind the message.
        """
        broker = self.broker
        if broker is None or not self.node.is_alive:
            return False
        store = broker.state.store
        proven = self._proven if may_lose_power else store.flushed_offset
        return self.rot.spoil(store, list(chain(*self.seen.values())), proven, chance)

    def spoil_unit(self, chance: random.Random) -> bool:
        """Spoil a queue's unit of a message that readers saw; False if none is in a file yet."""
        broker = self.broker
        if broker is None or not self.node.is_alive:
            return False
        return self.rot.spoil_unit(broker.state.store, list(chain(*self.seen.values())), chance)

    def spoil_entry(self, chance: random.Random) -> bool:
        """Spoil an entry of the index; False if none is in a file yet."""
        broker = self.broker
        if broker is None or not self.node.is_alive:
            return False
        return self.rot.spoil_entry(broker.state.store, chance)

    @property
    def name(self) -> str:
        """The broker's name, which is its node's."""
        return self.node.name

    def config(self) -> BrokerConfig:
        """Configure small files, so that data spans several, and short intervals."""
        usual: dict[str, Any] = {
            "scrub_bytes_per_second": 0,
            "broker_name": self.name,
            "broker_ip1": self.node.address,
            "listen_port": BROKER_PORT,
            "store_path_root_dir": _ROOT,
            "default_topic_queue_nums": QUEUE_COUNT,
            "mapped_file_size_commit_log": 32 * 1024,
            "mapped_file_size_consume_queue": 20 * 50,
            "max_hash_slot_num": 100,
            "max_index_num": 400,
            "mapped_file_size_timer_log": 52 * 100,
            "message_delay_level": DELAY_LEVELS,
            "flush_consumer_offset_interval": 300,
            "flush_delay_offset_interval": 300,
            "transaction_time_out": 300,
            "transaction_check_interval": 500,
            "transaction_check_max": 4,
            "transaction_op_batch_interval": 200,
            "transaction_op_msg_max_size": 40,
            # Else the broker deletes its oldest files to make room, as in RocketMQ.
            "clean_file_forcibly_enable": False,
        }
        return BrokerConfig(**usual | self._settings)

    async def start(self) -> None:
        """Start the broker on its disk, and check it before any client gets an answer.

        Raises:
            NodeGone: the broker crashed while it started.
            CometError: the broker could not start.
            OSError: the disk failed while the broker started.
            CheckFailed: the start broke a promise.
        """
        disk: Disk = self.node.disk
        self._check_saved_offsets()
        flushed = 0 if self._store is None else self._store.flushed_offset
        broker = Broker(self.config(), self.node.environment(), disk)
        hooks, node = self._hooks, self.node

        async def begin() -> None:
            await broker.start()
            broker.staging.publisher.at = hooks.at(node, "staging")
            broker.transactions.at = hooks.at(node, "transaction")
            broker.services.backlog.copier.at = lambda step: hooks.reach(node, step)
            broker.state.store.mover.at = lambda step: hooks.reach(node, step)
            if broker.services.timers is not None:
                broker.services.timers.at = lambda step: hooks.reach(node, step)

        try:
            await node.run(begin)
        finally:
            if self._boot != node.disk.boot and broker.recovery is not None:
                # A life that ends before it can be checked may append messages all the same.
                self._end_after_cut = min(self._end_after_cut, broker.recovery.scan_end)
        self.broker = broker
        self.began_ms = self._now_ms()
        self._durable = self._proven = self._recorded = self._flushed_at_round = 0
        self._store = broker.state.store
        if self._boot != self.node.disk.boot:
            self._boot = self.node.disk.boot
            self._check_loss(broker.state.store, flushed)
        if broker.state.store.min_physical_offset < self.log_may_begin:
            # The life before ended after its readers had left a log file and before it removed it.
            self._least.clear()
        self._check_behind_the_log(broker)
        self._compare_with_before(broker)
        # Missing entries are still being derived or wait for the timers.
        self._verify(frozenset({FindingKind.NOTE, FindingKind.MISSING}), is_serving=True)
        self._watch_commits(broker)
        self.observe()

    def _watch_commits(self, broker: Broker) -> None:
        """Look at each commit at once: the next one would hide that a group went back."""
        table = broker.state.offsets
        commit = table.commit

        def watched(
            group: str, topic: str, queue_id: int, consumer_offset: ConsumerOffset, now_ms: int
        ) -> None:
            was = table.queues(group, topic).get(queue_id, ConsumerOffset(0))
            if consumer_offset < was and any(
                known.name == group and known.has_locks for known in self.groups
            ):
                self._moved_back = (
                    f"{self.name}: a commit moved the offset of {group} in {topic}/{queue_id} back "
                    f"from {was} to {consumer_offset}"
                )
            commit(group, topic, queue_id, consumer_offset, now_ms)

        table.commit = watched  # type: ignore[method-assign]

    @property
    def is_up(self) -> bool:
        """Whether the broker serves."""
        return self.broker is not None and self.node.is_alive

    @property
    def has_failed(self) -> bool:
        """Whether the broker refuses messages because its disk failed a sync."""
        if self.broker is None or not self.node.is_alive:
            return False
        return self.broker.state.store._log.failure is not None

    # -- messages ------------------------------------------------------------------------------

    def observe(self) -> None:
        """Read new messages and committed offsets, and check them.

        Raises:
            CheckFailed: a promise is broken.
        """
        broker = self.broker
        if broker is None or not self.node.is_alive:
            return
        self.observation_count += 1
        self._check_flushed(broker)
        self._note_proven(broker)
        store = broker.state.store
        for topic, queue_count in self.topics.items():
            for queue_id in range(queue_count):
                self._observe_queue(store, topic, queue_id)
        self._observe_offsets(broker)

    def _check_flushed(self, broker: Broker) -> None:
        """Compare what the store calls flushed with the platter, as far as that has grown."""
        store = broker.state.store
        flushed = store.flushed_offset
        if flushed <= self._durable:
            return
        for mapped in store._log.files:
            begin, end = max(mapped.start, self._durable), min(mapped.end, flushed)
            if begin < end and not self.node.disk.is_durable(
                mapped.path, begin - mapped.start, end - mapped.start
            ):
                raise CheckFailed(
                    f"{self.name}: the log is said to be flushed up to {flushed}, and a power cut "
                    f"would take something from {begin} on"
                )
        self._durable = flushed

    def _note_proven(self, broker: Broker) -> None:
        """Note how far the side file says durably that the log is flushed."""
        store = broker.state.store
        recorded = store._writer.recorded_position
        if recorded != self._recorded:
            # What it says is not newer than the time at which the round before had ended.
            self._proven = min(recorded, self._flushed_at_round)
            self._recorded, self._flushed_at_round = recorded, store.flushed_offset

    def _observe_queue(self, store: MessageStore, topic: str, queue_id: int) -> None:
        key = topic, queue_id
        history = self.seen.get(key)
        if history is None:
            history = self.seen[key] = []
        end = store.max_queue_offset(topic, queue_id)
        least = _first(store, topic, queue_id)
        if least < self._least.get(key, 0):
            raise CheckFailed(
                f"{self.name} {topic}/{queue_id}: the least offset was {self._least[key]}, "
                f"now it is {least}"
            )
        self._least[key] = least
        if end < len(history):
            raise CheckFailed(
                f"{self.name} {topic}/{queue_id}: readers saw {len(history)} messages, "
                f"now there are {end}"
            )
        if end > len(history):
            fresh = self._read(store, topic, queue_id, len(history), end)
            history += fresh
            for seen in fresh:
                self._on_seen(seen)

    def _read(
        self, store: MessageStore, topic: str, queue_id: int, start: int, end: int
    ) -> list[Seen]:
        """Read the messages from `start` to `end`, which must all exist."""
        flushed = store.flushed_offset if self._is_sync else 1 << 62
        messages: list[Seen] = []
        at = start
        while at < end:
            spoilt = self.rot.spoilt.get((self.name, topic, queue_id, at))
            if spoilt is not None:
                messages.append(spoilt)
                at += 1
                continue
            result = store.get(topic, queue_id, at, 1000, allow_cold=True)
            hidden = self._hidden(store, topic, queue_id, at, result)
            if hidden:
                messages += hidden
                at += len(hidden)
                continue
            if not isinstance(result, GetResult) or result.status is not GetStatus.FOUND:
                raise CheckFailed(f"{self.name} {topic}/{queue_id}: nothing at {at} of {end}")
            for message in decode_messages(b"".join(result.chunks)):
                if (self.name, topic, queue_id, at) in self.rot.spoilt:
                    break
                if message.queue_offset != at or message.topic != topic:
                    raise CheckFailed(
                        f"{self.name} {topic}/{queue_id}: at {at} lies offset "
                        f"{message.queue_offset} of {message.topic}"
                    )
                if message.physical_offset >= flushed:
                    raise CheckFailed(
                        f"{self.name} {topic}/{queue_id}: readers see offset {at}, which is not "
                        f"flushed: it lies at {message.physical_offset}, flushed is {flushed}"
                    )
                position = (self.name, topic, queue_id, at)
                properties = dict(message.properties)
                body = bytes(message.body)
                messages.append(
                    Seen(
                        position,
                        body,
                        properties,
                        message.store_timestamp_ms,
                        self._now_ms(),
                        message.reconsume_times,
                        message.physical_offset,
                    )
                )
                at += 1
        return messages[: end - start]

    def _hidden(
        self, store: MessageStore, topic: str, queue_id: int, start: int, result: object
    ) -> list[Seen]:
        """Return expired messages that readers pass over: a spoilt unit hid that they expired."""
        if not isinstance(result, GetResult) or not self.rot.has_unit_of(topic, queue_id):
            return []
        if result.status is GetStatus.MESSAGE_WAS_REMOVING:
            following = result.next_queue_offset
        elif result.status is GetStatus.FOUND:
            following = decode_messages(b"".join(result.chunks))[0].queue_offset
        else:
            return []
        passed = self.seen[topic, queue_id][start:following]
        is_expired = all(seen.physical_offset < store.min_physical_offset for seen in passed)
        return passed if is_expired else []

    def _check_loss(self, store: MessageStore, flushed: int) -> None:
        """Check after a power cut what the log kept, and forget what it was allowed to lose."""
        end, self._end_after_cut = self._end_after_cut, _NO_END
        if end < flushed:
            raise CheckFailed(
                f"{self.name}: the log was flushed up to {flushed}, and after a power cut it ends "
                f"at {end}"
            )
        if self._is_sync:
            return
        gone: list[Seen] = []
        for history in self.seen.values():
            kept_count = sum(seen.physical_offset < end for seen in history)
            gone += history[kept_count:]
            del history[kept_count:]
        for (group, topic, queue_id), saved in self._saved.items():
            queue_end = store.max_queue_offset(topic, queue_id)
            self._saved[group, topic, queue_id] = min(saved, queue_end)
        self._on_loss(self, end, gone)

    def _compare_with_before(self, broker: Broker) -> None:
        """Check after a restart that every message is where readers saw it."""
        for (topic, queue_id), history in self.seen.items():
            if not history:
                continue
            end = broker.state.store.max_queue_offset(topic, queue_id)
            if end < len(history):
                raise CheckFailed(
                    f"{self.name} {topic}/{queue_id}: readers saw {len(history)} messages before "
                    f"the restart, now there are {end}"
                )
            first = min(len(history), _first(broker.state.store, topic, queue_id))
            restored = self._read(broker.state.store, topic, queue_id, first, len(history))
            for before, now in zip(history[first:], restored, strict=True):
                if (before.body, before.physical_offset) != (now.body, now.physical_offset):
                    raise CheckFailed(
                        f"{self.name} {topic}/{queue_id} offset {before.position[3]}: readers saw "
                        f"{before.body[:40]!r} before the restart, now {now.body[:40]!r}"
                    )
        self._committed = self._offsets(broker)
        self._committed_revision = broker.state.offsets.revision

    def first(self, topic: str, queue_id: int) -> int | None:
        """Return a queue's smallest offset; None while the broker is down."""
        if self.broker is None or not self.node.is_alive:
            return None
        return _first(self.broker.state.store, topic, queue_id)

    def _check_behind_the_log(self, broker: Broker) -> None:
        """Check after a start that no bytes of an earlier life follow the end of the log."""
        log = broker.state.store._log
        for mapped in log.files:
            position = max(mapped.start, log.wrote)
            behind = (
                bytes(log.read(PhysicalOffset(position), mapped.end - position))
                if position < mapped.end
                else b""
            )
            if behind.strip(b"\0"):
                raise CheckFailed(
                    f"{self.name}: {len(behind.strip(bytes(1)))} bytes of an earlier life follow "
                    f"the end of the log at {log.wrote}"
                )

    def _check_saved_offsets(self) -> None:
        """Check before a start that saved offsets of a group that is alone never decrease."""
        path = f"{_ROOT}/config/consumerOffset.json"
        if not self.node.disk.exists(path):
            return
        table = msgspec.json.decode(self.node.disk.read_bytes(path))["offsetTable"]
        # Each start soon after a loss sends groups back to where the queues ended then.
        is_lossy = not self._is_sync and self.node.disk.boot > 1
        for group in self.groups:
            for key, queues in table.items():
                topic, _, name = key.partition("@")
                if name != group.name or not group.is_alone:
                    continue
                for queue_id, consumer_offset in queues.items():
                    queue_key = (name, topic, int(queue_id))
                    is_back = consumer_offset < self._saved.get(queue_key, 0) and not is_lossy
                    if is_back and not any(
                        group.may_go_back_to((self.name, topic, int(queue_id), queue_offset))
                        for queue_offset in range(consumer_offset + 1)
                    ):
                        raise CheckFailed(
                            f"{self.name}: the saved offset of {queue_key} was "
                            f"{self._saved[queue_key]} at an earlier start, now {consumer_offset}"
                        )
                    self._saved[queue_key] = consumer_offset

    # -- consumer offsets ------------------------------------------------------------------------

    def _offsets(self, broker: Broker) -> dict[tuple[str, str, int], int]:
        """Map group, topic and queue id to the committed offset, for the watched groups."""
        table = broker.state.offsets
        return {
            (group.name, topic, queue_id): consumer_offset
            for group in self.groups
            for topic in table.topics_of(group.name)
            for queue_id, consumer_offset in table.queues(group.name, topic).items()
        }

    def _observe_offsets(self, broker: Broker) -> None:
        if self._moved_back:
            raise CheckFailed(self._moved_back)
        revision = broker.state.offsets.revision
        if revision == self._committed_revision:
            return
        self._committed_revision = revision
        before, now = self._committed, self._offsets(broker)
        groups = {group.name: group for group in self.groups}
        for key, consumer_offset in now.items():
            was = before.get(key, 0)
            if consumer_offset == was:
                continue
            group = groups[key[0]]
            position = (self.name, key[1], key[2], consumer_offset)
            if consumer_offset < was and group.is_alone and not group.may_go_back_to(position):
                raise CheckFailed(
                    f"{self.name}: the offset of {key} moved back from {was} to {consumer_offset}"
                )
            self._check_commit(group, key[1], key[2], was, consumer_offset)
        self._committed = now

    def _check_commit(
        self, group: Group, topic: str, queue_id: int, was: int, consumer_offset: int
    ) -> None:
        history = self.seen.get((topic, queue_id))
        if history is None:
            return
        if consumer_offset > len(history):
            raise CheckFailed(
                f"{self.name} {topic}/{queue_id}: {group.name} committed {consumer_offset}, "
                f"the queue ends at {len(history)}"
            )
        for seen in history[was:consumer_offset]:
            if seen.position not in group.decided and group.wants(seen):
                raise CheckFailed(
                    f"{group.name} committed {consumer_offset} of {self.name} {topic}/{queue_id} "
                    f"and nobody handled {seen.body[:40]!r} at {seen.position[3]}"
                )

    # -- the end ------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop the broker in order, then compare log, queues and index byte for byte.

        Raises:
            CheckFailed: the broker is down, or its files contradict each other.
        """
        broker, self.broker = self.broker, None
        if broker is None:
            raise CheckFailed(f"{self.name} is down and cannot be stopped in order")
        services = broker.services
        await self.node.run(broker.stop)
        self.check_saved(services)
        self._check_files(services)
        self._verify(frozenset({FindingKind.NOTE}))
        temporary = [path for path in self.node.disk.tree() if path.endswith(".tmp")]
        if temporary:
            raise CheckFailed(f"{self.name}: temporary files are left: {temporary[0]}")
        running = [task for task, _ in self.node.lifetime.tasks if not task.done()]
        if running:
            raise CheckFailed(f"{self.name}: {len(running)} tasks outlive its stop: {running[0]}")

    def check_saved(self, services: Services) -> None:
        """Check after an orderly stop that every table is in its file.

        Raises:
            CheckFailed: one is not.
        """
        self._check_tables(services, (*TABLE_FILES, TIMERS))

    def _check_tables(self, services: Services, names: tuple[str, ...]) -> None:
        for difference in differences(self.node.disk, f"{_ROOT}/config", services, names):
            raise CheckFailed(f"{self.name}: {difference}")

    def members_changed(self, group: str) -> None:
        """Note that a member left: pulls that others had before may be held beside new ones."""
        self._members_changed_ms[group] = self._now_ms()

    def check_rest(self) -> None:
        """Check what holds while nothing happens: saved tables, and one held pull for a reader.

        Raises:
            CheckFailed: a promise is broken.
        """
        if self.broker is None:
            raise CheckFailed(f"{self.name} is down without any fault")
        self._check_files(self.broker.services)
        held = Counter(
            (pull.connection.peer, pull.group, topic, queue_id)
            for (topic, queue_id), pulls in self.broker.services.pull.hold._by_queue.items()
            for pull in pulls
            if pull.since_ms >= self._members_changed_ms.get(pull.group, 0)
        )
        for (peer, group, topic, queue_id), count in held.items():
            if count > 1:
                raise CheckFailed(
                    f"{self.name}: {peer} has {count} pulls of {group} held at {topic}/{queue_id}"
                )

    def check_no_reader(self) -> None:
        """Check that no pull is held once the clients have gone.

        Raises:
            CheckFailed: one is.
        """
        if self.broker is not None and len(self.broker.services.pull.hold):
            raise CheckFailed(
                f"{self.name}: {len(self.broker.services.pull.hold)} pulls are held, and no client "
                "is left"
            )

    def _check_files(self, services: Services) -> None:
        """Check that each table whose file is up to date is what the file says."""
        for name, file in services.files._files.items():
            if (
                name in _COUNTS
                or file.is_writing
                or not file.is_saved
                or not self.node.disk.exists(file._path)
            ):
                continue
            if name in TABLE_FILES:
                self._check_tables(services, (name,))
            wanted = msgspec.json.decode(file._snapshot()(), type=dict[str, Any])
            actual = msgspec.json.decode(self.node.disk.read_bytes(file._path), type=dict[str, Any])
            if _without_version(wanted) != _without_version(actual):
                raise CheckFailed(
                    f"{self.name}: {name} has {actual!r:.300}, and the broker {wanted!r:.300}"
                )

    def _verify(self, harmless: frozenset[FindingKind], *, is_serving: bool = False) -> None:
        """Check that queues and index are what the log derives.

        The index of a store that serves is partly in memory, so its files are left out.
        """
        report = verify_store(self.node.disk, _ROOT, delays_ms=_DELAYS_MS)
        wrong = [
            str(finding)
            for finding in report.findings
            if finding.kind not in harmless
            and not (is_serving and "/index" in finding.path)
            and not self.rot.explains(finding, report.findings)
        ]
        unnamed_path = self.rot.unnamed_file(report.findings, report.log_start)
        # The index of a store that serves is partly in memory.
        if unnamed_path is not None and not (is_serving and "/index" in unnamed_path):
            raise CheckFailed(
                f"{self.name}: the disk changed {unnamed_path}, and the store's check does not say "
                "so"
            )
        unnamed = self.rot.unnamed(report.findings, report.log_start)
        if unnamed is not None:
            raise CheckFailed(
                f"{self.name}: the disk changed {unnamed.body[:30]!r} at {unnamed.position}, and "
                "the store's check does not say so"
            )
        if wrong:
            raise CheckFailed(f"{self.name}: {len(wrong)} findings in the store: {wrong[0]}")


def _first(store: MessageStore, topic: str, queue_id: int) -> int:
    """Return a queue's smallest offset without the worker that the store uses after a start."""
    queue = store._queues.find(topic, queue_id)
    return 0 if queue is None else store._search.min_of(queue)


def _without_version(table: dict[str, Any]) -> dict[str, Any]:
    """Leave out what changes without a change of the table.

    See `staging.ledger` for stagedNext; logFrom grows with the log, also without numbered messages.
    """
    unlike = ("dataVersion", "logFrom", "stagedNext")
    return {name: value for name, value in table.items() if name not in unlike}
