"""`cometmq bench --against java`: plans and runs a comparison and prints its report.

Exit code 0 means that every row ran and that every acknowledged message was read back.  Where Java
or RocketMQ's jars are missing nothing runs, and the error names what is missing.  A missed target
is printed but does not change the exit code.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.base.measure import Conditions, machine_conditions
from bench.java.against import (
    FACT_ROWS,
    LOAD_ROWS,
    ROW_NAMES,
    Comparison,
    chosen_rows,
)
from bench.java.against_report import as_json, as_page, as_text
from bench.java.against_run import Plan, compare, short
from bench.java.java_peer import JAVA_VERSION
from bench.suites.report import write_report
from bench.suites.suite import Settings
from cometmq.errors import ConfigError

__all__ = ["list_rows", "measure_against"]


def list_rows() -> None:
    """Print one line for each row: its group, name and goal."""
    for row in (*LOAD_ROWS, *FACT_ROWS):
        goal = row.goal
        wanted = [f"{goal.ratio:.3g}x"] if goal.ratio is not None else []
        if goal.p99_share is not None:
            wanted.append(f"p99 at most {goal.p99_share:.0%} of {row.other}")
        if goal.cpu_share is not None:
            wanted.append(f"CPU at most {goal.cpu_share:.0%} of {row.other}")
        if goal.limit is not None:
            wanted.append(f"at most {goal.limit:g} {row.unit}")
        if wanted and not row.is_asked:
            wanted.append("only when named")
        print(f"{row.group:18} {row.name:24} {', '.join(wanted) or 'only when named'}")


def measure_against(options: dict[str, Any], settings: Settings, say: Callable[[str], None]) -> int:
    """Run the comparison that the options choose; return the exit code."""
    rows = chosen_rows(tuple(options["only"]))
    if not rows:
        raise ConfigError(
            f"no row against java is called like {' or '.join(options['only'])}; there are: "
            + ", ".join(ROW_NAMES)
        )
    plan = Plan(
        settings,
        warm_up_s=options["warm_up"],
        heap=options["java_heap"],
        restart_gb=options["restart_gb"],
        restart_queues=options["restart_queues"],
    )
    if options["quick"]:
        plan = short(plan)
    conditions = _conditions(plan)
    comparisons = compare(plan, rows, say)
    _print(conditions, comparisons, options)
    return 1 if any(one.error for one in comparisons) else 0


def _java_text() -> str:
    java = shutil.which("java")
    if java is None:
        return "absent"
    found = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    return (found.stderr or found.stdout).splitlines()[-1].strip()


def _conditions(plan: Plan) -> Conditions:
    settings = plan.settings
    machine = machine_conditions(settings.folder, settings.server_core, settings.generator_core)
    rows = (
        ("java", _java_text()),
        (
            "against",
            f"RocketMQ {JAVA_VERSION}, settings as shipped but waitTimeMillsInSendQueue=10000; "
            f"G1 with a heap of {plan.heap}, touched before it serves",
        ),
        (
            "rounds",
            f"{settings.rounds} of {settings.seconds:g} s each, ours and Java in turn, "
            f"after {plan.warm_up_s:g} s of load on Java; figures are medians, a ratio or "
            "part is the median over the pairs of rounds with its 95 % interval",
        ),
        ("while one runs", "the other's processes stand still (SIGSTOP)"),
        (
            "broker settings",
            ", ".join(f"{k}={v}" for k, v in settings.broker_settings.items()) or "defaults",
        ),
        ("system", f"{platform.platform()}, {os.cpu_count()} cores"),
    )
    return Conditions(machine.rows + rows, machine.fdatasync_us)


def _print(conditions: Conditions, comparisons: list[Comparison], options: dict[str, Any]) -> None:
    if options["html_path"]:
        Path(options["html_path"]).write_text(as_page(conditions, comparisons), "utf-8")
    write_report(
        as_text(conditions, comparisons), as_json(conditions, comparisons), options["json_path"]
    )
