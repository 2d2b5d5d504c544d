"""Which response belongs to which request: the bookkeeping of one connection, without I/O.

``opaque`` is chosen by the requester, a 32-bit number unique among its outstanding requests;
responses may come in any order.  Each direction of a connection has a Correlator of its own,
because the response flag keeps the two apart (wire.md 1.5).
"""

from typing import Final, Generic, TypeVar

from cometmq.errors import LocalProtocolError

__all__ = ["Correlator"]

T = TypeVar("T")

_OPAQUE_MAX: Final = 2**31 - 1


class Correlator(Generic[T]):
    """Hands out opaques and keeps a token for each request until its response comes."""

    __slots__ = ("_next", "_tokens")

    def __init__(self, first_opaque: int = 0) -> None:
        self._next = first_opaque
        self._tokens: dict[int, T] = {}

    def __len__(self) -> int:
        """Return how many requests wait for a response."""
        return len(self._tokens)

    def next_opaque(self) -> int:
        """Return an opaque that no outstanding request uses; after 2**31 - 1 comes 0."""
        opaque = self._next
        while opaque in self._tokens:
            opaque = opaque + 1 if opaque < _OPAQUE_MAX else 0
        self._next = opaque + 1 if opaque < _OPAQUE_MAX else 0
        return opaque

    def register(self, opaque: int, token: T) -> None:
        """Remember the token; raises LocalProtocolError when the opaque is in use."""
        if opaque in self._tokens:
            raise LocalProtocolError(f"opaque {opaque} is in use by an outstanding request")
        self._tokens[opaque] = token

    def take(self, opaque: int) -> T | None:
        """Return and forget the token of a response, None when nobody waits for it."""
        return self._tokens.pop(opaque, None)

    def take_all(self) -> list[T]:
        """Return and forget every token, for a connection that is gone."""
        tokens = list(self._tokens.values())
        self._tokens.clear()
        return tokens
