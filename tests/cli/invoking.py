"""Runs a command in this process, and compares its exit code."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from click.testing import CliRunner, Result

from cometmq import errors
from cometmq.cli.main import root
from cometmq.cli.terminal.exit_codes import exit_code

__all__ = ["Run", "invoke", "rows"]

Run = Callable[..., Result]


def invoke(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    code: int = 0,
    stdin: str | None = None,
) -> Result:
    """Run `cometmq ...`; a CometError becomes its exit code, an error of usage the code 2."""
    result = CliRunner(env=environment).invoke(root, arguments, input=stdin, standalone_mode=False)
    error = result.exception
    if isinstance(error, errors.CometError):
        assert exit_code(error) == code, error
    elif error is not None and not isinstance(error, SystemExit):
        assert code == 2, error
    else:
        assert (result.return_value or 0) == code, result.output
    return result


def rows(result: Result) -> list[dict[str, Any]]:
    """The JSON listing a command printed."""
    listing: list[dict[str, Any]] = json.loads(result.stdout)
    return listing
