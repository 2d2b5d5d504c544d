"""A group consumer whose handlers can be paused, by the program or by a handler's `StopConsuming`.

A paused queue is not pulled, and no handler starts on it; its messages that wait for a handler are
set aside, in memory, until `resume`.  The consumer stays a member of its group and keeps the queue,
so no other member handles them meanwhile.
"""

import inspect
import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from cometmq.client.base.arguments import queue_list
from cometmq.client.base.options import ClientOptions
from cometmq.client.consumer.orderly_consumer import OrderlyConsumer
from cometmq.client.handling.handlers import Outcome, reason_of
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.queue.assignment import Assignment
from cometmq.errors import ConfigError
from cometmq.model import MessageQueue
from cometmq.model.names import RETRY_PREFIX

__all__ = ["OnStopped", "PausableConsumer"]

log = logging.getLogger("cometmq.client")

OnStopped = Callable[[ReceivedMessage, str], Awaitable[None] | None]
"""Called with the message whose handler stopped the consumer, and the reason; may be ``async``."""


class PausableConsumer(OrderlyConsumer):
    """Base of consumers with handlers.

    Raises:
        ConfigError: an argument is not accepted; the text names it.
    """

    def __init__(
        self, group: str, options: ClientOptions, *, on_stopped: OnStopped | None, **settings: Any
    ) -> None:
        super().__init__(group, options, **settings)
        self._on_stopped = on_stopped
        self._paused: set[MessageQueue] = set()
        self._is_all_paused = False
        self._stop_reason: str | None = None

    @abstractmethod
    def _submit(self, assignment: Assignment, messages: list[ReceivedMessage]) -> None:
        """Submit messages of a queue without an order to their handler."""

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Start no handler on messages of these queues until `resume`; None: of any queue.

        Handlers under way end as usual.  The consumer stays a member of its group and keeps its
        queues.  May be called before the start.
        """
        if queues is None:
            self._is_all_paused = True
        else:
            self._paused.update(queue_list(queues))
        self._apply_pauses()

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Handle messages of these queues again; None: of all queues, also after a stop.

        Raises:
            ConfigError: queues are named while the whole consumer is paused.
        """
        if queues is None:
            self._is_all_paused = False
            self._stop_reason = None
            self._paused.clear()
        elif self._is_all_paused:
            raise ConfigError(
                f"all of the consumer of group {self.group} is paused "
                f"({self._stop_reason or 'by pause()'}); call resume() without queues"
            )
        else:
            self._paused.difference_update(queue_list(queues))
        self._apply_pauses()

    def paused(self) -> list[MessageQueue]:
        """The assigned queues that are paused now, and those that were paused by name."""
        queues = {queue for queue in self._assignments if self.is_paused(queue)}
        return sorted(queue for queue in queues | self._paused if _is_named(queue))

    @property
    def stop_reason(self) -> str | None:
        """Why a handler stopped the consumer by `StopConsuming`; None while none did."""
        return self._stop_reason

    def is_paused(self, queue: MessageQueue) -> bool:
        """Whether no handler may start on messages of a queue."""
        return self._is_all_paused or queue in self._paused

    def may_start(self, queue: MessageQueue) -> bool:
        """Whether a handler may start on a queue: its lock is ours, and it is not paused."""
        return not self.is_paused(queue) and self.may_consume(queue)

    def _added(self, assignment: Assignment) -> None:
        assignment.process_queue.is_paused = self.is_paused(assignment.queue)
        super()._added(assignment)

    def _apply_pauses(self) -> None:
        """Tell the queues which of them are paused, and continue the others."""
        for queue, assignment in list(self._assignments.items()):
            is_paused = self.is_paused(queue)
            assignment.process_queue.is_paused = is_paused
            if is_paused:
                continue
            if self._ordering is not None:
                self._ordering.wake(queue)
            self._submit_set_aside(assignment)
            assignment.loop.wake()

    def _submit_set_aside(self, assignment: Assignment) -> None:
        messages, assignment.set_aside = assignment.set_aside, []
        if messages and not self._is_stopping:
            messages.sort(key=lambda message: message.queue_offset)
            self._submit(assignment, messages)

    def stop_consuming(self, message: ReceivedMessage, outcome: Outcome) -> None:
        """Pause everything because a handler answered `StopConsuming`, and raise the alarm."""
        if self._stop_reason is not None:
            return  # it is stopped already; the log has this failure too
        reason = reason_of(outcome)
        log.critical(
            "group %s stops consuming at message %s (%s at %d): %s; find out what happened to it, "
            "then call resume() to handle it again, or move the group's offset past it",
            self.group,
            message.message_id,
            message.message_queue,
            message.queue_offset,
            reason,
        )
        self._stop_reason = reason
        self.pause()
        if self._on_stopped is not None:
            self.spawn(self._alert(self._on_stopped, message, reason), "on-stopped")

    async def _alert(self, on_stopped: OnStopped, message: ReceivedMessage, reason: str) -> None:
        try:
            waiting = on_stopped(message, reason)
            if inspect.isawaitable(waiting):
                await waiting
        except Exception:
            log.exception("on_stopped of group %s failed", self.group)


def _is_named(queue: MessageQueue) -> bool:
    """Whether a program names the queue; that of the retry topic is the consumer's own."""
    return not queue.topic.startswith(RETRY_PREFIX)
