"""Options as Spark hands them over: names without regard to case, values as text.

Job: refuse names that are not ours with the one that was meant, and turn text into numbers and
truth values.  It must not know what an option does.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

from cometmq.arrow.options import nearest
from cometmq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["OptionValues", "timestamp_ms"]

_TRUTH: Final = {"true": True, "false": False}
#: Of ms since 1970: one more need not fit in 64 bits.
_MS_DIGITS_MAX: Final = 18


class OptionValues:
    """A source's or sink's options, looked up by their written name.

    Args:
        given: what Spark hands over; its keys are lower-cased.
        known: every option there is, as the manual writes it.
        ignored: names that are Spark's own and may stand beside ours.
        what: the format, for error texts.
    """

    def __init__(
        self, given: Mapping[str, str], known: Iterable[str], what: str, ignored: Iterable[str] = ()
    ) -> None:
        self._values = {str(name).lower(): str(value) for name, value in given.items()}
        self._what = what
        names = tuple(known)
        folded = {name.lower() for name in (*names, *ignored)}
        unknown = sorted(name for name in self._values if name not in folded)
        if unknown:
            raise ConfigError(
                f"option {unknown[0]!r} of format {what!r} is unknown"
                f"{nearest(unknown[0], names) or '.'} The options are {', '.join(names)}"
            )

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str) -> str | None:
        """The value as it came; None where it was not given or is empty."""
        return self._values.get(name.lower(), "").strip() or None

    def need(self, name: str, example: str) -> str:
        """The value, or an error that shows how to give one."""
        value = self.text(name)
        if value is None:
            raise ConfigError(
                f"format {self._what!r} needs option {name}, for example"
                f' .option("{name}", "{example}")'
            )
        return value

    def truth(self, name: str, default: bool) -> bool:
        """`true` or `false`."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in _TRUTH:
            raise ConfigError(f"option {name} is {value!r}: expected true or false")
        return _TRUTH[value.lower()]

    def number(self, name: str, default: int | None, *, least: int = 1) -> int | None:
        """A whole number of at least `least`."""
        value = self.text(name)
        if value is None:
            return default
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if number < least:
            raise ConfigError(
                f"option {name} is {value!r}: expected a whole number of at least {least}"
            )
        return number


def timestamp_ms(name: str, value: str | None) -> int | None:
    """A time option: ms since 1970, or ISO 8601 with a time zone."""
    if value is None:
        return None
    digits = value.removeprefix("-")
    if digits.isascii() and digits.isdigit():
        if len(digits) > _MS_DIGITS_MAX:
            raise ConfigError(f"option {name} is {value}: no time has so many ms since 1970")
        return int(value)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ConfigError(
            f"option {name} is {value!r}: expected ms since 1970, or a time with its zone"
            " such as 2026-01-31T12:00:00Z"
        )
    return int(moment.timestamp() * 1000)
