"""A topic as Arrow record batches, for pandas, Polars, DuckDB and any other reader of Arrow.

`scan` reads a store directory or a running cluster.  numpy and pyarrow (extra ``arrow``) are
imported only when a scan begins.
"""

from __future__ import annotations

import inspect
import os
import re
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

from cometmq.arrow.options import (
    ALL_COLUMNS,
    BATCH_ROWS_DEFAULT,
    COLUMNS,
    MODES,
    ScanReport,
    nearest,
    parse_options,
)
from cometmq.errors import ConfigError, ConfigTypeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime
    from pathlib import Path


_CLUSTER_SETTINGS: Final = (
    *("timeout_ms", "retry_ms", "group"),
    *("access_key", "secret_key", "security_token", "tls", "env"),
)
_NAMES_IN_SPARK: Final = {"subscribe": "topic", "assign": "queues", "groupId": "group"}

__all__ = ["ALL_COLUMNS", "COLUMNS", "MODES", "ScanReport", "scan"]


def scan(
    path: str | Path | None = None,
    *,
    name_server: str | None = None,
    topic: str | None = None,
    queues: Iterable[int] | None = None,
    starting_offsets: str | Mapping[Any, Any] = "earliest",
    ending_offsets: str | Mapping[Any, Any] = "latest",
    starting_timestamp: int | datetime | None = None,
    ending_timestamp: int | datetime | None = None,
    tags: str | Iterable[str] | None = None,
    columns: Iterable[str] | None = None,
    include_properties: bool = False,
    mode: str = "PERMISSIVE",
    batch_rows: int = BATCH_ROWS_DEFAULT,
    broker: str | None = None,
    check_crc: bool = False,
    report: ScanReport | None = None,
    sql92: str | None = None,
    **cluster: Any,
) -> Any:
    """A `pyarrow.RecordBatchReader` over a store directory, RocketMQ's or ours, or a live topic.

    With `name_server` (``"127.0.0.1:9876"``) a topic is read from its brokers, RocketMQ's or ours:
    queue by queue, between the first and last offset that each queue has when the scan begins.
    Messages that retention deletes meanwhile are counted in `report.expired`.  Further keywords
    are those of `LiveCluster`: `timeout_ms`, `retry_ms`, `group`, `access_key`, `secret_key`,
    `tls`.

    Otherwise `path` names a store directory.  It may belong to a running broker: the scan opens
    files for reading only, takes no lock, and ends where the store ended when the scan began.  A
    running CometMQ broker writes its queue files about a second behind its log; a scan of a topic
    sees only written units.

    With `topic` the scan reads the consume queues: queue by queue, by queue offset.  Without it
    the scan walks the commit log and returns every record of every topic in log order, system
    topics included.  Bodies are decompressed.  Only the requested columns are decoded; the map of
    all properties is built only with `include_properties` (otherwise the column is null).

    - `queues`: queue ids.
    - `starting_offsets` (inclusive) and `ending_offsets` (exclusive):
      ``"earliest"``, ``"latest"``, ``{0: 1500}``, ``{"Topic": {"broker-a:0": 1500}}`` or JSON.
      A start below the queue's first offset becomes the first offset.
    - `starting_timestamp` (inclusive), `ending_timestamp` (exclusive): store time, ms since 1970
      or a datetime with a time zone.
    - `tags`: ``"A || B"`` or a list.  The queue's tag hashes preselect; the tags decide.
    - `columns`: names from `ALL_COLUMNS`, in the desired order; default all.
    - `mode`, for records that do not decode: PERMISSIVE returns a row with the reason in
      ``_corrupt_record`` (name this column when you name columns), DROPMALFORMED leaves the
      record out and counts it, FAILFAST raises StoreCorrupt with file and position.  A record
      that a crash cut off at the end of the log is never a row: recovery truncates it too.
    - `check_crc` compares body CRCs and CRC tails.  Without it the scan does not notice a changed
      byte inside a body; with it the scan is several times slower.
    - `batch_rows`: the most rows of a batch; a batch also ends with a log file and at 64 MiB.
    - `broker`: the value of that column, since a store does not know its broker's name; a live
      scan reads only this broker's queues.
    - `sql92`: a filter over properties that the brokers of a live scan evaluate; RocketMQ's
      brokers do so with ``enablePropertyFilter=true``.
    - `report` is filled while batches are read.

    Raises:
        ConfigError: an argument is wrong, or pyarrow is missing.
        StoreError: the directory holds no store, a topic or queue is unknown, or an offset is
            beyond its queue's end.
        NoRoute, OffsetOutOfRange, ConnectFailed, RemoteError: the same faults of a cluster.
    """
    _check_names(cluster)
    options = parse_options(
        topic=topic,
        broker=broker,
        queues=queues,
        starting_offsets=starting_offsets,
        ending_offsets=ending_offsets,
        starting_timestamp=starting_timestamp,
        ending_timestamp=ending_timestamp,
        tags=tags,
        columns=columns,
        include_properties=include_properties,
        mode=mode,
        batch_rows=batch_rows,
        check_crc=check_crc,
        sql92=sql92,
    )
    report = ScanReport() if report is None else report
    if not isinstance(report, ScanReport):
        raise ConfigTypeError(f"report must be a ScanReport to be filled, got {report!r}")
    if name_server is not None:
        if path is not None:
            raise ConfigError(
                f"a scan reads a directory or a cluster: got both {str(path)!r} and"
                f" name_server={name_server!r}"
            )
        _check_extra()
        from cometmq.arrow.live_scan import scan_live

        return scan_live(name_server, options, report, cluster)
    if path is None:
        raise ConfigError("nothing to scan: give a store directory, or name_server= and topic=")
    if not isinstance(path, str | PathLike) or not os.fspath(path):
        raise ConfigError(f"path must be the store's directory, got {path!r}")
    if sql92 is not None or cluster:
        name = "sql92" if sql92 is not None else next(iter(cluster))
        raise ConfigError(f"{name} is for a scan of a cluster (name_server=), not of a directory")
    _check_extra()
    from cometmq.arrow.store_scan import scan_store

    return scan_store(path, options, report)


def _check_names(keywords: Iterable[str]) -> None:
    """Refuse unknown keywords; translate the names of Spark's options into ours."""
    names = [*_CLUSTER_SETTINGS, *inspect.signature(scan).parameters]
    names.remove("cluster")
    for name in keywords:
        if name in _CLUSTER_SETTINGS:
            continue
        ours = _NAMES_IN_SPARK.get(name) or re.sub("[A-Z]", _with_underscore, name)
        hint = f"; it is called {ours!r} here" if ours in names else nearest(name, names)
        raise ConfigError(f"scan has no argument {name!r}{hint}")


def _with_underscore(capital: re.Match[str]) -> str:
    return f"_{capital[0].lower()}"


def _check_extra() -> None:
    try:
        import numpy  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"cometmq.arrow needs {error.name}: install the extra, pip install 'cometmq[arrow]'"
        ) from None
