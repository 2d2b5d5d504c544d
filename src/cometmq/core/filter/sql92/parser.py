"""Parses the text of an SQL92 filter into a tree, or raises an error with line and column.

The module has the grammar and the rules by which RocketMQ refuses a filter before it sees a
message.  It evaluates nothing.

::

    filter     := or END
    or         := and ("OR" and)*
    and        := equality ("AND" equality)*
    equality   := comparison ( ("=" | "<>") comparison | "IS" ["NOT"] "NULL" )*
    comparison := unary ( ("<" | "<=" | ">" | ">=") unary
                        | ["NOT"] ("CONTAINS" | "STARTSWITH" | "ENDSWITH") string
                        | ["NOT"] "BETWEEN" unary "AND" unary
                        | ["NOT"] "IN" "(" string ("," string)* ")" )*
    unary      := ("+" | "-" | "NOT") unary | primary
    primary    := string | decimal | float | "TRUE" | "FALSE" | "NULL" | name | "(" or ")"

``NOT`` binds to the operand after it: ``NOT a = 1`` is ``(NOT a) = 1``.  Operands follow RocketMQ's
rules: ``<``, ``<=``, ``>`` and ``>=`` compare properties and numbers; ``=`` does not compare with
``NULL``; ``IN`` needs a property; AND, OR, NOT and the whole filter need conditions.  Source:
SelectorParser.jj and the ``create`` functions of ComparisonExpression and ConstantExpression,
RocketMQ 5.4.  Unlike there, nothing may follow the filter.

The parser is written by hand.  With lark, import and grammar would cost 70 ms and 45 ms of a start
that may take 150 ms, a parse would take three times as long, and the rules about operands would
still need the positions of the tree's nodes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cometmq.core.filter.sql92.compare import compare_literals
from cometmq.core.filter.sql92.lexer import Token, refuse, tokenize
from cometmq.core.filter.sql92.tree import (
    Comparison,
    Inclusion,
    Literal,
    LiteralKind,
    Logic,
    Negation,
    Node,
    Not,
    Null,
    NullTest,
    Property,
    TextSearch,
    is_boolean,
    negated_number,
)

__all__ = ["DEPTH_MAX", "OPERATORS_MAX", "parse"]

DEPTH_MAX: Final = 50
"""Levels of brackets and operators inside each other. Python's own parser, which reads what is
compiled from the tree, takes 200 brackets, and a level needs up to three; a list of any number of
conditions between ANDs or ORs is one level."""
OPERATORS_MAX: Final = 500
"""Comparisons and other operators in one filter. Making one costs about 0.15 ms of the one loop;
this many stay below a tenth of a second."""

_ORDERINGS: Final = frozenset({"<", "<=", ">", ">="})
_SEARCHES: Final = frozenset({"CONTAINS", "STARTSWITH", "ENDSWITH"})
_AFTER_NOT: Final = _SEARCHES | {"BETWEEN", "IN"}
_LONG_MAX: Final = 2**63 - 1
_INTEGER_MAX: Final = 2**31 - 1

_VALUE: Final = "a property, a value, NOT or ("
_MORE: Final = "AND, OR or the end"
_TRAILING_HINTS: Final = {
    "LIKE": "RocketMQ has no LIKE: CONTAINS, STARTSWITH and ENDSWITH search text",
    "ESCAPE": "RocketMQ has no LIKE: CONTAINS, STARTSWITH and ENDSWITH search text",
    "+": "there is no arithmetic",
    "-": "there is no arithmetic, and no - in the name of a property",
}


class _Part(NamedTuple):
    """A node, its first token, and the depth of the tree below it."""

    node: Node
    token: Token
    depth: int


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokenize(text)
        self._index = 0
        self._level = 0
        self._operators = 0

    def parse(self) -> Node:
        if self._tokens[0].kind == "end":
            raise self._refuse(self._tokens[0], "a condition", "* without SQL92 takes everything")
        part = self._or()
        token = self._token
        if token.kind != "end":
            word = self._tokens[self._index + 1] if token.kind == "NOT" else token
            hint = _TRAILING_HINTS.get(word.text.upper(), "")
            if token.kind in ("decimal", "float", "name") and self._is_glued(token):
                hint = hint or "a number has no leading zero and no letter behind it"
            raise self._refuse(token, _MORE, hint)
        return self._condition(part)

    # --- tokens ---------------------------------------------------------------------------

    @property
    def _token(self) -> Token:
        return self._tokens[self._index]

    def _next(self) -> Token:
        token = self._tokens[self._index]
        self._index += 1
        return token

    def _expect(self, kind: str, expected: str, hint: str = "") -> Token:
        if self._token.kind != kind:
            raise self._refuse(self._token, expected, hint)
        return self._next()

    def _is_glued(self, token: Token) -> bool:
        before = self._tokens[self._index - 1]
        end = before.position + len(before.text)
        return before.kind in ("decimal", "float") and end == token.position

    def _refuse(self, token: Token, expected: str, hint: str = "") -> Exception:
        return refuse(self._text, token.position, expected, token.text, hint)

    def _part(self, node: Node, token: Token, *inner: _Part) -> _Part:
        self._operators += bool(inner)
        if self._operators > OPERATORS_MAX:
            raise self._refuse(
                token, f"at most {OPERATORS_MAX} comparisons", "IN takes any number of texts"
            )
        depth = max([1 + part.depth for part in inner], default=0)
        if depth + self._level > DEPTH_MAX:
            raise self._too_deep(token)
        return _Part(node, token, depth)

    def _too_deep(self, token: Token) -> Exception:
        return self._refuse(token, f"at most {DEPTH_MAX} levels of brackets and operators")

    # --- conditions -----------------------------------------------------------------------

    def _or(self) -> _Part:
        return self._logic("OR")

    def _logic(self, keyword: str) -> _Part:
        parts = [self._logic("AND") if keyword == "OR" else self._equality()]
        while self._token.kind == keyword:
            self._next()
            parts.append(self._logic("AND") if keyword == "OR" else self._equality())
        if len(parts) == 1:
            return parts[0]
        operands = tuple([self._condition(part) for part in parts])
        return self._part(Logic(keyword == "AND", operands), parts[0].token, *parts)

    def _condition(self, part: _Part) -> Node:
        if is_boolean(part.node) or isinstance(part.node, Property):
            return part.node
        raise self._refuse(part.token, "a condition", "compare it with something")

    def _equality(self) -> _Part:
        left_side = self._comparison()
        while self._token.kind in ("=", "<>", "IS"):
            operator = self._next()
            if operator.kind == "IS":
                is_negated = self._token.kind == "NOT"
                if is_negated:
                    self._next()
                self._expect("NULL", "NULL" if is_negated else "NULL or NOT NULL")
                node: Node = NullTest(left_side.node)
                left_side = self._part(
                    Not(node) if is_negated else node, left_side.token, left_side
                )
                continue
            hint = "write one = for equal" if self._token.kind == "=" else ""
            right_side = self._comparison(hint)
            self._check_equality(left_side, right_side)
            node = Comparison("=", left_side.node, right_side.node)
            left_side = self._part(
                Not(node) if operator.kind == "<>" else node, left_side.token, left_side, right_side
            )
        return left_side

    def _check_equality(self, left_side: _Part, right_side: _Part) -> None:
        for part in (left_side, right_side):
            if isinstance(part.node, Null):
                raise self._refuse(
                    part.token, "something other than NULL", "write IS NULL or IS NOT NULL"
                )
        first, second = left_side.node, right_side.node
        if not (isinstance(first, Literal) and isinstance(second, Literal)):
            return
        if first.kind is LiteralKind.BOOLEAN and second.kind is not LiteralKind.BOOLEAN:
            raise self._refuse(right_side.token, "TRUE or FALSE", "as on the other side")

    def _comparison(self, hint: str = "") -> _Part:
        left_side = self._unary(hint)
        while True:
            token = self._token
            if token.kind in _ORDERINGS:
                operator = self._next().kind
                right_side = self._unary()
                left_side = self._part(
                    self._ordering(operator, left_side, right_side),
                    left_side.token,
                    left_side,
                    right_side,
                )
                continue
            is_negated = token.kind == "NOT"
            verb = self._tokens[self._index + 1].kind if is_negated else token.kind
            if verb not in _AFTER_NOT:
                return left_side
            self._index += 2 if is_negated else 1
            if verb == "BETWEEN":
                left_side = self._between(left_side, is_negated)
            elif verb == "IN":
                left_side = self._part(
                    self._inclusion(left_side, is_negated), left_side.token, left_side
                )
            else:
                text = self._string(f"a text behind {verb}")
                node = TextSearch(verb, left_side.node, text, is_negated)
                left_side = self._part(node, left_side.token, left_side)

    def _ordering(self, operator: str, left_side: _Part, right_side: _Part) -> Comparison:
        for part in (left_side, right_side):
            node = part.node
            if (isinstance(node, Literal) and not node.is_number) or is_boolean(node):
                raise self._refuse(
                    part.token, "a property or a number", "only numbers have an order"
                )
        return Comparison(operator, left_side.node, right_side.node)

    def _between(self, value: _Part, is_negated: bool) -> _Part:
        low = self._unary()
        self._expect("AND", "AND between the two bounds")
        high = self._unary()
        first = self._ordering("<" if is_negated else ">=", value, low)
        second = self._ordering(">" if is_negated else "<=", value, high)
        if not is_negated and _is_less(high.node, low.node):
            expected = f"a bound that is not less than {low.token.text}"
            raise self._refuse(high.token, expected, "nothing matches")
        if isinstance(value.node, Negation) and negated_number(value.node) is None:
            # Both sides of the AND are null. One side represents both, so that the tree does not
            # double with each nested BETWEEN.
            return self._part(first, value.token, value, low)
        node = Logic(not is_negated, (first, second))
        return self._part(node, value.token, self._part(node, value.token, value, low, high))

    def _inclusion(self, left_side: _Part, is_negated: bool) -> Inclusion:
        if not isinstance(left_side.node, Property):
            raise self._refuse(left_side.token, "a property in front of IN")
        self._expect("(", "(")
        hint = "text stands in single quotes, numbers too"
        values = [self._string("a text", hint)]
        while self._token.kind == ",":
            self._next()
            values.append(self._string("a text", hint))
        self._expect(")", ", or )")
        return Inclusion(left_side.node.name, frozenset(values), is_negated)

    # --- operands -------------------------------------------------------------------------

    def _string(self, expected: str, hint: str = "text stands in single quotes") -> str:
        return _unquoted(self._expect("string", expected, hint).text)

    def _unary(self, hint: str = "") -> _Part:
        token = self._token
        self._level += 1
        if self._level > DEPTH_MAX:
            raise self._too_deep(token)
        part = self._primary(hint) if token.kind not in ("+", "-", "NOT") else self._signed(token)
        self._level -= 1
        return part

    def _signed(self, token: Token) -> _Part:
        self._next()
        inner = self._unary()
        if token.kind == "-":
            return self._part(Negation(inner.node), token, inner)
        if token.kind == "NOT":
            return self._part(Not(self._condition(inner)), token, inner)
        return _Part(inner.node, token, inner.depth)

    def _primary(self, hint: str) -> _Part:
        token = self._next()
        if token.kind == "(":
            inner = self._or()
            self._expect(")", "AND, OR or )", _TRAILING_HINTS.get(self._token.text.upper(), ""))
            return _Part(inner.node, token, inner.depth)
        node: Node
        if token.kind == "name":
            node = Property(token.text)
        elif token.kind == "string":
            node = Literal(LiteralKind.STRING, _unquoted(token.text))
        elif token.kind == "decimal":
            node = self._decimal(token)
        elif token.kind == "float":
            node = self._float(token)
        elif token.kind in ("TRUE", "FALSE"):
            node = Literal(LiteralKind.BOOLEAN, token.kind == "TRUE")
        elif token.kind == "NULL":
            node = Null()
        else:
            raise self._refuse(token, _VALUE, hint)
        return self._part(node, token)

    def _decimal(self, token: Token) -> Literal:
        digits = token.text.rstrip("lL")
        # Long before the comparison a number of 4,300 digits is refused by int() itself.
        value = int(digits) if len(digits) < 20 else _LONG_MAX + 1
        if value > _LONG_MAX:
            raise self._refuse(token, f"a whole number of at most {_LONG_MAX}")
        return Literal(LiteralKind.INTEGER if value <= _INTEGER_MAX else LiteralKind.LONG, value)

    def _float(self, token: Token) -> Literal:
        value = float(token.text)
        if value == float("inf"):
            raise self._refuse(token, "a number below 1.8e308")
        if value == 0.0:
            raise self._refuse(
                token, "a number above 4.9e-324", "RocketMQ reads 0 as a whole number only: write 0"
            )
        return Literal(LiteralKind.DOUBLE, value)


def _is_less(first: Node, second: Node) -> bool:
    if isinstance(first, Literal) and isinstance(second, Literal):
        return compare_literals(first, second) < 0
    return False


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")


def parse(text: str) -> Node:
    """The tree of a filter.

    Raises:
        ExpressionIllegal: the text is not a filter; the error has line and column.
    """
    return _Parser(text).parse()
