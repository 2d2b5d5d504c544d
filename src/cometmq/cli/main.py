"""Entry of the `cometmq` command: lists the commands and turns each error into one line.

A command's module is imported when that command runs; `--help` and completion of command names
read the table below instead, so that they import nothing but click. A test compares the table
with the commands' own texts.
"""

import errno
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, Final

import click

from cometmq import __version__
from cometmq.cli.terminal.lazy import LazyGroup
from cometmq.cli.terminal.streams import open_streams
from cometmq.errors import CometError, ConfigError
from cometmq.extras import install_line

__all__ = ["COMMANDS", "LazyGroup", "main", "root"]

TERMINATED: Final = 128 + signal.SIGTERM
_ENDING: Final[list[int]] = []
"""Termination signals that this process has received."""
_BEFORE_COMMAND: Final = {"-v", "--verbose", "-q", "--quiet", "-V", "--version", "--profile"}
_OUTPUT_ERRORS: Final = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG}
#: name -> (module, attribute, one line of help)
COMMANDS: Final[dict[str, tuple[str, str, str]]] = {
    "up": (
        "cometmq.cli.serve.serve",
        "up",
        "Run name server and broker in one process, in the foreground.",
    ),
    "name-server": (
        "cometmq.cli.serve.serve",
        "name_server",
        "Run a name server in the foreground.",
    ),
    "broker": (
        "cometmq.cli.serve.serve",
        "broker",
        "Run a broker in the foreground; look at one, change its settings.",
    ),
    "controller": (
        "cometmq.cli.serve.controller",
        "controller",
        "Run a controller, and show its replica sets.",
    ),
    "console": (
        "cometmq.cli.serve.console",
        "console",
        "Run the web console, in the foreground.",
    ),
    "produce": (
        "cometmq.cli.message.produce",
        "produce",
        "Send messages: one from the command line, or one per line of a file.",
    ),
    "consume": (
        "cometmq.cli.message.consume",
        "consume",
        "Print the messages of a topic as they arrive.",
    ),
    "message": (
        "cometmq.cli.message.message",
        "message",
        "Look messages up by id, key or offset; give one to a consumer.",
    ),
    "why": (
        "cometmq.cli.admin.why",
        "why",
        "Where a message is for a group, and what would deliver it.",
    ),
    "cluster": (
        "cometmq.cli.admin.cluster",
        "cluster",
        "List the brokers of a cluster with their rates.",
    ),
    "client": (
        "cometmq.cli.admin.client",
        "client",
        "List clients that are online; show what one does.",
    ),
    "ping": (
        "cometmq.cli.admin.health",
        "ping",
        "Whether name servers and brokers answer, for health checks.",
    ),
    "doctor": (
        "cometmq.cli.admin.health",
        "doctor",
        "What is wrong with a cluster, and what to do.",
    ),
    "topic": (
        "cometmq.cli.admin.topic",
        "topic",
        "List, create, inspect, resize and delete topics.",
    ),
    "group": (
        "cometmq.cli.admin.group",
        "group",
        "List consumer groups and inspect their progress.",
    ),
    "dead-letters": (
        "cometmq.cli.admin.dead_letters",
        "dead_letters",
        "List a group's dead letters and send them again.",
    ),
    "parking": (
        "cometmq.cli.admin.parking",
        "parking",
        "Inspect, retry and skip parked message groups.",
    ),
    "outbox": (
        "cometmq.cli.admin.outbox",
        "outbox",
        "Show an outbox, send dead rows again, run a relay.",
    ),
    "patterns": (
        "cometmq.cli.admin.patterns",
        "patterns",
        "Show claims, sagas and outboxes of a database or Redis.",
    ),
    "replica": (
        "cometmq.cli.admin.replica",
        "replica",
        "Show masters and slaves; change them over; name the master of a replica set.",
    ),
    "profile": (
        "cometmq.cli.admin.profile",
        "profile",
        "Names for several clusters, and which one commands use.",
    ),
    "acl": (
        "cometmq.cli.admin.acl",
        "acl",
        "Users, what they may do, and which entry decides.",
    ),
    "app": ("cometmq.cli.serve.app", "app", "Run the handlers of a program."),
    "config": ("cometmq.cli.serve.check", "config", "Check a configuration file."),
    "delay-gateway": (
        "cometmq.cli.serve.delay_gateway",
        "delay_gateway",
        "Run exact timers for a RocketMQ 4 cluster, in the foreground.",
    ),
    "staged": ("cometmq.cli.message.staged", "staged", "List and forget staged batches."),
    "transaction": (
        "cometmq.cli.message.transaction",
        "transaction",
        "List open transactions; resume those that brokers gave up.",
    ),
    "store": ("cometmq.cli.admin.store", "store", "Read a store directory without a broker."),
    "backup": (
        "cometmq.cli.admin.backup",
        "backup",
        "Back up a store, check and restore backups.",
    ),
    "pipeline": (
        "cometmq.cli.pipeline.group",
        "pipeline",
        "Archive, replay and analyse messages with Spark.",
    ),
    "demo": (
        "cometmq.cli.demo.demo",
        "demo",
        "Send 336,776 real flights through a cluster and check every count.",
    ),
    "bench": ("cometmq.cli.bench", "bench", "Measure throughput and latency."),
    "completion": (
        "cometmq.cli.terminal.completion",
        "completion",
        "Print a shell's completion script.",
    ),
}


def _print_version(ctx: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    if is_wanted and not ctx.resilient_parsing:
        from cometmq import native

        click.echo(f"cometmq, version {__version__}, {native.describe()}")
        ctx.exit()


@click.command(
    cls=LazyGroup,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version, and whether the native core runs, and exit.",
)
@click.option("-v", "--verbose", count=True, help="Log more on stderr; twice for debug.")
@click.option("-q", "--quiet", is_flag=True, help="Print no log lines and no progress bars.")
@click.option(
    "--profile",
    metavar="NAME",
    envvar="COMETMQ_PROFILE",
    show_envvar=True,
    help="Use the cluster of this profile (cometmq profile).",
)
@click.pass_context
def root(ctx: click.Context, verbose: int, quiet: bool, profile: str | None) -> None:
    """CometMQ: broker, name server and client that speak RocketMQ's protocol.

    Every command that talks to a cluster finds it with -n HOST:PORT, the variable NAMESRV_ADDR or
    a profile.
    Exit codes: 0 done, 1 refused or a check failed, 2 usage or configuration, 3 no answer,
    4 not found, 5 store, 6 two sources differ, 130 interrupted.
    """
    ctx.obj = {"verbose": verbose, "quiet": quiet, "profile": profile}


def _report(error: BaseException) -> int:
    """Print the error as one line on stderr; return the exit code."""
    from cometmq.cli.terminal.exit_codes import exit_code

    text = str(error) or type(error).__name__
    print(f"cometmq: {text}", file=sys.stderr)
    return exit_code(error)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with the documented code.

    Raises:
        SystemExit: always, with that code.
    """
    open_streams()
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        # By default SIGTERM ends Python without running `finally`: a bench or a demo would leave
        # its broker and its store behind. Commands that serve or consume handle SIGTERM themselves.
        signal.signal(signal.SIGTERM, _terminated)
    sys.exit(_run(arguments))


def _terminated(number: int, frame: FrameType | None) -> None:
    """End the process through every `with` and `finally`.

    Where an event loop runs, its Ctrl-C handler cancels the main task. SystemExit raised inside a
    callback would end only that callback, and the loop would continue.
    """
    interrupted = signal.getsignal(signal.SIGINT)
    _ENDING.append(number)
    if callable(interrupted) and interrupted is not signal.default_int_handler:
        interrupted(signal.SIGINT, frame)
        return
    # A shell's background job ignores Ctrl-C, and so does its loop. Nothing is imported here.
    loop = sys.modules.get("cometmq.net.loop")
    if loop is None or not loop.interrupt():
        sys.exit(TERMINATED)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        code = _invoke(arguments)
        # Flush here, where a full disk can still be reported, not when the interpreter exits.
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        if isinstance(error, click.NoSuchOption) and error.option_name in _BEFORE_COMMAND:
            name = error.option_name
            print(f"{name} stands before the command: cometmq {name} ...", file=sys.stderr)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        from cometmq.cli.terminal.exit_codes import INTERRUPTED

        if _ENDING:
            return TERMINATED
        print("cometmq: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader closed our output (`cometmq topic list | head`). That is no error, and the
        # interpreter's own flush at exit must not report it either.
        sys.stdout = None
        return 0
    except (CometError, ModuleNotFoundError) as error:
        return _report(_with_install_line(error))
    except UnicodeEncodeError as error:
        invalid = error.object[error.start : error.end]
        return _report(ConfigError(f"{invalid!r} is not text; arguments must be UTF-8"))
    except OSError as error:
        return _report(_described(error))
    return code


def _invoke(arguments: Sequence[str] | None) -> int:
    stdout = sys.stdout
    try:
        result: Any = root.main(
            None if arguments is None else list(arguments),
            prog_name="cometmq",
            standalone_mode=False,
        )
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except SystemExit:
        # When the reader closes our output, click exits with code 1 and replaces stdout by a stream
        # that does not fail again at exit. This command exits with 0.
        if sys.stdout is stdout:
            raise
        return 0
    return result if isinstance(result, int) else 0


def _with_install_line(error: Exception) -> Exception:
    """Name the install line of the extra that brings a missing module.

    Raises:
        Exception: the error itself, where no extra brings the module.
    """
    if isinstance(error, ModuleNotFoundError):
        line = install_line(error.name or "")
        if line is None:
            raise error
        return ConfigError(f"this command needs {error.name}: {line}")
    return error


def _described(error: OSError) -> OSError:
    """Describe what the system refused, with the file's name and without the error number."""
    if error.filename is not None:
        return OSError(f"{error.filename}: {error.strerror or error}")
    if error.errno in _OUTPUT_ERRORS:
        # Otherwise the interpreter would write the remaining buffer at exit, and fail again.
        sys.stdout = None
        return OSError(f"cannot write the output: {error.strerror}")
    return OSError(error.strerror or str(error))
