"""A broker that checks who sends what: every code, over real sockets, with a table of outcomes."""

import json
import logging
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.base.needs import broker_needs
from cometmq.errors import AccessDenied, CometError, ConfigError, RemoteError
from cometmq.model.message import Message
from cometmq.sync import Admin, Producer, PullConsumer, TransactionProducer
from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.command.command import RemotingCommand, encode_command
from cometmq.wire.frame.acl import Credentials
from cometmq.wire.frame.framing import FrameReader

ROOT = Credentials("root", "secret-of-root")
ALICE = Credentials("alice", "secret-of-alice")
WEAK = Credentials("weak", "secret-of-weak")
SETTINGS = {
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "initAuthenticationUser": json.dumps({"username": "root", "password": ROOT.secret_key}),
}
#: No code of a broker is answered to these.
STRANGERS = {
    "nobody": (None, "username cannot be null."),
    "a stranger": (Credentials("eve", "secret-of-eve"), "User:eve is not found."),
    "a wrong secret": (Credentials("root", "guessed"), "check signature failed."),
}


def admin_of(cluster: EmbeddedCluster, who: Credentials) -> Admin:
    """An admin client with an account."""
    return Admin(
        name_server=cluster.name_server_address,
        access_key=who.access_key,
        secret_key=who.secret_key,
    )


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """A cluster in which alice may use Orders and billing, and weak may do nothing."""
    with threaded_cluster(SETTINGS) as running, admin_of(running, ROOT) as admin:
        for who in (ALICE, WEAK):
            admin.put_user(who.access_key, password=who.secret_key)
        entries = [
            {"resource": "Topic:Orders", "actions": ["Pub", "Sub"], "decision": "Allow"},
            {"resource": "Group:billing", "actions": ["Sub"], "decision": "Allow"},
        ]
        admin.put_policies("alice", [{"policyType": "Custom", "entries": entries}])
        for topic in ("Orders", "Payroll"):
            admin.create_topic(topic, queue_count=1)
        yield running


def ask(cluster: EmbeddedCluster, command: RemotingCommand) -> RemotingCommand:
    """The broker's answer to one request."""
    host, _, port = cluster.broker_address.rpartition(":")
    reader = FrameReader()
    with socket.create_connection((host, int(port)), 30) as connection:
        connection.sendall(encode_command(command))
        while True:
            data = connection.recv(65536)
            assert data, "the broker closed the connection"
            for answer in reader.receive(data):
                assert isinstance(answer, RemotingCommand)
                return answer


def codes(cluster: EmbeddedCluster) -> list[int]:
    """Every code that this broker serves."""
    return sorted(cluster.standalone.broker._server.handlers)


def test_every_code_has_its_need(cluster: EmbeddedCluster) -> None:
    """A new code without an entry fails here."""
    needs = broker_needs(cluster.standalone.broker.transactions.halves)
    assert [code for code in codes(cluster) if code not in needs] == []


@pytest.mark.parametrize("who", STRANGERS)
def test_no_code_is_served_to_strangers(cluster: EmbeddedCluster, who: str) -> None:
    """Whatever they ask."""
    credentials, remark = STRANGERS[who]
    for code in codes(cluster):
        command = RemotingCommand.request(code, {"topic": "Orders", "consumerGroup": "billing"})
        if credentials is not None:
            credentials.sign_command(command)
        answer = ask(cluster, command)
        assert (answer.code, answer.remark) == (16, remark), code


def test_no_code_is_served_to_a_user_without_policies(cluster: EmbeddedCluster) -> None:
    """But a heartbeat without consumers and the farewell of a producer, which concern nobody."""
    served = set()
    for code in codes(cluster):
        ext = {"topic": "Payroll", "b": "Payroll", "consumerGroup": "billing", "group": "billing"}
        if code == Code.UNREGISTER_CLIENT:
            ext = {"clientID": "x", "producerGroup": "p"}
        command = RemotingCommand.request(
            code, ext | {"groupName": "billing", "subject": "User:root"}, body=b"{}"
        )
        WEAK.sign_command(command)
        answer = ask(cluster, command)
        if answer.code != 16:
            served.add(code)
        else:
            assert "permission" in str(answer.remark) or "not known" in str(answer.remark)
    assert served == {
        Code.HEART_BEAT,
        Code.UNREGISTER_CLIENT,
        # These lists are empty in this request.
        Code.UPDATE_AND_CREATE_TOPIC_LIST,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    }


def test_a_super_user_is_refused_nothing(cluster: EmbeddedCluster) -> None:
    """Requests that make no sense are refused for that, and not with code 16."""
    for code in codes(cluster):
        if code in (Code.AUTH_DELETE_USER, Code.UPDATE_BROKER_CONFIG):
            continue
        command = RemotingCommand.request(
            code, {"topic": "Spare", "b": "Spare", "consumerGroup": "spare"}, body=b"{}"
        )
        ROOT.sign_command(command)
        if code in (Code.GET_CONSUMER_RUNNING_INFO, Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE):
            continue  # answered late, or with other fields; clients in other tests send them
        answer = ask(cluster, command)
        assert "permission" not in str(answer.remark), code


def test_an_altered_request_is_refused(cluster: EmbeddedCluster) -> None:
    """Field, body and signature are covered; the same request again passes, as in RocketMQ."""
    command = RemotingCommand.request(Code.GET_MAX_OFFSET, {"topic": "Orders", "queueId": "0"})
    ROOT.sign_command(command)
    assert ask(cluster, command).code == ask(cluster, command).code == 0
    for change in (
        {"queueId": "1"},
        {"another": "x"},
        {"Signature": command.ext_fields["Signature"][::-1]},
        {"Signature": ""},
    ):
        altered = RemotingCommand.request(command.code, command.ext_fields | change)
        assert ask(cluster, altered).remark == "check signature failed."
    assert ask(cluster, RemotingCommand.request(command.code, command.ext_fields, b"x")).code == 16


def test_clients_do_what_they_may(cluster: EmbeddedCluster) -> None:
    """Send, consume, retry; and nothing with another topic or group."""
    address = cluster.name_server_address
    keys: Any = {"access_key": ALICE.access_key, "secret_key": ALICE.secret_key}
    with Producer("p", name_server=address, **keys) as producer:
        producer.send(Message("Orders", b"mine"))
        with pytest.raises(AccessDenied, match=r"Topic:Payroll from .* no matched"):
            producer.send(Message("Payroll", b"not mine"))
        with pytest.raises(AccessDenied, match="Group:others"):
            producer.send(Message("%RETRY%others", b"not mine"))
    with PullConsumer(
        "billing", {"Orders": "*"}, name_server=address, consume_from="first", **keys
    ) as consumer:
        got: list[bytes] = []
        while not got:
            got += [message.body for message in consumer.poll(1000)]
        assert got == [b"mine"]
    with admin_of(cluster, ALICE) as admin:
        with pytest.raises(AccessDenied, match="Topic:New"):
            admin.create_topic("New")
        with pytest.raises(AccessDenied, match="Cluster:DefaultCluster"):
            admin.users()


def test_the_end_of_a_transaction_needs_its_topic(cluster: EmbeddedCluster) -> None:
    """Whatever topic the request names: else anybody could commit another one's half messages."""
    address = cluster.name_server_address
    keys: Any = {"access_key": "root", "secret_key": ROOT.secret_key}
    with TransactionProducer(
        "deciders", name_server=address, check=lambda message: None, **keys
    ) as producer:
        producer.send_in_transaction(Message("Payroll", b"raise"), lambda message: None)
        halves = cluster.standalone.broker.transactions.halves
        (open_half,) = [each for each in map(halves.at, halves.offsets()) if each is not None]
        command = RemotingCommand.request(
            Code.END_TRANSACTION,
            {
                "producerGroup": "deciders",
                "tranStateTableOffset": str(open_half.queue_offset),
                "commitLogOffset": "0",
                "commitOrRollback": "8",
                "topic": "Orders",
            },
        )
        ALICE.sign_command(command)
        answer = ask(cluster, command)
        assert (answer.code, "Topic:Payroll" in str(answer.remark)) == (16, True)
        assert halves.find(open_half.queue_offset) is open_half


def test_a_change_holds_for_the_next_request(cluster: EmbeddedCluster) -> None:
    """Of a policy, a status, a password, and when the user is gone."""
    bob = Credentials("bob", "first")
    with admin_of(cluster, ROOT) as admin, admin_of(cluster, bob) as his:
        admin.put_user("bob", password="first")
        allow = {"resource": "Topic:Orders", "actions": ["Get"], "decision": "Allow"}
        with pytest.raises(AccessDenied, match="no matched policies"):
            his.topic_config("Orders")
        admin.put_policies("bob", [{"policyType": "Custom", "entries": [allow]}])
        assert his.topic_config("Orders")
        deny = allow | {"decision": "Deny"}
        admin.put_policies("bob", [{"policyType": "Custom", "entries": [deny]}])
        with pytest.raises(AccessDenied, match="the decision is deny"):
            his.topic_config("Orders")
        admin.delete_policies("bob")
        admin.put_policies("bob", [{"policyType": "Default", "entries": [allow]}])
        assert his.topic_config("Orders")
        admin.put_user("bob", is_enabled=False)
        with pytest.raises(AccessDenied, match="User:bob is disabled"):
            his.topic_config("Orders")
        admin.put_user("bob", is_enabled=True, password="second")
        with pytest.raises(AccessDenied, match="check signature failed"):
            his.topic_config("Orders")
        admin.delete_user("bob")
        with pytest.raises(AccessDenied, match="User:bob is not found"):
            his.topic_config("Orders")
        with pytest.raises(RemoteError, match="The user is not exist"):
            admin.put_policies("bob", [{"entries": [allow]}])


def test_secrets_stay_in_a_private_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not in answers, not in logs; and the accounts outlive a restart."""
    store = tmp_path / "store"
    secrets = (ROOT.secret_key, "secret-of-carol", "guessed")
    with caplog.at_level(logging.DEBUG):
        with threaded_cluster(SETTINGS, store_path=str(store)) as first:
            with admin_of(first, ROOT) as admin:
                admin.put_user("carol", password="secret-of-carol")
                shown = json.dumps(admin.users()) + admin.broker_config("broker-a")
            guessing = admin_of(first, Credentials("root", "guessed"))
            with guessing, pytest.raises(AccessDenied):
                guessing.users()
        path = store / "config" / "cometmqAccounts.json"
        for file in (path, path.with_name(path.name + ".bak")):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        later = {key: SETTINGS[key] for key in ("authenticationEnabled", "authorizationEnabled")}
        with threaded_cluster(later, store_path=str(store)) as second:
            admin = admin_of(second, ROOT)
            assert [user["username"] for user in admin.users()] == ["root", "carol"]
            admin.shutdown()
    assert "initAuthenticationUser=***" in shown
    for secret in secrets:
        assert secret not in shown
        assert secret not in caplog.text
    assert "refused: code 106 of root from 127.0.0.1" in caplog.text
    assert "code 3001 of root from 127.0.0.1" in caplog.text


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"authenticationEnabled": True}, "no super user exists"),
        ({"authorizationEnabled": True}, "without authenticationEnabled"),
        (
            SETTINGS
            | {"enableControllerMode": True, "controllerAddr": "127.0.0.1:1", "listenPort": 1},
            "needs innerClientAuthenticationCredentials",
        ),
        (SETTINGS | {"initAuthenticationUser": "root:secret-of-root"}, "initAuthenticationUser is"),
        (SETTINGS | {"authenticationWhitelist": "105,ten"}, "'ten'"),
        ({"aclEnable": True}, "plainAclFile, the path of a plain_acl.yml"),
        (SETTINGS | {"aclEnable": True, "plainAclFile": "x.yml"}, "choose one"),
        ({"plainAclFile": "x.yml"}, "needs aclEnable=true"),
        ({"aclEnable": True, "plainAclFile": "/none/plain_acl.yml"}, "cannot be read"),
        ({"globalWhiteRemoteAddresses": "*"}, "needs authenticationEnabled=true"),
        (SETTINGS | {"globalWhiteRemoteAddresses": "10.0.0.300"}, "the white address"),
    ],
)
def test_settings_that_protect_nobody_stop_the_start(
    settings: dict[str, object], text: str
) -> None:
    """And no error repeats a secret."""
    with pytest.raises(ConfigError) as failed, threaded_cluster(settings):
        pass
    assert text in str(failed.value)
    assert "secret-of-root" not in str(failed.value)


def test_white_lists_take_codes_out() -> None:
    """Of the signature alone a code still needs permission, which nobody has."""
    lists = {"authenticationWhitelist": "30, 28", "authorizationWhitelist": "28"}
    with threaded_cluster(SETTINGS | lists) as listed:
        assert ask(listed, RemotingCommand.request(28)).code == 0
        refused = ask(listed, RemotingCommand.request(30, {"topic": "TBW102", "queueId": "0"}))
        assert (refused.code, "no user" in str(refused.remark)) == (16, True)


def test_signatures_alone() -> None:
    """Without authorization every user may do everything but touch super users."""
    with threaded_cluster(SETTINGS | {"authorizationEnabled": False}) as open_inside:
        with admin_of(open_inside, ROOT) as admin:
            admin.put_user("weak", password=WEAK.secret_key)
        with admin_of(open_inside, WEAK) as admin:
            admin.create_topic("Anything")
            with pytest.raises(CometError, match="super user"):
                admin.delete_user("root")
