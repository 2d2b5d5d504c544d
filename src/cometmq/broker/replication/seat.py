"""What one broker of a replica set is at the moment: its id, its role, and the epochs of its log.

The owner of the broker (`replica_broker`) fills it in before the broker starts, and hears through
it what the broker finds out: another role, a log that has to be cut.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from cometmq.core.replication.epochs import EpochList
from cometmq.wire.body.controller import SyncStateSet
from cometmq.wire.header.controller import MasterHeader

__all__ = ["Seat"]


async def _nobody(members: frozenset[int], epoch: int) -> SyncStateSet | None:
    return None


@dataclass
class Seat:
    """One broker's place in its set."""

    broker_id: int
    epochs: EpochList
    master_epoch: int = 0
    """The epoch of the present mastership; 0 before any is known."""
    master_id: int | None = None
    master_address: str | None = None
    """``host:port`` of the master; None while there is none."""
    in_sync: SyncStateSet = field(default_factory=lambda: SyncStateSet((), 0))
    """The in-sync replicas as the controller recorded them last."""
    alter: Callable[[frozenset[int], int], Awaitable[SyncStateSet | None]] = _nobody
    """Asks the controller for other in-sync replicas, from the epoch of the known ones: gives what
    is recorded now, None where that is unknown."""
    noticed: Callable[[MasterHeader, SyncStateSet], None] = lambda header, members: None
    """Hears the controller's notices (1008)."""
    cut: Callable[[int], None] = lambda end: None
    """Hears that the log has to end at this physical offset before it follows its master."""
    save_epochs: Callable[[EpochList], None] = lambda epochs: None
    """Keeps the epochs of the log."""

    @property
    def is_master(self) -> bool:
        """Whether this broker is the master."""
        return self.master_id == self.broker_id
