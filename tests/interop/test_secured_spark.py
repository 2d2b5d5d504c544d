"""Arrow scans and Spark's source and sink in Java clusters that demand signatures and TLS."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.interop.test_secured import ADMIN, Secured, created, secured
from tests.spark.conftest import quick_settings

import cometmq.sync
from cometmq import Message
from cometmq.arrow import scan
from cometmq.errors import AccessDenied, CometError
from cometmq.spark import session
from cometmq.spark.live.security import security_options_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

__all__ = ["secured"]

COUNT = 40
COLUMNS = ["queueId", "queueOffset", "body", "tags"]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A session for the Java clusters of this file."""
    folder = tmp_path_factory.mktemp("spark")
    running = session("cometmq-secured", master="local[2]", **quick_settings(folder))
    yield running
    running.stop()


def filled(secured: Secured, topic: str) -> str:
    """A topic with messages, sent by who may."""
    created(secured, topic)
    with cometmq.sync.Producer("P_secured_spark", **secured.without()) as producer:
        for number in range(COUNT):
            producer.send(Message(topic, b"%d" % number, tags="A"))
    return topic


def test_scans_are_let_in(secured: Secured) -> None:
    """Every message with the right keys and certificates; a wrong secret is an error, not rows."""
    topic = filled(secured, "SecuredScan")
    found = scan(topic=topic, columns=COLUMNS, **secured.without()).read_all()
    assert sorted(int(body) for body in found["body"].to_pylist()) == list(range(COUNT))
    if "secret_key" not in secured.options:
        return
    with pytest.raises(AccessDenied) as denied:
        scan(topic=topic, **secured.without(secret_key="some other secret")).read_all()
    assert "some other secret" not in str(denied.value)
    assert ADMIN["secret_key"] not in str(denied.value)


def test_spark_is_let_in_and_tells_nobody_the_secret(
    secured: Secured, spark: "SparkSession", tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Batch and stream, read and write; plans, checkpoints, logs and errors hold no secret."""
    source, target = filled(secured, "SecuredSource"), created(secured, "SecuredTarget")
    security: Any = {
        name: value for name, value in secured.without().items() if name != "name_server"
    }
    options = {
        "nameServer": secured.cluster.name_server,
        "retryMs": "0",
        **security_options_of(security),
    }

    def read(topic: str, **more: str) -> Any:
        reader = spark.read.format("cometmq").options(**{**options, **more})
        return reader.option("subscribe", topic).load()

    frame = read(source)
    assert sorted(int(row.body) for row in frame.collect()) == list(range(COUNT))
    texts = [frame._jdf.queryExecution().toString()]
    checkpoint = tmp_path / "checkpoint"
    stream = (
        spark.readStream.format("cometmq")
        .options(**options)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
        .select("body", "tags")
        .writeStream.format("cometmq")
        .options(**options)
        .option("topic", target)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert stream.awaitTermination(240)
    texts.append(str(stream.lastProgress))
    texts.append(stream._jsq.toString())  # type: ignore[attr-defined]
    write = frame.select("body").write.format("cometmq").options(**options).option("topic", target)
    write.mode("append").save()
    assert read(target).count() == 2 * COUNT
    wrong = "not the secret at all"
    if "secretKey" in options:
        with pytest.raises(Exception) as refused:
            read(source, secretKey=wrong).count()
        assert not isinstance(refused.value, CometError)
        assert "check access_key= and secret_key=" in str(refused.value)
        texts.append(str(refused.value))
    texts += [path.read_text("utf-8") for path in checkpoint.rglob("[!.]*") if path.is_file()]
    texts += list(capfd.readouterr())
    secrets = [wrong, *(str(options[name]) for name in ("secretKey",) if name in options)]
    for secret in secrets:
        assert not [text for text in texts if secret in text]
