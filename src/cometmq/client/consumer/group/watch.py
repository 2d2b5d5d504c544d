"""The watchdog's look at one queue, and the rates that operators ask for.

Job: measure, compare (``core.watchdog`` judges), log with numbers, restart a dead pull loop.
Must not: decide what is dead.
"""

import logging
from typing import TYPE_CHECKING, Any

from cometmq.core.consume.watchdog import Progress, Verdict
from cometmq.errors import CometError

if TYPE_CHECKING:
    from cometmq.client.consumer.group.group_consumer import GroupConsumer
    from cometmq.client.queue.assignment import Assignment

__all__ = ["status_table", "watch_queue"]

log = logging.getLogger("cometmq.client")


async def watch_queue(consumer: "GroupConsumer", assignment: "Assignment") -> None:
    """One look at a queue; the broker is asked for its end, since a dead loop would not."""
    process_queue = assignment.process_queue
    loop = assignment.loop
    end = process_queue.broker_max_offset
    if not loop.is_stopped and loop.held_because is None:
        try:
            end = await consumer.broker_end(assignment.queue)
        except CometError as error:
            log.info("watchdog: the end of %s is unknown: %s", assignment.queue, error)
    if consumer.assignments.get(assignment.queue) is not assignment:
        return
    process_queue.broker_max_offset = max(end, process_queue.broker_max_offset)
    progress = Progress(
        process_queue.pull_offset, process_queue.count, process_queue.finished_count, end
    )
    now_ms = consumer.now_ms()
    if process_queue.finished_count != assignment.sampled.finished:
        process_queue.last_consume_ms = now_ms
    assignment.sampled = assignment.sample(now_ms)
    verdict = assignment.watch.look(progress, now_ms)
    if verdict is Verdict.PULL_STUCK and not consumer.is_paused(assignment):
        log.error(
            "the pull loop of group %s stood still and is restarted; %s; last error: %s",
            consumer.group,
            assignment.watch.describe(now_ms),
            loop.last_error or "none",
        )
        assignment.watch.restarted(now_ms)
        loop.restart()
    elif verdict is Verdict.HANDLERS_STUCK:
        log.warning(
            "handlers of group %s do not finish; %s; held back: %s",
            consumer.group,
            assignment.watch.describe(now_ms),
            loop.held_because or "no",
        )
        assignment.watch.restarted(now_ms)


def status_table(consumer: "GroupConsumer") -> dict[str, dict[str, Any]]:
    """Rates per topic since the last look, in Java's spelling (``ConsumeStatus``).

    Rates are messages a second; the RTs are milliseconds a message in the handler (to the
    resolution of the loop's clock) and milliseconds a pull that brought messages.
    """
    now_ms = consumer.now_ms()
    table: dict[str, dict[str, Any]] = {}
    work: dict[str, list[float]] = {}
    for queue, assignment in consumer.assignments.items():
        before, now = assignment.sampled, assignment.sample(now_ms)
        seconds = max(1, now_ms - (before.at_ms or consumer.started_ms)) / 1000
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
        failed, done = now.failed - before.failed, now.finished - before.finished
        row["consumeFailedMsgs"] += now.failed
        row["consumeFailedTPS"] += failed / seconds
        row["consumeOKTPS"] += max(0, done - failed) / seconds
        row["pullTPS"] += (now.pulled - before.pulled) / seconds
        sums = work.setdefault(queue.topic, [0.0, 0.0, 0.0, 0.0])
        sums[0] += now.handler_s - before.handler_s
        sums[1] += done
        sums[2] += now.pull_s - before.pull_s
        sums[3] += now.pulls - before.pulls
    for topic, (handler_s, handled, pull_s, pulls) in work.items():
        table[topic]["consumeRT"] = 1000 * handler_s / handled if handled else 0.0
        table[topic]["pullRT"] = 1000 * pull_s / pulls if pulls else 0.0
    return table
