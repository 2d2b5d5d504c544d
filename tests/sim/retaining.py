"""A cluster on virtual time whose messages wait while retention removes log files.

A client stores timed, delayed and half messages, then ordinary ones until the log has several more
files.  An operator removes all files that may go, and does it again when the log has grown
again, so that a waiting message is appended anew more than once.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tests.sim.crashing import QUEUE_COUNT, CrashingCluster, Happened

from cometmq.broker.broker import Broker
from cometmq.codec.stored_message import StoredMessage, decode_message
from cometmq.errors import CometError
from cometmq.net.channel import Channel
from cometmq.testing.simulation import World
from cometmq.wire.command.command import RemotingCommand

WAIT_MS = 90_000
TOPIC = "Later"
SEND = {"a": "p", "b": TOPIC, "c": "TBW102", "d": str(QUEUE_COUNT), "f": "0", "h": "0"}
LATE_MS = 100


@dataclass
class Seen(Happened):
    """The messages that were acknowledged."""

    due: dict[bytes, int] = field(default_factory=dict)
    """Timed and delayed messages, with their times."""
    recalled: set[bytes] = field(default_factory=set)
    halves: dict[bytes, dict[str, str]] = field(default_factory=dict)
    """Half messages, with what their end says."""
    committed: set[bytes] = field(default_factory=set)
    plain_count: int = 0


class RetentionCluster(CrashingCluster):
    """A cluster with a client, an operator and the invariant."""

    settings: ClassVar[dict[str, Any]] = {
        "message_delay_level": "1s 90s",
        "timer_flush_interval_ms": 300,
        "mapped_file_size_timer_log": 4096,
        "transaction_time_out": 3_600_000,
        "clean_file_forcibly_enable": False,
    }

    def __init__(self, world: World, flush: str, **settings: Any) -> None:
        super().__init__(world, flush, **settings)
        self.seen: Seen = Seen()
        self.channel: Channel
        self.handles: dict[bytes, str] = {}
        """What recalls each timed message."""

    def tell_steps(self, broker: Broker) -> None:
        """Make retention call `at` at its named steps."""
        broker.state.store.mover.at = self.at

    def delivered(self) -> list[StoredMessage]:
        """Return the visible messages except the ordinary ones, which have their own topic."""
        assert self.broker is not None
        store = self.broker.state.store
        found = []
        for queue_id in range(QUEUE_COUNT):
            place = store.min_queue_offset(TOPIC, queue_id)
            for unit in store.units(TOPIC, queue_id, place, 10_000):
                record = store.message_at(unit.physical_offset)
                # The queue's begin follows a moment later when a file has gone.
                assert record is not None or unit.physical_offset < store.min_physical_offset
                if record is not None:
                    found.append(decode_message(record))
        return found

    def look(self) -> None:
        """Check that no message came twice, early, after its recall, or without a commit."""
        if self.broker is None or not self.node.is_alive:
            return
        found = self.delivered()
        bodies = Counter(bytes(message.body) for message in found)
        assert all(count == 1 for count in bodies.values()), f"twice: {bodies}"
        assert not bodies.keys() & self.seen.recalled, "taken back and delivered"
        assert not (bodies.keys() & self.seen.halves.keys()) - self.seen.committed
        for message in found:
            due_ms = self.seen.due.get(bytes(message.body), 0)
            assert message.store_timestamp_ms >= due_ms, "delivered too early"
        self.seen.looks += 1

    # -- the client -----------------------------------------------------------------------

    async def connect(self) -> None:
        """Return the connection, or a new one after the broker's restart."""
        env = self.client.environment()
        self.channel = await env.network.connect(
            self.node.address, 10911, lambda: Channel(env, self.node.address)
        )

    async def call(self, code: int, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
        """Send a request until there is an answer."""
        ext.setdefault("g", str(self.client.environment().clock.now_ms()))
        for _ in range(200):
            try:
                if self.channel.is_closed:
                    await self.connect()
                return await self.channel.request(RemotingCommand.request(code, ext, body), 2_000)
            except CometError:
                await asyncio.sleep(0.1)
        raise AssertionError("no answer")

    async def send(
        self, body: bytes, properties: str, queue_id: int = 0, topic: str = TOPIC
    ) -> RemotingCommand:
        """Store one message."""
        ext = {**SEND, "b": topic, "e": str(queue_id), "i": properties}
        answer = await self.call(310, ext, body)
        assert answer.code == 0, f"{answer.code} {answer.remark}"
        return answer

    async def store_pending(self, timed: int, delayed: int, halves: int) -> None:
        """Store messages of each kind, and two that are recalled."""
        now_ms = self.client.environment().clock.now_ms
        first = len(self.seen.due)
        for number in range(first, first + timed):
            body, due_ms = b"timed %d" % number, now_ms() + WAIT_MS + 37 * number
            asked = f"TIMER_DELIVER_MS\x01{due_ms}\x02"
            if number % 10 == 3:
                asked, due_ms = "TIMER_DELAY_SEC\x0190\x02", now_ms() + WAIT_MS
            answer = await self.send(body, f"UNIQ_KEY\x01T{number}\x02{asked}", number % 3)
            self.seen.due[body] = due_ms
            self.handles[body] = answer.ext_fields["recallHandle"]
            if number % 10 == 7:
                recalled = await self.recall(answer.ext_fields["recallHandle"])
                assert recalled.code == 0, recalled.remark
                self.seen.recalled.add(body)
        for number in range(delayed):
            body = b"delayed %d" % number
            properties = f"UNIQ_KEY\x01D{number}\x02DELAY\x012\x02"
            self.seen.due[body] = now_ms() + WAIT_MS
            await self.send(body, properties, number % 3)
        for number in range(halves):
            body, key = b"half %d" % number, f"H{number}"
            properties = f"UNIQ_KEY\x01{key}\x02TRAN_MSG\x01true\x02PGROUP\x01p\x02"
            ext = {**SEND, "e": "0", "f": "4", "i": properties}
            answer = await self.call(310, ext, body)
            assert answer.code == 0, answer.remark
            place = int(answer.ext_fields["msgId"][16:], 16)
            self.seen.halves[body] = {
                "producerGroup": "p",
                "tranStateTableOffset": answer.ext_fields["queueOffset"],
                "commitLogOffset": str(place),
                "msgId": key,
                "transactionId": key,
                "fromTransactionCheck": "false",
            }

    async def recall(self, handle: str) -> RemotingCommand:
        """Recall a timed message."""
        ext = {"topic": TOPIC, "recallHandle": handle, "producerGroup": "p"}
        return await self.call(370, ext)

    async def end(self, body: bytes, outcome: int) -> None:
        """Commit (8) or roll back (12) by a half message's first position in the log."""
        if outcome == 8:
            self.seen.committed.add(body)
        ext = {**self.seen.halves[body], "commitOrRollback": str(outcome)}
        answer = await self.call(37, ext)
        assert answer.code == 0, answer.remark

    async def fill(self, file_count: int) -> None:
        """Send ordinary messages until the log has so many more files."""
        for _ in range(file_count * 4):
            self.seen.plain_count += 1
            await self.send(b"plain %d" % self.seen.plain_count + bytes(8_000), "", 1, "Plain")

    # -- the operator ---------------------------------------------------------------------

    async def drop(self, seconds: float = 60) -> None:
        """Remove every present file but the last two, within a time limit."""
        assert self.broker is not None
        wanted = self.broker.state.store._log.files[-2].start
        for _ in range(int(seconds * 5)):
            broker = self.broker
            if broker is not None and self.node.is_alive:
                if broker.state.store.min_physical_offset >= wanted:
                    return

                async def once(broker: Broker = broker) -> None:
                    broker.state.store._retention.drop_files(100)

                await self.node.run(once)
            await asyncio.sleep(0.2)
        raise AssertionError("files did not go")

    async def settle(self) -> None:
        """Wait until everything is due, and check that all of it arrived in time."""
        last_ms = max(self.seen.due.values())
        clock = self.client.environment().clock
        while clock.now_ms() < last_ms + 3_000:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.2)
        found = {bytes(message.body): message for message in self.delivered()}
        owed = set(self.seen.due) - self.seen.recalled | self.seen.committed
        assert owed <= found.keys(), f"lost: {sorted(owed - found.keys())}"
