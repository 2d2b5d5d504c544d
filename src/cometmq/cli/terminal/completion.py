"""`cometmq completion SHELL`: the script a shell sources to complete commands and options."""

import click

__all__ = ["completion"]


@click.command(short_help="Print a shell's completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash: cometmq completion bash >> ~/.bashrc
    zsh:  cometmq completion zsh >> ~/.zshrc
    fish: cometmq completion fish > ~/.config/fish/completions/cometmq.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "cometmq", "_COMETMQ_COMPLETE").source())
