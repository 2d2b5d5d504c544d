"""`cometmq parking` against a real cluster with a real ordered consumer."""

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import cometmq
import cometmq.sync
from cometmq.cli.main import root
from cometmq.cli.terminal.confirming import NotConfirmed
from cometmq.errors import GroupNotExist, QueryNotFound
from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster

WAIT_S = 60.0


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """One broker."""
    with threaded_cluster({}) as running:
        yield running


def wait(condition: Callable[[], bool]) -> None:
    """Ask again until it holds."""
    pause = threading.Event()
    for _ in range(int(WAIT_S / 0.1)):
        if condition():
            return
        pause.wait(0.1)
    raise AssertionError(f"still not so: {condition!r}")


def invoke(cluster: EmbeddedCluster, *arguments: str, stdin: str | None = None) -> Result:
    """The result of `cometmq parking ...`; an error is raised as it is."""
    result = CliRunner(env={"NAMESRV_ADDR": cluster.name_server_address}).invoke(
        root, ("parking", *arguments), input=stdin, standalone_mode=False
    )
    if result.exception is not None:
        raise result.exception
    return result


def rows(cluster: EmbeddedCluster, *arguments: str) -> list[dict[str, Any]]:
    """What `--json` prints."""
    listing: list[dict[str, Any]] = json.loads(invoke(cluster, *arguments, "--json").stdout)
    return listing


def send(cluster: EmbeddedCluster, *groups: str) -> None:
    """One message of each named group, in this order."""
    with cometmq.sync.Producer("p", name_server=cluster.name_server_address) as producer:
        for number, group in enumerate(groups):
            body = f"{group} {number}".encode()
            producer.send(cometmq.Message("Orders", body, keys=f"k{number}", message_group=group))


def test_list_show_skip_retry(cluster: EmbeddedCluster) -> None:
    """An operator lists the lanes, gives up a message, and has the others consumed in order."""
    assert rows(cluster, "list") == []
    taken: list[str] = []
    refused = ["bad"]
    alerts: list[str] = []

    def handle(message: cometmq.ReceivedMessage) -> None:
        text = message.body.decode()
        if text.partition(" ")[0] in refused or text == "bad 1":
            raise ValueError("no such account")
        taken.append(text)

    send(cluster, "good", "bad", "bad", "bad", "good")
    with cometmq.sync.PushConsumer(
        "billing",
        {"Orders": "*"},
        handle,
        name_server=cluster.name_server_address,
        consume_from="first",
        order="group",
        suspend_ms=10,
        park_after=2,
        on_parked=lambda message, reason: alerts.append(reason),
    ):
        wait(lambda: [row["messages"] for row in rows(cluster, "list", "billing")] == [3])
        (row,) = rows(cluster, "list")
        assert (row["group"], row["lane"], row["state"]) == ("billing", "Orders/bad", "parked")
        assert row["reason"] == "ValueError: no such account"
        assert "Orders/bad" in invoke(cluster, "list", "billing").stdout
        shown = rows(cluster, "show", "billing", "bad")
        assert [one["body"] for one in shown] == ["bad 1", "bad 2", "bad 3"]
        some = invoke(cluster, "show", "billing", "Orders/bad", "--count", "1")
        assert "the first 1 of 3" in some.stderr
        with pytest.raises(NotConfirmed, match="nothing was done"):
            invoke(cluster, "skip", "billing", "bad", stdin="n\n")
        refused.clear()
        skipped = invoke(cluster, "skip", "billing", "bad", stdin="y\n")
        assert "Give up 1 message of Orders/bad, the first with key k1?" in skipped.stderr
        assert "Orders/bad: 1 message given up, 2 left\n" in skipped.stdout
        ordered = invoke(cluster, "retry", "billing", "bad")
        assert ordered.stdout == "Orders/bad: 2 messages to be consumed again\n"
        wait(lambda: rows(cluster, "list", "billing") == [])
        assert [text for text in taken if text.startswith("bad")] == ["bad 2", "bad 3"]
        assert "nothing is parked" in invoke(cluster, "retry", "billing", "--all").stderr
    assert alerts == ["ValueError: no such account"]


def test_mistakes(cluster: EmbeddedCluster) -> None:
    """Unknown names and empty lanes are refused."""
    send(cluster, "bad")
    with cometmq.sync.PushConsumer(
        "billing",
        {"Orders": "*"},
        lambda message: False,
        name_server=cluster.name_server_address,
        consume_from="first",
        order="group",
        park_after=1,
    ):
        wait(lambda: len(rows(cluster, "list")) == 1)
    with pytest.raises(GroupNotExist, match="did you mean billing"):
        invoke(cluster, "list", "biling")
    with pytest.raises(QueryNotFound, match="did you mean bad"):
        invoke(cluster, "show", "billing", "badd")
    for arguments in (("retry", "billing"), ("retry", "billing", "bad", "--all")):
        with pytest.raises(click.UsageError, match="name one LANE"):
            invoke(cluster, *arguments)
    told = invoke(cluster, "retry", "billing", "--all")
    assert "no member of billing is online" in told.stderr
    assert rows(cluster, "list")[0]["state"] == "retrying"
    gone = invoke(cluster, "skip", "billing", "bad", "--all", "--yes")
    assert gone.stdout == "Orders/bad: 1 message given up, 0 left\n"
    assert rows(cluster, "list") == []
