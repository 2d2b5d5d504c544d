"""The nodes of an SQL92 filter's tree: `parser` builds it, `compiler` gives it its meaning.

``<>``, ``IS NOT NULL`` and the other negations with the value null for null are a `Not` above the
plain form, as in RocketMQ, so that they share its null.  ``NOT IN``, ``NOT CONTAINS`` and their
like are forms of their own there and here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

__all__ = [
    "BOOLEAN_NODES",
    "Comparison",
    "Inclusion",
    "Literal",
    "LiteralKind",
    "Logic",
    "Negation",
    "Node",
    "Not",
    "NullTest",
    "Property",
    "TextSearch",
    "is_boolean",
    "negated_number",
]


class LiteralKind(Enum):
    """What a literal is in Java: the kind decides how a property is converted to meet it."""

    NULL = "null"
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
    value: bool | int | float | str | None

    @property
    def is_number(self) -> bool:
        """Whether it can stand beside ``<`` and its like."""
        return self.kind in NUMBERS


@dataclass(slots=True, eq=False)
class Property:
    """The value of a message's property: text, or null where the message has none."""

    name: str


@dataclass(slots=True, eq=False)
class Negation:
    """A minus sign: of a number the number below zero, of anything else null."""

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


Node = Literal | Property | Negation | Not | Logic | Comparison | Inclusion | TextSearch | NullTest
BOOLEAN_NODES: Final = (Not, Logic, Comparison, Inclusion, TextSearch, NullTest)


def is_boolean(node: Node) -> bool:
    """Whether RocketMQ takes the node for a condition; a property only becomes one by a cast."""
    if isinstance(node, Literal):
        return node.kind in (LiteralKind.BOOLEAN, LiteralKind.NULL)
    return isinstance(node, BOOLEAN_NODES)


def negated_number(node: Node) -> Literal | None:
    """The number that a literal with any count of minus signs in front is; None for all else."""
    if isinstance(node, Negation):
        inner = negated_number(node.operand)
        if inner is None or not isinstance(inner.value, int | float):
            return None
        return Literal(inner.kind, -inner.value)
    return node if isinstance(node, Literal) and node.is_number else None
