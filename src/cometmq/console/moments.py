"""Times as visitors write them."""

from __future__ import annotations

from datetime import UTC, datetime

from cometmq.errors import ConfigError

__all__ = ["moment_of"]


def moment_of(text: str) -> int:
    """A time as ms since 1970: ISO (UTC where it names no zone), or ms.

    Raises:
        ConfigError: the text is neither.
    """
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{text!r:.60} is no time: 2026-01-31T12:00, which is UTC, or ms since 1970"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
