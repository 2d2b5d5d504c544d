"""The brokers that a producer avoids for a while, because their sends were slow or failed.

The table does the work of ``MQFaultStrategy`` and ``LatencyFaultToleranceImpl`` of RocketMQ 5.4.0.
It reads no clock (``now_ms`` is an argument) and probes no broker (the client does).

The latency of a send selects a pause from the table below; a failed send counts as 10,000 ms.  An
unreachable broker is avoided until a probe or a send reaches it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cometmq.core.topic.selector import RoundRobin
from cometmq.model import MessageQueue

__all__ = ["ISOLATION_LATENCY_MS", "BrokerHealth", "LatencyFaultTable", "pause_of_latency"]

LATENCY_MS_MIN: Final = (50, 100, 550, 1_800, 3_000, 5_000, 15_000)
PAUSE_MS: Final = (0, 0, 2_000, 5_000, 6_000, 10_000, 30_000)
ISOLATION_LATENCY_MS: Final = 10_000
"""What a send counts that failed on the way: the broker is left alone for 10 s."""


def pause_of_latency(latency_ms: float) -> int:
    """How long to avoid a broker, in ms, after a send that took ``latency_ms``."""
    for limit_ms, pause_ms in zip(reversed(LATENCY_MS_MIN), reversed(PAUSE_MS), strict=True):
        if latency_ms >= limit_ms:
            return pause_ms
    return 0


@dataclass(slots=True)
class BrokerHealth:
    """The measured latency of one broker name, and until when it is avoided."""

    latency_ms: float = 0.0
    available_at_ms: int = 0
    is_reachable: bool = True


class LatencyFaultTable:
    """Health by broker name, and the choice of a queue that follows from it."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self._brokers: dict[str, BrokerHealth] = {}

    def update(
        self,
        broker_name: str,
        latency_ms: float,
        now_ms: int,
        *,
        failed: bool = False,
        reachable: bool = True,
    ) -> None:
        """Record a send; a pause can grow but not shrink before it has passed."""
        if not self.enabled:
            return
        health = self._brokers.get(broker_name)
        if health is None:
            health = self._brokers[broker_name] = BrokerHealth()
        pause_ms = pause_of_latency(ISOLATION_LATENCY_MS if failed else latency_ms)
        health.latency_ms = latency_ms
        health.is_reachable = reachable
        if pause_ms > 0:
            health.available_at_ms = max(health.available_at_ms, now_ms + pause_ms)

    @property
    def has_any(self) -> bool:
        """Whether any broker has an entry; without one, `select` is a plain round robin."""
        return bool(self._brokers)

    def prune(self, now_ms: int) -> None:
        """Remove the brokers that are reachable and whose pause is over."""
        for name, health in list(self._brokers.items()):
            if health.is_reachable and now_ms >= health.available_at_ms:
                del self._brokers[name]

    def is_available(self, broker_name: str, now_ms: int) -> bool:
        """Whether the broker's pause is over; unknown brokers are available."""
        health = self._brokers.get(broker_name)
        return health is None or now_ms >= health.available_at_ms

    def is_reachable(self, broker_name: str) -> bool:
        """Whether the last try reached the broker; unknown brokers are reachable."""
        health = self._brokers.get(broker_name)
        return health is None or health.is_reachable

    def unreachable(self) -> list[str]:
        """Broker names that wait for a probe."""
        return [name for name, health in self._brokers.items() if not health.is_reachable]

    def forget(self, broker_name: str) -> None:
        """Remove a broker that left the route."""
        self._brokers.pop(broker_name, None)

    def health(self, broker_name: str) -> BrokerHealth | None:
        """The entry of a broker, for logs and tests."""
        return self._brokers.get(broker_name)

    def select(
        self,
        queues: Sequence[MessageQueue],
        turn: RoundRobin,
        now_ms: int,
        last_broker: str | None = None,
    ) -> MessageQueue | None:
        """The next queue: available and another broker, then reachable, then any at all."""
        if not self.enabled or not self._brokers:
            queue = turn.select(queues, last_broker)
        else:
            queue = turn.select(
                queues, last_broker, lambda broker_name: self.is_available(broker_name, now_ms)
            ) or turn.select(queues, last_broker, self.is_reachable)
        return queue or turn.select(queues)
