"""Columns made at once equal what is made one by one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.arrow.columns import message_ids, slices

HOSTS = [bytes([10, 0, 0, 7, 0, 0, 0x2A, 0x9F]), bytes([127, 0, 0, 1, 0, 0, 0x2A, 0xA0])]


@given(st.binary(max_size=400), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60))))
def test_slices_are_the_ranges(data: bytes, steps: list[tuple[int, int]]) -> None:
    """Adjacent, far apart, empty, up to the last byte."""
    ranges, place = [], 0
    for gap, length in steps:
        begin = place + gap
        place = begin + length
        if place > len(data):
            break
        ranges.append((begin, place))
    start = np.array([begin for begin, _ in ranges], np.int64)
    end = np.array([end for _, end in ranges], np.int64)
    found = slices(pa.py_buffer(data), start, end, pa.binary())
    found.validate(full=True)
    assert found.to_pylist() == [data[begin:end] for begin, end in ranges]


@pytest.mark.parametrize("hosts", [HOSTS[:1] * 4, HOSTS * 2], ids=["one-host", "two-hosts"])
@pytest.mark.parametrize(
    "offsets",
    [[0, 1, 255, 2**32 - 1], [2**32, 2**32 + 7, 2**33 - 1, 2**32], [2**32 - 1, 2**32, 0, 2**62]],
    ids=["below-4-GiB", "one-upper-half", "several"],
)
def test_message_ids(hosts: list[bytes], offsets: list[int]) -> None:
    """Hex of the host's bytes and of the offset."""
    raw = np.frombuffer(b"".join(hosts), "V8")
    for count in (4, 1, 0):
        found = message_ids(raw[:count], np.array(offsets[:count], ">i8"))
        assert found.to_pylist() == [
            f"{host.hex().upper()}{offset:016X}"
            for host, offset in zip(hosts[:count], offsets[:count], strict=True)
        ]
