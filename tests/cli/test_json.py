"""Every command has --json, and what JSON calls a thing is the same everywhere."""

import ast
from collections.abc import Iterator
from pathlib import Path

import click

from cometmq.cli.main import root

SOURCE = Path(__file__).resolve().parents[2] / "src" / "cometmq"

#: Commands without --json: why.
WITHOUT = {
    "up": "it serves until a signal",
    "name-server": "it serves until a signal",
    "broker": "it serves until a signal",
    "controller": "it serves until a signal",
    "console": "it serves until a signal",
    "app run": "it serves until a signal",
    "outbox relay": "it serves until a signal",
    "completion": "its output is a shell's script",
    "pipeline archive files": "its output is paths, one a line, for other programs",
}
#: A field's other names, and the one that it has.
NAMES = {
    "broker_name": "broker",
    "brokerName": "broker",
    "clientId": "client_id",
    "consumer_group": "group",
    "group_name": "group",
    "groupName": "group",
    "member": "client_id",
    "messageId": "message_id",
    "msg_id": "message_id",
    "msgId": "message_id",
    "offset_in_queue": "queue_offset",
    "place": "position",
    "queueId": "queue_id",
    "queueOffset": "queue_offset",
    "topic_name": "topic",
}


def commands(
    command: click.Command, names: tuple[str, ...] = ()
) -> Iterator[tuple[str, click.Command]]:
    """Every command with its name; a group that does something by itself too."""
    if names and (not isinstance(command, click.Group) or command.invoke_without_command):
        yield " ".join(names), command
    if isinstance(command, click.Group):
        with click.Context(command) as context:
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                yield from commands(inner, (*names, name))


def test_every_command_prints_json() -> None:
    """One that cannot is on the list, with its reason."""
    silent = {
        name
        for name, command in commands(root)
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert silent == set(WITHOUT)


def field_names(path: Path) -> set[str]:
    """The texts that a module uses as keys of a literal dictionary or as keywords of print_done."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Dict):
            names |= {
                key.value
                for key in node.keys
                if isinstance(key, ast.Constant) and isinstance(key.value, str)
            }
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print_done":
            names |= {keyword.arg for keyword in node.keywords if keyword.arg}
    return names


def test_a_field_has_one_name() -> None:
    """Rows and answers use the names of the table, whoever prints them."""
    modules = [
        *(SOURCE / "listings").glob("*.py"),
        *(SOURCE / "cli" / "admin").glob("*.py"),
        *(SOURCE / "cli" / "message").glob("*.py"),
    ]
    used = {path.name: field_names(path) & NAMES.keys() for path in modules}
    assert {name: words for name, words in used.items() if words} == {}
    everything = set().union(*map(field_names, modules))
    assert {"broker", "client_id", "group", "message_id", "queue_id", "queue_offset", "topic"} <= (
        everything
    )
