"""The tables that changes are merged into: Parquet snapshots, or Delta.  Each batch is one step.

Parquet, in a directory on a disk that driver and executors share:

    _table.json                     which snapshot is current, and what it holds; replaced by rename
    snapshots/00000003/rows/        the table, for any Parquet reader
    snapshots/00000003/state/       key, version, deleted, row: later changes are merged into it
    _lock                           one writer at a time

A snapshot is written beside the current one, synced, and then named in ``_table.json``: a reader
sees the old table or the new one.  A snapshot of a killed run is not named, and the next run
removes it.  The two newest snapshots stay, so that a reader that has just begun can finish.

Delta: the rows with three more columns, ``_key``, ``_version`` and ``_deleted``; readers filter
``_deleted = false``.  A batch is one MERGE that carries its batch id as Delta's transaction.

Both store (stream, batch id) of the last batch in the same atomic step that makes it visible, so a
batch that Spark repeats after a crash is recognised and skipped.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from cometmq.errors import ConfigError, StoreCorrupt
from cometmq.spark.pipelines.cdc.state import STATE_DDL, merged, rows, wider

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

__all__ = ["POINTS", "DeltaTableTarget", "ParquetTable", "Target", "current_snapshot"]

#: The steps of a batch at which tests end a run: state written, snapshot synced, pointer set.
POINTS: Final = ("state", "synced", "pointed")

_POINTER: Final = "_table.json"
_SNAPSHOTS: Final = 2
_FORMAT: Final = 1
#: Delta's names of types where Spark has others.
_SPARK_NAMES: Final = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}
_OURS: Final = ("_key", "_version", "_deleted")


class Target(Protocol):
    """A table that `Merger` writes."""

    def columns(self) -> dict[str, str] | None:
        """Column to type; None before the first batch."""
        ...

    def applied(self, stream: str) -> int | None:
        """The last batch of a stream that the table holds."""
        ...

    def apply(
        self, news: DataFrame, columns: dict[str, str], *, stream: str = "", batch_id: int = -1
    ) -> int:
        """Merge the newest changes per key and make them visible; returns the table's row count."""
        ...


def _widened(old: dict[str, str] | None, new: dict[str, str]) -> dict[str, str]:
    """The old columns in their order with types that are wide enough, then the new columns."""
    result = dict(old or {})
    for name, kind in new.items():
        result[name] = wider(result.get(name), kind)
    return result


# -- Parquet ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Pointer:
    """The content of ``_table.json``."""

    snapshot: int = 0
    columns: dict[str, str] = field(default_factory=dict)
    row_count: int = 0
    deleted_count: int = 0
    streams: dict[str, int] = field(default_factory=dict)
    format: int = _FORMAT


def _read_pointer(folder: Path) -> _Pointer | None:
    path = folder / _POINTER
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        values = json.loads(text)
        if values["format"] != _FORMAT:
            raise ConfigError(f"{path} has format {values['format']}; this version reads {_FORMAT}")
        return _Pointer(**values)
    except ConfigError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise StoreCorrupt(f"{path} is not a table's pointer: {error}") from None


def current_snapshot(path: str | Path) -> Path:
    """The directory of Parquet files that is the table now, for any reader.

    Raises:
        ConfigError: there is no table.
        StoreCorrupt: the table's pointer is damaged.
    """
    folder = Path(path)
    pointer = _read_pointer(folder)
    if pointer is None:
        raise ConfigError(f"{folder} holds no table: there is no {_POINTER}")
    return _snapshot(folder, pointer.snapshot) / "rows"


def _snapshot(folder: Path, number: int) -> Path:
    return folder / "snapshots" / f"{number:08d}"


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_tree(folder: Path) -> None:
    """Sync files, then the directories that contain them."""
    for root, _, names in os.walk(folder, topdown=False):
        for name in names:
            _sync(Path(root) / name)
        _sync(Path(root))


def _count(folder: Path) -> int:
    """The number of rows in the files' footers."""
    import pyarrow.dataset

    return int(pyarrow.dataset.dataset(folder, format="parquet").count_rows())


class ParquetTable:
    """Snapshots of Parquet files behind an atomic pointer; one writer at a time.

    Args:
        path: the directory.
        at: called at each of `POINTS` while a batch is applied; tests end the run there.

    Raises:
        ConfigError: the directory holds other things.
        StoreCorrupt: the table's pointer is damaged.
    """

    def __init__(self, path: str | Path, *, at: Callable[[str], None] | None = None) -> None:
        self._at = at or (lambda point: None)
        self.folder = Path(path).absolute()
        self._pointer = _read_pointer(self.folder)
        if self._pointer is None and self.folder.exists() and any(self.folder.iterdir()):
            ours = {"snapshots", "_lock"}
            strange = sorted(path.name for path in self.folder.iterdir() if path.name not in ours)
            if strange:
                raise ConfigError(
                    f"{self.folder} is no table of ours and is not empty ({strange[0]}): name "
                    "another directory"
                )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other writers.

        Raises:
            ConfigError: another run writes the table.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "_lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"another run is writing {self.folder}: wait for it, or name another table"
                ) from None
            self._pointer = _read_pointer(self.folder)
            yield

    def columns(self) -> dict[str, str] | None:
        """Column to type; None before the first batch."""
        return None if self._pointer is None else dict(self._pointer.columns)

    def applied(self, stream: str) -> int | None:
        """The last batch of a stream that the table holds."""
        return None if self._pointer is None else self._pointer.streams.get(stream)

    def state(self, like: DataFrame) -> DataFrame | None:
        """The newest state per key, read in the session of ``like``."""
        if self._pointer is None:
            return None
        path = _snapshot(self.folder, self._pointer.snapshot) / "state"
        return like.sparkSession.read.schema(STATE_DDL).parquet(str(path))

    def apply(
        self, news: DataFrame, columns: dict[str, str], *, stream: str = "", batch_id: int = -1
    ) -> int:
        """Merge, write the next snapshot, sync it, and point to it; returns the table's row count.

        On return the snapshot is on the disk; before that nothing of it is visible.
        """
        old = self._pointer
        wide = _widened(old.columns if old else None, columns)
        number = (old.snapshot if old else 0) + 1
        folder = _snapshot(self.folder, number)
        shutil.rmtree(folder, ignore_errors=True)
        state = merged(self.state(news), news)
        state.write.parquet(str(folder / "state"))
        self._at("state")
        written = news.sparkSession.read.schema(STATE_DDL).parquet(str(folder / "state"))
        rows(written, wide).write.parquet(str(folder / "rows"))
        row_count = _count(folder / "rows")
        deleted_count = _count(folder / "state") - row_count
        _sync_tree(folder)
        _sync(folder.parent)
        self._at("synced")
        streams = dict(old.streams) if old else {}
        if stream:
            streams[stream] = batch_id
        self._point(_Pointer(number, wide, row_count, deleted_count, streams))
        self._at("pointed")
        self._clean(number)
        return row_count

    def _point(self, pointer: _Pointer) -> None:
        draft = self.folder / f".{_POINTER}.draft"
        with draft.open("w", encoding="utf-8") as file:
            json.dump(asdict(pointer), file, indent=1, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.folder / _POINTER)
        _sync(self.folder)
        self._pointer = pointer

    def _clean(self, newest: int) -> None:
        for path in (self.folder / "snapshots").iterdir():
            if path.name.isdigit() and not newest - _SNAPSHOTS < int(path.name) <= newest:
                shutil.rmtree(path, ignore_errors=True)


# -- Delta ------------------------------------------------------------------------------------


class DeltaTableTarget:
    """A Delta table, through the package ``deltalake``; no JAR.

    The newest changes of a batch pass through the driver: a batch's distinct keys must fit there.

    Raises:
        ConfigError: deltalake is missing, or the directory holds other things.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            import deltalake
        except ImportError:
            raise ConfigError(
                "a Delta table needs deltalake: pip install 'cometmq[delta]'"
            ) from None
        self._delta = deltalake
        self.path = str(path)
        self._table = self._open()
        if self._table is None and Path(self.path).exists() and any(Path(self.path).iterdir()):
            raise ConfigError(
                f"{self.path} is not empty and no Delta table: name another directory"
            )

    def _open(self) -> Any:
        try:
            return self._delta.DeltaTable(self.path)
        except self._delta.exceptions.TableNotFoundError:
            return None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Do nothing: Delta detects a second writer when it commits."""
        yield

    def columns(self) -> dict[str, str] | None:
        """Column to type; None before the first batch.

        Raises:
            ConfigError: the table has other columns than ours.
        """
        if self._table is None:
            return None
        columns = {}
        for column in self._table.schema().fields:
            kind = getattr(column.type, "type", "string")
            if column.name not in _OURS:
                columns[column.name] = _SPARK_NAMES.get(kind, kind)
        if "_version" not in {column.name for column in self._table.schema().fields}:
            raise ConfigError(f"{self.path} is a foreign Delta table: it has no column _version")
        return columns

    def applied(self, stream: str) -> int | None:
        """The last batch of a stream that the table holds."""
        if self._table is None:
            return None
        version = self._table.transaction_version(stream)
        return None if version is None else int(version)

    def apply(
        self, news: DataFrame, columns: dict[str, str], *, stream: str = "", batch_id: int = -1
    ) -> int:
        """Merge by version, with the batch id in the commit; returns the table's row count.

        Raises:
            ConfigError: a column would need another type; Delta keeps the types of written files.
        """
        old = self.columns()
        wide = _widened(old, columns)
        for name, kind in (old or {}).items():
            if wide[name] != kind:
                raise ConfigError(
                    f"column {name} of {self.path} is {kind} and the changes make it {wide[name]}: "
                    "a Delta table keeps its types, so write a new table from the beginning"
                )
        source = self._source(news, wide)
        properties = self._delta.CommitProperties(
            app_transactions=[self._delta.Transaction(stream, batch_id)] if stream else None
        )
        if self._table is None:
            self._delta.write_deltalake(
                self.path, source, mode="error", commit_properties=properties
            )
            self._table = self._open()
        else:
            self._add_columns(old or {}, wide)
            merge = self._table.merge(
                source,
                predicate="t._key = s._key",
                source_alias="s",
                target_alias="t",
                commit_properties=properties,
            )
            merge.when_matched_update_all(
                predicate="s._version > t._version"
            ).when_not_matched_insert_all().execute()
        live = self._table.to_pyarrow_dataset().count_rows(filter=_is_live())
        return int(live)

    def _source(self, news: DataFrame, columns: dict[str, str]) -> Any:
        from pyspark.sql import functions as F  # noqa: N812

        typed = news.select(
            F.col("key").alias("_key"),
            F.col("version").alias("_version"),
            F.col("deleted").alias("_deleted"),
            *(F.col("row")[name].cast(kind).alias(name) for name, kind in columns.items()),
        )
        return typed.toArrow()

    def _add_columns(self, old: dict[str, str], wide: dict[str, str]) -> None:
        new = {name: kind for name, kind in wide.items() if name not in old}
        if not new:
            return
        delta_names = {ours: theirs for theirs, ours in _SPARK_NAMES.items()}
        self._table.alter.add_columns(
            [
                self._delta.Field(
                    name, self._delta.schema.PrimitiveType(delta_names.get(kind, kind))
                )
                for name, kind in new.items()
            ]
        )


def _is_live() -> Any:
    import pyarrow.compute as pc

    return ~pc.field("_deleted")
