"""A topic as Arrow record batches, for pandas, Polars, DuckDB and whoever reads Arrow.

Job: `scan`, its report and its column names.  It must not know Spark, and it imports numpy and
pyarrow (extra ``arrow``) only when a scan begins.
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
    queue by queue, from what is there when the scan begins to where it ended then.  What retention
    takes in between is counted in `report.expired`.  Further keywords are those of `LiveCluster`:
    `timeout_ms`, `retry_ms`, `group`, `access_key`, `secret_key`, `tls`.

    Else `path` names a store directory.  It may belong to a running broker: files are opened for
    reading only, no lock is taken, and the scan ends where the store ended when it began.  A
    running CometMQ broker writes its queues about a second behind its log; a scan of a topic sees
    what is written.

    With `topic` the consume queues lead: queue by queue, by queue offset.  Without it the commit
    log is walked and every record of every topic comes in log order, system topics included.
    Bodies come decompressed.  Only the columns asked for are decoded; a map of all properties is
    made only with `include_properties` (the column is null otherwise).

    - `queues`: queue ids. `starting_offsets` (inclusive) and `ending_offsets` (exclusive):
      ``"earliest"``, ``"latest"``, ``{0: 1500}``, ``{"Topic": {"broker-a:0": 1500}}`` or JSON.
      An offset below what the queue still holds begins at its first.
    - `starting_timestamp` (inclusive), `ending_timestamp` (exclusive): store time, ms since 1970
      or a datetime with a time zone.
    - `tags`: ``"A || B"`` or a list; hashes select in the queue, the tags themselves decide.
    - `columns`: names out of `ALL_COLUMNS`, in the order wanted; default all.
    - `mode`, for records that do not decode: PERMISSIVE gives a row with the reason in
      ``_corrupt_record`` (name the column when you name columns), DROPMALFORMED leaves them out
      and counts them, FAILFAST raises StoreCorrupt naming file and position.  A record that a
      crash cut off at the end of the log is never a row: recovery cuts it off too.
    - `check_crc` compares body CRCs and CRC tails: without it a changed byte inside a body is
      not seen, with it a scan is several times slower.
    - `batch_rows`: rows of a batch at most; batches also end with a log file and at 64 MiB.
    - `broker`: what stands in that column, since a store does not know its broker's name; in a
      live scan only this broker's queues are read.
    - `sql92`: a filter over properties for the brokers of a live scan to evaluate; RocketMQ's do
      where ``enablePropertyFilter=true`` is set.
    - `report` is filled while batches are read.

    Raises ConfigError for a wrong argument or a missing pyarrow, StoreError for a directory
    without a store, an unknown topic or queue, or an offset beyond a queue's end; of a cluster
    NoRoute, OffsetOutOfRange, ConnectFailed or what a broker answered (RemoteError).
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


def _check_names(given: Iterable[str]) -> None:
    """Refuse keywords nobody knows, with Spark's names of the same things told as ours."""
    known = [*_CLUSTER_SETTINGS, *inspect.signature(scan).parameters]
    known.remove("cluster")
    for name in given:
        if name in _CLUSTER_SETTINGS:
            continue
        ours = _NAMES_IN_SPARK.get(name) or re.sub("[A-Z]", _with_underscore, name)
        hint = f"; it is called {ours!r} here" if ours in known else nearest(name, known)
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
