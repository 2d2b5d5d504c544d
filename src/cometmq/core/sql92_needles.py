"""Bytes without which a message cannot match a filter: what lets a reader pass it by unread.

Job: from a filter's tree, texts of which every message that matches has at least one in its
property string.  It must not read messages.

Theory: ``region = 'eu'`` needs the bytes ``region 0x01 eu``, ``amount > 10`` needs
``amount 0x01``.  One search over the bytes of a message costs a tenth of reading its properties.
Of the parts of an AND the one that is likely to be the rarest is taken, of an OR all are.
"Perhaps" is always safe: who has a needle is evaluated.  A needle that ends with 0x02 is a whole
value; a record may end where its 0x02 would stand.  Nothing is known of a part that holds for a
message without its properties (``IS NULL``, ``a = b``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.core.sql92_tree import (
    Comparison,
    Inclusion,
    Kind,
    Literal,
    Logic,
    Node,
    Not,
    NullTest,
    Property,
    TextSearch,
    negated_number,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["NEEDLES_MAX", "needles_of"]

NEEDLES_MAX: Final = 8
"""More searches than these cost as much as they save."""
_REPLACEMENT: Final = "\ufffd"
"""What bytes that are no UTF-8 are read as: a text with it says nothing about bytes."""
_Needles = frozenset[bytes] | None


def needles_of(node: Node) -> tuple[bytes, ...]:
    """Texts of which a message that matches has one; none when nothing is known."""
    found = _needles(node)
    return () if found is None or len(found) > NEEDLES_MAX else tuple(sorted(found))


def _needles(node: Node) -> _Needles:
    match node:
        case Logic(is_and=True, operands=operands):
            known = [one for one in map(_needles, operands) if one is not None]
            return min(known, key=_commonness, default=None)
        case Logic(operands=operands):
            return _united(map(_needles, operands))
        case Inclusion(name=name, values=values, is_negated=False):
            return _united(_value(name, value) for value in values)
        case Inclusion(name=name):
            return _name(name)
        case TextSearch(operand=Property(name=name)):
            return _of_search(name, node)
        case Comparison(left=left, right=right):
            return _of_comparison(left, right, node.operator) or _of_comparison(
                right, left, node.operator
            )
        case Not(operand=operand):
            return _of_not(operand)
    return None


def _of_comparison(one: Node, constant: Node, operator: str) -> _Needles:
    """Holds for a message that has the property, whatever side the constant stands on."""
    if not isinstance(one, Property):
        return None
    if negated_number(constant) is not None:
        return _name(one.name)
    if operator != "=" or not isinstance(constant, Literal):
        return None
    if constant.kind is Kind.STRING:
        return _value(one.name, str(constant.value))
    return _name(one.name) if constant.kind is Kind.BOOLEAN else None


def _of_search(name: str, node: TextSearch) -> _Needles:
    if node.is_negated or not node.text:
        return _name(name)
    return _bytes(f"{name}\x01{node.text}" if node.operator == "STARTSWITH" else node.text)


def _of_not(operand: Node) -> _Needles:
    match operand:
        case NullTest(operand=Property(name=name)):
            return _name(name)
        # Null, and so no match, where the property is missing; not so with the sides exchanged.
        case Comparison(left=Property(name=name), right=Literal(kind=Kind.STRING)):
            return _name(name)
    return None


def _united(parts: Iterable[_Needles]) -> _Needles:
    united: frozenset[bytes] = frozenset()
    for one in parts:
        if one is None:
            return None
        united |= one
    return united


def _commonness(needles: frozenset[bytes]) -> tuple[bool, int, int]:
    """A guess which part is the rarest: values before names, few before many, long before short."""
    is_name = any(one.endswith(b"\x01") for one in needles)
    return is_name, len(needles), -min(map(len, needles), default=0)


def _value(name: str, value: str) -> _Needles:
    return _bytes(f"{name}\x01{value}\x02")


def _name(name: str) -> _Needles:
    return _bytes(f"{name}\x01")


def _bytes(text: str) -> _Needles:
    if _REPLACEMENT in text:
        return None
    try:
        return frozenset((text.encode(),))
    except UnicodeEncodeError:
        return None
