"""Which brokers of replica sets are alive, by their heartbeats, and what each said of itself."""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.core.replication.replica_set import ElectionCandidate

__all__ = ["HeardReplica", "LiveReplicas"]


@dataclass(slots=True)
class HeardReplica:
    """The last heartbeat of one broker."""

    address: str
    candidate: ElectionCandidate
    timeout_ms: int
    heard_ms: int
    connection: object
    """The connection that the heartbeat came on; None once that is closed."""


class LiveReplicas:
    """The living brokers, by broker name and id."""

    def __init__(self) -> None:
        self._heard: dict[tuple[str, int], HeardReplica] = {}

    def heard(self, broker_name: str, broker_id: int, replica: HeardReplica) -> None:
        """A heartbeat came."""
        self._heard[broker_name, broker_id] = replica

    def get(self, broker_name: str, broker_id: int) -> HeardReplica | None:
        """Return the last heartbeat of a living broker."""
        return self._heard.get((broker_name, broker_id))

    def of(self, broker_name: str) -> dict[int, HeardReplica]:
        """Return the living brokers of a set by id."""
        return {
            broker_id: replica
            for (name, broker_id), replica in self._heard.items()
            if name == broker_name
        }

    def candidates(self, broker_name: str) -> dict[int, ElectionCandidate]:
        """Return what the living brokers of a set said of themselves."""
        return {broker_id: replica.candidate for broker_id, replica in self.of(broker_name).items()}

    def disconnected(self, connection: object) -> list[tuple[str, int]]:
        """A connection is closed: return the brokers whose last heartbeat came on it."""
        lost = [key for key, replica in self._heard.items() if replica.connection is connection]
        for key in lost:
            self._heard[key].connection = None
        return lost

    def silent(self, now_ms: int) -> list[tuple[str, int]]:
        """Return the brokers that were silent for longer than their heartbeat timeout."""
        return [
            key
            for key, replica in self._heard.items()
            if now_ms - replica.heard_ms > replica.timeout_ms
        ]

    def forget(self, broker_name: str, broker_id: int) -> None:
        """A broker is dead."""
        self._heard.pop((broker_name, broker_id), None)
