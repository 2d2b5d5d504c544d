"""Single messages at a guarded broker: a user gets those of the topic that his request names."""

import json
import threading
from collections.abc import Iterator

import pytest
from tests.access_outcomes import ROOT, Line

from cometmq import Message
from cometmq.codec.ids import decode_offset_message_id
from cometmq.codec.stored_message import decode_messages
from cometmq.sync import Admin, Connection, Producer
from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.frame.acl import Credentials

SETTINGS = {
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "initAuthenticationUser": json.dumps({"username": "root", "password": ROOT.secret_key}),
}
DORA = Credentials("dora", "secret-of-dora")
OPEN, SECRET = "AaOrders", "BBOrders"
"""Java's hash, by which the index finds keys, is the same for both."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with threaded_cluster(SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def offsets(cluster: EmbeddedCluster) -> dict[str, int]:
    """The physical offsets of a message in each topic, and of one that waits for the open one."""
    connection = Connection(
        name_server=cluster.name_server_address,
        access_key=ROOT.access_key,
        secret_key=ROOT.secret_key,
    )
    with (
        connection,
        Admin(connection=connection) as admin,
        Producer("pg", connection=connection) as producer,
    ):
        admin.create_topic(OPEN, queue_count=1)
        admin.create_topic(SECRET, queue_count=1)
        admin.put_user("dora", password=DORA.secret_key)
        grant = {"resource": f"Topic:{OPEN}", "actions": ["Sub", "Get"], "decision": "Allow"}
        admin.put_policies("dora", [{"policyType": "Custom", "entries": [grant]}])
        messages = {
            "open": Message(OPEN, b"open", keys="k"),
            "secret": Message(SECRET, b"secret", keys="k"),
            "waiting": Message(OPEN, b"waiting", delay_level=18),
        }
        sent = {name: producer.send(message) for name, message in messages.items()}
    return {
        name: decode_offset_message_id(result.offset_message_id)[1] for name, result in sent.items()
    }


def ask(cluster: EmbeddedCluster, code: int, fields: dict[str, str]) -> tuple[int, list[bytes]]:
    """What Dora gets: a code, and the bodies of messages."""
    command = RemotingCommand.request(code, fields)
    DORA.sign_command(command)
    line = Line(cluster.broker_address)
    answer = line.ask(command)
    line.close()
    return answer.code, [message.body for message in decode_messages(answer.body or b"")]


def test_by_offset(cluster: EmbeddedCluster, offsets: dict[str, int]) -> None:
    """RocketMQ gives whatever lies there; one that waits in a system topic is of its own topic."""
    got = {
        name: ask(cluster, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset), "topic": OPEN})
        for name, offset in offsets.items()
    }
    assert got == {"open": (0, [b"open"]), "secret": (1, []), "waiting": (0, [b"waiting"])}


def test_by_a_key_with_the_hash_of_another_topics(
    cluster: EmbeddedCluster, offsets: dict[str, int]
) -> None:
    """Clients leave such messages out; a program without a client would read them."""
    index = cluster.standalone.broker.state.store._index
    while index.pending:  # a message that waits for the index is found by its own key
        threading.Event().wait(0.01)
    fields = {
        "topic": OPEN,
        "key": "k",
        "maxNum": "32",
        "beginTimestamp": "0",
        "endTimestamp": str(2**62),
    }
    assert ask(cluster, RequestCode.QUERY_MESSAGE, fields) == (0, [b"open"])
