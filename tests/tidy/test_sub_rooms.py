"""Sub-rooms import downwards only, no folder is a corridor, and the layout page's rules resolve."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "cometmq"
PAGE = (ROOT / "docs" / "reference" / "layout.md").read_text(encoding="utf-8")

#: A folder with more files than this asks for rooms of its own.
FILES_MAX: Final = 20

#: The drawings of the layout page: room -> its sub-rooms line by line, the upper ones first.
DRAWINGS: Final = {
    room: [line.split(" | ") for line in drawing.strip().splitlines()]
    for room, drawing in re.findall(
        r"^### `([\w/]+)`\n\n[^\n]+\n\n```text\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL
    )
}
#: The table of rules: rule -> (file below src/cometmq, name in it).
RULES: Final = re.findall(r"^\| ([^|]+) \| `([\w/]+\.py)` \| `([\w.]+)` \|", PAGE, re.M)


def modules() -> dict[str, Path]:
    """Dotted name of every module below cometmq -> its file."""
    names = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


MODULES = modules()


def imported_by(path: Path) -> Iterator[str]:
    """Every module that a file imports anywhere: late and type-only imports count."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module


def sub_room_of(name: str, room: str) -> str | None:
    """The sub-room or top file of ``room`` that a module belongs to; None outside of it."""
    prefix = f"cometmq.{room.replace('/', '.')}."
    return name.removeprefix(prefix).partition(".")[0] if name.startswith(prefix) else None


def arrows(room: str) -> dict[tuple[str, str], list[str]]:
    """(importing sub-room, imported sub-room) -> the imports behind it."""
    behind = defaultdict(list)
    for name, path in MODULES.items():
        importing = sub_room_of(name, room)
        if importing is None:
            continue
        for target in imported_by(path):
            imported = sub_room_of(target, room)
            if imported is not None and imported != importing:
                behind[importing, imported].append(f"{name} -> {target}")
    return behind


def test_page_draws_the_big_rooms() -> None:
    """A room with sub-rooms has a drawing."""
    assert set(DRAWINGS) >= {"broker", "client", "store", "core", "wire", "spark", "cli"}


@pytest.mark.parametrize("room", DRAWINGS)
def test_sub_rooms_import_downwards(room: str) -> None:
    """Whoever imports stands above what it imports, in the layout page's drawing of the room."""
    drawn = {name: line for line, names in enumerate(DRAWINGS[room]) for name in names}
    folder = SOURCE / room
    there = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    there |= {path.parent.name for path in folder.glob("*/__init__.py")}
    assert set(drawn) == there
    upwards = {
        pair: imports for pair, imports in arrows(room).items() if drawn[pair[0]] >= drawn[pair[1]]
    }
    assert upwards == {}


def test_no_folder_is_a_corridor() -> None:
    """A folder that a reader cannot take in at once gets rooms inside."""
    long = {
        str(folder.relative_to(SOURCE)): len(files)
        for folder in {path.parent for path in MODULES.values()}
        if len(files := list(folder.glob("*.py"))) > FILES_MAX
    }
    assert long == {}


def test_ten_rules_are_named() -> None:
    """The rules a newcomer asks for first."""
    assert len(RULES) >= 10


@pytest.mark.parametrize(("rule", "file", "name"), RULES)
def test_rule_resolves(rule: str, file: str, name: str) -> None:
    """The file exists and defines the name: a class, a function, a method or a constant."""
    body: list[ast.stmt] = ast.parse((SOURCE / file).read_text(encoding="utf-8")).body
    for part in name.split("."):
        matching = [node for node in body if part in names_of(node)]
        assert matching, f"{rule}: {file} defines no {name}"
        body = getattr(matching[0], "body", [])


def names_of(node: ast.stmt) -> set[str]:
    """The names that a statement defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {node.name}
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {target.id for target in targets if isinstance(target, ast.Name)}
    return set()
