"""Every code of a guarded cluster with fields and bodies that make no sense: each is answered."""

import json
import random
import socket
from collections.abc import Iterator
from typing import Any, Final

import psutil
import pytest

from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.command.command import BINARY, JSON, RemotingCommand, encode_command
from cometmq.wire.frame.acl import Credentials
from cometmq.wire.frame.framing import FrameReader

ROOT = Credentials("root", "secret-of-root")
SETTINGS: Final = {
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "initAuthenticationUser": json.dumps({"username": "root", "password": ROOT.secret_key}),
}
ROUNDS: Final = 4
GROWTH_BYTES_MAX: Final = 200 << 20
NAMES: Final = (
    *("topic", "b", "consumerGroup", "group", "groupName", "producerGroup", "queueId", "e"),
    *("offset", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "subscription", "key"),
    *("clientID", "username", "subject", "policyType", "resource", "namespace", "value", "msgId"),
    *("brokerName", "brokerAddr", "clusterName", "brokerId", "beginTimestamp", "timestamp", "i"),
)
VALUES: Final = (
    *("", "0", "-1", "9223372036854775807", "99999999999999999999999", "Orders", "%RETRY%x"),
    *("true", "\x01\x02", "../../etc", "é" * 40, "User:root", "Topic:*", "x" * 300, "1e9", "null"),
)
BODIES: Final = (
    *(b"", b"{", b"null", b"[]", b"[[]]", b'"x"', b"\xff\xfe\x00", b"{}", b"[1,2,{}]", b"1e999"),
    *(b"a=b\nc", b'{"policies":[{"entries":[{}]}]}', b'{"policies":{"a":1}}', b"[" * 5000),
    *(b'{"consumerDataSet":[3],"mqSet":7,"topicConfigList":{"a":[]},"offsetTable":[]}',),
    *(b'{"username":5,"password":[],"userType":{},"userStatus":null}',),
)
#: These end what the test needs, or wait for a client's answer.
LEFT_OUT: Final = {Code.AUTH_DELETE_USER, Code.AUTH_UPDATE_USER}


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """A cluster whose super user sends nonsense."""
    with threaded_cluster(SETTINGS) as running:
        yield running


def answers(address: str, commands: list[RemotingCommand]) -> int:
    """Send the requests over one connection; count the answers.

    After a few requests comes one whose answer is waited for: a client that reads nothing is not
    read either.
    """
    host, _, port = address.rpartition(":")
    probe = RemotingCommand.request(Code.GET_BROKER_CLUSTER_INFO)
    reader, count = FrameReader(), 0
    with socket.create_connection((host, int(port)), 30) as connection:
        connection.settimeout(30)
        for start in range(0, len(commands) + 1, 32):
            probe.opaque = (1 << 30) + start
            frames = map(encode_command, (*commands[start : start + 32], probe))
            connection.sendall(b"".join(frames))
            is_over = False
            while not is_over:
                data = connection.recv(65536)
                assert data, "the server closed the connection"
                for answer in reader.receive(data):
                    assert isinstance(answer, RemotingCommand)
                    is_over |= answer.opaque == probe.opaque
                    count += answer.opaque != probe.opaque
    return count


@pytest.mark.parametrize("name", ["broker", "name server"])
def test_nonsense_is_answered_and_takes_no_memory(cluster: EmbeddedCluster, name: str) -> None:
    """By a super user, in both header encodings; the connection and the server go on."""
    standalone = cluster.standalone
    server: Any = standalone.broker if name == "broker" else standalone.name_server
    address = cluster.broker_address if name == "broker" else cluster.name_server_address
    chance = random.Random(f"{name} 1")
    memory = psutil.Process()
    before_bytes = memory.memory_info().rss
    opaque = 0
    for _ in range(ROUNDS):
        commands = []
        for code in sorted(server._server.handlers):
            if code in LEFT_OUT:
                continue
            for body in BODIES:
                names = chance.sample(NAMES, chance.randrange(8))
                ext = {each: chance.choice(VALUES) for each in names}
                command = RemotingCommand.request(code, ext, body)
                # A binary header has no room for the larger codes.
                command.serialize_type = (
                    BINARY if code < 1 << 15 and chance.random() < 0.5 else JSON
                )
                opaque += 1
                command.opaque = opaque
                ROOT.sign_command(command)
                commands.append(command)
        assert answers(address, commands) > len(commands) // 2
    assert memory.memory_info().rss - before_bytes < GROWTH_BYTES_MAX
    assert answers(address, []) == 0
