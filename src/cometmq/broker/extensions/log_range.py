"""READ_LOG_RANGE: gives bytes of the log to a tool that repairs another copy of it."""

from __future__ import annotations

from cometmq.broker.base.state import BrokerState, Refusal, answer, in_worker
from cometmq.errors import ResponseCode
from cometmq.net.server import ServerConnection
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.extensions.log_range import LENGTH_MAX, ReadLogRangeHeader

__all__ = ["LogRangeProcessor"]


class LogRangeProcessor:
    """The processor of code 31022."""

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
