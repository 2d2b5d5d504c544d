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
    """A kind out of `KINDS`, a topic or path or URL, and the part after ``#``."""

    kind: str
    location: str
    part: str = ""

    def __str__(self) -> str:
        kind = "" if self.kind == "jdbc" else f"{self.kind}:"
        return f"{kind}{self.location}" + (f"#{self.part}" if self.part else "")


def parse_address(text: str) -> Address:
    """The address in ``text``.

    Raises:
        ConfigError: the kind is unknown (the text names the nearest one), or a part is missing.
    """
    kind, separator, location = text.partition(":")
    if not separator or "/" in kind or "\\" in kind:
        kind, location = "parquet", text
    if kind not in KINDS:
        near = get_close_matches(kind, KINDS, n=1)
        hint = f"; did you mean {near[0]}:{location}?" if near else ""
        raise ConfigError(
            f"{text!r} does not begin with a known kind of source{hint} "
            f"The kinds are {', '.join(f'{name}:' for name in KINDS)}"
        )
    part = ""
    if kind in ("store", "jdbc"):
        location, _, part = location.rpartition("#")
        if not location or not part:
            example = {"store": "store:DIR#TOPIC", "jdbc": "jdbc:derby:/data/shop#ORDERS"}[kind]
            raise ConfigError(f"{text!r} does not name a table or topic: write {example}")
    if not location:
        raise ConfigError(f"{text!r} names no location: write {kind}:SOMETHING")
    return Address(kind, f"jdbc:{location}" if kind == "jdbc" else location, part)


def check_exists(address: Address) -> None:
    """Check that a local file or directory exists; other file systems are not asked.

    Raises:
        ConfigError: it does not exist.
    """
    if not Path(address.location).exists() and "://" not in address.location:
        raise ConfigError(f"{address}: there is no such file or directory")
