"""Options as Spark passes them: names in any case, values as text.

Unknown names are refused with the nearest known name; text becomes numbers and truth values.
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
#: A longer number of ms since 1970 may not fit into 64 bits.
_MS_DIGITS_MAX: Final = 18


class OptionValues:
    """The options of a source or sink by the names that the manual uses.

    Args:
        options: the options from Spark, with lower-case names.
        allowed: the name of every option, as the manual writes it.
        format_name: the format, for error texts.
        ignored: options of Spark itself, which may stand beside ours.

    Raises:
        ConfigError: an option is unknown.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        allowed: Iterable[str],
        format_name: str,
        ignored: Iterable[str] = (),
    ) -> None:
        self._values = {str(name).lower(): str(value) for name, value in options.items()}
        self._format_name = format_name
        names = tuple(allowed)
        folded = {name.lower() for name in (*names, *ignored)}
        unknown = sorted(name for name in self._values if name not in folded)
        if unknown:
            raise ConfigError(
                f"option {unknown[0]!r} of format {format_name!r} is unknown"
                f"{nearest(unknown[0], names) or '.'} The options are {', '.join(names)}"
            )

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str) -> str | None:
        """The value; None where the option is missing or empty."""
        return self._values.get(name.lower(), "").strip() or None

    def need(self, name: str, example: str) -> str:
        """The value of an option that is required.

        Raises:
            ConfigError: it is missing; the text shows an example.
        """
        value = self.text(name)
        if value is None:
            raise ConfigError(
                f"format {self._format_name!r} needs option {name}, for example"
                f' .option("{name}", "{example}")'
            )
        return value

    def truth(self, name: str, default: bool) -> bool:
        """The value `true` or `false`.

        Raises:
            ConfigError: it is neither.
        """
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in _TRUTH:
            raise ConfigError(f"option {name} is {value!r}: expected true or false")
        return _TRUTH[value.lower()]

    def number(self, name: str, default: int | None, *, least: int = 1) -> int | None:
        """A whole number of at least `least`.

        Raises:
            ConfigError: it is none.
        """
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
    """A time option: ms since 1970, or ISO 8601 with a time zone.

    Raises:
        ConfigError: the value is neither.
    """
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
