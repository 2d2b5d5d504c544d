"""A click group that imports a command when it runs; `--help` imports nothing but click."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CommandTable", "LazyGroup"]

#: name -> (module, attribute, one line of help)
CommandTable: TypeAlias = "Mapping[str, tuple[str, str, str]]"


class LazyGroup(click.Group):
    """A group whose commands are imported on first use.

    The table repeats each command's one line of help; a test compares the two.
    """

    def __init__(self, *args: Any, table: CommandTable, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the names in the table's order."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module that holds ``cmd_name``."""
        entry = self.table.get(cmd_name)
        if entry is None:
            return None
        command = getattr(import_module(entry[0]), entry[1])
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest the nearest name for an unknown one."""
        if args and args[0] not in self.table and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], self.table, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" See '{ctx.command_path} --help'."
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing any."""
        if not self.table:
            return
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry[2]) for name, entry in self.table.items()])
