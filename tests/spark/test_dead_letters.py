"""Dead letters on real Spark: messages that a real consumer refused until they died."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from tests.spark.clusters import Cluster

from cometmq.cli.main import root
from cometmq.client.handling.handlers import DeadLetter
from cometmq.errors import ConfigError, NoRoute
from cometmq.spark.pipelines.dead_letters import (
    Selection,
    by_cause,
    dead_topics,
    explain,
    select_dead,
)
from cometmq.sync import PushConsumer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cometmq.client.message.message import ReceivedMessage

GROUP = "accounting"
DEAD = 60
PATIENCE_S = 180


@pytest.fixture(scope="module")
def topic(cluster: Cluster) -> Iterator[str]:
    """A topic of which a group refused every third message for good, and said why."""
    topic = cluster.create(2, prefix="Bills")
    for tag in ("paper", "mail"):
        bodies = [f"{tag} {number}" for number in range(3 * DEAD // 2)]
        cluster.send(topic, bodies, queues=2, tags=tag, keys=f"key-{tag}")
    seen: set[bytes] = set()
    done = threading.Event()

    def handle(message: ReceivedMessage) -> DeadLetter | None:
        number = int(message.body.split()[1])
        seen.add(message.body)
        if len(seen) >= 3 * DEAD:
            done.set()
        reason = "no such account" if message.tags == "paper" else "refused"
        return DeadLetter(reason) if number % 3 == 0 else None

    with PushConsumer(
        GROUP, {topic: "*"}, handle, name_server=cluster.name_server, consume_from="first"
    ):
        assert done.wait(PATIENCE_S)
    yield topic
    assert len(seen) >= 3 * DEAD


@pytest.fixture
def dead(spark: SparkSession, cluster: Cluster, topic: str) -> DataFrame:
    """The dead messages, explained."""
    assert topic
    frame = (
        spark.read.format("cometmq")
        .option("nameServer", cluster.name_server)
        .option("subscribe", f"%DLQ%{GROUP}")
        .option("includeProperties", "true")
        .load()
    )
    explained: DataFrame = explain(frame)
    return explained


def test_deaths_are_grouped_by_cause(dead: DataFrame, topic: str) -> None:
    """Group, origin topic, times refused, tag and the reason the message carries."""
    rows = [row.asDict() for row in by_cause(dead).collect()]
    assert [
        (row["originTopic"], row["consumerGroup"], row["tags"], row["reason"], row["messages"])
        for row in sorted(rows, key=lambda row: row["tags"])
    ] == [
        (topic, GROUP, "mail", "refused", DEAD // 2),
        (topic, GROUP, "paper", "no such account", DEAD // 2),
    ]
    assert {row["timesRefused"] for row in rows} == {1}
    assert {row["exampleKeys"] for row in rows} == {"key-mail", "key-paper"}
    with pytest.raises(ConfigError, match="did you mean 'originTopic'"):
        by_cause(dead, ["orignTopic"])


def test_a_selection_chooses(dead: DataFrame, topic: str) -> None:
    """Topic, tag, key, reason and predicate, alone and together."""
    counts = [
        select_dead(dead, selection).count()
        for selection in (
            Selection(origin_topics=(topic,)),
            Selection(origin_topics=("Other",)),
            Selection(tags=("mail",)),
            Selection(keys=("key-paper",)),
            Selection(reasons=("account", "nothing")),
            Selection(where="CAST(body AS string) LIKE '% 3'", tags=("mail",)),
            Selection(ending_ms=1),
        )
    ]
    assert counts == [DEAD, 0, DEAD // 2, DEAD // 2, DEAD // 2, 1, 0]


def test_groups_without_dead_letters_are_named() -> None:
    """With the nearest that has some."""
    topics = ["T", "%DLQ%accounting", "%RETRY%accounting"]
    assert dead_topics(topics) == ["%DLQ%accounting"]
    assert dead_topics(topics, ["accounting"]) == ["%DLQ%accounting"]
    with pytest.raises(NoRoute, match="did you mean 'accounting'"):
        dead_topics(topics, ["acounting"])


@pytest.mark.full
def test_a_selection_is_counted_and_sent_again_once(
    spark: SparkSession, cluster: Cluster, dead: DataFrame, topic: str, tmp_path: Path
) -> None:
    """Both commands re-drive to the retry topic, share one ledger, and know --to-origin."""
    yes_json = ("--yes", "--json")
    assert spark is not None
    assert dead is not None
    page = tmp_path / "dead.html"
    common = ["-n", cluster.name_server, "--group", GROUP, "--json"]

    def call(*words: str) -> Any:
        result = CliRunner().invoke(
            root, ["pipeline", "dead-letters", *common, *words], standalone_mode=False
        )
        assert result.exception is None, result.output
        return json.loads(result.stdout)

    told = call("--report", str(page))
    assert (told["messages"], told["causes"]) == (DEAD, 2)
    assert told["offsets"] == [f"%DLQ%{GROUP}: {DEAD} of {DEAD} in 1 queue"]
    assert "class='plot'" in page.read_text(encoding="utf-8")
    redrive = ["--redrive", "--tag", "mail"]
    assert call(*redrive, "--preview")["messages"] == DEAD // 2
    retry = f"%RETRY%{GROUP}"
    waiting = _count(spark, cluster, retry)
    before = _count(spark, cluster, topic)
    assert before == 3 * DEAD
    told = call(*redrive, "--rate", "1000", "--yes")
    assert (told["sent"], told["sent_before"]) == (DEAD // 2, 0)
    assert told["offsets"] == [f"%DLQ%{GROUP}: {DEAD} of {DEAD} in 1 queue"]
    assert _count(spark, cluster, topic) == before
    assert _count(spark, cluster, retry) == waiting + DEAD // 2
    # The other command has the same ledger, and its options mean the same.
    other = CliRunner().invoke(
        root,
        ["dead-letters", "redrive", GROUP, "-n", cluster.name_server, "--to-origin", *yes_json],
        standalone_mode=False,
    )
    assert other.exception is None, other.output
    told = json.loads(other.stdout)
    assert (told["sent"], told["sent_before"]) == (DEAD // 2, DEAD // 2)
    assert _count(spark, cluster, topic) == before + DEAD // 2
    told = call("--redrive", "--yes")
    assert (told["sent"], told["sent_before"]) == (0, DEAD)


def _count(spark: SparkSession, cluster: Cluster, topic: str) -> int:
    frame = spark.read.format("cometmq").option("nameServer", cluster.name_server)
    return frame.option("subscribe", topic).load().count()
