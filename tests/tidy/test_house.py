"""House rules as tests: docstrings, words, sizes and paths."""

import ast
import functools
import re
import subprocess
from pathlib import Path

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
    """Return the files that git publishes; all files below the root where there is no git."""
    result = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        return [*MODULES, *TESTS, *ROOT.glob("*.*")]
    return [ROOT / name for name in result.stdout.split("\0") if name and (ROOT / name).is_file()]


def name_of(path: Path) -> str:
    """Return a path as a test id."""
    return str(path.relative_to(ROOT))


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """Return a parsed file; several rules look at each."""
    return ast.parse(path.read_text(encoding="utf-8"))


def functions_of(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function and method of a module."""
    return [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def unnamed_public(tree: ast.Module) -> list[str]:
    """Return the public names of a module without `__all__`."""
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
    return [] if exported else public


def test_modules_say_their_job_and_their_public_names() -> None:
    """A module has a docstring, and `__all__` where it defines public names."""
    assert len(MODULES) > 300
    silent = [name_of(path) for path in MODULES if not ast.get_docstring(tree_of(path))]
    assert silent == [], "no module docstring"
    public = {name_of(path): unnamed_public(tree_of(path)) for path in MODULES}
    assert {path: names for path, names in public.items() if names} == {}, "public, no __all__"


def test_modules_stay_readable() -> None:
    """File and function sizes stay below the limits, without reminders or stubs."""
    texts = {name_of(path): path.read_text(encoding="utf-8") for path in MODULES}
    lines = {path: text.count("\n") for path, text in texts.items()}
    assert {path: count for path, count in lines.items() if count > MODULE_LINES_MAX} == {}
    sizes = {
        f"{name_of(path)}:{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in MODULES
        for node in functions_of(tree_of(path))
    }
    assert {name: size for name, size in sizes.items() if size > FUNCTION_LINES_MAX} == {}
    unfinished = {path: UNFINISHED.findall(text) for path, text in texts.items()}
    assert {path: words for path, words in unfinished.items() if words} == {}


def foreign_words(tree: ast.Module) -> list[str]:
    """Return the names of a module in which a banned word is, with the word to say instead."""
    names = {node.name for node in functions_of(tree)}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    names |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    snake = {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower() for name in names}
    return [
        f"{name}: say {instead!r}"
        for word, instead in BANNED_WORDS.items()
        for name in sorted(filter(re.compile(rf"(^|_){word}s?($|_)").search, snake))
    ]


def bare_offsets(tree: ast.Module) -> list[int]:
    """Return the lines where a parameter or an attribute is called `offset`."""
    return [getattr(node, "lineno", 0) for node in ast.walk(tree) if _is_bare_offset(node)]


def test_modules_speak_rocketmq() -> None:
    """Names use the glossary's words; no parameter and no attribute is a bare `offset`.

    A local name of three lines may be: what it is stands beside it.
    """
    foreign = {name_of(path): foreign_words(tree_of(path)) for path in MODULES}
    assert {path: names for path, names in foreign.items() if names} == {}
    bare = {name_of(path): bare_offsets(tree_of(path)) for path in MODULES}
    assert {path: lines for path, lines in bare.items() if lines} == {}, "which offset?"
    example = ast.parse("class A:\n    def f(self, offset, segments):\n        self.offset = 1\n")
    assert foreign_words(example) == ["segments: say 'mapped file'"]
    assert len(bare_offsets(example)) == 2


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


def test_tests_assert_something() -> None:
    """No test passes without having checked anything."""
    checking = ("assert", "raises", "check", "verify", "expect", "fail(", "warns")
    idle = [
        f"{name_of(path)}:{node.name}"
        for path in TESTS
        for node in functions_of(tree_of(path))
        if node.name.startswith("test_") and not any(word in ast.unparse(node) for word in checking)
    ]
    assert idle == []


def test_nothing_published_names_a_machine() -> None:
    """No file names a developer's path, a folder outside the repository or a mirror."""
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
