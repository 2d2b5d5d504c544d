"""`cometmq staged` against a real cluster."""

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

import cometmq.sync
from cometmq.cli.main import root
from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """One broker."""
    with threaded_cluster() as running:
        yield running


def run(cluster: EmbeddedCluster, *arguments: str) -> str:
    """What the command prints on both streams; it must succeed."""
    result = CliRunner(env={"NAMESRV_ADDR": cluster.name_server_address}).invoke(
        root, ("staged", *arguments), standalone_mode=False
    )
    assert result.exception is None, result.exception
    return result.output


def test_list_and_forget(cluster: EmbeddedCluster) -> None:
    """Published batches and staged tokens, of all sinks or of one; and a sink begins anew."""
    assert "no staged batches" in run(cluster, "list")
    with cometmq.sync.Staging(cluster.name_server_address, "prices") as staging:
        part = staging.part(3, "europe")
        part.add("Prices", b"1.08")
        staging.publish(3, [part.finish()])
        waiting = staging.part(4, "asia")
        for _ in range(5):
            waiting.add("Prices", b"1.08")
        waiting.finish()
    text = run(cluster, "list")
    assert "published" in text
    assert "europe" not in text
    rows = json.loads(run(cluster, "list", "--json"))
    assert [(row["state"], row["batch"], row["messages"], row["part"]) for row in rows] == [
        ("published", 3, 1, ""),
        ("staged", 4, 5, "asia"),
    ]
    assert {row["broker"] for row in rows} == {"broker-a"}
    assert json.loads(run(cluster, "list", "--sink", "other", "--json")) == []
    assert len(json.loads(run(cluster, "list", "--sink", "prices", "--json"))) == 2
    forgotten = run(cluster, "forget", "prices", "--yes")
    assert forgotten == "sink prices: forgotten, 1 staged token dropped\n"
    assert json.loads(run(cluster, "list", "--json")) == []
