"""SQL92 filters against a plain reference, and against any text at all."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests import sql92_cases as reference

from cometmq.codec.properties import decode_properties
from cometmq.core.sql92_expression import Expression
from cometmq.errors import ExpressionIllegal, NotComparable
from cometmq.store.record_search import places_with

seeds = st.integers(min_value=0, max_value=2**32 - 1)
WORDS = (
    *("a", "b1", "$x", "5", "5.5", "0", "''", "'x'", "NOT", "and", "OR", "BETWEEN", "IN", "TRUE"),
    *("NULL", "IS", "CONTAINS", "STARTSWITH", "(", ")", ",", "=", "<>", "<", ">=", "+", "-", "--"),
    *("/*", "*/", "\n", "'", "%", "like", "9223372036854775808", "1e999", "\u00e9", "\x00"),
)


def answer(expression: Expression, message: dict[str, str]) -> object:
    """The value, or that it raised."""
    try:
        return expression.evaluate(message)
    except NotComparable:
        return "thrown"


def expected(tree: reference.Tree, message: dict[str, str]) -> object:
    """The same, from the reference."""
    try:
        return reference.evaluate_condition(tree, message)
    except reference.Thrown:
        return "thrown"


@given(seeds)
def test_a_filter_means_what_the_reference_says(seed: int) -> None:
    """Twenty filters per example; value, throwing and match agree for every message."""
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


def has_one(needles: tuple[bytes, ...], raw: bytes) -> bool:
    """Whether a property string has one of the needles, as a reader looks for them."""
    return bool(places_with(needles, raw, [len(raw)]))


@given(seeds)
def test_what_matches_has_a_needle(seed: int) -> None:
    """No reader may pass by what a filter wants, with and without the last separator."""
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


def test_the_generator_draws_all_kinds() -> None:
    """A reference nobody asks proves nothing: refused, thrown, TRUE, FALSE and null all occur."""
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
    """The error has a place inside the text; a filter answers any message without raising."""
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
    """Nesting of any depth is a filter or the error, never more calls than the stack has."""
    text = "".join(pieces) + "a > 1" + ")" * sum(piece.count("(") for piece in pieces)
    try:
        expression = Expression(text)
    except ExpressionIllegal:
        return
    assert answer(expression, {"a": "2", "x": "y"}) in (True, False, None, "thrown")
    assert expression.matches({"a": "2"}) in (True, False)
