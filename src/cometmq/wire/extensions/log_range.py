"""READ_LOG_RANGE 31022, a request of our own: bytes of a broker's commit log.

Request: ``offset`` (a physical offset) and ``length``.  Answer: the bytes as the body; at most
`LENGTH_MAX`, and none that are not flushed yet.  For other ranges SYSTEM_ERROR, with the range that
the log has.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from cometmq.wire.header.header import Header, Int32, Int64, wire_names

__all__ = ["LENGTH_MAX", "LogRangeCode", "ReadLogRangeHeader"]

LENGTH_MAX: Final = 1 << 20


class LogRangeCode(IntEnum):
    """The request code."""

    READ_LOG_RANGE = 31022


class ReadLogRangeHeader(Header, rename=wire_names(physical_offset="offset")):
    """Which bytes of the log."""

    physical_offset: Int64
    length: Int32
