"""Requests of our own about a broker's commit log: its bytes, and the digests of its files.

READ_LOG_RANGE 31022: ``offset`` (a physical offset) and ``length``.  Answer: the bytes as the body;
at most `LENGTH_MAX`, and none that are not flushed yet.  For other ranges SYSTEM_ERROR, with the
range that the log has.

LOG_DIGEST 31021: ``offset``, at which a log file begins.  Answer: the CRC-32 of each block of 1 MiB
of the file, big-endian, as they were when it was sealed; no body while the file has no digest.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from cometmq.wire.header.header import Header, Int32, Int64, wire_names

__all__ = ["LENGTH_MAX", "LogDigestHeader", "LogRangeCode", "ReadLogRangeHeader"]

LENGTH_MAX: Final = 1 << 20


class LogRangeCode(IntEnum):
    """The request codes."""

    LOG_DIGEST = 31021
    READ_LOG_RANGE = 31022


class ReadLogRangeHeader(Header, rename=wire_names(physical_offset="offset")):
    """Which bytes of the log."""

    physical_offset: Int64
    length: Int32


class LogDigestHeader(Header, rename=wire_names(physical_offset="offset")):
    """Which file of the log."""

    physical_offset: Int64
