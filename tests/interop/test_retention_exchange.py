"""Waiting messages in log files that retention deletes, in a store shared with Java's broker.

Timed, delayed and half messages lie in the first log files; our broker appends them again and
deletes the files.  The broker that has the directory at their time delivers each once, and not
early.
"""

import base64
import signal
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from interop.driver import Message
from tests.interop.relay import Relay, now_ms
from tests.interop.stage import Letter, letter
from tests.interop.story import DELAYED, TIMED, TRANSACTED, Story
from tests.interop.test_store_exchange import story

from cometmq.model.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC

__all__ = ["story"]

pytestmark = pytest.mark.full

DUE_S: Final = 90
"""Long enough for two retentions and a change of hands: what is due within 10 s is not moved."""
LEVEL: Final = 2
WAITING: Final = (TIMER_TOPIC, SCHEDULE_TOPIC, HALF_TOPIC)
UNDECIDED: Final = [("COMMIT", "UNKNOW"), ("UNKNOW", "COMMIT"), ("UNKNOW", "ROLLBACK")]
ASK: Final = {"transactionCheckInterval": "1000", "transactionTimeOut": "1000"}
ASK_NOBODY: Final = {"transactionCheckInterval": "600000", "transactionTimeOut": "3600000"}


@dataclass
class Waiting:
    """Messages with a time of delivery, by their bodies."""

    story: Story
    letters: dict[bytes, Letter] = field(default_factory=dict)
    results: dict[bytes, dict[str, Any]] = field(default_factory=dict)

    def send(self, word: str) -> None:
        """Timed ones of each kind, two of them in one slot, and some of one delay level."""
        at = now_ms() + DUE_S * 1000
        times = (
            {"deliverAt": at},
            {"deliverAt": at},
            {"deliverAt": at // 1000 * 1000},  # to the second: Java's slot before it
            {"delaySec": DUE_S},
            {"delayMs": DUE_S * 1000 + 321},
        )
        letters = [letter(TIMED, b"", n, **when) for n, when in enumerate(times)]
        letters += [letter(DELAYED, b"", n, delay=LEVEL) for n in range(3)]
        for number, one in enumerate(letters):
            body = f"{word} {one['topic']} {number} ".encode() * 40
            one |= {"body": base64.b64encode(body).decode(), "tags": word, "keys": f"k{number}"}
            one["properties"]["colour"] = "blau-grün"
            self.letters[body] = one
            self.story.due.setdefault(one["topic"], []).append(body)
        sender = self.story.start("producer")
        results = self.story.peer.call("send", name=sender, mode="sync", messages=letters)
        assert [result["status"] for result in results] == ["SEND_OK"] * len(letters)
        for one, result in zip(letters, results, strict=True):
            self.results[base64.b64decode(one["body"])] = result
        self.story.peer.call("closeProducer", name=sender)

    def due_ms(self, body: bytes, born_ms: int) -> int:
        """The earliest time of a message: a delay counts from its arrival at the broker."""
        one = self.letters[body]
        if "deliverAt" in one:
            return int(one["deliverAt"])
        if "delay" in one:
            # Either clock may have been read just before its millisecond ended.
            return born_ms + DUE_S * 1000 - 50
        return born_ms + int(one.get("delayMs", 0)) + int(one.get("delaySec", 0)) * 1000

    def check(self, received: list[Message], not_before_ms: int) -> None:
        """Each came once, as it was sent, in time, and from the broker that has the store now."""
        got = {base64.b64decode(one["body"]): one for one in received}
        assert len(got) == len(received)
        topics = {one["topic"] for one in received}
        wanted = {body for body, one in self.letters.items() if one["topic"] in topics}
        assert wanted <= set(got)
        for body in wanted:
            sent, came = self.letters[body], got[body]
            assert came["msgId"] == self.results[body]["msgId"]
            assert (came["tags"], came["keys"]) == (sent["tags"], sent["keys"])
            assert sent["properties"].items() <= came["properties"].items()
            assert came["reconsumeTimes"] == 0
            assert came["storeTime"] >= self.due_ms(body, came["bornTime"]), body
            assert came["storeTime"] >= not_before_ms, f"{body!r} came too early for this test"


def prepare(story: Story) -> Waiting:
    """Give both brokers the same settings, so that each reads the files of the other."""
    for cluster in (story.relay.java, story.relay.ours):
        cluster.settings |= {
            "timerWheelEnable": "true",
            "recallMessageEnable": "true",
            "mappedFileSizeTimerLog": "4096",
            "messageDelayLevel": f"1s {DUE_S}s 1h",
        }
    every_hour = ";".join(f"{hour:02}" for hour in range(24))
    story.relay.ours.settings["deleteWhen"] = every_hour
    return Waiting(story)


def places(relay: Relay) -> dict[str, list[int]]:
    """The physical offsets of the messages in the queues of waiting messages."""
    return {
        topic: [
            message.physical_offset
            for queue in relay.read_topic(topic).values()
            for message in queue.messages()
        ]
        for topic in WAITING
    }


def let_go(story: Story) -> dict[str, list[int]]:
    """Delete all log files up to now, and with them every record that waits in one.

    Messages that do not wait, such as one that was committed at once, are deleted too.
    """
    relay = story.relay
    if TRANSACTED in story.due:
        story.wait_delivered(TRANSACTED)
        story.due[TRANSACTED].clear()
    before = places(relay)
    story.write_plain(story.name("fill"))
    old = relay.log_files()[:-1]
    relay.make_old(old)
    relay.wait_log_files(lambda names: not set(names) & set(old))
    after = places(relay)
    begin = int(relay.log_files()[0])
    assert all(place < begin for found in before.values() for place in found)
    assert all(place >= begin for found in after.values() for place in found)
    return after


def nothing_came(story: Story) -> bool:
    """Whether no waiting message has come yet."""
    return not story.delivered(TIMED) and not story.delivered(DELAYED)


def check_all(story: Story, waiting: Waiting, taken_ms: int) -> None:
    """Each due message comes once; a later timer comes when the slots before it are empty."""
    story.wait_delivered(DELAYED)
    story.wait_delivered(TIMED)
    story.write_timed(2)
    for topic in (TIMED, DELAYED):
        story.wait_delivered(topic)
        waiting.check(story.pulled(topic), taken_ms)


def check_asked(story: Story, producer: str) -> None:
    """A producer was asked about undecided messages only; those it commits come."""
    story.due[TRANSACTED] += story.due_when_asked
    story.wait_delivered(TRANSACTED)
    bodies = Counter(
        base64.b64decode(one["body"])
        for one in story.peer.wait_messages(
            producer,
            lambda got: {"COMMIT", "ROLLBACK"} <= {one["properties"]["check"] for one in got},
            timeout_s=90,
        )
    )
    assert all(body.startswith(b"UNKNOW then") for body in bodies), bodies
    assert set(story.due_when_asked) <= set(bodies)
    for message in story.pulled(TRANSACTED):
        assert message["properties"]["PGROUP"] == "Transactor"
        assert message["properties"]["TRAN_MSG"] == "true"


def check_same_again(story: Story) -> None:
    """The next broker of the store has no message to deliver."""
    story.write_timed(2)
    for topic in (TIMED, DELAYED, TRANSACTED):
        story.wait_delivered(topic)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_java_delivers_what_ours_appended_again(story: Story, end: signal.Signals) -> None:
    """Twice moved, once moved and never moved: all come from Java's broker, once and in time."""
    relay, java, ours = story.relay, story.relay.java, story.relay.ours
    waiting = prepare(story)
    ours.settings |= ASK_NOBODY
    java.settings |= ASK
    with relay.held_by(ours, end):
        story.make_topics()
        waiting.send("first")
        story.recall(story.send_timed(b"recalled before it moves", DUE_S))
        recalled_there = story.send_timed(b"recalled at Java's", DUE_S)
        producer = story.transact(UNDECIDED)
        assert {topic: len(found) for topic, found in places(relay).items()} == {
            TIMER_TOPIC: 5 + 3,
            SCHEDULE_TOPIC: 3,
            HALF_TOPIC: 3,
        }
        # A delayed message becomes a timer, and a transaction that has ended does not stay.
        moved = {TIMER_TOPIC: 5 + 3 + 3, SCHEDULE_TOPIC: 0, HALF_TOPIC: 2}
        assert {topic: len(found) for topic, found in let_go(story).items()} == moved
        waiting.send("second")
        moved[TIMER_TOPIC] += 5 + 3
        assert {topic: len(found) for topic, found in let_go(story).items()} == moved
        waiting.send("third")
        assert nothing_came(story), f"{DUE_S} s were too short for this machine"
    taken_ms = now_ms()
    with relay.held_by(java):
        story.recall(recalled_there)
        check_all(story, waiting, taken_ms)
        check_asked(story, producer)
        levels = {queue.queue_id: queue.max_offset for queue in relay.read_ends(SCHEDULE_TOPIC)}
    assert relay.config("delayOffset.json")["offsetTable"][str(LEVEL)] == levels[LEVEL - 1] == 9
    with relay.held_by(ours):
        check_same_again(story)


def test_ours_delivers_what_java_left_in_files_that_go(story: Story) -> None:
    """Moved, and never moved: all come from our broker, once and in time."""
    relay, java, ours = story.relay, story.relay.java, story.relay.ours
    waiting = prepare(story)
    ours.settings |= ASK
    with relay.held_by(java):
        story.make_topics()
        waiting.send("first")
        story.recall(story.send_timed(b"recalled before it moves", DUE_S))
        recalled_there = story.send_timed(b"recalled at ours", DUE_S)
        story.peer.call("closeTransactor", name=story.transact(UNDECIDED))
        story.write_plain("java")
        waiting.send("second")
        assert nothing_came(story)
    taken_ms = now_ms()
    with relay.held_by(ours):
        assert "carrying" not in relay.log_of(ours)
        let_go(story)
        waiting.send("third")
        story.recall(recalled_there)
        # A producer is asked once it is known, which a first message of its own sees to.
        check_asked(story, story.transact([("COMMIT", "UNKNOW")]))
        check_all(story, waiting, taken_ms)
    with relay.held_by(java):
        check_same_again(story)
