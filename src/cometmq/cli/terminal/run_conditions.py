"""The conditions that each report names at its foot: the command line, the end, the version."""

from __future__ import annotations

import shlex
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cometmq import __version__

if TYPE_CHECKING:
    from cometmq.report.page import ReportPage

__all__ = ["add_conditions"]


def add_conditions(report: ReportPage) -> None:
    """Add the conditions of this process; command lines of `cometmq` hold no secret."""
    report.condition("command", shlex.join(["cometmq", *sys.argv[1:]]))
    report.condition("finished", f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC")
    report.condition("version", f"CometMQ {__version__}")
