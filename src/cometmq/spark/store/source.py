"""`format("cometmq-store")`: a store directory as a DataFrame, read in parallel, without a broker.

Every executor must see the directory under the same path.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from cometmq.arrow.options import ALL_COLUMNS, COLUMNS, ScanOptions, ScanReport
from cometmq.errors import ConfigError
from cometmq.spark.base.columns import chosen_columns, schema_text
from cometmq.spark.base.option_names import OptionValues
from cometmq.spark.store.options import FORMAT, STORE_OPTIONS, store_scan_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql.types import StructType

    from cometmq.arrow.store_spans import Span

__all__ = ["StorePartition", "StoreReader", "StoreSource"]

_PART_BYTES_MAX_DEFAULT: Final = 128 << 20
_LOGGER: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class StorePartition(InputPartition):
    """What one task reads."""

    path: str
    spans: list[Span]


class StoreSource(DataSource):
    """The data source; Spark creates one per `load()`, on the driver's host."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return FORMAT

    def schema(self) -> str:
        """All columns; `_corrupt_record` if damaged records become rows.

        Raises:
            ConfigError: an option is wrong.
        """
        options = store_scan_options(self.options, COLUMNS)
        _paths(self.options)
        return schema_text(ALL_COLUMNS if options.mode == "PERMISSIVE" else COLUMNS)

    def reader(self, schema: StructType) -> StoreReader:
        """A reader of the schema's columns.

        Raises:
            ConfigError: an option or a column is wrong.
        """
        columns = chosen_columns(schema, ALL_COLUMNS)
        return StoreReader(
            _paths(self.options), store_scan_options(self.options, columns), dict(self.options)
        )


class StoreReader(DataSourceReader):
    """Plans on the driver's host, reads on the executors."""

    def __init__(self, paths: list[str], options: ScanOptions, named: Mapping[str, str]) -> None:
        self._paths = paths
        self._options = options
        values = OptionValues(named, STORE_OPTIONS, FORMAT, ("paths",))
        parts = values.number("minPartitions", None)
        self._parts = parts if parts is not None else max(2, os.cpu_count() or 2)
        self._part_bytes_max = values.number("maxPartitionBytes", _PART_BYTES_MAX_DEFAULT)

    def partitions(self) -> list[StorePartition]:
        """The partitions; Spark asks once per loaded DataFrame, at its first action.

        Raises:
            StoreError: there is no store, or not this topic, queue or offset.
        """
        from cometmq.arrow.store_spans import plan_spans

        return [
            StorePartition(path, spans)
            for path in self._paths
            for spans in plan_spans(
                path,
                self._options,
                parts=self._parts,
                part_bytes_max=self._part_bytes_max or _PART_BYTES_MAX_DEFAULT,
            )
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Record batches of one partition; none for an empty plan."""
        if not isinstance(partition, StorePartition):
            return iter(())
        from cometmq.arrow.store_spans import read_spans

        return read_spans(partition.path, partition.spans, self._options, ScanReport())


def _paths(options: Mapping[str, str]) -> list[str]:
    if options.get("paths"):
        return [_local(str(path)) for path in json.loads(options["paths"])]
    path = options.get("path")
    if not path:
        raise ConfigError(
            f"format {FORMAT!r} needs the store's root: .load(DIR), the folder with commitlog in it"
        )
    return [_local(path)]


def _local(path: str) -> str:
    """A path of this machine; also from the form of Spark and Hadoop, ``file:/data/store``."""
    scheme, colon, file_path = path.partition(":")
    if not colon or "/" in scheme or not file_path.startswith("/"):
        return path
    if scheme != "file" or (file_path.startswith("//") and not file_path.startswith("///")):
        raise ConfigError(
            f"a store is read from local files, got {path!r}: mount it, or copy it to a path that"
            " every executor sees"
        )
    return file_path.removeprefix("//")
