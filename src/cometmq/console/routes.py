"""Every path of the console, and what answers it."""

from typing import Final

from cometmq.console.pages import (
    access,
    brokers,
    clients,
    dead_letters,
    groups,
    messages,
    overview,
    parked,
    sign_in,
    timers,
    topics,
    transactions,
)
from cometmq.console.visit import Endpoint

__all__ = ["ENDPOINTS"]

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    *overview.PAGES,
    *brokers.PAGES,
    *topics.PAGES,
    *groups.PAGES,
    *clients.PAGES,
    *messages.PAGES,
    *dead_letters.PAGES,
    *parked.PAGES,
    *transactions.PAGES,
    *timers.PAGES,
    *access.PAGES,
    *sign_in.PAGES,
)
