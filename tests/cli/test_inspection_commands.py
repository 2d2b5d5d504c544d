"""Commands that look into a real cluster: messages, clients, brokers, and what is wrong."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from tests.cli.invoking import Run, invoke, rows

from cometmq import ReceivedMessage, RetryLater
from cometmq.model import SubscriptionGroupConfig
from cometmq.model.message import Message
from cometmq.sync import Admin, Producer, PushConsumer
from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """One cluster for all tests here; each uses topics of its own."""
    with threaded_cluster({}) as running:
        yield running


@pytest.fixture
def cometmq(cluster: EmbeddedCluster) -> Run:
    """`cometmq ...` with NAMESRV_ADDR set; a CometError becomes its exit code."""

    def run(*arguments: str, code: int = 0) -> Result:
        environment = {"NAMESRV_ADDR": cluster.name_server_address}
        return invoke(arguments, environment, code=code)

    return run


def findings(result: Result) -> list[dict[str, Any]]:
    """What `doctor` found, but for this machine's disk, which may be full."""
    listing = rows(result)
    return [row for row in listing if row["level"] != "ok" and "disk" not in row["check"]]


@pytest.fixture
def sent(cluster: EmbeddedCluster, request: pytest.FixtureRequest) -> tuple[str, str]:
    """The topic and the id of one message with the key ``order-1`` and a property."""
    topic = "".join(part.title() for part in request.node.name.split("_"))
    with Admin(name_server=cluster.name_server_address) as admin:
        admin.create_topic(topic, queue_count=2)
    with Producer("inspectors", name_server=cluster.name_server_address) as producer:
        message = Message(topic, b"\xff\x00", keys="order-1", tags="new", properties={"a": "b"})
        return topic, producer.send(message).message_id


def test_message_by_id_key_and_offset(cometmq: Run, sent: tuple[str, str]) -> None:
    """All three ways lead to the same message, whose body is no text."""
    topic, message_id = sent
    got = json.loads(cometmq("message", "get", message_id, "--topic", topic, "--json").stdout)
    assert (got["topic"], got["tags"], got["body_base64"]) == (topic, "new", "/wA=")
    assert got["properties"]["a"] == "b"
    shown = cometmq("message", "get", got["offset_message_id"])
    assert "property a" in shown.stdout
    assert cometmq("message", "get", message_id, "--topic", topic, "--body").stdout_bytes == (
        b"\xff\x00"
    )
    (found,) = rows(cometmq("message", "query", topic, "order-1", "--from", "1h", "--json"))
    assert found == got
    assert rows(cometmq("message", "query", topic, "order-1", "--to", "1h", "--json")) == []
    queue = f"{got['broker']}:{got['queue_id']}"
    (read,) = rows(cometmq("message", "show", topic, "--queue", queue, "--json"))
    assert read == got
    cometmq("message", "get", "0" * 32, "--topic", topic, code=4)
    cometmq("message", "get", message_id, "--json", "--body", code=2)
    cometmq("message", "show", topic, "--queue", "broker-a:9", code=2)
    cometmq("message", "show", topic, "--queue", "nine", code=2)
    beyond = cometmq("message", "show", topic, "--queue", queue, "--offset", "7")
    assert "has the offsets 0 to 0" in beyond.stderr


def test_clients_and_a_direct_call(
    cometmq: Run, cluster: EmbeddedCluster, sent: tuple[str, str]
) -> None:
    """A member is listed, tells its queues and stacks, and handles a message on request."""
    topic, message_id = sent
    handled: list[bytes] = []
    is_first = threading.Event()

    def handle(message: ReceivedMessage) -> RetryLater | None:
        handled.append(message.body)
        is_first.set()
        return RetryLater() if len(handled) == 3 else None

    address = cluster.name_server_address
    with PushConsumer("inspected", {topic: "*"}, handle, name_server=address, consume_from="first"):
        assert is_first.wait(60)
        (member,) = rows(cometmq("client", "list", "--group", "inspected", "--json"))
        assert (member["role"], member["language"]) == ("consumer", "PYTHON")
        assert f"{topic} *" in member["subscriptions"]
        client_id = member["client_id"]
        state = json.loads(
            cometmq("client", "show", client_id, "--group", "inspected", "--json").stdout
        )
        assert {queue["queue_id"] for queue in state["queues"] if queue["topic"] == topic} == {0, 1}
        stacks = cometmq("client", "stacks", client_id, "--group", "inspected").stdout
        assert "File " in stacks
        direct = ("message", "send-direct", message_id, "--topic", topic, "--group", "inspected")
        (outcome,) = rows(cometmq(*direct, "--json"))
        assert (outcome["result"], outcome["client_id"]) == ("CR_SUCCESS", client_id)
        (outcome,) = rows(cometmq(*direct, "--client", client_id, "--json", code=1))
        assert outcome["result"] == "CR_LATER"
        assert handled == [b"\xff\x00"] * 3
        cometmq("client", "show", "nobody", "--group", "inspected", code=4)
    assert (
        "no member of inspected is online"
        in cometmq("client", "list", "--group", "inspected").stderr
    )
    cometmq(*direct, code=4)


def test_cluster_and_broker(cometmq: Run, sent: tuple[str, str]) -> None:
    """One broker that serves; its figures; one that does not answer says so."""
    (row,) = rows(cometmq("cluster", "list", "--json"))
    assert (row["broker"], row["id"], row["state"]) == ("broker-a", 0, "serving")
    assert row["in_today"] >= 1
    figures = {
        each["figure"]: each["value"] for each in rows(cometmq("broker", "status", "--json"))
    }
    assert figures["brokerVersionDesc"] == row["release"]
    cometmq("broker", "status", "broker-z", code=2)


def test_broker_settings_change_while_it_runs(cometmq: Run) -> None:
    """All of them or none, and the broker's own sentence where it refuses."""
    assert cometmq("broker", "config", "get", "fileReservedTime").stdout == "72\n"
    cometmq("broker", "config", "set", "fileReservedTime=48", "--yes")
    listed = {
        row["key"]: row["value"] for row in rows(cometmq("broker", "config", "list", "--json"))
    }
    assert listed["fileReservedTime"] == "48"
    fixed = cometmq("broker", "config", "set", "fileReservedTime=24", "listenPort=3", "-y", code=1)
    assert "listenPort cannot change while the broker runs" in str(fixed.exception)
    assert cometmq("broker", "config", "get", "fileReservedTime").stdout == "48\n"
    near = cometmq("broker", "config", "get", "fileReservedTim", code=2)
    assert "did you mean fileReservedTime?" in str(near.exception)
    cometmq("broker", "config", "set", "fileReservedTime", "-y", code=2)
    asked = cometmq("broker", "config", "set", "fileReservedTime=24", code=2)
    assert "--yes" in str(asked.exception)


def test_ping_and_doctor(cometmq: Run, cluster: EmbeddedCluster, sent: tuple[str, str]) -> None:
    """Everything answers; then a group waits for nobody, and a name server is away."""
    topic, _ = sent
    assert {row["answer"] for row in rows(cometmq("ping", "--json"))} == {"ok"}
    assert findings(cometmq("doctor", "--all", "--json")) == []
    with Admin(name_server=cluster.name_server_address) as admin:
        admin.create_group(SubscriptionGroupConfig("left-alone"))
        admin.commit_offsets("left-alone", dict.fromkeys(admin.topic_offsets(topic), 0))
    (finding,) = findings(cometmq("doctor", "--json"))
    assert (finding["level"], finding["check"]) == ("warning", "group left-alone")
    assert finding["measured"].startswith("no-consumer: 1 messages wait")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{listener.getsockname()[1]}"
        servers = f"{cluster.name_server_address};{dead}"
        found = rows(cometmq("doctor", "-n", servers, "--json", code=1))
        assert [row["check"] for row in found if row["level"] == "wrong"] == [f"name server {dead}"]
        cometmq("ping", "-n", servers, code=3)
        cometmq("ping", "--broker", dead, code=3)


def test_config_check(cometmq: Run, tmp_path: Path) -> None:
    """Keys without effect are listed, demands for protection fail, unknown keys are errors."""
    path = tmp_path / "broker.conf"
    path.write_text("brokerName=x\nuseEpollNativeSelector=true\n")
    assert rows(cometmq("config", "check", str(path), "--json")) == [
        {"key": "useEpollNativeSelector", "value": "true", "effect": "ignored"}
    ]
    path.write_text("brokerName=x\ntls.test.mode.enable=true\n")
    (row,) = rows(cometmq("config", "check", str(path), "--json", code=1))
    assert (row["key"], row["effect"]) == ("tls.test.mode.enable", "refused")
    path.write_text("brokerNam=x\n")
    cometmq("config", "check", str(path), code=2)
    path.write_text("listenPort=9876\n")
    assert rows(cometmq("config", "check", str(path), "--for", "name-server", "--json")) == []
    path.write_text("controllerPort=9877\n")
    assert rows(cometmq("config", "check", str(path), "--for", "controller", "--json")) == []
