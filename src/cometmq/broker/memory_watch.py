"""Refuses sends while too little memory is left: before the system ends the broker, or its clients.

Consumers go on: what they commit and take away helps.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from cometmq.broker.base.state import BrokerState
from cometmq.errors import MemoryShort

__all__ = ["MemoryWatch"]

log = logging.getLogger("cometmq.broker")

LOOK_INTERVAL_S: Final = 1.0
_EASED: Final = 1.25
"""Sends are taken again from this multiple of the limit on, so that they do not come and go."""


class MemoryWatch:
    """Looks once a second; `start`, `stop`."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._refusal: MemoryShort | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look from now on, unless the limit is 0 or the system does not say."""
        if self._state.config.free_memory_min and self._state.env.available_memory() is not None:
            self._measure()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _measure(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_INTERVAL_S, self._measure)
        self.check(self._state.env.available_memory())

    def check(self, available: int | None) -> None:
        """Refuse sends, or take them again, by what is left."""
        store, least = self._state.store, self._state.config.free_memory_min
        standing = store.standing_refusal
        if available is None:
            return
        if available < least and standing is None:
            self._refusal = MemoryShort(
                f"{available >> 20} MiB of memory are left, and freeMemoryMin={least} asks for"
                f" {least >> 20} MiB: sends are refused until there is more; stop what takes it, or"
                " give the broker a larger machine"
            )
            store.refuse_puts(self._refusal)
            log.error("%s", self._refusal)
        elif available >= least * _EASED and standing is not None and standing is self._refusal:
            self._refusal = None
            store.refuse_puts(None)
            log.warning("%d MiB of memory are left: sends are accepted again", available >> 20)
