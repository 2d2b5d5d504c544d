"""A cluster that lives by `plain_acl.yml` of ACL 1.0, over real sockets."""

import time
from pathlib import Path
from typing import Any

import pytest

from cometmq.errors import AccessDenied, ConfigError
from cometmq.model.message import Message
from cometmq.server.access.access import read_plain_accounts
from cometmq.sync import Admin, Producer, PullConsumer
from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster

ADMIN: dict[str, Any] = {"access_key": "administrator", "secret_key": "12345678"}
ALICE: dict[str, Any] = {"access_key": "alice_the_user", "secret_key": "00012345"}
FILE = """
globalWhiteRemoteAddresses:
accounts:
  - accessKey: administrator
    secretKey: 12345678
    whiteRemoteAddress:
    admin: true
  - accessKey: alice_the_user
    secretKey: 00012345
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: DENY
    topicPerms:
      - Orders=PUB|SUB
      - Bills=SUB
    groupPerms:
      - billing=SUB
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file."""
    path = tmp_path / "conf" / "plain_acl.yml"
    path.parent.mkdir()
    path.write_text(FILE)
    return path


def settings(path: Path) -> dict[str, Any]:
    """What an operator writes."""
    return {"aclEnable": True, "plainAclFile": str(path)}


def until_denied(cluster: EmbeddedCluster, who: dict[str, Any], remark: str) -> None:
    """Ask until the account is refused with this; the test's own limit ends a wait in vain."""
    with Admin(name_server=cluster.name_server_address, **who) as admin:
        while True:
            try:
                admin.topic_config("Orders")
            except AccessDenied as refused:
                if remark in str(refused):
                    return
            time.sleep(0.05)


def test_clients_do_what_the_file_says(path: Path) -> None:
    """Send, consume, administrate; a secret of digits stays what it is."""
    with threaded_cluster(settings(path)) as cluster:
        address = cluster.name_server_address
        with Admin(name_server=address, **ADMIN) as admin:
            for topic in ("Orders", "Bills", "Payroll"):
                admin.create_topic(topic, queue_count=1)
            admin.broker_config("broker-a")
        with Producer("p", name_server=address, **ALICE) as producer:
            producer.send(Message("Orders", b"mine"))
            for topic in ("Bills", "Payroll"):
                with pytest.raises(AccessDenied, match="alice_the_user"):
                    producer.send(Message(topic, b"not mine"))
        with PullConsumer(
            "billing", {"Orders": "*"}, name_server=address, consume_from="first", **ALICE
        ) as consumer:
            got: list[bytes] = []
            while not got:
                got += [message.body for message in consumer.poll(1000)]
            assert got == [b"mine"]
        with Admin(name_server=address, **ALICE) as admin:
            assert admin.topic_config("Bills")
            with pytest.raises(AccessDenied, match="Need admin permission"):
                admin.create_topic("New")
            with pytest.raises(AccessDenied, match="Need admin permission"):
                admin.broker_config("broker-a")
        for who, text in (
            (
                {"access_key": "a_stranger", "secret_key": "12345678"},
                "No acl config for a_stranger",
            ),
            ({**ALICE, "secret_key": "guessed!"}, "Check signature failed for accessKey=alice"),
            ({}, "No accessKey is configured"),
        ):
            with (
                Admin(name_server=address, **who) as admin,
                pytest.raises(AccessDenied, match=text),
            ):
                admin.topic_config("Orders")


def test_changes_of_the_file_hold(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a restart; a file that cannot be read leaves what was in force."""
    with threaded_cluster(settings(path)) as cluster:
        with Admin(name_server=cluster.name_server_address, **ADMIN) as admin:
            admin.create_topic("Orders", queue_count=1)
        path.write_text("accounts: {")
        while "the accounts in force stay" not in caplog.text:
            time.sleep(0.05)
        with Admin(name_server=cluster.name_server_address, **ALICE) as admin:
            assert admin.topic_config("Orders")
        path.write_text(FILE.replace("Orders=PUB|SUB", "Orders=DENY"))
        until_denied(cluster, ALICE, "no permission for Topic:Orders")
        more = path.parent / "acl" / "more.yml"
        more.parent.mkdir()
        more.write_text(
            "accounts:\n- accessKey: alice_the_user\n  secretKey: another-one\n  admin: true\n"
        )
        until_denied(cluster, ALICE, "Check signature failed")
        with Admin(
            name_server=cluster.name_server_address,
            access_key="alice_the_user",
            secret_key="another-one",
        ) as admin:
            assert admin.topic_config("Orders")


def test_white_addresses_pass(path: Path) -> None:
    """All of an account without its secret, and everybody from a global one."""
    with threaded_cluster(settings(path)) as cluster:
        with Admin(name_server=cluster.name_server_address, **ADMIN) as admin:
            admin.create_topic("Orders", queue_count=1)
        path.write_text(FILE.replace("whiteRemoteAddress:", "whiteRemoteAddress: 127.0.0.*"))
        guessed = {**ADMIN, "secret_key": "guessed!"}
        with Admin(name_server=cluster.name_server_address, **guessed) as admin:
            while True:
                try:
                    assert admin.topic_config("Orders")
                    break
                except AccessDenied:
                    time.sleep(0.05)
    path.write_text(FILE.replace("Addresses:", "Addresses: [127.0.0.1]", 1))
    with (
        threaded_cluster(settings(path)) as cluster,
        Admin(name_server=cluster.name_server_address) as admin,
    ):
        admin.create_topic("Open", queue_count=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("accounts: {", "is no YAML"),
        ("- 1", "has no keys"),
        ("accounts: [{accessKey: x, secretKey: y}]", "7 characters"),
    ],
)
def test_files_that_are_none_stop_the_start(path: Path, text: str, message: str) -> None:
    """The error names the file."""
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as failed:
        read_plain_accounts(str(path))
    assert str(path) in str(failed.value)


def test_an_empty_file_has_no_accounts(path: Path) -> None:
    """Nobody may do anything then."""
    path.write_text("")
    assert not read_plain_accounts(str(path)).accounts
