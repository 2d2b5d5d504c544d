"""The options of the live source, checked before a broker is asked.

The result is one frozen value that travels to the executors.  No pyspark is needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cometmq.arrow.options import BATCH_ROWS_DEFAULT, ScanOptions, parse_options
from cometmq.errors import ConfigError
from cometmq.spark.base.option_names import OptionValues, timestamp_ms
from cometmq.spark.live.queue_offsets import (
    EARLIEST,
    LATEST,
    Offsets,
    check_order,
    offsets_option,
)
from cometmq.spark.live.security import SECURITY_OPTIONS, LiveSecurity

__all__ = ["FORMAT", "SOURCE_OPTIONS", "ConnectionOptions", "LiveOptions"]

FORMAT: Final = "cometmq"
#: Options that Spark itself adds to those of a stream.
SPARK_OPTIONS: Final = ("path", "checkpointLocation", "queryName")
SOURCE_OPTIONS: Final[dict[str, str]] = {
    "nameServer": "`host:port`, several with `;`. Executors connect to it too. Required.",
    "subscribe": "Topics, separated by commas. One of these three is required.",
    "subscribePattern": "A Python regular expression that matches whole topic names.",
    "assign": 'Queues: `{"Orders": ["broker-a:0", "broker-a:1"]}`.',
    "startingOffsets": "`earliest` (default of a batch), `latest` (of a stream), `group`, or JSON.",
    "endingOffsets": "`latest` (default) or JSON; exclusive. Batch only.",
    "startingTimestamp": "Store time, inclusive: ms since 1970, or ISO 8601 with a time zone.",
    "endingTimestamp": "Store time, exclusive. Batch only.",
    "tags": "`A || B`: only messages with one of these tags.",
    "sql92": "A filter over properties, for brokers that filter by property.",
    "includeProperties": "`true` fills the column `properties`. Default `false`.",
    "groupId": "A consumer group that shows the stream's progress to lag tools.",
    "maxOffsetsPerTrigger": "About the most messages of a micro-batch. Stream only.",
    "minPartitions": "The fewest partitions. Default: one per queue; one for a stream's few rows.",
    "failOnDataLoss": "`false` continues after messages were deleted unread, with a warning.",
    "mode": "`FAILFAST` (default), `PERMISSIVE` or `DROPMALFORMED`, for damaged records.",
    "batchRows": "The most rows of an Arrow batch. Default 16384.",
    "offsetsCacheMs": "How long a stream caches the ends of queues. Default 100.",
    "requestTimeoutMs": "The limit of each request to a broker. Default 10000.",
    "retryMs": "How long requests to a silent broker are repeated. Default 30000.",
    **SECURITY_OPTIONS,
}
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp")
_STREAM_ONLY: Final = ("maxOffsetsPerTrigger",)
_SUBSCRIPTIONS: Final = ("subscribe", "subscribePattern", "assign")


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to reach the brokers; within a process equal options share connections."""

    name_server: str
    timeout_ms: int
    retry_ms: int
    security: LiveSecurity

    @classmethod
    def of(cls, values: OptionValues) -> ConnectionOptions:
        """From the options of a source or sink.

        Raises:
            ConfigError: an option is missing or wrong.
        """
        return cls(
            values.need("nameServer", "127.0.0.1:9876"),
            values.number("requestTimeoutMs", 10_000) or 10_000,
            values.number("retryMs", 30_000, least=0) or 0,
            LiveSecurity.of(values),
        )


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """The checked options of a read."""

    connection: ConnectionOptions
    topics: tuple[str, ...]
    pattern: str | None
    assigned: tuple[tuple[str, str, int], ...]
    """(topic, broker, queue id)."""
    starting: int | Offsets
    ending: int | Offsets
    starting_ms: int | None
    ending_ms: int | None
    group: str | None
    rows_per_trigger: int | None
    parts_min: int | None
    is_loss_fatal: bool
    cache_ms: int
    scan: ScanOptions

    @classmethod
    def parse(
        cls, named: Mapping[str, str], columns: tuple[str, ...], *, is_stream: bool
    ) -> LiveOptions:
        """Check everything that can be checked without a broker.

        Raises:
            ConfigError: an option is wrong.
        """
        values = OptionValues(named, SOURCE_OPTIONS, FORMAT, SPARK_OPTIONS)
        wrong = [name for name in (_BATCH_ONLY if is_stream else _STREAM_ONLY) if name in values]
        if wrong:
            kind, other = ("stream", "batch") if is_stream else ("batch", "stream")
            raise ConfigError(f"option {wrong[0]} is for a {other}, this is a {kind}: leave it out")
        topics, pattern, assigned = _subscription(values)
        group = values.text("groupId")
        starting = _starting(values, group, is_stream=is_stream)
        ending = offsets_option(
            "endingOffsets", values.text("endingOffsets") or "latest", ("latest",)
        )
        if isinstance(starting, dict) and isinstance(ending, dict):
            check_order(starting, ending)
        starting_ms = timestamp_ms("startingTimestamp", values.text("startingTimestamp"))
        ending_ms = timestamp_ms("endingTimestamp", values.text("endingTimestamp"))
        if starting_ms is not None and ending_ms is not None and starting_ms > ending_ms:
            raise ConfigError(f"startingTimestamp {starting_ms} is after {ending_ms}, the ending")
        return cls(
            connection=ConnectionOptions.of(values),
            topics=topics,
            pattern=pattern,
            assigned=assigned,
            starting=starting,
            ending=ending,
            starting_ms=starting_ms,
            ending_ms=ending_ms,
            group=group,
            rows_per_trigger=values.number("maxOffsetsPerTrigger", None),
            parts_min=values.number("minPartitions", None),
            is_loss_fatal=values.truth("failOnDataLoss", default=True),
            cache_ms=values.number("offsetsCacheMs", 100, least=0) or 0,
            scan=_scan(values, columns),
        )


def _scan(values: OptionValues, columns: tuple[str, ...]) -> ScanOptions:
    return parse_options(
        # Offsets are chosen per queue by the reader, not by the scan.
        topic="*",
        broker=None,
        queues=None,
        starting_offsets="earliest",
        ending_offsets="latest",
        starting_timestamp=None,
        ending_timestamp=None,
        tags=values.text("tags"),
        sql92=values.text("sql92"),
        columns=columns,
        include_properties=values.truth("includeProperties", default=False),
        mode=(values.text("mode") or "FAILFAST").upper(),
        batch_rows=values.number("batchRows", BATCH_ROWS_DEFAULT) or BATCH_ROWS_DEFAULT,
        check_crc=False,
    )


def _starting(values: OptionValues, group: str | None, *, is_stream: bool) -> int | Offsets:
    text = values.text("startingOffsets")
    if text is None:
        return LATEST if is_stream else EARLIEST
    if text.lower() == "group" and group is None:
        raise ConfigError("startingOffsets group needs option groupId: whose offsets?")
    words = ("earliest", "latest", "group") if is_stream else ("earliest", "group")
    if not is_stream and text.lower() == "latest":
        raise ConfigError("startingOffsets latest of a batch would read nothing: leave it out")
    return offsets_option("startingOffsets", text, words)


def _subscription(
    values: OptionValues,
) -> tuple[tuple[str, ...], str | None, tuple[tuple[str, str, int], ...]]:
    """(topics, pattern, queues) from exactly one of the three options."""
    named = [name for name in _SUBSCRIPTIONS if values.text(name) is not None]
    if len(named) != 1:
        listed = " and ".join(named) or "none of them"
        raise ConfigError(
            f"format {FORMAT!r} needs exactly one of {', '.join(_SUBSCRIPTIONS)}, got {listed}:"
            ' for example .option("subscribe", "Orders")'
        )
    value = values.text(named[0]) or ""
    if named[0] == "subscribe":
        topics = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
        if not topics:
            raise ConfigError(f"option subscribe is {value!r}: expected Orders or Orders,Bills")
        return topics, None, ()
    if named[0] == "subscribePattern":
        try:
            re.compile(value)
        except re.error as error:
            raise ConfigError(
                f"option subscribePattern {value!r} is no regular expression: {error}"
            ) from None
        return (), value, ()
    assigned = _assigned(value)
    return tuple(dict.fromkeys(queue[0] for queue in assigned)), None, assigned


def _assigned(value: str) -> tuple[tuple[str, str, int], ...]:
    example = '{"Orders": ["broker-a:0", "broker-a:1"]}'
    try:
        parsed: Any = json.loads(value)
    except ValueError as error:
        raise ConfigError(f"option assign is no JSON: {error}; expected {example}") from None
    queues = []
    if not isinstance(parsed, Mapping) or not parsed:
        raise ConfigError(f"option assign is {value!r}: expected {example}")
    for topic, names in parsed.items():
        if not isinstance(names, list) or not names:
            raise ConfigError(f"option assign names no queue of {topic!r}: expected {example}")
        for name in names:
            broker, _, queue_id = str(name).rpartition(":")
            if not broker or not (queue_id.isascii() and queue_id.isdigit()):
                raise ConfigError(f"option assign names queue {name!r}: expected {example}")
            queues.append((str(topic), broker, int(queue_id)))
    return tuple(queues)
