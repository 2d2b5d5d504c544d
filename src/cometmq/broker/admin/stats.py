"""The broker's statistics, and cleaning on request: brokerStatus, clusterList, statsAll, clean*.

Serves GET_BROKER_RUNTIME_INFO (28), VIEW_BROKER_STATS_DATA (315), CLEAN_EXPIRED_CONSUMEQUEUE (306),
CLEAN_UNUSED_TOPIC (316) and DELETE_EXPIRED_COMMITLOG (329).  Workers read the disk, and
`cometmq.broker.base.stats` counts.

Tools read the runtime table by key and fail without some keys, so keys without a counterpart here
get the value that is true: there are no thread pools, so their queues have length 0.

Source: AdminBrokerProcessor.prepareRuntimeInfo and StoreStatsService of RocketMQ 5.4.
"""

from __future__ import annotations

import logging
from typing import Final

from cometmq.broker.base.state import BrokerState, Refusal, answer, in_worker, refusing
from cometmq.broker.delay.levels.schedule import ScheduleService
from cometmq.broker.delay.wheel.service import TimerService
from cometmq.codec.stored_message import decode_message
from cometmq.errors import CometError, ResponseCode
from cometmq.model.names import LMQ_PREFIX, SCHEDULE_TOPIC, is_system_topic
from cometmq.net.server import Handler, ServerConnection
from cometmq.wire.body.route import encode_kv_table
from cometmq.wire.body.stats import encode_stats_windows
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.admin import StatsDataHeader

__all__ = ["StatsProcessor"]

log = logging.getLogger("cometmq.broker")

_POOLS: Final = ("ack", "litePull", "pull", "query", "send")
_VERSION: Final = "V5_4_0"
"""The version in every frame, as tools spell it."""
_NO_EARLIEST_MS: Final = -1
_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


class StatsProcessor:
    """The processors of codes 28, 306, 315, 316 and 329."""

    def __init__(
        self, state: BrokerState, schedule: ScheduleService, timers: TimerService | None = None
    ) -> None:
        self._state = state
        self._timers = timers
        self._schedule = schedule
        self._first_offset = state.store.max_physical_offset

    def handlers(self) -> dict[int, Handler]:
        """Map each code to its processor, with refusals turned into answers."""
        table: dict[int, Handler] = {
            Code.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            Code.VIEW_BROKER_STATS_DATA: self.view,
            Code.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_queues,
            Code.CLEAN_UNUSED_TOPIC: self.clean_topics,
            Code.DELETE_EXPIRED_COMMITLOG: self.delete_log_files,
        }
        return {code: refusing(handler) for code, handler in table.items()}

    # -- numbers --------------------------------------------------------------------------

    def view(self, request: RemotingCommand, connection: ServerConnection, now_ms: int) -> bytes:
        """Serve VIEW_BROKER_STATS_DATA (315).

        Raises:
            Refusal: the counter does not exist.
        """
        header = StatsDataHeader.from_command(request)
        windows = self._state.stats.windows(header.stats_name, header.stats_key)
        if windows is None:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"The stats <{header.stats_name}> <{header.stats_key}> not exist",
            )
        return answer(request, body=encode_stats_windows(windows))

    def runtime_info(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> None:
        """Serve GET_BROKER_RUNTIME_INFO (28)."""
        state = self._state
        state.stats.count_puts()
        table = self._counts() | self._progress(now_ms)
        store = state.store
        overdue = None if self._timers is None else self._timers.overdue(now_ms)

        def measure() -> tuple[int, tuple[int, int]]:
            """Read the disk and count the timers, in a worker."""
            if overdue is not None:
                table["timerOverdueNum"] = str(overdue())
            if self._timers is not None:
                table["timerCongestNum"] = str(self._timers.pending_count())
            try:
                first = store.message_at(store.min_physical_offset)
                oldest_ms = decode_message(first).store_timestamp_ms if first else _NO_EARLIEST_MS
            except CometError:
                oldest_ms = _NO_EARLIEST_MS
            return oldest_ms, state.disk_usage()

        def finish(measured: tuple[int, tuple[int, int]]) -> bytes:
            oldest_ms, (total, used) = measured
            ratio = str(-(-used * 100 // total) / 100) if total else "0.0"
            table["earliestMessageTimeStamp"] = str(oldest_ms)
            table["commitLogDiskRatio"] = table["consumeQueueDiskRatio"] = ratio
            table[f"commitLogDiskRatio_{store.config.log_path}"] = ratio
            table["commitLogDirCapacity"] = f"Total : {_size(total)}, Free : {_size(total - used)}."
            return answer(request, body=encode_kv_table(dict(sorted(table.items()))))

        in_worker(state, request, connection, measure, finish)

    def _counts(self) -> dict[str, str]:
        stats, store = self._state.stats, self._state.store
        size = store.max_physical_offset - self._first_offset
        table = {
            "subscriptionDifferences": str(len(self._state.subscription_differences)),
            "putTps": stats.rates(lambda total: total.put_messages),
            "getTransferredTps": stats.rates(lambda total: total.get_messages),
            "getFoundTps": stats.rates(lambda total: total.successful_pulls),
            "getMissTps": stats.rates(lambda total: total.missed_pulls),
            "getTotalTps": stats.rates(lambda total: total.successful_pulls + total.missed_pulls),
            "putMessageTimesTotal": str(stats.put_messages),
            "putMessageSizeTotal": str(size),
            "putMessageAverageSize": f"{size / max(1, stats.put_messages):.1f}",
            "msgPutTotalYesterdayMorning": str(stats.put_yesterday),
            "msgPutTotalTodayMorning": str(stats.put_today),
            "msgPutTotalTodayNow": str(stats.put_messages_of_users),
            "msgGetTotalYesterdayMorning": str(stats.get_yesterday),
            "msgGetTotalTodayMorning": str(stats.get_today),
            "msgGetTotalTodayNow": str(stats.get_messages),
        }
        for pool in _POOLS:
            table[f"{pool}ThreadPoolQueueSize"] = "0"
            table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        return table

    def _progress(self, now_ms: int) -> dict[str, str]:
        state, store = self._state, self._state.store
        unflushed = store.max_physical_offset - store.flushed_offset
        table = {
            "brokerActive": "true",
            "brokerVersionDesc": _VERSION,
            "bootTimestamp": str(state.started_ms),
            "runtime": _span(now_ms - state.started_ms),
            "startAcceptSendRequestTimeStamp": str(
                state.config.start_accept_send_request_time_stamp
            ),
            "commitLogMinOffset": str(store.min_physical_offset),
            "commitLogMaxOffset": str(store.max_physical_offset),
            "remainHowManyDataToFlush": _size(unflushed),
            "dispatchBehindBytes": "0",
            "dispatchMaxBuffer": "0",
            "pageCacheLockTimeMills": "0",
            "EndTransactionQueueSize": "0",
            "timerReadBehind": "0",
            "timerOffsetBehind": "0",
            "timerCongestNum": "0",
            "timerEnqueueTps": "0.0",
            "timerDequeueTps": "0.0",
            "timerDeliverRate": str(state.config.timer_deliver_rate),
            "timerLagMs": "0",
            "timerOverdueNum": "0",
            "scrubBlocksRead": str(store.scrubber.counts.blocks_read),
            "scrubRottenBlocks": str(store.scrubber.counts.rotten_blocks),
            "scrubRepairedBlocks": str(store.scrubber.counts.repaired_blocks),
            "scrubDifferingBlocks": str(store.scrubber.counts.differing_blocks),
            "scrubOldestLookTimeStamp": str(store.scrubber.oldest_look_ms or 0),
        }
        timers = self._timers
        if timers is not None:
            table["timerReadBehind"] = str(timers.read_behind_ms(now_ms) // 1000)
            table["timerLagMs"] = str(timers.read_behind_ms(now_ms))
            table["timerOffsetBehind"] = str(timers.intake.message_count())
            table["timerEnqueueTps"] = f"{timers.taken_tps:.1f}"
            table["timerDequeueTps"] = f"{timers.delivered_tps:.1f}"
        for level, offset in self._schedule.offsets().items():
            end = store.max_queue_offset(SCHEDULE_TOPIC, level - 1)
            table[f"scheduleMessageOffset_{level}"] = f"{offset},{end}"
        return table

    # -- cleaning -------------------------------------------------------------------------

    def delete_log_files(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve DELETE_EXPIRED_COMMITLOG (329): delete expired log files at any hour."""
        self._state.store.delete_expired_now()
        log.info("deletion of expired log files ordered by %s", connection.peer)
        return answer(request)

    def clean_topics(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve CLEAN_UNUSED_TOPIC (316): delete queues of topics that are not configured."""
        state = self._state
        unused = [
            topic
            for topic in state.store.topics()
            if topic not in state.topics
            and not is_system_topic(topic)
            and not topic.startswith(LMQ_PREFIX)
        ]
        for topic in unused:
            state.store.delete_topic(topic)
        log.info("cleaning ordered by %s: unused topics deleted: %s", connection.peer, unused)
        return answer(request)

    def clean_queues(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve CLEAN_EXPIRED_CONSUMEQUEUE (306): delete queues without a message in the log."""
        self._state.store.clean_expired_queues()
        log.info("cleaning of queues ordered by %s", connection.peer)
        return answer(request)


def _size(count: int) -> str:
    """Write a number of bytes as RocketMQ's tools do."""
    size, unit = float(count), "B"
    for larger in _UNITS:
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def _span(span_ms: int) -> str:
    """Write how long the broker has run."""
    minutes, seconds = divmod(max(0, span_ms) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
