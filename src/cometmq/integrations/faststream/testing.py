"""A broker in memory for tests: what is published goes straight to the subscribers."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import anyio
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
from faststream.exceptions import FeatureNotSupportedException, SubscriberNotFound
from faststream.response import PublishType

from cometmq import Message, MessageQueue, Sql92
from cometmq.integrations.faststream.broker import CometBroker
from cometmq.integrations.faststream.message import Settlement, current_settlement
from cometmq.integrations.faststream.parser import CometParser
from cometmq.integrations.faststream.producer import CometProducer, encoded_messages
from cometmq.integrations.faststream.publisher import CometTopicPublisher
from cometmq.integrations.faststream.response import CometPublishCommand
from cometmq.integrations.faststream.subscriber import CometSubscriber

__all__ = ["MemoryMessage", "TestCometBroker"]

_numbers: Final = count()


@dataclass
class MemoryMessage(Message):
    """A message that no broker has stored, with the fields of a `ReceivedMessage`."""

    queue_offset: int = field(default_factory=lambda: next(_numbers))
    reconsume_times: int = 0

    @property
    def message_queue(self) -> MessageQueue:
        """Queue 0 of a broker that does not exist."""
        return MessageQueue(self.topic, "memory", 0)

    @property
    def message_id(self) -> str:
        """Unique in this process."""
        return f"memory-{self.queue_offset}"


class TestCometBroker(TestBroker[CometBroker, EnterType], broker=CometBroker):
    """Runs the subscribers of brokers without a cluster; ``with_real=True`` uses the cluster.

    Topics, groups, tags, batches and requests work as with a cluster: of the subscribers of a
    group one gets the message. Delays and tries are left out, and an error of a handler is raised
    from ``publish``. SQL filters need a broker.
    """

    @contextmanager
    def _patch_producer(self, broker: CometBroker) -> Generator[None, None, None]:
        producer = MemoryProducer(broker, self.brokers)
        with change_producer(broker.config.broker_config, producer):
            yield

    async def _fake_connect(self, broker: CometBroker, *args: Any, **kwargs: Any) -> None:
        """Connect to nothing."""

    def _fake_start(self, broker: CometBroker, *args: Any, **kwargs: Any) -> None:
        broker.check_groups()
        super()._fake_start(broker, *args, **kwargs)

    def create_publisher_fake_subscriber(
        self, broker: CometBroker, publisher: CometTopicPublisher
    ) -> tuple[CometSubscriber, bool]:
        """The subscriber of a publisher's topic; a temporary one if there is none."""
        for subscriber in _subscribers(self.brokers):
            if publisher.topic in subscriber.topics:
                return subscriber, True
        temporary = broker.subscriber(
            publisher.topic,
            group=f"test-{next(_numbers)}",
            batch=publisher.is_batch,
            consume_from="first",
            persistent=False,
        )
        return temporary, False


class MemoryProducer(CometProducer):
    """Calls subscribers instead of sending."""

    def __init__(self, broker: CometBroker, brokers: Sequence[CometBroker]) -> None:
        super().__init__(None, None)
        default = CometParser()
        self._parser = ParserComposition(broker._parser, default.parse_message)
        self._decoder = ParserComposition(broker._decoder, default.decode_message)
        self.codec = broker.config.broker_codec or DefaultCodec()
        self.serializer = broker.config.fd_config._serializer
        self._brokers = brokers

    async def publish(self, cmd: CometPublishCommand) -> None:
        """Run each group's subscriber."""
        (message,) = await self._encoded(cmd)
        for subscriber in self._matching(message):
            await _run(subscriber, [message] if subscriber.is_batch else message)

    async def publish_batch(self, cmd: CometPublishCommand) -> list[Any]:
        """Run each group's subscriber: once for a batch subscriber, else for each message."""
        messages = await self._encoded(cmd)
        for subscriber in self._matching(messages[0]):
            for raw in [messages] if subscriber.is_batch else messages:
                await _run(subscriber, raw)
        return []

    async def request(self, cmd: CometPublishCommand) -> Any:
        """Run the first subscriber, and return its result as the reply.

        Raises:
            SubscriberNotFound: nobody subscribes to the topic.
            TimeoutError: the handler takes longer than the request's timeout.
        """
        (message,) = await self._encoded(cmd)
        for subscriber in self._matching(message):
            with anyio.fail_after(cmd.timeout):
                result = await _run(subscriber, [message] if subscriber.is_batch else message)
            reply = CometPublishCommand(
                result.body,
                publish_type=PublishType.REPLY,
                topic=cmd.destination,
                headers=result.headers,
                correlation_id=result.correlation_id,
            )
            (answer,) = await self._encoded(reply)
            return answer
        raise SubscriberNotFound(f"no subscriber of {cmd.destination}")

    async def _encoded(self, cmd: CometPublishCommand) -> list[MemoryMessage]:
        return await encoded_messages(cmd, MemoryMessage, self.codec, self.serializer)

    def _matching(self, message: MemoryMessage) -> Iterable[CometSubscriber]:
        """The subscribers that get a message: all that broadcast, the first of other groups."""
        groups: set[str] = set()
        for subscriber in _subscribers(self._brokers):
            if message.topic not in subscriber.topics or not _is_wanted(subscriber, message):
                continue
            _, _, is_broadcast = subscriber.subscription
            if subscriber.group in groups and not is_broadcast:
                continue
            groups.add(subscriber.group)
            yield subscriber


def _subscribers(brokers: Iterable[CometBroker]) -> Iterable[CometSubscriber]:
    for broker in brokers:
        for subscriber in broker.subscribers:
            assert isinstance(subscriber, CometSubscriber)
            yield subscriber


def _is_wanted(subscriber: CometSubscriber, message: MemoryMessage) -> bool:
    """Whether a message passes the subscriber's tag expression."""
    expression = subscriber.expression
    if isinstance(expression, Sql92):
        raise FeatureNotSupportedException(
            f"the subscriber of {', '.join(subscriber.topics)} filters by SQL, which a broker "
            "does; test it with TestCometBroker(broker, with_real=True)"
        )
    tags = {tag.strip() for tag in expression.split("||")}
    return "*" in tags or message.tags in tags


async def _run(subscriber: CometSubscriber, raw: Any) -> Any:
    """Run a subscriber's handlers; raises what they raise."""
    token = current_settlement.set(Settlement())
    try:
        return await subscriber.process_message(raw)
    finally:
        current_settlement.reset(token)
