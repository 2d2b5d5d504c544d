"""The Java 5.4.0 broker and ours use one store directory in turn, and nothing is lost.

A Java client writes and reads throughout, at either broker.
"""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from interop.driver import Peer
from interop.peers import JAVA_CLIENTS, Unavailable, driver_command
from interop.servers import ServerFailed
from tests.interop.relay import LOG_FILE_BYTES, Reading, Relay
from tests.interop.story import (
    DELAYED,
    FILTERED,
    LONG_GROUP,
    LONG_TOPIC,
    PLAIN,
    TIMED,
    TRANSACTED,
    Story,
)

from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.names import SCHEDULE_TOPIC, TIMER_TOPIC
from cometmq.wire.body.admin import group_config_to_json
from cometmq.wire.command.codes import RequestCode

FOREIGN: Final = (
    "timerwheel",
    "timerlog",
    "config/timercheck",
    "config/timermetrics",
)


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
    # Records that our broker only carries must come back unchanged; timers have their own test.
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


def test_each_broker_reads_what_the_other_left(story: Story) -> None:
    """Java's broker finds our store as it was; after a kill of Java's ours has every message."""
    relay, java, ours = story.relay, story.relay.java, story.relay.ours
    java.settings["timerWheelEnable"] = "false"  # a start that reads the wheel takes seconds more
    with relay.held_by(ours):
        story.make_topics()
        story.write_plain("ours")
        sent = sum(topic == PLAIN for topic, _, _ in story.acked)
        reader = story.start("push", topics={PLAIN: "*"})
        story.peer.wait_messages(reader, lambda received: len(received) >= sent)
        story.peer.call("closePush", name=reader)
        first = relay.read_settled(keys=story.keys)
        story.check_acked(first)
        assert first.consumer_offsets
    with relay.held_by(java, signal.SIGKILL):
        with pytest.raises(ServerFailed, match=f"is in use by process {java.broker_process_id}"):
            ours.start_broker()
        first.check_same(relay.read(keys=story.keys))
        story.write_plain("java")
    with relay.held_by(ours, signal.SIGKILL):
        second = relay.read(keys=story.keys)
        first.check_kept(second)
        story.check_acked(second)


@pytest.mark.full
def test_a_directory_changes_hands_twice(story: Story) -> None:
    """The store goes from Java to ours and back, with messages of each kind."""
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
    """Java's client sends timers; the broker that has the store at their time delivers each once.

    A recalled message never comes, neither from the broker that took it nor from the other.
    """
    relay, java, ours = story.relay, story.relay.java, story.relay.ours
    ours.settings["timerWheelEnable"] = "true"
    java.settings["recallMessageEnable"] = "true"
    java.settings["mappedFileSizeTimerLog"] = ours.settings["mappedFileSizeTimerLog"] = "4096"
    with relay.held_by(java):
        story.make_topics()
        story.write_timed(1, 2)
        story.wait_delivered(TIMED)
        story.recall(story.send_timed(b"Java's, recalled there", 39))
        of_java = story.send_timed(b"Java's, recalled at ours", 39)
        story.write_timed(40)
    with relay.held_by(ours):
        assert "carrying" not in relay.log_of(ours)
        story.recall(of_java)
        story.wait_delivered(TIMED)
        story.write_timed(1, 2)
        story.wait_delivered(TIMED)
        story.recall(story.send_timed(b"ours, recalled there", 39))
        of_ours = story.send_timed(b"ours, recalled at Java's", 39)
        story.write_timed(40)
        story.write_timed(3600)
        story.due[TIMED].pop()
    with relay.held_by(java):
        story.recall(of_ours)
        story.wait_delivered(TIMED)
        story.write_timed(40)
    with relay.held_by(ours):
        story.wait_delivered(TIMED)


@pytest.mark.full
def test_a_java_store_serves_with_us_and_goes_back(story: Story) -> None:
    """Java fills a store; ours gives equal answers and writes; Java then delivers everything."""
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
    """Check that a Java broker keeps all messages and delivers those that ours only carried."""
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
    """Our broker makes the store; Java's reads it and adds to it; ours opens it again."""
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
    """Messages that Java deleted do not exist for us; our broker keeps files that a timer needs."""
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
