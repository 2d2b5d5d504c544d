"""Completes the names of topics and groups from the cluster that the command line names.

The shell waits, so that a cluster that does not answer within a second completes nothing.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import click

__all__ = ["complete_names"]

TIMEOUT_S: Final = 1.0
_TOPICS: Final = ("topic", "topics")
_GROUPS: Final = ("group", "groups", "only_group")
_BY_COMMAND: Final = {"topic": "topic", "group": "group", "why": "group"}
"""What the argument ``name`` of a command, or of its subcommands, is."""


def complete_names(ctx: "click.Context", param: "click.Parameter", incomplete: str) -> list[str]:
    """The topics or groups that begin with a text; none where nobody answers."""
    kind = _kind(ctx, param)
    if kind is None:
        return []
    import asyncio

    from cometmq.cli.terminal.namespace import namespace
    from cometmq.errors import CometError

    try:
        with ctx.scope(cleanup=False):
            names = asyncio.run(_names(kind, str(ctx.params.get("name_server") or "")))
            space = namespace()
    except (CometError, OSError):
        return []
    own = [space.unwrap(name) for name in names if space.has(name)]
    return [name for name in own if name.startswith(incomplete)]


def _kind(ctx: "click.Context", param: "click.Parameter") -> str | None:
    if param.name in _TOPICS:
        return "topic"
    if param.name in _GROUPS:
        return "group"
    step: click.Context | None = ctx
    while param.name == "name" and step is not None:
        if step.command.name in _BY_COMMAND:
            return _BY_COMMAND[step.command.name]
        step = step.parent
    return None


async def _names(kind: str, name_server: str) -> list[str]:
    from cometmq.cli.terminal.options import DEFAULT_NAME_SERVER, admin_client

    async with admin_client(name_server or DEFAULT_NAME_SERVER, TIMEOUT_S) as admin:
        return await (admin.topic_list() if kind == "topic" else admin.group_list())
