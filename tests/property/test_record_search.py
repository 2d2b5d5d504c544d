"""A search over many records at once agrees with a search in each record."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.store.read.record_search import records_with

PIECES = st.sampled_from(
    (b"a\x01b\x02", b"a\x01b", b"a\x01", b"b", b"a", b"\x02", b"\x01", b"xyz", b"aa")
)
RECORDS = st.lists(st.lists(PIECES, min_size=1, max_size=12).map(b"".join), min_size=1, max_size=30)
NEEDLES = st.lists(
    st.sampled_from((b"a\x01b\x02", b"a\x01a\x02", b"aa\x01b\x02", b"b", b"a\x01", b"xyzxyz")),
    min_size=1, max_size=3, unique=True,
)  # fmt: skip


def has_it(record: bytes, needle: bytes) -> bool:
    """Return whether a record has the property; a value ends at 0x02 or with its record."""
    is_value = needle.endswith(b"\x02")
    return needle in record or (is_value and record.endswith(needle[:-1]))


@given(RECORDS, NEEDLES, st.integers(1, 40), st.binary(max_size=20), st.binary(max_size=20))
def test_what_each_record_has_is_found_in_all(
    records: list[bytes], needles: list[bytes], window: int, before: bytes, behind: bytes
) -> None:
    """The search finds each record with the property, whatever surrounds the records."""
    starts = list(accumulate(map(len, records), initial=len(before)))
    raw = before + b"".join(records) + behind
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cometmq.store.read.record_search._FIND_BYTES_MAX", window)
        found = records_with(tuple(needles), raw, starts[1:], starts[0])
    assert found == sorted(set(found))
    for number, record in enumerate(records):
        if any(has_it(record, needle) for needle in needles):
            assert number in found, (number, found)
    # More is found only where something begins in a record and ends in the next one.
    for number in found:
        around = records[number] + b"".join(records[number + 1 :])
        assert any(
            has_it(records[number], needle) or needle.removesuffix(b"\x02") in around
            for needle in needles
        )
