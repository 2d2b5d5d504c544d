"""Sizes of many messages, from the units of their queue, with numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from cometmq.codec.consume_queue import CQ_UNIT_BYTES, CQ_UNIT_FIELDS
from cometmq.store.queue.consume_queue import ConsumeQueue, ConsumeQueues

__all__ = ["size_counts"]

_UNIT: Final = np.dtype(CQ_UNIT_FIELDS)
_AT_ONCE: Final = 65_536
"""Units in one piece: 1.3 MB."""


def size_counts(
    queues: ConsumeQueues,
    queue: ConsumeQueue | None,
    first: int,
    end: int,
    bounds: Sequence[float],
) -> tuple[list[int], int]:
    """Count the messages of a span by size, and add up their bytes.  May block: for a worker.

    A size counts at the first bound that is not below it, or behind the last one.  Units that
    retention has taken away are left out.
    """
    counts = np.zeros(len(bounds) + 1, np.int64)
    total = 0
    for start in range(first, end if queue is not None else first, _AT_ONCE):
        assert queue is not None
        raw = queues.units(queue, start, min(end - start, _AT_ONCE), may_block=True) or b""
        sizes = np.frombuffer(raw[: len(raw) // CQ_UNIT_BYTES * CQ_UNIT_BYTES], _UNIT)["size"]
        counts += np.bincount(np.searchsorted(bounds, sizes), minlength=len(counts))
        total += int(sizes.sum(dtype=np.int64))
    return counts.tolist(), total
