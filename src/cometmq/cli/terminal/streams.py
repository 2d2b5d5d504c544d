"""Standard streams and arguments as shells really give them.

Job: make a process that was started with closed streams or a locale without UTF-8 behave like any
other: nothing is written to a socket that got the number of a stream, and no text fails to print.
Must not: print anything itself.
"""

import io
import os
import sys
from typing import Any

import click

__all__ = ["argument_bytes", "open_streams", "prints_unicode", "utf8"]


def open_streams() -> None:
    """Give closed standard streams to the null device, and let any text be printed.

    ``cometmq ... >&-`` leaves number 1 free, which the next socket would get; the event loop ends
    the process when it meets that.
    """
    for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one: those below are open by now.
            os.open(os.devnull, mode)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115 - as long as the process
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def prints_unicode() -> bool:
    """Whether standard output takes every character as it is; JSON has escapes of its own."""
    return (sys.stdout.encoding or "").lower().replace("-", "") in {"utf8", "utf16", "utf32"}


def argument_bytes(argument: str) -> bytes:
    """An argument as the shell gave it, whatever the locale takes it for."""
    return os.fsencode(argument)


def utf8(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Take an option, or each of several, as UTF-8 text, also where the locale is another.

    For what becomes part of messages or is compared with them.

    Raises:
        click.BadParameter: it is no UTF-8.
    """
    if isinstance(value, tuple):
        return tuple(utf8(ctx, param, item) for item in value)
    try:
        return None if value is None else argument_bytes(value).decode()
    except UnicodeDecodeError as error:
        raise click.BadParameter(
            f"{value!r} is not UTF-8 ({error.reason} at byte {error.start})", ctx, param
        ) from None
