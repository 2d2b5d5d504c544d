"""Skips messages by the rules of groups and for operators, and drives the copying.

Once a second the rules are applied to each queue.  What is skipped begins behind what members have
got since this broker's start; a queue from which nobody has pulled since then waits.  Its range is
written first: until then pulls of the queue wait, and if it cannot be written nothing is skipped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from cometmq.broker.backlog.copying import BacklogCopier
from cometmq.broker.backlog.reading import obstacle, queues_of, retry_ends, unread
from cometmq.core.group.backlog_rules import BacklogRules
from cometmq.core.group.skipped_ranges import SkippedRange, SkipReason
from cometmq.errors import StoreError
from cometmq.model import MessageQueue
from cometmq.model.names import retry_topic

if TYPE_CHECKING:
    from cometmq.broker.base.state import BrokerState

__all__ = ["BacklogService"]

log = logging.getLogger("cometmq.broker")

TICK_S: Final = 1.0
AGE_STEPS: Final = 10
"""Messages are dropped up to a tenth of the age late, so that ranges are few."""
AGE_STEP_MS_MAX: Final = 60_000
PASSED_MS: Final = 60_000
"""For so long a member that has lost a queue may still commit there, and send the group back."""


class BacklogService:
    """The rules and copies of one broker."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.copier = BacklogCopier(state, self.rules_of, self.soon)
        self._rules: dict[str, BacklogRules] = {}
        self._rules_revision = -1
        self._age_due_ms: dict[str, int] = {}
        self._passing_ms: dict[tuple[str, str, int], int] = {}
        """Since when a group goes on behind ranges of a queue that pulls may still meet."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._rules_due_ms = 0
        self._is_started = False
        self.skipped_counts: dict[tuple[str, SkipReason], int] = {}
        """Messages skipped since the start, by group and reason."""

    # -- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin, if there is anything to do."""
        self._is_started = True
        self.soon()

    def stop(self) -> None:
        """Skip and copy no more."""
        self._is_started = False
        self.copier.is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def revision(self) -> int:
        """Return a number that grows when the file has to change."""
        self.copier.settle()
        return self._state.skipped.revision

    def soon(self) -> None:
        """Have a turn next, if there is anything to do."""
        if self._is_started and (self._rules_by_group() or self._state.skipped.all()):
            self._arm(0.0)

    def _arm(self, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + wait_s
        if self._timer is not None:
            if self._timer_s <= due_s:
                return
            self._timer.cancel()
        self._timer_s = due_s
        self._timer = loop.call_later(wait_s, self._turn)

    def _turn(self) -> None:
        self._timer = None
        now_ms = self._state.env.clock.now_ms()
        wait_s: float | None = None
        try:
            if now_ms >= self._rules_due_ms:
                self._rules_due_ms = now_ms + int(TICK_S * 1000)
                self._apply_all(now_ms)
            wait_s = self.copier.turn(now_ms)
        except Exception:
            log.exception("backlogs were not looked after; next try in %d s", TICK_S)
        if not self._is_started:
            return
        if self._rules or self._state.skipped.all():
            self._arm(TICK_S if wait_s is None else min(wait_s, TICK_S))

    # -- rules --------------------------------------------------------------------------------

    def rules_of(self, group: str) -> BacklogRules:
        """Return the rules of a group."""
        return self._rules_by_group().get(group, BacklogRules())

    def _rules_by_group(self) -> dict[str, BacklogRules]:
        groups = self._state.groups
        if groups.revision != self._rules_revision:
            self._rules_revision = groups.revision
            rules = {name: BacklogRules.of(item.attributes) for name, item in groups.all().items()}
            self._rules = {name: item for name, item in rules.items() if not item.is_empty}
        return self._rules

    def _apply_all(self, now_ms: int) -> None:
        for group, rules in self._rules_by_group().items():
            if obstacle(self._state, group) is None:
                self._apply(group, rules, now_ms)
        for group in list(self._state.skipped.all()):
            self._tidy(group, now_ms)

    def _apply(self, group: str, rules: BacklogRules, now_ms: int) -> None:
        for queue in list(queues_of(self._state, group)):
            bounds = unread(self._state, group, queue)
            if bounds is None:
                continue
            cut = rules.cut_by_lag(*bounds)
            if cut > bounds[0]:
                self.skip(group, queue, bounds[0], cut, SkipReason.LAG)
                continue
            cut = rules.cut_by_freshness(*bounds)
            if cut > bounds[0]:
                config = self._state.topics.get(queue.topic)
                self.widen_retries(group, config.read_queue_count if config else 1, now_ms)
                self.skip(group, queue, bounds[0], cut, SkipReason.FRESH)
        age_ms = rules.drop_age_ms
        if age_ms is not None and now_ms >= self._age_due_ms.get(group, 0):
            self._age_due_ms[group] = now_ms + min(age_ms // AGE_STEPS, AGE_STEP_MS_MAX)
            self._drop_by_age(group, now_ms - age_ms)

    def _drop_by_age(self, group: str, before_ms: int) -> None:
        """Find in a worker which messages were stored before a time, and drop them."""
        state = self._state
        queues = [
            queue
            for queue in queues_of(state, group)
            if (bounds := unread(state, group, queue)) is not None and bounds[0] < bounds[1]
        ]
        if not queues:
            return

        def search() -> dict[MessageQueue, int]:
            find = state.store.queue_offset_by_time
            return {queue: find(queue.topic, queue.queue_id, before_ms) for queue in queues}

        def done(cuts: dict[MessageQueue, int] | BaseException) -> None:
            if isinstance(cuts, BaseException):
                log.error("the old messages of group %s cannot be found: %s", group, cuts)
                return
            if not self._is_started or obstacle(state, group) is not None:
                return
            still = set(queues_of(state, group))
            for queue, cut in cuts.items():
                bounds = unread(state, group, queue)
                if queue in still and bounds is not None and bounds[0] < cut:
                    self.skip(group, queue, bounds[0], min(cut, bounds[1]), SkipReason.AGE)

        state.env.workers.submit(search, done)

    def _tidy(self, group: str, now_ms: int) -> None:
        state = self._state
        for topic, queue_id in {(r.topic, r.queue_id) for r in state.skipped.ranges_of(group)}:
            committed = state.offsets.query(group, topic, queue_id) or 0
            key = group, topic, queue_id
            if not state.skipped.would_pass(group, topic, queue_id, committed):
                self._passing_ms.pop(key, None)
            elif now_ms - self._passing_ms.setdefault(key, now_ms) >= PASSED_MS:
                # After a kill the group goes on from what the file has.
                passed = partial(self._passed, group, topic, queue_id, committed)
                state.when_offsets_saved(passed)
            state.skipped.tidy(
                group, topic, queue_id, state.store.min_queue_offset(topic, queue_id)
            )

    def _passed(
        self,
        group: str,
        topic: str,
        queue_id: int,
        committed: int,
        failure: StoreError | None,
    ) -> None:
        if failure is None:
            self._state.skipped.passed(group, topic, queue_id, committed)

    # -- skipping -----------------------------------------------------------------------------

    def skip(
        self, group: str, queue: MessageQueue, begin: int, end: int, reason: SkipReason
    ) -> SkippedRange:
        """Have a group pass over the messages of a queue from `begin` to before `end`."""
        state = self._state
        ends = retry_ends(state, group)
        now_ms = state.env.clock.now_ms()
        item = state.skipped.skip(
            group, queue.topic, queue.queue_id, begin, end, reason, now_ms, ends
        )

        def saved(failure: StoreError | None) -> None:
            if failure is not None:
                state.skipped.withdraw(group, item)
                log.error("group %s skips nothing of %s: %s", group, queue, failure)
                return
            item.is_saved = True
            self.copier.at("backlog.skipped")
            key = group, reason
            self.skipped_counts[key] = self.skipped_counts.get(key, 0) + end - begin
            log.warning(
                "group %s passes over %d messages of %s, offsets %d to %d, because of %s: %s",
                group,
                end - begin,
                queue,
                begin,
                end - 1,
                reason,
                "they come as copies" if item.is_copied else "they are dropped until a replay",
            )
            self.soon()

        state.when_skipped_saved(saved)
        return item

    def rescue(
        self, group: str, topic: str, queue_count: int, now_ms: int
    ) -> tuple[list[SkippedRange], list[int]]:
        """Have the backlog of a topic copied to so many queues of the group's retry topic.

        Returns the new ranges, and the queues from which nobody has pulled yet.
        """
        self.widen_retries(group, queue_count, now_ms)
        ranges: list[SkippedRange] = []
        unknown: list[int] = []
        for queue in list(queues_of(self._state, group, topic)):
            bounds = unread(self._state, group, queue)
            if bounds is None:
                unknown.append(queue.queue_id)
            elif bounds[0] < bounds[1]:
                ranges.append(self.skip(group, queue, *bounds, SkipReason.RESCUE))
        self.soon()
        return ranges, unknown

    def replay(self, group: str, topics: Iterable[str], queue_count: int, now_ms: int) -> int:
        """Have dropped messages copied; return how many."""
        self.widen_retries(group, queue_count, now_ms)
        count = self._state.skipped.replay(group, topics, retry_ends(self._state, group))
        self.soon()
        return count

    def widen_retries(self, group: str, queue_count: int, now_ms: int) -> None:
        """Give the group's retry topic at least so many queues."""
        state = self._state
        config = state.ensure_topic(retry_topic(group), max(1, queue_count), now_ms)
        if config.write_queue_count < queue_count:
            changed = replace(config, read_queue_count=queue_count, write_queue_count=queue_count)
            state.topics.put(changed, now_ms)
            state.topic_changed(changed)
