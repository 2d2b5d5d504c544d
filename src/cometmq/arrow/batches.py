"""From decoded columns and faults to record batches of one schema.

Job: what the three modes make of records that do not decode.  It must not decode or read.
"""

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

_KEPT_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Damage:
    """A record or stretch that does not decode."""

    row: int
    """Its number among the records decoded together."""
    where: str
    """File and position, or queue and offset."""
    physical_offset: int | None
    reason: str

    @property
    def text(self) -> str:
        return f"{self.where}: {self.reason}"


class BatchMaker:
    """Makes the batches of one scan and counts in its report."""

    def __init__(self, options: ScanOptions, report: ScanReport, schema: Any) -> None:
        self._options = options
        self._report = report
        self._schema = schema
        # Memory that was given back once is what glibc keeps from then on (twice as much at its
        # heap's end): without it each batch's numbers go back and come again page by page.
        np.empty(_KEPT_BYTES, np.uint8)

    def batch(self, decoded: Decoded, damages: list[Damage], queue_rows: QueueRows | None) -> Any:
        """One batch: what decoded and, in its places, what the mode makes of the rest."""
        if decoded.columns:
            arrays = [decoded.columns[name] for name in self._options.columns]
            batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        else:
            batch = self._nothing()
        if not damages:
            return batch
        more = self.damaged(damages, queue_rows)
        if not more.num_rows:
            return batch
        order = np.concatenate(
            (decoded.rows, np.array([damage.row for damage in damages], np.int64))
        )
        both = pa.Table.from_batches([batch, more]).take(pa.array(np.argsort(order)))
        return both.combine_chunks().to_batches()[0]

    def damaged(self, damages: list[Damage], queue_rows: QueueRows | None) -> Any:
        """Rows for what does not decode; none where it is dropped, an error where it must not be.

        A queue still knows topic, queue and offset of such a record; the log only its position.
        """
        options, report = self._options, self._report
        report.corrupt += len(damages)
        if options.mode == "FAILFAST":
            raise StoreCorrupt(f"{damages[0].text}; mode PERMISSIVE or DROPMALFORMED reads on")
        if options.mode == "DROPMALFORMED":
            report.dropped += len(damages)
            return self._nothing()
        known: dict[str, list[Any]] = {
            "broker": [options.broker] * len(damages),
            "physicalOffset": [damage.physical_offset for damage in damages],
            CORRUPT_COLUMN: [damage.text for damage in damages],
        }
        if queue_rows is not None:
            known["topic"] = [queue_rows.topic] * len(damages)
            known["queueId"] = [queue_rows.queue_id] * len(damages)
            known["queueOffset"] = [int(queue_rows.queue_offsets[damage.row]) for damage in damages]
        return pa.RecordBatch.from_arrays(
            [
                pa.array(known.get(name, [None] * len(damages)), TYPES[name])
                for name in options.columns
            ],
            schema=self._schema,
        )

    def _nothing(self) -> Any:
        return pa.RecordBatch.from_pylist([], schema=self._schema)
