"""Both ends of one HA connection without I/O: bytes in, decisions out.

`MasterLink` knows what a slave has asked for, got and acknowledged.  `SlaveLink` knows which byte
of the log comes next and which report is due.
"""

from __future__ import annotations

from cometmq.broker.replication.frames import REPORT, TRANSFER_HEAD, ReportReader, TransferReader
from cometmq.errors import RemoteProtocolError

__all__ = ["MasterLink", "SlaveLink"]


class MasterLink:
    """The master's end of a connection.

    Args:
        file_bytes: size of a log file, over whose end no transfer reaches.
        body_bytes_max: the longest body of a transfer (haTransferBatchSize).
    """

    def __init__(self, file_bytes: int, body_bytes_max: int, now_ms: int) -> None:
        self._reader = ReportReader()
        self._file_bytes = file_bytes
        self._body_bytes_max = body_bytes_max
        self.requested = -1
        """What the slave asked for with its first report, -1 before."""
        self.sent = -1
        """Physical offset of the next byte to send, -1 before the first report."""
        self.acknowledged = -1
        """The slave has everything below this physical offset, by its last report; -1 before."""
        self.read_ms = self.written_ms = now_ms
        self.bytes_a_second = 0
        self._measured = (now_ms, 0)
        self._sent_bytes = 0

    def measure(self, now_ms: int) -> None:
        """Compute the rate since the last call."""
        before_ms, before_bytes = self._measured
        if now_ms > before_ms:
            self.bytes_a_second = (self._sent_bytes - before_bytes) * 1000 // (now_ms - before_ms)
        self._measured = now_ms, self._sent_bytes

    def receive(self, data: bytes, end: int, now_ms: int) -> None:
        """Take reports; `end` is the physical offset at which the log ends now.

        Raises:
            RemoteProtocolError: a report is no physical offset that this slave can have.
        """
        self.read_ms = now_ms
        for reported in self._reader.feed(data):
            # A slave without a log gets the last file only, as from RocketMQ.
            self._take_report(reported, reported or end - end % self._file_bytes)

    def _take_report(self, reported: int, start: int) -> None:
        """Note what the slave has; after its first report the log is sent from `start` on."""
        if self.sent < 0:
            if reported < 0:
                raise RemoteProtocolError(f"a first report of {reported} is no log's end")
            self.requested, self.sent = reported, start
        elif not 0 <= reported <= self.sent:
            raise RemoteProtocolError(
                f"a report of {reported}, but only {self.sent} bytes of the log were sent"
            )
        self.acknowledged = reported

    def next_span(self, end: int) -> tuple[int, int]:
        """Return physical offset and length of what to send next; length 0 for nothing."""
        if self.sent < 0 or self.sent >= end:
            return self.sent, 0
        file_end = self.sent - self.sent % self._file_bytes + self._file_bytes
        return self.sent, min(end, file_end) - self.sent

    def encode(self, data: memoryview, now_ms: int) -> list[bytes | memoryview]:
        """Return the transfers of these bytes, which are the next ones; count them as sent."""
        buffers: list[bytes | memoryview] = []
        step = self._body_bytes_max
        for at in range(0, len(data), step):
            body = data[at : at + step]
            buffers += (self._head(len(body)), body)
            self.sent += len(body)
        self._sent_bytes += len(data)
        self.written_ms = now_ms
        return buffers

    def heartbeat(self, now_ms: int) -> bytes:
        """Return a transfer without a body."""
        self.written_ms = now_ms
        return self._head(0)

    def _head(self, body_bytes: int) -> bytes:
        """Return what stands before the next body."""
        return TRANSFER_HEAD.pack(max(self.sent, 0), body_bytes)


class SlaveLink:
    """The slave's end of a connection.

    Args:
        expected: physical offset of the next byte; what the first report asks for.
    """

    def __init__(self, expected: int, now_ms: int) -> None:
        self._reader = TransferReader()
        self.expected = expected
        self._reported = -1
        self.read_ms = self.written_ms = now_ms

    def receive(self, data: bytes, now_ms: int) -> list[bytes]:
        """Return the bytes that follow those before.

        Raises:
            RemoteProtocolError: a transfer begins elsewhere.
        """
        self.read_ms = now_ms
        bodies: list[bytes] = []
        for offset, body in self._reader.feed(data):
            if offset != self.expected:
                raise RemoteProtocolError(
                    f"the master sends from physical offset {offset} on, and {self.expected} comes"
                    " next here"
                )
            self.expected += len(body)
            if body:
                bodies.append(body)
        return bodies

    def report(self, end: int, now_ms: int, interval_ms: int) -> bytes:
        """Return the report that is due: the end has moved, or the last one is long ago."""
        if end == self._reported and now_ms - self.written_ms < interval_ms:
            return b""
        self._reported, self.written_ms = end, now_ms
        return REPORT.pack(end)
