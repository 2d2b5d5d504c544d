"""Commands run in this process, so that they share the one Spark session."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from cometmq.cli.main import main


@dataclass(frozen=True)
class Ran:
    """The result of a command: exit code and output."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What `--json` printed."""
        return json.loads(self.out)


def run_command(capsys: pytest.CaptureFixture[str], *arguments: object) -> Ran:
    """`cometmq` with these arguments."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main([str(one) for one in arguments])
    printed = capsys.readouterr()
    return Ran(int(stop.value.code or 0), printed.out, printed.err)
