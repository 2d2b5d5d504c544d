"""Random SQL92 filters, and a plain reference for what RocketMQ makes of them.

The generator gives a filter's text together with its tree as nested tuples, so that the reference
below needs no parser: it walks the tuples with Java's values and rules, one message at a time.
"""

import math
import random
from collections.abc import Mapping
from typing import Any, Final

NAMES: Final = ("a", "b", "color", "$_x1")
VALUES: Final = (
    *("5", "7", "-3", "0", "+5", "12", "2147483647", "2147483648", "9223372036854775808"),
    *("1.5", "-0.0", "0.0", "1e3", " 5", "5 ", "1_0", "1d", "0x1p3", "0x1p99999", "NaN", "-NaN"),
    *("Infinity", "-Infinity", "inf", ".5", "5.", ".", "e5", "1e400", "1e-400"),
    *("", "red", "blue", "redder", "it's", "true", "TRUE", "True ", "false", "null", "NULL"),
    *(
        "\u0663",
        "\uff15",
        "\U0001d7d3",
        "²",
        "00000000000000000000000000000000000000000000000000005",
    ),
    *("-", "+", "--5", "\t7\x01", "\u00a07", "grün", "5" * 45, "0" * 60),
)
NUMBERS: Final = (
    *(("I", "5"), ("I", "0"), ("I", "7"), ("I", "2147483647"), ("I", "12l")),
    *(("L", "2147483648"), ("L", "9223372036854775807L"), ("L", "9007199254740993")),
    *(
        ("D", "1.5"),
        ("D", "5."),
        ("D", ".5"),
        ("D", "1e3"),
        ("D", "5E-324"),
        ("D", "9007199254740992.0"),
    ),
    *(("D", "1.7976931348623157e308"), ("D", "007.50")),
)
TEXTS: Final = ("red", "re", "", "5", "it's", "true", "blue", "ed", "x", "1.5", "grün", "''")
VERBS: Final = ("<", "<=", ">", ">=", "CONTAINS", "STARTSWITH", "ENDSWITH", "BETWEEN", "IN")

Tree = tuple[Any, ...]


class Refused(Exception):
    """RocketMQ refuses the filter."""


class Thrown(Exception):
    """RocketMQ throws while it evaluates a message."""


def properties(chance: random.Random) -> dict[str, str]:
    """Draw the properties of a message; each name may be missing."""
    return {name: chance.choice(VALUES) for name in NAMES if chance.random() < 0.75}


# --- generator --------------------------------------------------------------------------------


class Generator:
    """Draws filters from the grammar, most of them valid."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def filter(self, depth: int = 3) -> tuple[str, Tree]:
        """Return a filter's text and its tree."""
        text, tree = self._logic("or", depth)
        return self._space() + text + self._space(), tree

    def _space(self) -> str:
        return self.chance.choice(("", " ", " ", " ", "\t\r\n", " /* * / 'x' **/ ", " -- 'y\n "))

    def _gap(self) -> str:
        return self.chance.choice((" ", " ", " ", " \n", "/**/", " -- NOT\r\n"))

    def _word(self, word: str) -> str:
        cased = self.chance.choice((word, word, word.lower(), word.title()))
        return f"{self._gap()}{cased}{self._gap()}"

    def _logic(self, kind: str, depth: int) -> tuple[str, Tree]:
        inner = [
            self._logic("and", depth) if kind == "or" else self._equality(depth)
            for _ in range(self.chance.choice((1, 1, 1, 2, 2, 3)))
        ]
        if len(inner) == 1:
            return inner[0]
        text = self._word(kind.upper()).join(text for text, _ in inner)
        return text, (kind, [tree for _, tree in inner])

    def _equality(self, depth: int) -> tuple[str, Tree]:
        text, tree = self._comparison(depth, self.chance.random() < 0.5)
        while self.chance.random() < {"property": 0.5, "literal": 0.95, "minus": 0.95}.get(
            tree[0], 0.1
        ):
            if self.chance.random() < 0.3:
                verb = self.chance.choice(("IS NULL", "IS NOT NULL"))
                words = "".join(self._word(word) for word in verb.split())
                text, tree = text + words, ("null" if verb == "IS NULL" else "not null", tree)
                continue
            operator = self.chance.choice(("=", "<>"))
            right, right_tree = self._comparison(depth - 1, self.chance.random() < 0.9)
            text = f"{text}{self._space()}{operator}{self._space()}{right}"
            tree = (operator, tree, right_tree)
        return text, tree

    def _comparison(self, depth: int, is_plain: bool) -> tuple[str, Tree]:
        text, tree = self._unary(depth)
        while not is_plain and self.chance.random() < 0.8:
            is_plain = self.chance.random() < 0.95
            verb = self.chance.choice(VERBS)
            if tree[0] not in ("property", "minus") and self.chance.random() < 0.9:
                return text, tree
            if verb[0] in "<>":
                right, right_tree = self._bound(depth)
                text = f"{text}{self._space()}{verb}{self._space()}{right}"
                tree = (verb, tree, right_tree)
                continue
            is_negated = self.chance.random() < 0.35
            words = (self._word("NOT") if is_negated else "") + self._word(verb)
            text, tree = self._verb(text + words, tree, verb, is_negated, depth)
        return text, tree

    def _verb(
        self, text: str, tree: Tree, verb: str, is_negated: bool, depth: int
    ) -> tuple[str, Tree]:
        if verb == "BETWEEN":
            (low, low_tree), (high, high_tree) = self._bound(depth), self._bound(depth)
            text = f"{text}{low}{self._word('AND')}{high}"
            return text, ("between", tree, low_tree, high_tree, is_negated)
        if verb == "IN":
            values = [self.chance.choice(TEXTS) for _ in range(self.chance.randint(1, 6))]
            inner = f"{self._space()},".join(quoted(value) for value in values)
            return f"{text}({inner}{self._space()})", ("in", tree, values, is_negated)
        value = self.chance.choice(TEXTS)
        return text + quoted(value), ("search", verb, tree, value, is_negated)

    def _bound(self, depth: int) -> tuple[str, Tree]:
        draw = self.chance.random()
        if draw < 0.7:
            return self._number()
        if draw < 0.95:
            name = self.chance.choice(NAMES)
            return name, ("property", name)
        return self._unary(depth - 1)

    def _number(self) -> tuple[str, Tree]:
        kind, text = self.chance.choice(NUMBERS)
        value = float(text) if kind == "D" else int(text.rstrip("lL"))
        return text, ("literal", (kind, value))

    def _unary(self, depth: int) -> tuple[str, Tree]:
        draw = self.chance.random()
        if draw < 0.04:
            text, tree = self._unary(depth - 1)
            return f"+{self._space()}{text}", tree
        if draw < 0.1:
            text, tree = self._unary(depth - 1)
            return f"-{self._gap()}{text}", ("minus", tree)
        if draw < 0.2:
            text, tree = self._primary(depth if self.chance.random() < 0.1 else depth + 1, 0.9)
            return f"{self._word('NOT')}{text}", ("not", tree)
        return self._primary(depth)

    def _primary(self, depth: int, brackets: float = 0.3) -> tuple[str, Tree]:
        draw = self.chance.random()
        if depth > 0 and draw < brackets:
            text, tree = self._logic("or", depth - 1)
            return f"({self._space()}{text}{self._space()})", tree
        if draw < 0.7:
            name = self.chance.choice(NAMES)
            return name, ("property", name)
        if draw < 0.82:
            return self._number()
        if draw < 0.92:
            value = self.chance.choice(TEXTS)
            return quoted(value), ("literal", value)
        word, constant = self.chance.choice((("TRUE", True), ("FALSE", False), ("NULL", None)))
        return f"{self._word(word)}", ("literal", constant)


def quoted(text: str) -> str:
    """Quote a text as a filter does."""
    return "'" + text.replace("'", "''") + "'"


# --- what RocketMQ refuses --------------------------------------------------------------------

LOGICAL: Final = {
    "or",
    "and",
    "not",
    "=",
    "<>",
    "<",
    "<=",
    ">",
    ">=",
    "between",
    "in",
    "search",
} | {
    "null",
    "not null",
}


def is_condition(tree: Tree) -> bool:
    """Return whether Java represents the node as a BooleanExpression."""
    if tree[0] == "literal":
        return tree[1] is None or isinstance(tree[1], bool)
    return tree[0] in LOGICAL


def need_condition(tree: Tree) -> None:
    """Check an operand of AND, OR or NOT, or the whole filter."""
    if not is_condition(tree) and tree[0] != "property":
        raise Refused(tree)


def need_ordered(tree: Tree) -> None:
    """Check an operand of ``<``, ``<=``, ``>`` or ``>=``."""
    if is_condition(tree) or (tree[0] == "literal" and isinstance(tree[1], str)):
        raise Refused(tree)


def check(tree: Tree) -> None:
    """Raise Refused where RocketMQ's parser throws."""
    need_condition(tree)
    check_inside(tree)


def check_inside(tree: Tree) -> None:
    """Check a node that may be something other than a condition."""
    match tree:
        case ("or" | "and", inner):
            for one in inner:
                check(one)
        case ("not", inner):
            check(inner)
        case ("minus" | "null" | "not null", inner) | ("search", _, inner, _, _):
            check_inside(inner)
        case ("=" | "<>", left, right):
            check_equality(left, right)
        case ("<" | "<=" | ">" | ">=", *operands) | ("between", *operands, _):
            for one in operands:
                check_inside(one)
                need_ordered(one)
            if tree[0] == "between":
                check_bounds(operands[1], operands[2], tree[4])
        case ("in", value, _, _):
            if value[0] != "property":
                raise Refused(tree)


def check_equality(left: Tree, right: Tree) -> None:
    """Refuse NULL, and a Boolean on the left of another literal."""
    for one in (left, right):
        check_inside(one)
        if one == ("literal", None):
            raise Refused(one)
    literals = left[0] == right[0] == "literal"
    if literals and isinstance(left[1], bool) and not isinstance(right[1], bool):
        raise Refused(right)


def check_bounds(low: Tree, high: Tree, is_negated: bool) -> None:
    """Refuse a BETWEEN of two literals whose upper bound is below the lower one."""
    literals = low[0] == high[0] == "literal"
    if literals and not is_negated and java_compare(high[1], low[1]) < 0:
        raise Refused(high)


# --- what RocketMQ answers --------------------------------------------------------------------


def integer(text: str, bits: int) -> int:
    """Parse as ``Integer.valueOf`` and ``Long.valueOf`` do."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits or not all(digit.isdecimal() and digit < "\U00010000" for digit in digits):
        raise Thrown(text)
    value = 0
    for digit in digits:
        value = 10 * value + int(digit)
    value = -value if text[0] == "-" else value
    if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise Thrown(text)
    return value


def double(text: str) -> float:
    """Parse as ``Double.valueOf`` does."""
    bare = text.strip("".join(chr(code) for code in range(33)))
    sign, word = (bare[0], bare[1:]) if bare[:1] in ("+", "-") else ("", bare)
    if word in ("NaN", "Infinity"):
        return float(sign + word)
    if word[:1] not in (*".0123456789",) or "_" in word or not word.isascii():
        raise Thrown(text)
    try:
        if "0x" in word:
            if "p" not in word:
                raise Thrown(text)
            return float.fromhex(bare)
        return float(bare[:-1] if word[-1] in "dDfF" else bare)
    except ValueError:
        raise Thrown(text) from None
    except OverflowError:
        return float(sign + "inf")


def kind_of(value: Any) -> str:
    """Return Java's class of a value."""
    if isinstance(value, bool):
        return "B"
    return "S" if isinstance(value, str) else str(value[0])


def convert(text: str, kind: str) -> Any:
    """Convert a text to a value of another class."""
    if kind == "B":
        return text.lower() == "true"
    return (kind, double(text) if kind == "D" else integer(text, 32 if kind == "I" else 64))


def double_rank(value: float) -> tuple[int, float, int]:
    """Return a key that sorts as ``Double.compareTo`` does."""
    if math.isnan(value):
        return (1, 0.0, 0)
    return (0, value, 0 if value == 0 and str(value)[0] == "-" else 1)


def java_compare(left: Any, right: Any) -> int:
    """Return the sign of RocketMQ's comparison of two values that are not null."""
    first, second = kind_of(left), kind_of(right)
    if first == "B" and second == "S":
        raise Thrown(right)
    if first == "S" and second != "S":
        left, first = convert(left, second), second
    if second == "S" and first != "S":
        right, second = convert(right, first), first
    if "B" in (first, second) and first != second:
        return -1
    if first in ("B", "S"):
        return int(left > right) - int(left < right)
    if "D" in (first, second):
        one, other = double_rank(float(left[1])), double_rank(float(right[1]))
        return int(one > other) - int(one < other)
    return int(left[1] > right[1]) - int(left[1] < right[1])


def equal(left: Any, right: Any) -> bool | None:
    """Evaluate ``=``."""
    if (left is None) != (right is None):
        return None if left is None else False
    if left is None:
        return True
    if kind_of(left) == kind_of(right) == "S":
        return bool(left == right)
    return java_compare(left, right) == 0


def ordered(operator: str, left: Any, right: Any) -> bool:
    """Evaluate ``<``, ``<=``, ``>`` or ``>=``; two properties are compared as doubles."""
    if kind_of(left) == kind_of(right) == "S":
        left, right = ("D", double(left)), ("D", double(right))
    sign = java_compare(left, right)
    return {"<": sign < 0, "<=": sign <= 0, ">": sign > 0, ">=": sign >= 0}[operator]


def evaluate(tree: Tree, message: Mapping[str, str]) -> Any:
    """Return the value of a node for a message; raises Thrown."""
    match tree:
        case ("literal", value):
            return value
        case ("property", name):
            return message.get(name)
        case ("minus", inner):
            value = evaluate(inner, message)
            return (value[0], -value[1]) if isinstance(value, tuple) else None
        case ("null", inner):
            return evaluate(inner, message) is None
        case ("not null", inner):
            return evaluate(inner, message) is not None
        case ("=" | "<>", left, right):
            answer = equal(evaluate(left, message), evaluate(right, message))
            return answer if tree[0] == "=" or answer is None else not answer
        case ("<" | "<=" | ">" | ">=", left, right):
            first = evaluate(left, message)
            second = None if first is None else evaluate(right, message)
            return None if second is None else ordered(tree[0], first, second)
        case ("in", (_, name), values, is_negated):
            found = message.get(name)
            return None if found is None else (found in values) != is_negated
        case ("search", verb, inner, text, is_negated):
            return search(verb, inner, text, is_negated, message)
    return evaluate_logic(tree, message)


def search(verb: str, inner: Tree, text: str, is_negated: bool, message: Mapping[str, str]) -> bool:
    """Evaluate CONTAINS, STARTSWITH or ENDSWITH: FALSE for an empty text or no text."""
    if not text:
        return False
    value = evaluate(inner, message)
    if not isinstance(value, str):
        return False
    found = {
        "CONTAINS": text in value,
        "STARTSWITH": value.startswith(text),
        "ENDSWITH": value.endswith(text),
    }[verb]
    return found != is_negated


def evaluate_logic(tree: Tree, message: Mapping[str, str]) -> bool | None:
    """Evaluate AND, OR, NOT, and BETWEEN, which uses the first two."""
    match tree:
        case ("between", value, low, high, is_negated):
            pair = [("<", value, low), (">", value, high)]
            if not is_negated:
                pair = [(">=", value, low), ("<=", value, high)]
            return evaluate_logic(("or" if is_negated else "and", pair), message)
        case ("not", inner):
            answer = evaluate_condition(inner, message)
            return None if answer is None else not answer
        case ("and" | "or", inner):
            deciding = tree[0] == "or"
            left = evaluate_condition(inner[0], message)
            for one in inner[1:]:
                if left is deciding:
                    return deciding
                right = evaluate_condition(one, message)
                if right is deciding:
                    return deciding
                left = None if None in (left, right) else not deciding
            return left
    raise AssertionError(tree)


def evaluate_condition(tree: Tree, message: Mapping[str, str]) -> bool | None:
    """Evaluate a node as a condition, where a property that is null counts as FALSE."""
    value = evaluate(tree, message)
    if tree[0] == "property":
        return None if value is None else False
    assert value is None or isinstance(value, bool)
    return value
