"""What a slave copies besides the log: topics, groups, consumer offsets, delay levels, timers.

The master's tables replace those of the slave.  Consumer offsets are the exception, since consumers
commit at the slave while the master is away: an offset that has grown here, and has not changed at
the master since the last copy, stays here and is committed at the master.

Source: SlaveSynchronize of RocketMQ 5.4.0, which copies every 60 s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from cometmq.broker.base.state import BrokerState
from cometmq.broker.delay.levels.schedule import ScheduleService
from cometmq.codec.timer import TimerCheckpoint, decode_timer_checkpoint, encode_timer_checkpoint
from cometmq.errors import CometError, ResponseCode, remote_error
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.names import DLQ_PREFIX, RETRY_PREFIX, is_system_group, is_system_topic
from cometmq.model.offsets import ConsumerOffset
from cometmq.model.topic import TopicConfig
from cometmq.net.channel import ChannelPool
from cometmq.store.base.disk import Disk, make_durable_directory
from cometmq.wire.body.admin import (
    decode_consumer_offsets,
    decode_delay_offsets,
    decode_group_config_wrapper,
)
from cometmq.wire.body.route import decode_topic_config_wrapper
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand

__all__ = ["TableCopier"]

log = logging.getLogger("cometmq.broker")

T = TypeVar("T")

ASK_TIMEOUT_MS: Final = 5000
PAGE: Final = 2000
"""Topics or groups that one answer is asked for; RocketMQ's slave asks so too."""


class TableCopier:
    """Copies the tables of one master into the tables of this broker."""

    def __init__(
        self, state: BrokerState, schedule: ScheduleService, disk: Disk, pool: ChannelPool
    ) -> None:
        self._state = state
        self._schedule = schedule
        self._disk = disk
        self._pool = pool
        self._seen: dict[tuple[str, int], int] = {}
        """By ``topic@group`` and queue id: the master's offset when it was copied last."""
        self._timers = TimerCheckpoint()
        self.copied_ms = 0
        """When the tables were copied last; 0 before."""

    async def copy(self, master: str) -> None:
        """Copy everything once.

        Raises:
            CometError: the master does not answer, or with an error.
        """
        self._take_topics(await self._topics(master))
        self._take_groups(await self._groups(master))
        await self.copy_positions(master)
        self.copied_ms = self._state.env.clock.now_ms()

    async def copy_positions(self, master: str) -> None:
        """Copy the offsets of consumers, delay levels and timers.

        Raises:
            CometError: the master does not answer, or with an error.
        """
        await self._copy_consumer_offsets(master)
        delays = await self._ask(master, RequestCode.GET_ALL_DELAY_OFFSET)
        if delays.body:
            self._schedule.take_offsets(decode_delay_offsets(delays.body)[0])
        await self._copy_timers(master)

    # -- topics and groups ------------------------------------------------------------------

    async def _topics(self, master: str) -> dict[str, TopicConfig]:
        code = RequestCode.GET_ALL_TOPIC_CONFIG
        return await self._pages(
            master, code, "Topic", lambda raw: decode_topic_config_wrapper(raw).topics
        )

    async def _groups(self, master: str) -> dict[str, SubscriptionGroupConfig]:
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        return await self._pages(
            master, code, "Group", lambda raw: decode_group_config_wrapper(raw).groups
        )

    async def _pages(
        self, master: str, code: RequestCode, kind: str, decode: Callable[[bytes], Mapping[str, T]]
    ) -> dict[str, T]:
        """Ask for a table page by page; `kind` is part of the names of the fields."""
        rows: dict[str, T] = {}
        while True:
            before = len(rows)
            fields = {f"{kind.lower()}Seq": str(before), f"max{kind}Num": str(PAGE)}
            page = await self._ask(master, code, fields | {"dataVersion": ""})
            rows |= decode(page.body)
            if _is_last(page, f"total{kind}Num", before, len(rows)):
                return rows

    def _take_topics(self, topics: Mapping[str, TopicConfig]) -> None:
        state, now_ms = self._state, self._state.env.clock.now_ms()
        for name, config in topics.items():
            if state.topics.get(name) != config:
                state.topics.put(config, now_ms)
                state.topic_changed(config)
        for name in _absent(state.topics.all(), topics):
            # Heartbeats make retry topics at each broker for itself.
            if (
                is_system_topic(name)
                or state.topics.is_reserved(name)
                or name.startswith((RETRY_PREFIX, DLQ_PREFIX))
            ):
                continue
            log.info("topic %s is deleted here too: the master has it no more", name)
            state.topics.delete(name, now_ms)
            state.offsets.remove_topic(name)
            state.store.delete_topic(name)
            state.stats.forget_topic(name)
            state.topic_deleted(name)

    def _take_groups(self, groups: Mapping[str, SubscriptionGroupConfig]) -> None:
        table, now_ms = self._state.groups, self._state.env.clock.now_ms()
        revision = table.revision
        for name, config in groups.items():
            if table.get(name) != config:
                table.put(config, now_ms)
        for name in _absent(table.all(), groups):
            if not is_system_group(name):
                table.delete(name, now_ms)
        if table.revision != revision:
            self._state.groups_changed()

    # -- positions --------------------------------------------------------------------------

    async def _copy_consumer_offsets(self, master: str) -> None:
        body = (await self._ask(master, RequestCode.GET_ALL_CONSUMER_OFFSET)).body
        if not body:
            return
        table, now_ms = self._state.offsets, self._state.env.clock.now_ms()
        ahead: list[tuple[str, str, int, int]] = []
        for key, queues in decode_consumer_offsets(body).offsets.items():
            topic, _, group = key.partition("@")
            for queue_id, theirs in queues.items():
                seen = self._seen.get((key, queue_id))
                own = table.query(group, topic, queue_id)
                if own is not None and seen == theirs and own > theirs:
                    ahead.append((group, topic, queue_id, own))
                    continue
                self._seen[key, queue_id] = theirs
                table.commit(group, topic, queue_id, ConsumerOffset(theirs), now_ms)
        for group, topic, queue_id, committed in ahead:
            await self._ask(
                master,
                RequestCode.UPDATE_CONSUMER_OFFSET,
                {
                    "consumerGroup": group,
                    "topic": topic,
                    "queueId": str(queue_id),
                    "commitOffset": str(committed),
                },
            )
            self._seen[f"{topic}@{group}", queue_id] = committed

    async def _copy_timers(self, master: str) -> None:
        """Write the master's ``timercheck``, by which this broker would go on as the master.

        This broker has placed no message in a wheel, so its own queue offset stays 0.
        """
        channel = await self._pool.get(master)
        request = RemotingCommand.request(RequestCode.GET_TIMER_CHECK_POINT)
        reply = await channel.request(request, ASK_TIMEOUT_MS)
        if reply.code != ResponseCode.SUCCESS:
            # The master has no timers.
            return
        theirs = decode_timer_checkpoint(reply.body)
        checkpoint = theirs._replace(
            log_flush_position=0,
            queue_offset=0,
            master_queue_offset=max(theirs.queue_offset, theirs.master_queue_offset),
        )
        if checkpoint == self._timers:
            return
        self._timers = checkpoint
        disk, folder = self._disk, f"{self._state.config.store_path()}/config"

        def write() -> None:
            make_durable_directory(disk, folder)
            disk.write_atomic(f"{folder}/timercheck", encode_timer_checkpoint(checkpoint))

        def done(result: object) -> None:
            if isinstance(result, BaseException):
                self._timers = TimerCheckpoint()
                log.error("the master's timercheck was not written: %s", result)

        self._state.env.workers.submit(write, done)

    async def _ask(
        self, master: str, code: int, ext: dict[str, str] | None = None
    ) -> RemotingCommand:
        channel = await self._pool.get(master)
        reply = await channel.request(RemotingCommand.request(code, ext), ASK_TIMEOUT_MS)
        if reply.code != ResponseCode.SUCCESS:
            raise remote_error(reply.code, reply.remark)
        return reply


def _absent(own: Mapping[str, object], theirs: Mapping[str, object]) -> Iterable[str]:
    return [name for name in own if name not in theirs]


def _is_last(page: RemotingCommand, total_key: str, before: int, count: int) -> bool:
    """Return whether a page was the last: without a total, the first page is the whole table."""
    total = page.ext_fields.get(total_key)
    if total is None or count >= int(total):
        return True
    if count == before:
        raise CometError(f"the master says {total_key}={total} and sends {count}")
    return False
