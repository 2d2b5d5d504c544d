"""Where a pipeline's records come from, written as one word.

topic:NAME         a topic of the cluster behind the name server
store:DIR#TOPIC    a topic in a store directory, without a broker
archive:DIR        what `cometmq pipeline archive` made
parquet:PATH       Parquet files, also partitioned: a table's snapshot
json:PATH          JSON, one object a line
delta:PATH         a Delta table (extra ``cometmq[delta]``)
jdbc:URL#TABLE     a table of a database, ``jdbc:derby:/data/shop#ORDERS``
PATH               the same as parquet:PATH
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from cometmq.errors import ConfigError

__all__ = ["KINDS", "Address", "check_exists", "parse_address"]

KINDS: Final = ("topic", "store", "archive", "parquet", "json", "delta", "jdbc")


@dataclass(frozen=True, slots=True)
class Address:
    """One of `KINDS`, where it is, and the part after ``#``."""

    kind: str
    place: str
    part: str = ""

    def __str__(self) -> str:
        kind = "" if self.kind == "jdbc" else f"{self.kind}:"
        return f"{kind}{self.place}" + (f"#{self.part}" if self.part else "")


def parse_address(text: str) -> Address:
    """The address in ``text``; ConfigError names the nearest kind for an unknown one."""
    kind, separator, rest = text.partition(":")
    if not separator or "/" in kind or "\\" in kind:
        kind, rest = "parquet", text
    if kind not in KINDS:
        near = get_close_matches(kind, KINDS, n=1)
        hint = f"; did you mean {near[0]}:{rest}?" if near else ""
        raise ConfigError(
            f"{text!r} begins with no kind of source that is known{hint} "
            f"The kinds are {', '.join(f'{name}:' for name in KINDS)}"
        )
    part = ""
    if kind in ("store", "jdbc"):
        rest, _, part = rest.rpartition("#")
        if not rest or not part:
            example = {"store": "store:DIR#TOPIC", "jdbc": "jdbc:derby:/data/shop#ORDERS"}[kind]
            raise ConfigError(f"{text!r} does not name a table or topic: write {example}")
    if not rest:
        raise ConfigError(f"{text!r} names no place: write {kind}:SOMETHING")
    return Address(kind, f"jdbc:{rest}" if kind == "jdbc" else rest, part)


def check_exists(address: Address) -> None:
    """ConfigError where there is no such file or directory; other file systems are not asked."""
    if not Path(address.place).exists() and "://" not in address.place:
        raise ConfigError(f"{address}: there is no such file or directory")
