"""Asks for confirmation before a command does what cannot be undone."""

import click

from cometmq.cli.terminal.exit_codes import FAILED

__all__ = ["NotConfirmed", "confirm"]


class NotConfirmed(click.ClickException):
    """The answer was no, or nobody answered."""

    exit_code = FAILED


def confirm(question: str) -> None:
    """Ask on stderr.

    Raises:
        NotConfirmed: the answer is not yes.
        click.Abort: after Ctrl-C.
    """
    try:
        is_wanted = click.confirm(question, err=True)
    except click.Abort as error:
        if not isinstance(error.__context__, EOFError):
            raise
        raise NotConfirmed("nobody answers here; --yes does it without asking") from None
    if not is_wanted:
        raise NotConfirmed("nothing was done")
