"""Record batches of one schema from decoded columns and faults, as the scan's mode asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from cometmq.arrow.columns import TYPES
from cometmq.arrow.options import CORRUPT_COLUMN, ScanOptions, ScanReport
from cometmq.errors import StoreCorrupt

if TYPE_CHECKING:
    from cometmq.arrow.decode import Decoded, QueueRows

__all__ = ["BatchMaker", "Damage"]

_HEAP_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Damage:
    """A record, or a stretch of a log, that does not decode."""

    row: int
    """Its row among the records that are decoded together."""
    where: str
    """File and position, or queue and offset."""
    physical_offset: int | None
    reason: str

    @property
    def text(self) -> str:
        return f"{self.where}: {self.reason}"


class BatchMaker:
    """Builds the batches of one scan and counts faults in its report."""

    def __init__(self, options: ScanOptions, report: ScanReport, schema: Any) -> None:
        self._options = options
        self._report = report
        self._schema = schema
        # glibc raises its limits when a large block is freed: from then on it keeps freed memory
        # instead of returning each batch's arrays to the system page by page.
        np.empty(_HEAP_BYTES, np.uint8)

    def batch(self, decoded: Decoded, damages: list[Damage], queue_rows: QueueRows | None) -> Any:
        """One batch: the decoded rows, and rows for the damaged records in their positions."""
        if decoded.columns:
            arrays = [decoded.columns[name] for name in self._options.columns]
            batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        else:
            batch = self._empty()
        if not damages:
            return batch
        damaged = self.damaged(damages, queue_rows)
        if not damaged.num_rows:
            return batch
        order = np.concatenate(
            (decoded.rows, np.array([damage.row for damage in damages], np.int64))
        )
        both = pa.Table.from_batches([batch, damaged]).take(pa.array(np.argsort(order)))
        return both.combine_chunks().to_batches()[0]

    def damaged(self, damages: list[Damage], queue_rows: QueueRows | None) -> Any:
        """Rows for damaged records; no rows in mode DROPMALFORMED.

        A consume queue gives topic, queue id and queue offset; the log gives the position only.

        Raises:
            StoreCorrupt: the mode is FAILFAST.
        """
        options, report = self._options, self._report
        report.corrupt += len(damages)
        if options.mode == "FAILFAST":
            raise StoreCorrupt(f"{damages[0].text}; mode PERMISSIVE or DROPMALFORMED reads on")
        if options.mode == "DROPMALFORMED":
            report.dropped += len(damages)
            return self._empty()
        values: dict[str, list[Any]] = {
            "broker": [options.broker] * len(damages),
            "physicalOffset": [damage.physical_offset for damage in damages],
            CORRUPT_COLUMN: [damage.text for damage in damages],
        }
        if queue_rows is not None:
            values["topic"] = [queue_rows.topic] * len(damages)
            values["queueId"] = [queue_rows.queue_id] * len(damages)
            values["queueOffset"] = [
                int(queue_rows.queue_offsets[damage.row]) for damage in damages
            ]
        return pa.RecordBatch.from_arrays(
            [
                pa.array(values.get(name, [None] * len(damages)), TYPES[name])
                for name in options.columns
            ],
            schema=self._schema,
        )

    def _empty(self) -> Any:
        return pa.RecordBatch.from_pylist([], schema=self._schema)
