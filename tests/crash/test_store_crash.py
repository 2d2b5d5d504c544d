"""The store dies at named places, and what it promised is there afterwards.

A node writes to a simulated disk until it is killed (the page cache lives on) or its power is cut
(unsynced pages are lost, kept or torn).  The crash points are the disk's own hooks; that each was
reached is asserted.  Then a new store opens the directory, and a model of what was put says what
must be there:

    kill, any flush mode      every message whose put returned, at its queue offset
    power cut, synchronous    every message whose `when_durable` said True
    power cut, asynchronous   every message below the flushed offset
    always                    queues without a hole, each record in its own place, keys found
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from cometmq.codec.java_hash import java_hash
from cometmq.codec.stored_message import decode_messages
from cometmq.store.base.config import StoreConfig
from cometmq.store.base.results import BatchItem, GetResult, GetStatus
from cometmq.store.message_store import MessageStore
from cometmq.testing.disk import SimDisk

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.base.results import RecoveryReport

HOST = b"\x7f\x00\x00\x01\x00\x00*\x9f"
TOPICS = ("Alpha", "Beta", "T" * 150)
TAGS = "TagA"
TAGS_CODE = java_hash(TAGS)


class Crash(BaseException):
    """The node dies here; nothing in the store may catch it."""


class Workers:
    """Does the work at once; a crash passes through."""

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None] | None = None) -> None:
        try:
            result = work()
        except Exception as error:
            result = error
        if done is not None:
            done(result)


@dataclass
class Node:
    """A store on a simulated disk, driven by a seed, and the model of what it holds."""

    seed: int
    is_sync: bool = False
    is_journaled: bool = False
    chance: random.Random = field(init=False)
    disk: SimDisk = field(init=False)
    now_ms: int = 1_700_000_000_000
    put: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    promised: dict[tuple[str, int], int] = field(default_factory=dict)
    flushed: int = 0
    ends: dict[tuple[str, int, int], int] = field(default_factory=dict)
    store: MessageStore = field(init=False)
    timers: list[Callable[[], None]] = field(default_factory=list)
    number: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.disk = SimDisk(random.Random(self.seed + 1), lambda: self.now_ms)

    def config(self) -> StoreConfig:
        return StoreConfig(
            root="/node/store",
            commit_log_file_bytes=32_768,
            consume_queue_file_bytes=800,
            index_slot_count=40,
            index_entry_count=150,
            window_bytes=8_192,
            is_sync_flush=self.is_sync,
            consume_queue_flush_interval_ms=3_000,
            unit_journal_queues_min=0 if self.is_journaled else 2_500,
            unit_journal_bytes_max=2_000,
            unit_journal_age_ms=2_500,
        )

    def open(self) -> RecoveryReport:
        self.timers = []
        self.store = MessageStore(self.config(), self.disk, Workers(), lambda: self.now_ms)
        report = self.store.load()
        self.store.start(lambda _seconds, callback: self.timers.append(callback))
        return report

    def tick(self, ms: int = 100) -> None:
        self.now_ms += ms
        due, self.timers = self.timers, []
        for timer in due:
            timer()

    def work(self, steps: int) -> None:
        """Put, put batches, let time pass."""
        for _ in range(steps):
            kind = self.chance.random()
            if kind < 0.65:
                self.put_one()
            elif kind < 0.8:
                self.put_batch()
            else:
                self.tick(self.chance.choice((1, 100, 700, 1500)))

    def settle(self) -> None:
        """Let the flusher finish, so that everything put is visible."""
        self.tick(1)
        self.tick(600)

    def place(self) -> tuple[str, int]:
        return self.chance.choice(TOPICS), self.chance.randrange(3)

    def body(self) -> bytes:
        self.number += 1
        size = self.chance.choice((0, 10, 100, 700))
        return f"{self.number}:".encode() + self.chance.randbytes(size)

    def properties(self) -> tuple[bytes, tuple[str, str | None, str]]:
        uniq, keys, tags = f"U{self.number:08d}", f"k{self.number % 7} other", TAGS
        raw = f"UNIQ_KEY\x01{uniq}\x02KEYS\x01{keys}\x02TAGS\x01{tags}\x02".encode()
        return raw, (uniq, keys, tags)

    def put_one(self) -> None:
        key = self.place()
        body = self.body()
        raw, keys = self.properties()
        # Counted before: a crash inside `put` may or may not leave the message.
        held = self.put.setdefault(key, [])
        result = self.store.put(
            *key,
            body,
            raw,
            born_host=HOST,
            store_ms=self.now_ms,
            index_keys=keys,
            tags_code=TAGS_CODE,
        )
        assert result.queue_offset == len(held)
        held.append(body)
        self.note(key, result.queue_offset, result.end_offset)

    def put_batch(self) -> None:
        key = self.place()
        held = self.put.setdefault(key, [])
        items = []
        for _ in range(self.chance.randrange(1, 8)):
            body = self.body()
            raw, keys = self.properties()
            items.append(BatchItem(0, body, raw, TAGS_CODE, keys))
        result = self.store.put_batch(*key, items, born_host=HOST, store_ms=self.now_ms)
        assert result.queue_offset == len(held)
        held += [item.body for item in items]
        self.note(key, len(held) - 1, result.end_offset)

    def note(self, key: tuple[str, int], queue_offset: int, end_offset: int) -> None:
        """Remember what is promised from when on."""
        self.ends[*key, queue_offset] = end_offset
        if self.is_sync:
            self.store.when_durable(end_offset, lambda ok: self.promise(ok, key, queue_offset))
        self.flushed = self.store.flushed_offset

    def promise(self, ok: bool, key: tuple[str, int], queue_offset: int) -> None:
        if ok:
            self.promised[key] = max(self.promised.get(key, -1), queue_offset)

    def must_have(self, *, is_power_cut: bool) -> dict[tuple[str, int], int]:
        """How many messages each queue holds at least."""
        if not is_power_cut:
            return {key: len(bodies) for key, bodies in self.put.items()}
        if self.is_sync:
            return {key: last + 1 for key, last in self.promised.items()}
        found: dict[tuple[str, int], int] = {}
        for (topic, queue_id, queue_offset), end in self.ends.items():
            if end <= self.flushed:
                key = (topic, queue_id)
                found[key] = max(found.get(key, 0), queue_offset + 1)
        return found

    def check(self, must_have: dict[tuple[str, int], int]) -> None:
        """The store against the model; afterwards the model is what the store holds."""
        for key, bodies in self.put.items():
            count = self.store.max_queue_offset(*key)
            assert count >= must_have.get(key, 0), (key, count, must_have.get(key))
            messages = self.read(key, count)
            # A message whose put did not return may be there, behind all others.
            assert count <= len(bodies) + 8
            for queue_offset, message in enumerate(messages):
                assert (message.topic, message.queue_id) == key
                assert message.queue_offset == queue_offset
                if queue_offset < len(bodies):
                    assert message.body == bodies[queue_offset]
                    # A query walks every index file: some old ones and all of the newest do.
                    if queue_offset % 7 == 0 or count - queue_offset < 5:
                        found = self.store.prepare_query_index(
                            key[0], message.properties["UNIQ_KEY"], 64
                        )()
                        assert message.physical_offset in found.physical_offsets
            self.put[key] = [message.body for message in messages]
        self.ends.clear()
        self.promised.clear()

    def read(self, key: tuple[str, int], count: int) -> list[Any]:
        messages: list[Any] = []
        while len(messages) < count:
            found = self.store.get(*key, len(messages), 32)
            assert isinstance(found, GetResult)
            assert found.status is GetStatus.FOUND, (key, len(messages), found)
            messages += decode_messages(b"".join(found.chunks))
            assert found.next_queue_offset == len(messages)
        return messages


CRASH_POINTS = [
    # operation, path, which hit: what the node is doing
    ("write", "/commitlog/", 1),  # the BLANK at a file's end
    ("rename", "cometmq.next", 1),  # taking the reserved file
    ("create", "cometmq.next", 1),  # reserving the next file
    ("allocate", "cometmq.next", 2),
    ("create", "/consumequeue/", 1),  # a queue's first file
    ("create", "/consumequeue/", 12),  # a later file
    ("write", "/consumequeue/", 1),  # a batch of units
    ("write", "/consumequeue/", 25),
    ("create", "/index/", 1),
    ("write", "/index/", 2),  # an entry
    ("write", "/index/", 301),  # a later one
    ("create", "/index/", 3),  # rolling the index
    ("write", "cometmq.checkpoint", 1),  # a frame of the side file
    ("write", "cometmq.checkpoint", 6),
    ("write", "/node/store/checkpoint", 1),  # Java's checkpoint after the frame
    ("write", "/node/store/checkpoint", 5),
    ("sync", "/commitlog/", 1),  # flushing
    ("sync", "/commitlog/", 3),
    ("sync_dir", "/commitlog", 3),
    ("sync", "/consumequeue/", 2),  # a round against power cuts
    ("sync", "/index/", 1),
]


@pytest.mark.parametrize("is_power_cut", [False, True], ids=["kill", "power"])
@pytest.mark.parametrize("is_sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize(("operation", "path", "hit"), CRASH_POINTS)
def test_crash_at(operation: str, path: str, hit: int, is_sync: bool, is_power_cut: bool) -> None:
    """Dying in the middle of one disk operation loses nothing that was promised."""
    check_death_at(Node(hash_of(operation, path, hit), is_sync), operation, path, hit, is_power_cut)


JOURNAL_POINTS = [
    ("create", "cometmq.units", 1),  # the first frame
    ("create", "cometmq.units", 4),  # the first of a later segment
    ("write", "cometmq.units", 1),
    ("write", "cometmq.units", 9),
    ("remove", "cometmq.units", 1),  # after the first pass
    ("remove", "cometmq.units", 3),
    ("write", "/consumequeue/", 1),  # in a pass
    ("write", "/consumequeue/", 25),
    ("create", "/consumequeue/", 12),
    ("write", "cometmq.checkpoint", 1),
    ("write", "cometmq.checkpoint", 9),
    ("sync", "/consumequeue/", 2),
]


@pytest.mark.parametrize("is_power_cut", [False, True], ids=["kill", "power"])
@pytest.mark.parametrize("is_sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize(("operation", "path", "hit"), JOURNAL_POINTS)
def test_crash_with_unit_journal(
    operation: str, path: str, hit: int, is_sync: bool, is_power_cut: bool
) -> None:
    """The same where units are saved in the journal first."""
    node = Node(hash_of(operation, path, hit, "units"), is_sync, is_journaled=True)
    check_death_at(node, operation, path, hit, is_power_cut)


def check_death_at(node: Node, operation: str, path: str, hit: int, is_power_cut: bool) -> None:
    """Work until the node dies there; what it promised is found, and it works again."""
    node.open()
    hits: list[str] = []

    def die() -> None:
        hits.append(operation)
        raise Crash

    node.disk.at(operation, path_contains=path, hit=hit, action=die)
    with pytest.raises(Crash):
        for _ in range(40):
            node.work(100)
    assert hits == [operation]
    node.flushed = node.store.flushed_offset
    must_have = node.must_have(is_power_cut=is_power_cut)
    (node.disk.power_cut if is_power_cut else node.disk.kill)()
    report = node.open()
    node.check(must_have)
    # The first write of the log may be the one at which the node dies.
    assert report.queues >= sum(1 for count in must_have.values() if count)
    node.work(200)
    node.settle()
    node.check({key: len(bodies) for key, bodies in node.put.items()})
    node.store.close()
    assert node.open().mode == "checkpoint"
    node.check({key: len(bodies) for key, bodies in node.put.items()})
    node.store.close()


def hash_of(*parts: object) -> int:
    """A seed that does not change between runs."""
    return int(sum(ord(char) * 31**place for place, char in enumerate(repr(parts))) % (1 << 30))


LOAD_POINTS = [
    ("write_atomic", "cometmq.checkpoint", 1),
    ("write_atomic", "/abort", 1),
    ("write", "/consumequeue/", 1),
    ("sync_dir", "/commitlog", 1),
]


@pytest.mark.parametrize("is_journaled", [False, True], ids=["files", "journal"])
@pytest.mark.parametrize("is_power_cut", [False, True], ids=["kill", "power"])
@pytest.mark.parametrize(("operation", "path", "hit"), LOAD_POINTS)
def test_crash_while_recovering(
    operation: str, path: str, hit: int, is_power_cut: bool, is_journaled: bool
) -> None:
    """A second death in the middle of recovery is no worse than the first."""
    seed = hash_of("load", operation, path)
    node = Node(seed, is_sync=True, is_journaled=is_journaled)
    node.open()
    node.work(400)
    check_second_death(node, operation, path, hit, is_power_cut)


def check_second_death(node: Node, operation: str, path: str, hit: int, is_power_cut: bool) -> None:
    """Kill the node, let it die once more in its recovery, and find what it promised."""
    must_have = node.must_have(is_power_cut=True)
    node.disk.kill()

    def die() -> None:
        raise Crash

    node.disk.at(operation, path_contains=path, hit=hit, action=die)
    with pytest.raises(Crash):
        node.open()
    (node.disk.power_cut if is_power_cut else node.disk.kill)()
    node.open()
    node.check(must_have)
    node.work(100)
    node.settle()
    node.check({key: len(bodies) for key, bodies in node.put.items()})
    node.store.close()


# With the unit journal, in the middle of bringing its units into files.
LOAD_POINTS_JOURNALED = [("write", "/consumequeue/", 2), ("remove", "cometmq.units", 1)]


@pytest.mark.parametrize("is_power_cut", [False, True], ids=["kill", "power"])
@pytest.mark.parametrize(("operation", "path", "hit"), LOAD_POINTS_JOURNALED)
def test_crash_while_filing_saved_units(
    operation: str, path: str, hit: int, is_power_cut: bool
) -> None:
    """A second death at places only a recovery with a journal comes to."""
    node = Node(hash_of("file", operation, path), is_sync=True, is_journaled=True)
    node.open()
    node.work(300)
    # No pass from now on: what is saved last is in no file.
    node.store._writer._journal_bytes_max = node.store._writer._journal_age_ms = 1 << 40
    for _ in range(30):
        node.put_one()
    node.tick(700)
    check_second_death(node, operation, path, hit, is_power_cut)


CLOSE_POINTS = [
    ("write", "/consumequeue/", 1),
    ("write_atomic", "cometmq.checkpoint", 1),
    ("write", "/node/store/checkpoint", 1),
    ("remove", "/abort", 1),
]


@pytest.mark.parametrize("is_journaled", [False, True], ids=["files", "journal"])
@pytest.mark.parametrize(("operation", "path", "hit"), CLOSE_POINTS)
def test_crash_while_closing(operation: str, path: str, hit: int, is_journaled: bool) -> None:
    """A death during the stop is a crash like any other."""
    node = Node(seed=hash_of("close", operation, path), is_journaled=is_journaled)
    node.open()
    node.work(300)
    node.put_one()

    def die() -> None:
        raise Crash

    node.disk.at(operation, path_contains=path, hit=hit, action=die)
    with pytest.raises(Crash):
        node.store.close()
    must_have = node.must_have(is_power_cut=False)
    node.disk.kill()
    node.open()
    node.check(must_have)
    node.store.close()


@pytest.mark.parametrize("is_sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("seed", range(int(os.environ.get("LIVES", "8"))))
def test_many_lives(seed: int, is_sync: bool) -> None:
    """Kills and power cuts in any order, at any moment, one life after the other."""
    node = Node(seed=seed, is_sync=is_sync)
    modes = set()
    for _ in range(6):
        modes.add(node.open().mode)
        node.check(node.must_have(is_power_cut=False))
        node.work(node.chance.randrange(10, 250))
        node.flushed = node.store.flushed_offset
        end = node.chance.choice(("kill", "power", "close"))
        must_have = node.must_have(is_power_cut=end == "power")
        if end == "close":
            node.store.close()
            must_have = node.must_have(is_power_cut=False)
        (node.disk.power_cut if end == "power" else node.disk.kill)()
        node.open()
        node.check(must_have)
        # Straight into the next death, without another change.
        node.disk.kill()
    assert "checkpoint" in modes
