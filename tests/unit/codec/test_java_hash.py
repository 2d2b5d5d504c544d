"""Java's hash code, on the pairs that Java printed and at the edges of 32 bits."""

import pytest

from cometmq.codec.java_hash import index_key_hash, java_hash, tags_code


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("标签", 857175),
        # Two surrogates, not one character.
        ("😀", 1772899),
        # Well-known strings with the same code, and the smallest integer.
        ("Aa", 2112),
        ("BB", 2112),
        ("polygenelubricants", -(2**31)),
        ("hello", 99162322),
    ],
)
def test_hash_is_javas(text: str, expected: int) -> None:
    """Each code is what String.hashCode gives."""
    assert java_hash(text) == expected


def test_hash_wraps_to_signed_32_bits() -> None:
    """A long text stays in the range of a Java int, on both ways through the function."""
    for text in ("z" * 1000, "签" * 1000):
        expected = 0
        for unit in text:
            expected = (31 * expected + ord(unit)) & 0xFFFFFFFF
        if expected >= 2**31:
            expected -= 2**32
        assert java_hash(text) == expected


def test_a_lone_surrogate_has_a_hash() -> None:
    """Java strings may hold half a pair; so may ours when a peer escaped one."""
    assert java_hash("\ud83d") == 0xD83D


def test_absent_and_empty_tags_have_code_zero() -> None:
    """Messages without a tag never match a tag expression."""
    assert tags_code(None) == tags_code("") == 0
    assert tags_code("TagA") == 2598919


def test_index_hash_is_not_negative() -> None:
    """The smallest integer has no absolute value and counts as zero."""
    assert index_key_hash("polygenelubricants") == 0
    text = "TopicTest#key1"
    assert index_key_hash(text) == abs(java_hash(text))
    assert java_hash("helloworld") == -index_key_hash("helloworld") < 0


def test_positive_hashes_are_their_own_key_hashes() -> None:
    """Only negative ones change."""
    assert index_key_hash("a") == 97
