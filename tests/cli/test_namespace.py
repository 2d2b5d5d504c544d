"""`--namespace` and `--sandbox`: commands beside programs that have a namespace or a sandbox."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from tests.interop.waiting import wait_until

import cometmq
import cometmq.sync
from cometmq.cli.main import COMMANDS, root
from cometmq.errors import ConfigError, GroupNotExist
from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """One cluster for all tests here; each uses a namespace or a topic of its own."""
    with threaded_cluster({}) as running:
        yield running


@pytest.fixture
def run(cluster: EmbeddedCluster) -> Run:
    """`cometmq ...` at the cluster; an error is raised as it is."""

    def invoke(*arguments: str, namespace: str | None = None) -> Result:
        variables = {"NAMESRV_ADDR": cluster.name_server_address, "COMETMQ_NAMESPACE": namespace}
        result = CliRunner(env=variables).invoke(root, arguments, standalone_mode=False)
        if result.exception is not None:
            raise result.exception
        return result

    return invoke


def rows(result: Result) -> Any:
    """The JSON that a command printed."""
    return json.loads(result.stdout)


def lines(result: Result) -> list[str]:
    """The lines that a command printed."""
    return result.stdout.splitlines()


def test_a_command_names_topics_as_the_program_does(run: Run, cluster: EmbeddedCluster) -> None:
    """A program in the namespace and a command with --namespace exchange messages."""
    inside = ("--namespace", "Exchange")
    created = run("topic", "create", "Orders", "--queues", "2", *inside)
    assert created.stdout == "topic Exchange%Orders: 2 queues on each of 1 broker\n"
    address = cluster.name_server_address
    with (
        cometmq.sync.Producer("p", name_server=address, namespace="Exchange") as producer,
        cometmq.sync.PullConsumer(
            "g", {"Orders": "*"}, name_server=address, namespace="Exchange", consume_from="first"
        ) as consumer,
    ):
        producer.send(cometmq.Message("Orders", b"of the program"))
        (row,) = rows(run("produce", "Orders", "of the command", "--json", *inside))
        assert row["topic"] == "Orders"
        bodies: set[bytes] = set()
        while len(bodies) < 2:
            bodies |= {message.body for message in consumer.poll(10_000)}
        assert bodies == {b"of the program", b"of the command"}
    onlooking = run("consume", "Orders", "--from", "first", "--until-end", "--json", *inside)
    shown = [json.loads(line) for line in lines(onlooking)]
    assert {one["topic"] for one in shown} == {"Orders"}
    assert {one["body"].encode() for one in shown} == bodies
    group = run("consume", "Orders", "-g", "auditors", "--from", "first", "--count", "2", *inside)
    assert {line.encode() for line in lines(group)} == bodies
    assert "Exchange%auditors" in {row["group"] for row in rows(run("group", "list", "--json"))}


def test_listings_have_the_names_of_one_namespace(run: Run) -> None:
    """Only its topics and groups are listed, without the prefix; the variable works like -n's."""
    for space in ("Mine", "Yours"):
        run("topic", "create", f"T{space}", "--namespace", space)
        run("group", "set", f"G{space}", "--create", "--namespace", space)

    def mine(*arguments: str) -> Any:
        return rows(run(*arguments, "--json", namespace="Mine"))

    assert [row["topic"] for row in mine("topic", "list")] == ["TMine"]
    assert [row["group"] for row in mine("group", "list")] == ["GMine"]
    assert [row["group"] for row in mine("group", "show", "GMine")] == ["GMine"]
    assert len(mine("topic", "status", "TMine")) == 8
    assert mine("topic", "status", "Mine%TMine") == mine("topic", "status", "TMine")
    everything = {row["topic"] for row in rows(run("topic", "list", "--json"))}
    assert {"Mine%TMine", "Yours%TYours"} <= everything
    with pytest.raises(GroupNotExist, match="the group Mine%GYours"):
        mine("group", "offsets", "GYours")
    run("group", "delete", "GMine", "--yes", namespace="Mine")
    run("topic", "delete", "TMine", "--yes", namespace="Mine")
    assert mine("topic", "list") == mine("group", "list") == []


def test_a_group_of_a_namespace_is_moved_and_its_dead_letters_are_sent_again(
    run: Run, cluster: EmbeddedCluster
) -> None:
    """`group reset`, `group offsets` and `dead-letters` take and print the program's names."""
    inside = ("--namespace", "Dying")
    run("produce", "Orders", "bad", *inside)
    with cometmq.sync.PushConsumer(
        "billing",
        {"Orders": "*"},
        lambda message: cometmq.DeadLetter(),
        name_server=cluster.name_server_address,
        namespace="Dying",
        consume_from="first",
    ):
        wait_until(lambda: rows(run("dead-letters", "list", "--json", *inside)))
    (listed,) = rows(run("dead-letters", "list", "--json", *inside))
    assert listed == {"group": "billing", "messages": 1}
    (dead,) = rows(run("dead-letters", "list", "billing", "--topic", "Orders", "--json", *inside))
    assert dead["topic"] == "Orders"
    (full,) = rows(run("dead-letters", "show", "billing", dead["message_id"], "--json", *inside))
    assert (full["topic"], full["body"]) == ("Orders", "bad")
    redriven = rows(run("dead-letters", "redrive", "billing", "--yes", "--json", *inside))
    (target,) = redriven["targets"]
    assert (redriven["sent"], target["first_topic"], target["target"]) == (
        1, "Orders", "%RETRY%billing"
    )  # fmt: skip
    reached = rows(run("group", "offsets", "billing", "--topic", "Orders", "--json", *inside))
    assert {row["topic"] for row in reached} == {"Orders"}
    moved = rows(
        run("group", "reset", "billing", "Orders", "--to-earliest", "--yes", "--json", *inside)
    )
    assert sum(row["repeated"] for row in moved) == 1


def test_sandboxes_at_the_command_line(run: Run, cluster: EmbeddedCluster) -> None:
    """A command sends into a sandbox, looks at one, and is a consumer in one."""
    run("topic", "create", "Shared", "--queues", "1")
    run("produce", "Shared", "main")
    run("produce", "Shared", "changed", "--sandbox", "pr-1")

    def seen(*options: str) -> list[str]:
        return lines(run("consume", "Shared", "--from", "first", *options))

    assert seen("--until-end") == ["main", "changed"]
    assert seen("--until-end", "--sandbox", "main") == ["main"]
    assert seen("--until-end", "--sandbox", "pr-1") == ["changed"]
    assert seen("-g", "audit", "--sandbox", "pr-1", "--count", "1") == ["changed"]
    # No consumer of the group is in the sandbox any more, so its messages go to the main one.
    assert seen("-g", "audit", "--sandbox", "main", "--count", "2") == ["main", "changed"]
    assert "audit%pr-1" in {row["group"] for row in rows(run("group", "list", "--json"))}


def test_a_wrong_name_is_refused(run: Run) -> None:
    """A namespace has no separator, a sandbox neither."""
    with pytest.raises(ConfigError, match="namespace is 'a%b'"):
        run("topic", "list", "--namespace", "a%b")
    for command in (("consume", "Shared"), ("produce", "Shared", "x")):
        with pytest.raises(ConfigError, match="sandbox is 'a%b'"):
            run(*command, "--sandbox", "a%b")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_who_takes_topics_and_groups_takes_a_namespace(name: str) -> None:
    """Others do not offer the option."""
    context = click.Context(root)
    command: Any = root.get_command(context, name)
    parts = [command]
    if isinstance(command, click.Group):
        parts = [command.get_command(context, part) for part in command.list_commands(context)]
    offered = ["--namespace" in {o for p in part.params for o in p.opts} for part in parts]
    takers = ("produce", "consume", "topic", "group", "dead-letters", "message", "client", "why")
    assert set(offered) == {name in takers}
