"""Frames of RocketMQ's plain HA protocol.

::

    slave -> master, a report      |own end 8|
    master -> slave, a transfer    |physical offset 8|body length 4|body: bytes of the log|

There is no greeting.  The first report asks for the log from there on, each later one acknowledges.
A transfer without a body is a heartbeat.  Bodies ignore the bounds of records, and stay in one log
file.

Source: DefaultHAConnection and DefaultHAClient of RocketMQ 5.4.0, and frames captured from them.
"""

from __future__ import annotations

import struct
from typing import Final

from cometmq.errors import RemoteProtocolError

__all__ = ["REPORT", "TRANSFER_BODY_BYTES_MAX", "TRANSFER_HEAD", "ReportReader", "TransferReader"]

REPORT: Final = struct.Struct(">q")
TRANSFER_HEAD: Final = struct.Struct(">qi")
TRANSFER_BODY_BYTES_MAX: Final = (4 << 20) - TRANSFER_HEAD.size - 1
"""A Java slave reads into 4 MiB, and a frame that does not fit blocks it for ever."""


class ReportReader:
    """Reads a slave's reports."""

    def __init__(self) -> None:
        self._partial = b""

    def feed(self, data: bytes) -> list[int]:
        """Return the ends that were reported, in order."""
        data = self._partial + data
        whole_bytes = len(data) - len(data) % REPORT.size
        self._partial = data[whole_bytes:]
        return [end for (end,) in REPORT.iter_unpack(data[:whole_bytes])]


class TransferReader:
    """Reads a master's transfers; bodies are handed on as they come, not when they are whole."""

    def __init__(self) -> None:
        self._head = b""
        self._offset = 0
        self._missing = 0

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return pieces of the log with their physical offsets; a heartbeat has no bytes.

        Pieces that follow each other are one.

        Raises:
            RemoteProtocolError: a body is longer than any master sends.
        """
        pieces: list[tuple[int, bytes]] = []
        bodies: list[bytes] = []
        start = 0
        at = 0
        while at < len(data):
            if self._missing:
                body = data[at : at + self._missing]
                if not bodies:
                    start = self._offset
                elif start + sum(map(len, bodies)) != self._offset:
                    pieces.append((start, b"".join(bodies)))
                    bodies, start = [], self._offset
                bodies.append(body)
                self._offset += len(body)
                self._missing -= len(body)
                at += len(body)
                continue
            wanted = TRANSFER_HEAD.size - len(self._head)
            self._head += data[at : at + wanted]
            at += wanted
            if len(self._head) < TRANSFER_HEAD.size:
                break
            self._offset, self._missing = TRANSFER_HEAD.unpack(self._head)
            self._head = b""
            if not 0 <= self._missing <= TRANSFER_BODY_BYTES_MAX:
                raise RemoteProtocolError(
                    f"a transfer from physical offset {self._offset} says {self._missing} bytes, 0"
                    f" to {TRANSFER_BODY_BYTES_MAX} are possible: this is no master's HA port"
                )
            if not self._missing:
                if bodies:
                    pieces.append((start, b"".join(bodies)))
                    bodies = []
                pieces.append((self._offset, b""))
        if bodies:
            pieces.append((start, b"".join(bodies)))
        return pieces
