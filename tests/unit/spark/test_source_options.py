"""Options and schemas of the sources and the sink: what is wrong is named with what was meant."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql import types

from cometmq.arrow.options import COLUMNS
from cometmq.errors import ConfigError
from cometmq.net.tls import Tls
from cometmq.spark.base.columns import SPARK_TYPES, chosen_columns, schema_text
from cometmq.spark.live.options import LiveOptions
from cometmq.spark.live.sink_options import SinkOptions
from cometmq.spark.store.options import store_scan_options
from cometmq.spark.store.source import StoreReader, _paths

SERVER = {"nameserver": "127.0.0.1:9876"}


def schema(*fields: tuple[str, types.DataType]) -> types.StructType:
    """A DataFrame's schema."""
    return types.StructType([types.StructField(name, kind) for name, kind in fields])


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"subscrib": "T"}, "did you mean 'subscribe'?"),
        ({}, "needs exactly one of subscribe, subscribePattern, assign, got none of them"),
        ({"subscribe": "T", "assign": "{}"}, "got subscribe and assign"),
        ({"subscribe": "T", "maxOffsetsPerTrigger": "5"}, "is for a stream, this is a batch"),
        ({"subscribe": "T", "startingOffsets": "latest"}, "would read nothing"),
        ({"subscribe": "T", "startingOffsets": "group"}, "needs option groupId"),
        ({"subscribe": "T", "endingOffsets": "{"}, "option endingOffsets is no JSON"),
        ({"subscribe": "T", "failOnDataLoss": "maybe"}, "expected true or false"),
        ({"subscribe": "T", "minPartitions": "0"}, "a whole number of at least 1"),
        ({"subscribe": "T", "sql92": "a > 5", "tags": "A"}, "do not go together"),
        ({"subscribe": "T", "mode": "FAILSLOW"}, "did you mean 'FAILFAST'?"),
        ({"subscribePattern": "("}, "is no regular expression"),
        ({"assign": '{"T": ["0"]}'}, "names queue '0': expected"),
        ({"subscribe": "T", "startingTimestamp": "noon"}, "expected ms since 1970"),
        ({"subscribe": "T", "startingTimestamp": "--5"}, "expected ms since 1970"),
        ({"subscribe": "T", "startingTimestamp": "9" * 19}, "no time has so many ms"),
        ({"subscribe": " , "}, "option subscribe is ',': expected Orders"),
        ({"assign": '{"T": ["a:\u00b2"]}'}, "names queue 'a:\u00b2': expected"),
        ({"subscribe": "T", "startingOffsets": '{"T": {"a:\u00b2": 1}}'}, "expected BROKER:ID"),
        (
            {
                "subscribe": "T",
                "startingOffsets": '{"T": {"a:0": 40}}',
                "endingOffsets": '{"T": {"a:0": 10}}',
            },
            "startingOffsets is 40 for a:0 of topic 'T', after its endingOffsets 10",
        ),
        ({"subscribe": "T", "tls": "maybe"}, "expected true, no-hostname, insecure, false"),
        ({"subscribe": "T", "secretKey": "s"}, "needs option accessKey"),
    ],
)
def test_wrong_read_options(options: dict[str, str], what: str) -> None:
    """Known without asking a broker."""
    with pytest.raises(ConfigError) as raised:
        LiveOptions.parse({**SERVER, **options}, COLUMNS, is_stream=False)
    assert what in str(raised.value)


def test_keys_and_tls() -> None:
    """Options become what every client takes; no secret is in a text made of them."""
    given = {"accesskey": "ops", "secretkey": "hushed", "securitytoken": "whispered"}
    files = {"tlscafile": "ca.pem", "tlscertfile": "me.pem", "tlskeypassword": "muffled"}
    options = LiveOptions.parse(
        {**SERVER, "subscribe": "T", **given, **files}, COLUMNS, is_stream=True
    )
    assert options.connection.security.arguments() == {
        "access_key": "ops",
        "secret_key": "hushed",
        "security_token": "whispered",
        "tls": Tls(ca_file="ca.pem", cert_file="me.pem", key_password="muffled"),
    }
    shown = repr(options)
    assert "ops" in shown
    assert not any(secret in shown for secret in ("hushed", "whispered", "muffled"))
    assert hash(options.connection) == hash(pickle.loads(pickle.dumps(options)).connection)


@pytest.mark.parametrize(
    ("options", "tls"),
    [
        ({}, None),
        ({"tls": "false", "tlsCaFile": "ca.pem"}, False),
        ({"tls": "TRUE"}, Tls()),
        ({"tls": "insecure"}, Tls(verify=False, check_hostname=False)),
        ({"tls": "no-hostname", "tlsKeyFile": "k"}, Tls(key_file="k", check_hostname=False)),
    ],
)
def test_modes_of_tls(options: dict[str, str], tls: Tls | bool | None) -> None:
    """As the variable COMETMQ_TLS has them; nothing said is left to the environment."""
    parsed = LiveOptions.parse({**SERVER, "subscribe": "T", **options}, COLUMNS, is_stream=False)
    assert parsed.connection.security.tls == tls


def test_name_server_is_needed() -> None:
    """With an example."""
    with pytest.raises(ConfigError, match="needs option nameServer, for example"):
        LiveOptions.parse({"subscribe": "T"}, COLUMNS, is_stream=False)


@pytest.mark.parametrize(
    ("fields", "options", "what"),
    [
        ([("boddy", types.StringType())], {}, "did you mean 'body'?"),
        ([("body", types.IntegerType())], {}, "body is of type int, not binary or string"),
        ([("tags", types.StringType())], {}, "column body is missing"),
        ([("body", types.StringType())], {"topic": ""}, "no target topic"),
        ([("body", types.StringType())], {"job": "7"}, "did you mean 'jobId'?"),
        ([("body", types.StringType())], {"sinkId": "7"}, "use jobId"),
        ([("body", types.StringType())], {"jobId": "a b"}, "a b"),
    ],
)
def test_wrong_writes(
    fields: list[tuple[str, types.DataType]], options: dict[str, str], what: str
) -> None:
    """Every fault of the columns in one error; nothing was asked of a broker."""
    given = {**SERVER, "topic": "T", **options}
    with pytest.raises(ConfigError) as raised:
        SinkOptions.parse(given, schema(*fields), is_stream=False, overwrite=False)
    assert what in str(raised.value)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"topic": "a b"}, "option topic is 'a b': "),
        ({"topic": "T", "jobId": "a/b"}, "option jobId is 'a/b': "),
    ],
)
def test_names_that_brokers_refuse(options: dict[str, str], what: str) -> None:
    """On the driver, by the option's name, before a task runs."""
    with pytest.raises(ConfigError, match="contains illegal characters") as raised:
        SinkOptions.parse(
            {**SERVER, **options},
            schema(("body", types.StringType())),
            is_stream=False,
            overwrite=False,
        )
    assert str(raised.value).startswith(what)


def test_overwrite_is_refused() -> None:
    """A topic is a log."""
    given = {**SERVER, "topic": "T"}
    with pytest.raises(ConfigError, match="cannot be overwritten"):
        SinkOptions.parse(
            given, schema(("body", types.StringType())), is_stream=False, overwrite=True
        )


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"topik": "T"}, "did you mean 'topic'?"),
        ({"topic": "T", "mode": "FAILSLOW"}, "did you mean 'FAILFAST'?"),
        ({"queues": "1"}, "queues needs a topic"),
        ({"topic": "T", "queues": "one"}, "expected queue ids"),
        ({"topic": "T", "startingTimestamp": "yesterday"}, "expected ms since 1970"),
        ({"topic": "T", "startingTimestamp": "2026-01-31T12:00:00"}, "a time with its zone"),
    ],
)
def test_wrong_store_options(options: dict[str, str], what: str) -> None:
    """Before a file is opened."""
    with pytest.raises(ConfigError) as raised:
        store_scan_options(options, COLUMNS)
    assert what in str(raised.value)


@pytest.mark.parametrize("name", ["minPartitions", "maxPartitionBytes"])
def test_store_reader_wants_positive_numbers(name: str) -> None:
    """Zero partitions read nothing."""
    options = store_scan_options({"topic": "T"}, COLUMNS)
    with pytest.raises(ConfigError, match=f"option {name} is '0'"):
        StoreReader(["store"], options, {name: "0"})


@pytest.mark.parametrize(
    ("given", "paths"),
    [
        ({"path": "file:/data/store"}, ["/data/store"]),
        ({"path": "file:///data/store"}, ["/data/store"]),
        ({"paths": '["file:///a", "/b", "c:d", "./x:/y"]'}, ["/a", "/b", "c:d", "./x:/y"]),
    ],
)
def test_paths_as_spark_writes_them(given: dict[str, str], paths: list[str]) -> None:
    """`file:` in each of Hadoop's spellings; a colon in a name is a colon."""
    assert _paths(given) == paths


@pytest.mark.parametrize("path", ["hdfs://nn/store", "s3a://bucket/store", "file://host/store"])
def test_a_store_elsewhere_is_refused(path: str) -> None:
    """It is not looked for below the folder Spark runs in."""
    with pytest.raises(ConfigError, match="a store is read from local files"):
        _paths({"path": path})


@pytest.mark.parametrize(
    ("field", "what"),
    [
        (types.StructField("boddy", types.BinaryType()), "did you mean 'body'?"),
        (types.StructField("body", types.StringType()), "is of type string: it must be binary"),
        (types.StructField("body", types.BinaryType(), nullable=False), "is NOT NULL"),
    ],
)
def test_wrong_schema(field: types.StructField, what: str) -> None:
    """With the column that was meant, or the type it must have."""
    with pytest.raises(ConfigError) as raised:
        chosen_columns(types.StructType([field]))
    assert what in str(raised.value)


def test_schema_keeps_the_order_asked_for() -> None:
    """A schema is a projection."""
    wanted = schema(("queueOffset", types.LongType()), ("body", types.BinaryType()))
    assert chosen_columns(wanted) == ("queueOffset", "body")
    assert schema_text(("body",)) == "body binary"
    assert len(schema_text().split(", ")) == len(COLUMNS)
    assert set(COLUMNS) < set(SPARK_TYPES)
