"""java.util.Properties text: read as Java reads it, written as its configuration queries do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.codec.java_properties import format_properties, parse_properties


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
