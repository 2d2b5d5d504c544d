"""The watchdog of a consumer: restarts pull loops without progress, and measures rates.

``core.consume.watchdog`` judges a queue; this module measures it and acts on the verdict.  The
watchdog asks the brokers for their end offsets itself, because a dead pull loop would not.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from cometmq.client.queue.assignment import Assignment
from cometmq.core.consume.watchdog import QueueHealth, QueueSample
from cometmq.errors import CometError
from cometmq.model import MessageQueue

__all__ = ["WATCH_INTERVAL_S", "WATCH_PATIENCE_MS", "Watchdog", "consume_rates"]

log = logging.getLogger("cometmq.client")

WATCH_INTERVAL_S: Final = 10.0
WATCH_PATIENCE_MS: Final = 60_000
"""Far longer than the longest held pull (15 or 20 s, plus the broker's sweep every 5 s)."""


class Watchdog:
    """Watches the assigned queues of one consumer.

    Args:
        group: the consumer group, for the log.
        assignments: the consumer's queues; the consumer changes this mapping as it runs.
        broker_end: asks a queue's broker for the queue's end offset.
        is_paused: whether the program has paused a queue.
        now_ms: the wall clock.
    """

    def __init__(
        self,
        group: str,
        assignments: Mapping[MessageQueue, Assignment],
        broker_end: Callable[[MessageQueue], Awaitable[int]],
        is_paused: Callable[[MessageQueue], bool],
        now_ms: Callable[[], int],
    ) -> None:
        self._group = group
        self._assignments = assignments
        self._broker_end = broker_end
        self._is_paused = is_paused
        self._now_ms = now_ms

    async def check_all(self) -> None:
        """Compare each queue with its end at the broker, and restart the loops without progress."""
        for assignment in list(self._assignments.values()):
            await self._check(assignment)

    async def _check(self, assignment: Assignment) -> None:
        process_queue = assignment.process_queue
        loop = assignment.loop
        end = process_queue.broker_max_offset
        if loop.may_be_stuck:
            try:
                end = await self._broker_end(assignment.queue)
            except CometError as error:
                log.info("watchdog: the end of %s is unknown: %s", assignment.queue, error)
        if self._assignments.get(assignment.queue) is not assignment:
            return
        process_queue.broker_max_offset = max(end, process_queue.broker_max_offset)
        progress = QueueSample(
            process_queue.pull_offset, process_queue.count, process_queue.finished_count, end
        )
        now_ms = self._now_ms()
        if process_queue.finished_count != assignment.sampled.finished:
            process_queue.last_consume_ms = now_ms
        assignment.sampled = assignment.sample(now_ms)
        verdict = assignment.watch.judge(progress, now_ms)
        if verdict is QueueHealth.PULL_STUCK and not self._is_paused(assignment.queue):
            log.error(
                "the pull loop of group %s stood still and is restarted; %s; last error: %s",
                self._group,
                assignment.watch.describe(now_ms),
                loop.last_error or "none",
            )
            assignment.watch.restarted(now_ms)
            loop.restart()
        elif verdict is QueueHealth.HANDLERS_STUCK:
            log.warning(
                "handlers of group %s do not finish; %s; the pull loop waits: %s",
                self._group,
                assignment.watch.describe(now_ms),
                loop.hold_reason or "no",
            )
            assignment.watch.restarted(now_ms)


def consume_rates(
    assignments: Mapping[MessageQueue, Assignment], now_ms: int, started_ms: int
) -> dict[str, dict[str, Any]]:
    """Rates per topic since the watchdog's last check, in Java's spelling (``ConsumeStatus``).

    TPS values are messages a second.  ``consumeRT`` is milliseconds a message spends in the
    handler, to the resolution of the loop's clock; ``pullRT`` is milliseconds of a pull that
    brought messages.
    """
    table: dict[str, dict[str, Any]] = {}
    sums_by_topic: dict[str, list[float]] = {}
    for queue, assignment in assignments.items():
        before, now = assignment.sampled, assignment.sample(now_ms)
        seconds = max(1, now_ms - (before.at_ms or started_ms)) / 1000
        row = table.setdefault(
            queue.topic,
            {
                "consumeFailedMsgs": 0,
                "consumeFailedTPS": 0.0,
                "consumeOKTPS": 0.0,
                "consumeRT": 0.0,
                "pullRT": 0.0,
                "pullTPS": 0.0,
            },
        )
        failed, finished = now.failed - before.failed, now.finished - before.finished
        row["consumeFailedMsgs"] += now.failed
        row["consumeFailedTPS"] += failed / seconds
        row["consumeOKTPS"] += max(0, finished - failed) / seconds
        row["pullTPS"] += (now.pulled - before.pulled) / seconds
        sums = sums_by_topic.setdefault(queue.topic, [0.0, 0.0, 0.0, 0.0])
        sums[0] += now.handler_s - before.handler_s
        sums[1] += finished
        sums[2] += now.pull_s - before.pull_s
        sums[3] += now.pulls - before.pulls
    for topic, (handler_s, handled, pull_s, pulls) in sums_by_topic.items():
        table[topic]["consumeRT"] = 1000 * handler_s / handled if handled else 0.0
        table[topic]["pullRT"] = 1000 * pull_s / pulls if pulls else 0.0
    return table
