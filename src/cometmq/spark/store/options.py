"""The options of the store source, checked before a file is opened; without pyspark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.arrow.options import BATCH_ROWS_DEFAULT, ScanOptions, parse_options
from cometmq.errors import ConfigError
from cometmq.spark.base.option_names import OptionValues, timestamp_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FORMAT", "STORE_OPTIONS", "store_scan_options"]

FORMAT: Final = "cometmq-store"
STORE_OPTIONS: Final[dict[str, str]] = {
    "path": "The store's root: what `load(DIR)` names. Several: `load([A, B])`.",
    "topic": "Read this topic by its consume queues. Without it the whole log is read.",
    "queues": "Queue ids of the topic, for example `0,3`. Default: all.",
    "startingOffsets": "`earliest` (default), `latest`, or JSON as for the live source.",
    "endingOffsets": "`latest` (default) or JSON; exclusive.",
    "startingTimestamp": "Store time, inclusive: ms since 1970 or ISO 8601 with a time zone.",
    "endingTimestamp": "Store time, exclusive.",
    "tags": "`A || B`.",
    "includeProperties": "`true` fills the column `properties`. Default `false`.",
    "mode": "`PERMISSIVE` (default), `DROPMALFORMED` or `FAILFAST`, for damaged records.",
    "checkCrc": "`true` compares body CRCs; several times slower. Default `false`.",
    "broker": "The value of the column `broker`; a store does not know its broker's name.",
    "batchRows": "The most rows of an Arrow batch. Default 16384.",
    "minPartitions": "The fewest partitions, if there is enough to read. Default: the cores.",
    "maxPartitionBytes": "The most bytes of log per partition. Default 134217728.",
}


def store_scan_options(options: Mapping[str, str], columns: tuple[str, ...]) -> ScanOptions:
    """The options of a scan for Spark's options.

    Raises:
        ConfigError: an option is wrong.
    """
    values = OptionValues(options, STORE_OPTIONS, FORMAT, ("paths",))
    topic = values.text("topic")
    return parse_options(
        topic=topic,
        broker=values.text("broker"),
        queues=_queues(values.text("queues")),
        starting_offsets=values.text("startingOffsets") or "earliest",
        ending_offsets=values.text("endingOffsets") or "latest",
        starting_timestamp=timestamp_ms("startingTimestamp", values.text("startingTimestamp")),
        ending_timestamp=timestamp_ms("endingTimestamp", values.text("endingTimestamp")),
        tags=values.text("tags"),
        columns=columns,
        include_properties=values.truth("includeProperties", default=False),
        mode=(values.text("mode") or "PERMISSIVE").upper(),
        batch_rows=values.number("batchRows", BATCH_ROWS_DEFAULT) or BATCH_ROWS_DEFAULT,
        check_crc=values.truth("checkCrc", default=False),
    )


def _queues(value: str | None) -> list[int] | None:
    if value is None:
        return None
    try:
        return [int(part) for part in value.strip("[] ").split(",")]
    except ValueError:
        raise ConfigError(f"option queues is {value!r}: expected queue ids such as 0,3") from None
