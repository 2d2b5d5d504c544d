"""Batches whose rows have the same property names: the quick way equals the general one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.arrow.property_columns import PropertyBatch, parse_properties
from cometmq.arrow.uniform_properties import UniformProperties, same_text

NAMES = st.lists(
    st.text("ABCDEFGHIJKLMNOP_x", min_size=1, max_size=27), min_size=1, max_size=5, unique=True
)
VALUES = st.text("abc 0123;=", min_size=1, max_size=9)


def parse(rows: list[bytes]) -> PropertyBatch | UniformProperties:
    """The parsed batch of these property strings, with other bytes around them."""
    raw, start, end = b"??", [], []
    for row in rows:
        start.append(len(raw))
        raw += row
        end.append(len(raw))
        raw += b"\x01?\x02"
    return parse_properties(pa.py_buffer(raw), np.array(start), np.array(end))


@given(st.data())
def test_every_value_is_found(data: st.DataObject) -> None:
    """Columns and maps hold what was written, with and without the last separator."""
    names = data.draw(NAMES)
    count = data.draw(st.integers(1, 9))
    table = [[data.draw(VALUES) for _ in names] for _ in range(count)]
    end = data.draw(st.sampled_from([b"", b"\x02"]))
    rows = [
        "\x02".join(f"{name}\x01{value}" for name, value in zip(names, row, strict=True)).encode()
        + end
        for row in table
    ]
    batch = parse(rows)
    assert isinstance(batch, UniformProperties)
    assert not batch.odd.any()
    for place, name in enumerate(names):
        assert batch.column(name).to_pylist() == [row[place] for row in table]
    assert batch.column("absent").to_pylist() == [None] * count
    assert [dict(row) for row in batch.as_map().to_pylist()] == [
        dict(zip(names, row, strict=True)) for row in table
    ]


@pytest.mark.parametrize(
    "rows",
    [
        [b"A\x011\x02", b"B\x011\x02"],
        [b"A\x011\x02", b"A\x011\x02B\x012\x02"],
        [b"A\x011\x02", b"A\x011"],
        [b"A\x01\x02", b"A\x01\x02"],
        [b"\x011\x02", b"\x011\x02"],
        [b"A\x011\x02A\x012\x02"] * 2,
        ["A\x01ä\x02".encode()] * 2,
        [b"A\x021\x01", b"A\x021\x01"],
        [b"A\x011\x02B", b"A\x011\x02B"],
        [b"A\x01", b"1\x02"],
        [b"", b""],
        [b"AAAAAAAAAAAAAAAAB\x011\x02", b"AAAAAAAAAAAAAAABB\x011\x02"],
    ],
)
def test_what_is_not_plainly_uniform_goes_the_general_way(rows: list[bytes]) -> None:
    """It decides about each row by itself."""
    assert isinstance(parse(rows), PropertyBatch)


@given(st.binary(min_size=1, max_size=40), st.integers(1, 6), st.data())
def test_same_text_is_the_same_bytes(text: bytes, count: int, data: st.DataObject) -> None:
    """One different byte anywhere is noticed."""
    rows: list[Any] = [text] * count
    is_changed = data.draw(st.booleans()) and count > 1
    if is_changed:
        place = data.draw(st.integers(0, len(text) - 1))
        changed = bytearray(text)
        changed[place] ^= 1 << data.draw(st.integers(0, 7))
        rows[data.draw(st.integers(1, count - 1))] = bytes(changed)
    raw = np.frombuffer(b"".join(rows) + bytes(8), np.uint8)
    start = np.arange(count) * len(text)
    found = same_text(raw, start, start + len(text))
    assert found == (None if is_changed else text)
    assert same_text(raw, start[:0], start[:0]) is None
