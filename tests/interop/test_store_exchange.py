"""One store directory, held in turn by the Java 5.4.0 broker and by ours: nothing is lost.

A Java client writes and reads throughout, whoever has the directory.
"""

import base64
import itertools
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from interop.driver import Message, Peer
from interop.peers import JAVA_CLIENTS, Unavailable, driver_command
from interop.servers import ServerFailed
from tests.interop.relay import LOG_FILE_BYTES, Reading, Relay, now_ms
from tests.interop.stage import Letter, letter

from cometmq.codec.compression import decompress
from cometmq.codec.stored_message import StoredMessage, decode_messages
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.names import SCHEDULE_TOPIC, TIMER_TOPIC
from cometmq.store.disk import RealDisk
from cometmq.store.inspect import read_records
from cometmq.wire.bodies import group_config_to_json
from cometmq.wire.codes import RequestCode

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
FOREIGN: Final = (
    "timerwheel",
    "timerlog",
    "config/timercheck",
    "config/timermetrics",
)
DELIVERY_TIMEOUT_S: Final = 180.0


@dataclass
class Story:
    """What one client did to the store, and what must therefore be in it."""

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
        """Take the second half of the log's last record away, as a power cut may."""
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
        consumer = self.start("push", group="Filterer", topics={FILTERED: "a > 5"}, sql=True)
        sender = self.start("producer")
        letters = [letter(FILTERED, b"%d" % n, n, properties={"a": str(n)}) for n in range(10)]
        self.keep(letters, self.peer.call("send", name=sender, mode="sync", messages=letters))
        got = self.peer.wait_messages(consumer, lambda found: len(found) >= 4, DELIVERY_TIMEOUT_S)
        assert {int(message["properties"]["a"]) for message in got} == {6, 7, 8, 9}
        self.peer.call("closePush", name=consumer)
        self.peer.call("closeProducer", name=sender)

    def write_filtered(self, first: int, count: int) -> None:
        """Messages a = 0 to 9 again and again, while nobody of the group is there."""
        sender = self.start("producer")
        letters = [
            letter(FILTERED, b"%d" % n, n, properties={"a": str(n % 10), "b": str(n)})
            for n in range(first, first + count)
        ]
        self.keep(letters, self.peer.call("send", name=sender, mode="sync", messages=letters))
        self.peer.call("closeProducer", name=sender)

    def read_filtered(self, first: int, count: int) -> None:
        """The group comes back with its filter: what matches of these comes, nothing else."""
        wanted = {str(n) for n in range(first, first + count) if n % 10 > 5}
        consumer = self.start("push", group="Filterer", topics={FILTERED: "a > 5"}, sql=True)
        got = self.peer.wait_messages(
            consumer,
            lambda found: wanted <= {one["properties"].get("b") for one in found},
            DELIVERY_TIMEOUT_S,
        )
        assert {one["properties"]["b"] for one in got} == wanted
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


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    """A fresh directory and a Java client."""
    client = f"java-{JAVA_CLIENTS[0]}"
    try:
        relay = Relay(tmp_path)
        command = driver_command(client, tmp_path / "home")
    except Unavailable as error:
        pytest.skip(f"stores with Java: {error}")
    # Names of this length come from the broker itself (retries of POP); nobody can ask for them.
    group = group_config_to_json(SubscriptionGroupConfig(LONG_GROUP))
    path = relay.store_path / "config" / "subscriptionGroup.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"subscriptionGroupTable": {LONG_GROUP: group}}), "utf-8")
    # What is only carried must come back as it went; the timers we serve have a test of their own.
    relay.ours.settings["timerWheelEnable"] = "false"
    with relay, Peer(client, command, tmp_path / "client") as peer:
        yield Story(relay, peer)


def java_writes_everything(story: Story) -> None:
    """All kinds of message a Java broker stores, some of them still under way."""
    story.make_topics()
    story.write_plain("java")
    story.write_plain("java2")
    story.write_delayed("java")
    story.write_failing("java")
    story.write_timed(2, 3600)
    story.due[TIMED].pop()  # an hour is too long for a test: it is only carried
    story.write_transactions()
    story.filter_some()
    story.wait_delivered(TIMED)


def test_a_directory_changes_hands_twice(story: Story) -> None:
    """The short form: from Java to ours and back, with something of each kind."""
    relay, java, ours = story.relay, story.relay.java, story.relay.ours
    with relay.held_by(java):
        story.make_topics()
        story.write_plain("java")
        story.write_timed(3600)
        story.peer.call("closeTransactor", name=story.transact([("UNKNOW", "COMMIT")]))
        first = relay.read_settled(keys=story.keys)
        story.check_acked(first)
        story.write_delayed("java")
        with pytest.raises(ServerFailed, match=f"is in use by process {java.broker_process_id}"):
            ours.start_broker()
    foreign = relay.digests(*FOREIGN)
    with relay.held_by(ours):
        assert "carrying 1 timer message: this" in relay.log_of(ours)
        first.check_same(relay.read(keys=story.keys), besides=(DELAYED, SCHEDULE_TOPIC))
        story.write_plain("ours")
        story.wait_delivered(DELAYED)
        second = relay.read(keys=story.keys)
        story.check_acked(second)
    assert relay.digests(*FOREIGN) == foreign
    with relay.held_by(java):
        second.check_same(relay.read(keys=story.keys))


@pytest.mark.full
def test_timers_change_hands(story: Story) -> None:
    """Java's client sends them; whoever has the directory when they are due delivers each once."""
    relay, java, ours = story.relay, story.relay.java, story.relay.ours
    ours.settings["timerWheelEnable"] = "true"
    java.settings["mappedFileSizeTimerLog"] = ours.settings["mappedFileSizeTimerLog"] = "4096"
    with relay.held_by(java):
        story.make_topics()
        story.write_timed(1, 2, 30)
        ours_has = story.due[TIMED].pop()
        story.wait_delivered(TIMED)
        story.due[TIMED].append(ours_has)
    with relay.held_by(ours):
        assert "carrying" not in relay.log_of(ours)
        story.wait_delivered(TIMED)
        story.write_timed(1, 2, 40, 3600)
        story.due[TIMED].pop()
        java_has = story.due[TIMED].pop()
        story.wait_delivered(TIMED)
        story.due[TIMED].append(java_has)
    with relay.held_by(java):
        story.wait_delivered(TIMED)
        story.write_timed(40)
    with relay.held_by(ours):
        story.wait_delivered(TIMED)


@pytest.mark.full
def test_a_java_store_serves_with_us_and_goes_back(story: Story) -> None:
    """Java fills it; ours gives equal answers and writes; Java gets it back and delivers all."""
    relay, java, ours = story.relay, story.relay.java, story.relay.ours
    with relay.held_by(java):
        java_writes_everything(story)
        story.wait_delivered(DELAYED)
        first = relay.read_settled(keys=story.keys)
        story.check_acked(first)
        pulled = story.pulled(PLAIN)
        assert len(pulled) > 250
        story.write_delayed("between")
        story.write_timed(25)  # due when ours has the directory, even on a busy machine
    foreign = relay.digests(*FOREIGN)
    assert len(foreign) >= 4
    assert len(relay.log_files()) > 2
    with relay.held_by(ours):
        assert "carrying 2 timer messages: this broker" in relay.log_of(ours)
        second = relay.read(keys=story.keys)
        first.check_same(second, besides=(TIMED, TIMER_TOPIC, DELAYED, SCHEDULE_TOPIC))
        assert story.pulled(PLAIN) == pulled
        story.write_plain("ours")
        story.write_delayed("ours")
        story.write_failing("ours")
        story.wait_delivered(DELAYED)
        third = relay.read_settled(keys=story.keys)
        story.check_acked(third)
    assert relay.digests(*FOREIGN) == foreign
    java_delivers_the_rest(story, third)


def java_delivers_the_rest(story: Story, before: Reading, *, at_least: bool = False) -> None:
    """A Java broker gets the directory back: it keeps all, and delivers what was only carried."""
    relay, java = story.relay, story.relay.java
    java.settings |= {"transactionCheckInterval": "1000", "transactionTimeOut": "1000"}
    with relay.held_by(java):
        back = relay.read(keys=story.keys)
        before.check_kept(back)
        story.check_acked(back)
        for key, found in before.by_key.items():
            # After a kill Java drops its newest index files and indexes a part of the log again.
            assert set(found) <= set(back.by_key[key]) or at_least, key
        # A producer is asked once it is known, which a first message of its own sees to.
        checker = story.transact([("COMMIT", "UNKNOW")])
        story.due[TRANSACTED] += story.due_when_asked
        story.wait_delivered(TRANSACTED, at_least=at_least)
        asked = {message["properties"]["check"] for message in story.peer.messages(checker)}
        assert asked == {"COMMIT", "ROLLBACK"}
        for topic in (TIMED, DELAYED):
            story.wait_delivered(topic, at_least=at_least)
        story.filter_some()


@pytest.mark.full
def test_bitmaps_of_either_broker_serve_the_other(story: Story) -> None:
    """Each writes messages for a group that is away, with bitmaps; the other serves it by them."""
    relay, java, ours = story.relay, story.relay.java, story.relay.ours
    for cluster in (java, ours):
        cluster.settings |= {
            "enablePropertyFilter": "true",
            "enableConsumeQueueExt": "true",
            "enableCalcFilterBitMap": "true",
            "mappedFileSizeConsumeQueueExt": "4096",
        }
    with relay.held_by(ours):
        story.make_topics()
        story.filter_some()
        story.write_filtered(0, 600)
    files = sorted((relay.store_path / "consumequeue_ext" / FILTERED).rglob("0*"))
    assert len(files) > 4
    with relay.held_by(java):
        story.read_filtered(0, 600)
        story.write_filtered(600, 600)
    assert len(list((relay.store_path / "consumequeue_ext" / FILTERED).rglob("0*"))) > len(files)
    with relay.held_by(ours):
        story.read_filtered(600, 600)
        story.write_filtered(1200, 300)
        story.read_filtered(1200, 300)


@pytest.mark.full
def test_a_store_of_ours_opens_in_java(story: Story) -> None:
    """Ours makes the directory; Java reads and goes on; ours has it back."""
    relay, java, ours = story.relay, story.relay.java, story.relay.ours
    with relay.held_by(ours):
        assert "carrying" not in relay.log_of(ours)
        story.make_topics()
        story.write_plain("ours")
        story.write_plain("ours2")
        story.write_failing("ours")
        first = relay.read_settled(keys=story.keys)
        story.check_acked(first)
        story.write_delayed("ours")
    with relay.held_by(java):
        first.check_same(relay.read(keys=story.keys), besides=(DELAYED, SCHEDULE_TOPIC))
        story.wait_delivered(DELAYED)
        java_writes_everything(story)
        second = relay.read_settled(keys=story.keys)
        story.check_acked(second)
    with relay.held_by(ours):
        second.check_same(relay.read(keys=story.keys), besides=(DELAYED, SCHEDULE_TOPIC))
        story.write_delayed("again")
        story.wait_delivered(DELAYED)


@pytest.mark.full
def test_killed_brokers_hand_the_store_over(story: Story) -> None:
    """Five lives in turn, three of them killed while they were sent messages."""
    relay, java, ours = story.relay, story.relay.java, story.relay.ours
    relay.take(java)
    java_writes_everything(story)
    first = relay.read_settled(keys=story.keys)
    story.write_delayed("between")
    story.flood_and_kill("java")
    story.tear_last_record()
    foreign = relay.digests(*FOREIGN)
    for word in ("second", "fourth"):
        relay.take(ours)
        # A killed Java broker may not have written its filters, which it does every ten seconds.
        assert "carrying 1 timer message" in relay.log_of(ours)
        second = relay.read(keys=story.keys)
        first.check_kept(second)
        story.check_acked(second)
        story.write_plain(word)
        story.write_delayed(word)
        story.write_failing(word)
        story.flood_and_kill(word)
        if word == "second":
            assert relay.digests(*FOREIGN) == foreign
            relay.take(java)
            third = relay.read(keys=story.keys)
            second.check_kept(third)
            story.check_acked(third)
            story.write_plain("third")
            story.flood_and_kill("third")
            first = third
    java_delivers_the_rest(story, second, at_least=True)


@pytest.mark.full
def test_deleted_heads_and_files_that_are_needed(story: Story) -> None:
    """What Java deleted is gone with us too; we delete in turn, but not what a timer needs."""
    relay, java, ours = story.relay, story.relay.java, story.relay.ours
    with relay.held_by(java):
        story.make_topics()
        for word in ("a", "b", "c"):
            story.write_plain(word)
        story.write_timed(3600)
        story.write_plain("d")
        story.write_plain("e")
        relay.read_settled()
        before = relay.log_files()
        assert len(before) > 6
        relay.make_old(before[:2])
        relay.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)
        relay.wait_log_files(lambda names: names == before[2:])
        relay.wait_heads(PLAIN, LONG_TOPIC)
        first = relay.read_settled(keys=story.keys)
        assert first.queues[PLAIN, 0].min_offset > 0
        assert first.queues[TIMER_TOPIC, 0].min_offset == 0
    ours.settings["deleteWhen"] = ";".join(f"{hour:02}" for hour in range(24))
    with relay.held_by(ours):
        first.check_same(relay.read(keys=story.keys))
        assert "carrying 1 timer message" in relay.log_of(ours)
        relay.make_old(before[2:])
        (timer,) = first.queues[TIMER_TOPIC, 0].messages()
        needed = [name for name in before if int(name) + LOG_FILE_BYTES > timer.physical_offset]
        assert 1 < len(needed) < len(before) - 2
        relay.wait_log_files(lambda names: names == needed)
        relay.wait_log("timer messages for a Java broker need it")
        second = relay.read(keys=story.keys)
        assert second.queues[PLAIN, 0].min_offset > first.queues[PLAIN, 0].min_offset
        assert second.queues[TIMER_TOPIC, 0] == first.queues[TIMER_TOPIC, 0]
    assert relay.log_files() == needed
    with relay.held_by(java):
        second.check_same(relay.read(keys=story.keys))
