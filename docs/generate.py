"""Write the reference pages that repeat what the code says: commands, keys, the client's names.

`make docs` runs this; tests/docs/test_reference.py refuses pages that differ from the code.
"""

import ast
import inspect
import re
import sys
import textwrap
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Final

import click
import msgspec

import cometmq
import cometmq.app
import cometmq.sync
from cometmq.broker.admin.config import LIVE_KEYS
from cometmq.broker.base.config import DEMANDS, effective_keys, ignored_keys
from cometmq.cli.main import root
from cometmq.cli.terminal import exit_codes
from cometmq.client.handling import handlers
from cometmq.controller.config import FIXED_KEYS as CONTROLLER_FIXED_KEYS
from cometmq.controller.config import IGNORED_KEYS as CONTROLLER_IGNORED_KEYS
from cometmq.controller.config import ControllerConfig
from cometmq.namesrv.config import DEMANDS as NAME_SERVER_DEMANDS
from cometmq.namesrv.config import FIXED_KEYS as NAME_SERVER_FIXED_KEYS
from cometmq.namesrv.config import IGNORED_KEYS, NameServerConfig
from cometmq.spark.base.columns import SPARK_TYPES
from cometmq.spark.live.options import SOURCE_OPTIONS
from cometmq.spark.live.sink_options import SINK_COLUMNS, SINK_OPTIONS
from cometmq.spark.store.options import STORE_OPTIONS

HERE = Path(__file__).resolve().parent
_SETTINGS_HEAD: Final = "| Key | Default | Unit | Changes while running | Meaning | Accepted |"
NOTICE: Final = "<!-- Written by docs/generate.py (`make docs`); edits here are lost. -->\n"


def commands_page() -> str:
    """Every command's own --help, in the order of `cometmq --help`; common options only once."""
    # The root's own settings: a command remembers the names of its help option from first use.
    with click.Context(root, info_name="cometmq", **root.context_settings) as context:
        common = _common_options(root, context)
        parts = [
            "# Commands and exit codes\n",
            NOTICE,
            "Every command that talks to a cluster finds it with `-n HOST:PORT` or "
            "`NAMESRV_ADDR`.\n"
            "Listings print a table on a terminal, one plain row per line in a pipe, and JSON with "
            "`--json`.\nA command's errors are one line on stderr.\n",
            "## Exit codes\n",
            _exit_code_table(),
            "## Common options\n",
            "Many commands take these; each command below names those that it takes.\n",
            *_table(("Option", "Meaning"), common.values()),
            "",
        ]
        assert isinstance(root, click.Group)
        for name in root.list_commands(context):
            command = root.get_command(context, name)
            assert command is not None
            parts += _command_parts(command, context, f"cometmq {name}", common)
    return "\n".join(parts)


#: An option with one text in so many commands is described once.
_COMMON_FROM: Final = 8


def _common_options(
    command: click.Command, context: click.Context
) -> dict[tuple[str, str], tuple[str, str]]:
    """Options that many commands take with the same text: their help record -> the row."""
    counts: Counter[tuple[str, str]] = Counter()
    for inner, inner_context in _commands(command, context):
        counts.update(_records(inner, inner_context).values())
    return {record: record for record, count in counts.items() if count >= _COMMON_FROM}


def _commands(
    command: click.Command, context: click.Context
) -> Iterator[tuple[click.Command, click.Context]]:
    """A command and all below it, each with its context."""
    yield command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _commands(child, _inner_context(child, context))


def _inner_context(command: click.Command, parent: click.Context) -> click.Context:
    return click.Context(
        command, info_name=command.name, parent=parent, max_content_width=100, terminal_width=100
    )


def _records(command: click.Command, context: click.Context) -> dict[click.Option, tuple[str, str]]:
    """A command's options with their names and texts, as --help shows them."""
    records = {}
    for option in command.params:
        if isinstance(option, click.Option):
            record = option.get_help_record(context)
            if record is not None:
                records[option] = record
    return records


def _exit_code_table() -> str:
    doc = exit_codes.__doc__ or ""
    rows = [line for line in doc.splitlines() if line.startswith("|")]
    return "\n".join(rows) + "\n"


def _command_parts(
    command: click.Command,
    parent: click.Context,
    title: str,
    common: Mapping[tuple[str, str], object],
) -> list[str]:
    with _inner_context(command, parent) as context:
        shared = [
            option for option, record in _records(command, context).items() if record in common
        ]
        for option in shared:
            option.hidden = True
        text = command.get_help(context).rstrip()
        for option in shared:
            option.hidden = False
        parts = [f"## {title}\n", f"```text\n{text}\n```\n"]
        if shared:
            names = ", ".join(f"`{max(option.opts, key=len)}`" for option in shared)
            parts.append(f"[Common options](#common-options): {names}.\n")
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                child = command.get_command(context, name)
                assert child is not None
                parts += _command_parts(child, context, f"{title} {name}", common)
    return parts


def configuration_page() -> str:
    """Effective keys with default and range; the accepted keys without effect."""
    lines = [
        "# Configuration",
        "",
        NOTICE,
        "Keys have RocketMQ's names, in a Java properties file (`broker.conf`) or in TOML.",
        "Later sources win: default, file (`-c`), environment, options, `--set`.",
        "In the environment a broker key is `COMETMQ_BROKER_` and the key in upper case, with or",
        "without underscores: `COMETMQ_BROKER_LISTEN_PORT`. `NAMESRV_ADDR` is `namesrvAddr`.",
        "A key that is in none of these lists is refused with the nearest known name.",
        "Keys that change while the server runs take effect at once (`cometmq broker config set`);",
        "the others are read at a start.",
        "[broker-example.conf](broker-example.conf) has every setting of the broker as a comment.",
        "",
        "## Broker",
        "",
        _SETTINGS_HEAD,
        "|---|---|---|---|---|---|",
    ]
    for key, (default, accepted) in sorted(effective_keys().items(), key=lambda item: item[0]):
        lines.append(_setting_row("broker", key, default, accepted, is_live=key in LIVE_KEYS))
    lines += [
        "",
        "## Name server",
        "",
        *_defaults_table("name-server", NameServerConfig, NAME_SERVER_FIXED_KEYS),
    ]
    lines += [
        "",
        "With `enableControllerInNamesrv=true` the file also has the settings of a controller.",
        "",
        "## Controller",
        "",
        *_defaults_table("controller", ControllerConfig, CONTROLLER_FIXED_KEYS),
    ]
    lines += [
        "",
        "## Accepted only where they ask for nothing",
        "",
        "These ask for replication, protection or a store that this version does not have.",
        "Any value but those below ends the start, with exit code 2, and is refused as a change in",
        "a running server; `--insecure` starts without the protection asked for and logs it.",
        "",
        "| Key | Server | Accepted | Else | With `--insecure` |",
        "|---|---|---|---|---|",
    ]
    servers = {"broker": DEMANDS, "name server": NAME_SERVER_DEMANDS}
    for key in sorted({*DEMANDS, *NAME_SERVER_DEMANDS}, key=str.lower):
        where = [server for server, demands in servers.items() if key in demands]
        demand = servers[where[0]][key]
        accepted = ", ".join(f"`{value}`" for value in demand.accepted if value)
        waived = "starts" if demand.is_protection else ""
        lines.append(f"| `{key}` | {', '.join(where)} | {accepted} | {demand.missing} | {waived} |")
    lines += [
        "",
        "## Known to RocketMQ, accepted, without effect here",
        "",
        "Listed once at start when a file sets them.",
        "",
        f"Broker ({len(ignored_keys())}): " + ", ".join(f"`{key}`" for key in ignored_keys()) + ".",
        "",
        f"Name server ({len(IGNORED_KEYS)}): "
        + ", ".join(f"`{key}`" for key in sorted(IGNORED_KEYS))
        + ".",
        "",
        f"Controller ({len(CONTROLLER_IGNORED_KEYS)}): "
        + ", ".join(f"`{key}`" for key in sorted(CONTROLLER_IGNORED_KEYS))
        + ".",
        "",
    ]
    return "\n".join(lines)


def settings_texts() -> dict[str, dict[str, tuple[str, str]]]:
    """The unit and the sentence of each setting, by server; what every server has is in each."""
    with (HERE / "settings.toml").open("rb") as file:
        tables = tomllib.load(file)
    shared = tables.pop("tls") | tables.pop("every-server")
    return {
        server: {key: (unit, text) for key, (unit, text) in {**table, **shared}.items()}
        for server, table in tables.items()
    }


def _setting_row(server: str, key: str, default: str, accepted: str, *, is_live: bool) -> str:
    unit, text = settings_texts()[server][key]
    cells = (
        f"`{key}`",
        _code(default),
        unit,
        "yes" if is_live else "",
        text.removesuffix("."),
        _accepted(accepted),
    )
    return f"| {' | '.join(cells)} |"


def _defaults_table(server: str, config: type[msgspec.Struct], fixed: Set[str]) -> list[str]:
    """The settings of a server but those that are accepted only as they are."""
    names = zip(config.__struct_encode_fields__, config.__struct_defaults__, strict=True)
    lines = [_SETTINGS_HEAD, "|---|---|---|---|---|---|"]
    for key, default in sorted(names, key=lambda item: item[0]):
        text = "" if default is None else str(default)
        text = text.lower() if isinstance(default, bool) else text
        lines.append(_setting_row(server, key, text, "", is_live=key not in fixed))
    return lines


def example_page() -> str:
    """A configuration file with every setting of the broker as a comment."""
    lines = [
        "# Every setting of a CometMQ broker with its default, written by docs/generate.py.",
        "# A line without # sets one: cometmq broker -c broker.conf",
        "",
    ]
    for key, (default, _) in sorted(effective_keys().items(), key=lambda item: item[0]):
        unit, text = settings_texts()["broker"][key]
        marks = [f"unit: {unit}"] * bool(unit) + ["changes while the broker runs"] * (
            key in LIVE_KEYS
        )
        lines += [f"# {text}" + (f" ({'; '.join(marks)})" if marks else "")]
        lines += [f"#{key}={default}", ""]
    return "\n".join(lines)


def _accepted(text: str) -> str:
    """Choices read as a sentence; the bars of a pattern stay, escaped for the table."""
    return text.replace(" | ", " or ").replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def client_page() -> str:
    """Every public name of `cometmq`: its text, its constructor and its methods."""
    parts = [
        "# The client's names\n",
        NOTICE,
        "Import all of these from `cometmq`.\n"
        "`cometmq.sync` has `Producer`, `TransactionProducer`, `PushConsumer`, `PullConsumer`, "
        "`Staging`, `Admin` and `Connection` with the same names and arguments and with blocking "
        "calls: leave "
        "out `await`, and write `with` and `for` instead of `async with` and `async for`.\n"
        "Times are in milliseconds, sizes in bytes.\n"
        "Every error is a `cometmq.errors.CometError`.\n"
        "Mistakes in arguments and messages are also `TypeError` or `ValueError`,"
        " `RequestTimeout` is a `TimeoutError`, `ConnectFailed` a `ConnectionError`.\n",
    ]
    classes = {
        name
        for name in set(cometmq.__all__) - set(cometmq.app.__all__)
        if inspect.isclass(getattr(cometmq, name))
    }
    for heading, names in _CLIENT_ORDER.items():
        parts.append(f"## {heading}\n")
        for name in names:
            parts += _class_parts(name, getattr(cometmq, name))
            if name == "PushConsumer":
                parts += ["### What a handler returns\n", *_doc_parts(_handler_text())]
            classes.remove(name)
    assert not classes, f"no section names {sorted(classes)}"
    return "\n".join(parts)


def app_page() -> str:
    """Every public name of `cometmq.app`, and the options that an App passes through."""
    parts = [
        "# The App's names\n",
        NOTICE,
        "`App` and `SchemaError` are names of `cometmq` too; import the others from "
        "`cometmq.app`.\n"
        "How to use them: [Write an App](../how-to/write-an-app.md).\n",
        "`cometmq.sync.App` has the same arguments and decorators; its `send` and `request` wait, "
        "and `with app` starts and stops it.\n",
        "What a handler returns means what it means to a `PushConsumer`: "
        "[the client's names](client.md#what-a-handler-returns).\n",
    ]
    names = [*_APP_ORDER, *sorted(set(cometmq.app.__all__) - set(_APP_ORDER))]
    for name in names:
        parts += _class_parts(name, getattr(cometmq.app, name))
    return "\n".join(parts)


def _handler_text() -> str:
    """The text that stands below `Handler` in its module, where no object holds it."""
    source = inspect.getsource(handlers)
    return source.partition("\nHandler:")[2].partition('"""')[2].partition('"""')[0].strip()


def _class_parts(name: str, value: type) -> list[str]:
    parts = [f"### {name}\n"]
    if not issubclass(value, Enum) and value not in _NOT_MADE_BY_PROGRAMS:
        # Not marked as Python: the formatter would break the lines.
        call = textwrap.fill(_call(name, value), 88, subsequent_indent="    ")
        parts.append(f"```text\n{call}\n```\n")
    # The asyncio class refers to the synchronous one for its arguments.
    parts += _doc_parts(inspect.getdoc(cometmq.sync.Staging if name == "Staging" else value))
    fields = _documented_fields(value)
    if fields:
        parts.append("\n".join(_table(("Field", "Meaning"), fields)) + "\n")
    if issubclass(value, Enum):
        parts.append(", ".join(f"`{member}`" for member in value.__members__) + "\n")
        return parts
    rows = []
    for method, member in inspect.getmembers(value):
        is_inherited_plumbing = not any(
            method in base.__dict__ and base.__module__.startswith("cometmq")
            for base in value.__mro__
        )
        is_plumbing = method in _PLUMBING and (name, method) != ("App", "serve")
        if method.startswith("_") or is_inherited_plumbing or is_plumbing:
            continue
        text = (inspect.getdoc(member) or "").partition("\n\n")[0].replace("\n", " ")
        if inspect.isfunction(member):
            word = "await " if inspect.iscoroutinefunction(member) else ""
            rows.append(f"| `{word}{_call(method, member)}` | {_cell(text)} |")
        elif isinstance(member, property):
            rows.append(f"| `{method}` | {_cell(text)} |")
    if rows:
        parts.append("| Name | Meaning |\n|---|---|\n" + "\n".join(rows) + "\n")
    for method in _DETAILED.get(name, ()):
        parts += [f"#### {name}.{method}\n", *_doc_parts(inspect.getdoc(getattr(value, method)))]
    return parts


#: A docstring's section of names, and the column that holds its texts.
_SECTIONS: Final = {"Args:": ("Argument", "Meaning"), "Raises:": ("Error", "When")}


def _doc_parts(doc: str | None) -> list[str]:
    """A docstring as Markdown: its paragraphs, examples as code, sections of names as tables."""
    parts = []
    blocks: list[str] = []
    for block in (doc or "").split("\n\n"):
        if blocks and block.startswith("    ") and blocks[-1].startswith("    "):
            blocks[-1] += f"\n\n{block}"  # an empty line does not end an example
        else:
            blocks.append(block)
    for block in blocks:
        head, _, rest = block.partition("\n")
        if head in _SECTIONS:
            parts.append("\n".join(_table(_SECTIONS[head], _names(rest))) + "\n")
        elif block.startswith("    "):
            parts.append(f"```text\n{textwrap.dedent(block)}\n```\n")
        else:
            parts.append(_cell(" ".join(block.split())).replace("\\|", "|") + "\n")
    return parts


def _names(section: str) -> Iterator[tuple[str, str]]:
    """The names of a section and their texts, which go on in lines with more indentation."""
    for entry in re.split(r"\n(?=    \S)", section):
        name, _, text = entry.partition(":")
        yield name.strip(), _capital(" ".join(text.split()).replace("``", "`"))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _documented_fields(value: type) -> list[tuple[str, str]]:
    """The fields of a class whose texts stand below them, in the order of the class."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
    assert isinstance(definition, ast.ClassDef)
    return [
        (field.target.id, " ".join(text.value.value.split()).replace("``", "`"))
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    ]


def _call(name: str, value: Callable[..., object]) -> str:
    """The call with its parameters and defaults, without types."""
    signature = inspect.signature(value)
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty, default=_Shown.of(parameter.default))
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    return name + str(inspect.Signature(parameters))


class _Shown:
    """A default value as a program would write it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text

    @classmethod
    def of(cls, value: object) -> object:
        """Enum members and functions by name, a fresh container as dots."""
        if isinstance(value, Enum):
            return cls(f"{type(value).__name__}.{value.name}")
        if value is inspect.Parameter.empty:
            return value
        if inspect.isfunction(value) or inspect.isclass(value):
            return cls(value.__name__.lstrip("_"))
        return cls("...") if repr(value) == "<factory>" else value


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("``", "`")


#: The client page's sections, and the classes in each: what a program needs first stands first.
_CLIENT_ORDER: Final[dict[str, tuple[str, ...]]] = {
    "Sending": ("Producer", "Message", "SendResult", "SendStatus", "Reply"),
    "Consuming": (
        "PushConsumer",
        "PullConsumer",
        "ReceivedMessage",
        "RetryLater",
        "StopConsuming",
        "DeadLetter",
        "Sql92",
        "ConsumeFromWhere",
        "MessageModel",
        "MessageQueue",
        "FlowLimits",
    ),
    "Transactions": (
        "TransactionProducer",
        "Transaction",
        "TransactionResult",
        "TransactionOutcome",
    ),
    "Staged batches": ("Staging", "StagedPart", "PublishResult", "PublishState"),
    "Administration and connections": ("Admin", "SubscriptionGroupConfig", "Connection", "Tls"),
    "Allocation strategies": (
        "AllocateAveragely",
        "AllocateAveragelyByCircle",
        "AllocateByConfig",
        "AllocateConsistentHash",
        "AllocateMachineRoomNearby",
    ),
}
#: What a program needs first stands first on the App's page.
_APP_ORDER: Final = ("App", "TopicProducer", "SchemaError", "HandlerStats", "AppTrial")
#: Methods whose arguments the page lists.
_DETAILED: Final = {"App": ("consumer", "send", "request")}
_NOT_MADE_BY_PROGRAMS: Final = (
    cometmq.ReceivedMessage,
    cometmq.app.AppTrial,
    cometmq.app.HandlerStats,
    cometmq.app.Serializer,
    cometmq.app.TopicProducer,
)
#: What the rooms of the client call on each other; public to them, of no use to a program.
_PLUMBING: Final = frozenset(
    {
        "accept",
        "after_fork",
        "apply_offset_reset",
        "assignments",
        "block_ended",
        "commit_changed",
        "commit_hint",
        "concurrency",
        "consumer_data",
        "dispatcher_of",
        "expire_now",
        "find_topic",
        "finished",
        "finished_all",
        "forget_topic",
        "give_back",
        "hold",
        "is_astray",
        "is_orderly",
        "is_paused",
        "learn_homes",
        "locked_ms",
        "may_consume",
        "name_servers",
        "namespace",
        "next_batch",
        "next_ready",
        "now_ms",
        "offset_moved",
        "open_shared",
        "producer_data",
        "rebalance_soon",
        "recheck_route",
        "renew_locks",
        "room",
        "routes_changed",
        "run_directly",
        "running_with",
        "serve",
        "skipped",
        "spawn",
        "started_ms",
        "status_table",
        "stored",
        "takes",
        "topics",
        "try_again",
        "watch",
        "within",
    }
)


_COLUMN_TEXT: Final = {
    "topic": "The topic.",
    "broker": "Name of the broker; for a store, the value of option `broker`.",
    "queueId": "The queue.",
    "queueOffset": "The message's position in its queue.",
    "physicalOffset": "Its position in the commit log.",
    "body": "The body, decompressed.",
    "tags": "The tag, null without one.",
    "keys": "Business keys, with spaces between them.",
    "properties": "All properties; null without `includeProperties`.",
    "bornTimestamp": "When its producer made the message.",
    "storeTimestamp": "When the broker stored it.",
    "bornHost": "The producer's `ip:port`.",
    "storeHost": "The broker's `ip:port`.",
    "msgId": "The offset message id: where it is stored, as hex.",
    "uniqKey": "The id its producer gave it.",
    "reconsumeTimes": "How often a consumer returned it for another try.",
    "sysFlag": "RocketMQ's flags: compression, transaction, address families.",
    "_corrupt_record": "Why a damaged record has nothing else; only in mode `PERMISSIVE`.",
}
_SINK_TEXT: Final = {
    "body": "Required, never null.",
    "topic": "Required unless option `topic` is set.",
    "tags": "One tag.",
    "keys": "Business keys: text with spaces between them, or an array.",
    "properties": "The user's own; RocketMQ's names are refused.",
    "messageGroup": "Messages of one group go to one queue.",
    "queueId": "The queue; without it the message group or the next turn chooses.",
    "deliverTime": "When to deliver: a time, or ms since 1970. Needs a broker with timers.",
}


def spark_page() -> str:
    """Options and columns of the Spark sources and of the sink."""
    return "\n".join(
        [
            "# Spark sources and sink",
            "",
            NOTICE,
            "How to use them: [Use Spark](../how-to/use-spark.md).",
            "Option names are read in any case; an unknown one is refused with the nearest name.",
            "",
            '## `format("cometmq")`: live topics, batch and stream',
            "",
            *_table(("Option", "Meaning"), SOURCE_OPTIONS.items()),
            "",
            'Offsets by queue are JSON: `{"Orders": {"broker-a:0": 1500, "broker-a:1": -2}}`;'
            " -2 is the first, -1 the end.",
            "A time wins over offsets; a queue without a message at or after it begins at its end.",
            "",
            '## `format("cometmq-store")`: a store directory, batch',
            "",
            *_table(("Option", "Meaning"), STORE_OPTIONS.items()),
            "",
            "## Columns of both",
            "",
            "`.schema(...)` before `load()` selects among them, in any order, with these types.",
            "",
            *_table(
                ("Column", "Type", "Meaning"),
                ((name, f"`{kind}`", _COLUMN_TEXT[name]) for name, kind in SPARK_TYPES.items()),
            ),
            "",
            '## `write.format("cometmq")` and `writeStream.format("cometmq")`',
            "",
            *_table(("Option", "Meaning"), SINK_OPTIONS.items()),
            "",
            *_table(
                ("Column", "Type", "Meaning"),
                (
                    (name, " or ".join(f"`{kind}`" for kind in kinds), _SINK_TEXT[name])
                    for name, kinds in SINK_COLUMNS.items()
                ),
            ),
            "",
            "Columns that a message has no field for are refused: `select` those to write.",
            "Only mode `append` is served; Spark's default is another one.",
            "",
        ]
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """A Markdown table; the first cell of each row is code."""
    return [
        f"| {' | '.join(head)} |",
        "|" + "---|" * len(head),
        *(
            f"| `{_pipes(row[0])}` | {' | '.join(_pipes(cell) for cell in row[1:])} |"
            for row in rows
        ),
    ]


def _pipes(text: str) -> str:
    return text.replace("|", "\\|")


PAGES: Final[dict[str, Callable[[], str]]] = {
    "reference/app.md": app_page,
    "reference/client.md": client_page,
    "reference/broker-example.conf": example_page,
    "reference/commands.md": commands_page,
    "reference/configuration.md": configuration_page,
    "reference/spark.md": spark_page,
}


def main() -> None:
    """Write the pages in place, or into the directory given as argument."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for name, page in PAGES.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
