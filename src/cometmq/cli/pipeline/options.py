"""Shared by the pipeline commands: Spark options, the session, progress, and the final summary.

PySpark is imported only when a command runs.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from cometmq.cli.terminal.options import is_quiet

if TYPE_CHECKING:
    from types import FrameType

    from cometmq.report.page import ReportPage
    from cometmq.spark.base.progress import RunProgress, Summary

__all__ = ["finish", "open_progress", "open_session", "save_report", "spark_options"]

F = TypeVar("F", bound=Callable[..., Any])


def spark_options(function: F) -> F:
    """`--master`, `--conf`, `--report` and `--json`, as ``master``, ``conf``, ``report_path``,
    ``as_json``."""
    options = (
        click.option(
            "--master",
            metavar="URL",
            envvar="COMETMQ_SPARK_MASTER",
            default="local[*]",
            show_default=True,
            show_envvar=True,
            help="Run on this Spark master.",
        ),
        click.option(
            "--conf",
            metavar="KEY=VALUE",
            multiple=True,
            help="Set a Spark setting, such as spark.driver.memory=4g; may be repeated.",
        ),
        click.option(
            "--report",
            "report_path",
            metavar="FILE",
            type=click.Path(dir_okay=False),
            callback=_check_report,
            help="Write a page with tables and charts to FILE.",
        ),
        click.option(
            "--json", "as_json", is_flag=True, help="Print the summary as JSON on stdout."
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def _check_report(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse a path where no report can be written, before the work begins."""
    if value is None:
        return None
    folder = Path(value).absolute().parent
    while not folder.exists() and not folder.is_symlink():
        folder = folder.parent
    if not folder.is_dir():
        raise click.BadParameter(f"{folder} is a file, so {value} cannot be written below it")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise click.BadParameter(f"{folder} may not be written to, so {value} cannot be")
    return value


def open_session(name: str, master: str, conf: tuple[str, ...] = ()) -> Any:
    """A Spark session for `cometmq pipeline NAME`.

    Raises:
        click.BadParameter: a ``--conf`` is not spark.KEY=VALUE.
        ConfigError: PySpark or Java is missing; the error says how to install it.
    """
    settings: dict[str, str] = {}
    for pair in conf:
        key, separator, value = pair.partition("=")
        if not separator or not key.startswith("spark."):
            raise click.BadParameter(
                f"{pair!r} is not a Spark setting: write spark.KEY=VALUE", param_hint="--conf"
            )
        settings[key] = value
    from cometmq.spark import session
    from cometmq.spark.pipelines.base.spark_errors import interruptible

    with interruptible():
        spark = session(f"cometmq {name}", master=master, **settings)
    if threading.current_thread() is threading.main_thread():
        # PySpark's own handler calls the JVM while another call may be under way.
        signal.signal(signal.SIGINT, _interrupt)
    return spark


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Raise KeyboardInterrupt, and silence the pages that py4j logs about interrupted calls."""
    logging.disable(logging.ERROR)
    raise KeyboardInterrupt


def open_progress(ctx: click.Context, name: str, total: int | None = None) -> RunProgress:
    """Show progress on stderr; nothing with `-q`."""
    from cometmq.spark.base.progress import RunProgress

    return RunProgress(name, total=total, quiet=is_quiet(ctx))


def save_report(summary: Summary, report: ReportPage | None, report_path: str | None) -> bool:
    """Write the report where a path is given; False, with a line on stderr, where that fails."""
    from cometmq.cli.terminal.output import note
    from cometmq.cli.terminal.run_conditions import add_conditions
    from cometmq.errors import ConfigError

    if report is None or report_path is None:
        return True
    add_conditions(report)
    try:
        summary.report_path = str(report.write(report_path))
    except OSError as error:
        note(f"cometmq: the report {report_path} was not written: {error.strerror or error}")
        return False
    except ConfigError as error:
        note(f"cometmq: the report {report_path} was not written: {error}")
        return False
    return True


def finish(
    summary: Summary,
    *,
    as_json: bool,
    report: ReportPage | None = None,
    report_path: str | None = None,
) -> int:
    """Write the report where a path is given, print the summary, and return the exit code.

    The summary is printed even if the report cannot be written.
    """
    from cometmq.cli.terminal.exit_codes import FAILED
    from cometmq.cli.terminal.output import print_json

    is_reported = save_report(summary, report, report_path)
    if as_json:
        print_json(summary.as_json())
    else:
        print(summary.as_text())
    return 0 if summary.is_good and is_reported else FAILED
