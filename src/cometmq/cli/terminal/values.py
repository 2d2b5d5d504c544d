"""Click types and parsers for names, finite numbers, durations and times.

They refuse an empty name (an unset variable), bytes that are not UTF-8, `nan`, and numbers that no
field of the protocol holds.
"""

import math
import re
from datetime import UTC, datetime
from typing import Any, Final

import click

__all__ = [
    "GIVEN",
    "NAME",
    "UNIT_MS",
    "Finite",
    "boundary_or_ms",
    "duration_ms",
    "moment_ms",
    "parse_time_ms",
    "whole_number",
]

LONG_MAX: Final = 2**63 - 1
"""The protocol sends times and counts as Java's long."""
UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class _NonEmptyText(click.types.StringParamType):
    """Text that is not empty; the name of a topic, a group or a sink must also be UTF-8."""

    def __init__(self, *, is_unicode: bool) -> None:
        self._is_unicode = is_unicode

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not text.strip():
            self.fail(f"{text!r} is empty; is the variable set that it came from?", param, ctx)
        if self._is_unicode and any("\ud800" <= letter <= "\udfff" for letter in text):
            self.fail(f"{text!r} is not UTF-8; a name is text", param, ctx)
        return text


NAME: Final = _NonEmptyText(is_unicode=True)
GIVEN: Final = _NonEmptyText(is_unicode=False)
"""A host, a path, a key: an empty text would mean all interfaces, or the working directory."""


class Finite(click.FloatRange):
    """`click.FloatRange` without nan, which lies in every range, and without infinity."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number", param, ctx)
        return number


def whole_number(text: str) -> int | None:
    """Parse ASCII digits; None for other text or more than a signed 64-bit field holds."""
    digits = text.lstrip("0") or text[-1:]
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        return None
    number = int(digits)
    return number if number <= LONG_MAX else None


def duration_ms(text: str, default_unit: str = "") -> int | None:
    """Parse `500ms`, `10s`, `5m`, `2h`, `1d` into ms; None for other text or more than 64 bits."""
    match = re.fullmatch(r"([0-9]{1,19})\s*(ms|s|m|h|d)?", text)
    if match is None or not (unit := match[2] or default_unit):
        return None
    milliseconds = int(match[1]) * UNIT_MS[unit]
    return milliseconds if milliseconds <= LONG_MAX else None


def moment_ms(text: str) -> int | None:
    """Parse ms since 1970, or an ISO time, which is local where it names no zone; else None."""
    number = whole_number(text)
    if number is not None:
        return number
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):  # the local zone ends at the years 1 and 9999
        return None


def boundary_or_ms(text: str, option: str) -> str | int:
    """Parse `first`, `last`, a time or an age (`1h`), which become ms since 1970.

    A time without a zone is local.

    Raises:
        click.UsageError: the text is none of these; the error names ``option``.
    """
    if text in {"first", "last"}:
        return text
    moment = moment_ms(text)
    if moment is not None:
        return moment
    age_ms = duration_ms(text)
    if age_ms is None:
        raise click.UsageError(
            f"{option} {text!r} is not first, last, an age like 1h, ms since 1970 or a time like "
            "2026-01-31T12:00:00+00:00"
        )
    return max(0, round(datetime.now(UTC).timestamp() * 1000) - age_ms)


def parse_time_ms(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """A click callback: parse ms since 1970, or an ISO time (UTC where it names no zone).

    Raises:
        click.BadParameter: the value is neither.
    """
    if value is None:
        return None
    if re.fullmatch(r"-?[0-9]{5,19}", value):
        return int(value)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is not a time: write 2026-11-22, 2026-11-22T10:30, "
            "2026-11-22T10:30:00+01:00 or milliseconds since 1970"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
