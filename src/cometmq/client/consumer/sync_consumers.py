"""The synchronous consumers: the asyncio ones on the background loop.

Job: the names and signatures of ``PushConsumer`` and ``PullConsumer``, without asyncio.
Must not: add behaviour.  Plain handlers run in threads, ``async def`` handlers on the background
loop.  A message of an iteration costs no hop to the loop, only a batch does.
"""

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from cometmq.client.base.background import background
from cometmq.client.consumer.mirrored import same_arguments
from cometmq.client.consumer.pull_consumer import POLL_COUNT_MAX, POLL_TIMEOUT_MS
from cometmq.client.consumer.pull_consumer import PullConsumer as AsyncPullConsumer
from cometmq.client.consumer.push_consumer import PushConsumer as AsyncPushConsumer
from cometmq.client.handling.handlers import Handler
from cometmq.client.message.message import ReceivedMessage
from cometmq.core.filter.tag_filter import TAG
from cometmq.model import MessageQueue

__all__ = ["PullConsumer", "PushConsumer"]


class PushConsumer:
    """Consumes with a handler; ``with PushConsumer(...)`` starts and stops it.

    Arguments as those of `cometmq.PushConsumer`.
    """

    @same_arguments(AsyncPushConsumer)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._inner = AsyncPushConsumer(*arguments, **options)
        self.group = self._inner.group

    def start(self) -> None:
        """Join the group and begin to consume."""
        background().run(self._inner.start())

    def shutdown(self) -> None:
        """Stop pulling, let handlers finish, commit, leave the group, disconnect."""
        background().run(self._inner.shutdown())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    @property
    def client_id(self) -> str | None:
        """This consumer's id at the brokers, once started."""
        return self._inner.client_id

    def subscribe(
        self,
        topic: str,
        expression: str = "*",
        handler: Handler | None = None,
        *,
        expression_type: str = TAG,
    ) -> None:
        """Consume a topic (also while running), with its own handler if one is given."""
        background().run(
            self._inner.subscribe(topic, expression, handler, expression_type=expression_type)
        )

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic; finished messages are committed."""
        background().run(self._inner.unsubscribe(topic))

    def assignment(self) -> list[MessageQueue]:
        """Queues of the subscribed topics that this consumer holds now."""
        return self._inner.assignment()


class PullConsumer:
    """Consumes on demand; ``with PullConsumer(...)`` starts and stops it.

    Arguments as those of `cometmq.PullConsumer`; ``for message in consumer`` waits for messages
    without end.  One thread at a time may read.
    """

    @same_arguments(AsyncPullConsumer)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._inner = AsyncPullConsumer(*arguments, **options)
        self.group = self._inner.group

    def start(self) -> None:
        """Join the group, if topics are subscribed."""
        background().run(self._inner.start())

    def shutdown(self, *, commit: bool = True) -> None:
        """Stop pulling, commit what was handed out (with ``auto_commit``), leave the group."""
        background().run(self._inner.shutdown(commit=commit))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown(commit=kind is None)

    @property
    def client_id(self) -> str | None:
        """This consumer's id at the brokers, once started."""
        return self._inner.client_id

    def subscribe(self, topic: str, expression: str = "*", *, expression_type: str = TAG) -> None:
        """Share the queues of a topic with the other members of the group."""
        background().run(self._inner.subscribe(topic, expression, expression_type=expression_type))

    def unsubscribe(self, topic: str) -> None:
        """Stop reading a topic."""
        background().run(self._inner.unsubscribe(topic))

    def assign(self, queues: Iterable[MessageQueue], expression: str = "*") -> None:
        """Read exactly these queues, from their stored offsets; replaces an earlier assign."""
        background().run(self._inner.assign(queues, expression))

    def assignment(self) -> list[MessageQueue]:
        """Queues being read now."""
        return self._inner.assignment()

    def fetch_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """All readable queues of a topic."""
        return background().run(self._inner.fetch_queues(topic))

    def poll(
        self, timeout_ms: int = POLL_TIMEOUT_MS, count_max: int = POLL_COUNT_MAX
    ) -> list[ReceivedMessage]:
        """Messages that are ready, at least one unless the time runs out."""
        return background().run(self._inner.poll(timeout_ms, count_max))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage:
        """The next message; waits in the background only when none is ready."""
        message = self._inner.next_ready()
        if message is not None:
            return message
        try:
            return background().run(self._inner.next_batch())
        except StopAsyncIteration:
            raise StopIteration from None

    def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Read the queue from another offset; what was buffered is dropped."""
        background().run(self._inner.seek(queue, queue_offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Read the queue from the oldest message there is."""
        background().run(self._inner.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Read only messages that come from now on."""
        background().run(self._inner.seek_to_end(queue))

    def position(self, queue: MessageQueue) -> int:
        """Offset of the next message that will be handed out."""
        return background().run(self._inner.position(queue))

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's stored offset, None if there is none."""
        return background().run(self._inner.committed(queue))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store offsets and wait for the brokers' word: those given, else every position."""
        background().run(self._inner.commit(offsets))

    def offsets_for_times(self, times_ms: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """For each queue the first offset stored at or after a time, ms since 1970."""
        return background().run(self._inner.offsets_for_times(times_ms))

    def begin_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """The smallest offset of each queue."""
        return background().run(self._inner.begin_offsets(queues))

    def end_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """The next offset to be written of each queue."""
        return background().run(self._inner.end_offsets(queues))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out nothing of these queues until `resume`; their position stays."""
        background().run(_call(self._inner.pause, queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out these queues again."""
        background().run(_call(self._inner.resume, queues))

    def paused(self) -> list[MessageQueue]:
        """Queues that are paused."""
        return self._inner.paused()


async def _call(function: Any, *args: Any) -> Any:
    """Run a plain method on the loop, where the consumer's state lives."""
    return function(*args)
