"""Plans the move of a consumer group in a topic, and carries it out.

Job: find each queue's new offset, and count the messages that the group skips or repeats.
Must not: ask or print anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cometmq.client.admin.calls import AdminCalls, OffsetRange
from cometmq.errors import ConfigError
from cometmq.model import MessageQueue

__all__ = ["GroupReset", "QueueReset", "ResetTarget"]


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """Where a group moves to: a time in ms since 1970, an offset, or neither for the end."""

    time_ms: int | None = None
    queue_offset: int | None = None


@dataclass(frozen=True, slots=True)
class QueueReset:
    """A group's move in one queue; ``from_offset`` is None where the group has no offset."""

    queue: MessageQueue
    from_offset: int | None
    to_offset: int
    min_offset: int

    @property
    def skipped(self) -> int:
        """Stored messages that the group has not consumed and will not consume."""
        return max(0, self.to_offset - max(self.from_offset or 0, self.min_offset))

    @property
    def repeated(self) -> int:
        """Stored messages that the group has consumed and will consume again."""
        return max(0, (self.from_offset or 0) - max(self.to_offset, self.min_offset))


class GroupReset:
    """The move of one group in one topic: `plan`, then `carry_out`.

    Args:
        queue_names: ``broker:queue id`` of the queues to move; empty for all.
    """

    def __init__(
        self,
        admin: AdminCalls,
        group: str,
        topic: str,
        target: ResetTarget,
        queue_names: Iterable[str] = (),
    ) -> None:
        self._admin = admin
        self._group = group
        self._topic = topic
        self._target = target
        self._queue_names = tuple(dict.fromkeys(queue_names))

    async def plan(self) -> list[QueueReset]:
        """The move in each queue as it would be now.

        Raises:
            NoRoute: the topic does not exist.
            ConfigError: a queue does not exist, or does not have the offset.
        """
        bounds = await self._admin.topic_offsets(self._topic)
        progress = await self._admin.group_offsets(self._group, [self._topic])
        names = {f"{queue.broker_name}:{queue.queue_id}": queue for queue in sorted(progress)}
        unknown = [name for name in self._queue_names if name not in names]
        if unknown:
            raise ConfigError(
                f"topic {self._topic} has no queue {unknown[0]}; its queues are {', '.join(names)}"
            )
        resets: list[QueueReset] = []
        for name in self._queue_names or names:
            queue, least, end = names[name], *_range(bounds[names[name]])
            if self._target.queue_offset is not None:
                to_offset = self._target.queue_offset
                if not least <= to_offset <= end:
                    raise ConfigError(
                        f"queue {name} of {self._topic} has no offset {to_offset}: it holds "
                        f"{least} to {end}, the end"
                    )
            elif self._target.time_ms is not None:
                to_offset = await self._admin.search_offset(queue, self._target.time_ms)
            else:
                to_offset = end
            resets.append(QueueReset(queue, progress[queue].consumer_offset, to_offset, least))
        return resets

    async def carry_out(self, resets: Sequence[QueueReset]) -> list[QueueReset]:
        """Move the group; the result has the offsets that the brokers have set.

        A move of all queues to a time or to the end works at brokers of every version.

        Raises:
            ConfigError: a broker cannot move a group with online members in a single queue.
            RemoteError: a broker refused.
        """
        if self._queue_names or self._target.queue_offset is not None:
            await self._admin.reset_queue_offsets(
                self._group, {reset.queue: reset.to_offset for reset in resets}
            )
            return list(resets)
        moved = await self._admin.reset_offsets(
            self._group, self._topic, timestamp_ms=self._target.time_ms
        )
        return [
            replace(reset, to_offset=moved.get(reset.queue, reset.to_offset)) for reset in resets
        ]


def _range(bounds: OffsetRange) -> tuple[int, int]:
    return bounds.min_offset, max(bounds.min_offset, bounds.max_offset)
