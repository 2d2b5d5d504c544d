"""The table of kinds, tests and clients in interop/README.md, from the marks of the tests.

Job: rows of Markdown.
Must not: know how a pair is started.
"""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from tests.interop.kinds import KINDS
from tests.interop.stage import OURS, PAIRS, pairs_of

__all__ = ["table"]

HERE: Final = Path(__file__).resolve().parent


class Row(NamedTuple):
    """A test of a kind, and the pairs it runs with in the long lane."""

    kind: str
    name: str
    pairs: list[tuple[str, str]]


def _marks(module: Any, function: Any) -> Iterator[pytest.Mark]:
    for owner in (function, module):
        marks = getattr(owner, "pytestmark", [])
        for one in marks if isinstance(marks, list) else [marks]:
            yield one.mark if isinstance(one, pytest.MarkDecorator) else one


def _rows() -> Iterator[Row]:
    for path in sorted(HERE.glob("test_*.py")):
        if "mark.kind(" not in path.read_text("utf-8"):
            continue
        module = importlib.import_module(f"tests.interop.{path.stem}")
        for name, function in vars(module).items():
            if not name.startswith("test_"):
                continue
            marks = list(_marks(module, function))
            for kind in (mark for mark in marks if mark.name == "kind"):
                yield Row(kind.args[0], f"{path.stem}.{name}", pairs_of(marks, full=True))


def table() -> str:
    """The rows of the table in interop/README.md: who runs each test, and at which broker."""
    clients = list(dict.fromkeys(client for client, _ in PAIRS))
    rows = sorted(_rows(), key=lambda row: (KINDS.index(row.kind), row.name))
    heads = ["Kind", "Test", *(client.replace(OURS, "ours") for client in clients)]
    lines = [heads, ["---"] * len(heads)]
    for row in rows:
        cells = []
        for client in clients:
            servers = [server for one, server in row.pairs if one == client]
            named = ["ours" if server == OURS else "Java" for server in servers]
            cells.append(", ".join(named) or "-")
        lines.append([row.kind, f"`{row.name}`", *cells])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
