"""Names say what a value is: class names are unique, fog words are no names, errors are named."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "cometmq"
MODULES = sorted(SOURCE.rglob("*.py"))

#: Class names that exist more than once on purpose, each with its reason.
SAME_NAME: Final[dict[str, str]] = {}

#: Words that say nothing about a value, whatever the value is.
FOG: Final = frozenset(
    {
        "found",
        "given",
        "gone",
        "held",
        "kept",
        "known",
        "left",
        "look",
        "looked",
        "more",
        "one",
        "place",
        "rest",
        "taken",
        "thing",
        "told",
        "what",
    }
)
#: Fog words that are the right name somewhere: file below src/cometmq, the words and the reason.
FOG_EXCEPTIONS: Final[dict[str, tuple[set[str], str]]] = {
    "cli/pipeline/reconcile.py": ({"left"}, "the side of a comparison"),
    "spark/pipelines/reconcile/differences.py": ({"left"}, "the side of a comparison"),
    "spark/pipelines/reconcile/findings.py": ({"left"}, "the side of a comparison"),
}


@functools.cache
def trees() -> dict[Path, ast.Module]:
    """The parsed modules; only the process that runs these tests parses them."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}


def room_of(path: Path) -> str:
    """The path below src/cometmq, with slashes."""
    return path.relative_to(SOURCE).as_posix()


def classes_by_name() -> dict[str, list[str]]:
    """Class name -> the modules that define one on their top level."""
    homes: dict[str, list[str]] = {}
    for path, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(room_of(path))
    return homes


def public_twins() -> set[str]:
    """Names that `cometmq` and `cometmq.sync` both export."""
    import cometmq
    import cometmq.sync

    return set(cometmq.__all__) & set(cometmq.sync.__all__)


def fog_in(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Functions, parameters and attributes of a module that a fog word names, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno
            arguments = node.args
            for argument in (
                *arguments.posonlyargs,
                *arguments.args,
                *arguments.kwonlyargs,
                *filter(None, (arguments.vararg, arguments.kwarg)),
            ):
                yield argument.arg, argument.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    yield statement.target.id, statement.lineno


def doubled_classes() -> dict[str, set[str]]:
    """Class names that exist more than once, with their modules."""
    allowed = public_twins() | SAME_NAME.keys()
    return {
        name: set(homes)
        for name, homes in classes_by_name().items()
        if len(homes) > 1 and name not in allowed
    }


def foggy_names() -> dict[str, set[str]]:
    """Module -> the fog words that name something in it."""
    foggy = {}
    for path, tree in trees().items():
        names = {name.strip("_") for name, _ in fog_in(tree)} | {path.stem}
        foggy[room_of(path)] = (names & FOG) - FOG_EXCEPTIONS.get(room_of(path), (set(), ""))[0]
    return {path: names for path, names in foggy.items() if names}


def silent_raisers() -> dict[str, set[str]]:
    """Module -> the public functions and methods that raise and do not name their errors."""
    silent = {room_of(path): set(unnamed_errors(tree)) for path, tree in trees().items()}
    return {path: names for path, names in silent.items() if names}


def test_class_names_are_unique() -> None:
    """A reader who greps for a class finds one; public synchronous twins share their names."""
    assert doubled_classes() == {}
    twice = {name for name, homes in classes_by_name().items() if len(homes) > 1}
    assert twice >= SAME_NAME.keys(), "an exception that nothing needs"


def test_no_fog_word_is_a_name() -> None:
    """A function, an attribute, a parameter and a module are named for what they are."""
    assert foggy_names() == {}


@functools.cache
def error_names() -> frozenset[str]:
    """Every class of `cometmq.errors`, and the errors that other modules derive from them."""
    names = {
        node.name for node in trees()[SOURCE / "errors.py"].body if isinstance(node, ast.ClassDef)
    }
    classes = [
        node
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    while True:
        derived = {
            node.name
            for node in classes
            if any(isinstance(base, ast.Name) and base.id in names for base in node.bases)
        }
        if derived <= names:
            return frozenset(names)
        names |= derived


def raised_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Errors of ours that the function itself raises; what its inner functions raise is theirs."""
    raised: set[str] = set()
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Raise) and node.exc is not None:
            error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            name = error.attr if isinstance(error, ast.Attribute) else getattr(error, "id", "")
            raised |= {name} & error_names()
        waiting += ast.iter_child_nodes(node)
    return raised


def unnamed_errors(tree: ast.Module) -> Iterator[str]:
    """Public functions and methods of public classes whose docstring has no Raises section."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for method in node.body:
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                    is_making = method.name in ("__init__", "__post_init__")
                    docs: list[Documented] = [method, node] if is_making else [method]
                    if (is_making or not method.name.startswith("_")) and is_silent(method, docs):
                        yield f"{node.name}.{'__init__' if is_making else method.name}"
        elif (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and not node.name.startswith("_")
            and is_silent(node, [node])
        ):
            yield node.name


def is_silent(
    function: ast.FunctionDef | ast.AsyncFunctionDef,
    documented: list[Documented],
) -> bool:
    """Whether a function raises errors of ours that no docstring of it names."""
    docs = [ast.get_docstring(node) or "" for node in documented]
    return bool(raised_in(function)) and not any("Raises:" in doc for doc in docs)


def test_public_functions_name_their_errors() -> None:
    """A public function that raises lists its errors in a `Raises:` section."""
    assert silent_raisers() == {}


def test_rules_see_what_they_forbid() -> None:
    """The searches see each kind of name that they forbid."""
    source = (
        "class Box:\n"
        "    def place(self, told: int) -> None:\n"
        "        self.left = told\n"
        "        raise ConfigError('x')\n"
    )
    tree = ast.parse(source)
    assert {name for name, _ in fog_in(tree)} == {"place", "self", "told", "left"}
    assert list(unnamed_errors(tree)) == ["Box.place"]
    assert {"ConfigError", "StoreError", "RequestTimeout"} <= error_names()
