"""SQL92 filters agree with a plain reference, and any text is a filter or one error."""

import random
from itertools import accumulate

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests import sql92_cases as reference

from cometmq.codec.properties import Needle, decode_properties
from cometmq.codec.stored_message import encode_message, properties_of
from cometmq.core.filter.property_filter import PropertyFilter
from cometmq.core.filter.sql92.expression import Expression
from cometmq.core.filter.sql92.needles import any_of
from cometmq.errors import ExpressionIllegal, NotComparable
from cometmq.store.read.record_search import records_with

seeds = st.integers(min_value=0, max_value=2**32 - 1)
WORDS = (
    *("a", "b1", "$x", "5", "5.5", "0", "''", "'x'", "NOT", "and", "OR", "BETWEEN", "IN", "TRUE"),
    *("NULL", "IS", "CONTAINS", "STARTSWITH", "(", ")", ",", "=", "<>", "<", ">=", "+", "-", "--"),
    *("/*", "*/", "\n", "'", "%", "like", "9223372036854775808", "1e999", "\u00e9", "\x00"),
)


def answer(expression: Expression, message: dict[str, str]) -> object:
    """Return the value of an expression, or the marker that it raised."""
    try:
        return expression.evaluate(message)
    except NotComparable:
        return "thrown"


def expected(tree: reference.Tree, message: dict[str, str]) -> object:
    """Return what the reference gives for the same expression."""
    try:
        return reference.evaluate_condition(tree, message)
    except reference.Thrown:
        return "thrown"


@given(seeds)
def test_a_filter_means_what_the_reference_says(seed: int) -> None:
    """Filter and reference agree on value, exception and match for every message."""
    chance = random.Random(seed)
    generator = reference.Generator(chance)
    for _ in range(20):
        text, tree = generator.filter()
        try:
            reference.check(tree)
        except reference.Refused:
            with pytest.raises(ExpressionIllegal):
                Expression(text)
            continue
        expression = Expression(text)
        for _ in range(10):
            message = reference.properties(chance)
            wanted = expected(tree, message)
            assert answer(expression, message) is wanted or wanted == "thrown", (text, message)
            assert answer(expression, message) == wanted, (text, message)
            assert expression.matches(message) is (wanted is True), (text, message)


def has_one(needles: tuple[Needle, ...], raw: bytes) -> bool:
    """Search a property string for one of the needles, by both searches that readers use."""
    together = bool(records_with(needles, raw, [len(raw)]))
    alone = any_of(needles)
    assert alone is not None
    if together:
        assert alone.search(raw), (needles, raw)
    return together


@given(seeds)
def test_what_matches_has_a_needle(seed: int) -> None:
    """Every message that a filter matches contains one of the filter's needles."""
    chance = random.Random(seed)
    generator = reference.Generator(chance)
    for _ in range(20):
        text, tree = generator.filter()
        try:
            reference.check(tree)
        except reference.Refused:
            continue
        expression = Expression(text)
        for _ in range(10):
            message = reference.properties(chance)
            raw = "".join(f"{name}\x01{value}\x02" for name, value in message.items()).encode()
            if expression.needles and expression.matches(decode_properties(raw)):
                assert has_one(expression.needles, raw), (text, raw)
                assert has_one(expression.needles, raw[:-1]), (text, raw)


WHOLE = st.integers(-120, 1200) | st.integers(-(2**63) - 5, 2**63 + 5)
FRACTIONS = st.sampled_from(("0", "5", "9" * 25, "0" * 25 + "1", "25", ""))
TAILS = st.sampled_from(("", "d", "F", "e0", "E1", " ", "\x00", "\x1f", "\x7f", "x", ".", "\u0667"))
FRONTS = st.sampled_from(("", "+", "-", " ", "0", "00000", "-0", "+00", "\u0667", "\uff10", "--"))
ODD = st.sampled_from(
    ("NaN", "-NaN", "+Infinity", "-Infinity", "0x1p3", "-0x.8p4", ".5", "-.5", "5.", "", "7\x017")
)
NUMBERS_AS_TEXT = (
    st.builds("{}{}{}".format, FRONTS, WHOLE, TAILS)
    | st.builds("{}{}.{}{}".format, FRONTS, WHOLE, FRACTIONS, TAILS)
    | ODD
)
LITERALS = (
    st.integers(-150, 1500).map(str)
    | st.integers(-(2**63) + 1, 2**63 - 1).map(str)
    | st.builds("{}.{}".format, st.integers(1, 1500), st.sampled_from(("0", "5", "25", "99")))
    | st.builds("-{}.{}".format, st.integers(0, 150), st.sampled_from(("5", "25", "99")))
    | st.sampled_from(("1e15", "1e300", "-1e15", "5e-324", "-5e-324", "999999999999999.5"))
)
ABOUT_A = st.one_of(
    st.builds("a {} {}".format, st.sampled_from(("=", "<", "<=", ">", ">=")), LITERALS),
    st.builds("{} {} a".format, LITERALS, st.sampled_from(("=", "<", "<=", ">", ">="))),
    st.builds("a BETWEEN {} AND {}".format, st.integers(-150, 100), st.integers(100, 1500)),
    st.builds("a > {} AND a <= {}".format, LITERALS, LITERALS),
    st.builds("(a = {} OR a < {}) AND b <> 'x'".format, LITERALS, LITERALS),
    st.builds("a IN ('{}', '7') OR a >= {}".format, LITERALS, LITERALS),
)


@settings(max_examples=300)
@given(ABOUT_A, st.lists(NUMBERS_AS_TEXT, min_size=1, max_size=8), st.booleans(), st.booleans())
@example("a >= 100.0", ["99." + "9" * 30], True, False)
@example("a <= -100.0", ["-99." + "9" * 30], True, False)
@example("a = 12", ["1\u0662", "\uff11\uff12", "+012"], False, False)
@example("a = 0", ["-0", "+000"], True, True)
@example("a > 5.0", ["NaN"], True, True)
def test_numbers_are_found_however_they_are_written(
    text: str, values: list[str], is_ended: bool, is_twice: bool
) -> None:
    """The number search finds each record whose number matches, however it is written."""
    expression = Expression(text)
    chosen = PropertyFilter(expression)
    records: list[bytes] = []
    for value in values:
        first = "a\x01\x02a\x01x\x02xa\x01500\x02" if is_twice else ""
        raw = f"{first}a\x01{value}{chr(2) if is_ended else ''}".encode()
        records.append(record_of(raw))
    ends = list(accumulate(map(len, records)))
    found = records_with(expression.needles, b"".join(records), ends)
    for number, one in enumerate(records):
        if expression.matches(decode_properties(properties_of(one))):
            assert not expression.needles or number in found, (text, values[number])
            assert chosen.matches(memoryview(one))
            assert chosen.matches(memoryview(record_of(properties_of(one), bytes(2000))))


def record_of(properties: bytes, more: bytes = b"") -> bytes:
    """Make a record with these properties whose body ends like the start of a property."""
    return encode_message("T", more + b"a\x01", properties)


def test_plain_numbers_out_of_bounds_are_passed_by() -> None:
    """Of numbers in plain digits, the search finds exactly those within the bounds."""
    for text, wanted in (
        ("a = 7", {7}),
        ("a > 995", set(range(996, 1200))),
        ("a BETWEEN 95 AND 105", set(range(95, 106))),
        ("a < -115 AND a > -118", {-117, -116}),
        ("a >= 995.0", set(range(994, 1200))),
        ("a = -3 OR a = 4", {-3, 4}),
        ("a > 5000000000", set()),
    ):
        needles = Expression(text).needles
        found = {n for n in range(-120, 1200) if has_one(needles, f"a\x01{n}\x02".encode())}
        assert found == wanted, text


def test_the_generator_draws_all_kinds() -> None:
    """The generator draws filters of all outcomes: refused, thrown, TRUE, FALSE and null."""
    chance = random.Random(92)
    generator = reference.Generator(chance)
    seen = {True: 0, False: 0, None: 0, "thrown": 0, "refused": 0}
    for _ in range(2_000):
        _, tree = generator.filter()
        try:
            reference.check(tree)
        except reference.Refused:
            seen["refused"] += 1
            continue
        seen[expected(tree, reference.properties(chance))] += 1  # type: ignore[index]
    assert min(seen.values()) > 100, seen


@given(st.text(max_size=60) | st.lists(st.sampled_from(WORDS), max_size=30).map(" ".join))
@example("a = '\ud800'")
@example("\x00")
def test_any_text_is_a_filter_or_the_one_error(text: str) -> None:
    """An error names a position inside the text, and a filter answers any message."""
    try:
        expression = Expression(text)
    except ExpressionIllegal as illegal:
        error = illegal
    else:
        for value in ("", "5", "x"):
            assert expression.matches(dict.fromkeys(expression.properties, value)) in (True, False)
        assert expression.matches({}) in (True, False)
        return
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert 1 <= error.line <= len(lines)
    assert 1 <= error.column <= len(lines[error.line - 1]) + 1
    assert error.expected
    assert f"line {error.line} column {error.column}" in str(error)


@given(
    st.lists(
        st.sampled_from(("(", "NOT ", "-", "a = (", "a > 1 OR (", "x AND NOT (")), max_size=400
    )
)
def test_depth_is_bounded_by_the_error(pieces: list[str]) -> None:
    """Nesting of any depth gives a filter or the error, never a RecursionError."""
    text = "".join(pieces) + "a > 1" + ")" * sum(piece.count("(") for piece in pieces)
    try:
        expression = Expression(text)
    except ExpressionIllegal:
        return
    assert answer(expression, {"a": "2", "x": "y"}) in (True, False, None, "thrown")
    assert expression.matches({"a": "2"}) in (True, False)
