"""Stores with other file sizes than RocketMQ's defaults change hands between `up` and Java."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from interop.peers import Unavailable
from interop.servers import OurCluster, ServerFailed
from tests.interop.relay import Relay

import cometmq
import cometmq.sync
from cometmq.codec.java_properties import parse_properties
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.wire.body.admin import group_config_to_json
from cometmq.wire.command.codes import RequestCode

pytestmark = pytest.mark.full
TOPIC, GROUP = "Sizes", "readers"
SIZES_OF_JAVA = {
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "6000",
    "mappedFileSizeTimerLog": "4096",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
}
"""Small ones, so that there are several files of most kinds."""
KINDS = {"commitlog": "CommitLog", "consumequeue": "ConsumeQueue", "timerlog": "TimerLog"}


class UpCluster(OurCluster):
    """`cometmq up` without a size, registered at the relay's name server too."""

    def broker_command(self) -> list[str]:
        """The command line of `cometmq up`."""
        settings = {
            "brokerName": self.broker_name,
            "brokerIP1": "127.0.0.1",
            "namesrvAddr": self.name_server,
            # A full disk of the test machine must not end a test.
            "diskMaxUsedSpaceRatio": "95",
        }
        return [
            *(sys.executable, "-m", "cometmq", "up", "--store", str(self.store_path)),
            *("--name-server-port", "0", "--broker-port", str(self.broker_port)),
            *(f"--set={name}={value}" for name, value in settings.items()),
        ]


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Relay]:
    """A fresh directory for `up` and Java, whose settings name no size yet."""
    try:
        relay = Relay(tmp_path)
    except Unavailable as error:
        pytest.skip(f"stores with Java: {error}")
    up = UpCluster(tmp_path / "up", relay.names)
    up.store_path, up.broker_port = relay.store_path, relay.java.broker_port
    up.broker_name = relay.broker_name
    relay.ours = up
    # Java writes this file only when a group changes, and a reading wants it.
    group = group_config_to_json(SubscriptionGroupConfig(GROUP))
    path = relay.store_path / "config" / "subscriptionGroup.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"subscriptionGroupTable": {GROUP: group}}), "utf-8")
    relay.java.settings = {"timerWheelEnable": "true", "diskMaxUsedSpaceRatio": "95"}
    with relay:
        yield relay


def message_count(relay: Relay) -> int:
    """How many messages the topic has got."""
    return sum(queue.max_offset for queue in relay.read_ends(TOPIC))


def write(relay: Relay, word: str, count: int, before: int = 0) -> list[tuple[str, str, str]]:
    """Send messages with keys, and wait for a timed one; return what to ask the index for.

    The topic has `before` messages already.
    """
    keys = [f"{word}-{number}" for number in range(count)]
    end = before + count + 1
    with cometmq.sync.Producer("sizes", name_server=relay.name_server) as producer:
        for key in keys:
            message = cometmq.Message(TOPIC, f"{key} ".encode() * 50, keys=key)
            assert producer.send(message).status.name == "SEND_OK"
        timed = cometmq.Message(TOPIC, b"timed", keys=f"{word}-timed", delay_ms=1_500)
        assert producer.send(timed).status.name == "SEND_OK"
    while message_count(relay) < end:
        time.sleep(0.1)
    saved = relay.ask(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        consumerGroup=GROUP,
        topic=TOPIC,
        queueId=0,
        commitOffset=end // 8,
    )
    assert saved.code == 0
    return [(TOPIC, keys[0], "K"), (TOPIC, keys[-1], "K"), (TOPIC, f"{word}-timed", "K")]


def shown(relay: Relay) -> dict[str, str]:
    """What `mqadmin getBrokerConfig` shows."""
    return parse_properties(relay.ask(RequestCode.GET_BROKER_CONFIG).body.decode())


def test_java_opens_a_store_that_up_made(relay: Relay) -> None:
    """With the setting that the manual names Java reads everything, and without it does not start.

    `up` reads what Java added, also after the start that failed.
    """
    up, java = relay.ours, relay.java
    with relay.held_by(up):
        keys = write(relay, "ours", 100)
        first = relay.read_settled(keys=keys)
    java.settings["mappedFileSizeCommitLog"] = "67108864"
    with relay.held_by(java):
        first.check_same(relay.read(keys=keys))
        keys += write(relay, "java", 100, 101)
        second = relay.read_settled(keys=keys)
        assert len(second.by_key[keys[-1]]) >= 1
    java.settings["mappedFileSizeCommitLog"] = str(1 << 30)
    with pytest.raises(ServerFailed):
        java.start_broker()
    with relay.held_by(up):
        second.check_same(relay.read(keys=keys))
        assert "size holds" not in relay.log_of(up)
        assert shown(relay)["mappedFileSizeCommitLog"] == "67108864"


def test_up_opens_a_store_with_the_sizes_that_java_made(relay: Relay) -> None:
    """No setting is needed: the files say the sizes, the log says so, and Java opens it again."""
    up, java = relay.ours, relay.java
    java.settings |= SIZES_OF_JAVA
    with relay.held_by(java):
        keys = write(relay, "java", 2_500)
        first = relay.read_settled(keys=keys)
    with relay.held_by(up):
        log = relay.log_of(up)
        for key in ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum"):
            assert log.count(f"{key}=") == 1, log
        assert SIZES_OF_JAVA.items() <= shown(relay).items()
        first.check_same(relay.read(keys=keys))
        keys += write(relay, "ours", 2_500, 2_501)
        second = relay.read_settled(keys=keys)
    for folder, kind in KINDS.items():
        files = [path for path in (relay.store_path / folder).rglob("*") if path.is_file()]
        size = int(SIZES_OF_JAVA[f"mappedFileSize{kind}"])
        assert {path.stat().st_size for path in files} == {size}, folder
    with relay.held_by(java):
        second.check_same(relay.read(keys=keys))
