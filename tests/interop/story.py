"""The work of a Java client on a store that two brokers use in turn, and the expected contents.

Job: write messages of every kind through the client, note which were acknowledged or are due, and
read them back. Must not: decide which broker has the store.
"""

import base64
import itertools
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from interop.driver import Message, Peer
from tests.interop.relay import LOG_FILE_BYTES, Reading, Relay, now_ms
from tests.interop.stage import Letter, letter

from cometmq.codec.compression import decompress
from cometmq.codec.stored_message import StoredMessage, decode_messages
from cometmq.store.base.disk import RealDisk
from cometmq.store.offline.inspect import read_records
from cometmq.wire.command.codes import RequestCode

__all__ = [
    "DELAYED",
    "FAILING",
    "FILTERED",
    "LONG_GROUP",
    "LONG_TOPIC",
    "PLAIN",
    "TIMED",
    "TRANSACTED",
    "Story",
]

PLAIN, DELAYED, TIMED, TRANSACTED, FAILING, FILTERED = (
    "Plain",
    "Delayed",
    "Timed",
    "Transacted",
    "Failing",
    "Filtered",
)
LONG_GROUP: Final = "x" * 160
LONG_TOPIC: Final = f"%RETRY%{LONG_GROUP}"
DELIVERY_TIMEOUT_S: Final = 180.0


@dataclass
class Story:
    """The messages that one client sent, and so the expected contents of the store."""

    relay: Relay
    peer: Peer
    number: int = 0
    acked: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    """Topic, queue and offset of acknowledged messages to their bodies."""
    due: dict[str, list[bytes]] = field(default_factory=dict)
    """By topic: bodies that must be delivered there sooner or later."""
    due_when_asked: list[bytes] = field(default_factory=list)
    """Bodies of half messages whose producer will say COMMIT."""
    keys: list[tuple[str, str, str]] = field(default_factory=list)
    noise: random.Random = field(default_factory=lambda: random.Random(7))

    def name(self, word: str) -> str:
        """A name of its own for a client."""
        self.number += 1
        return f"{word}_{self.number}"

    def start(self, kind: str, **more: Any) -> str:
        """Start a producer or consumer of the driver."""
        name = self.name(kind)
        arguments = {"group": f"G_{name}", **more}
        self.peer.call(
            kind, name=name, instance=name, nameServer=self.relay.name_server, **arguments
        )
        return name

    def make_topics(self) -> None:
        """The topics of the story."""
        admin = self.relay.admin
        assert admin is not None
        for topic in (PLAIN, DELAYED, TIMED, TRANSACTED, FAILING, FILTERED):
            admin.create_topic(topic, queue_count=4)

    def keep(self, letters: list[Letter], results: list[dict[str, Any]]) -> None:
        """Note what was acknowledged."""
        for one, result in zip(letters, results, strict=True):
            assert result.get("status") == "SEND_OK", result
            queue = result["queue"]
            place = queue["topic"], queue["id"], result["queueOffset"]
            assert place not in self.acked, f"{place} was given twice"
            self.acked[place] = base64.b64decode(one["body"])

    # -- writing ----------------------------------------------------------------------------

    def write_plain(self, word: str, count: int = 120) -> None:
        """Tagged and keyed messages with properties, small and large, a batch, a long topic."""
        sender = self.start("producer", compressAbove=4096)
        letters = [
            letter(
                PLAIN,
                f"{word} {number} ".encode() + self.noise.randbytes(0 if number % 3 else 10_000),
                number,
                tags=f"T{number % 3}",
                keys=f"{word}-k{number} {word}-all",
                flag=number,
                properties={"colour": "blau-grün", "n2": "x" * (number % 50 + 1)},
            )
            for number in range(count)
        ]
        letters.append(letter(PLAIN, bytes(range(256)) * 2000, count))  # this one is compressed
        # A Java broker on a busy machine answers its first requests late.
        results = self.peer.call("send", name=sender, mode="sync", messages=letters, untilOk=True)
        self.keep(letters, results)
        self.keys += [(PLAIN, f"{word}-k7", "K"), (PLAIN, f"{word}-all", "K")]
        self.keys += [(PLAIN, results[5]["msgId"], "U")]
        batch = [letter(PLAIN, f"{word} batch {number}".encode(), number) for number in range(20)]
        (result,) = self.peer.call("send", name=sender, mode="batch", messages=batch)
        for number, one in enumerate(batch):
            place = {**result, "queueOffset": result["queueOffset"] + number}
            self.keep([one], [place])
        self.peer.call("closeProducer", name=sender)
        for number in range(3):
            self._write_long(f"{word} long {number}".encode())

    def _write_long(self, body: bytes) -> None:
        """A topic over 127 bytes needs the record's second version; clients refuse to send it."""
        answer = self.relay.ask(
            RequestCode.SEND_MESSAGE_V2,
            body=body,
            a="P",
            b=LONG_TOPIC,
            c="TBW102",
            d=1,
            e=0,
            f=0,
            g=now_ms(),
            h=0,
            i="KEYS\x01long\x02",
            j=0,
            k="false",
            m="false",
        )
        assert answer.code == 0, answer.remark
        found = answer.ext_fields or {}
        self.acked[LONG_TOPIC, int(found["queueId"]), int(found["queueOffset"])] = body

    def write_delayed(self, word: str) -> None:
        """Delay levels: one is delivered soon, one after the directory has changed hands."""
        sender = self.start("producer")
        for level in (1, 2, 2, 3):
            body = f"{word} level {level} {self.name('d')}".encode()
            one = letter(DELAYED, body, level, delay=level)
            (result,) = self.peer.call("send", name=sender, mode="sync", messages=[one])
            assert result["status"] == "SEND_OK"
            if level < 3:
                self.due.setdefault(DELAYED, []).append(body)
        self.peer.call("closeProducer", name=sender)

    def write_failing(self, word: str) -> None:
        """A consumer fails twice, so that retry topic and dead letters get their messages."""
        group = f"Failing_{word}"
        sender = self.start("producer")
        letters = [letter(FAILING, f"{word} fails {n}".encode(), n) for n in range(3)]
        self.keep(letters, self.peer.call("send", name=sender, mode="sync", messages=letters))
        consumer = self.start(
            "push",
            group=group,
            topics={FAILING: "*"},
            failTimes=9,
            failLevel=1,
            maxReconsume=1,
        )
        dead = f"%DLQ%{group}"
        self.due[dead] = [base64.b64decode(one["body"]) for one in letters]
        self.wait_delivered(dead, at_least=True)
        self.peer.call("closePush", name=consumer)
        self.peer.call("closeProducer", name=sender)

    def send_timed(self, body: bytes, after_s: float) -> str:
        """A message that is to be recalled before its time; its handle."""
        sender = self.start("producer")
        one = letter(TIMED, body, 0, deliverAt=now_ms() + int(after_s * 1000))
        (result,) = self.peer.call("send", name=sender, mode="sync", messages=[one])
        assert result["status"] == "SEND_OK"
        self.peer.call("closeProducer", name=sender)
        return str(result["recallHandle"])

    def recall(self, handle: str) -> None:
        """Take a timed message back."""
        sender = self.start("producer")
        self.peer.call("recall", name=sender, topic=TIMED, handle=handle)
        self.peer.call("closeProducer", name=sender)

    def write_timed(self, *after_s: float) -> None:
        """Messages for a moment of their own."""
        sender = self.start("producer")
        begin_ms = now_ms()
        for number, wait_s in enumerate(after_s):
            body = f"timed {self.name('t')}".encode()
            one = letter(TIMED, body, number, deliverAt=begin_ms + int(wait_s * 1000))
            (result,) = self.peer.call("send", name=sender, mode="sync", messages=[one])
            assert result["status"] == "SEND_OK"
            self.due.setdefault(TIMED, []).append(body)
        self.peer.call("closeProducer", name=sender)

    def write_transactions(self) -> None:
        """Committed, rolled back, and two that are decided by a later check."""
        plan = [("COMMIT", "UNKNOW"), ("ROLLBACK", "UNKNOW"), ("UNKNOW", "COMMIT")]
        sender = self.transact([*plan, ("UNKNOW", "ROLLBACK")])
        self.wait_delivered(TRANSACTED)
        self.peer.call("closeTransactor", name=sender)

    def transact(self, plan: list[tuple[str, str]]) -> str:
        """Start a transactional producer and send by plan: what it says now, and when asked."""
        sender = self.start("transactor", group="Transactor")
        letters = []
        for number, (local, check) in enumerate(plan):
            body = f"{local} then {check} {self.name('h')}".encode()
            more = {"local": local, "check": check}
            letters.append(letter(TRANSACTED, body, number, properties=more))
            if local == "COMMIT":
                self.due.setdefault(TRANSACTED, []).append(body)
            elif check == "COMMIT":
                self.due_when_asked.append(body)
        results = self.peer.call("transact", name=sender, messages=letters)
        assert [result["status"] for result in results] == ["SEND_OK"] * len(plan)
        return sender

    def flood_and_kill(self, word: str) -> None:
        """Kill the broker while it is sent messages; what it acknowledged counts."""
        sender = self.start("producer")
        letters = [letter(PLAIN, f"{word} flood {n}".encode(), n) for n in range(20_000)]
        self.peer.begin("send", name=sender, mode="sync", messages=letters, progress=True)
        self.peer.wait_sent(sender, 300)
        self.relay.give(signal.SIGKILL)
        answers = self.peer.sent(sender)
        sent = list(itertools.takewhile(lambda one: one.get("status") == "SEND_OK", answers))
        assert 300 <= len(sent) < len(letters)
        self.keep(letters[: len(sent)], sent)
        self.peer.call("closeProducer", name=sender)  # the rest of the flood fails at once

    def tear_last_record(self) -> None:
        """Remove the second half of the log's last record, as after a power cut."""
        records = read_records(RealDisk(), str(self.relay.store_path), count=1_000_000)
        last = records[-1]
        start = last.physical_offset // LOG_FILE_BYTES * LOG_FILE_BYTES
        path = self.relay.store_path / "commitlog" / f"{start:020}"
        half = last.total_size // 2
        with path.open("r+b") as file:
            file.seek(last.physical_offset - start + half)
            file.write(bytes(last.total_size - half))
        self.acked.pop((last.topic, last.queue_id, last.queue_offset), None)

    def filter_some(self) -> None:
        """A consumer that filters by SQL gets what fits; the broker keeps its expression."""

        def fits(found: list[Message]) -> set[int]:
            return {int(message["properties"]["a"]) for message in found}

        consumer = self.start("push", group="Filterer", topics={FILTERED: "a > 5"}, sql=True)
        sender = self.start("producer")
        letters = [letter(FILTERED, b"%d" % n, n, properties={"a": str(n)}) for n in range(10)]
        results = self.peer.call("send", name=sender, mode="sync", messages=letters, untilOk=True)
        self.keep(letters, results)
        got = self.peer.wait_messages(
            consumer, lambda found: len(fits(found)) >= 4, DELIVERY_TIMEOUT_S
        )
        assert fits(got) == {6, 7, 8, 9}
        self.peer.call("closePush", name=consumer)
        self.peer.call("closeProducer", name=sender)

    def write_filtered(self, first: int, count: int) -> None:
        """Messages a = 0 to 9 again and again, while nobody of the group is there."""
        sender = self.start("producer")
        letters = [
            letter(FILTERED, b"%d" % n, n, properties={"a": str(n % 10), "b": str(n)})
            for n in range(first, first + count)
        ]
        results = self.peer.call("send", name=sender, mode="sync", messages=letters, untilOk=True)
        self.keep(letters, results)
        self.peer.call("closeProducer", name=sender)

    def read_filtered(self, first: int, count: int) -> None:
        """The group comes back with its filter: what matches of these comes, nothing else.

        What the group had when it left may come again: a member that leaves at once has not always
        reported its last messages.
        """
        wanted = {str(n) for n in range(first, first + count) if n % 10 > 5}
        consumer = self.start("push", group="Filterer", topics={FILTERED: "a > 5"}, sql=True)
        got = self.peer.wait_messages(
            consumer,
            lambda found: wanted <= {one["properties"].get("b") for one in found},
            DELIVERY_TIMEOUT_S,
        )
        numbers = [int(one["properties"].get("b", -1)) for one in got]
        assert {str(number) for number in numbers if number >= first} == wanted
        assert all(int(one["properties"]["a"]) > 5 for one in got)
        self.peer.call("closePush", name=consumer)

    # -- reading ----------------------------------------------------------------------------

    def delivered(self, topic: str) -> list[bytes]:
        """Bodies in a topic, by pulls of our own."""
        return [
            message.body
            for (name, _), queue in self.relay.read_topic(topic).items()
            for message in queue.messages()
            if name == topic
        ]

    def pulled(self, topic: str) -> list[Message]:
        """All messages of a topic as the Java client pulls and decodes them."""
        consumer = self.start("old")
        found: list[Message] = []
        for queue in self.relay.read_ends(topic):
            place = queue.min_offset
            while place < queue.max_offset:
                where = {"topic": topic, "broker": self.relay.broker_name, "id": queue.queue_id}
                answer = self.peer.call(
                    "pull", name=consumer, queue=where, expression="*", queueOffset=place, max=32
                )
                assert answer["status"] == "FOUND", answer
                found += answer["messages"]
                place = answer["next"]
        self.peer.call("closeOld", name=consumer)
        return found

    def wait_delivered(self, topic: str, *, at_least: bool = False) -> None:
        """Wait until a topic holds each body that is due in it, once (or at least once)."""
        wanted = Counter(self.due[topic])
        deadline = time.monotonic() + DELIVERY_TIMEOUT_S
        while True:
            found = Counter(self.delivered(topic))
            if found >= wanted:
                break
            assert time.monotonic() < deadline, f"{topic} lacks {wanted - found}"
            time.sleep(0.1)
        assert set(found) == set(wanted) or at_least, found - wanted
        assert found == wanted or at_least, f"delivered more than once: {found - wanted}"

    def check_acked(self, reading: Reading) -> None:
        """Every acknowledged message is where its answer said, with its body."""
        for (topic, queue_id, place), body in self.acked.items():
            (message,) = decode_messages(reading.queues[topic, queue_id].records[place])
            assert _plain_body(message) == body, (topic, queue_id, place)


def _plain_body(message: StoredMessage) -> bytes:
    if message.sys_flag & 1:
        return decompress(message.body, message.sys_flag, 1 << 24)
    return message.body
