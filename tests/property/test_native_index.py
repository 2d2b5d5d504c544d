"""The native core and the Python text give index entries the same hashes and the same links."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq import native
from cometmq.codec.index import IndexHeader
from cometmq.codec.java_hash import index_key_hash
from cometmq.store.index.file import IndexFile
from cometmq.store.index.keys import KeyHasher, item_entries, key_texts
from cometmq.testing.disk import SimDisk

pytestmark = pytest.mark.skipif(
    native.hash_keys is None, reason=f"there is nothing to compare: {native.describe()}"
)

TextMessage = tuple[str, int, int, tuple[str | None, str | None, str | None]]
TOPICS = st.sampled_from(["t", "Orders", "%RETRY%g", "Bestellungen-ü"])
TEXTS = st.one_of(
    st.sampled_from(["a", "a b", "  a   b ", "polygenelubricants", "\ud800", "\x00"]),
    st.text(max_size=12),
)
MESSAGES: st.SearchStrategy[TextMessage] = st.tuples(
    TOPICS,
    st.integers(0, 2**62),
    st.integers(0, 2**44),
    st.tuples(*(st.one_of(st.none(), TEXTS) for _ in range(3))),
)


@given(st.lists(MESSAGES, max_size=20))
def test_equal_hashes(batch: list[TextMessage]) -> None:
    """Any keys of any messages, in any order, and each with its message's offset and time."""
    expected = [
        (index_key_hash(text), physical_offset, store_ms)
        for topic, physical_offset, store_ms, keys in batch
        for text in key_texts(topic, keys)
    ]
    columns = KeyHasher().hash_batch(list(batch))
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected


@given(st.lists(MESSAGES, min_size=1, max_size=20))
def test_python_hashes_too(batch: list[TextMessage]) -> None:
    """The Python text is the specification: it gives the same without the core."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(native, "hash_keys", None)
        pure = [column.tolist() for column in KeyHasher().hash_batch(list(batch))]
    assert [column.tolist() for column in KeyHasher().hash_batch(list(batch))] == pure


RUNS: st.SearchStrategy[tuple[int, int, int, bytes]] = st.tuples(
    st.integers(1, 9),
    st.integers(0, 2**61),
    st.integers(0, 2**44),
    st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**32 - 1)), max_size=20).map(
        lambda entries: b"".join(struct.pack("=II", *entry) for entry in entries)
    ),
)


@given(st.lists(st.one_of(MESSAGES, RUNS), max_size=20))
def test_runs_among_messages(batch: list[TextMessage | tuple[int, int, int, bytes]]) -> None:
    """The entries of a run have its first offset and their distance from it."""
    expected = [
        (key_hash, physical_offset, item[2])
        for item in batch
        for key_hash, physical_offset in item_entries(item)
    ]
    columns = KeyHasher().hash_batch(list(batch))
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected


TIMES = st.one_of(st.integers(-5000, 5000), st.integers(0, 2**44))


@given(
    slot_count=st.sampled_from([1, 7, 1024, 1025, 5000]),
    begin_ms=TIMES,
    batches=st.lists(
        st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**62), TIMES), min_size=1),
        min_size=1,
        max_size=4,
    ),
)
def test_equal_links(
    slot_count: int, begin_ms: int, batches: list[list[tuple[int, int, int]]]
) -> None:
    """Entries, head, slots and the marks of changed pages are equal, batch after batch."""

    def added() -> list[object]:
        header = IndexHeader(begin_ms, begin_ms, 0, 0, 0, 1)
        disk = SimDisk(random.Random(1), lambda: 0)
        disk.makedirs("/d")
        file = IndexFile(
            "/d/f", disk.open_random("/d/f", 1 << 20, create=True), slot_count, 10_000, header
        )
        file.adopt_slots(np.zeros(slot_count, dtype=np.int32))
        outcomes: list[object] = []
        for batch in batches:
            columns = (np.array(column, dtype=np.int64) for column in zip(*batch, strict=True))
            outcomes += [file.add_many(*columns), file.header]
        assert file.slots is not None
        return [*outcomes, file.slots.tolist(), file._dirty_pages.tolist()]

    native_outcomes = added()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(native, "link_entries", None)
        assert added() == native_outcomes
