"""Tables, JSON and progress bars; rich is imported only when the output is a terminal.

A listing is a list of dictionaries with equal keys. `--json` prints the list; otherwise a terminal
gets a rich table, and a pipe gets plain aligned columns, one row per line for awk and grep.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from cometmq.cli.terminal.streams import prints_unicode

__all__ = [
    "ProgressBar",
    "json_text",
    "note",
    "print_done",
    "print_json",
    "print_listing",
    "prints_json",
    "progress",
]

Row = Mapping[str, Any]


def json_text(value: Any, *, indent: int | None = None) -> str:
    """``value`` as JSON that standard output can encode; tuples and sets become lists."""
    return json.dumps(value, indent=indent, ensure_ascii=not prints_unicode(), default=_plain)


def print_json(value: Any) -> None:
    """Print ``value`` as indented JSON on stdout; tuples and sets become lists."""
    print(json_text(value, indent=2))


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset | set):
        return sorted(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)


def print_listing(rows: Sequence[Row], *, as_json: bool, title: str = "", empty: str = "") -> None:
    """Print a listing, or ``empty`` on stderr when there is no row."""
    if as_json:
        print_json(list(rows))
    elif not rows:
        note(empty or "nothing to show")
    elif sys.stdout.isatty():
        _rich_table(rows, title)
    else:
        _plain_table(rows)


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(map(str, value)) or "-"
    return str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain_table(rows: Sequence[Row]) -> None:
    headings = list(rows[0])
    numeric = [_is_number(rows[0][heading]) for heading in headings]
    lines = [[heading.upper().replace("_", "-") for heading in headings]]
    lines += [[_cell(row[heading]) for heading in headings] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    for line in lines:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        print("  ".join(cells).rstrip())


def _rich_table(rows: Sequence[Row], title: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", header_style="bold")
    for heading, value in rows[0].items():
        table.add_column(
            heading.replace("_", " "), justify="right" if _is_number(value) else "left"
        )
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row.values()))
    Console().print(table)


def prints_json() -> bool:
    """Whether the running command has `--json` (`done_option`)."""
    from click import get_current_context

    from cometmq.cli.terminal.options import PRINTS_JSON

    return bool(get_current_context().meta.get(PRINTS_JSON))


def print_done(text: str, *, is_note: bool = False, **fields: Any) -> None:
    """Say what a command did: a sentence, or with `--json` an object with these fields.

    Args:
        is_note: the sentence is for people only, and goes to stderr.
    """
    if prints_json():
        print_json(fields)
    elif is_note:
        note(text)
    else:
        print(text)


def note(text: str) -> None:
    """Print a line on stderr, so that stdout holds data only."""
    print(text, file=sys.stderr)


class ProgressBar(Protocol):
    """A progress bar, or its silent stand-in."""

    def update(self, completed: int, total: int | None = None, text: str | None = None) -> None:
        """Show ``completed`` of ``total``, and ``text`` as the current step."""
        ...


class _SilentBar:
    def update(self, completed: int, total: int | None = None, text: str | None = None) -> None:
        return None


class _TerminalBar:
    def __init__(self, display: Any, task: Any) -> None:
        self._display = display
        self._task = task

    def update(self, completed: int, total: int | None = None, text: str | None = None) -> None:
        changes: dict[str, Any] = {"completed": completed}
        if total is not None:
            changes["total"] = total
        if text is not None:
            changes["description"] = text
        self._display.update(self._task, **changes)


@contextmanager
def progress(
    *texts: str, total: int | None = None, quiet: bool = False
) -> Iterator[list[ProgressBar]]:
    """Show progress bars on stderr, one per text; nothing where stderr is not a terminal."""
    if quiet or not sys.stderr.isatty():
        yield [_SilentBar() for _ in texts]
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.progress import (
        Progress as Display,
    )

    display = Display(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with display:
        yield [_TerminalBar(display, display.add_task(text, total=total)) for text in texts]
