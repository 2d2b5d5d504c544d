"""The question before what cannot be taken back.

Job: ask once on stderr, and end the command unless the answer is yes.  Commands leave it out with
`--yes`.
"""

import click

from cometmq.cli.terminal.exit_codes import FAILED

__all__ = ["NotConfirmed", "confirm"]


class NotConfirmed(click.ClickException):
    """The answer was no, or there was none."""

    exit_code = FAILED


def confirm(question: str) -> None:
    """Ask; raises NotConfirmed unless the answer is yes, Abort after Ctrl-C."""
    try:
        is_wanted = click.confirm(question, err=True)
    except click.Abort as error:
        if not isinstance(error.__context__, EOFError):
            raise
        raise NotConfirmed("nobody answers here; --yes does it without asking") from None
    if not is_wanted:
        raise NotConfirmed("nothing was done")
