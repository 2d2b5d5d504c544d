"""`cometmq transaction` against a real cluster."""

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

import cometmq.sync
from cometmq.cli.main import root
from cometmq.cli.terminal.exit_codes import FAILED, NOT_FOUND
from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster

SETTINGS = {
    "transactionTimeOut": "1",
    "transactionCheckInterval": "100",
    "transactionOpBatchInterval": "20",
    "transactionCheckMax": "1000000",
}


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """One impatient broker."""
    with threaded_cluster(SETTINGS) as running:
        yield running


def run(cluster: EmbeddedCluster, *arguments: str) -> str:
    """What the command prints; it must succeed."""
    return invoke(cluster, *arguments).output


def invoke(cluster: EmbeddedCluster, *arguments: str) -> Result:
    """The command's output and code; it must not raise."""
    result = CliRunner(env={"NAMESRV_ADDR": cluster.name_server_address}).invoke(
        root, ("transaction", *arguments), standalone_mode=False
    )
    assert result.exception is None, result.exception
    return result


def listed(cluster: EmbeddedCluster, *arguments: str) -> list[dict[str, Any]]:
    """The listing for a program."""
    rows: list[dict[str, Any]] = json.loads(run(cluster, "list", "--json", *arguments))
    return rows


def wait(condition: Callable[[], bool]) -> None:
    """Ask again until it holds."""
    pause = threading.Event()
    for _ in range(600):
        if condition():
            return
        pause.wait(0.05)
    raise AssertionError(f"still not so: {condition!r}")


def test_what_is_open_and_why(cluster: EmbeddedCluster) -> None:
    """Undecided ones with their checks; ended ones not; without a producer there is no check."""
    assert "no open transactions" in run(cluster, "list")
    with cometmq.sync.TransactionProducer(
        "orders", check=lambda _: None, name_server=cluster.name_server_address
    ) as producer:
        for number, said in enumerate((True, None, False, None)):
            message = cometmq.Message("Orders", b"order", keys=f"k{number}")
            sent = producer.send_in_transaction(message, lambda _, said=said: said)  # type: ignore[misc]
            assert sent.is_settled == (said is not None)

        def is_checked() -> bool:
            rows = listed(cluster)
            return len(rows) == 2 and all(row["checks"] >= 2 for row in rows)

        wait(is_checked)
        rows = listed(cluster)
        assert [row["keys"] for row in rows] == ["k1", "k3"]
        for row in rows:
            assert (row["broker"], row["group"], row["topic"]) == ("broker-a", "orders", "Orders")
            assert row["why"].startswith("not decided in ")
            assert row["next_check"] != ""
            assert row["age_s"] >= 0
        assert "not decided in" in run(cluster, "list")
        assert listed(cluster, "--group", "others") == []

    def is_alone() -> bool:
        return {row["why"] for row in listed(cluster)} == {"no producer of orders is online"}

    wait(is_alone)
    assert {row["next_check"] for row in listed(cluster)} == {""}


def test_what_was_given_up_is_asked_about_again() -> None:
    """A given up transaction is listed, resumed by its id, checked and committed, once only."""
    settings = {**SETTINGS, "transactionCheckMax": "1"}
    verdicts: list[bool | None] = [None]
    with threaded_cluster(settings) as cluster:
        assert "no transaction was given up" in run(cluster, "list", "--given-up")
        with cometmq.sync.TransactionProducer(
            "orders", check=lambda _: verdicts[0], name_server=cluster.name_server_address
        ) as producer:
            message = cometmq.Message("Orders", b"a shelf", keys="k1")
            sent = producer.send_in_transaction(message, lambda _: None)
            wait(lambda: len(listed(cluster, "--given-up")) == 1)
            (row,) = listed(cluster, "--given-up", "--group", "orders")
            assert (row["transaction"], row["group"], row["topic"], row["keys"]) == (
                sent.sent.message_id,
                "orders",
                "Orders",
                "k1",
            )
            assert listed(cluster, "--given-up", "--group", "others") == []
            verdicts[0] = True
            resumed = invoke(cluster, "resume", "NoSuchId", row["transaction"])
            assert resumed.return_value == NOT_FOUND
            assert f"{row['transaction']}: a producer of orders will be asked" in resumed.output
            assert "NoSuchId: no broker gave it up" in resumed.output
            with cometmq.sync.PullConsumer(
                "readers",
                {"Orders": "*"},
                name_server=cluster.name_server_address,
                consume_from="first",
            ) as consumer:
                found = [one.body for one in consumer.poll(30_000)]
            assert found == [b"a shelf"]
            again = invoke(cluster, "resume", row["transaction"])
            assert again.return_value == FAILED
            assert "done already" in again.output
