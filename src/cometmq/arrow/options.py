"""The arguments of a scan, checked before a file is opened.

`parse_options` turns keywords into one frozen value, or names the wrong one and the right one.
It imports no pyarrow, so a mistake is reported even where pyarrow is missing.

Offsets are written as Spark's Kafka source writes them: ``earliest``, ``latest``, or per queue
``{0: 1500, 1: 900}``, ``{"Topic": {"0": 1500}}`` or ``{"Topic": {"broker-a:0": 1500}}``, also as
JSON text; -2 is earliest and -1 latest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Final

from cometmq.core.filter.sql92.expression import compile_expression
from cometmq.errors import ConfigError, ConfigTypeError

__all__ = [
    "ALL_COLUMNS",
    "BATCH_ROWS_DEFAULT",
    "COLUMNS",
    "CORRUPT_COLUMN",
    "EARLIEST",
    "LATEST",
    "MODES",
    "ScanOptions",
    "ScanReport",
    "nearest",
    "parse_options",
]

COLUMNS: Final = (
    "topic",
    "broker",
    "queueId",
    "queueOffset",
    "physicalOffset",
    "body",
    "tags",
    "keys",
    "properties",
    "bornTimestamp",
    "storeTimestamp",
    "bornHost",
    "storeHost",
    "msgId",
    "uniqKey",
    "reconsumeTimes",
    "sysFlag",
)
CORRUPT_COLUMN: Final = "_corrupt_record"
ALL_COLUMNS: Final = (*COLUMNS, CORRUPT_COLUMN)
MODES: Final = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
BATCH_ROWS_DEFAULT: Final = 16_384
_BATCH_ROWS_MAX: Final = 1 << 22
EARLIEST: Final = -2
LATEST: Final = -1
_NAMED_OFFSETS: Final = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """The checked arguments of a scan; times are ms since 1970."""

    topic: str | None
    broker: str | None
    queues: frozenset[int] | None
    starting_offset: int
    starting_offsets: dict[int, int]
    ending_offset: int
    ending_offsets: dict[int, int]
    starting_ms: int | None
    ending_ms: int | None
    tags: tuple[str, ...] | None
    columns: tuple[str, ...]
    include_properties: bool
    mode: str
    batch_rows: int
    check_crc: bool
    starting_by_broker: dict[tuple[str, int], int] = field(default_factory=dict)
    """The starting offsets that name a broker, by broker and queue id."""
    ending_by_broker: dict[tuple[str, int], int] = field(default_factory=dict)
    sql92: str | None = None
    """A filter for the brokers; only a live scan has one."""


@dataclass(slots=True)
class ScanReport:
    """Counts of a scan, filled while its batches are read."""

    rows: int = 0
    """Rows returned, damaged ones included."""
    corrupt: int = 0
    """Records that did not decode: rows with a reason (PERMISSIVE), or dropped."""
    dropped: int = 0
    """Corrupt records that were dropped (DROPMALFORMED)."""
    torn: int = 0
    """Records that a crash cut off at the end of the log; no mode returns them."""
    expired: int = 0
    """Units whose records retention has deleted."""


def nearest(value: object, candidates: Iterable[str]) -> str:
    """`; did you mean X?` when a candidate is close, otherwise nothing."""
    names = list(candidates)
    folded = {name.casefold(): name for name in names}
    close = get_close_matches(str(value).casefold(), folded, n=1, cutoff=0.5)
    return f"; did you mean {folded[close[0]]!r}?" if close else ""


def parse_options(
    *,
    topic: str | None = None,
    broker: str | None = None,
    queues: Iterable[int] | None = None,
    starting_offsets: Any = "earliest",
    ending_offsets: Any = "latest",
    starting_timestamp: int | datetime | None = None,
    ending_timestamp: int | datetime | None = None,
    tags: str | Iterable[str] | None = None,
    columns: Iterable[str] | None = None,
    include_properties: bool = False,
    mode: str = "PERMISSIVE",
    batch_rows: int = BATCH_ROWS_DEFAULT,
    check_crc: bool = False,
    sql92: str | None = None,
) -> ScanOptions:
    """Check every keyword of `scan`.

    Raises:
        ConfigError: a keyword is wrong; the text gives the nearest right value.
    """
    if mode not in MODES:
        raise ConfigError(
            f"mode {mode!r} is unknown: expected {', '.join(MODES)}{nearest(mode, MODES)}"
        )
    _check_kinds(broker, include_properties=include_properties, check_crc=check_crc)
    if isinstance(batch_rows, bool) or not isinstance(batch_rows, int):
        raise ConfigTypeError(f"batch_rows must be an integer, got {batch_rows!r}")
    if not 1 <= batch_rows <= _BATCH_ROWS_MAX:
        raise ConfigError(f"batch_rows {batch_rows} is not in 1..{_BATCH_ROWS_MAX}")
    if topic is not None and not (isinstance(topic, str) and topic):
        raise ConfigError(f"topic must be a name, got {topic!r}")
    start, starts, starts_of = _offsets("starting_offsets", starting_offsets, topic, EARLIEST)
    end, ends, ends_of = _offsets("ending_offsets", ending_offsets, topic, LATEST)
    of_brokers = {queue_id for _, queue_id in (*starts_of, *ends_of)}
    _check_order({key: value for key, value in starts.items() if key not in of_brokers}, ends)
    _check_order(starts_of, ends_of)
    if sql92 is not None and (not isinstance(sql92, str) or not sql92.strip()):
        raise ConfigError(f"sql92 must be an expression, got {sql92!r}")
    if sql92 is not None:
        compile_expression(sql92)
    if sql92 is not None and tags is not None:
        raise ConfigError("tags and sql92 do not go together: write TAGS IN ('A', 'B') in sql92")
    if topic is None and queues is not None:
        raise ConfigError("queues needs a topic: a scan of the whole log has no queues to choose")
    starting_ms = _timestamp("starting_timestamp", starting_timestamp)
    ending_ms = _timestamp("ending_timestamp", ending_timestamp)
    if starting_ms is not None and ending_ms is not None and starting_ms > ending_ms:
        raise ConfigError(f"starting_timestamp {starting_ms} is after ending_timestamp {ending_ms}")
    return ScanOptions(
        topic=topic,
        broker=broker,
        queues=_queues(queues),
        starting_offset=start,
        starting_offsets=starts,
        ending_offset=end,
        ending_offsets=ends,
        starting_ms=starting_ms,
        ending_ms=ending_ms,
        tags=_tags(tags),
        columns=_columns(columns, mode),
        include_properties=include_properties,
        mode=mode,
        batch_rows=batch_rows,
        check_crc=check_crc,
        starting_by_broker=starts_of,
        ending_by_broker=ends_of,
        sql92=sql92,
    )


def _check_kinds(broker: object, **flags: object) -> None:
    """Refuse texts such as ``"false"``, which Python takes for true."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ConfigTypeError(f"{name} must be True or False, got {flag!r}")
    if broker is not None and not (isinstance(broker, str) and broker):
        raise ConfigError(f"broker must be a name, got {broker!r}")


def _columns(columns: Iterable[str] | None, mode: str) -> tuple[str, ...]:
    if columns is None:
        return ALL_COLUMNS if mode == "PERMISSIVE" else COLUMNS
    if isinstance(columns, str):
        raise ConfigTypeError(
            f"columns must be a list of names, got {columns!r}: write [{columns!r}]"
        )
    chosen = tuple(_listed("columns", columns, "names"))
    if not chosen:
        raise ConfigError("columns is empty: name at least one, or leave it out for all")
    for name in chosen:
        if name not in ALL_COLUMNS:
            raise ConfigError(
                f"column {name!r} is unknown{nearest(name, ALL_COLUMNS) or '.'}"
                f" The columns are {', '.join(ALL_COLUMNS)}"
            )
        if chosen.count(name) > 1:
            raise ConfigError(f"column {name!r} is named twice")
    return chosen


def _queues(queues: Iterable[int] | None) -> frozenset[int] | None:
    if queues is None:
        return None
    chosen = _listed("queues", queues, "queue ids")
    for queue_id in chosen:
        if isinstance(queue_id, bool) or not isinstance(queue_id, int) or queue_id < 0:
            raise ConfigError(f"queues holds {queue_id!r}: expected queue ids, 0 and up")
    if not chosen:
        raise ConfigError("queues is empty: name at least one, or leave it out for all")
    return frozenset(chosen)


def _listed(name: str, value: Iterable[Any], plural: str) -> list[Any]:
    if not isinstance(value, Iterable):
        raise ConfigTypeError(
            f"{name} must be a list of {plural}, got {value!r}: write [{value!r}]"
        )
    return list(value)


def _tags(tags: str | Iterable[str] | None) -> tuple[str, ...] | None:
    if tags is None:
        return None
    names = tags.split("||") if isinstance(tags, str) else _listed("tags", tags, "tags")
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(f"tags holds {name!r}: expected text, 'A || B' or ['A', 'B']")
    chosen = tuple(dict.fromkeys(name.strip() for name in names))
    if chosen == ("*",):
        return None
    if not chosen or not all(chosen):
        raise ConfigError(f"tags {tags!r} names no tag: write 'A || B', a list of tags, or '*'")
    return chosen


def _timestamp(name: str, value: int | datetime | None) -> int | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ConfigError(f"{name} {value} has no time zone: say which, or give ms since 1970")
        return int(value.timestamp() * 1000)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be ms since 1970 or a datetime, got {value!r}")
    if not -(2**63) <= value < 2**63:
        raise ConfigError(f"{name} {value} is no time: ms since 1970 have 64 bits")
    return value


def _offsets(
    name: str, value: Any, topic: str | None, default: int
) -> tuple[int, dict[int, int], dict[tuple[str, int], int]]:
    """(default offset, offsets by queue id, offsets by broker and queue id)."""
    if isinstance(value, str) and not value.lstrip().startswith("{"):
        if value not in _NAMED_OFFSETS:
            raise ConfigError(
                f"{name} {value!r} is unknown: expected earliest, latest or offsets by queue"
                f"{nearest(value, _NAMED_OFFSETS)}"
            )
        offset = _NAMED_OFFSETS[value]
        if topic is None and offset != default:
            raise ConfigError(f"{name} needs a topic: the log is not numbered by queue")
        return offset, {}, {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ConfigError(f"{name} {value!r} is not JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be earliest, latest or offsets by queue, got {value!r}")
    if topic is None:
        raise ConfigError(f"{name} needs a topic: the log is not numbered by queue")
    if any(isinstance(item, Mapping) for item in value.values()):
        unknown = [key for key in value if key != topic]
        if unknown:
            raise ConfigError(
                f"{name} speaks of topic {unknown[0]!r}, the scan is of topic {topic!r}"
            )
        value = value[topic]
    return default, *_by_queue(name, value)


def _by_queue(
    name: str, value: Mapping[Any, Any]
) -> tuple[dict[int, int], dict[tuple[str, int], int]]:
    by_id: dict[int, int] = {}
    by_broker: dict[tuple[str, int], int] = {}
    seen: set[tuple[str | None, int]] = set()
    for key, item in value.items():
        queue_id, queue_offset = _queue_id(name, key), _offset(name, item)
        broker, colon, _ = str(key).rpartition(":")
        named = (broker if colon else None, queue_id)
        if named in seen:
            raise ConfigError(f"{name} names queue {key!r} twice: give it one offset")
        seen.add(named)
        by_id[queue_id] = queue_offset
        if colon:
            by_broker[broker, queue_id] = queue_offset
    return by_id, by_broker


def _check_order(starts: Mapping[Any, int], ends: Mapping[Any, int]) -> None:
    """Refuse a queue whose ending offset is before its starting offset."""
    for queue, end in ends.items():
        if 0 <= end < starts.get(queue, EARLIEST):
            where = queue if isinstance(queue, int) else f"{queue[0]}:{queue[1]}"
            raise ConfigError(
                f"starting_offsets of queue {where} is {starts[queue]}, after its ending offset"
                f" {end}: nothing lies between them"
            )


def _queue_id(name: str, key: object) -> int:
    text = str(key).rpartition(":")[2]
    if isinstance(key, bool) or not text.isascii() or not text.isdigit():
        raise ConfigError(f"{name} names queue {key!r}: expected an id, or BROKER:ID")
    return int(text)


def _offset(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < EARLIEST:
        raise ConfigError(
            f"{name} holds {value!r}: expected a queue offset, -2 (earliest) or -1 (latest)"
        )
    return value
