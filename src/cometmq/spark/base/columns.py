"""The sources' columns as Spark's types, and the check of a user's `.schema()`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.arrow.options import ALL_COLUMNS, COLUMNS, nearest
from cometmq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql.types import StructType

__all__ = ["SPARK_TYPES", "chosen_columns", "schema_text"]

SPARK_TYPES: Final[dict[str, str]] = {
    "topic": "string",
    "broker": "string",
    "queueId": "int",
    "queueOffset": "bigint",
    "physicalOffset": "bigint",
    "body": "binary",
    "tags": "string",
    "keys": "string",
    "properties": "map<string,string>",
    "bornTimestamp": "timestamp",
    "storeTimestamp": "timestamp",
    "bornHost": "string",
    "storeHost": "string",
    "msgId": "string",
    "uniqKey": "string",
    "reconsumeTimes": "int",
    "sysFlag": "int",
    "_corrupt_record": "string",
}
assert tuple(SPARK_TYPES) == ALL_COLUMNS


def schema_text(columns: Iterable[str] = COLUMNS) -> str:
    """These columns as Spark's DDL."""
    return ", ".join(f"{name} {SPARK_TYPES[name]}" for name in columns)


def chosen_columns(schema: StructType, allowed: tuple[str, ...] = COLUMNS) -> tuple[str, ...]:
    """The columns of a schema, in its order.

    Raises:
        ConfigError: a column is unknown, of another type, or NOT NULL (the reader cannot
            promise that, and Spark compares the two schemas exactly).
    """
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if field.name not in allowed:
            raise ConfigError(
                f"column {field.name!r} of the schema is unknown"
                f"{nearest(field.name, allowed) or '.'} The columns are {', '.join(allowed)}"
            )
        if kind != SPARK_TYPES[field.name]:
            raise ConfigError(
                f"column {field.name} of the schema is of type {kind}:"
                f" it must be {SPARK_TYPES[field.name]}; cast it after load()"
            )
        if not field.nullable:
            raise ConfigError(f"column {field.name} of the schema is NOT NULL: leave that out")
    if not schema.fields:
        raise ConfigError(f"the schema has no column: name some of {', '.join(allowed)}")
    return tuple(field.name for field in schema.fields)
