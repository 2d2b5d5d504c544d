"""White addresses: from where requests pass without a signature, in the forms of ACL 1.0.

``*`` is every address; ``192.168.1.7`` one; ``192.168.1.7,192.168.1.9`` two; ``192.168.1.{7,9}``
the same two; ``192.168.*`` and ``192.168.1-5.*`` whole nets; IPv6 addresses have the same forms.

Source: RemoteAddressStrategyFactory of RocketMQ 4.9.8.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address
from typing import Final

from cometmq.errors import ConfigError

__all__ = ["WhiteAddresses"]

_Part = frozenset[range]
"""The values that a part of an address may have."""

_ITEM: Final = re.compile(r"(?:\{[^{}]*\}|[^,{}])+")
_V4: Final = (4, ".", 10, 255)
_V6: Final = (8, ":", 16, 0xFFFF)


class WhiteAddresses:
    """A list of addresses and nets; an empty one has none.

    Raises:
        ConfigError: a text has none of the forms.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.texts: tuple[str, ...] = tuple(text.strip() for text in texts if text.strip())
        self._patterns: list[list[_Part]] = []
        for text in self.texts:
            for item in _ITEM.findall(text):
                self._patterns += _patterns(item.strip())

    def __contains__(self, ip: str) -> bool:
        """Whether an address is among them; a text that is no address is not."""
        if not self._patterns:
            return False
        try:
            address = ip_address(ip)
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        packed = address.packed
        if address.version == 4:
            parts = list(packed)
        else:
            parts = [int.from_bytes(packed[start : start + 2]) for start in range(0, 16, 2)]
        return any(
            len(pattern) == len(parts)
            and all(
                any(part in values for values in allowed)
                for part, allowed in zip(parts, pattern, strict=True)
            )
            for pattern in self._patterns
        )


def _patterns(item: str) -> list[list[_Part]]:
    """Read one item; ``*`` alone stands for both kinds of addresses."""
    if item in {"*", "*.*.*.*"}:
        return [[frozenset({range(limit + 1)})] * count for count, _, _, limit in (_V4, _V6)]
    count, separator, base, limit = _V6 if ":" in item else _V4
    parts = _split(item, separator, count)
    if len(parts) < count and parts[-1] == "*":
        parts += ["*"] * (count - len(parts))
    if len(parts) != count:
        raise _illegal(item)
    return [[_part(part, base, limit, item) for part in parts]]


def _split(item: str, separator: str, count: int) -> list[str]:
    if "::" not in item:
        return item.split(separator)
    before, _, after = item.partition("::")
    head = before.split(separator) if before else []
    tail = after.split(separator) if after else []
    return [*head, *["0"] * (count - len(head) - len(tail)), *tail]


def _part(text: str, base: int, limit: int, item: str) -> _Part:
    if text == "*":
        return frozenset({range(limit + 1)})
    choices = text[1:-1].split(",") if text[:1] == "{" and text[-1:] == "}" else [text]
    values = set()
    for choice in choices:
        first, dash, last = choice.strip().partition("-")
        try:
            low = int(first, base)
            high = int(last, base) if dash else low
        except ValueError:
            raise _illegal(item) from None
        if not 0 <= low <= high <= limit:
            raise _illegal(item)
        values.add(range(low, high + 1))
    return frozenset(values)


def _illegal(item: str) -> ConfigError:
    return ConfigError(
        f"the white address {item!r} is none; write 10.0.0.7, 10.0.0.{{7,8}}, 10.0.0.*, 10.0.1-5.*,"
        " an IPv6 address, or * for all"
    )
