"""What one broker of a replica set is at the moment: its id, its role, and the epochs of its log.

The owner of the broker (`replica_broker`) fills it in before the broker starts, and hears through
it what the broker finds out: another role, a log that has to be cut.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from cometmq.core.replication.epochs import EpochList
from cometmq.errors import ControllerError
from cometmq.wire.body.controller import SyncStateSet
from cometmq.wire.header.controller import MasterHeader

__all__ = ["Seat"]


async def _nobody(members: frozenset[int], epoch: int) -> SyncStateSet | None:
    return None


async def _stays(broker_id: int | None) -> MasterHeader:
    raise ControllerError("this broker has no controller, which could name another master")


async def _forgotten(epochs: EpochList) -> None:
    pass


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
    confirmed: int = 0
    """Up to where every in-sync replica is known to have the log: that is never cut."""
    alter: Callable[[frozenset[int], int], Awaitable[SyncStateSet | None]] = _nobody
    """Asks the controller for other in-sync replicas, from the epoch of the known ones: gives what
    is recorded now, None where that is unknown."""
    noticed: Callable[[MasterHeader, SyncStateSet], None] = lambda header, members: None
    """Hears the controller's notices (1008)."""
    step_down: Callable[[int | None], Awaitable[MasterHeader]] = _stays
    """Hands the mastership over, to the replica with this id."""
    cut: Callable[[int], None] = lambda end: None
    """Hears that the log has to end at this physical offset before it follows its master; 0 stands
    for a log that has to begin anew."""
    save_epochs: Callable[[EpochList], Awaitable[None]] = _forgotten
    """Keeps the epochs of the log, before anything of them is received."""

    def confirmed_in(self, log_end: int) -> int:
        """Return up to where a log with this end is known to be that of every master to come.

        A master has begun its epoch as the only in-sync replica, so what was before stays.
        """
        entries = self.epochs.up_to(log_end).entries
        return max(self.confirmed, entries[-1].start if entries else 0)

    @property
    def is_master(self) -> bool:
        """Whether this broker is the master."""
        return self.master_id == self.broker_id
