"""The base of kinds whose handlers answer: done, or again later, as the patterns' handlers do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final

from cometmq.client.handling.handlers import RetryLater
from cometmq.client.message.message import ReceivedMessage
from cometmq.model.names import retry_topic
from cometmq.testing.simulate.broker_part import DELAY_LEVELS, Group
from cometmq.testing.simulate.workloads.base import Workload, position_of

if TYPE_CHECKING:
    from cometmq.testing.simulate.cluster import Cluster

__all__ = ["AnsweringWorkload", "MailAway"]

_LEVELS_MS: Final = tuple(int(level[:-1]) * 1000 for level in DELAY_LEVELS.split())
_FIRST_LEVEL: Final = 3
"""The delay level of the first try after a failure (``3 + reconsumeTimes`` of RocketMQ)."""
LATE_MS: Final = 5_000
"""How long after its delay a message may come again."""


class MailAway(Exception):
    """The mail server is away, as handlers say now and then."""


class AnsweringWorkload(Workload):
    """Has groups whose messages come again; a subclass waits for them until `awaited`."""

    _again_ms: int = 0
    """Until when a message may come again whose handler has failed."""

    def __init__(self, cluster: Cluster, steps: int) -> None:
        super().__init__(cluster, steps)
        self.handlers: Counter[tuple[str, str, int]] = Counter()
        """By key, machine and its life: the handlers that run.  Two copies of a message have one
        key, so a claim that is there when one handler has failed may be the other's."""

    def watch_answers(self, name: str, *, is_sent: bool = True) -> Group:
        """Follow a group that shares queues, and what comes again to it.

        Args:
            is_sent: as for `Cluster.watch`.
        """
        self.cluster.watch(retry_topic(name), is_sent=is_sent)
        return self.cluster.watch_group(name)

    async def take_answer(
        self, group: Group, message: ReceivedMessage, answering: Awaitable[Any]
    ) -> None:
        """Wait for a handler's answer, and raise one that asks for another try."""
        try:
            answer = await answering
            if isinstance(answer, Exception):
                raise answer
        except Exception as error:
            group.decided.add(position_of(message))
            level = min(_FIRST_LEVEL + message.reconsume_times, len(_LEVELS_MS))
            delay_ms = _LEVELS_MS[level - 1]
            if isinstance(error, RetryLater) and error.delay_ms is not None:
                delay_ms = error.delay_ms
            self._again_ms = max(self._again_ms, self.now_ms() + delay_ms + LATE_MS)
            raise

    def awaited(self) -> str | None:
        """Return why nobody may say that all is handled, None if nothing comes again."""
        return "messages come again" if self.now_ms() < self._again_ms else None
