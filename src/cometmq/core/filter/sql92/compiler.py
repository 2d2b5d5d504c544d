"""Compiles the tree of an SQL92 filter to one Python function.

The function has RocketMQ's three values and raises where its Java throws.  No text of the filter
gets into the code: names, texts and numbers are the function's default arguments, and the code
consists of this module's own pieces only.

A condition is TRUE, FALSE or null, or Java throws, which counts as no match.  Each node has five
forms, because Python's ``and`` and ``or`` have two values and stop at another operand than Java:

============ =====================================================================
``value``    True, False or None, or raises NotComparable
``is_true``  whether it is TRUE; raises where Java throws
``is_false`` whether it is FALSE; raises where Java throws
``match``    as ``is_true``, but may give False where Java throws
``miss``     as ``is_false``, but may give False where Java throws
============ =====================================================================

Java evaluates y of ``x AND y`` unless x is FALSE, so y may throw when x is null.  ``is_true`` of an
AND is Python's ``and`` only where that cannot happen.  ``match`` may ignore the difference, since
null and an exception are both no match.  It is used at the root, and below it where no other
operand could still make the whole TRUE.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, Final, TypeAlias

from cometmq.core.base.java_number import parse_double, parse_integer, parse_long
from cometmq.core.filter.sql92.compare import (
    are_equal,
    compare_literals,
    order_texts,
    parse_boolean,
    refuse_text,
)
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
    negated_number,
)
from cometmq.errors import NotComparable

__all__ = ["Evaluate", "Matches", "compile_evaluation", "compile_match"]

Matches: TypeAlias = Callable[[Mapping[str, str]], bool]
Evaluate: TypeAlias = Callable[[Mapping[str, str]], bool | None]

_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OPPOSITE: Final = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "=": "!="}


@dataclass(slots=True, eq=False)
class _Code:
    """The five forms of a condition, and whether it may raise or be null."""

    value: str
    is_true: str
    is_false: str
    may_raise: bool = False
    may_be_null: bool = True
    match: str = ""
    miss: str = ""

    @property
    def loose_true(self) -> str:
        return self.match or self.is_true

    @property
    def loose_false(self) -> str:
        return self.miss or self.is_false


def _constant_code(value: bool | None) -> _Code:
    return _Code(str(value), str(value is True), str(value is False), False, value is None)


def _discard(value: bool | None) -> None:
    """Return null for an operand that was evaluated only because it may raise."""


class _Compiler:
    """Writes code and collects the constants that the code names."""

    def __init__(self) -> None:
        self.names: dict[str, object] = {}
        self._by_value: dict[tuple[type, object], str] = {}
        self._variable_count = 0

    def constant(self, value: object) -> str:
        key = (type(value), value)
        name = self._by_value.get(key)
        if name is None:
            name = self._by_value[key] = f"c{len(self._by_value)}"
            self.names[name] = value
        return name

    def helper(self, function: Callable[..., object] | type) -> str:
        name = f"f_{function.__name__}"
        self.names[name] = function
        return name

    def variable(self) -> str:
        self._variable_count += 1
        return f"v{self._variable_count}"

    def property_code(self, name: str) -> str:
        return f"p.get({self.constant(name)})"

    # --- conditions -----------------------------------------------------------------------

    def condition(self, node: Node) -> _Code:
        match node:
            case Literal(value=bool() as constant):
                return _constant_code(constant)
            case Null():
                return _constant_code(None)
            case Property(name=name):
                fetched = self.property_code(name)
                value = f"(None if {fetched} is None else False)"
                return _Code(value, "False", f"({fetched} is not None)")
            case Not(operand=operand):
                return self._not(self.condition(operand))
            case Logic(is_and=is_and, operands=operands):
                return self._logic(is_and, operands)
            case NullTest(operand=operand):
                return self._null_test(operand)
            case Inclusion():
                return self._inclusion(node)
            case TextSearch():
                return self._text_search(node)
            case Comparison(operator="="):
                return self._equality(node.left_side, node.right_side)
            case Comparison():
                return self._ordering(node)
        raise AssertionError(f"{node} is no condition; the parser lets none through")

    def _not(self, code: _Code) -> _Code:
        variable = self.variable()
        value = f"(None if ({variable} := {code.value}) is None else not {variable})"
        return _Code(
            value if code.may_be_null else f"(not {code.value})",
            code.is_false,
            code.is_true,
            code.may_raise,
            code.may_be_null,
            code.miss,
            code.match,
        )

    def _logic(self, is_and: bool, operands: tuple[Node, ...]) -> _Code:
        between = self._between(is_and, operands)
        if between is not None:
            return between
        codes = [self.condition(operand) for operand in operands]
        value = self._logic_value(is_and, codes)
        # The deciding value (FALSE for AND) ends Java's evaluation too, so these forms are exact.
        if is_and:
            decided = _join("or", [code.is_false for code in codes])
            loose_decided = [code.is_false for code in codes[:-1]] + [codes[-1].loose_false]
            agreed = _join("and", [code.is_true for code in codes])
            loose_agreed = [code.loose_true for code in codes]
        else:
            decided = _join("or", [code.is_true for code in codes])
            loose_decided = [code.is_true for code in codes[:-1]] + [codes[-1].loose_true]
            agreed = _join("and", [code.is_false for code in codes])
            loose_agreed = [code.loose_false for code in codes]
        if _may_raise_behind_null(codes):
            agreed = f"({value} is {is_and})"
        forms = [
            (agreed, _join("and", loose_agreed)),
            (decided, _join("or", loose_decided)),
        ]
        (is_true, match), (is_false, miss) = forms if is_and else forms[::-1]
        may_raise = any(code.may_raise for code in codes)
        may_be_null = any(code.may_be_null for code in codes)
        return _Code(value, is_true, is_false, may_raise, may_be_null, match, miss)

    def _logic_value(self, is_and: bool, codes: list[_Code]) -> str:
        tries: list[str] = []
        nulls: list[str] = []
        for code in codes:
            tried = code.value
            if code.may_be_null:
                variable = self.variable()
                tried = f"({variable} := {tried})"
                nulls.append(f"{variable} is None")
            tries.append(f"{tried} is {not is_and}")
        tail = f"None if {' or '.join(nulls)} else {is_and}" if nulls else str(is_and)
        return f"({not is_and} if {' or '.join(tries)} else {tail})"

    def _between(self, is_and: bool, operands: tuple[Node, ...]) -> _Code | None:
        """Convert a property between two numbers of one kind once; None for any other form."""
        match operands:
            case (
                Comparison(
                    operator=">=" | "<" as first, left_side=Property(name=name), right_side=low_node
                ),
                Comparison(
                    operator="<=" | ">" as second,
                    left_side=Property(name=same),
                    right_side=top_node,
                ),
            ) if name == same and is_and == (first == ">=") == (second == "<="):
                low, top = negated_number(low_node), negated_number(top_node)
            case _:
                return None
        if low is None or top is None or low.kind is not top.kind:
            return None
        variable = self.variable()
        fetched = f"({variable} := {self.property_code(name)})"
        bounds = f"{self.constant(low.value)} <= {{}} <= {self.constant(top.value)}"
        inside = f"({bounds.format(self._number(variable, low.kind))})"
        outside = f"(not {inside})"
        if not is_and:
            inside, outside = outside, inside
        return _Code(
            f"(None if {fetched} is None else {inside})",
            f"({fetched} is not None and {inside})",
            f"({fetched} is not None and {outside})",
            may_raise=True,
        )

    def _null_test(self, operand: Node) -> _Code:
        if negated_number(operand) is not None:
            return _constant_code(value=False)
        match operand:
            case Literal():
                return _constant_code(value=False)
            case Null():
                return _constant_code(value=True)
            case Property(name=name):
                fetched = self.property_code(name)
                is_true, is_false = f"({fetched} is None)", f"({fetched} is not None)"
                return _Code(is_true, is_true, is_false, may_be_null=False)
            case _:
                value, may_raise = self._operand(operand)
                is_true, is_false = f"({value} is None)", f"({value} is not None)"
                return _Code(is_true, is_true, is_false, may_raise, may_be_null=False)

    def _inclusion(self, node: Inclusion) -> _Code:
        fetched, values = self.property_code(node.name), self.constant(node.values)
        variable = self.variable()
        bare = f"({fetched} in {values})"
        excluded = f"(({variable} := {fetched}) is not None and {variable} not in {values})"
        verb = "not in" if node.is_negated else "in"
        value = f"(None if ({variable} := {fetched}) is None else {variable} {verb} {values})"
        return _Code(value, excluded, bare) if node.is_negated else _Code(value, bare, excluded)

    def _text_search(self, node: TextSearch) -> _Code:
        if not node.text:
            return _constant_code(value=False)
        operand = node.operand
        variable, text = self.variable(), self.constant(node.text)
        test = {
            "CONTAINS": f"{text} in {variable}",
            "STARTSWITH": f"{variable}.startswith({text})",
            "ENDSWITH": f"{variable}.endswith({text})",
        }[node.operator]
        if node.is_negated:
            test = f"not {test}"
        if isinstance(operand, Property):
            fetched = f"({variable} := {self.property_code(operand.name)})"
        elif isinstance(operand, Literal) and operand.kind is LiteralKind.STRING:
            fetched = f"({variable} := {self.constant(operand.value)})"
        else:
            value, may_raise = self._operand(operand)
            if not may_raise:
                return _constant_code(value=False)
            never = f"({self.helper(_discard)}({value}) is not None)"
            return _Code(never, never, f"(not {never})", may_raise=True, may_be_null=False)
        is_true = f"({fetched} is not None and {test})"
        return _Code(is_true, is_true, f"(not {is_true})", may_be_null=False)

    # --- comparisons ----------------------------------------------------------------------

    def _operand(self, node: Node) -> tuple[str, bool]:
        """Return code for the value of a node, and whether it may raise."""
        number = negated_number(node)
        if number is not None:
            return self.constant(number.value), False
        match node:
            case Literal(value=str() as value):
                return self.constant(value), False
            case Property(name=name):
                return self.property_code(name), False
            case Negation(operand=operand):
                value, may_raise = self._operand(operand)
                return (f"{self.helper(_discard)}({value})", True) if may_raise else ("None", False)
            case _:
                code = self.condition(node)
                return code.value, code.may_raise

    def _number(self, variable: str, kind: LiteralKind) -> str:
        """Return code that converts a property's text to a number as Java does."""
        if kind is LiteralKind.DOUBLE:
            return f"{self.helper(parse_double)}({variable})"
        slow = self.helper(parse_integer if kind is LiteralKind.INTEGER else parse_long)
        # Up to nine ASCII digits need no check: they fit, and int() reads them as Java does.
        return (
            f"({self.helper(int)}({variable}) if {self.helper(len)}({variable}) < 10 and"
            f" {variable}.isdecimal() and {variable}.isascii() else {slow}({variable}))"
        )

    def _equality(self, left_side: Node, right_side: Node) -> _Code:
        first, second = _literal(left_side), _literal(right_side)
        if first is not None and second is not None:
            return self._compared_literals("=", first, second)
        if isinstance(left_side, Property) and second is not None:
            return self._property_equality(left_side.name, second)
        if isinstance(right_side, Property) and first is not None:
            return self._literal_equality(first, right_side.name)
        if isinstance(left_side, Property) and isinstance(right_side, Property):
            variable, other = self.variable(), self.property_code(right_side.name)
            fetched = f"({variable} := {self.property_code(left_side.name)})"
            return _Code(
                f"(True if {fetched} == {other} else None if {variable} is None else False)",
                f"({self.property_code(left_side.name)} == {other})",
                f"({fetched} is not None and {variable} != {other})",
            )
        (first_code, may_raise), (second_code, may_raise_too) = (
            self._operand(left_side),
            self._operand(right_side),
        )
        value = f"{self.helper(are_equal)}({first_code}, {second_code})"
        is_text = isinstance(right_side, Property) or (second is not None and not second.is_number)
        may_raise = may_raise or may_raise_too or is_text
        return _Code(value, f"({value} is True)", f"({value} is False)", may_raise)

    def _compared_literals(self, operator: str, first: Literal, second: Literal) -> _Code:
        try:
            sign = compare_literals(first, second)
        except NotComparable as error:
            raised = f"{self.helper(_raise)}({self.constant(str(error))})"
            return _Code(raised, raised, raised, may_raise=True, may_be_null=False)
        return _constant_code(
            {"=": sign == 0, "<": sign < 0, "<=": sign <= 0, ">": sign > 0, ">=": sign >= 0}[
                operator
            ]
        )

    def _converted(self, variable: str, literal: Literal, operator: str) -> tuple[str, str]:
        """Return the test of a property's text against a literal, and its opposite."""
        constant = self.constant(literal.value)
        if literal.kind is LiteralKind.STRING:
            return f"{variable} == {constant}", f"{variable} != {constant}"
        if literal.kind is LiteralKind.BOOLEAN:
            test = f"{self.helper(parse_boolean)}({variable})"
            return f"{test} is {constant}", f"{test} is not {constant}"
        number = self._number(variable, literal.kind)
        python = "==" if operator == "=" else operator
        test, opposite = (
            f"{number} {python} {constant}",
            f"{number} {_OPPOSITE[operator]} {constant}",
        )
        # Java orders NaN above every number; Python's comparisons with NaN are all false.
        if literal.kind is LiteralKind.DOUBLE and operator in (">", ">="):
            return f"not {opposite}", opposite
        if literal.kind is LiteralKind.DOUBLE and operator in ("<", "<="):
            return test, f"not {test}"
        return test, opposite

    def _property_equality(self, name: str, literal: Literal) -> _Code:
        variable = self.variable()
        fetched = f"({variable} := {self.property_code(name)})"
        test, opposite = self._converted(variable, literal, "=")
        value = f"(None if {fetched} is None else {test})"
        is_false = f"({fetched} is not None and {opposite})"
        if literal.kind is LiteralKind.STRING:
            bare = f"({self.property_code(name)} == {self.constant(literal.value)})"
            return _Code(value, bare, is_false)
        is_true = f"({fetched} is not None and {test})"
        return _Code(value, is_true, is_false, may_raise=literal.is_number)

    def _literal_equality(self, literal: Literal, name: str) -> _Code:
        """Compare a literal on the left; a missing property is not equal to it, never null."""
        variable = self.variable()
        fetched = f"({variable} := {self.property_code(name)})"
        if literal.kind is LiteralKind.BOOLEAN:
            test = f"({fetched} is not None and {self.helper(refuse_text)}({variable}))"
            return _Code(test, test, f"(not {test})", may_raise=True, may_be_null=False)
        test, opposite = self._converted(variable, literal, "=")
        is_true = f"({fetched} is not None and {test})"
        is_false = f"({fetched} is None or {opposite})"
        return _Code(is_true, is_true, is_false, literal.is_number, may_be_null=False)

    def _ordering(self, node: Comparison) -> _Code:
        left_side, right_side, operator = node.left_side, node.right_side, node.operator
        first, second = negated_number(left_side), negated_number(right_side)
        if first is not None and second is not None:
            return self._compared_literals(operator, first, second)
        if isinstance(left_side, Property) and second is not None:
            return self._property_ordering(left_side.name, second, operator)
        if isinstance(right_side, Property) and first is not None:
            return self._property_ordering(right_side.name, first, _MIRRORED[operator])
        if isinstance(left_side, Property) and isinstance(right_side, Property):
            return self._properties_ordering(left_side.name, right_side.name, operator)
        return self._null_ordering(left_side, right_side)

    def _property_ordering(self, name: str, literal: Literal, operator: str) -> _Code:
        variable = self.variable()
        fetched = f"({variable} := {self.property_code(name)})"
        test, opposite = self._converted(variable, literal, operator)
        return _Code(
            f"(None if {fetched} is None else {test})",
            f"({fetched} is not None and {test})",
            f"({fetched} is not None and {opposite})",
            may_raise=True,
        )

    def _properties_ordering(self, name: str, other: str, operator: str) -> _Code:
        variable, second = self.variable(), self.variable()
        fetched = f"({variable} := {self.property_code(name)})"
        fetched_too = f"({second} := {self.property_code(other)})"
        sign = f"{self.helper(order_texts)}({variable}, {second})"
        both = f"{fetched} is not None and {fetched_too} is not None"
        return _Code(
            f"({sign} {operator} 0 if {both} else None)",
            f"({both} and {sign} {operator} 0)",
            f"({both} and {sign} {_OPPOSITE[operator]} 0)",
            may_raise=True,
        )

    def _null_ordering(self, left_side: Node, right_side: Node) -> _Code:
        """Order a side that is a minus sign before a non-number: null, unless it raises.

        Java evaluates the right side only when the left side is not null.
        """
        if isinstance(left_side, Negation) and negated_number(left_side) is None:
            value, may_raise = self._operand(left_side)
        else:
            value, may_raise = self._operand(right_side)
            if may_raise and isinstance(left_side, Property):
                value = f"(None if {self.property_code(left_side.name)} is None else {value})"
        if not may_raise:
            return _constant_code(None)
        return _Code(value, f"({value} is True)", f"({value} is False)", may_raise=True)


def _raise(sentence: str) -> bool:
    raise NotComparable(sentence)


def _literal(node: Node) -> Literal | None:
    number = negated_number(node)
    return number if number is not None or not isinstance(node, Literal) else node


def _join(word: str, codes: list[str]) -> str:
    return f"({f' {word} '.join(codes)})"


def _may_raise_behind_null(codes: list[_Code]) -> bool:
    """Whether an operand that is not the last may be null and a later one may raise."""
    is_behind_null = False
    for code in codes:
        if is_behind_null and code.may_raise:
            return True
        is_behind_null = is_behind_null or code.may_be_null
    return False


def _function(name: str, body: str, names: Mapping[str, object]) -> Any:
    source = f"def {name}(p, {', '.join(names)}):\n{body}" if names else f"def {name}(p):\n{body}"
    module = compile(source, f"<sql92 {name}>", "exec")
    code = next(constant for constant in module.co_consts if isinstance(constant, CodeType))
    return FunctionType(code, {"__builtins__": {}}, name, tuple(names.values()))


def compile_match(node: Node) -> Matches:
    """Return a function that says whether a message's properties match; it never raises."""
    compiler = _Compiler()
    code = compiler.condition(node)
    body = f"    return {code.loose_true}\n"
    if code.may_raise:
        fault = compiler.helper(NotComparable)
        body = f"    try:\n    {body}    except {fault}:\n        return False\n"
    fetched: Matches = _function("matches", body, compiler.names)
    return fetched


def compile_evaluation(node: Node) -> Evaluate:
    """Return a function that gives True, False or None; it raises NotComparable as Java throws."""
    compiler = _Compiler()
    code = compiler.condition(node)
    fetched: Evaluate = _function("evaluate", f"    return {code.value}\n", compiler.names)
    return fetched
