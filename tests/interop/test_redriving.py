"""Dead letters at RocketMQ's broker, sent again by `cometmq dead-letters redrive`."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from interop.peers import JAVA_SERVER
from tests.interop.stage import Stage

import cometmq
import cometmq.sync
from cometmq.cli.main import root

COUNT = 5


@pytest.mark.at(f"java-{JAVA_SERVER}")
def test_dead_letters_of_a_java_broker_are_redriven_once_from_two_folders(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger is a topic, and the lock of its queue an ordered consumer's, at any broker."""
    topic, group = stage.topic(), stage.unique("Billing")
    address = stage.cluster.name_server
    tries: list[tuple[bytes, str | None]] = []
    is_dead, is_back = threading.Event(), threading.Event()

    def handle(message: cometmq.ReceivedMessage) -> cometmq.DeadLetter | None:
        origin = message.properties.get("REPLAY_OF")
        tries.append((message.body, origin))
        if len(tries) == COUNT:
            is_dead.set()
        if len(tries) == 2 * COUNT:
            is_back.set()
        return cometmq.DeadLetter("refused") if origin is None else None

    def redrive(folder: str, *words: str) -> Any:
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        command = ["dead-letters", "redrive", group, "-n", address, "--yes", "--json", *words]
        done = CliRunner().invoke(root, command, standalone_mode=False)
        assert done.exception is None, done.output
        facts = json.loads(done.stdout)
        return facts["sent"], facts["sent_before"]

    bodies = [b"%d" % number for number in range(COUNT)]
    with cometmq.sync.Producer("P_redriving", name_server=address) as producer:
        for body in bodies:
            producer.send(cometmq.Message(topic, body, keys=f"k{body.decode()}"))
    with cometmq.sync.PushConsumer(
        group, {topic: "*"}, handle, name_server=address, consume_from="first"
    ):
        assert is_dead.wait(60)
    stage.wait_route(f"%DLQ%{group}")
    some = [word for number in range(2) for word in ("--key", f"k{number}")]
    assert redrive("mine", *some) == (2, 0)
    assert redrive("yours") == (COUNT - 2, 2)
    assert redrive("ours") == (0, COUNT)
    with cometmq.sync.PushConsumer(
        group, {topic: "*"}, handle, name_server=address, consume_from="first"
    ):
        assert is_back.wait(60)
    assert sorted(body for body, origin in tries if origin) == bodies
