"""Where a consume queue begins and ends: empty heads and tails of its files, whatever is read."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.arrow import store_files
from cometmq.arrow.store_files import queues_of
from cometmq.codec.consume_queue import CQ_UNIT, PRE_BLANK_SIZE

EMPTY = CQ_UNIT.pack(0, 0, 0)
PRE_BLANK = CQ_UNIT.pack(0, PRE_BLANK_SIZE, 0)
FILE_UNITS = 10


@given(
    st.lists(st.sampled_from([EMPTY, PRE_BLANK]), max_size=25),
    st.integers(0, 25),
    st.integers(0, 12),
    st.integers(1, 12),
)
def test_only_what_is_written_counts(head: list[bytes], written: int, tail: int, read: int) -> None:
    """Over several files and blocks of any length."""
    units = [*head, *(CQ_UNIT.pack(300 * number, 300, 0) for number in range(written))]
    units += [EMPTY] * tail
    units += [EMPTY] * (-len(units) % FILE_UNITS)
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_files, "_BLOCK_UNITS", read)
        folder = Path(name) / "consumequeue" / "T" / "3"
        folder.mkdir(parents=True)
        for first in range(0, len(units), FILE_UNITS):
            part = b"".join(units[first : first + FILE_UNITS])
            (folder / f"{first * CQ_UNIT.size:020d}").write_bytes(part)
        [queue] = queues_of(Path(name), "T")
        found = queue.units(queue.start, queue.end)
    assert queue.queue_id == 3
    assert queue.end - queue.start == written
    if written:
        assert queue.start == len(head)
    assert found["position"].tolist() == [300 * number for number in range(written)]
