"""`cometmq dead-letters` against a real cluster."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import cometmq
import cometmq.sync
from cometmq.cli.main import root
from cometmq.cli.terminal.confirming import NotConfirmed
from cometmq.errors import GroupNotExist
from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster

COUNT = 6


def wait(condition: Callable[[], bool]) -> None:
    """Ask again until it holds, for half a minute."""
    pause = threading.Event()
    for _ in range(300):
        if condition():
            return
        pause.wait(0.1)
    raise AssertionError(f"still not so: {condition!r}")


def invoke(cluster: EmbeddedCluster, *arguments: str, stdin: str | None = None) -> Result:
    """The result of `cometmq dead-letters ...`; an error is raised as it is."""
    result = CliRunner(env={"NAMESRV_ADDR": cluster.name_server_address}).invoke(
        root, ("dead-letters", *arguments), input=stdin, standalone_mode=False
    )
    if result.exception is not None:
        raise result.exception
    return result


def rows(cluster: EmbeddedCluster, *arguments: str) -> Any:
    """What `--json` prints."""
    return json.loads(invoke(cluster, *arguments, "--json").stdout)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """A cluster where messages of Orders died for the group billing."""
    with threaded_cluster({}) as running:
        address = running.name_server_address
        with cometmq.sync.Producer("p", name_server=address) as producer:
            for number in range(COUNT):
                producer.send(
                    cometmq.Message(
                        "Orders",
                        f"order {number}".encode(),
                        tags="even" if number % 2 == 0 else "odd",
                        keys=f"k{number}",
                        properties={"reason": "no such account"},
                    )
                )
        with cometmq.sync.PushConsumer(
            "billing",
            {"Orders": "*"},
            lambda message: cometmq.DeadLetter(),
            name_server=address,
            consume_from="first",
        ):
            wait(lambda: rows(running, "list") == [{"group": "billing", "messages": COUNT}])
        yield running


def test_list_and_show(cluster: EmbeddedCluster) -> None:
    """The groups, the messages of one, the newest of them, and all of one message."""
    found = rows(cluster, "list", "billing")
    assert sorted(row["keys"] for row in found) == [[f"k{number}"] for number in range(COUNT)]
    assert {row["topic"] for row in found} == {"Orders"}
    assert {row["reason"] for row in found} == {"no such account"}
    odd = rows(cluster, "list", "billing", "--tag", "odd")
    assert len(odd) == COUNT // 2
    some = invoke(cluster, "list", "billing", "--count", "2")
    assert "the newest 2 of 6" in some.stderr
    assert len(some.stdout.splitlines()) == 3
    nothing = invoke(cluster, "list", "billing", "--since", "2100-01-01")
    assert "no dead letter of billing is selected" in nothing.stderr
    (full,) = rows(cluster, "show", "billing", odd[0]["message_id"])
    assert full["body"].startswith("order ")
    assert full["properties"]["RETRY_TOPIC"] == "Orders"
    text = invoke(cluster, "show", "billing", odd[0]["message_id"]).stdout
    assert "RETRY_TOPIC = Orders" in text
    assert full["body"] in text
    assert invoke(cluster, "show", "billing", "no-such-id").return_value == 4


def test_dead_letters_are_not_redriven_twice_from_two_folders(
    cluster: EmbeddedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger was a relative path, now it is in the cluster: preview, question, each once."""
    shown = invoke(cluster, "redrive", "billing", "--preview")
    assert "%RETRY%billing" in shown.stdout
    assert "nothing was sent: a preview" in shown.stderr
    with pytest.raises(NotConfirmed, match="nothing was done"):
        invoke(cluster, "redrive", "billing", "--tag", "odd", stdin="n\n")
    with pytest.raises(NotConfirmed, match="nobody answers here; --yes"):
        invoke(cluster, "redrive", "billing", "--tag", "odd", stdin="")
    folders = [tmp_path / "mine", tmp_path / "yours"]
    for folder in folders:
        folder.mkdir()
    monkeypatch.chdir(folders[0])
    sent = invoke(cluster, "redrive", "billing", "--tag", "odd", "--rate", "1000", stdin="y\n")
    assert "Send 3 messages again?" in sent.stderr
    assert "sent 3 messages; 0 sent before\n" in sent.stdout
    monkeypatch.chdir(folders[1])
    facts = rows(cluster, "redrive", "billing", "--yes")
    assert (facts["sent"], facts["sent_before"]) == (3, 3)
    once_more = invoke(cluster, "redrive", "billing", "--to-origin", "--yes")
    assert "6 sent before" in once_more.stderr
    assert not [file for folder in folders for file in folder.iterdir()]
    preview = rows(cluster, "redrive", "billing", "--to-origin", "--again", "--preview")
    assert [(row["target"], row["messages"]) for row in preview["targets"]] == [("Orders", COUNT)]


def test_groups_nobody_knows(cluster: EmbeddedCluster) -> None:
    """An unknown group is refused; a group without dead letters is not."""
    for arguments in (("list",), ("redrive", "--yes")):
        with pytest.raises(GroupNotExist, match="did you mean billing"):
            invoke(cluster, *arguments, "biling")
    assert rows(cluster, "list", "TOOLS_CONSUMER") == []
