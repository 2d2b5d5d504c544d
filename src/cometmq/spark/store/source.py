"""`format("cometmq-store")`: a store directory as a DataFrame, read in parallel, without a broker.

Job: options in, partitions of about equal bytes out, Arrow batches per partition.  It must not
decode; `cometmq.arrow` does.  Every executor must see the directory under the same path.
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
    """The format; Spark makes one per `load()`, on the driver's host."""

    @classmethod
    def name(cls) -> str:
        """What `format(...)` takes."""
        return FORMAT

    def schema(self) -> str:
        """All columns; `_corrupt_record` where damaged records become rows."""
        options = store_scan_options(self.options, COLUMNS)
        _paths(self.options)
        return schema_text(ALL_COLUMNS if options.mode == "PERMISSIVE" else COLUMNS)

    def reader(self, schema: StructType) -> StoreReader:
        """Reads the columns of the schema."""
        columns = chosen_columns(schema, ALL_COLUMNS)
        return StoreReader(
            _paths(self.options), store_scan_options(self.options, columns), dict(self.options)
        )


class StoreReader(DataSourceReader):
    """Plans on the driver's host, reads on the executors."""

    def __init__(self, paths: list[str], options: ScanOptions, given: Mapping[str, str]) -> None:
        self._paths = paths
        self._options = options
        values = OptionValues(given, STORE_OPTIONS, FORMAT, ("paths",))
        parts = values.number("minPartitions", None)
        self._parts = parts if parts is not None else max(2, os.cpu_count() or 2)
        self._part_bytes_max = values.number("maxPartitionBytes", _PART_BYTES_MAX_DEFAULT)

    def partitions(self) -> list[StorePartition]:
        """Once per loaded DataFrame, at its first action."""
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
        """Record batches of one partition; an empty plan gives none."""
        if not isinstance(partition, StorePartition):
            return iter(())
        from cometmq.arrow.store_spans import read_spans

        return read_spans(partition.path, partition.spans, self._options, ScanReport())


def _paths(given: Mapping[str, str]) -> list[str]:
    if given.get("paths"):
        return [_local(str(path)) for path in json.loads(given["paths"])]
    path = given.get("path")
    if not path:
        raise ConfigError(
            f"format {FORMAT!r} needs the store's root: .load(DIR), the folder with commitlog in it"
        )
    return [_local(path)]


def _local(path: str) -> str:
    """A path of this machine, also written as Spark and Hadoop write it: ``file:/data/store``."""
    scheme, colon, rest = path.partition(":")
    if not colon or "/" in scheme or not rest.startswith("/"):
        return path
    if scheme != "file" or (rest.startswith("//") and not rest.startswith("///")):
        raise ConfigError(
            f"a store is read as files of each machine, got {path!r}: mount it, or copy it to where"
            " every executor sees it under the same path"
        )
    return rest.removeprefix("//")
