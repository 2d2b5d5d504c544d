"""Runs one round of one kind of message: all the broker's work from its send to its pull.

Job: send a fixed number of messages of a kind, do the further requests of that kind (commit, lock,
wait for the time), pull all messages as a consumer does, and check each.  The worker is a process
(`python -m bench.worker.kind_worker`, order as JSON on stdin).  Its own speed does not matter: the
result is the broker's processor time by phase.

64 sends are in flight on one connection, later eight pulls of 32; the frames of a window are one
write.

    plain          send, pull
    ordered        send to the queue of its group, lock the queues (41), pull, give them back (42)
    delayed        send with delay level 1, wait for it, pull
    timed          send with an exact time two seconds ahead, wait for it, pull
    transactional  half message, commit (37), pull
    filtered       send, pull with a subscription in SQL92 that every message matches
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from bench.base.control import create_topics
from bench.base.frames import Targets
from bench.base.loads import Round, Rounds, WorkOrder
from bench.base.measure import ProcessReading, pin, read_process
from cometmq.codec.stored_message import StoredMessage, decode_messages
from cometmq.errors import CometError, remote_error
from cometmq.net.env import system_environment
from cometmq.net.loop import run
from cometmq.net.pipelined import PipelinedChannel
from cometmq.wire.command.command import RemotingCommand

__all__ = ["KindRun", "main"]

WINDOW: Final = 64
QUEUES: Final = 8
GROUPS: Final = 64
PULL_COUNT: Final = 32
TIMEOUT_MS: Final = 30_000
ARRIVAL_S_MAX: Final = 120.0
POLL_S: Final = 0.1
SETTLE_S: Final = 1.5
"""After the last pull, until the broker has written and indexed what it left for its timers: a kind
whose messages wait pays for that while they do."""
MESSAGES_PER_SECOND: Final = 5_000
"""So many messages are sent for each second of the order; a fixed number, as some have to wait."""
SEND, PULL, GET_MAX_OFFSET, HEART_BEAT, END, LOCK, UNLOCK = 310, 11, 30, 34, 37, 41, 42
SUCCESS, NOT_FOUND = 0, 19
TIMED_MS: Final = 2_000


def _now_ms() -> int:
    return system_environment().clock.now_ms()


EXTRA: Final[dict[str, Callable[[int], str]]] = {
    "plain": lambda number: "",
    "ordered": lambda number: f"__SHARDINGKEY\x01g{number % GROUPS}\x02",
    "delayed": lambda number: "DELAY\x011\x02",
    "timed": lambda number: f"TIMER_DELIVER_MS\x01{_now_ms() + TIMED_MS}\x02",
    "transactional": lambda number: "TRAN_MSG\x01true\x02PGROUP\x01bench_kinds\x02",
    "filtered": lambda number: f"region\x01eu-west\x02amount\x01{number}\x02",
}
"""What the properties of a message of each kind have beyond those of a plain one."""
FILTER: Final = "region = 'eu-west' AND amount >= 0"


class KindFailed(CometError):
    """A message was refused, lost, repeated or changed: the round does not count."""


@dataclass(slots=True)
class _Meter:
    """The broker's processor time by phase."""

    pid: int
    seconds: dict[str, float] = field(default_factory=dict)
    last: ProcessReading | None = None

    def begin(self) -> None:
        self.last = read_process(self.pid) if self.pid else None

    def phase(self, name: str) -> None:
        """Add the time since the last call to this phase."""
        now = read_process(self.pid) if self.pid else None
        if now is not None and self.last is not None:
            used = now.cpu_s - self.last.cpu_s
            self.seconds[name] = self.seconds.get(name, 0.0) + used
        self.last = now


class KindRun:
    """One round; the `program` of the order's load is the kind of message."""

    def __init__(self, order: WorkOrder, number: int) -> None:
        self.order = order
        self.kind = order.load.program
        self.count = max(WINDOW, int(order.seconds * MESSAGES_PER_SECOND))
        prefix = f"Kinds{order.seed % 1_000_000_000:09d}R{number:03d}T"
        self.targets = Targets(prefix, 1, QUEUES)
        self.topic = self.targets.topic(0)
        self.group = f"bench_kinds_{self.topic}"
        self.client_id = f"127.0.0.1@{prefix}"
        self._queue_of: dict[int, int] = {}
        self._channel = PipelinedChannel(order.address, TIMEOUT_MS)

    def close(self) -> None:
        """Close the connection to the broker."""
        self._channel.close()

    # -- asking ---------------------------------------------------------------------------------

    def _exchange(self, commands: list[RemotingCommand]) -> Iterator[tuple[RemotingCommand, bytes]]:
        """Send requests in windows of one write; yield the answers (code 0 or 19) in order."""
        for first in range(0, len(commands), WINDOW):
            window = commands[first : first + WINDOW]
            for opaque in self._channel.post(window, TIMEOUT_MS):
                answer, body = self._channel.take(opaque, TIMEOUT_MS)
                if answer.code not in (SUCCESS, NOT_FOUND):
                    raise remote_error(answer.code, answer.remark or "")
                yield answer, bytes(body)

    def _ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
        ((answer, _),) = self._exchange([RemotingCommand.request(code, ext, body)])
        return answer

    def _heartbeat(self) -> None:
        """Register as a producer and as a consumer of this topic."""
        is_filtered = self.kind == "filtered"
        subscription = {
            "classFilterMode": False,
            "codeSet": [],
            "expressionType": "SQL92" if is_filtered else "TAG",
            "subString": FILTER if is_filtered else "*",
            "subVersion": _now_ms(),
            "tagsSet": [],
            "topic": self.topic,
        }
        consumer = {
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "consumeType": "CONSUME_PASSIVELY",
            "groupName": self.group,
            "messageModel": "CLUSTERING",
            "subscriptionDataSet": [subscription],
            "unitMode": False,
        }
        body = {
            "clientID": self.client_id,
            "consumerDataSet": [consumer],
            "producerDataSet": [{"groupName": "bench_kinds"}],
        }
        self._ask(HEART_BEAT, {}, json.dumps(body, separators=(",", ":")).encode())

    # -- a message ------------------------------------------------------------------------------

    def _body(self, number: int) -> bytes:
        size = self.order.load.body_bytes
        filler = zlib.crc32(b"%d" % number).to_bytes(4, "big").hex().encode()
        return (b"%012d" % number + filler * (size // 8 + 1))[:size]

    def _send(self, number: int) -> RemotingCommand:
        queue_id = number % GROUPS % QUEUES
        self._queue_of[number] = queue_id
        text = (
            f"KEYS\x01k{number}\x02UNIQ_KEY\x01{self.order.seed % (1 << 64):020X}{number:012d}\x02"
            f"WAIT\x01true\x02TAGS\x01TagA\x02{EXTRA[self.kind](number)}"
        )
        ext = {
            "a": "bench_kinds",
            "b": self.topic,
            "c": "TBW102",
            "d": "4",
            "e": str(queue_id),
            "f": "4" if self.kind == "transactional" else "0",
            "g": str(_now_ms()),
            "h": "0",
            "i": text,
            "j": "0",
            "k": "false",
            "m": "false",
            "n": self.order.broker_name,
        }
        return RemotingCommand.request(SEND, ext, self._body(number))

    def _end(self, half: RemotingCommand) -> RemotingCommand:
        """The commit of the half message whose send had the answer ``half``."""
        given = half.ext_fields
        ext = {
            "producerGroup": "bench_kinds",
            "tranStateTableOffset": given["queueOffset"],
            "commitLogOffset": str(int(given["msgId"][16:], 16)),
            "commitOrRollback": "8",
            "fromTransactionCheck": "false",
            "msgId": given["transactionId"],
            "transactionId": given["transactionId"],
        }
        return RemotingCommand.request(END, ext)

    # -- the phases -----------------------------------------------------------------------------

    def round(self) -> Round:
        """Send the messages, wait for their delivery, pull them, check them."""
        self._heartbeat()
        meter = _Meter(self.order.server_pid)
        # Only the broker's processor time is measured.
        begin, own = time.perf_counter(), time.process_time()
        meter.begin()
        answers = [
            answer for answer, _ in self._exchange([self._send(n) for n in range(self.count)])
        ]
        meter.phase("send")
        if self.kind == "transactional":
            for _ in self._exchange([self._end(answer) for answer in answers]):
                pass
            meter.phase("commit")
        elif self.kind == "ordered":
            self._lock(LOCK)
            meter.phase("lock")
        self._wait_for_all()
        meter.phase("wait")
        records = self._pull_all()
        meter.phase("pull")
        if self.kind == "ordered":
            self._lock(UNLOCK)
            meter.phase("lock")
        seconds = time.perf_counter() - begin
        time.sleep(SETTLE_S)
        meter.phase("settle")
        end = read_process(self.order.server_pid) if self.order.server_pid else None
        self._check(records)
        return Round(
            rate=self.count / seconds,
            messages_rate=self.count / seconds,
            seconds=seconds,
            server_cpu_s=sum(meter.seconds.values()) if meter.seconds else None,
            server_resident_kb=end.resident_kb if end else None,
            server_anonymous_kb=end.anonymous_kb if end else None,
            generator_cpu_s=time.process_time() - own,
            acknowledged=self.count,
            read_back=len(records),
            phases_cpu_s=meter.seconds,
        )

    def _lock(self, code: int) -> None:
        queues = [
            {"brokerName": self.order.broker_name, "queueId": queue_id, "topic": self.topic}
            for queue_id in range(QUEUES)
        ]
        body = {
            "clientId": self.client_id,
            "consumerGroup": self.group,
            "mqSet": queues,
            "onlyThisBroker": False,
        }
        raw = json.dumps(body, separators=(",", ":")).encode()
        ((_, answer),) = self._exchange([RemotingCommand.request(code, {}, raw)])
        if code == LOCK:
            granted = json.loads(answer)["lockOKMQSet"]
            if len(granted) != QUEUES:
                raise KindFailed(f"{len(granted)} of {QUEUES} queues were locked")

    def _wait_for_all(self) -> None:
        """Wait until the queues have every message; a delayed message comes at its time."""
        deadline = time.monotonic() + ARRIVAL_S_MAX
        while True:
            there = 0
            for queue_id in range(QUEUES):
                ext = {"topic": self.topic, "queueId": str(queue_id)}
                there += int(self._ask(GET_MAX_OFFSET, ext).ext_fields["offset"])
            if there >= self.count:
                return
            if time.monotonic() > deadline:
                raise KindFailed(
                    f"{there} of {self.count} messages were delivered after {ARRIVAL_S_MAX:g} s"
                )
            time.sleep(POLL_S)

    def _pull_all(self) -> list[StoredMessage]:
        """Pull every message of the topic, with a pull of each queue in flight."""
        records: list[StoredMessage] = []
        offsets = dict.fromkeys(range(QUEUES), 0)
        while offsets:
            places = list(offsets.items())
            commands = [self._pull(queue_id, offset) for queue_id, offset in places]
            for (queue_id, _), (answer, body) in zip(places, self._exchange(commands), strict=True):
                offsets[queue_id] = int(answer.ext_fields["nextBeginOffset"])
                records += decode_messages(body)
                if offsets[queue_id] >= int(answer.ext_fields["maxOffset"]):
                    del offsets[queue_id]
        return records

    def _pull(self, queue_id: int, queue_offset: int) -> RemotingCommand:
        ext = {
            "consumerGroup": self.group,
            "topic": self.topic,
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
            "maxMsgNums": str(PULL_COUNT),
            "sysFlag": "0",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subVersion": "0",
            "expressionType": "SQL92" if self.kind == "filtered" else "TAG",
        }
        return RemotingCommand.request(PULL, ext)

    def _check(self, records: list[StoredMessage]) -> None:
        """Check that each message came once, unchanged, in its queue, in the order of its group."""
        seen: set[int] = set()
        last: dict[int, int] = {}
        for record in records:
            number = int(record.body[:12])
            if record.body != self._body(number) or number in seen:
                raise KindFailed(f"message {number} was changed, or came twice")
            if record.queue_id != self._queue_of.get(number):
                raise KindFailed(f"message {number} came in queue {record.queue_id}")
            if self.kind == "ordered" and last.get(number % GROUPS, -1) > number:
                raise KindFailed(f"message {number} came after a later one of its group")
            last[number % GROUPS] = number
            seen.add(number)
        if len(seen) != self.count:
            raise KindFailed(f"{len(seen)} of {self.count} messages came")


def main() -> int:
    """Run the worker process."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=WorkOrder)
    pin(order.core)
    rounds = []
    try:
        for number in range(order.rounds):
            one = KindRun(order, number)
            try:
                run(create_topics(system_environment(), order.address, one.targets))
                rounds.append(one.round())
            finally:
                one.close()
    except CometError as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(Rounds(rounds=rounds)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
