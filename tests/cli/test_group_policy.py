"""`cometmq group show` and `group set` against a real cluster."""

import json
from collections.abc import Iterator
from typing import Any

import click
import pytest
from click.testing import CliRunner

from cometmq.cli.admin.group_policy import duration_ms, duration_text
from cometmq.cli.main import root
from cometmq.errors import GroupNotExist
from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """One broker for all tests here; each has a group of its own."""
    with threaded_cluster({}) as running:
        yield running


def run(cluster: EmbeddedCluster, *arguments: str) -> str:
    """What `cometmq group ...` prints; an error is raised as it is."""
    result = CliRunner(env={"NAMESRV_ADDR": cluster.name_server_address}).invoke(
        root, ("group", *arguments), standalone_mode=False
    )
    if result.exception is not None:
        raise result.exception
    return result.output


def shown(cluster: EmbeddedCluster, name: str) -> dict[str, Any]:
    """The one row of `group show`."""
    (row,) = json.loads(run(cluster, "show", name, "--json"))
    assert isinstance(row, dict)
    return row


def test_policies_are_set_shown_and_taken_back(cluster: EmbeddedCluster) -> None:
    """Delays of the reader's own, growing ones, and the broker's levels again."""
    run(cluster, "set", "billing", "--create")
    assert shown(cluster, "billing")["policy"] == "levels"
    table = run(cluster, "set", "billing", "--retry-delays", "10s,1m,90s", "--retry-max-times", "4")
    assert "10s 1m 90s 90s" in table
    row = shown(cluster, "billing")
    assert (row["policy"], row["retry_max_times"]) == ("customized", 4)
    assert row["group_retry_policy"] == {
        "type": "CUSTOMIZED",
        "customizedRetryPolicy": {"next": [10_000, 10_000, 10_000, 60_000, 90_000]},
    }
    table = run(cluster, "set", "billing", "--retry-exponential", "5s,1m,2")
    assert "5s 10s 20s 40s\n" in table
    assert shown(cluster, "billing")["retry_max_times"] == 4
    assert shown(cluster, "billing")["group_retry_policy"]["exponentialRetryPolicy"] == {
        "initial": 5000,
        "max": 60_000,
        "multiplier": 2,
    }
    run(cluster, "set", "billing", "--retry-levels", "--retry-max-times", "16")
    assert "from level 3" in run(cluster, "show", "billing")


def test_mistakes_change_nothing(cluster: EmbeddedCluster) -> None:
    """A misspelt group, no change, two policies, a duration nobody can read."""
    run(cluster, "set", "careful", "--create")
    with pytest.raises(GroupNotExist, match="did you mean careful"):
        run(cluster, "set", "carefull", "--retry-max-times", "3")
    for wrong in (
        (),
        ("--retry-delays", "1s", "--retry-levels"),
        ("--retry-delays", "soon"),
        ("--retry-exponential", "5s,2h"),
    ):
        with pytest.raises(click.UsageError):
            run(cluster, "set", "careful", *wrong)
    assert shown(cluster, "careful")["policy"] == "levels"


@pytest.mark.parametrize("text", ["0s", "500ms", "1s", "90s", "5m", "2h", "1d", "1500ms"])
def test_durations_are_read_back(text: str) -> None:
    """The printed text is what may be typed."""
    assert duration_text(duration_ms(text)) == text
