"""The App for programs without asyncio: the same App, with blocking calls.

`run` keeps the main thread; ``with app`` runs the App on the background loop of the synchronous
clients.  Plain handlers run in threads either way.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from cometmq.app.app import App as AsyncApp
from cometmq.app.options import ValueFields
from cometmq.app.serializers import Serializer
from cometmq.client import SendResult
from cometmq.client.base.background import background
from cometmq.client.base.synchronous import same_arguments

__all__ = ["App"]


class App:
    """Handlers, producers and the life of a program around them; arguments as `cometmq.App`.

    Decorators, `run`, `stop`, `stats` and `trial` are those of `cometmq.App`.  `send` and `request`
    wait, so call them in plain handlers and hooks, not in ``async`` ones.
    """

    @same_arguments(AsyncApp)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        inner = self.asyncio = AsyncApp(*arguments, **options)
        self.group = inner.group
        self.consumer = inner.consumer
        self.producer = inner.producer
        self.middleware = inner.middleware
        self.on_startup = inner.on_startup
        self.on_shutdown = inner.on_shutdown
        self.run = inner.run
        self.stop = inner.stop
        self.stats = inner.stats
        self.trial = inner.trial

    def start(self, *, name_server: str | Sequence[str] | None = None) -> None:
        """Start the producer, run the startup hooks, then consume.

        Raises:
            CometError: as `PushConsumer.start`.
        """
        background().run(self.asyncio.start(name_server=name_server))

    def shutdown(self) -> None:
        """Let handlers finish and acknowledge, run shutdown hooks, and disconnect."""
        if self.asyncio.is_running:
            self.asyncio.run_from_thread(self.asyncio.shutdown())

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

    def send(
        self,
        topic: str,
        value: Any,
        *,
        serializer: Serializer | None = None,
        **fields: Unpack[ValueFields],
    ) -> SendResult:
        """Send a value to a topic and wait for the broker's answer; see `cometmq.App.send`.

        Raises:
            ClientClosed: the App does not run, or this is its event loop's thread.
            CometError: as `cometmq.App.send`.
        """
        return self.asyncio.send_from_thread(topic, value, serializer=serializer, **fields)

    def request(
        self,
        topic: str,
        value: Any,
        *,
        returns: Any = bytes,
        timeout_ms: int = 3_000,
        serializer: Serializer | None = None,
        **fields: Unpack[ValueFields],
    ) -> Any:
        """Send a value and wait for the reply; see `cometmq.App.request`.

        Raises:
            ClientClosed: the App does not run, or this is its event loop's thread.
            CometError: as `cometmq.App.request`.
        """
        return self.asyncio.run_from_thread(
            self.asyncio.request(
                topic,
                value,
                returns=returns,
                timeout_ms=timeout_ms,
                serializer=serializer,
                **fields,
            )
        )
