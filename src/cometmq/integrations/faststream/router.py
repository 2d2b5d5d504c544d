"""Routers: subscribers and publishers that a broker includes later."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fast_depends.dependencies import Dependant
from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY
from faststream._internal.types import BrokerMiddleware, CustomCallable
from faststream.middlewares import AckPolicy

from cometmq.integrations.faststream.config import CometBrokerConfig
from cometmq.integrations.faststream.message import RawMessage
from cometmq.integrations.faststream.registrator import CometRegistrator

__all__ = ["CometPublisher", "CometRoute", "CometRouter"]


class CometPublisher(ArgsContainer):
    """A publisher of a `CometRoute`; takes the arguments of ``broker.publisher``."""

    def __init__(self, topic: str, **options: Any) -> None:
        super().__init__(topic, **options)


class CometRoute(SubscriberRoute):
    """A handler with its topics; takes the arguments of ``broker.subscriber``."""

    def __init__(
        self,
        call: Callable[..., Any],
        *topics: str,
        publishers: Iterable[CometPublisher] = (),
        **options: Any,
    ) -> None:
        super().__init__(call, *topics, publishers=publishers, **options)


class CometRouter(CometRegistrator, BrokerRouter[RawMessage, CometBrokerConfig]):
    """Subscribers and publishers for ``broker.include_router``.

    Args:
        prefix: goes before the names of all topics.
        handlers: handlers without decorators.
        dependencies: of all handlers.
        middlewares: of all subscribers and publishers.
        routers: to include in this one.
        parser: of all subscribers.
        decoder: of all subscribers.
        include_in_schema: show them in AsyncAPI.
        ack_policy: of all subscribers that name none.
    """

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[CometRoute] = (),
        *,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[CometRegistrator] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        include_in_schema: bool | None = None,
        ack_policy: AckPolicy = EMPTY,
    ) -> None:
        super().__init__(
            config=CometBrokerConfig(
                prefix=prefix,
                ack_policy=ack_policy,
                broker_dependencies=dependencies,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                include_in_schema=include_in_schema,
            ),
            handlers=handlers,
            routers=routers,
        )
