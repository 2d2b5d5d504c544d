"""Compares the digests of sealed log files with the master's, and repairs what rots here.

Once in its life a sealed file is compared: equal digests prove that the copy was exact.  Unequal
ones mean that memory or a disk has changed bytes before one of the two was sealed; then nobody
knows from the digests which one, so the blocks are named and nothing is changed.

A block that rots later does not have its digest any more.  The master's bytes, if they have this
digest, are written in its stead, whatever the master's own digest is.
"""

from __future__ import annotations

import logging
import struct
from typing import Final

from cometmq.broker.base.state import BrokerState
from cometmq.errors import RemoteError, ResponseCode, remote_error
from cometmq.net.channel import ChannelPool
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.extensions.log_range import LogDigestHeader, LogRangeCode, ReadLogRangeHeader

__all__ = ["SealComparer"]

log = logging.getLogger("cometmq.broker")

ASK_TIMEOUT_MS: Final = 5000
FILES_A_TURN: Final = 16
"""A new slave has many sealed files at once; its other tables are not to wait for all of them."""


class SealComparer:
    """Looks at one slave's sealed log files beside its master's."""

    def __init__(self, state: BrokerState, pool: ChannelPool) -> None:
        self._state = state
        self._pool = pool
        self.compared: set[int] = set()
        """Physical offsets at which the log files begin that were compared."""
        self._master_without_digests: str | None = None
        """RocketMQ's master has none."""

    async def compare(self, master: str) -> None:
        """Compare files that the master has sealed too, and repair rotten blocks.

        Raises:
            CometError: the master does not answer.
        """
        scrubber = self._state.store.scrubber
        if master == self._master_without_digests:
            return
        waiting = [start for start in scrubber.sealed if start not in self.compared]
        for start in waiting[:FILES_A_TURN]:
            request = RemotingCommand.request(
                LogRangeCode.LOG_DIGEST, LogDigestHeader(start).to_ext()
            )
            try:
                body = await self._ask(master, request)
            except RemoteError as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise
                self._master_without_digests = master
                return
            if body:
                self.compared.add(start)
                theirs = struct.unpack(f">{len(body) // 4}I", body)
                scrubber.differs(start, theirs, master)
        for block in list(scrubber.rotten.values()):
            request = RemotingCommand.request(
                LogRangeCode.READ_LOG_RANGE,
                ReadLogRangeHeader(block.physical_offset, block.size).to_ext(),
            )
            good = await self._ask(master, request)
            scrubber.put_right(block, good, self._state.env.clock.now_ms())

    async def _ask(self, master: str, request: RemotingCommand) -> bytes:
        channel = await self._pool.get(master)
        answer = await channel.request(request, ASK_TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            raise remote_error(answer.code, answer.remark)
        return bytes(answer.body)
