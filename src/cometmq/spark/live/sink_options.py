"""The sink's options and columns, checked before a row is written.

The result is one frozen value that travels to the executors; one error names every wrong column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.arrow.options import nearest
from cometmq.errors import ConfigError
from cometmq.model.names import check_sink, check_topic
from cometmq.spark.base.option_names import OptionValues
from cometmq.spark.live.options import FORMAT, SPARK_OPTIONS, ConnectionOptions
from cometmq.spark.live.security import SECURITY_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["SINK_COLUMNS", "SINK_OPTIONS", "SinkOptions"]

SINK_OPTIONS: Final[dict[str, str]] = {
    "nameServer": "`host:port`, several with `;`. Executors connect to it too. Required.",
    "topic": "The target topic; overrides the column `topic`.",
    "sinkId": "The stream's name in the brokers' ledgers. Default: the query's id.",
    "jobId": "The name of a batch write; a name is published once.",
    "requestTimeoutMs": "The limit of each request to a broker. Default 10000.",
    "retryMs": "How long a publish is repeated when a broker does not answer. Default 30000.",
    **SECURITY_OPTIONS,
}
SINK_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string", "array<string>"),
    "properties": ("map<string,string>",),
    "messageGroup": ("string",),
    "queueId": ("int", "bigint"),
    "deliverTime": ("timestamp", "bigint"),
}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The checked options of a write."""

    connection: ConnectionOptions
    topic: str | None
    sink: str | None
    """The name in the ledgers; None until the query's id is known."""
    is_named: bool
    """Whether the user chose the name."""
    columns: tuple[str, ...]

    @classmethod
    def parse(
        cls, named: Mapping[str, str], schema: StructType, *, is_stream: bool, overwrite: bool
    ) -> SinkOptions:
        """Check everything that can be checked without a broker.

        Raises:
            ConfigError: an option or a column is wrong; the text says what is right.
        """
        if overwrite and not is_stream:
            raise ConfigError(
                'a topic cannot be overwritten: write with .mode("append"), or delete it first'
            )
        values = OptionValues(named, SINK_OPTIONS, FORMAT, SPARK_OPTIONS)
        wrong = "jobId" if is_stream else "sinkId"
        if wrong in values:
            kind, other = ("stream", "sinkId") if is_stream else ("batch write", "jobId")
            raise ConfigError(f"option {wrong} is not for a {kind}: use {other}")
        topic = values.text("topic")
        columns = _columns(schema)
        if topic is None and "topic" not in columns:
            raise ConfigError(
                "no target topic: set option topic, or give the DataFrame a column topic"
            )
        sink = values.text("sinkId" if is_stream else "jobId")
        fault = None if sink is None else check_sink(sink)
        if fault is not None:
            raise ConfigError(f"option {'sinkId' if is_stream else 'jobId'} is {sink!r}: {fault}")
        fault = None if topic is None else check_topic(topic)
        if fault is not None:
            raise ConfigError(f"option topic is {topic!r}: {fault}")
        return cls(ConnectionOptions.of(values), topic, sink, sink is not None, columns)


def _columns(schema: StructType) -> tuple[str, ...]:
    faults = []
    for field in schema.fields:
        kinds = SINK_COLUMNS.get(field.name)
        kind = field.dataType.simpleString()
        if kinds is None:
            faults.append(
                f"column {field.name!r} is not one a message has{nearest(field.name, SINK_COLUMNS)}"
            )
        elif kind not in kinds:
            faults.append(f"column {field.name} is of type {kind}, not {' or '.join(kinds)}")
    names = tuple(field.name for field in schema.fields)
    if "body" not in names:
        faults.append("column body is missing")
    if faults:
        raise ConfigError(
            f"the DataFrame cannot be written to a topic: {'; '.join(faults)}."
            f" The columns are {', '.join(SINK_COLUMNS)}; select() those to write"
        )
    return names
