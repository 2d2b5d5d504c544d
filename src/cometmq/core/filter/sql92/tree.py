"""The nodes of an SQL92 filter's tree: `parser` builds it, `compiler` gives it its meaning.

``<>``, ``IS NOT NULL`` and other negations that are null where the plain form is null are a `Not`
above the plain form, as in RocketMQ.  ``NOT IN``, ``NOT CONTAINS`` and similar forms are nodes of
their own, also as in RocketMQ.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

__all__ = [
    "BooleanNode",
    "Comparison",
    "Inclusion",
    "Literal",
    "LiteralKind",
    "Logic",
    "Negation",
    "Node",
    "Not",
    "Null",
    "NullTest",
    "Property",
    "TextSearch",
    "is_boolean",
    "negated_number",
]


class LiteralKind(Enum):
    """The Java type of a literal, which decides how a property is converted for a comparison."""

    BOOLEAN = "Boolean"
    INTEGER = "Integer"
    LONG = "Long"
    DOUBLE = "Double"
    STRING = "String"


NUMBERS: Final = frozenset({LiteralKind.INTEGER, LiteralKind.LONG, LiteralKind.DOUBLE})


@dataclass(slots=True, eq=False)
class Literal:
    """A constant of the filter's text."""

    kind: LiteralKind
    value: bool | int | float | str

    @property
    def is_number(self) -> bool:
        """Whether it can be an operand of ``<``, ``<=``, ``>`` and ``>=``."""
        return self.kind in NUMBERS


@dataclass(slots=True, eq=False)
class Null:
    """``NULL`` as a condition, which is unknown; nothing is compared with it."""


@dataclass(slots=True, eq=False)
class Property:
    """The value of a message's property: text, or null if the message does not have it."""

    name: str


@dataclass(slots=True, eq=False)
class Negation:
    """A minus sign: it negates a number, and makes anything else null."""

    operand: Node


@dataclass(slots=True, eq=False)
class Not:
    """TRUE for FALSE, FALSE for TRUE, null for null."""

    operand: Node


@dataclass(slots=True, eq=False)
class Logic:
    """AND or OR over two operands or more, in order of their evaluation."""

    is_and: bool
    operands: tuple[Node, ...]


@dataclass(slots=True, eq=False)
class Comparison:
    """``=`` or one of ``<``, ``<=``, ``>``, ``>=``."""

    operator: str
    left_side: Node
    right_side: Node


@dataclass(slots=True, eq=False)
class Inclusion:
    """``IN`` or ``NOT IN`` over a property."""

    name: str
    values: frozenset[str]
    is_negated: bool


@dataclass(slots=True, eq=False)
class TextSearch:
    """``CONTAINS``, ``STARTSWITH`` or ``ENDSWITH``, or its NOT form."""

    operator: str
    operand: Node
    text: str
    is_negated: bool


@dataclass(slots=True, eq=False)
class NullTest:
    """``IS NULL``."""

    operand: Node


BooleanNode = Null | Not | Logic | Comparison | Inclusion | TextSearch | NullTest
Node = Literal | Property | Negation | BooleanNode


def is_boolean(node: Node) -> bool:
    """Whether RocketMQ accepts the node as a condition; a property needs a cast to be one."""
    if isinstance(node, Literal):
        return node.kind is LiteralKind.BOOLEAN
    return isinstance(node, BooleanNode)


def negated_number(node: Node) -> Literal | None:
    """The value of a literal behind any number of minus signs; None for every other node."""
    if isinstance(node, Negation):
        inner = negated_number(node.operand)
        if inner is None or not isinstance(inner.value, int | float):
            return None
        return Literal(inner.kind, -inner.value)
    return node if isinstance(node, Literal) and node.is_number else None
