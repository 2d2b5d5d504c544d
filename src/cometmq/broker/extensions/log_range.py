"""READ_LOG_RANGE and LOG_DIGEST: for whoever compares or repairs another copy of the log."""

from __future__ import annotations

import struct

from cometmq.broker.base.state import BrokerState, Refusal, answer, in_worker
from cometmq.errors import ResponseCode
from cometmq.net.server import ServerConnection
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.extensions.log_range import LENGTH_MAX, LogDigestHeader, ReadLogRangeHeader

__all__ = ["LogRangeProcessor"]


class LogRangeProcessor:
    """The processor of codes 31021 and 31022."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def read(self, request: RemotingCommand, connection: ServerConnection, now_ms: int) -> None:
        """Serve READ_LOG_RANGE (31022).

        Raises:
            Refusal: the log does not have the range.
        """
        header = ReadLogRangeHeader.from_command(request)
        store = self._state.store
        start, end = header.physical_offset, header.physical_offset + header.length
        first, last = store.min_physical_offset, store.flushed_offset
        if not (first <= start < end <= last and header.length <= LENGTH_MAX):
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"the range {start} to {end} is not in the flushed log, which has {first} to"
                f" {last}; one request reads at most {LENGTH_MAX} bytes",
            )
        in_worker(
            self._state,
            request,
            connection,
            lambda: store.log_bytes(start, header.length),
            lambda raw: answer(request, body=raw),
        )

    def digest(self, request: RemotingCommand, connection: ServerConnection, now_ms: int) -> bytes:
        """Serve LOG_DIGEST (31021)."""
        header = LogDigestHeader.from_command(request)
        crcs = self._state.store.scrubber.sealed_crcs(header.physical_offset)
        return answer(request, body=struct.pack(f">{len(crcs)}I", *crcs))
