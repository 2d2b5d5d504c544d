"""Every package imports alone, and none drags in what its users did not ask for."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "cometmq"
ROOMS = sorted(
    path.parent.name if path.name == "__init__.py" else path.stem
    for path in [*SOURCE.glob("*/__init__.py"), *SOURCE.glob("*.py")]
    if path.name not in {"__main__.py"} and path != SOURCE / "__init__.py"
)

#: What must not be in memory after the import of a room, and why it would hurt.
HEAVY = {
    "broker": ("numpy", "rich", "click", "lz4", "zstandard"),
    "namesrv": ("numpy", "rich", "click", "cometmq.broker", "cometmq.store.message_store"),
    "standalone": ("numpy", "rich", "click"),
    "store": ("numpy", "asyncio", "uvloop", "cometmq.wire"),
    "client": ("numpy", "rich", "click", "cometmq.store", "cometmq.broker"),
    "wire": ("asyncio", "socket", "numpy"),
    "codec": ("asyncio", "socket", "numpy", "lz4", "zstandard"),
    "cli.main": ("numpy", "rich", "asyncio", "uvloop", "cometmq.client", "cometmq.broker"),
    "cli.serve": ("numpy", "rich", "asyncio", "uvloop", "cometmq.client", "cometmq.broker"),
    "cli.produce": ("numpy", "rich", "asyncio", "uvloop", "cometmq.client", "cometmq.broker"),
    "cli.consume": ("numpy", "rich", "asyncio", "uvloop", "cometmq.client", "cometmq.broker"),
    "cli.topic": ("numpy", "rich", "asyncio", "uvloop", "cometmq.client", "cometmq.broker"),
    "cli.group": ("numpy", "rich", "asyncio", "uvloop", "cometmq.client", "cometmq.broker"),
    "cli.store": ("numpy", "rich", "asyncio", "uvloop", "cometmq.client", "cometmq.broker"),
    "cli.demo": ("numpy", "rich", "uvloop", "cometmq.client", "cometmq.broker"),
    "bench.main": ("numpy", "rich", "cometmq.client", "cometmq.broker"),
}


def modules_after(statement: str) -> set[str]:
    """Names in sys.modules of a fresh interpreter after ``statement``."""
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


def module_names() -> list[str]:
    """Every module of the package, dotted."""
    names = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        if parts[-1] == "__main__":
            continue
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


@pytest.mark.parametrize("room", ROOMS)
def test_room_imports_alone(room: str) -> None:
    """No room relies on another having been imported first."""
    assert f"cometmq.{room}" in modules_after(f"import cometmq.{room}")


@pytest.mark.timeout(180)
def test_every_module_imports_in_any_order() -> None:
    """Each module is importable as the first one of its room: no hidden cycle.

    One process imports them all, dropping the package in between, which is fifty times quicker
    than a process each.
    """
    script = (
        "import importlib, sys\n"
        f"for name in {module_names()!r}:\n"
        "    for loaded in [m for m in sys.modules if m.split('.')[0] == 'cometmq']:\n"
        "        del sys.modules[loaded]\n"
        "    importlib.import_module(name)\n"
    )
    assert len(module_names()) > 20
    assert "importlib" in modules_after(script)


@pytest.mark.parametrize("room", HEAVY)
def test_room_starts_light(room: str) -> None:
    """An idle broker, a Spark executor and a plain --help pay only for what they use."""
    loaded = modules_after(f"import cometmq.{room}")
    assert loaded.isdisjoint(HEAVY[room]), loaded.intersection(HEAVY[room])


def test_top_level_import_is_lazy() -> None:
    """`import cometmq` loads no room; the public names come on first use."""
    loaded = modules_after("import cometmq")
    assert {name for name in loaded if name.startswith("cometmq.")} == set()
    assert "cometmq.model.message" in modules_after("import cometmq; cometmq.Message")
