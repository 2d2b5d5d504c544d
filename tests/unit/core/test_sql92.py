"""SQL92 filters: what they mean, and what is said about those that mean nothing."""

import sys

import pytest

from cometmq.core.base.java_number import parse_double, parse_integer, parse_long
from cometmq.core.filter.sql92.compare import are_equal, compare_doubles, compare_literals
from cometmq.core.filter.sql92.compiler import compile_match
from cometmq.core.filter.sql92.expression import Expression, compile_expression
from cometmq.core.filter.sql92.lexer import LENGTH_MAX
from cometmq.core.filter.sql92.needles import any_of, needles_of
from cometmq.core.filter.sql92.parser import DEPTH_MAX, OPERATORS_MAX
from cometmq.core.filter.sql92.tree import Comparison, Literal, LiteralKind, Property
from cometmq.errors import ConfigError, ExpressionIllegal, NotComparable

THROWN = "thrown"


def value_of(text: str, **properties: str) -> object:
    """What a filter gives for a message; its match must agree."""
    expression = compile_expression(text)
    matches = expression.matches(properties)
    try:
        value: object = expression.evaluate(properties)
    except NotComparable:
        value = THROWN
    assert matches is (value is True)
    return value


@pytest.mark.parametrize(
    ("text", "without", "value", "with_it"),
    [
        ("a = 'x'", None, "x", True),
        ("a = 'x'", None, "X", False),
        ("'x' = a", False, "x", True),
        ("a <> 'x'", None, "y", True),
        ("'x' <> a", True, "x", False),
        ("a = 5", None, "+5", True),
        ("a = 5", None, "5.0", THROWN),
        ("a = 5", None, " 5", THROWN),
        ("a = 5", None, "9999999999", THROWN),
        ("a > 9999999999", None, "99999999990", True),
        ("a > 1.5", None, " 1e3 ", True),
        ("a > 1.5", None, "NaN", True),
        ("a <= 1.5", None, "NaN", False),
        ("1.5 < a", None, "NaN", True),
        ("a = TRUE", None, "tRUE", True),
        ("a = false", None, "anything", True),
        ("TRUE = a", False, "true", THROWN),
        ("TRUE <> a", True, "true", THROWN),
        ("a", None, "true", False),
        ("NOT a", None, "true", True),
        ("NOT a = 1", None, "1", False),
        ("a IS NULL", True, "", False),
        ("a IS NOT NULL", False, "", True),
        ("NOT a IS NULL", True, "x", False),
        ("NOT (a IS NULL)", False, "x", True),
        ("a BETWEEN 1 AND 5", None, "5", True),
        ("a BETWEEN 1 AND 5.5", None, "5", True),
        ("a BETWEEN 1 AND 5.5", None, "5.1", THROWN),
        ("a NOT BETWEEN 1 AND 5", None, "5", False),
        ("a NOT BETWEEN 5 AND 1", None, "3", True),
        ("a BETWEEN -5 AND - - 5", None, "-5", True),
        ("a IN ('x', 'it''s')", None, "it's", True),
        ("a NOT IN ('x')", None, "y", True),
        ("a CONTAINS 'b'", False, "abc", True),
        ("a NOT CONTAINS 'b'", False, "abc", False),
        ("a STARTSWITH 'b'", False, "bc", True),
        ("a NOT ENDSWITH 'b'", False, "bc", True),
        ("a CONTAINS ''", False, "abc", False),
        ("a NOT CONTAINS ''", False, "abc", False),
        ("-a = 5", None, "-5", None),
        ("- (a > 1) > 5", None, "x", THROWN),
        ("a = a", True, "x", True),
        ("a < a", None, "x", THROWN),
        ("a >= a", None, "NaN", True),
        ("a > 1 = TRUE", None, "2", True),
        ("(a = 'x') = 'x'", None, "x", THROWN),
        ("a > 1 CONTAINS 'x'", False, "x", THROWN),
        ("a = 'x' OR TRUE", True, "y", True),
        ("a = 'x' AND NULL", None, "x", None),
        ("a > 1 OR TRUE", True, "x", THROWN),
        ("TRUE OR a > 1", True, "x", True),
        ("'5' = 5 AND 1 = 1.0 AND 5 <> TRUE", True, "", True),
        ("'x' = 5", THROWN, "", THROWN),
        ("5 = 'x'", THROWN, "", THROWN),
        ("5 = '5'", True, "", True),
        ("'x' <> 'y' AND 'x' = 'x' AND 'TRUE' = TRUE AND TRUE <> FALSE", True, "", True),
        ("2 > 1 AND 1 < 2.5 AND 2147483648 >= 5 AND - 5 <= -5", True, "", True),
        ("a = (a IS NOT NULL)", None, "TRUE", True),
        ("(a = 'x') = 5", None, "x", False),
        ("5 = (a = 'x')", False, "x", False),
        ("'x' = (a = 'x')", False, "x", False),
        ("'true' = (a = 'x')", False, "x", True),
        ("5 IS NULL OR NULL IS NOT NULL OR 'x' IS NULL", False, "", False),
        ("NULL IS NULL", True, "", True),
        ("'abc' CONTAINS 'b' AND 'abc' NOT STARTSWITH 'b'", True, "", True),
        ("5 CONTAINS '5' OR (a = 'x') CONTAINS 'x'", False, "x", False),
        ("(a = 'x') NOT CONTAINS 'x'", False, "x", False),
        ("5 > - a", None, "x", None),
        ("a > - (a > 5)", None, "x", THROWN),
        ("-a BETWEEN 1 AND 5", None, "x", None),
        ("a = +5", None, "5", True),
        ("a > 5 IS NULL", True, "6", False),
        ("a > 5 IS NULL", True, "x", THROWN),
        ("a /* in * between **/ = -- to the end\r\n 5", None, "5", True),
        ("a = 5 -- no line end behind it", None, "5", True),
        ("a = 5L and a < .5E2 oR falsE", None, "5", True),
    ],
)
def test_value(text: str, without: object, value: str, with_it: object) -> None:
    """With and without the property: TRUE, FALSE, null, or RocketMQ throws."""
    assert value_of(text) == without
    assert value_of(text, a=value) == with_it


def test_a_null_on_the_left_does_not_hide_what_throws_on_the_right() -> None:
    """Java goes on behind a null, and throws there: the OR around it never comes to its turn."""
    text = "(color = 'red' AND size > 5) OR vip = 'yes'"
    assert value_of(text, size="big", vip="yes") == THROWN
    assert value_of(text, color="blue", size="big", vip="yes") is True
    assert value_of("NOT (color = 'red' OR size > 5)", size="big") == THROWN


@pytest.mark.parametrize(
    ("text", "line", "column", "found", "word"),
    [
        ("", 1, 1, "", "a condition"),
        (" -- nothing\n ", 2, 2, "", "a condition"),
        ("a", 1, 2, "", None),
        ("a LIKE 'x%'", 1, 3, "LIKE", "CONTAINS"),
        ("a NOT LIKE 'x%'", 1, 3, "NOT", "CONTAINS"),
        ("a + 1 > 2", 1, 3, "+", "arithmetic"),
        ("a = 1 garbage", 1, 7, "garbage", "AND, OR or the end"),
        ("a = 012", 1, 6, "12", "leading zero"),
        ("a = 1;", 1, 6, ";", "leave it out"),
        ("a == 1", 1, 4, "=", "one ="),
        ("a != 1", 1, 3, "!", "<>"),
        ('a = "x"', 1, 5, '"', "single quotes"),
        ("a = 'x", 1, 5, "'x", "closed"),
        ("a = 1 /* x", 1, 7, "/* x", "*/"),
        ("a-b = 1", 1, 2, "-", "name of a property"),
        ("a.b = 1", 1, 2, ".", "letters"),
        ("a =\u00a01", 1, 4, "U+00A0", "operator"),
        ("a = --1", 1, 8, "", "a value"),
        ("a\r\n=\n\n  (1", 4, 5, "", ")"),
        ("(a = 1", 1, 7, "", ")"),
        ("a IS 5", 1, 6, "5", "NULL"),
        ("a = NULL", 1, 5, "NULL", "IS NULL"),
        ("TRUE = 1", 1, 8, "1", "TRUE or FALSE"),
        ("a > 'x'", 1, 5, "'x'", "number"),
        ("(a = 1) > 2", 1, 1, "(", "number"),
        ("a IN (1)", 1, 7, "1", "quotes"),
        ("a IN ()", 1, 7, ")", "a text"),
        ("a IN ('x'", 1, 10, "", ", or )"),
        ("a > 1 IN ('x')", 1, 1, "a", "property"),
        ("a CONTAINS 5", 1, 12, "5", "text behind CONTAINS"),
        ("a BETWEEN 5 AND 1", 1, 17, "1", "not less than 5"),
        ("a BETWEEN 5 OR 6", 1, 13, "OR", "AND between"),
        ("'x'", 1, 1, "'x'", "a condition"),
        ("a = 1 AND 5", 1, 11, "5", "a condition"),
        ("NOT 'x'", 1, 5, "'x'", "a condition"),
        ("a > 0.0", 1, 5, "0.0", "write 0"),
        ("a > 1e999", 1, 5, "1e999", "1.8e308"),
        ("a > 9223372036854775808", 1, 5, "9223372036854775808", "9223372036854775807"),
        (f"a > {'9' * 5000}", 1, 5, "9" * 5000, "whole number"),
        ("(" * (DEPTH_MAX + 1), 1, DEPTH_MAX + 1, "(", f"{DEPTH_MAX} levels"),
        ("NOT " * 5_000, 1, 4 * DEPTH_MAX + 1, "NOT", f"{DEPTH_MAX} levels"),
        (f"a{' IS NULL' * 60}", 1, 1, "a", f"{DEPTH_MAX} levels"),
        (" " * (LENGTH_MAX + 1), 1, LENGTH_MAX + 1, "", f"{LENGTH_MAX} characters"),
    ],
)
def test_error(text: str, line: int, column: int, found: str, word: str | None) -> None:
    """Place, what was found there, and a sentence that helps."""
    if word is None:
        assert compile_expression(text).properties == {"a"}
        return
    with pytest.raises(ExpressionIllegal) as caught:
        compile_expression(text)
    error = caught.value
    assert isinstance(error, ConfigError)
    assert (error.line, error.column, error.faulty) == (line, column, found)
    assert word in str(error)
    assert f"line {line} column {column}" in str(error)


def test_many_conditions_are_one_level_and_have_a_limit() -> None:
    """A list of conditions does not nest; at 500 it ends."""
    most = " OR ".join(f"a = {number}" for number in range(OPERATORS_MAX - 1))
    assert value_of(most, a=str(OPERATORS_MAX - 2)) is True
    assert value_of(most, a="-1") is False
    with pytest.raises(ExpressionIllegal, match=f"at most {OPERATORS_MAX} comparisons"):
        compile_expression(f"{most} OR a = 'x' OR a = 'y'")


def at_depth(depth: int, text: str) -> Expression:
    """Make a filter with so many calls on the stack already."""
    return at_depth(depth - 1, text) if depth else Expression(text)


def test_the_deepest_filter_needs_less_than_half_the_stack() -> None:
    """No RecursionError where a filter is made deep inside a program."""
    for text in (f"{'(' * 49}a > 1{')' * 49}", f"{'NOT (' * 24}a > 1{')' * 24}"):
        expression = at_depth(sys.getrecursionlimit() // 2, text)
        assert expression.matches({"a": "2"})
        assert expression.evaluate({"a": "2"}) is True


def test_the_names_of_properties_and_texts_are_data() -> None:
    """What a user writes never becomes code, and all names are known."""
    expression = Expression(
        "__import__ = 'os' AND p IN ('}{') OR f_int > v1 AND c0 CONTAINS '\"\\\n'"
    )
    assert expression.properties == {"__import__", "p", "f_int", "v1", "c0"}
    assert expression.matches({"__import__": "os", "p": "}{"})
    assert expression.matches({"f_int": "2", "v1": "1", "c0": '\\"\\\n'})
    assert repr(compile_expression("a > 1")) == "Expression('a > 1')"


def test_numbers_are_read_as_java_reads_them() -> None:
    """Samples of Integer.valueOf, Long.valueOf and Double.valueOf."""
    assert parse_integer("-2147483648") == -(2**31)
    assert parse_integer("+" + "0" * 100 + "7") == 7
    assert parse_integer("-" + "0" * 5000 + "7") == -7
    assert parse_integer("٣") == 3
    assert parse_long("9223372036854775807") == 2**63 - 1
    for text in (
        "",
        "-",
        "1_0",
        " 1",
        "1.0",
        "\U0001d7d3",
        "9223372036854775808",
        "5" * 100,
        "0x1",
    ):
        with pytest.raises(NotComparable):
            parse_long(text)
    assert parse_double("\t 0x1.8p1d\x01") == 3.0
    assert parse_double("-0x1p9999") == float("-inf")
    assert parse_double("0x1p9999") == float("inf")
    assert str(parse_double("-NaN")) == "nan"
    assert parse_double("1e400f") == float("inf")
    for text in ("", ".", "1_0", "inf", "nan", "NaNf", "٣", "\u00a01", "1e", "0x1", "1 2"):
        with pytest.raises(NotComparable):
            parse_double(text)
    assert [compare_doubles(x, y) for x, y in ((-0.0, 0.0), (0.0, -0.0), (1.0, 1.0))] == [-1, 1, 0]
    assert compare_doubles(float("nan"), float("inf")) == 1
    assert are_equal(None, None) is True


def test_a_boolean_on_the_left_of_a_text_is_refused_again_behind_the_parser() -> None:
    """RocketMQ refuses `TRUE = 'x'` when it parses, and would throw if it did not."""
    with pytest.raises(NotComparable, match="on the left"):
        compare_literals(Literal(LiteralKind.BOOLEAN, value=True), Literal(LiteralKind.STRING, "x"))
    with pytest.raises(AssertionError, match="no condition"):
        compile_match(Literal(LiteralKind.STRING, "x"))


def test_compiled_filters_are_kept() -> None:
    """The same text is compiled once."""
    assert compile_expression("kept = '1'") is compile_expression("kept = '1'")


@pytest.mark.parametrize(
    ("text", "needles"),
    [
        ("region = 'eu'", [b"region\x01eu\x02"]),
        ("'eu' = region", [b"region\x01eu\x02"]),
        ("paid = TRUE", [b"paid\x01"]),
        ("amount > 10 AND region = 'eu'", [b"region\x01eu\x02"]),
        ("region IN ('us', 'eu')", [b"region\x01eu\x02", b"region\x01us\x02"]),
        ("region = 'eu' OR vip IS NOT NULL", [b"region\x01eu\x02", b"vip\x01"]),
        ("region <> 'eu'", [b"region\x01"]),
        ("region NOT IN ('eu')", [b"region\x01"]),
        ("name STARTSWITH 'ab'", [b"name\x01ab"]),
        ("name ENDSWITH 'ab'", [b"ab"]),
        ("name NOT CONTAINS 'ab'", [b"name\x01"]),
        ("x = 'z\u00fcrich'", ["x\x01z\u00fcrich\x02".encode()]),
        # What may hold for a message that has none of it, and what is too many.
        ("vip IS NULL", []),
        ("a = b", []),
        ("region = 'eu' OR vip IS NULL", []),
        ("NOT ('eu' = region)", []),
        ("x = '\ufffd'", []),
        ("region IN ('1','2','3','4','5','6','7','8','9')", []),
    ],
)
def test_needles(text: str, needles: list[bytes]) -> None:
    """Bytes that a message needs to match; the rarest of an AND, all of an OR."""
    assert list(compile_expression(text).needles) == needles


def test_no_needle_is_taken_from_text_that_may_stand_for_other_bytes() -> None:
    """U+FFFD is what bytes that are no UTF-8 are read as."""
    number = Literal(LiteralKind.INTEGER, 3)
    assert needles_of(Comparison("=", Property("a\ufffd"), number)) == ()
    assert any_of(()) is None


def test_the_numbers_beside_a_list_of_values_are_joined() -> None:
    """An AND takes what is in the bounds of all its numbers; a list of values is no bound."""
    needles = compile_expression("a > 3 AND b IN ('x', 'y') AND a < 5").needles
    alone = compile_expression("a = 4").needles
    assert needles == alone
