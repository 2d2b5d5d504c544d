"""A master's view of its replica set: who must have a record before it is acknowledged.

A record is acknowledged when every member of the recorded set has it, and every member of the set
that the master has proposed.  The recorded set changes here only when the controller has said so.
So whoever the controller elects from the set that it has recorded has everything that was
acknowledged.

A replica that has nearly everything is proposed, and from then on waited for; the controller is
asked when it has everything that the log had at that moment.  A member's removal is proposed when
it has been behind for too long, but never below the minimum: sends then wait for it.

Times are milliseconds of a monotonic clock, ends are physical offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["SyncState"]

TARGET_MS: Final = 100
"""A replica that has what the log had so long ago keeps up: acknowledgements take a while."""


class SyncState:
    """The set of one mastership.

    Args:
        own_id: the master's id.
        lag_ms_max: so long a member may be behind.
        member_count_min: no removal is proposed that leaves fewer.
    """

    def __init__(self, own_id: int, lag_ms_max: int, member_count_min: int, now_ms: int) -> None:
        self.own_id = own_id
        self.members: frozenset[int] = frozenset({own_id})
        self.epoch = 0
        self.proposed: frozenset[int] | None = None
        self._proposed_end = 0
        self._is_asked = False
        self._lag_ms_max = lag_ms_max
        self._member_count_min = member_count_min
        self._began_ms = now_ms
        self._caught_up_ms: dict[int, int] = {}
        self._target = 0
        self._next_target = (now_ms, 0)

    def recorded(self, members: frozenset[int], epoch: int) -> None:
        """The controller has recorded this set; a proposal from an older one is settled by that."""
        if epoch < self.epoch:
            return
        if epoch > self.epoch:
            self.refused()
        self.members, self.epoch = members, epoch

    def refused(self) -> None:
        """The controller does not record the proposal, now or later."""
        self.proposed, self._is_asked = None, False

    @property
    def union(self) -> frozenset[int]:
        """Who must have a record."""
        return self.members | (self.proposed or frozenset())

    def confirmed(self, own_end: int, ends: Mapping[int, int]) -> int | None:
        """Return up to where every member has the log; None while a member is not connected.

        Args:
            ends: what each connected replica has acknowledged.
        """
        least = own_end
        for member in self.union:
            if member == self.own_id:
                continue
            end = ends.get(member)
            if end is None:
                return None
            least = min(least, end)
        return least

    def noticed(self, own_end: int, ends: Mapping[int, int], now_ms: int) -> None:
        """Note which replicas keep up."""
        sampled_ms, sample = self._next_target
        if now_ms - sampled_ms >= TARGET_MS:
            self._target, self._next_target = sample, (now_ms, own_end)
        for replica, end in ends.items():
            if end >= self._target:
                self._caught_up_ms[replica] = now_ms

    def in_sync_count(self, now_ms: int) -> int:
        """Return how many members, the master included, were not behind for too long."""
        return 1 + sum(
            self._lag_ms(member, now_ms) <= self._lag_ms_max
            for member in self.members
            if member != self.own_id
        )

    def propose(self, own_end: int, ends: Mapping[int, int], now_ms: int) -> frozenset[int] | None:
        """Return the set to ask the controller for, again while its answer is unknown; None: there
        is nothing to ask for now."""
        if self.proposed is None:
            wanted = self._wanted(ends, now_ms)
            if wanted == self.members:
                return None
            self.proposed, self._proposed_end = wanted, own_end
        joining = self.proposed - self.members
        if not self._is_asked:
            if any(replica not in ends for replica in joining):
                # Nobody was asked yet, so it may be given up.
                self.proposed = None
                return None
            if any(ends[replica] < self._proposed_end for replica in joining):
                return None
        self._is_asked = True
        return self.proposed

    def _wanted(self, ends: Mapping[int, int], now_ms: int) -> frozenset[int]:
        wanted = self.members | {replica for replica, end in ends.items() if end >= self._target}
        late = sorted(
            (
                member
                for member in self.members
                if member != self.own_id and self._lag_ms(member, now_ms) > self._lag_ms_max
            ),
            key=lambda member: -self._lag_ms(member, now_ms),
        )
        return wanted - frozenset(late[: max(0, len(wanted) - self._member_count_min)])

    def _lag_ms(self, member: int, now_ms: int) -> int:
        return now_ms - self._caught_up_ms.get(member, self._began_ms)
