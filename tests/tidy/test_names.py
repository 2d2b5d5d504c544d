"""Names say what a value is: class names are unique, fog words are no names, errors are named."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "cometmq"
MODULES = sorted(SOURCE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}

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
FOG_EXCEPTIONS: Final[dict[str, tuple[set[str], str]]] = {}

#: What is still to be renamed or written, file by file. It only shrinks: take out what is done.
_NOT_YET: Final[dict[str, dict[str, set[str]]]] = {
    "classes": {
        "StagedToken": {
            "broker/extensions/staging/tokens.py",
            "client/extensions/staging/calls.py",
        },
        "_Unit": {
            "broker/delay/moving.py",
            "broker/delay/wheel/moving.py",
            "broker/transaction/moving.py",
        },
    },
    "fog": {
        "broker/delay/levels/schedule.py": {"kept"},
        "broker/delay/moving.py": {"look", "place"},
        "broker/delay/waiting_items.py": {"what"},
        "broker/delay/wheel/counts.py": {"found", "place"},
        "broker/delay/wheel/fetch.py": {"look"},
        "broker/delay/wheel/intake.py": {"known", "place"},
        "broker/delay/wheel/loading.py": {"left"},
        "broker/delay/wheel/moved_places.py": {"found", "place"},
        "broker/delay/wheel/moving.py": {"look", "place"},
        "broker/delay/wheel/saving.py": {"left"},
        "broker/delay/wheel/service.py": {"place"},
        "broker/extensions/bulk_pull.py": {"found"},
        "broker/extensions/growing.py": {"gone", "look"},
        "broker/extensions/staging/ledger.py": {"found"},
        "broker/extensions/staging/service.py": {"found"},
        "broker/transaction/check_back.py": {"found"},
        "broker/transaction/moving.py": {"look", "place"},
        "broker/transaction/resume.py": {"look"},
        "broker/transaction/service.py": {"kept"},
        "cli/admin/dead_letters.py": {"given", "one"},
        "cli/admin/topic.py": {"found", "look"},
        "cli/pipeline/options.py": {"what"},
        "cli/pipeline/reconcile.py": {"given", "left"},
        "cli/serve/serve.py": {"what"},
        "client/admin/redrive_ledger.py": {"found"},
        "client/extensions/parking/parking.py": {"one"},
        "errors.py": {"found"},
        "gateway/gateway.py": {"taken"},
        "spark/pipelines/reconcile/differences.py": {"left"},
        "spark/pipelines/reconcile/findings.py": {"left"},
        "store/base/disk.py": {"what"},
        "store/index/keys.py": {"known"},
        "store/index/query.py": {"found", "place"},
        "store/index/service.py": {"known"},
        "store/offline/verify.py": {"what"},
        "store/queue/consume_queue.py": {"kept"},
        "store/queue/mender.py": {"found", "place"},
        "store/queue/writer.py": {"kept"},
        "store/read/filtered_reader.py": {"place"},
        "store/read/record_search.py": {"found"},
        "store/read/span_filter.py": {"kept"},
        "store/read/span_gather.py": {"found", "place"},
        "store/recovery/queue_rebuild.py": {"known"},
        "store/retention/moving.py": {"found", "place", "what"},
        "store/retention/retention.py": {"kept"},
        "store/timer/book.py": {"place"},
        "store/timer/carried.py": {"place"},
    },
    "raises": {
        "arrow/store_files.py": {"LogFileView.__init__"},
        "broker/extensions/staging/ledger.py": {"LedgerFile.decode", "decode_record"},
        "cli/serve/processes.py": {"child_settings"},
        "client/admin/redrive.py": {"Redrive.__init__"},
        "client/base/arguments.py": {
            "check_callable",
            "check_queue",
            "checked_group",
            "checked_text",
            "checked_topic",
        },
        "client/base/background.py": {"BackgroundLoop.__init__"},
        "client/base/transport.py": {"BlockingIo.take", "run_inline"},
        "client/consumer/group/group_consumer.py": {
            "GroupConsumer.__init__",
            "GroupConsumer.run_directly",
        },
        "client/extensions/staging/calls.py": {"StagingCalls.__init__"},
        "client/extensions/staging/part.py": {"PartCore.__init__"},
        "client/handling/handlers.py": {"RetryLater.__init__"},
        "client/message/checks.py": {
            "check_is_message",
            "check_sendable_topic",
            "delay_properties",
            "plain_bytes",
            "plain_text",
        },
        "client/message/send_codec.py": {"SendCodec.batch_item", "SendCodec.properties_text"},
        "client/producer/request_reply.py": {"check_received"},
        "client/producer/sender.py": {"Sender.channel"},
        "client/producer/sync_producer.py": {"Producer.start"},
        "client/queue/offsets.py": {"LocalOffsets.write"},
        "client/transaction/producer.py": {"TransactionProducer.end"},
        "core/consume/offset_file.py": {"decode_offset_file"},
        "core/delay/levels.py": {"DelayLevels.__init__"},
        "net/blocking.py": {"BlockingChannel.__init__"},
        "net/network.py": {"TcpNetwork.connect", "TcpNetwork.listen"},
        "store/append/appender.py": {"Appender.new_queue"},
        "store/append/record_encoder.py": {"check_sizes"},
        "store/offline/directory.py": {"OfflineStore.__init__"},
        "store/read/reader.py": {"MessageReader.message_at"},
        "store/recovery/log_files.py": {"open_log_files"},
        "testing/disk.py": {"SimDisk.lock", "SimLogFile.map"},
    },
}


def room_of(path: Path) -> str:
    """The path below src/cometmq, with slashes."""
    return path.relative_to(SOURCE).as_posix()


def classes_by_name() -> dict[str, list[str]]:
    """Class name -> the modules that define one on their top level."""
    homes: dict[str, list[str]] = {}
    for path, tree in TREES.items():
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


def check(kind: str, measured: Mapping[str, set[str]]) -> None:
    """Fail on what ``_NOT_YET`` does not list, and on what it lists though it is done."""
    listed = _NOT_YET[kind]
    new = {key: names - listed.get(key, set()) for key, names in measured.items()}
    done = {key: names - measured.get(key, set()) for key, names in listed.items()}
    assert {key: names for key, names in new.items() if names} == {}, "new"
    assert {key: names for key, names in done.items() if names} == {}, "done: take it out"


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
    for path, tree in TREES.items():
        names = {name.strip("_") for name, _ in fog_in(tree)} | {path.stem}
        foggy[room_of(path)] = (names & FOG) - FOG_EXCEPTIONS.get(room_of(path), (set(), ""))[0]
    return {path: names for path, names in foggy.items() if names}


def silent_raisers() -> dict[str, set[str]]:
    """Module -> the public functions and methods that raise and do not name their errors."""
    silent = {room_of(path): set(unnamed_errors(tree)) for path, tree in TREES.items()}
    return {path: names for path, names in silent.items() if names}


def test_class_names_are_unique() -> None:
    """A reader who greps for a class finds one; public synchronous twins share their names."""
    check("classes", doubled_classes())
    twice = {name for name, homes in classes_by_name().items() if len(homes) > 1}
    assert twice >= SAME_NAME.keys(), "an exception that nothing needs"


def test_no_fog_word_is_a_name() -> None:
    """A function, an attribute, a parameter and a module are named for what they are."""
    check("fog", foggy_names())


def error_names() -> set[str]:
    """Every class of `cometmq.errors`, and the errors that other modules derive from them."""
    names = {
        node.name for node in TREES[SOURCE / "errors.py"].body if isinstance(node, ast.ClassDef)
    }
    while True:
        derived = {
            node.name
            for tree in TREES.values()
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            and any(isinstance(base, ast.Name) and base.id in names for base in node.bases)
        }
        if derived <= names:
            return names
        names |= derived


ERRORS = error_names()


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
            raised |= {name} & ERRORS
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
    """Who calls one reads in its `Raises:` section what to catch."""
    check("raises", silent_raisers())


def test_rules_see_what_they_forbid() -> None:
    """The searches above find what they are for."""
    source = (
        "class Box:\n"
        "    def place(self, told: int) -> None:\n"
        "        self.left = told\n"
        "        raise ConfigError('x')\n"
    )
    tree = ast.parse(source)
    assert {name for name, _ in fog_in(tree)} == {"place", "self", "told", "left"}
    assert list(unnamed_errors(tree)) == ["Box.place"]
    assert {"ConfigError", "StoreError", "RequestTimeout"} <= ERRORS
