"""Rules a reader can check by eye, checked by machine: docstrings, words, sizes, paths."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "cometmq"
MODULES = sorted(SOURCE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

#: Sizes are a smell to look into; these walls only stop a file from growing unseen.
MODULE_LINES_MAX = 800
FUNCTION_LINES_MAX = 110

#: RocketMQ's word, not another system's (docs/glossary.md). Matched in names, not in prose.
BANNED_WORDS = {
    "write_ahead": "commit log",
    "wal": "commit log",
    "segment": "mapped file",
    "subscriber_set": "consumer group",
    "assignor": "allocation strategy",
}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|raise NotImplementedError)\b")


def tracked_files() -> list[Path]:
    """What git would publish; everything below the root where there is no git."""
    result = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        return [*MODULES, *TESTS, *ROOT.glob("*.*")]
    return [ROOT / name for name in result.stdout.split("\0") if name and (ROOT / name).is_file()]


def name_of(path: Path) -> str:
    """The path as a test id."""
    return str(path.relative_to(ROOT))


def functions_of(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a module."""
    return [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_module_says_its_job_and_its_public_names(path: Path) -> None:
    """A docstring, and `__all__` wherever a module defines something public."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), f"{name_of(path)}: no module docstring"
    public = [
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
    ]
    exported = any(
        isinstance(target, ast.Name) and target.id == "__all__"
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    )
    assert exported or not public, f"{name_of(path)}: public {public} without __all__"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_module_stays_readable(path: Path) -> None:
    """No file and no function beyond the walls; none holds a reminder or a stub."""
    text = path.read_text(encoding="utf-8")
    lines = text.count("\n")
    assert lines <= MODULE_LINES_MAX, f"{name_of(path)}: {lines} lines"
    long = {
        node.name: (node.end_lineno or node.lineno) - node.lineno + 1
        for node in functions_of(ast.parse(text))
    }
    assert {n: size for n, size in long.items() if size > FUNCTION_LINES_MAX} == {}
    assert UNFINISHED.findall(text) == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_module_speaks_rocketmq(path: Path) -> None:
    """Names use the glossary's words; no parameter and no attribute is a bare `offset`.

    A local name of three lines may be: what it is stands beside it.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {node.name for node in functions_of(tree)}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    names |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    snake = {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower() for name in names}
    for word, instead in BANNED_WORDS.items():
        pattern = re.compile(rf"(^|_){word}s?($|_)")
        wrong = sorted(name for name in snake if pattern.search(name))
        assert wrong == [], f"{name_of(path)}: say {instead!r}"
    bare = [getattr(node, "lineno", 0) for node in ast.walk(tree) if _is_bare_offset(node)]
    assert bare == [], f"{name_of(path)}: which offset?"


def _is_bare_offset(node: ast.AST) -> bool:
    """A parameter of a method or module function, or an assigned attribute, called `offset`."""
    if isinstance(node, ast.Module | ast.ClassDef):
        return any(
            argument.arg == "offset"
            for function in node.body
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            for argument in (*function.args.args, *function.args.kwonlyargs)
        )
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "offset"
        and isinstance(node.ctx, ast.Store)
    )


@pytest.mark.parametrize("path", TESTS, ids=name_of)
def test_test_asserts_something(path: Path) -> None:
    """No test passes without having checked anything."""
    checking = ("assert", "raises", "check", "verify", "expect", "fail(", "warns")
    idle = [
        node.name
        for node in functions_of(ast.parse(path.read_text(encoding="utf-8")))
        if node.name.startswith("test_") and not any(word in ast.unparse(node) for word in checking)
    ]
    assert idle == []


def test_nothing_published_names_a_machine() -> None:
    """No path of a developer's machine, no folder outside the repository, no package mirror."""
    # Spelled in halves, so that this file does not accuse itself.
    machine = re.compile(
        "|".join(
            [
                "/" + "root/",
                "/" + r"home/(?!namesrv/)\w+/",
                "/" + "Users/",
                "/" + "work/",
                r"\.\./" + "shared",
                "/" + "opt/wheels",
                "index" + "-url",
                "PIP_" + "INDEX",
                "UV_" + "INDEX",
            ]
        )
    )
    found = []
    for path in tracked_files():
        data = path.read_bytes()
        if b"\0" in data[:8192] or len(data) > 2_000_000:
            continue
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            if machine.search(line):
                found.append(f"{name_of(path)}:{number}: {line.strip()[:80]}")
    assert found == []


def test_every_room_of_the_layout_page_exists() -> None:
    """docs/reference/layout.md names each room, and each room is a package (or errors.py)."""
    page = (ROOT / "docs" / "reference" / "layout.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `([a-z]+)` \|", page, re.MULTILINE))
    rooms = {path.parent.name for path in SOURCE.glob("*/__init__.py")} | {"errors"}
    assert named == rooms
