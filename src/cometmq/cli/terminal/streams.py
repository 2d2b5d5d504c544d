"""Standard streams that may be closed, and arguments in a locale that may not be UTF-8."""

import io
import os
import sys
from typing import Any

import click

__all__ = ["argument_bytes", "open_streams", "prints_unicode", "utf8"]


def open_streams() -> None:
    """Open closed standard streams on the null device, and let them print any text.

    ``cometmq ... >&-`` leaves descriptor 1 free; the next socket would get it, and output would be
    written to that socket.
    """
    for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            # The system picks the lowest free descriptor: this one, as those below are open.
            os.open(os.devnull, mode)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115 - open as long as the process
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def prints_unicode() -> bool:
    """Whether standard output can encode every character."""
    return (sys.stdout.encoding or "").lower().replace("-", "") in {"utf8", "utf16", "utf32"}


def argument_bytes(argument: str) -> bytes:
    """The bytes of an argument as the shell passed them, whatever the locale."""
    return os.fsencode(argument)


def utf8(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """A click callback: decode an option, or each of several, as UTF-8, whatever the locale.

    For texts that become part of messages or are compared with them.

    Raises:
        click.BadParameter: the value is not UTF-8.
    """
    if isinstance(value, tuple):
        return tuple(utf8(ctx, param, item) for item in value)
    try:
        return None if value is None else argument_bytes(value).decode()
    except UnicodeDecodeError as error:
        raise click.BadParameter(
            f"{value!r} is not UTF-8 ({error.reason} at byte {error.start})", ctx, param
        ) from None
