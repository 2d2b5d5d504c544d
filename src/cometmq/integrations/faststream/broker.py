"""FastStream's broker over CometMQ or RocketMQ."""

import logging
import os
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

from fast_depends import Provider, dependency_provider
from fast_depends.dependencies import Dependant
from fast_depends.library.serializer import SerializerProto
from faststream._internal.basic_types import LoggerProto
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.parser import CodecProto
from faststream._internal.types import BrokerMiddleware, CustomCallable, IdGenerator
from faststream.exceptions import SetupError
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response import PublishType
from faststream.security import BaseSecurity
from faststream.specification.schema import BrokerSpec
from faststream.specification.schema.extra import Tag, TagDict

from cometmq import Admin, Producer, SendResult, Tls
from cometmq.errors import CometError
from cometmq.integrations.faststream.config import CometBrokerConfig, client_security
from cometmq.integrations.faststream.logging import comet_logger_state
from cometmq.integrations.faststream.message import CometStreamMessage, RawMessage
from cometmq.integrations.faststream.producer import CometProducer
from cometmq.integrations.faststream.registrator import CometRegistrator
from cometmq.integrations.faststream.response import (
    CometPublishCommand,
    MessageFields,
    key_tuple,
)
from cometmq.integrations.faststream.subscriber import CometSubscriber

__all__ = ["CometBroker"]


class CometBroker(CometRegistrator, BrokerUsecase[RawMessage, Producer, CometBrokerConfig]):
    """Subscribers, publishers and direct publishing over one cluster.

    Args:
        name_server: ``host:port``, several joined by ``;``, or a sequence; default
            ``NAMESRV_ADDR``, else ``127.0.0.1:9876``.
        producer_group: the producer's group, shown to operators.
        producer_options: further arguments of `cometmq.Producer`, such as ``linger_ms``.
        access_key: with ``secret_key`` and ``security_token``: signs each request.
        secret_key: see ``access_key``.
        security_token: see ``access_key``.
        tls: True or a `cometmq.Tls`.
        graceful_timeout: seconds that a stop waits for running handlers; None is for ever.
        ack_policy: of all subscribers that name none.
        id_generator: makes correlation ids.
        decoder: of all subscribers.
        codec: of all subscribers and publishers.
        parser: of all subscribers.
        dependencies: of all subscribers.
        middlewares: of all subscribers and publishers.
        routers: to include.
        security: FastStream's object, instead of keys and ``tls``.
        specification_url: the server's address in AsyncAPI; default the name servers.
        description: of the server in AsyncAPI.
        tags: of the server in AsyncAPI.
        logger: the program's own; None for none.
        log_level: of FastStream's messages.
        apply_types: use FastDepends.
        provider: FastDepends' provider.
        serializer: FastDepends' serializer.
        context: FastStream's context.

    Raises:
        SetupError: ``security`` is not understood.
    """

    def __init__(
        self,
        name_server: str | Sequence[str] | None = None,
        *,
        producer_group: str = "DEFAULT_PRODUCER",
        producer_options: dict[str, Any] | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        security_token: str | None = None,
        tls: Tls | bool | None = None,
        graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY,
        id_generator: IdGenerator = gen_cor_id,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        parser: CustomCallable | None = None,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[CometRegistrator] = (),
        security: BaseSecurity | None = None,
        specification_url: str | Iterable[str] | None = None,
        description: str | None = None,
        tags: Iterable[Tag | TagDict] = (),
        logger: LoggerProto | None = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        provider: Provider | None = None,
        serializer: SerializerProto | None = EMPTY,
        context: ContextRepo | None = None,
    ) -> None:
        if security is not None and (access_key or secret_key):
            raise SetupError("security= and access_key= both name the keys; give one of them")
        client_options: dict[str, Any] = {
            "name_server": name_server,
            "access_key": access_key,
            "secret_key": secret_key,
            "security_token": security_token,
            "tls": tls,
        }
        for name, value in client_security(security).items():
            client_options[name] = client_options[name] or value
        super().__init__(
            config=CometBrokerConfig(
                client_options=client_options,
                producer_options={"group": producer_group, **(producer_options or {})},
                producer=CometProducer(parser, decoder),
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                logger=comet_logger_state(logger, log_level),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                broker_dependencies=dependencies,
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                id_generator=id_generator,
                extra_context={"broker": self},
            ),
            specification=BrokerSpec(
                url=_addresses(specification_url or name_server),
                protocol="rocketmq-secure" if client_options["tls"] else "rocketmq",
                protocol_version="custom",
                description=description,
                tags=tags,
                security=security,
            ),
            routers=routers,
        )

    async def _connect(self) -> Producer:
        config = self.config.broker_config
        client = Producer(**config.producer_options, **config.client_options)
        producer = config.producer
        assert isinstance(producer, CometProducer)
        await producer.connect(client, config.fd_config._serializer, self.config.broker_codec)
        return client

    async def start(self) -> None:
        """Connect, and start all subscribers.

        Raises:
            SetupError: two subscribers of one group differ in their topics or filters.
            CometError: as `cometmq.PushConsumer.start`.
        """
        self.check_groups()
        await self.connect()
        await super().start()

    def check_groups(self) -> None:
        """Refuse groups whose members would take messages that another member is meant to get.

        Raises:
            SetupError: two subscribers of one group differ in their topics or filters.
        """
        first: dict[str, CometSubscriber] = {}
        subscribers = [each for each in self.subscribers if isinstance(each, CometSubscriber)]
        for subscriber in sorted(subscribers, key=lambda each: each.topics):
            other = first.setdefault(subscriber.group, subscriber)
            if other.subscription != subscriber.subscription:
                raise SetupError(
                    f"two subscribers of the group {subscriber.group} differ: "
                    f"{', '.join(other.topics)} ({other.expression}) and "
                    f"{', '.join(subscriber.topics)} ({subscriber.expression}). All members of a "
                    "group share all its messages: give each subscriber a group of its own, or "
                    "one subscriber all topics"
                )

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stop all subscribers, send what is under way, disconnect."""
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            producer = self.config.broker_config.producer
            assert isinstance(producer, CometProducer)
            await producer.disconnect()
            self._connection = None

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *,
        tag: str | None = None,
        keys: Iterable[str] = (),
        message_group: str | None = None,
        delay_level: int = 0,
        delay_ms: int | None = None,
        deliver_time_ms: int | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
    ) -> SendResult:
        """Send a message and wait until the broker has stored it.

        Args:
            message: bytes, a text, or what FastStream's serializer turns into JSON.
            topic: where it goes.
            tag: the tag that consumers filter by.
            keys: searchable business keys.
            message_group: messages that share it keep their order.
            delay_level: 1..18; 0 is at once.
            delay_ms: a delay from the time at which the broker stores the message.
            deliver_time_ms: an exact time, ms since 1970.
            headers: properties of the message, texts.
            correlation_id: for tracing; a new one by default.
            reply_to: topic for the subscriber's answer.

        Raises:
            CometError: as `cometmq.Producer.send`.
        """
        fields = MessageFields(
            tag, key_tuple(keys), message_group, delay_level, delay_ms, deliver_time_ms
        )
        command = CometPublishCommand(
            message,
            publish_type=PublishType.PUBLISH,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            fields=fields,
        )
        result: SendResult = await self._basic_publish(command, producer=self.config.producer)
        return result

    async def publish_batch(  # type: ignore[override]
        self,
        *messages: Any,
        topic: str,
        tag: str | None = None,
        message_group: str | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic in as few requests as their size allows.

        Raises:
            CometError: as `cometmq.Producer.send_batch`.
            TypeError: there is no message.
        """
        if not messages:
            raise TypeError(f"publish_batch for {topic} got no message; give at least one")
        command = CometPublishCommand(
            *messages,
            publish_type=PublishType.PUBLISH,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            fields=MessageFields(tag=tag, message_group=message_group),
        )
        results: list[SendResult] = await self._basic_publish_batch(
            command, producer=self.config.producer
        )
        return results

    async def request(  # type: ignore[override]
        self,
        message: Any,
        topic: str,
        *,
        tag: str | None = None,
        keys: Iterable[str] = (),
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: float = 3.0,
    ) -> CometStreamMessage:
        """Send a message and wait for the reply of its subscriber.

        Args:
            timeout: seconds for the send and the reply together.

        Raises:
            RequestTimeout: no reply came in time; the message may have been handled.
            CometError: as `cometmq.Producer.send`.
        """
        command = CometPublishCommand(
            message,
            publish_type=PublishType.REQUEST,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            fields=MessageFields(tag=tag, keys=key_tuple(keys)),
            timeout=timeout,
        )
        reply: CometStreamMessage = await self._basic_request(
            command, producer=self.config.producer
        )
        return reply

    async def ping(self, timeout: float | None = 3.0) -> bool:
        """Whether a name server answers and knows a broker within ``timeout`` seconds."""
        options = self.config.broker_config.client_options
        timeout_ms = max(1, round((timeout or 10.0) * 1000))
        try:
            async with Admin(timeout_ms=timeout_ms, **options) as admin:
                cluster = await admin.cluster_info()
        except CometError:
            return False
        return bool(cluster.brokers)


def _addresses(value: str | Iterable[str] | None) -> list[str]:
    """Addresses for AsyncAPI: the name servers that the client would use."""
    if value is None:
        value = os.environ.get("NAMESRV_ADDR") or "127.0.0.1:9876"
    return value.split(";") if isinstance(value, str) else list(value)
