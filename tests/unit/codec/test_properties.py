"""The property string: what writers write and what readers drop."""

import pytest

from cometmq.codec.properties import (
    decode_properties,
    encode_properties,
    encode_properties_text,
    ensure_trailing_separator,
    find_property,
    pick_properties,
    property_marks,
    remove_property,
    split_keys,
)
from cometmq.errors import LocalProtocolError


def test_writers_end_with_the_separator() -> None:
    """Name, 0x01, value, 0x02 for each property."""
    assert encode_properties({"a": "1", "城": "北京"}) == "a\x011\x02城\x01北京\x02".encode()
    assert encode_properties({}) == b""


def test_empty_values_are_not_written() -> None:
    """Readers would drop them (trap T24)."""
    assert encode_properties({"a": "", "b": "2"}) == b"b\x012\x02"


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"": "x"}, "empty name"),
        ({"a": "x\x01y"}, "value of message property 'a'"),
        ({"a": "x\x02y"}, "value of message property 'a'"),
        ({"a\x01": "x"}, "name of message property"),
        ({"a\x02b": "x"}, "name of message property"),
        ({"a": "x\x02b\x01y"}, "value of message property 'a'"),
        ({"a": "\ud800"}, "surrogate"),
    ],
)
def test_what_would_corrupt_the_map_is_refused(properties: dict[str, str], words: str) -> None:
    """There is no escape for the separators."""
    with pytest.raises(LocalProtocolError, match=words):
        encode_properties(properties)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a\x011", {"a": "1"}),
        ("a\x011\x02", {"a": "1"}),
        ("a\x011\x02b\x012", {"a": "1", "b": "2"}),
        # Empty name, empty value, no separator at all: dropped as by Java.
        ("\x011\x02a\x01\x02x\x02b\x012\x02", {"b": "2"}),
        ("a\x011\x02a\x012\x02", {"a": "2"}),
        ("a\x011\x01x\x02", {"a": "1\x01x"}),
        ("\x02\x02a\x011\x02\x02", {"a": "1"}),
    ],
)
def test_readers_are_javas(text: str, expected: dict[str, str]) -> None:
    """The same from text and from bytes."""
    assert decode_properties(text) == decode_properties(text.encode()) == expected


def test_broken_utf8_does_not_stop_the_reader() -> None:
    """One bad byte costs one character."""
    assert decode_properties(b"a\x01\xff1\x02") == {"a": "\ufffd1"}


RAW = b"KEYS\x01k1 k2\x02UNIQ_KEY\x01ABC\x02TAGS\x01TagA\x02"


@pytest.mark.parametrize(
    ("raw", "name", "expected"),
    [
        (RAW, b"KEYS", b"k1 k2"),
        (RAW, b"UNIQ_KEY", b"ABC"),
        (RAW, b"TAGS", b"TagA"),
        (RAW[:-1], b"TAGS", b"TagA"),
        # The end of a longer name is not the name.
        (RAW, b"KEY", None),
        (RAW, b"EYS", None),
        (b"XKEYS\x011\x02KEYS\x012\x02", b"KEYS", b"2"),
        (b"a\x011\x02a\x012\x02", b"a", b"2"),
        (b"a\x011\x02a\x01\x02", b"a", b"1"),
        (b"a\x01\x02", b"a", None),
        (b"", b"a", None),
    ],
)
def test_find_agrees_with_decoding(raw: bytes, name: bytes, expected: bytes | None) -> None:
    """A fast look gives what the whole map would give."""
    assert find_property(raw, name) == expected
    assert decode_properties(raw).get(name.decode()) == (expected and expected.decode())


def test_remove_leaves_the_other_bytes_alone() -> None:
    """Every entry of the name goes, no other byte changes."""
    assert remove_property(RAW, b"UNIQ_KEY") == b"KEYS\x01k1 k2\x02TAGS\x01TagA\x02"
    assert remove_property(b"a\x011\x02b\x012\x02a\x013\x02", b"a") == b"b\x012\x02"
    assert remove_property(RAW, b"KEY") == RAW


def test_separator_is_added_before_appending() -> None:
    """Java 4.9.8 leaves it out, and an appended property would melt into the last value."""
    assert ensure_trailing_separator(b"a\x011") == b"a\x011\x02"
    assert ensure_trailing_separator(RAW) == RAW
    assert ensure_trailing_separator(b"") == b""


def test_text_and_bytes_are_the_same() -> None:
    """The header of a send takes text, the log takes bytes."""
    properties = {"KEYS": "键", "a": "1"}
    assert encode_properties_text(properties).encode() == encode_properties(properties)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\x011\x02b\x012\x02", {"a": "1", "b": "2"}),
        ("b\x012", {"b": "2"}),
        ("c\x013\x02", {}),
        ("a\x011\x02a\x01\x02", {"a": "1"}),
        ("xa\x011\x02", {}),
    ],
)
def test_some_properties_are_picked_as_all_are_decoded(text: str, expected: dict[str, str]) -> None:
    """The last value of a name counts, an empty one does not, nor does the end of a longer name."""
    picked = pick_properties(text.encode(), property_marks(["b", "a"]))
    assert {name: value for name, value in picked.items() if name in "ab"} == expected


def test_the_last_value_wins_also_where_the_string_does_not_end_in_a_separator() -> None:
    """An entry whose name only ends like the one asked for is skipped."""
    assert find_property(b"a\x011\x02za\x012\x02a\x013", b"a") == b"3"
    assert find_property(b"za\x012\x02", b"a") is None


def test_blanks_separate_keys() -> None:
    """And nothing else does."""
    assert split_keys(" k1  k2,k3 ") == ("k1", "k2,k3")


def test_empty_values_are_skipped_by_the_explanation_of_a_bad_one() -> None:
    """The property that is wrong is named, not one that is not written."""
    with pytest.raises(LocalProtocolError, match="property 'b'"):
        encode_properties({"a": "", "ok": "1", "b": "x\x01y"})
