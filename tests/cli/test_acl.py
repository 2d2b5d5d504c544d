"""`cometmq acl` against a broker that checks signatures and permissions."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from tests.cli.invoking import Run, invoke, rows

from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster

SECRET = "secret-of-root"
SETTINGS = {
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "initAuthenticationUser": json.dumps({"username": "root", "password": SECRET}),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """One cluster for all tests here; each uses users of its own."""
    with threaded_cluster(SETTINGS) as running:
        yield running


@pytest.fixture
def acl(cluster: EmbeddedCluster) -> Run:
    """`cometmq acl ...` as root; a CometError becomes its exit code."""

    def run(*arguments: str, code: int = 0, **variables: str) -> Result:
        environment = {
            "NAMESRV_ADDR": cluster.name_server_address,
            "COMETMQ_ACCESS_KEY": "root",
            "COMETMQ_SECRET_KEY": SECRET,
        }
        return invoke(("acl", *arguments), environment | variables, code=code)

    return run


def test_users(acl: Run) -> None:
    """Create, disable, delete; a password comes from the environment, and is never shown."""
    acl("user", "set", "ann", COMETMQ_USER_PASSWORD="secret-of-ann")
    acl("user", "set", "ann", "--disable")
    listed = acl("user", "list", "ann", "--json")
    assert rows(listed) == [{"user": "ann", "type": "Normal", "status": "disable"}]
    acl("user", "delete", "ann", "--yes")
    assert rows(acl("user", "list", "ann", "--json")) == []
    assert "password can not be blank" in str(acl("user", "set", "ben", code=1).exception)
    acl("user", "list", code=1, COMETMQ_SECRET_KEY="guessed")


def test_policies_and_what_decides(acl: Run) -> None:
    """Set, list, explain, delete; the exit code of explain is the answer."""
    acl("user", "set", "cleo", COMETMQ_USER_PASSWORD="secret-of-cleo")
    assert rows(acl("explain", "cleo", "Topic:Orders", "Pub", "--json", code=1))[0]["because"] == (
        "no matched policies."
    )
    acl("policy", "set", "cleo", "Topic:Orders*", "Pub", "Sub", "--from", "10.0.0.0/8")
    acl("policy", "set", "cleo", "Topic:OrdersOld", "All", "--deny")
    acl("policy", "set", "cleo", "*", "Get", "--default")
    listed = rows(acl("policy", "list", "cleo", "--json"))
    assert {(row["type"], row["resource"], row["decision"]) for row in listed} == {
        ("Custom", "Topic:Orders*", "Allow"),
        ("Custom", "Topic:OrdersOld", "Deny"),
        ("Default", "*", "Allow"),
    }
    for resource, action, ip, is_allowed, entry in (
        ("Topic:Orders", "Pub", "10.1.2.3", True, "Topic:Orders* Allow Pub, Sub"),
        ("Topic:Orders", "Pub", "11.1.2.3", False, None),
        ("Topic:OrdersOld", "Pub", "10.1.2.3", False, "Topic:OrdersOld Deny All"),
        ("Group:any", "Get", "11.1.2.3", True, "* Allow Get"),
    ):
        arguments = ("explain", "cleo", resource, action, "--from", ip, "--json")
        (row,) = rows(acl(*arguments, code=0 if is_allowed else 1))
        assert (row["allowed"], row["entry"]) == (is_allowed, entry)
    acl("policy", "delete", "cleo", "Topic:OrdersOld")
    acl("policy", "delete", "cleo", "*", "--default")
    assert [row["resource"] for row in rows(acl("policy", "list", "cleo", "--json"))] == [
        "Topic:Orders*"
    ]
    acl("policy", "set", "cleo", "Topics:x", "Pub", code=2)
    acl("policy", "set", "nobody", "Topic:x", "Pub", code=1)
    assert "no such user" in acl("explain", "nobody", "Topic:x", "Pub", code=1).stdout
    assert "super user" in acl("explain", "root", "Topic:x", "Pub").stdout


PLAIN = """
globalWhiteRemoteAddresses: [10.9.*]
accounts:
- {accessKey: the_root_of_old, secretKey: 12345678, admin: true, whiteRemoteAddress: 127.0.0.*}
- accessKey: a_user_of_old
  secretKey: 00012345
  defaultTopicPerm: SUB
  topicPerms: [Orders=PUB, No=DENY]
  groupPerms: [billing=SUB]
"""


def test_migrate(acl: Run, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Users, policies and white addresses of a plain_acl.yml; what exists stays as it is."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(PLAIN)
    planned = acl("migrate", str(path), "--dry-run", "--json")
    assert [row["done"] for row in rows(planned)] == ["planned", "planned"]
    created = acl("migrate", str(path), "--json")
    assert [(row["user"], row["type"], row["done"]) for row in rows(created)] == [
        ("the_root_of_old", "Super", "created"),
        ("a_user_of_old", "Normal", "created"),
    ]
    assert "Orders gets Sub too" in rows(created)[1]["notes"]
    assert "globalWhiteRemoteAddresses=10.9.*" in created.stderr
    assert "00012345" not in created.output
    again = acl("migrate", str(path), "--json")
    assert [row["done"] for row in rows(again)] == ["exists", "exists"]
    user = "a_user_of_old"
    for resource, action, is_allowed in (
        ("Topic:Orders", "Pub", True),
        ("Topic:Orders", "Create", False),
        ("Topic:Any", "Sub", True),
        ("Topic:No", "Sub", False),
        ("Group:billing", "Sub", True),
        ("Group:others", "Sub", False),
        ("Topic:RMQ_SYS_TRACE_TOPIC", "Pub", True),
    ):
        acl("explain", user, resource, action, code=0 if is_allowed else 1)
    # The old root's address is white: no right secret is asked of him.
    acl("user", "list", COMETMQ_ACCESS_KEY="the_root_of_old", COMETMQ_SECRET_KEY="guessed!")
