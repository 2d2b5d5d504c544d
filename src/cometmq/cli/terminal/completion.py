"""`cometmq completion SHELL`: the script a shell sources to complete commands and options."""

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

__all__ = ["completion"]

_COMPLETIONS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command(short_help="Print a shell's completion script.")
@click.argument("shell", type=click.Choice(list(_COMPLETIONS)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash: cometmq completion bash >> ~/.bashrc
    zsh:  cometmq completion zsh >> ~/.zshrc
    fish: cometmq completion fish > ~/.config/fish/completions/cometmq.fish
    """
    command = ctx.find_root().command
    click.echo(_COMPLETIONS[shell](command, {}, "cometmq", "_COMETMQ_COMPLETE").source())
