"""What a group's attributes say about a backlog: what is dropped, and whether the newest go first.

A broker applies them to each queue of its own, among messages that no member has got yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = [
    "DROP_AGE",
    "DROP_LAG",
    "FRESH_LAG",
    "FRESH_LAG_DEFAULT",
    "FRESH_SHARE",
    "BacklogRules",
]

DROP_AGE: Final = "backlog.drop.age.ms"
DROP_LAG: Final = "backlog.drop.lag"
FRESH_SHARE: Final = "backlog.fresh.share"
FRESH_LAG: Final = "backlog.fresh.lag"
FRESH_LAG_DEFAULT: Final = 1_000
"""A consumer of RocketMQ takes as many messages of a queue at a time."""


@dataclass(frozen=True, slots=True)
class BacklogRules:
    """The rules of one group; None where there is none."""

    drop_age_ms: int | None = None
    """Messages are dropped that were stored longer ago."""
    drop_lag: int | None = None
    """Where more wait in a queue, the oldest are dropped, down to half of it."""
    fresh_share: float | None = None
    """The part of deliveries that the newest messages get while both they and older ones wait."""
    fresh_lag: int = FRESH_LAG_DEFAULT
    """Where more wait in a queue, they count as old."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be done."""
        return self.drop_age_ms is None and self.drop_lag is None and self.fresh_share is None

    @classmethod
    def of(cls, attributes: Mapping[str, str]) -> BacklogRules:
        """Read the attributes of a group, whose values were checked when they were set."""
        age, lag = attributes.get(DROP_AGE), attributes.get(DROP_LAG)
        share = attributes.get(FRESH_SHARE)
        return cls(
            None if age is None else int(age),
            None if lag is None else int(lag),
            None if share is None else int(share) / 100,
            int(attributes.get(FRESH_LAG, FRESH_LAG_DEFAULT)),
        )

    def cut_by_lag(self, begin: int, end: int) -> int:
        """Return before which offset the lag drops messages; `begin` for none.

        Args:
            begin: of the messages that no member has got.
            end: of the queue.
        """
        if self.drop_lag is None or end - begin <= self.drop_lag:
            return begin
        return end - self.drop_lag // 2

    def cut_by_freshness(self, begin: int, end: int) -> int:
        """Return before which offset messages count as old; `begin` for none."""
        if self.fresh_share is None or end - begin <= self.fresh_lag:
            return begin
        return end

    def due_copies(self, fresh_count: float) -> float:
        """Return how many old messages go with so many new ones."""
        assert self.fresh_share is not None
        return fresh_count * (1 - self.fresh_share) / self.fresh_share
