"""java.util.Properties text: read as Java reads it, written as its configuration queries do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.codec.java_properties import format_properties, merge_properties, parse_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1\n!b=2\n#c=3\n\n  d : 4", {"a": "1", "d": "4"}),
        ("a = one \\\n   two\nb=2", {"a": "one two", "b": "2"}),
        ("a\\ b=c\\td", {"a b": "c\td"}),
        ("path=C:\\\\x\nuni=\\u00e9", {"path": "C:\\x", "uni": "é"}),
        ("k v", {"k": "v"}),
        ("lonely", {"lonely": ""}),
        ("=nothing", {}),
        ("end=of file\\", {"end": "of file"}),
        ("a=1\ra=2\r\nb=3", {"a": "2", "b": "3"}),
        ("a=x\u2028y", {"a": "x\u2028y"}),
        ("a=\\\n#b", {"a": "#b"}),
    ],
)
def test_properties_grammar(text: str, expected: dict[str, str]) -> None:
    """Comments, escapes, continued lines and separators as java.util.Properties reads them."""
    assert parse_properties(text) == expected


def test_the_last_of_two_equal_keys_wins() -> None:
    """As in a hash table that is filled line by line."""
    assert parse_properties("a=1\nb=2\na=3") == {"a": "3", "b": "2"}


NAMES = st.text("abcXYZ019_.-", min_size=1)
VALUES = st.text("aZ9 =:#!é你;%/.,", max_size=8).map(lambda text: text.strip(" =:"))


@given(st.dictionaries(NAMES, VALUES))
def test_what_is_written_reads_back(properties: dict[str, str]) -> None:
    """In key order; nothing is escaped (Java's queries do not), so nothing here needs it."""
    text = format_properties(properties)
    assert list(parse_properties(text).items()) == sorted(properties.items())


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    """Half a file, or another one: never an exception."""
    assert all(key for key in parse_properties(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "a=9\nz=y\n"),
        ("# kept\na=1\n\nb = 2\n", "# kept\na=9\n\nb = 2\nz=y\n"),
        ("a=1\r\n!kept\r\na : 2\r\n", "a=9\n!kept\nz=y\n"),
        ("a=one \\\n   two\nb=1", "a=9\nb=1\nz=y\n"),
        ("b=\\\n a=1\nz=0\n\n\n", "b=\\\n a=1\nz=y\na=9\n"),
        ("# a=1 \\\nb=2\n", "# a=1 \\\nb=2\na=9\nz=y\n"),
        ("aa=1\n a\\ b=2\n", "aa=1\n a\\ b=2\na=9\nz=y\n"),
    ],
)
def test_merging_touches_only_what_changed(text: str, expected: str) -> None:
    """Comments, order and other keys stay; a changed key stands once, a new one comes last."""
    merged = merge_properties(text, {"a": "9", "z": "y"})
    assert merged == expected
    assert parse_properties(merged) == {**parse_properties(text), "a": "9", "z": "y"}


@given(st.dictionaries(NAMES, VALUES), st.dictionaries(NAMES, st.text("a\\\n\t\r=: é")))
def test_merged_values_are_read_back(known: dict[str, str], changes: dict[str, str]) -> None:
    """Whatever a value holds, blanks at its ends apart."""
    merged = parse_properties(merge_properties(format_properties(known), changes))
    wanted = {key: value.strip() for key, value in changes.items()}
    assert {key: merged[key].strip() for key in changes} == wanted
    assert {key: value for key, value in merged.items() if key not in changes} == {
        key: value for key, value in known.items() if key not in changes
    }


def test_a_continued_empty_line_is_no_property() -> None:
    """A backslash with nothing behind it."""
    assert parse_properties("a=1\n\\\n\nb=2") == {"a": "1", "b": "2"}
