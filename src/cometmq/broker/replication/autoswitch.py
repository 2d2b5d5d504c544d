"""RocketMQ's AutoSwitch HA protocol, which replica sets with a controller speak: frames and both
ends of one connection, without I/O.

::

    slave -> master, handshake   |1 int|from last file, short|learner, short|own id 8|
    slave -> master, report      |2 int|own end 8|
    master -> slave, handshake   |1 int|list bytes 4|own end 8|last epoch 4|n x (epoch 4, start 8)|
    master -> slave, transfer    |2 int|body length 4|physical offset 8|epoch 4|its start 8|
                                 |confirmed offset 8|body: bytes of the log|

The slave greets, and the master answers with the epochs of its log.  The slave cuts what its own
log has beyond the point where the two part, and its first report says from where on it wants the
log; each later one acknowledges.  A transfer crosses neither the end of a log file nor that of an
epoch.  One without a body is a heartbeat.

Source: AutoSwitchHAConnection and AutoSwitchHAClient of RocketMQ 5.4.0, and frames captured from
them (tests/golden/wire/controller-5.4.0/autoswitch).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from cometmq.broker.replication.frames import TRANSFER_BODY_BYTES_MAX
from cometmq.broker.replication.links import MasterLink
from cometmq.codec.epoch_file import Epoch
from cometmq.core.replication.epochs import EpochList
from cometmq.errors import RemoteProtocolError

__all__ = ["AutoSwitchMasterLink", "AutoSwitchSlaveLink", "encode_greeting"]

_STATE: Final = struct.Struct(">i")
_GREETING: Final = struct.Struct(">ihhq")
_REPORT: Final = struct.Struct(">iq")
_EPOCHS_HEAD: Final = struct.Struct(">iiqi")
_EPOCH: Final = struct.Struct(">iq")
_TRANSFER: Final = struct.Struct(">iiqiqq")
_HANDSHAKE: Final = 1
_TRANSFERRING: Final = 2
FREQUENT_MS: Final = 1000
EPOCHS_MAX: Final = 1000
"""A Java slave's buffer takes no more (12,000 bytes)."""


def encode_greeting(broker_id: int) -> bytes:
    """Return a slave's handshake."""
    return _GREETING.pack(_HANDSHAKE, 0, 0, broker_id)


class AutoSwitchMasterLink(MasterLink):
    """The master's end of a connection.

    Args:
        file_bytes: size of a log file, over whose end no transfer reaches.
        body_bytes_max: the longest body of a transfer (haTransferBatchSize).
        epochs: the epochs of the master's log.
        confirmed: up to where every in-sync replica has the log.
    """

    def __init__(
        self,
        file_bytes: int,
        body_bytes_max: int,
        now_ms: int,
        epochs: EpochList,
        confirmed: Callable[[], int],
    ) -> None:
        super().__init__(file_bytes, body_bytes_max, now_ms)
        self._epochs = epochs
        self._confirmed = confirmed
        self._partial = b""
        self.broker_id: int | None = None
        """Who the slave is; None before its handshake."""
        self.answer = b""
        """The handshake to send; taken by `take_answer`."""
        self.is_frequent = False
        """Whether the slave reports though nothing has changed, as CometMQ's do twice a second."""
        self.sent_confirmed = -1
        """The confirmed offset that was sent last."""

    def receive(self, data: bytes, end: int, now_ms: int) -> None:
        """Take a handshake and reports; `end` is the physical offset at which the log ends now.

        Raises:
            RemoteProtocolError: the bytes are none of both, or an end that this slave cannot have.
        """
        silent_ms, self.read_ms = now_ms - self.read_ms, now_ms
        acknowledged = self.acknowledged
        buffer = self._partial + data
        at = 0
        while len(buffer) - at >= _STATE.size:
            (state,) = _STATE.unpack_from(buffer, at)
            kind = {_HANDSHAKE: _GREETING, _TRANSFERRING: _REPORT}.get(state)
            if kind is None:
                raise RemoteProtocolError(f"state {state} is neither a handshake nor a report")
            if len(buffer) - at < kind.size:
                break
            if kind is _GREETING:
                _, _, is_learner, broker_id = _GREETING.unpack_from(buffer, at)
                self._greeted(-1 if is_learner else broker_id, end)
            else:
                self._reported(_REPORT.unpack_from(buffer, at)[1])
            at += kind.size
        self._partial = buffer[at:]
        if 0 <= acknowledged == self.acknowledged and silent_ms <= FREQUENT_MS:
            self.is_frequent = True

    def _greeted(self, broker_id: int, end: int) -> None:
        """Answer a handshake; a learner, which nobody waits for, has the id -1."""
        if self.broker_id is not None:
            # Java's slave greets again when the answer is late.
            return
        self.broker_id = broker_id
        entries = self._epochs.entries[-EPOCHS_MAX:]
        head = _EPOCHS_HEAD.pack(_HANDSHAKE, _EPOCH.size * len(entries), end, self._epochs.last)
        self.answer = head + b"".join(_EPOCH.pack(*epoch) for epoch in entries)

    def _reported(self, reported: int) -> None:
        if self.broker_id is None:
            raise RemoteProtocolError(f"a report of {reported} before the handshake")
        self._take_report(reported, reported)

    def take_answer(self) -> bytes:
        """Return what is to be sent at once."""
        answer, self.answer = self.answer, b""
        return answer

    def next_span(self, end: int) -> tuple[int, int]:
        """Return physical offset and length of what to send next; length 0 for nothing."""
        found = self._epochs.at(self.sent) if self.sent >= 0 else None
        if found is not None and found[1] is not None:
            end = min(end, found[1])
        return super().next_span(end)

    def heartbeat(self, now_ms: int) -> bytes:
        """Return a transfer without a body; nothing before the slave's first report."""
        return b"" if self.sent < 0 else super().heartbeat(now_ms)

    def _head(self, body_bytes: int) -> bytes:
        found = self._epochs.at(self.sent)
        number, start = found[0] if found is not None else Epoch(self._epochs.last, 0)
        self.sent_confirmed = self._confirmed()
        return _TRANSFER.pack(
            _TRANSFERRING, body_bytes, self.sent, number, start, self.sent_confirmed
        )


class AutoSwitchSlaveLink:
    """The slave's end of a connection, from its handshake on."""

    def __init__(self, now_ms: int) -> None:
        self._buffer = b""
        self._missing = 0
        self._reported = -1
        self.expected = -1
        """Physical offset of the next byte; -1 before `begin`."""
        self.epochs: EpochList | None = None
        """The epochs of the master's log, once it has sent them."""
        self.master_end = 0
        self.confirmed = 0
        """Up to where every in-sync replica has the log, as the master said last."""
        self.read_ms = self.written_ms = now_ms

    def begin(self, expected: int) -> None:
        """Take the log from this physical offset on."""
        self.expected = expected

    def receive(self, data: bytes, now_ms: int) -> list[bytes]:
        """Return the bytes that follow those before.

        Raises:
            RemoteProtocolError: these are no frames of a master, or a transfer begins elsewhere.
        """
        self.read_ms = now_ms
        buffer = self._buffer + data if self._buffer else data
        bodies: list[bytes] = []
        at = 0
        while at < len(buffer):
            if self._missing:
                body = buffer[at : at + self._missing]
                bodies.append(body)
                self.expected += len(body)
                self._missing -= len(body)
                at += len(body)
                continue
            size = self._read_head(buffer, at)
            if not size:
                break
            at += size
        self._buffer = buffer[at:]
        self.master_end = max(self.master_end, self.expected)
        return bodies

    def _read_head(self, buffer: bytes, at: int) -> int:
        """Read a whole handshake or the head of a transfer; return its bytes, 0: not all here."""
        if len(buffer) - at < _EPOCHS_HEAD.size:
            return 0
        (state,) = _STATE.unpack_from(buffer, at)
        if state == _HANDSHAKE and self.epochs is None:
            _, list_bytes, self.master_end, _ = _EPOCHS_HEAD.unpack_from(buffer, at)
            if not 0 <= list_bytes <= _EPOCH.size * EPOCHS_MAX:
                raise RemoteProtocolError(f"a list of epochs of {list_bytes} bytes is no list")
            whole = _EPOCHS_HEAD.size + int(list_bytes)
            if len(buffer) - at < whole:
                return 0
            raw = buffer[at + _EPOCHS_HEAD.size : at + whole]
            self.epochs = EpochList([Epoch(*pair) for pair in _EPOCH.iter_unpack(raw)])
            return whole
        if state != _TRANSFERRING:
            raise RemoteProtocolError(
                f"state {state} where a transfer is due: this is no master of a replica set"
            )
        if len(buffer) - at < _TRANSFER.size:
            return 0
        size: int
        _, size, offset, number, start, confirmed = _TRANSFER.unpack_from(buffer, at)
        if not 0 <= size <= TRANSFER_BODY_BYTES_MAX:
            raise RemoteProtocolError(f"a transfer from {offset} says {size} bytes")
        if offset != self.expected:
            raise RemoteProtocolError(
                f"the master sends from physical offset {offset} on, and {self.expected} comes next"
                " here"
            )
        if size and self.epochs is not None and Epoch(number, start) not in self.epochs.entries:
            raise RemoteProtocolError(
                f"the master has begun epoch {number} at {start} since the handshake"
            )
        self.confirmed, self._missing = confirmed, size
        return _TRANSFER.size

    def report(self, end: int, now_ms: int, interval_ms: int) -> bytes:
        """Return the report that is due: the end has moved, or the last one is long ago."""
        if self.expected < 0 or (end == self._reported and now_ms - self.written_ms < interval_ms):
            return b""
        self._reported, self.written_ms = end, now_ms
        return _REPORT.pack(_TRANSFERRING, end)
