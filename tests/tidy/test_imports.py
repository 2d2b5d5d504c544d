"""Every package imports alone and loads no library that its users do not need."""

import ast
import graphlib
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "cometmq"
#: What must not be in memory after the import of a room, and why it would hurt.
COMMAND_FREE_OF = ("numpy", "rich", "asyncio", "uvloop", "cometmq.client", "cometmq.broker")
HEAVY = {
    "broker": ("numpy", "rich", "click", "lz4", "zstandard"),
    "namesrv": ("numpy", "rich", "click", "cometmq.broker", "cometmq.store.message_store"),
    "standalone": ("numpy", "rich", "click"),
    "store": ("numpy", "asyncio", "uvloop", "cometmq.wire"),
    "client": ("numpy", "rich", "click", "cometmq.store", "cometmq.broker"),
    "wire": ("asyncio", "socket", "numpy"),
    "codec": ("asyncio", "socket", "numpy", "lz4", "zstandard"),
    "cli.main": COMMAND_FREE_OF,
    "cli.serve.serve": COMMAND_FREE_OF,
    "cli.message.produce": COMMAND_FREE_OF,
    "cli.message.consume": COMMAND_FREE_OF,
    "cli.admin.topic": COMMAND_FREE_OF,
    "cli.admin.group": COMMAND_FREE_OF,
    "cli.admin.store": COMMAND_FREE_OF,
    "cli.demo.demo": ("numpy", "rich", "uvloop", "cometmq.client", "cometmq.broker"),
    "cli.bench": ("numpy", "rich", "cometmq.client", "cometmq.broker"),
}


def modules_after(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after ``statement``."""
    script = f"{statement}\nimport sys\nprint(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


def name_of(path: Path) -> str:
    """Return a module's dotted name."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in SOURCE.rglob("*.py") if path.name != "__main__.py"}
FIRSTS = sorted(
    name for name, path in MODULES.items() if path.name == "__init__.py" or path.parent == SOURCE
)
"""Packages, and the modules that are rooms of their own."""


def imports_of(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports that run at import time, outside functions and type checking."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imports_of(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for part in ("body", "orelse", "finalbody"):
                yield from imports_of(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from imports_of(handler.body)


def names_in(node: ast.Import | ast.ImportFrom) -> set[str]:
    """Return the package's modules that a statement imports; a lazy name counts as its module."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names} & MODULES.keys()
    if node.module not in MODULES:
        return set()
    found = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    package = importlib.import_module(node.module)
    if hasattr(package, "__getattr__"):
        found |= {getattr(getattr(package, one.name), "__module__", "") for one in node.names}
    return found & MODULES.keys()


def test_no_module_comes_back_to_itself() -> None:
    """The imports of modules form no cycle, late imports included.

    What a package's own `__init__` asks for counts; that it runs before its modules does not, as
    it does so in whatever order they are imported.
    """
    asked = {
        name: set().union(
            *map(names_in, imports_of(ast.parse(path.read_text(encoding="utf-8")).body))
        )
        for name, path in MODULES.items()
    }
    assert sum(map(len, asked.values())) > 1000
    try:
        graphlib.TopologicalSorter(asked).prepare()
    except graphlib.CycleError as error:
        raise AssertionError(" <- ".join(error.args[1])) from None


@pytest.mark.timeout(300)
def test_every_room_imports_alone_and_every_module_imports() -> None:
    """Each room and each package imports first in an empty state, and every module imports.

    With no cycle among modules, which of a package's modules is the first does not matter: its
    `__init__` runs before.  One process imports them all, dropping ours in between, which is
    quicker than a process each.
    """
    script = (
        "import importlib, sys\n"
        f"for name in {FIRSTS!r}:\n"
        "    for loaded in [m for m in sys.modules if m.split('.')[0] == 'cometmq']:\n"
        "        del sys.modules[loaded]\n"
        "    importlib.import_module(name)\n"
        f"for name in {sorted(MODULES)!r}:\n"
        "    importlib.import_module(name)\n"
    )
    assert len(FIRSTS) > 20
    assert modules_after(script) >= MODULES.keys()


@pytest.mark.parametrize("room", HEAVY)
def test_room_starts_light(room: str) -> None:
    """An idle broker, a Spark executor and a plain --help load only what they use."""
    loaded = modules_after(f"import cometmq.{room}")
    assert loaded.isdisjoint(HEAVY[room]), loaded.intersection(HEAVY[room])


def test_top_level_import_is_lazy() -> None:
    """`import cometmq` loads no room; the public names come on first use."""
    loaded = modules_after("import cometmq")
    assert {name for name in loaded if name.startswith("cometmq.")} == set()
    assert "cometmq.model.message" in modules_after("import cometmq; cometmq.Message")
