"""The synchronous consumers: the asyncio consumers on the background loop.

Plain handlers run in threads, ``async def`` handlers on the background loop.  Iterating crosses to
the loop once per batch, not once per message.
"""

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from cometmq.client.base.background import background
from cometmq.client.base.synchronous import on_background, same_arguments
from cometmq.client.consumer.pull_consumer import PullConsumer as AsyncPullConsumer
from cometmq.client.consumer.push_consumer import PushConsumer as AsyncPushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.model import MessageQueue

__all__ = ["PullConsumer", "PushConsumer"]

_START_ADVICE: Final = "use `with` or call start()"


class _PushConsumer(AsyncPushConsumer):
    _start_advice = _START_ADVICE


class _PullConsumer(AsyncPullConsumer):
    _start_advice = _START_ADVICE


class PushConsumer:
    """Consumes with a handler; ``with PushConsumer(...)`` starts and stops it.

    It takes the arguments of `cometmq.PushConsumer` and raises the same errors.
    """

    @same_arguments(AsyncPushConsumer)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._inner = _PushConsumer(*arguments, **options)
        self.group = self._inner.group

    def _ready(self) -> AsyncPushConsumer:
        return self._inner

    start = on_background(AsyncPushConsumer.start)
    shutdown = on_background(AsyncPushConsumer.shutdown)
    subscribe = on_background(AsyncPushConsumer.subscribe)
    unsubscribe = on_background(AsyncPushConsumer.unsubscribe)

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

    @property
    def subscription_difference(self) -> str | None:
        """What members of this group want differently; None while all want the same."""
        return self._inner.subscription_difference

    def update_name_servers(self, name_server: str | Sequence[str]) -> None:
        """Use other name servers from now on: the next request goes to one of them.

        Takes what ``name_server=`` takes.  May be called before the start and in any thread.

        Raises:
            ConfigError: an entry is neither ``host:port`` nor the URL of an address server.
        """
        self._inner.update_name_servers(name_server)

    def assignment(self) -> list[MessageQueue]:
        """The queues of the subscribed topics that are assigned to this consumer now."""
        return self._inner.assignment()

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Start no handler on messages of these queues until `resume`; None: of any queue.

        Handlers under way end as usual.  The consumer stays a member of its group and keeps its
        queues.  May be called before the start.
        """
        background().run(_call(self._inner.pause, queues))

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Handle messages of these queues again; None: of all queues, also after a stop.

        Raises:
            ConfigError: queues are named while the whole consumer is paused.
        """
        background().run(_call(self._inner.resume, queues))

    def paused(self) -> list[MessageQueue]:
        """The assigned queues that are paused now, and those that were paused by name."""
        queues: list[MessageQueue] = background().run(_call(self._inner.paused))
        return queues

    @property
    def stop_reason(self) -> str | None:
        """Why a handler stopped the consumer by `StopConsuming`; None while none did."""
        return self._inner.stop_reason

    @property
    def concurrency(self) -> int:
        """How many handlers may run at a time; a change holds at once.

        Raises:
            ConfigError: the new value is not a whole number of at least 1.
        """
        return self._inner.concurrency

    @concurrency.setter
    def concurrency(self, concurrency: int) -> None:
        background().run(_call(setattr, self._inner, "concurrency", concurrency))

    def lag(self, topic: str) -> int:
        """Messages of a topic's assigned queues that are not consumed, as of each last pull."""
        lag: int = background().run(_call(self._inner.lag, topic))
        return lag


class PullConsumer:
    """Consumes on demand; ``with PullConsumer(...)`` starts and stops it.

    It takes the arguments of `cometmq.PullConsumer` and raises the same errors.  ``for message in
    consumer`` waits for messages without end.  One thread at a time may read.
    """

    @same_arguments(AsyncPullConsumer)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._inner = _PullConsumer(*arguments, **options)
        self.group = self._inner.group

    def _ready(self) -> AsyncPullConsumer:
        return self._inner

    start = on_background(AsyncPullConsumer.start)
    shutdown = on_background(AsyncPullConsumer.shutdown)
    subscribe = on_background(AsyncPullConsumer.subscribe)
    unsubscribe = on_background(AsyncPullConsumer.unsubscribe)
    assign = on_background(AsyncPullConsumer.assign)
    fetch_queues = on_background(AsyncPullConsumer.fetch_queues)
    poll = on_background(AsyncPullConsumer.poll)
    seek = on_background(AsyncPullConsumer.seek)
    seek_to_begin = on_background(AsyncPullConsumer.seek_to_begin)
    seek_to_end = on_background(AsyncPullConsumer.seek_to_end)
    position = on_background(AsyncPullConsumer.position)
    committed = on_background(AsyncPullConsumer.committed)
    commit = on_background(AsyncPullConsumer.commit)
    offsets_for_times = on_background(AsyncPullConsumer.offsets_for_times)
    begin_offsets = on_background(AsyncPullConsumer.begin_offsets)
    end_offsets = on_background(AsyncPullConsumer.end_offsets)

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

    @property
    def subscription_difference(self) -> str | None:
        """What members of this group want differently; None while all want the same."""
        return self._inner.subscription_difference

    def update_name_servers(self, name_server: str | Sequence[str]) -> None:
        """Use other name servers from now on: the next request goes to one of them.

        Takes what ``name_server=`` takes.  May be called before the start and in any thread.

        Raises:
            ConfigError: an entry is neither ``host:port`` nor the URL of an address server.
        """
        self._inner.update_name_servers(name_server)

    def assignment(self) -> list[MessageQueue]:
        """The queues that are read now."""
        return self._inner.assignment()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage:
        """The next message; waits in the background only when none is ready.

        Raises:
            StopIteration: the consumer is closed.
            ClientClosed: the consumer is not started.
        """
        message = self._inner.next_ready()
        if message is not None:
            return message
        try:
            return background().run(self._inner.next_batch())
        except StopAsyncIteration:
            raise StopIteration from None

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out no message of these queues until `resume`; their position stays."""
        background().run(_call(self._inner.pause, queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out messages of these queues again."""
        background().run(_call(self._inner.resume, queues))

    def paused(self) -> list[MessageQueue]:
        """The queues that are paused."""
        return self._inner.paused()


async def _call(function: Any, *args: Any) -> Any:
    """Run a plain method on the loop, which owns the consumer's state."""
    return function(*args)
