"""The native core and the Python text give index entries the same hashes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq import native
from cometmq.codec.java_hash import index_key_hash
from cometmq.store.index.keys import KeyHasher, key_texts

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
