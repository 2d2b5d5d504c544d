"""A patch makes the second file from the first, also split, and also joined with the next one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.core.replication.json_patch import difference, patched, pieces

KEYS = st.sampled_from("abcd")
ENTRIES = st.one_of(
    st.integers(),
    st.text(max_size=3),
    st.dictionaries(KEYS, st.one_of(st.none(), st.integers()), max_size=3),
)
FILES = st.dictionaries(
    KEYS, st.one_of(st.integers(), st.dictionaries(KEYS, ENTRIES, max_size=4)), max_size=4
)


@given(FILES, FILES, FILES)
def test_patches_make_the_next_file(
    first: dict[str, Any], second: dict[str, Any], third: dict[str, Any]
) -> None:
    """One by one, split into pieces, and two of them joined."""
    patch, following = difference(first, second), difference(second, third)
    assert patched(first, patch) == second
    assert (patch == {}) == (first == second)
    made = first
    for piece in pieces(patch, 8):
        made = patched(made, piece)
    assert made == second
    tables_only = all(
        isinstance(each.get(name), dict)
        for each in (first, second, third)
        for name in {*first, *second, *third}
    )
    if tables_only:
        joined = patched(patch, following, keeps_removals=True)
        assert patched(first, joined) == third


def test_a_removed_entry_that_comes_back_has_nothing_of_the_old_one() -> None:
    """Offsets of a topic that was deleted and made again."""
    first = {"offsetTable": {"t@g": {"0": 5, "1": 7}}}
    second: dict[str, Any] = {"offsetTable": {}}
    third = {"offsetTable": {"t@g": {"0": 1}}}
    joined = patched(difference(first, second), difference(second, third), keeps_removals=True)
    assert patched(first, joined) == third


@pytest.mark.parametrize("bytes_max", [1, 10, 1000])
def test_pieces_keep_the_order_and_a_size(bytes_max: int) -> None:
    """No entry is in two of them."""
    patch = {"t": {f"k{number}": "x" * 8 for number in range(5)}, "version": 3}
    parts = list(pieces(patch, bytes_max))
    assert [key for part in parts for key in part.get("t", {})] == [f"k{n}" for n in range(5)]
    assert len(parts) == (5 if bytes_max < 1000 else 1)
