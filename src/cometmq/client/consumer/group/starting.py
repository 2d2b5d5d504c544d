"""Where a group begins that has no stored offset, as users write it.

Job: turn ``"first"``, ``"last"``, a time or RocketMQ's own enum into (enum, time).
Must not: ask a broker.
"""

from datetime import datetime
from typing import Final, TypeAlias

from cometmq.client.base.arguments import check_count
from cometmq.errors import ConfigError, ConfigTypeError
from cometmq.model import ConsumeFromWhere

__all__ = ["StartFrom", "consume_from_where"]

StartFrom: TypeAlias = str | int | datetime | ConsumeFromWhere
"""``"last"``, ``"first"``, ms since 1970, an aware datetime, or a `ConsumeFromWhere`."""

_WORDS: Final = {
    "last": ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    "first": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    "timestamp": ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
}


def consume_from_where(start: StartFrom) -> tuple[ConsumeFromWhere, int | None]:
    """The enum and, for a time, ms since 1970.

    Raises:
        ConfigError: an unknown word, or a datetime without time zone.
    """
    if isinstance(start, ConsumeFromWhere):
        return start, None
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ConfigError(f"consume_from={start!r} has no time zone; use an aware datetime")
        return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, int(start.timestamp() * 1000)
    if isinstance(start, int) and not isinstance(start, bool):
        check_count("consume_from", start, 0, 2**63 - 1)
        return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, start
    known = _WORDS.get(start.lower()) if isinstance(start, str) else None
    if known is None:
        error = ConfigError if isinstance(start, str) else ConfigTypeError
        raise error(
            f"consume_from={start!r} is unknown; give {', '.join(_WORDS)}, milliseconds since "
            "1970 or an aware datetime"
        )
    return known, None
